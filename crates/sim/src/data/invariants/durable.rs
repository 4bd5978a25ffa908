//! Writes acknowledged under `appendfsync always` survive both a kill and a power failure, unless the disk is lost.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct DurableInvariant {
    /// For each master, the offset after its last write that was acknowledged under `always`.
    acknowledged_ends: BTreeMap<usize, ReplOffset>,
}

impl Invariant<DataObservation<'_>> for DurableInvariant {
    fn check(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let host = observation.host;
        match observation.change {
            DataChange::WriteAcknowledged { end_offset: end, is_durable: true, .. }
                if observation.process_state.upstream().is_none() =>
            {
                let acknowledged = self.acknowledged_ends.entry(host).or_default();
                *acknowledged = end.max(*acknowledged);
            }
            DataChange::FileSynced { offset: upto } => {
                let acknowledged = self.acknowledged_ends.entry(host).or_default();
                *acknowledged = upto.max(*acknowledged);
            }
            DataChange::Restarted { keeps_data: true } => {
                let reached = observation.process_state.offset();
                let acknowledged = self.acknowledged_ends.get(&host).copied().unwrap_or_default();
                if reached < acknowledged {
                    return Err(format!(
                        "host {host} has acknowledged {acknowledged}, and starts again at {reached}"
                    ));
                }
            }
            DataChange::Promoted { .. }
            | DataChange::Demoted
            | DataChange::DataReplaced
            | DataChange::Restarted { keeps_data: false } => {
                self.acknowledged_ends.remove(&host);
            }
            DataChange::WriteAcknowledged { .. }
            | DataChange::CopiesCounted { .. }
            | DataChange::ConsistentState
            | DataChange::CommandApplied
            | DataChange::KeyDropped { .. }
            | DataChange::AcknowledgedByReplica { .. }
            | DataChange::ReplicaForgotten { .. } => {}
        }
        Ok(())
    }
}
