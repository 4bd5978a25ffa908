//! The append-only file as a state machine without I/O. It decides which part of the log is written to which file, when
//! to sync, when to start a new increment or install a new base, and up to which offset replies to writes may be sent.
//!
//! [`AofDriver`] is the interface: it combines the state machine with the replication log and the rewrites, takes events
//! ([`AofDriverEvent`]), and returns actions that wait for nothing ([`AofAction`]) and file operations
//! ([`PendingOperation`]), one at a time. [`FileExecutor`] performs the operations in an [`AofDirectory`], on any
//! [`AofStorage`]: a real directory or a simulated one.
//!
//! Invariants, whichever operations fail, completed or not, and whenever power is lost:
//! - The files named by the manifest on disk contain a prefix of one history, with no part twice.
//! - Once the state is [`AofState::Complete`], the files contain everything up to the commit point, and it is synced under
//!   `always`.
//! - An increment begins where the previous one ends, and the previous one is synced by then. A started attempt to
//!   begin an increment is never abandoned, because the manifest on disk may name it already.
//! - A base is only installed together with the increment that starts at its snapshot.
//! - File names are never reused, because a failed attempt may have left its manifest on disk.
#![forbid(unsafe_code)]

mod directory;
mod driver;
mod executor;
mod increment;
mod machine;
mod retained_cursor;
mod rewrites;
mod storage;
#[cfg(test)]
mod tests;

use clock::Millis;
use replication::{FileVersion, ReplPosition};
use slot_routing::ReplOffset;

pub use directory::{AofDirectory, AofFilesError, AofSizes, FileToLoad, HistoryPolicy};
pub use driver::{AofAction, AofDriver, AofDriverEvent, AofStart, AofStatus, SyncTarget, WriterStep};
pub use executor::{CompletedOperation, FileExecutor, PendingOperation, StartPosition};
pub use rewrites::{RewriteId, RewriteRunningError, Rewrites};
pub use storage::{AofStorage, DirectoryEvent};

/// When the file is synced (`appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsyncPolicy {
    /// The file is synced before replies to writes are sent.
    Always,
    /// The file is synced once per second.
    #[default]
    EverySecond,
    /// The file is never synced explicitly; the system writes it back when it chooses.
    Never,
}

/// Options of the append-only file, named as in redis.conf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AofSettings {
    /// When the file is synced (`appendfsync`).
    pub fsync_policy: FsyncPolicy,
    /// `no-appendfsync-on-rewrite`: with `everysec`, do not sync during a rewrite.
    pub no_fsync_on_rewrite: bool,
    /// Whether the file contains timestamps (`aof-timestamp-enabled`).
    pub has_timestamps: bool,
    /// The prefix of all file names (`appendfilename`).
    pub name: String,
}

/// Whether a restart would find the current data in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AofState {
    /// The files contain the data, except for the part of the log still to be written.
    Complete,
    /// The files were complete, but the log has been trimmed past them. Replies to writes wait until a new base is
    /// installed.
    Behind,
    /// The files do not contain this data: the append-only file has just been enabled, or the data was replaced. Nobody
    /// waits for the file until its first base is installed.
    NoBase,
}

/// The end of the replication log, as reported to the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The current end of the log, which is a command boundary.
    pub(crate) position: ReplPosition,
    /// The previous replication id and the offset up to which it is valid.
    pub(crate) previous_history: Option<ReplPosition>,
    /// Current wall-clock time, for timestamps in the file.
    pub(crate) wall_clock: Millis,
}

/// Why the log can no longer be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLoss {
    /// The log was trimmed past the next byte that must be written.
    Trimmed,
    /// The log belongs to other data after a full resync.
    Replaced,
}

/// An event passed to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AofEvent {
    /// The current end of the log. The event is also sent periodically when the log has not grown.
    LogAdvanced(LogEnd),
    /// The file contains other commands than the log in this range. These events are sent in log order, each before the
    /// reported end of the log passes the range.
    FileVersionAdded(FileVersion),
    /// The log can no longer be followed from the offset of the file.
    LogLost(LogLoss),
    /// A rewrite has taken its snapshot at the current end of the log.
    SnapshotTaken {
        /// The rewrite that took the snapshot; only one rewrite runs at a time.
        rewrite: RewriteId,
        /// The log position of the snapshot.
        at: ReplPosition,
        /// The database selected in the master's stream; `None` if the log repeats the SELECT after this position.
        db: Option<u16>,
    },
    /// The base of a rewrite is written and synced.
    BaseReady {
        /// The rewrite that wrote the base.
        rewrite: RewriteId,
        /// Whether the base is an RDB file; otherwise it contains commands.
        is_rdb: bool,
    },
    /// The snapshot could not be taken, or the base could not be written.
    RewriteFailed(RewriteId),
    /// The files that a rewrite made obsolete are deleted.
    HistoryDeleted,
    /// The configuration may have changed; these are the current options.
    Configured(AofSettings),
    /// Sync the whole log now, and retry failed operations at once.
    SyncRequested,
}

/// A file operation. Only one operation runs at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOperation {
    /// Append `head`, then `len` bytes of the log.
    Write {
        /// Bytes that are not in the log: annotations, a SELECT at the start of an increment, and the commands of a
        /// [`FileVersion`].
        head: Vec<u8>,
        /// Log offset of the first byte to copy from the log.
        from: ReplOffset,
        /// Number of bytes to copy from the log.
        len: u64,
    },
    /// Sync all written bytes of the increment to disk.
    Sync,
    /// Truncate the increment to this length in bytes, after a failed write.
    Truncate(u64),
    /// Create an empty increment, name it in the manifest, and append to it from now on.
    BeginIncrement {
        /// Name of the increment within the directory.
        name: String,
        /// The new content of the manifest; `None` if it does not change.
        manifest: Option<String>,
    },
    /// Rename the temporary file of a rewrite to a base, and name it in the manifest.
    InstallBase {
        /// The rewrite that wrote the base.
        rewrite: RewriteId,
        /// Name of the base within the directory.
        name: String,
        /// The new content of the manifest.
        manifest: String,
    },
    /// Replace the manifest by this content.
    WriteManifest(String),
}

/// Why an operation failed. A failed operation may have taken partial effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OperationError {
    /// The log no longer has the bytes to be written.
    LogLost(LogLoss),
    /// A system call failed with this error text.
    Io(String),
}

/// Why a new base was not installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseInstallError {
    /// The log can no longer be followed from the base's snapshot.
    #[error("the data was replaced, or the log was trimmed past the snapshot")]
    LogLost,
    /// A system call failed with this error text.
    #[error("{0}")]
    Io(String),
}

/// An effect to carry out at once. No effect touches a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AofEffect {
    /// Replies to writes up to this offset may be sent.
    PublishCommitPoint(ReplOffset),
    /// Whether replies to writes must wait for [`AofEffect::PublishCommitPoint`] from now on.
    HoldReplies(bool),
    /// Writing the file fails with this error; `None` means that it works again.
    WriteErrorChanged(Option<String>),
    /// A rewrite has ended, and its files can be used or must be discarded.
    RewriteEnded {
        rewrite: RewriteId,
        /// The obsolete files, which can be deleted now, or why the base was not installed.
        outcome: Result<Vec<String>, BaseInstallError>,
    },
    /// The driver must start a rewrite.
    BaseNeeded,
}
