//! Every wait ends. A blocked client is served as soon as an element is available or its timeout passes. If its key
//! moves to another node, the client is redirected.

use std::fmt::Debug;

use engine::NodeFlags;
use slot_routing::Ownership;

use crate::InvariantName;
use crate::data::data_store::slot_of;
use crate::simulation::Simulation;

impl<E: Debug> Simulation<E> {
    /// Checks the blocked client of a server after the client had the chance to continue.
    pub(in crate::data) fn check_waits(&mut self, host: usize) {
        let (wall, takes_writes) = (self.wall_clock_of(host), |key| self.accepts_writes(host, key));
        let Some(key) = self.data.process_states[host].blocking_client.as_ref().map(|waits| waits.key_group)
        else {
            return;
        };
        let takes_writes = takes_writes(key);
        let store = &mut self.data.process_states[host];
        let Some(waits) = store.blocking_client.as_ref().filter(|waits| waits.client.is_blocked()) else {
            return;
        };
        if store.unfinished_writes.values().any(|running| running.key_group == key) {
            return;
        }
        let is_elsewhere = {
            let engine = store.data_store.engine();
            let ownership = engine.keyspace.lock(slot_of(key)).ownership();
            let serves = matches!(ownership, Ownership::Local | Ownership::Migrating | Ownership::Importing);
            !serves || engine.settings.node_flags().contains(NodeFlags::CLUSTER_DOWN)
        };
        let stuck = store.data_store.with_executor(|data| waits.client.check_stuck(data, wall)).0;
        let stuck = stuck.filter(|stuck| takes_writes || stuck.has_timed_out);
        let why = stuck.map(|stuck| stuck.reason).or(is_elsewhere.then_some("its slot is served elsewhere"));
        if let Some(why) = why {
            self.record_violation(
                InvariantName::Waits,
                &format!("a client of host {host} waits for slot {key}, and {why}"),
            );
        }
    }
}
