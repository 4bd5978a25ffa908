//! The interface between a load and its process: time and progress reports.

use clock::Millis;
use resp::Args;

/// The process that runs a load.
pub trait LoadHost {
    /// The wall-clock time.
    fn now(&self) -> Millis;

    /// A monotonic clock in nanoseconds.
    fn nanos(&self) -> fn() -> u64;

    /// A snapshot of `total` bytes is about to be read.
    fn on_begin(&self, total: u64);

    /// Reports progress periodically: bytes and keys read so far.
    fn report_progress(&self, read: u64, keys: u64);

    /// Reports the memory usage recorded by the snapshot's writer.
    fn used_memory(&self, bytes: u64);

    /// A key was read.
    fn on_key_read(&self);

    /// Receives a command of a file that is not executed by the engine.
    fn on_command(&self, args: Args<'_>) {
        let _ = args;
    }

    /// Reports an event for the user.
    fn report_event(&self, event: LoadEvent<'_>);
}

/// A load event that is reported to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEvent<'a> {
    /// Loading of an AOF file starts.
    FileStarted,
    /// The base is an RDB.
    RdbBase,
    /// An AOF file has been loaded.
    FileLoaded {
        /// The file name.
        name: &'a str,
        /// Whether the file is the base.
        is_base: bool,
    },
    /// A key was skipped because its collection is empty.
    EmptyKey(&'a [u8]),
    /// A command failed with this error.
    CommandFailed(&'a str),
    /// A file is incomplete and is about to be truncated.
    Truncating {
        /// The file name.
        name: &'a str,
        /// The new length in bytes.
        complete_bytes: u64,
    },
    /// The file was truncated.
    Truncated(&'a str),
}
