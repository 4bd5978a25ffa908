//! Writes acknowledged under `appendfsync always` survive both a kill and a power failure, unless the disk is lost.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Durable {
    /// For each master, the offset after its last write that was acknowledged under `always`.
    acknowledged: BTreeMap<usize, ReplOffset>,
}

impl Invariant<DataObservation<'_>> for Durable {
    fn check(&mut self, seen: &DataObservation<'_>) -> Result<(), String> {
        let host = seen.host;
        match seen.change {
            DataChange::Acknowledged { end, durable: true, .. } if seen.store.upstream().is_none() => {
                let acknowledged = self.acknowledged.entry(host).or_default();
                *acknowledged = end.max(*acknowledged);
            }
            DataChange::Synced { offset: upto } => {
                let acknowledged = self.acknowledged.entry(host).or_default();
                *acknowledged = upto.max(*acknowledged);
            }
            DataChange::Restarted { keeps_data: true } => {
                let reached = seen.store.offset();
                let acknowledged = self.acknowledged.get(&host).copied().unwrap_or_default();
                if reached < acknowledged {
                    return Err(format!(
                        "host {host} has acknowledged {acknowledged}, and starts again at {reached}"
                    ));
                }
            }
            DataChange::Promoted { .. }
            | DataChange::Demoted
            | DataChange::Replaced
            | DataChange::Restarted { keeps_data: false } => {
                self.acknowledged.remove(&host);
            }
            DataChange::Acknowledged { .. }
            | DataChange::Copied { .. }
            | DataChange::Consistent
            | DataChange::Applied
            | DataChange::Dropped { .. }
            | DataChange::AcknowledgedByReplica { .. }
            | DataChange::Forgotten { .. } => {}
        }
        Ok(())
    }
}
