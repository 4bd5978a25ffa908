//! The snapshot file (`dbfilename`), which is replaced atomically: even after a power failure, an incomplete file never
//! has this name.

use std::io;

use crate::Disk;

/// Prefix of the names of unfinished files.
pub const TEMP_PREFIX: &str = "temp-";
const TEMP_SUFFIX: &str = ".rdb";

/// The snapshot file, which may not exist yet, and its directory.
#[derive(Debug, Clone)]
pub struct SnapshotFile<D> {
    disk: D,
    name: String,
}

impl<D: Disk> SnapshotFile<D> {
    /// Describes the file called `name` in the directory of `disk`; does not access the disk.
    pub fn new(disk: D, name: &str) -> Self {
        Self { disk, name: name.to_owned() }
    }

    /// Creates a temporary file for a new snapshot.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn begin_write(&self) -> io::Result<D::Temporary> {
        self.disk.create_temp_file(TEMP_SUFFIX)
    }

    /// Makes a completely written file the current snapshot.
    ///
    /// # Errors
    /// The error of the operating system. The current snapshot is then either the new file or the previous one.
    pub fn commit(&self, file: D::Temporary) -> io::Result<()> {
        self.disk.sync_temporary(&file)?;
        self.disk.rename(file, &self.name)?;
        // The rename is durable only after the directory is synced.
        self.disk.sync()
    }

    /// Deletes unfinished files of a server that was killed, and returns their names.
    pub fn remove_leftovers(&self) -> Vec<String> {
        let mut names = self.disk.list_names().unwrap_or_default();
        names.retain(|name| name.starts_with(TEMP_PREFIX) && name.ends_with(TEMP_SUFFIX));
        names.retain(|name| self.disk.is_abandoned_temporary(name) && self.disk.remove(name).is_ok());
        names
    }
}
