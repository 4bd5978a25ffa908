//! `nodes.conf` on disk. The text is written to a temporary file that is renamed over the old one, so that a crash
//! leaves one of them intact. The file is locked, so that no second process uses the same node id.
//!
//! A file that is a mount point, as in containers, cannot be replaced by a rename and is written in place. A crash
//! could leave it half written, so the complete text is first stored in a second file, which the next start reads
//! instead.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

/// Prefix of a temporary file's extension; the process id follows.
const TEMPORARY_PREFIX: &str = "tmp-";
/// The extension of the complete copy that exists during a write in place.
const BACKUP_EXTENSION: &str = "safe";

#[derive(Debug)]
pub(super) struct NodesFile {
    path: PathBuf,
    /// The current file. Its lock excludes other processes.
    locked_file: File,
    /// Handles of replaced files, which [`Self::close_replaced_files`] closes later.
    replaced_files: Vec<File>,
    /// [`std::fs::rename`], except in tests.
    rename_file: fn(&Path, &Path) -> std::io::Result<()>,
}

/// How long to wait for the lock. A stopping process replies to SHUTDOWN before it releases the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl NodesFile {
    /// Locks and reads the file; an empty file counts as missing.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<u8>)> {
        let fail = || format!("Can't open {} in order to acquire a lock", path.display());
        // No node writes a longer `nodes.conf`. The state machine validates the content later.
        const MAX_FILE_SIZE: u64 = 64 << 20;
        let until = Instant::now() + LOCK_TIMEOUT;
        let mut file = loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .with_context(fail)?;
            match file.try_lock() {
                // The other process may have replaced the file before it released the lock.
                Ok(()) if is_file_at_path(&file, path).with_context(fail)? => break file,
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(LOCK_RETRY_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(anyhow!(
                        "Sorry, the cluster configuration file {} is already used by a different Cluster node. \
                         Please make sure that different nodes use different cluster configuration files.",
                        path.display()
                    ));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("Impossible to lock {}", path.display()));
                }
            }
        };
        let mut text = Vec::new();
        Read::by_ref(&mut file).take(MAX_FILE_SIZE).read_to_end(&mut text).with_context(fail)?;
        let rename = |from: &Path, to: &Path| std::fs::rename(from, to);
        let mut store = Self {
            path: path.to_owned(),
            locked_file: file,
            replaced_files: Vec::new(),
            rename_file: rename,
        };
        store.remove_temporary_files();
        match std::fs::read(store.backup_path()) {
            Ok(safe) => {
                tracing::warn!("{} was torn by a crash: restoring it from its safe copy", path.display());
                store.restore_content(&safe).with_context(fail)?;
                text = safe;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| store.backup_path().display().to_string()),
        }
        Ok((store, text))
    }

    fn backup_path(&self) -> PathBuf {
        self.path.with_extension(BACKUP_EXTENSION)
    }

    /// Writes the text of the backup into the file, and removes the backup.
    fn restore_content(&mut self, text: &[u8]) -> std::io::Result<()> {
        self.locked_file.rewind()?;
        self.locked_file.write_all(text)?;
        self.locked_file.set_len(text.len() as u64)?;
        self.locked_file.sync_all()?;
        std::fs::remove_file(self.backup_path())
    }

    /// Writes a file that cannot be replaced by a rename. The backup is on disk before the file is changed.
    fn write_in_place(&mut self, temporary: &Path, text: &str) -> std::io::Result<()> {
        File::open(temporary)?.sync_all()?;
        std::fs::rename(temporary, self.backup_path())?;
        self.sync_folder()?;
        self.restore_content(text.as_bytes())
    }

    fn sync_folder(&self) -> std::io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Replaces the content of the file. With `sync`, the new content is on disk on return.
    pub(super) fn write(&mut self, text: &str, must_sync: bool) -> std::io::Result<()> {
        let temporary = self.path.with_extension(format!("{TEMPORARY_PREFIX}{}", std::process::id()));
        let written = match self.replace_file(&temporary, text, must_sync) {
            Ok((file, Ok(()))) => {
                if must_sync {
                    self.sync_folder()?;
                }
                self.replaced_files.push(std::mem::replace(&mut self.locked_file, file));
                return Ok(());
            }
            Ok((_, Err(error))) if is_mount_point_error(&error) => self.write_in_place(&temporary, text),
            Ok((_, Err(error))) | Err(error) => Err(error),
        };
        // A write that failed on a full disk has left the temporary file. Otherwise the file may not exist, so an error
        // is ignored.
        let _ = std::fs::remove_file(&temporary);
        written
    }

    /// Writes a temporary file and renames it over the current one. The inner result is that of the rename.
    fn replace_file(
        &self,
        temporary: &Path,
        text: &str,
        must_sync: bool,
    ) -> std::io::Result<(File, std::io::Result<()>)> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(temporary)?;
        // The new file is locked before the rename, so that no other process can lock it in between.
        file.try_lock().map_err(std::io::Error::from)?;
        file.write_all(text.as_bytes())?;
        if must_sync {
            file.sync_all()?;
        }
        let renamed = (self.rename_file)(temporary, &self.path);
        Ok((file, renamed))
    }

    /// Closes the replaced files. This can take longer than a write, because it frees their blocks.
    pub(super) fn close_replaced_files(&mut self) {
        self.replaced_files.clear();
    }

    /// Removes the temporary files that earlier processes left because they crashed or the disk was full.
    fn remove_temporary_files(&self) {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
            let writer = extension.as_deref().and_then(|extension| extension.strip_prefix(TEMPORARY_PREFIX));
            let is_writer = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if path.file_stem() == self.path.file_stem()
                && writer.is_some_and(is_writer)
                && let Err(error) = std::fs::remove_file(&path)
            {
                tracing::warn!("{} cannot be removed: {error}", path.display());
            }
        }
    }
}

/// Returns whether a failed rename means that the file is a mount point.
fn is_mount_point_error(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::CrossesDevices)
}

/// Returns whether `path` still names the open file.
fn is_file_at_path(file: &File, path: &Path) -> std::io::Result<bool> {
    let (this, there) = (file.metadata()?, path.metadata()?);
    Ok((this.dev(), this.ino()) == (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_left_by_a_full_disk_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let others = ["nodes.tmp-x", "nodes-2.tmp-7", "nodes.tmp-", "nodes.tmp"];
        for name in others.iter().chain(&["nodes.tmp-4711", "nodes.tmp-1"]) {
            std::fs::write(folder.path().join(name), "half a li").unwrap();
        }
        let (mut store, _) = NodesFile::open(&path).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["nodes-2.tmp-7", "nodes.conf", "nodes.tmp", "nodes.tmp-", "nodes.tmp-x"]);
        // The rename fails because a directory has the target name, so the temporary file must be deleted.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(store.write("text\n", true).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
    }

    #[test]
    fn second_process_cannot_lock_the_file_after_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let (mut store, text) = NodesFile::open(&path).unwrap();
        assert!(text.is_empty());
        for round in 0..2 {
            let refusal = NodesFile::open(&path).unwrap_err().to_string();
            assert!(refusal.contains("is already used by a different Cluster node"), "{refusal}");
            store.write(&format!("round {round}\n"), round == 0).unwrap();
        }
        drop(store);
        assert_eq!(NodesFile::open(&path).unwrap().1, b"round 1\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn mounted_file_is_written_in_place_and_restored_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let (mut store, _) = NodesFile::open(&path).unwrap();
        store.rename_file = |_, _| Err(ErrorKind::ResourceBusy.into());
        for text in ["a first and longer text\n", "a second\n"] {
            store.write(text, false).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
            assert!(NodesFile::open(&path).is_err(), "it stays locked");
        }
        drop(store);
        std::fs::write(&path, "a thi").unwrap();
        std::fs::write(path.with_extension(BACKUP_EXTENSION), "a third\n").unwrap();
        assert_eq!(NodesFile::open(&path).unwrap().1, b"a third\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a third\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Regression test: a node that was restarted immediately after SHUTDOWN failed to start.
    #[test]
    fn start_waits_for_a_stopping_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let (mut store, _) = NodesFile::open(&path).unwrap();
        let stops = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            store.write("its last word\n", true).unwrap();
        });
        assert_eq!(NodesFile::open(&path).unwrap().1, b"its last word\n");
        stops.join().unwrap();
    }
}
