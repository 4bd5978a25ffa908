//! A replica has every acknowledged write if it takes over in an orderly handover, or if a stopping master counts it as
//! in sync.
//!
//! The master blocks client writes until the replica takes over, so it cannot have acknowledged more.

use std::fmt::Debug;

use engine::NodeFlags;

use crate::InvariantName;
use crate::simulation::Simulation;

impl<E: Debug> Simulation<E> {
    /// Checks that a replica considered in sync has the master's writes.
    pub(crate) fn check_handover(&mut self, master: usize, replica: usize) {
        let wall = self.wall_of(master);
        let is_held = {
            let engine = self.data.stores[master].engine();
            engine.pauses.end_expired(&engine.settings, wall);
            engine.settings.node_flags().intersects(NodeFlags::PAUSED)
        };
        if !self.processes[master].is_up || !is_held {
            return;
        }
        for key in self.data.slots.iter().map(|slot| slot.number()).collect::<Vec<_>>() {
            let [there, here] =
                [master, replica].map(|host| self.data.stores[host].data_store.last_write(key));
            // A master that lost its data has fewer writes than its replica, which is correct.
            if there > here {
                let what = format!(
                    "host {replica} counts as in sync with {here:?} of slot {key}, and host {master} has {there:?}"
                );
                self.record_violation(InvariantName::Handover, &what);
            }
        }
    }
}
