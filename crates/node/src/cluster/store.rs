//! `nodes.conf` on the disk: written whole beside the old one and renamed into its place, so that a crash
//! at any instruction leaves the one or the other; locked, so that no second process takes this node's
//! name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};

#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// The file as it is now, locked.
    locked: File,
    /// Those that it took the place of.
    replaced: Vec<File>,
}

impl Store {
    /// Locks the file and reads it; an empty one is as good as none.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<u8>)> {
        let fail = || format!("Can't open {} in order to acquire a lock", path.display());
        // Longer than any file that a node wrote; the machine judges what is in it.
        const LONGEST: u64 = 64 << 20;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(fail)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(anyhow!(
                    "Sorry, the cluster configuration file {} is already used by a different Redis Cluster node. \
                     Please make sure that different nodes use different cluster configuration files.",
                    path.display()
                ));
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("Impossible to lock {}", path.display()));
            }
        }
        let mut text = Vec::new();
        Read::by_ref(&mut file).take(LONGEST).read_to_end(&mut text).with_context(fail)?;
        Ok((Self { path: path.to_owned(), locked: file, replaced: Vec::new() }, text))
    }

    /// Makes `text` the content of the file. With `sync` it has reached the disk on return.
    pub(super) fn write(&mut self, text: &str, sync: bool) -> std::io::Result<()> {
        let beside = self.path.with_extension(format!("tmp-{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
        // Locked before it takes the name: there is no moment at which another process could lock it.
        file.try_lock().map_err(std::io::Error::from)?;
        file.write_all(text.as_bytes())?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(&beside, &self.path)?;
        if sync {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        self.replaced.push(std::mem::replace(&mut self.locked, file));
        Ok(())
    }

    /// The files whose place others took, to be closed. The last one to close a file gives its blocks back, which
    /// can take longer than all of a write: to be done where nobody waits for it.
    pub(super) fn take_replaced(&mut self) -> Vec<File> {
        std::mem::take(&mut self.replaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_is_turned_away_also_after_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.conf");
        let (mut store, text) = Store::open(&path).unwrap();
        assert!(text.is_empty());
        for round in 0..2 {
            let refusal = Store::open(&path).unwrap_err().to_string();
            assert!(refusal.contains("is already used by a different Redis Cluster node"), "{refusal}");
            store.write(&format!("round {round}\n"), round == 0).unwrap();
        }
        drop(store);
        assert_eq!(Store::open(&path).unwrap().1, b"round 1\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
