//! Connects the cluster bus with the simulated data: replication news for the bus, and the bus's
//! decisions for the data.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use engine::PausePurpose;
use gossip::{ClusterInput, ReplicaConfirmation, ReplicationSource, ReplicationStatus, SlotChange};
use slot_routing::{ReplOffset, Slot, SlotSet, Topology};

use super::{Event, World};
use crate::Plant;
use crate::data::{Key, Order};

/// Poll interval while running writes are draining.
const DRAINING: Duration = Duration::from_micros(500);
/// Poll interval for replica acknowledgements of a slot change.
const ASKED_AGAIN: Duration = Duration::from_millis(2);

/// A slot change that was sent to replicas, with the expected acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    token: u64,
    slot: Slot,
    offset: ReplOffset,
    /// The number of replicas that must acknowledge the offset.
    readers: usize,
    until: Instant,
}

impl World {
    /// Sends a slot change to the replicas and waits until all connected ones have it.
    pub(super) fn tell_replicas(
        &mut self,
        host: usize,
        slot: Slot,
        change: &SlotChange,
        confirm: Option<ReplicaConfirmation>,
    ) {
        let token = confirm.map(|confirm| confirm.token);
        let said = self.stage.say_slot_change(host, slot, change, token);
        if let Some(ReplicaConfirmation { token, timeout }) = confirm {
            let (offset, readers) = said.unwrap_or((ReplOffset(0), 0));
            let until = self.stage.now + timeout;
            let life = self.stage.processes[host].life;
            let told = Told { token, slot, offset, readers, until };
            self.stage.after(Duration::ZERO, Event::Told { host, life, told });
        }
    }

    /// Checks whether the replicas acknowledged the slot change; at the deadline the wait fails.
    pub(super) fn look_who_has_it(&mut self, host: usize, told: Told) {
        let has_it = |(_, acknowledged): &(usize, ReplOffset)| *acknowledged >= told.offset;
        let held = self.stage.data.stores[host].replicas().filter(has_it).count() >= told.readers;
        if self.stage.runs(host) && (held || self.stage.now >= told.until) {
            let keys_in_slot = self.stage.data.stores[host].keys_in_slot(told.slot);
            return self
                .feed(host, ClusterInput::ReplicasAcknowledged { token: told.token, held, keys_in_slot });
        }
        let life = self.stage.processes[host].life;
        self.stage.after(ASKED_AGAIN, Event::Told { host, life, told });
    }

    /// Issues client writes and checks which nodes accept writes.
    pub(super) fn replicate(&mut self) {
        if self.stage.is_written() {
            let keys: Vec<Key> = self.samples.iter().map(|slot| slot.number()).collect();
            self.stage.clients_write(keys.into_iter(), 50_000);
        }
        self.stage.keep_house();
        while let Some(host) = self.stage.take_stopped() {
            self.stop(host);
        }
        for host in 0..self.hosts.len() {
            if !self.stage.runs(host) {
                continue;
            }
            let offset = self.stage.data.stores[host].offset();
            let heard = self.stage.data.stores[host].moves.has_heard();
            if heard || self.hosts[host].watched.is_some_and(|wanted| wanted <= offset) {
                self.feed(host, ClusterInput::Deadline);
            }
            self.check_reach(host);
        }
    }

    /// Returns the replication state for the machine.
    pub(super) fn facts(&self, host: usize) -> ReplicationStatus {
        let store = &self.stage.data.stores[host];
        let mut facts = ReplicationStatus { offset: store.reach(), source: store.source() };
        if self.stage.plan.plant == Some(Plant::UnheardLosses) && store.is_void() {
            facts.offset = store.offset();
            facts.source = store.down_since().map_or(facts.source, |since| ReplicationSource::Lost { since });
        }
        facts
    }

    pub(super) fn follow(&mut self, host: usize, ip: IpAddr, foreign: bool) {
        if let Some(master) = self.hosts.iter().position(|other| other.ip == ip) {
            self.stage.order(host, Order::Follow { master, foreign });
        }
    }

    /// Publishes a topology: slots that become the node's own at once, the others a moment later.
    pub(super) fn publish(&mut self, host: usize, topology: Topology) {
        self.stage.leave_returning(host, &topology);
        let (store, topology) = (&self.stage.data.stores[host], Arc::new(topology));
        self.hosts[host].topology = Some(topology.clone());
        let rerouting = store.engine().begin_topology_change(topology).expect("it is a node of a cluster");
        self.hosts[host].publishing = Some((rerouting, store.under_way()));
        let (life, time) = (self.stage.processes[host].life, self.stage.chance.millis(0, 1));
        self.stage.after(time, Event::Published { host, life });
    }

    pub(super) fn on_published(&mut self, host: usize) {
        let Some((rerouting, under_way)) = self.hosts[host].publishing.take() else { return };
        let store = &self.stage.data.stores[host];
        // Each slot learns the change under its lock.
        if !store.has_drained(&under_way) {
            self.hosts[host].publishing = Some((rerouting, under_way));
            let life = self.stage.processes[host].life;
            return self.stage.after(DRAINING, Event::Published { host, life });
        }
        store.engine().end_topology_change(rerouting);
        self.take_steps(host);
    }

    /// Blocks new writes and waits until running writes end.
    pub(super) fn pause(&mut self, host: usize, until: Instant) {
        self.stage.hold_writes(host, PausePurpose::Failover, Some(until));
        let under_way = self.stage.data.stores[host].under_way();
        self.on_drained(host, under_way);
    }

    pub(super) fn on_drained(&mut self, host: usize, under_way: BTreeSet<u64>) {
        let store = &self.stage.data.stores[host];
        if store.has_drained(&under_way) || self.stage.plan.plant == Some(Plant::UnawaitedWrites) {
            let offset = store.offset();
            return self.feed(host, ClusterInput::WritesPaused { offset });
        }
        let life = self.stage.processes[host].life;
        self.stage.after(DRAINING, Event::Drained { host, life, under_way });
    }

    /// Drops slots that now belong to other nodes.
    pub(super) fn drop_slots(&mut self, host: usize, slots: &SlotSet) {
        let lost = self.samples.iter().filter(|slot| slots.contains(**slot));
        let keys: Vec<Key> = lost.map(|slot| slot.number()).collect();
        self.stage.leave_slots(host, &keys);
    }
}
