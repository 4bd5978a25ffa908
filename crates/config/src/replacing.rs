//! Replaces the content of a file atomically where possible.
//!
//! The content is written to a temporary file, fsynced and renamed over the target, so that a crash leaves either the
//! old or the new content. In two cases this is impossible: the file is a mount point of its own (a container's `-v
//! ./redis.conf:/etc/redis.conf`), or its directory is read-only. Such a file is written in place. A crash during that
//! write can leave a torn file, so the temporary copy, if it could be written, is retained until the file is fsynced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// How the content of a file was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplaceMethod {
    /// The file was replaced atomically by a rename.
    Atomic,
    /// The file was overwritten in place, because a rename was not possible. A crash could have torn the file.
    InPlace,
}

/// Replaces the content of a file by a rename, or in place if a rename is impossible.
///
/// # Errors
/// An I/O error. The old content is intact then, unless writing in place had already begun.
pub fn replace_content(path: &Path, bytes: &[u8]) -> io::Result<ReplaceMethod> {
    replace_using(path, bytes, &|from, to| fs::rename(from, to))
}

/// Replaces or creates a file by a rename.
///
/// # Errors
/// An I/O error. The file is unchanged then.
pub fn replace_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary_path(path);
    let written = write_temporary_file(&temporary, path, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_parent_directory(path));
    written.inspect_err(|_| remove_temporary_file(&temporary))
}

/// Implements [`replace_content`]. `rename` is `fs::rename`, except in tests that inject errors.
fn replace_using(
    path: &Path,
    bytes: &[u8],
    rename: &dyn Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<ReplaceMethod> {
    let temporary = temporary_path(path);
    let written = write_temporary_file(&temporary, path, bytes);
    let has_copy = written.is_ok();
    match written.and_then(|()| rename(&temporary, path)) {
        Ok(()) => sync_parent_directory(path).map(|()| ReplaceMethod::Atomic),
        Err(error) if requires_write_in_place(&error, has_copy) && path.exists() => {
            if has_copy {
                // Persist the copy's directory entry before touching the file. If the sync fails, a crash may lose the
                // copy.
                let _ = sync_parent_directory(path);
            }
            // If this write fails, the file may be torn, so the temporary copy is only removed after it.
            write_in_place(path, bytes)?;
            remove_temporary_file(&temporary);
            Ok(ReplaceMethod::InPlace)
        }
        Err(error) => {
            remove_temporary_file(&temporary);
            Err(error)
        }
    }
}

/// Whether the error means that only writing in place can succeed. The error is that of the rename if `has_copy` is
/// set, and otherwise that of creating the temporary copy.
fn requires_write_in_place(error: &io::Error, has_copy: bool) -> bool {
    match error.kind() {
        ErrorKind::ResourceBusy | ErrorKind::CrossesDevices => has_copy,
        kind => matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem),
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    name.into()
}

fn write_temporary_file(temporary: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    if let Ok(old) = fs::metadata(path) {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}

fn write_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

fn remove_temporary_file(temporary: &Path) {
    // Ignore errors, because the temporary file may not exist.
    let _ = fs::remove_file(temporary);
}

fn sync_parent_directory(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory that contains a file with old content.
    fn directory_with_old_file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redis.conf");
        fs::write(&path, "old and longer\n").unwrap();
        (folder, path)
    }

    fn count_files(folder: &tempfile::TempDir) -> usize {
        fs::read_dir(folder.path()).unwrap().count()
    }

    #[test]
    fn file_that_cannot_be_renamed_over_is_written_in_place() {
        for kind in [ErrorKind::ResourceBusy, ErrorKind::CrossesDevices, ErrorKind::ReadOnlyFilesystem] {
            let (folder, path) = directory_with_old_file();
            let rename = |from: &Path, _: &Path| {
                assert_eq!(fs::read_to_string(from).unwrap(), "new\n", "a copy is beside it");
                Err(io::Error::from(kind))
            };
            assert_eq!(replace_using(&path, b"new\n", &rename).unwrap(), ReplaceMethod::InPlace);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
            assert_eq!(count_files(&folder), 1, "the copy is gone");
        }
    }

    #[test]
    fn failed_replacement_keeps_old_content() {
        let (folder, path) = directory_with_old_file();
        let full = |_: &Path, _: &Path| Err(io::Error::from(ErrorKind::StorageFull));
        assert_eq!(replace_using(&path, b"new\n", &full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old and longer\n");
        assert_eq!(count_files(&folder), 1);
    }

    #[test]
    fn replacement_renames_new_file_into_place() {
        let (folder, path) = directory_with_old_file();
        assert_eq!(replace_content(&path, b"new\n").unwrap(), ReplaceMethod::Atomic);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        replace_atomically(&path, b"newer\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer\n");
        assert_eq!(count_files(&folder), 1);
    }
}
