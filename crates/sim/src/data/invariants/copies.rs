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
type Copy = (usize, usize, ReplId);

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// The highest offset that each copy has reached in memory.
    highest_offsets: BTreeMap<Copy, ReplOffset>,
    /// The highest offset that each copy has reached on disk.
    synced: BTreeMap<Copy, ReplOffset>,
    /// The number of restarts of each process.
    incarnations: BTreeMap<usize, usize>,
}

impl Invariant<DataObservation<'_>> for Copies {
    fn check(&mut self, seen: &DataObservation<'_>) -> Result<(), String> {
        let (host, position) = (seen.host, seen.store.position());
        if matches!(seen.change, DataChange::Restarted { .. }) && seen.store.engine().topology.is_none() {
            *self.incarnations.entry(host).or_default() += 1;
        }
        let copy = (host, self.incarnations.get(&host).copied().unwrap_or_default(), position.id);
        let raise = |upto: &mut ReplOffset, offset: ReplOffset| *upto = offset.max(*upto);
        match seen.change {
            DataChange::Consistent | DataChange::Applied | DataChange::Restarted { .. } => {
                raise(self.highest_offsets.entry(copy).or_default(), position.offset);
            }
            DataChange::Synced { offset: upto } => raise(self.synced.entry(copy).or_default(), upto),
            DataChange::Copied { offset: upto, wanted, copies } => {
                let ledger = match wanted {
                    RequiredCopies::Acknowledged { .. } => &self.highest_offsets,
                    RequiredCopies::Synced { .. } => &self.synced,
                };
                let has_it = |((of, _, history), offset): &(&Copy, &ReplOffset)| {
                    *of != host && *history == position.id && **offset >= upto
                };
                let there = ledger.iter().filter(has_it).count();
                if copies.replicas > there {
                    return Err(format!(
                        "host {host} counts {copies:?} of {upto} for {wanted:?}, and {there} replicas have had it"
                    ));
                }
            }
            DataChange::Acknowledged { .. }
            | DataChange::Replaced
            | DataChange::Dropped { .. }
            | DataChange::AcknowledgedByReplica { .. }
            | DataChange::Promoted { .. }
            | DataChange::Demoted
            | DataChange::Forgotten { .. } => {}
        }
        Ok(())
    }
}
