//! The file of all data (`dbfilename`): one that is not whole never has its name, whenever the power goes.

use std::io;

use crate::Disk;

/// The beginning of the names of files that are not finished, in any folder.
pub const TEMP_PREFIX: &str = "temp-";
const TEMP_SUFFIX: &str = ".rdb";

/// The file, which may not be there yet, and its folder.
#[derive(Debug, Clone)]
pub struct SavedFile<D> {
    disk: D,
    name: String,
}

impl<D: Disk> SavedFile<D> {
    /// The file of this name in a folder.
    pub fn new(disk: D, name: &str) -> Self {
        Self { disk, name: name.to_owned() }
    }

    /// A file to be written and put in its place.
    ///
    /// # Errors
    /// The error that the system reports.
    pub fn begin(&self) -> io::Result<D::Temporary> {
        self.disk.temporary(TEMP_SUFFIX)
    }

    /// Makes a file that is written whole the one that is loaded at the start.
    ///
    /// # Errors
    /// The error that the system reports: then the file is this one or the one before.
    pub fn put(&self, file: D::Temporary) -> io::Result<()> {
        self.disk.sync_temporary(&file)?;
        self.disk.rename(file, &self.name)?;
        // The rename is on disk when the folder is.
        self.disk.sync()
    }

    /// Removes what a server that was killed left half written; gives the names.
    pub fn remove_leftovers(&self) -> Vec<String> {
        let mut names = self.disk.list().unwrap_or_default();
        names.retain(|name| name.starts_with(TEMP_PREFIX) && name.ends_with(TEMP_SUFFIX));
        names.retain(|name| self.disk.is_abandoned(name) && self.disk.remove(name).is_ok());
        names
    }
}
