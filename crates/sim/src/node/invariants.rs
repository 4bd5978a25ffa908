//! The invariants of a node and its files, one file each.

use super::running;
use super::watching::Executed;
use crate::InvariantName;
use crate::disk::ProcessDeath;
use crate::invariant::Invariant;
use crate::waiting::StuckClient;

mod answered;
mod durable;
mod no_invention;
mod prefix;
mod saved;
mod served;
mod waits;
mod watches;

/// The data of a node after its start.
#[derive(Debug)]
pub(super) struct LoadedData {
    /// The history offset up to which the node claims to have loaded the data.
    pub(super) claimed_offset: u64,
    pub(super) digest: String,
    /// The digest after the history was replayed up to that offset; `None` if the history is shorter.
    pub(super) expected: Option<String>,
    /// The values of the keys that clients write only with SET.
    pub(super) plain_values: Vec<String>,
}

/// A history offset, and the digest of the data at that offset.
pub(super) type Data = (u64, String);

/// An event or state that the invariants of a node check.
#[derive(Debug)]
pub(super) enum NodeObservation {
    /// Writes before this offset were acknowledged under `always`.
    Acknowledged(u64),
    /// The log before this offset is reported as synced.
    Synced(u64),
    /// The log before this offset has been passed to the kernel.
    Written(u64),
    /// The node restarted after `death`. `loaded` is its data, or an error if it did not start. Until then clients had
    /// written `values_issued` distinct values.
    Started { death: ProcessDeath, loaded: Result<LoadedData, String>, issued: u64 },
    /// `found` is the content of the RDB file at a start, if there is one. `candidates` are the saves that it may
    /// contain; `is_first_complete` means that the first of them had completed.
    SaveFound { found: Option<Result<Data, String>>, candidates: Vec<Data>, is_first_complete: bool },
    /// A client's command returned `reply`; the reference node returned `expected`.
    Served { command: String, reply: String, expected: String },
    /// A client's pipeline was executed.
    Answered(running::Answered),
    /// A client that had watched a key called EXEC.
    Executed(Executed),
    /// A client is blocked although its wait should have ended.
    Waits(StuckClient),
    /// The disk has worked for some time, but the replies to `delayed_reply_count` writes are still delayed.
    DiskRecovered { waiting: usize },
}

pub(super) type NamedInvariant = (InvariantName, Box<dyn Invariant<NodeObservation>>);

/// Returns all invariants of a node.
pub(super) fn all() -> Vec<NamedInvariant> {
    vec![
        (InvariantName::Durable, Box::new(durable::Durable::default())),
        (InvariantName::Prefix, Box::new(prefix::Prefix)),
        (InvariantName::NoInvention, Box::new(no_invention::NoInvention)),
        (InvariantName::Saved, Box::new(saved::Saved)),
        (InvariantName::Served, Box::new(served::Served)),
        (InvariantName::Waits, Box::new(waits::Waits)),
        (InvariantName::Watches, Box::new(watches::Watches)),
        (InvariantName::Answered, Box::new(answered::Answered)),
    ]
}
