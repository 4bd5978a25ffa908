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
use replication::{FileVersion, Position};
use slot_routing::ReplOffset;

pub use directory::{AofDirectory, AofFilesError, AofSizes, FileToLoad, HistoryPolicy};
pub use driver::{
    AofAction, AofDriver, AofDriverEvent, AofStart, AofStatus, StartPosition, SyncTarget, WriterStep,
};
pub use executor::{CompletedOperation, FileExecutor, PendingOperation};
pub use rewrites::{RewriteId, Rewrites, RunningError};
pub use storage::{AofStorage, DirectoryEvent};

/// When the file is synced (`appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsyncPolicy {
    /// Before replies to writes are sent.
    Always,
    /// Once per second.
    #[default]
    EverySecond,
    /// Whenever the system writes it back.
    Never,
}

/// Configuration of the append-only file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AofSettings {
    /// `appendfsync`
    pub policy: FsyncPolicy,
    /// `no-appendfsync-on-rewrite`: with `everysec`, do not sync during a rewrite.
    pub no_fsync_on_rewrite: bool,
    /// `aof-timestamp-enabled`
    pub timestamps: bool,
    /// `appendfilename`
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

/// The end of the replication log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The current end of the log, which is a command boundary.
    pub(crate) end: Position,
    /// The previous replication id and the offset up to which it is valid.
    pub(crate) previous: Option<Position>,
    /// Current wall clock time.
    pub(crate) wall: Millis,
}

/// Why the log can no longer be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogLoss {
    /// The log was trimmed past the next byte to write.
    Trimmed,
    /// The log belongs to other data after a full resync.
    Replaced,
}

/// An event passed to the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AofEvent {
    /// The current end of the log. Also sent periodically when the log has not grown.
    LogAdvanced(LogEnd),
    /// The file has other commands than the log in this range. Sent in order, and before the log's end passes the range.
    FileVersionAdded(FileVersion),
    /// The log can no longer be followed from the file's offset.
    LogLost(LogLoss),
    /// A rewrite has taken its snapshot at the current end of the log.
    SnapshotTaken {
        /// The rewrite; only one runs at a time.
        rewrite: RewriteId,
        /// The log position of the snapshot.
        at: Position,
        /// The database selected by the master's stream, if the log itself will not repeat the SELECT.
        db: Option<u16>,
    },
    /// The base of a rewrite is written and synced.
    BaseReady {
        /// The rewrite that wrote the base.
        rewrite: RewriteId,
        /// `true` for an RDB file, `false` for commands.
        rdb: bool,
    },
    /// A rewrite failed.
    RewriteFailed(RewriteId),
    /// The files that a rewrite made obsolete are deleted.
    HistoryDeleted,
    /// The configuration may have changed.
    Configured(AofSettings),
    /// Sync the whole log now, and retry failed operations at once.
    SyncRequested,
}

/// A file operation. Only one runs at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOperation {
    /// Append `head`, then `len` bytes of the log.
    Write {
        /// Annotations, at the start of an increment a SELECT, and the commands of a [`FileVersion`].
        head: Vec<u8>,
        /// Log offset of the first byte.
        from: ReplOffset,
        /// Number of bytes from the log.
        len: u64,
    },
    /// Sync the increment.
    Sync,
    /// Truncate the increment to this length.
    Truncate(u64),
    /// Create an empty file, name it in the manifest, and append to it from now on.
    BeginIncrement {
        /// File name of the increment.
        name: String,
        /// The new manifest; `None` if it does not change.
        manifest: Option<String>,
    },
    /// Rename the base of a rewrite, and name it in the manifest.
    InstallBase {
        /// The rewrite that wrote the base.
        rewrite: RewriteId,
        /// File name of the base.
        name: String,
        /// The new manifest.
        manifest: String,
    },
    /// Write this manifest.
    WriteManifest(String),
}

/// Why an operation failed, possibly after a part of it was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OperationError {
    /// The log no longer has the bytes to be written.
    LogLost(LogLoss),
    /// A system error.
    Io(String),
}

/// Why a new base was not installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseRejected {
    /// The log can no longer be followed from the base's snapshot.
    #[error("the data was replaced, or the log was trimmed past the snapshot")]
    LogLost,
    /// A system error.
    #[error("{0}")]
    Io(String),
}

/// An effect to carry out at once. Effects touch no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AofEffect {
    /// Replies to writes up to this offset may be sent.
    PublishCommitPoint(ReplOffset),
    /// Whether replies to writes must wait for [`AofEffect::PublishCommitPoint`].
    HoldReplies(bool),
    /// Writing the file fails with this error, or works again (`None`).
    WriteErrorChanged(Option<String>),
    /// A rewrite has ended.
    RewriteEnded {
        /// The rewrite that ended.
        rewrite: RewriteId,
        /// The obsolete files, which can be deleted now, or why the base was not installed.
        outcome: Result<Vec<String>, BaseRejected>,
    },
    /// The driver must start a rewrite.
    BaseNeeded,
}
