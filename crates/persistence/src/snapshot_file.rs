//! The snapshot file (`dbfilename`), which is replaced atomically: even after a power failure, a file with this name is
//! complete.

use std::io;

use crate::Disk;

/// Prefix of the names of temporary files.
pub const TEMP_PREFIX: &str = "temp-";
const TEMP_SUFFIX: &str = ".rdb";

/// The snapshot file, which may not exist yet, and its directory.
#[derive(Debug, Clone)]
pub struct SnapshotFile<D> {
    disk: D,
    name: String,
}

impl<D: Disk> SnapshotFile<D> {
    /// Refers to the file called `name` in the directory of `disk`, without accessing the disk.
    pub fn new(disk: D, name: &str) -> Self {
        Self { disk, name: name.to_owned() }
    }

    /// Creates a temporary file for a new snapshot.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn create_temp_file(&self) -> io::Result<D::TempFile> {
        self.disk.create_temp_file(TEMP_SUFFIX)
    }

    /// Renames a completely written temporary file to the snapshot file.
    ///
    /// # Errors
    /// The error of the operating system. The snapshot file is then either the new or the previous one.
    pub fn commit(&self, file: D::TempFile) -> io::Result<()> {
        self.disk.sync_temp_file(&file)?;
        self.disk.rename(file, &self.name)?;
        // The rename is durable only after the directory is synced.
        self.disk.sync_directory()
    }

    /// Deletes temporary files that a killed server left behind, and returns their names.
    pub fn remove_abandoned_temp_files(&self) -> Vec<String> {
        let mut names = self.disk.list_names().unwrap_or_default();
        names.retain(|name| name.starts_with(TEMP_PREFIX) && name.ends_with(TEMP_SUFFIX));
        names.retain(|name| self.disk.is_abandoned_temp_file(name) && self.disk.remove(name).is_ok());
        names
    }
}
