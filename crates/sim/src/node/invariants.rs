//! The invariants of a node and its files, one file each.

use super::running;
use super::watching::WatchedTransaction;
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
    pub(super) expected_digest: Option<String>,
    /// The values of the keys that clients write only with SET.
    pub(super) plain_values: Vec<String>,
}

/// A history offset, and the digest of the data at that offset.
pub(super) type DataAtOffset = (u64, String);

/// An event or state that the invariants of a node check.
#[derive(Debug)]
pub(super) enum NodeObservation {
    /// Writes before this offset were acknowledged under `always`.
    WritesAcknowledged(u64),
    /// The log before this offset is reported as synced.
    LogSynced(u64),
    /// The log before this offset has been passed to the kernel.
    LogWritten(u64),
    /// The node restarted after `death`. `loaded` is its data, or an error if it did not start. Until then clients had
    /// written `issued_value_count` distinct values.
    NodeStarted { death: ProcessDeath, loaded: Result<LoadedData, String>, issued_value_count: u64 },
    /// `found_data` is the content of the RDB file at a start, if there is one. `candidates` are the saves that it may
    /// contain; `is_first_complete` means that the first of them had completed.
    SaveFound {
        found_data: Option<Result<DataAtOffset, String>>,
        candidates: Vec<DataAtOffset>,
        is_first_complete: bool,
    },
    /// A client's command returned `reply`; the reference node returned `expected`.
    CommandServed { command: String, reply: String, expected: String },
    /// A client's pipeline was executed.
    PipelineAnswered(running::PipelineCounts),
    /// A client that had watched a key called EXEC.
    TransactionExecuted(WatchedTransaction),
    /// A client is blocked although its wait should have ended.
    ClientStuck(StuckClient),
    /// The disk has worked for some time, but the replies to `delayed_reply_count` writes are still delayed.
    DiskRecovered { delayed_reply_count: usize },
}

pub(super) type NamedInvariant = (InvariantName, Box<dyn Invariant<NodeObservation>>);

/// Returns all invariants of a node.
pub(super) fn all_invariants() -> Vec<NamedInvariant> {
    vec![
        (InvariantName::Durable, Box::new(durable::DurableInvariant::default())),
        (InvariantName::Prefix, Box::new(prefix::PrefixInvariant)),
        (InvariantName::NoInvention, Box::new(no_invention::NoInventionInvariant)),
        (InvariantName::Saved, Box::new(saved::SavedInvariant)),
        (InvariantName::Served, Box::new(served::ServedInvariant)),
        (InvariantName::Waits, Box::new(waits::WaitsInvariant)),
        (InvariantName::Watches, Box::new(watches::WatchesInvariant)),
        (InvariantName::Answered, Box::new(answered::AnsweredInvariant)),
    ]
}
