//! An acknowledged write persists until its master changes the key or is demoted.
//!
//! If a promoted node still applied the stream of its old master, that stream would overwrite the write.

use std::collections::BTreeMap;

use super::{DataChange, DataObservation};
use crate::data::KeyGroup;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoOverwriteInvariant {
    /// The latest acknowledged write of each key on each master.
    acknowledged_writes: BTreeMap<usize, BTreeMap<KeyGroup, u64>>,
}

impl Invariant<DataObservation<'_>> for NoOverwriteInvariant {
    fn check(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let host = observation.host;
        let acknowledged = self.acknowledged_writes.entry(host).or_default();
        match observation.change {
            DataChange::WriteAcknowledged { key_group: key, write_number: write, .. } => {
                acknowledged.insert(key, write);
            }
            DataChange::KeyDropped { key_group: key } => {
                acknowledged.remove(&key);
            }
            DataChange::Promoted { .. } | DataChange::Demoted | DataChange::Restarted { .. } => {
                acknowledged.clear();
            }
            DataChange::CommandApplied | DataChange::DataReplaced => {
                let is_lost = |(key, write): &(&KeyGroup, &u64)| {
                    !observation.process_state.is_locked(**key)
                        && observation.process_state.data_store.last_write_number(**key) != Some(**write)
                };
                let lost = acknowledged.iter().find(is_lost);
                if let Some((key, write)) = lost {
                    let now = observation.process_state.data_store.last_write_number(*key);
                    return Err(format!(
                        "master {host} has acknowledged {write} for key {key} and holds {now:?}"
                    ));
                }
            }
            DataChange::ConsistentState
            | DataChange::FileSynced { .. }
            | DataChange::CopiesCounted { .. }
            | DataChange::AcknowledgedByReplica { .. }
            | DataChange::ReplicaForgotten { .. } => {}
        }
        Ok(())
    }
}
