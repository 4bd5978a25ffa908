//! `nodes.conf` on the disk: written whole beside the old one and renamed into its place, so that a crash
//! at any instruction leaves the one or the other; locked, so that no second process takes this node's
//! name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

/// The extension of a file until it takes the place of another; the writer's process id follows.
const TEMPORARY: &str = "tmp-";

#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// The file as it is now, locked.
    locked: File,
    /// Those that it took the place of.
    replaced: Vec<File>,
}

/// A process that was told to stop (SHUTDOWN) has answered before it lets go of the file: whoever starts the next one then
/// waits so long for it.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl Store {
    /// Locks the file and reads it; an empty one is as good as none.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<u8>)> {
        let fail = || format!("Can't open {} in order to acquire a lock", path.display());
        // Longer than any file that a node wrote; the machine judges what is in it.
        const LONGEST: u64 = 64 << 20;
        let until = Instant::now() + LET_GO_WITHIN;
        let mut file = loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .with_context(fail)?;
            match file.try_lock() {
                // The other may have put another file there before it let go of this one.
                Ok(()) if is_at(&file, path).with_context(fail)? => break file,
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
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
        Read::by_ref(&mut file).take(LONGEST).read_to_end(&mut text).with_context(fail)?;
        let store = Self { path: path.to_owned(), locked: file, replaced: Vec::new() };
        store.remove_leftovers();
        Ok((store, text))
    }

    /// Makes `text` the content of the file. With `sync` it has reached the disk on return.
    pub(super) fn write(&mut self, text: &str, sync: bool) -> std::io::Result<()> {
        let temporary = self.path.with_extension(format!("{TEMPORARY}{}", std::process::id()));
        let file = self.put(&temporary, text, sync).inspect_err(|_| {
            // On a full disk it would stay for ever. If it was never made, that is as well.
            let _ = std::fs::remove_file(&temporary);
        })?;
        if sync {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        self.replaced.push(std::mem::replace(&mut self.locked, file));
        Ok(())
    }

    /// Writes `text` beside the file and gives that its name.
    fn put(&self, temporary: &Path, text: &str, sync: bool) -> std::io::Result<File> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(temporary)?;
        // Locked before it takes the name: there is no moment at which another process could lock it.
        file.try_lock().map_err(std::io::Error::from)?;
        file.write_all(text.as_bytes())?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(temporary, &self.path)?;
        Ok(file)
    }

    /// Closes the files whose place others took.
    pub(super) fn close_replaced(&mut self) {
        self.replaced.clear();
    }

    /// Removes what writers left beside the file that died, or had a full disk.
    fn remove_leftovers(&self) {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
            let writer = extension.as_deref().and_then(|extension| extension.strip_prefix(TEMPORARY));
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

/// Whether this is still the file of that name.
fn is_at(file: &File, path: &Path) -> std::io::Result<bool> {
    let (this, there) = (file.metadata()?, path.metadata()?);
    Ok((this.dev(), this.ino()) == (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_full_disk_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let others = ["nodes.tmp-x", "nodes-2.tmp-7", "nodes.tmp-", "nodes.tmp"];
        for name in others.iter().chain(&["nodes.tmp-4711", "nodes.tmp-1"]) {
            std::fs::write(folder.path().join(name), "half a li").unwrap();
        }
        let (mut store, _) = Store::open(&path).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["nodes-2.tmp-7", "nodes.conf", "nodes.tmp", "nodes.tmp-", "nodes.tmp-x"]);
        // A file that cannot take its place does not stay beside it: here a folder has the name.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(store.write("text\n", true).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
    }

    #[test]
    fn a_second_process_is_turned_away_also_after_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let (mut store, text) = Store::open(&path).unwrap();
        assert!(text.is_empty());
        for round in 0..2 {
            let refusal = Store::open(&path).unwrap_err().to_string();
            assert!(refusal.contains("is already used by a different Cluster node"), "{refusal}");
            store.write(&format!("round {round}\n"), round == 0).unwrap();
        }
        drop(store);
        assert_eq!(Store::open(&path).unwrap().1, b"round 1\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    /// The story: a node was told to stop, and started again at once. It did not start.
    #[test]
    fn a_process_that_stops_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let (mut store, _) = Store::open(&path).unwrap();
        let stops = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            store.write("its last word\n", true).unwrap();
        });
        assert_eq!(Store::open(&path).unwrap().1, b"its last word\n");
        stops.join().unwrap();
    }
}
