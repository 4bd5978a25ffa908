//! A replica has every acknowledged write if it takes over in a handover, or if its stopping master counts it as in
//! sync.
//!
//! The master blocks client writes until the replica takes over, so it acknowledges no further writes.

use std::fmt::Debug;

use engine::NodeFlags;

use crate::InvariantName;
use crate::simulation::Simulation;

impl<E: Debug> Simulation<E> {
    /// Checks that a replica which its master counts as in sync has all writes of the master.
    pub(crate) fn check_handover(&mut self, master: usize, replica: usize) {
        let wall = self.wall_clock_of(master);
        let is_held = {
            let engine = self.data.process_states[master].engine();
            engine.scheduling.pauses.end_expired(&engine.settings, wall);
            engine.settings.node_flags().intersects(NodeFlags::PAUSED)
        };
        if !self.processes[master].is_up || !is_held {
            return;
        }
        for key in self.data.slots.iter().map(|slot| slot.number()).collect::<Vec<_>>() {
            let [there, here] = [master, replica]
                .map(|host| self.data.process_states[host].data_store.last_write_number(key));
            // A master that has lost its data may have fewer writes than its replica.
            if there > here {
                let what = format!(
                    "host {replica} counts as in sync with {here:?} of slot {key}, and host {master} has {there:?}"
                );
                self.record_violation(InvariantName::Handover, &what);
            }
        }
    }
}
