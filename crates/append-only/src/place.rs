//! The folder of an append-only file (`appenddirname`), as a driver offers it.

use std::io;

use persistence::Disk;

/// The files of the folder, and of the one around it, where servers before Redis 7 had their only one.
#[expect(clippy::missing_errors_doc, reason = "each may bring the error that the system reports")]
pub trait Place: Disk {
    /// Whether there is a file of this name beside the folder, as servers before Redis 7 had their one.
    fn has_beside(&self, name: &str) -> bool;

    /// Moves that file into the folder.
    fn move_in(&self, name: &str) -> io::Result<()>;

    /// Is told of what users are to hear.
    fn tell(&self, told: Told<'_>);
}

/// An event in the folder that users hear of.
#[derive(Debug)]
pub enum Told<'a> {
    /// The single file of a server before Redis 7 was taken in as base.
    TookIn(&'a str),
    /// A file that is history could not be deleted.
    LeftBehind(&'a str, &'a io::Error),
    /// A file was removed that a killed server had left half written.
    RemovedUnfinished(&'a str),
    /// An increment was begun.
    Begun(&'a str),
    /// A base got its name.
    Based {
        /// Its name before.
        temporary: &'a str,
        /// Its name.
        name: &'a str,
    },
}
