//! WAIT and WAITAOF count only copies that exist or have existed.
//!
//! A replica has a copy once its log has reached the offset in the master's history. The copy is on disk once the
//! replica's file is synced up to the offset; the invariant `durable` checks that such a sync is real.

use std::collections::BTreeMap;

use replication::ReplId;
use replication::wait::RequiredCopies;
use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::invariant::Invariant;

/// Identifies a copy by host, incarnation and history. A cluster master identifies replicas by node id; other masters
/// count a reconnected replica twice until they notice that its old connection is dead.
type CopyId = (usize, usize, ReplId);

#[derive(Debug, Default)]
pub(super) struct CopiesInvariant {
    /// The highest offset that each copy has reached in memory.
    highest_offsets: BTreeMap<CopyId, ReplOffset>,
    /// The highest offset that each copy has reached on disk.
    synced_offsets: BTreeMap<CopyId, ReplOffset>,
    /// The number of restarts of each process.
    restart_counts: BTreeMap<usize, usize>,
}

impl Invariant<DataObservation<'_>> for CopiesInvariant {
    fn check(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let (host, position) = (observation.host, observation.process_state.position());
        if matches!(observation.change, DataChange::Restarted { .. })
            && observation.process_state.engine().topology.is_none()
        {
            *self.restart_counts.entry(host).or_default() += 1;
        }
        let copy = (host, self.restart_counts.get(&host).copied().unwrap_or_default(), position.id);
        let raise = |upto: &mut ReplOffset, offset: ReplOffset| *upto = offset.max(*upto);
        match observation.change {
            DataChange::ConsistentState | DataChange::CommandApplied | DataChange::Restarted { .. } => {
                raise(self.highest_offsets.entry(copy).or_default(), position.offset);
            }
            DataChange::FileSynced { offset: upto } => {
                raise(self.synced_offsets.entry(copy).or_default(), upto);
            }
            DataChange::CopiesCounted { offset: upto, required: wanted, copies } => {
                let ledger = match wanted {
                    RequiredCopies::Acknowledged { .. } => &self.highest_offsets,
                    RequiredCopies::Synced { .. } => &self.synced_offsets,
                };
                let has_it = |((of, _, history), offset): &(&CopyId, &ReplOffset)| {
                    *of != host && *history == position.id && **offset >= upto
                };
                let there = ledger.iter().filter(has_it).count();
                if copies.replica_count > there {
                    return Err(format!(
                        "host {host} counts {copies:?} of {upto} for {wanted:?}, and {there} replicas have had it"
                    ));
                }
            }
            DataChange::WriteAcknowledged { .. }
            | DataChange::DataReplaced
            | DataChange::KeyDropped { .. }
            | DataChange::AcknowledgedByReplica { .. }
            | DataChange::Promoted { .. }
            | DataChange::Demoted
            | DataChange::ReplicaForgotten { .. } => {}
        }
        Ok(())
    }
}
