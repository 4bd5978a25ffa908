//! An acknowledged write persists until its master changes the key or is demoted.
//!
//! If a promoted node still applied the stream of its old master, that stream would overwrite the write.

use std::collections::BTreeMap;

use super::{DataChange, DataObservation};
use crate::data::Key;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoOverwrite {
    /// The latest acknowledged write of each key on each master.
    acknowledged: BTreeMap<usize, BTreeMap<Key, u64>>,
}

impl Invariant<DataObservation<'_>> for NoOverwrite {
    fn check(&mut self, seen: &DataObservation<'_>) -> Result<(), String> {
        let host = seen.host;
        let acknowledged = self.acknowledged.entry(host).or_default();
        match seen.change {
            DataChange::Acknowledged { key, write, .. } => {
                acknowledged.insert(key, write);
            }
            DataChange::Dropped { key } => {
                acknowledged.remove(&key);
            }
            DataChange::Promoted { .. } | DataChange::Demoted | DataChange::Restarted { .. } => {
                acknowledged.clear();
            }
            DataChange::Applied | DataChange::Replaced => {
                let is_lost = |(key, write): &(&Key, &u64)| {
                    !seen.store.is_locked(**key) && seen.store.data_store.last_write(**key) != Some(**write)
                };
                let lost = acknowledged.iter().find(is_lost);
                if let Some((key, write)) = lost {
                    let now = seen.store.data_store.last_write(*key);
                    return Err(format!(
                        "master {host} has acknowledged {write} for key {key} and holds {now:?}"
                    ));
                }
            }
            DataChange::Consistent
            | DataChange::Synced { .. }
            | DataChange::Copied { .. }
            | DataChange::AcknowledgedByReplica { .. }
            | DataChange::Forgotten { .. } => {}
        }
        Ok(())
    }
}
