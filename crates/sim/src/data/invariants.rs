//! The invariants of replicated data, one file each.

use super::{Key, ReplicaState};
use crate::InvariantName;
use crate::invariant::Invariant;
use replication::wait::{CopyCount, RequiredCopies};
use slot_routing::ReplOffset;

mod copies;
mod durable;
mod handover;
mod no_erasure;
mod no_loss;
mod no_overwrite;
mod same_data;
mod waits;

/// An event in the life of a process's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataChange {
    /// No command is half done, so data and log describe the same state.
    Consistent,
    /// A client's write is acknowledged.
    Acknowledged {
        key: Key,
        write: u64,
        /// The log offset directly after the write.
        end: ReplOffset,
        /// Whether the client was told that the write is on disk.
        durable: bool,
    },
    /// The append-only file is synced up to this offset.
    Synced { offset: ReplOffset },
    /// WAIT or WAITAOF for an offset returns this number of copies.
    Copied { offset: ReplOffset, wanted: RequiredCopies, copies: CopyCount },
    /// A command of the master's stream was executed on a replica.
    Applied,
    /// A snapshot begins to replace the data, or has just replaced it.
    Replaced,
    /// A key was removed because its slot moved to another node.
    Dropped { key: Key },
    /// A replica acknowledged this offset.
    AcknowledgedByReplica { replica: usize, offset: ReplOffset },
    /// A process starts to accept writes as a master; before that it replicated `from`.
    Promoted { from: Option<usize> },
    /// The process starts to follow a master, or follows another one.
    Demoted,
    /// The process restarts, with its disk or with an empty one.
    Restarted { keeps_data: bool },
    /// The process is no longer a replica of `master`; `None` if an operator made all nodes forget it.
    Forgotten { master: Option<usize> },
}

/// An event together with the process's data after the event.
pub(super) struct DataObservation<'a> {
    pub(super) host: usize,
    pub(super) store: &'a ReplicaState,
    pub(super) change: DataChange,
}

/// A data invariant, with the name under which violations are reported.
pub(super) type NamedInvariant = (InvariantName, Box<dyn for<'a> Invariant<DataObservation<'a>> + Send>);

/// Returns the event invariants of the data; `handover` and `waits` check states.
pub(super) fn all() -> Vec<NamedInvariant> {
    vec![
        (InvariantName::SameData, Box::new(same_data::ReplicaDataEquality::default())),
        (InvariantName::NoOverwrite, Box::new(no_overwrite::NoOverwrite::default())),
        (InvariantName::NoLoss, Box::new(no_loss::NoLoss::default())),
        (InvariantName::Copies, Box::new(copies::Copies::default())),
        (InvariantName::Durable, Box::new(durable::Durable::default())),
        (InvariantName::NoErasure, Box::new(no_erasure::NoErasure::default())),
    ]
}
