//! A replica that takes over in order, or that a master which stops counts as in sync, has all that its master has
//! acknowledged.
//!
//! The master holds back its clients' writes until then, so it can have acknowledged nothing more.

use std::fmt::Debug;

use engine::Gate;

use crate::Rule;
use crate::stage::Stage;

impl<E: Debug> Stage<E> {
    /// Looks at a replica that is found to have everything.
    pub(crate) fn check_handover(&mut self, master: usize, replica: usize) {
        let wall = self.wall_of(master);
        let is_held = {
            let engine = self.data.stores[master].engine();
            engine.pauses.end_overdue(&engine.settings, wall);
            engine.settings.gate().intersects(Gate::PAUSED)
        };
        if !self.processes[master].up || !is_held {
            return;
        }
        for key in self.data.slots.iter().map(|slot| slot.number()).collect::<Vec<_>>() {
            let [there, here] = [master, replica].map(|host| self.data.stores[host].held.get(key));
            // A master that has lost its data has less.
            if there > here {
                let what = format!(
                    "host {replica} counts as in sync with {here:?} of slot {key}, and host {master} has {there:?}"
                );
                self.violate(Rule::Handover, &what);
            }
        }
    }
}
