//! The append-only directory (`appenddirname`) as provided by a driver.

use std::io;

use persistence::Disk;

/// Access to the directory, and to its parent where versions before Redis 7 kept their single file.
#[expect(clippy::missing_errors_doc, reason = "each may bring the error that the system reports")]
pub trait AofStorage: Disk {
    /// Returns whether the parent directory has a file of this name.
    fn has_legacy_file(&self, name: &str) -> bool;

    /// Moves the file of this name from the parent directory into the append-only directory.
    fn move_in_legacy_file(&self, name: &str) -> io::Result<()>;

    /// Reports an event, which is written to the server's log.
    fn report(&self, event: DirectoryEvent<'_>);
}

/// An event in the append-only directory that is logged.
#[derive(Debug)]
pub enum DirectoryEvent<'a> {
    /// The single file of a version before Redis 7 was adopted as base.
    AdoptedLegacyFile(&'a str),
    /// An obsolete file could not be deleted.
    DeleteFailed(&'a str, &'a io::Error),
    /// A temporary file left by a killed server was removed.
    RemovedTemporary(&'a str),
    /// An increment with this name was created.
    IncrementCreated(&'a str),
    /// A base was installed under its final name.
    BaseInstalled {
        /// The name of the temporary file that became the base.
        temporary: &'a str,
        /// The final name of the base.
        name: &'a str,
    },
}
