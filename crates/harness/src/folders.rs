//! Temporary folders for the files of servers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::{Builder, TempDir};

static FOLDERS_ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Makes this process create all later temporary folders in `root`, where another process can find and remove them.
/// Only the first call has an effect.
pub fn set_folders_root(root: &Path) {
    let _ = FOLDERS_ROOT.set(root.to_owned());
}

/// Creates a temporary folder in the root set by [`set_folders_root`], or else in the system's default location.
pub(crate) fn create_temporary_folder(prefix: &str) -> TempDir {
    let mut builder = Builder::new();
    let builder = builder.prefix(prefix);
    match FOLDERS_ROOT.get() {
        Some(root) => builder.tempdir_in(root),
        None => builder.tempdir(),
    }
    .expect("a temporary folder")
}
