//! Temporary folders for the files of servers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::{Builder, TempDir};

static FOLDERS_ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Creates all later temporary folders in `root`, so that another process can remove them. Only the first call has an
/// effect.
pub fn keep_folders_in(root: &Path) {
    let _ = FOLDERS_ROOT.set(root.to_owned());
}

/// Creates a folder under the root set by [`keep_folders_in`], or in the system's default.
pub(crate) fn create_temporary_folder(prefix: &str) -> TempDir {
    let mut builder = Builder::new();
    let builder = builder.prefix(prefix);
    match FOLDERS_ROOT.get() {
        Some(root) => builder.tempdir_in(root),
        None => builder.tempdir(),
    }
    .expect("a temporary folder")
}
