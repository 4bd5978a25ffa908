//! The invariants of a node and its files, one file each.

use super::running;
use super::watching::Executed;
use crate::Rule;
use crate::disk::Death;
use crate::invariant::Invariant;
use crate::waiting::Stuck;

mod answered;
mod durable;
mod no_invention;
mod prefix;
mod saved;
mod served;
mod waits;
mod watches;

/// The data that a node has after its start.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Up to which offset of the history it says that it is.
    pub(super) reached: u64,
    pub(super) digest: String,
    /// The digest of the data that the history makes up to there; `None` if it is not so long.
    pub(super) expected: Option<String>,
    /// The values of the keys that are only ever set as a whole.
    pub(super) plain: Vec<String>,
}

/// An offset of the history, and the digest of the data there.
pub(super) type Data = (u64, String);

/// An event that the invariants look at.
#[derive(Debug)]
pub(super) enum Seen {
    /// Clients have been told that all before this offset is done, under `always`.
    Acknowledged(u64),
    /// All before this offset is called synced.
    Synced(u64),
    /// All before this offset has been given to the system, now.
    Written(u64),
    /// After such a death it started again, with this data, or does not start; clients had written so many values.
    Started { death: Death, loaded: Result<Loaded, String>, issued: u64 },
    /// At a start, a file of all data was there with this, or none, and these saves may be in their place; the first is
    /// done, unless no save is.
    SaveFound { found: Option<Result<Data, String>>, may_be: Vec<Data>, done: bool },
    /// A client's command was answered so, and by the node that has only the history, so.
    Served { asked: String, got: String, expected: String },
    /// The requests that a client sent at once have run.
    Answered(running::Answered),
    /// A client that had watched a key has called EXEC.
    Executed(Executed),
    /// A client waits, and should not.
    Waits(Stuck),
    /// Everything works since a while, and so many clients wait all the same.
    Rested { waiting: usize },
}

pub(super) type Named = (Rule, Box<dyn Invariant<Seen>>);

/// Returns all of them.
pub(super) fn all() -> Vec<Named> {
    vec![
        (Rule::Durable, Box::new(durable::Durable::default())),
        (Rule::Prefix, Box::new(prefix::Prefix)),
        (Rule::NoInvention, Box::new(no_invention::NoInvention)),
        (Rule::Saved, Box::new(saved::Saved)),
        (Rule::Served, Box::new(served::Served)),
        (Rule::Waits, Box::new(waits::Waits)),
        (Rule::Watches, Box::new(watches::Watches)),
        (Rule::Answered, Box::new(answered::Answered)),
    ]
}
