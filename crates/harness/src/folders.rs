//! Where servers have their folders.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::{Builder, TempDir};

static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Has all folders from now on be made within this one, so that a process that outlives this one can remove them. The
/// first word holds.
pub fn keep_folders_in(root: &Path) {
    let _ = ROOT.set(root.to_owned());
}

/// A new folder.
pub(crate) fn temporary(prefix: &str) -> TempDir {
    let mut builder = Builder::new();
    let builder = builder.prefix(prefix);
    match ROOT.get() {
        Some(root) => builder.tempdir_in(root),
        None => builder.tempdir(),
    }
    .expect("a temporary folder")
}
