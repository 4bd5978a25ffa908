//! The invariants of replicated data, one file each.

use super::{KeyGroup, ProcessState};
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
    ConsistentState,
    /// A client's write is acknowledged.
    WriteAcknowledged {
        key_group: KeyGroup,
        write_number: u64,
        /// The log offset directly after the write.
        end_offset: ReplOffset,
        /// Whether the write is guaranteed to be on disk.
        is_durable: bool,
    },
    /// The append-only file is synced up to this offset.
    FileSynced { offset: ReplOffset },
    /// WAIT or WAITAOF for `offset` returned `copies`.
    CopiesCounted { offset: ReplOffset, required: RequiredCopies, copies: CopyCount },
    /// A command of the master's stream was executed on a replica.
    CommandApplied,
    /// A snapshot starts to replace the data, or has just replaced it.
    DataReplaced,
    /// A key was removed because its slot moved to another node.
    KeyDropped { key_group: KeyGroup },
    /// A replica acknowledged this offset.
    AcknowledgedByReplica { replica: usize, offset: ReplOffset },
    /// A process begins to accept writes as a master. `old_master` is the master that it replicated before.
    Promoted { old_master: Option<usize> },
    /// The process begins to follow a master, or switches to another one.
    Demoted,
    /// The process restarts, with or without its data.
    Restarted { keeps_data: bool },
    /// `master` no longer counts the process as its replica; `None` if an operator made all nodes forget it.
    ReplicaForgotten { master: Option<usize> },
}

/// An event, and the data of the process after the event.
pub(super) struct DataObservation<'a> {
    pub(super) host: usize,
    pub(super) process_state: &'a ProcessState,
    pub(super) change: DataChange,
}

/// An invariant of the data that checks events, with the name under which its violations are reported.
pub(super) type NamedInvariant = (InvariantName, Box<dyn for<'a> Invariant<DataObservation<'a>> + Send>);

/// Returns all invariants that check events. `handover` and `waits` check states instead.
pub(super) fn all_invariants() -> Vec<NamedInvariant> {
    vec![
        (InvariantName::SameData, Box::new(same_data::ReplicaDataEquality::default())),
        (InvariantName::NoOverwrite, Box::new(no_overwrite::NoOverwriteInvariant::default())),
        (InvariantName::NoLoss, Box::new(no_loss::NoLossInvariant::default())),
        (InvariantName::Copies, Box::new(copies::CopiesInvariant::default())),
        (InvariantName::Durable, Box::new(durable::DurableInvariant::default())),
        (InvariantName::NoErasure, Box::new(no_erasure::NoErasureInvariant::default())),
    ]
}
