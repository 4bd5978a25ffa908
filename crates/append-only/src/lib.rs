//! The append-only file as a pure machine: which part of the log is written where, when it is synced, when another
//! increment begins and another base counts, and how far replies to writes may go.
//!
//! A driver tells it [`Input`]s, as they come and from any thread. One thread asks it for the next [`Operation`], does
//! it, and says how that went ([`AppendOnly::done`]); so no two operations with the files overlap. [`Effect`]s follow
//! at once and touch no file: those that a call brings are carried out in their order.
//!
//! [`Hands`] do the operations in a [`Folder`], on whatever is a [`Place`]: a folder of the system, or a simulated one.
//!
//! Invariants, whichever operations fail, having been done or not, and whenever the machine loses its power:
//! - the files that the manifest on the disk names are a prefix of one history, and nothing of it is in them twice;
//! - once they are [`Standing::Whole`], everything up to the commit point is in them and synced, under `always`;
//! - an increment begins where the one before it ends, which is synced by then; once it has been tried to begin one it
//!   is begun, since the manifest on the disk may name it already;
//! - a base follows into place only with the increment that its own cut began;
//! - no two increments, and no two bases, ever have the same name: the manifest of an attempt that failed may be on the
//!   disk.
#![forbid(unsafe_code)]

mod anchor;
mod folder;
mod increment;
mod machine;
mod place;
mod rewrites;
#[cfg(test)]
mod tests;

use clock::Millis;
use replication::Position;
use slot_routing::ReplOffset;

pub use anchor::Anchor;
pub use folder::{FilesError, Folder, Hands, History, Open, Sizes, ToLoad};
pub use machine::AppendOnly;
pub use place::{Place, Told};
pub use rewrites::{Growth, RewriteId, Rewrites, RunningError};

/// `appendfsync`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Before writes are answered.
    Always,
    /// Once a second.
    #[default]
    EverySecond,
    /// When the system likes.
    Never,
}

/// How the file is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// `appendfsync`
    pub policy: Policy,
    /// `no-appendfsync-on-rewrite`, which is about `everysec`: a rewrite has the disk to itself.
    pub spares_disk: bool,
    /// `aof-timestamp-enabled`
    pub stamps: bool,
    /// `appendfilename`
    pub name: String,
}

/// The state of the files: whether a restart would find the data in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The files that the manifest names are the data, but for what is still to be written.
    Whole,
    /// They were whole, and the log has let go of what was to be written next: until there is another base, replies to
    /// writes wait.
    Behind,
    /// They are no file of this data yet: it has just been switched on, or the data was replaced. Nobody waits for it
    /// before its first base is there.
    Fresh,
}

/// The end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Where the log ends, which is between two commands.
    pub end: Position,
    /// Its older name, and up to where that is good.
    pub second: Option<Position>,
    /// The time of day.
    pub wall: Millis,
}

/// Why the log cannot be followed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It no longer has what is to be written next.
    LetGo,
    /// It is that of other data: a full synchronisation.
    Replaced,
}

/// An event that the machine is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// How long the log is now. Also told now and then when it has not grown.
    LogGrew(LogEnd),
    /// The log cannot be followed from where the file is.
    FellOff(Lost),
    /// A rewrite has cut its snapshot here, and nothing has changed since; `db` is what a master's stream has selected.
    Cut {
        /// The rewrite, the only one that is under way.
        rewrite: RewriteId,
        /// The end of the log.
        at: Position,
        /// The database that what follows is in, where the log does not say it again.
        db: Option<u16>,
    },
    /// The base of a rewrite is written and synced.
    BaseReady {
        /// Which.
        rewrite: RewriteId,
        /// Whether it is an RDB, or commands.
        rdb: bool,
    },
    /// A rewrite has ended without a base.
    RewriteFailed(RewriteId),
    /// The files that a rewrite has made history are deleted.
    HistoryDeleted,
    /// The settings may have changed.
    Configured(Settings),
    /// All of the log is to be brought to the disk now, and what has failed is to be tried again at once.
    Asked,
}

/// An operation with the files. They are done one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Append `head`, and then so many bytes of the log.
    Write {
        /// Annotations, and with which database an increment begins.
        head: Vec<u8>,
        /// From where in the log.
        from: ReplOffset,
        /// How much of it.
        len: u64,
    },
    /// Bring the increment to the disk.
    Sync,
    /// Cut the increment back to so many bytes.
    CutBack(u64),
    /// Make an empty file, have the manifest name it, and append to it from now on.
    BeginIncrement {
        /// Its name.
        name: String,
        /// The manifest's text then; `None` where it stays as it is.
        manifest: Option<String>,
    },
    /// Give the base of a rewrite its name, and have the manifest name it.
    PutBase {
        /// The rewrite.
        rewrite: RewriteId,
        /// Its name.
        name: String,
        /// The manifest's text then.
        manifest: String,
    },
    /// Write the manifest.
    PutManifest(String),
}

/// Why an operation was not done, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The log does not have what was to be written.
    FellOff(Lost),
    /// The error that the system reports.
    Io(String),
}

/// Why a base was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The log is no longer followed from its cut.
    #[error("the data was replaced meanwhile, or the log has let go of what follows")]
    Lost,
    /// The error that the system reports.
    #[error("{0}")]
    Io(String),
}

/// An effect that follows at once and touches no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Replies to writes up to here may go out.
    Publish(ReplOffset),
    /// Whether replies to writes wait for that.
    Hold(bool),
    /// The file cannot be written, or can be again.
    Failing(Option<String>),
    /// A rewrite has ended: its base counts, and these files can be deleted; or not.
    Rewritten {
        /// Which.
        rewrite: RewriteId,
        /// The names of what is history.
        outcome: Result<Vec<String>, NotTaken>,
    },
    /// Another base is needed.
    BaseNeeded,
}
