//! A replica that takes over in an orderly handover, or that a stopping master counts as in sync,
//! has every acknowledged write.
//!
//! The master blocks client writes until then, so it cannot have acknowledged more.

use std::fmt::Debug;

use engine::NodeFlags;

use crate::InvariantName;
use crate::simulation::Simulation;

impl<E: Debug> Simulation<E> {
    /// Checks a replica that is considered in sync.
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
            // A master that lost its data has less.
            if there > here {
                let what = format!(
                    "host {replica} counts as in sync with {here:?} of slot {key}, and host {master} has {there:?}"
                );
                self.record_violation(InvariantName::Handover, &what);
            }
        }
    }
}
