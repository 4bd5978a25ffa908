//! Directories on the real file system.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use persistence::{Disk, TEMP_PREFIX};
use tempfile::NamedTempFile;

/// Upper bound for the part of a file that is rewritten after a failed sync. A process never has more than this
/// unsynced, and stops writing after a failed sync.
const MAX_REWRITTEN_TAIL_BYTES: u64 = 64 << 20;

/// A directory on the real file system.
#[derive(Debug, Clone)]
pub(super) struct SystemDisk {
    path: PathBuf,
}

impl SystemDisk {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Disk for SystemDisk {
    type File = File;
    type TempFile = NamedTempFile;
    type Reader = File;

    fn exists(&self) -> bool {
        self.path.is_dir()
    }

    fn create_directory(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.path)
    }

    fn create(&self, name: &str) -> io::Result<()> {
        OpenOptions::new().create(true).write(true).truncate(true).open(self.path_of(name)).map(drop)
    }

    fn open_append(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().append(true).open(self.path_of(name))
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rewrite_tail(&self, name: &str) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(self.path_of(name))?;
        let len = file.metadata()?.len();
        let (mut at, mut piece) = (len.saturating_sub(MAX_REWRITTEN_TAIL_BYTES), vec![0; 1 << 20]);
        while at < len {
            let read = file.read_at(&mut piece, at)?;
            if read == 0 {
                break;
            }
            file.write_all_at(&piece[..read], at)?;
            at += read as u64;
        }
        Ok(())
    }

    fn truncate_file(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn read(&self, name: &str) -> io::Result<File> {
        File::open(self.path_of(name))
    }

    fn create_temp_file(&self, suffix: &str) -> io::Result<NamedTempFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMP_PREFIX).suffix(suffix).permissions(Permissions::from_mode(0o666));
        let file = builder.tempfile_in(&self.path)?;
        // Some file systems have no locks, so an error is ignored.
        let _ = file.as_file().try_lock();
        Ok(file)
    }

    fn temp_file_name(&self, file: &NamedTempFile) -> String {
        file.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn sync_temp_file(&self, file: &NamedTempFile) -> io::Result<()> {
        file.as_file().sync_all()
    }

    fn rename(&self, file: NamedTempFile, name: &str) -> io::Result<()> {
        file.persist(self.path_of(name))?;
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path_of(name))
    }

    fn list_names(&self) -> io::Result<Vec<String>> {
        let files = std::fs::read_dir(&self.path)?.filter_map(Result::ok);
        Ok(files.map(|file| file.file_name().to_string_lossy().into_owned()).collect())
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(self.path_of(name).metadata()?.len())
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path_of(name))?;
        file.set_len(len).and_then(|()| file.sync_all())
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn is_abandoned_temp_file(&self, name: &str) -> bool {
        File::open(self.path_of(name)).is_ok_and(|file| file.try_lock().is_ok())
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewriting_the_tail_keeps_the_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = SystemDisk::new(folder.path().to_owned());
        for len in [0, 10, 3 << 20 | 7] {
            let bytes: Vec<u8> = (0..len).map(|number: u32| (number % 251) as u8).collect();
            std::fs::write(disk.path_of("file"), &bytes).expect("a file");
            disk.rewrite_tail("file").expect("it is there");
            assert!(std::fs::read(disk.path_of("file")).expect("a file") == bytes, "{len}");
        }
        assert!(disk.rewrite_tail("none").is_err());
    }
}
