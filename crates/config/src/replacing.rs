//! Giving a file new content.
//!
//! The content is written beside the file, brought to the disk and renamed over it: whatever happens, the file has the
//! old content or the new. A file that is a mount point of its own (a container's `-v ./redis.conf:/etc/redis.conf`)
//! cannot be renamed over, and nothing can be put beside one in a folder that is read-only. Such a file is written in
//! place. A crash in the middle of that can tear it, so the copy beside it, where there can be one, stays until the
//! file has reached the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// How a file got its new content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// By a rename.
    Whole,
    /// In place, since it cannot be renamed over.
    InPlace,
}

/// Gives the file new content by a rename, or in place where that is impossible.
///
/// # Errors
/// The error that the system reports. The file has the old content then, unless it was being written in place.
pub fn replace_content(path: &Path, bytes: &[u8]) -> io::Result<Replaced> {
    replace_by(path, bytes, &|from, to| fs::rename(from, to))
}

/// Gives the file new content by a rename, or makes it.
///
/// # Errors
/// The error that the system reports. The file is as it was then.
pub fn replace_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let written = write_beside(&temporary, path, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_folder(path));
    written.inspect_err(|_| remove(&temporary))
}

/// `rename` is the system's, but for tests.
fn replace_by(
    path: &Path,
    bytes: &[u8],
    rename: &dyn Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<Replaced> {
    let temporary = temporary(path);
    let written = write_beside(&temporary, path, bytes);
    let has_copy = written.is_ok();
    match written.and_then(|()| rename(&temporary, path)) {
        Ok(()) => sync_folder(path).map(|()| Replaced::Whole),
        Err(error) if needs_writing_in_place(&error, has_copy) && path.exists() => {
            if has_copy {
                // The name of the copy is to be on the disk before the file is touched. In the worst case it is not.
                let _ = sync_folder(path);
            }
            // After an error the file may be torn: the copy stays.
            write_in_place(path, bytes)?;
            remove(&temporary);
            Ok(Replaced::InPlace)
        }
        Err(error) => {
            remove(&temporary);
            Err(error)
        }
    }
}

/// Whether an error means that the file can only be written in place: that of the rename if there is a copy to be
/// renamed, or else that of making one.
fn needs_writing_in_place(error: &io::Error, has_copy: bool) -> bool {
    match error.kind() {
        ErrorKind::ResourceBusy | ErrorKind::CrossesDevices => has_copy,
        kind => matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem),
    }
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    name.into()
}

fn write_beside(temporary: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
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

fn remove(temporary: &Path) {
    // It may never have been made.
    let _ = fs::remove_file(temporary);
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a file of old content.
    fn old() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redis.conf");
        fs::write(&path, "old and longer\n").unwrap();
        (folder, path)
    }

    fn names(folder: &tempfile::TempDir) -> usize {
        fs::read_dir(folder.path()).unwrap().count()
    }

    #[test]
    fn file_that_cannot_be_renamed_over_is_written_in_place() {
        for kind in [ErrorKind::ResourceBusy, ErrorKind::CrossesDevices, ErrorKind::ReadOnlyFilesystem] {
            let (folder, path) = old();
            let rename = |from: &Path, _: &Path| {
                assert_eq!(fs::read_to_string(from).unwrap(), "new\n", "a copy is beside it");
                Err(io::Error::from(kind))
            };
            assert_eq!(replace_by(&path, b"new\n", &rename).unwrap(), Replaced::InPlace);
            assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
            assert_eq!(names(&folder), 1, "the copy is gone");
        }
    }

    #[test]
    fn other_failures_leave_the_old_content() {
        let (folder, path) = old();
        let full = |_: &Path, _: &Path| Err(io::Error::from(ErrorKind::StorageFull));
        assert_eq!(replace_by(&path, b"new\n", &full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old and longer\n");
        assert_eq!(names(&folder), 1);
    }

    #[test]
    fn whole_content_takes_the_name() {
        let (folder, path) = old();
        assert_eq!(replace_content(&path, b"new\n").unwrap(), Replaced::Whole);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        replace_whole(&path, b"newer\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer\n");
        assert_eq!(names(&folder), 1);
    }
}
