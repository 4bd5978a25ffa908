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

/// An event that concerns the data of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataChange {
    /// No command is partly executed, so data and log describe the same state.
    Consistent,
    /// A client's write is acknowledged.
    Acknowledged {
        key: Key,
        write: u64,
        /// The log offset directly after the write.
        end: ReplOffset,
        /// Whether the write is guaranteed to be on disk.
        durable: bool,
    },
    /// The append-only file is synced up to this offset.
    Synced { offset: ReplOffset },
    /// WAIT or WAITAOF for `offset` returned `copies`.
    Copied { offset: ReplOffset, wanted: RequiredCopies, copies: CopyCount },
    /// A command of the master's stream was executed on a replica.
    Applied,
    /// A snapshot starts to replace the data, or has just replaced it.
    Replaced,
    /// A key was removed because its slot moved to another node.
    Dropped { key: Key },
    /// A replica acknowledged this offset.
    AcknowledgedByReplica { replica: usize, offset: ReplOffset },
    /// A process begins to accept writes as a master. `old_master` is the master that it replicated before.
    Promoted { from: Option<usize> },
    /// The process begins to follow a master, or switches to another one.
    Demoted,
    /// The process restarts, with or without its data.
    Restarted { keeps_data: bool },
    /// `master` no longer counts the process as its replica; `None` if an operator made all nodes forget it.
    Forgotten { master: Option<usize> },
}

/// An event, and the data of the process after the event.
pub(super) struct DataObservation<'a> {
    pub(super) host: usize,
    pub(super) store: &'a ReplicaState,
    pub(super) change: DataChange,
}

/// An invariant of the data that checks events, with the name under which its violations are reported.
pub(super) type NamedInvariant = (InvariantName, Box<dyn for<'a> Invariant<DataObservation<'a>> + Send>);

/// Returns all invariants that check events. `handover` and `waits` check states instead.
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
