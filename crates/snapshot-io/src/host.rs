//! The process around a load: its time, and whoever is told how far it is.

use clock::Millis;
use resp::Args;

/// The process around a load.
pub trait Host {
    /// The time of day.
    fn now(&self) -> Millis;

    /// A clock that counts nanoseconds.
    fn nanos(&self) -> fn() -> u64;

    /// A snapshot of so many bytes is about to be read.
    fn begin(&self, total: u64);

    /// It is read up to this byte, and has had so many keys. Told now and then.
    fn progress(&self, read: u64, keys: u64);

    /// So much memory its writer used, as it says.
    fn used_memory(&self, bytes: u64);

    /// A key was read.
    fn key_read(&self);

    /// A file has a command that is not the engine's.
    fn on_command(&self, args: Args<'_>) {
        let _ = args;
    }

    /// Is told of what users are to hear.
    fn tell(&self, told: Told<'_>);
}

/// An event of a load that users hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told<'a> {
    /// A file of an append-only file begins.
    FileBegins,
    /// The base is an RDB.
    RdbBase,
    /// A file of an append-only file is loaded.
    FileLoaded {
        /// Its name.
        name: &'a str,
        /// Whether it is the base.
        is_base: bool,
    },
    /// A key was passed over, for its collection has no elements.
    EmptyKey(&'a [u8]),
    /// A command failed, with this error.
    CommandFailed(&'a str),
    /// A file ends in the middle of something, and is to be cut back.
    Truncating {
        /// Its name.
        name: &'a str,
        /// To so many bytes.
        whole: u64,
    },
    /// It is.
    Truncated(&'a str),
}
