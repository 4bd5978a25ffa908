//! The interface between a load and the process that runs it: clocks and progress reports.

use clock::Millis;
use resp::Args;

/// What a load needs from the process that runs it.
pub trait LoadHost {
    /// Returns the wall-clock time.
    fn now(&self) -> Millis;

    /// Returns a function that reads a monotonic clock in nanoseconds.
    fn nanos_clock(&self) -> fn() -> u64;

    /// Called before a snapshot of `total_bytes` bytes is read.
    fn on_load_started(&self, total_bytes: u64);

    /// Called periodically with the number of bytes and keys read so far.
    fn report_progress(&self, bytes: u64, keys: u64);

    /// Called with the memory usage that the snapshot states, in bytes.
    fn on_used_memory(&self, bytes: u64);

    /// Called after each key that was read.
    fn on_key_read(&self);

    /// Called for an AOF command that the engine does not execute.
    fn on_unexecuted_command(&self, args: Args<'_>) {
        let _ = args;
    }

    /// Reports an event that users should see, for example in the log.
    fn report_event(&self, event: LoadEvent<'_>);
}

/// A load event that is reported to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEvent<'a> {
    /// The load of an AOF file starts.
    FileStarted,
    /// The base of the AOF is an RDB, which is about to be loaded.
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
    /// A file ends in the middle of a command and is about to be truncated.
    Truncating {
        /// The name of the incomplete file.
        name: &'a str,
        /// The length in bytes after truncation.
        complete_bytes: u64,
    },
    /// The file with this name was truncated.
    Truncated(&'a str),
}
