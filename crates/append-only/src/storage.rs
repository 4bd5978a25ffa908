//! The append-only directory (`appenddirname`) as provided by a driver.

use std::io;

use persistence::Disk;

/// Access to the directory, and to its parent where versions before Redis 7 kept their single file.
#[expect(clippy::missing_errors_doc, reason = "each may bring the error that the system reports")]
pub trait AofStorage: Disk {
    /// Whether the parent directory has a file of this name.
    fn has_legacy_file(&self, name: &str) -> bool;

    /// Moves the file from the parent directory into this one.
    fn move_in_legacy_file(&self, name: &str) -> io::Result<()>;

    /// Reports an event for the log.
    fn report(&self, event: DirectoryEvent<'_>);
}

/// An event in the directory that is logged.
#[derive(Debug)]
pub enum DirectoryEvent<'a> {
    /// The single file of a version before Redis 7 was adopted as base.
    AdoptedLegacyFile(&'a str),
    /// An obsolete file could not be deleted.
    DeleteFailed(&'a str, &'a io::Error),
    /// A temporary file left by a killed server was removed.
    RemovedTemporary(&'a str),
    /// An increment was created.
    IncrementCreated(&'a str),
    /// A base was installed.
    BaseInstalled {
        /// The name of its temporary file.
        temporary: &'a str,
        /// Its final name.
        name: &'a str,
    },
}
