//! Two processes at the same offset of the same history have equal data.
//!
//! A replication id promises this, and partial resynchronization relies on it. After healing, the data of every replica
//! must also converge to that of its master, which is checked as part of liveness.

use replication::ReplId;
use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::invariant::{Invariant, SetOnce};

/// Only offsets that are multiples of this number are checked. They are the same in all processes, and a difference
/// persists, so it is still detected.
const CHECKED_OFFSET_STEP: u64 = 128;

#[derive(Debug, Default)]
pub(super) struct ReplicaDataEquality {
    /// The data digest at each offset of each history.
    digests: SetOnce<(ReplId, ReplOffset), Vec<u8>>,
}

impl Invariant<DataObservation<'_>> for ReplicaDataEquality {
    fn check(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let store = observation.process_state;
        // While a segment or a command is being executed, the data differs from the log.
        if observation.change != DataChange::ConsistentState || !store.log.is_open() || !store.can_snapshot()
        {
            return Ok(());
        }
        let position = store.position();
        if !position.offset.0.is_multiple_of(CHECKED_OFFSET_STEP) {
            return Ok(());
        }
        let settled = self.digests.record((position.id, position.offset), &store.data_store.digest());
        settled.map_err(|_| {
            format!(
                "host {} holds other data than another did at {} of {}",
                observation.host, position.offset, position.id
            )
        })
    }
}
