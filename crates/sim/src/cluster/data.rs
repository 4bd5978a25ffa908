//! Connects the cluster bus with the simulated data: passes the replication state to the bus, and carries out the
//! decisions of the bus on the data.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use engine::PausePurpose;
use gossip::{ClusterInput, ReplicaConfirmation, ReplicationSource, ReplicationStatus, SlotChange};
use slot_routing::{ReplOffset, Slot, SlotSet, Topology};

use super::{ClusterEvent, ClusterWorld};
use crate::InjectedBug;
use crate::data::{KeyGroup, RoleChange};

/// Interval between checks whether running writes have ended.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Interval between checks whether replicas have acknowledged a slot change.
const ACK_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A slot change that was sent to replicas, with the expected acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingSlotChange {
    token: u64,
    slot: Slot,
    offset: ReplOffset,
    /// The number of replicas that must acknowledge the offset.
    awaited_replica_count: usize,
    deadline: Instant,
}

impl ClusterWorld {
    /// Sends a slot change to the replicas. With `confirm`, waits until all connected replicas have acknowledged it.
    pub(super) fn send_slot_change(
        &mut self,
        host: usize,
        slot: Slot,
        change: &SlotChange,
        confirmation: Option<ReplicaConfirmation>,
    ) {
        let token = confirmation.map(|confirm| confirm.token);
        let said = self.simulation.announce_slot_change(host, slot, change, token);
        if let Some(ReplicaConfirmation { token, timeout }) = confirmation {
            let (offset, readers) = said.unwrap_or((ReplOffset(0), 0));
            let until = self.simulation.now + timeout;
            let incarnation = self.simulation.processes[host].incarnation;
            let told =
                PendingSlotChange { token, slot, offset, awaited_replica_count: readers, deadline: until };
            self.simulation.schedule_after(
                Duration::ZERO,
                ClusterEvent::CheckSlotChange { host, incarnation, change: told },
            );
        }
    }

    /// Checks whether enough replicas have acknowledged the slot change. After its deadline the change counts as
    /// failed.
    pub(super) fn check_slot_change_acks(&mut self, host: usize, change: PendingSlotChange) {
        let has_it = |(_, acknowledged): &(usize, ReplOffset)| *acknowledged >= change.offset;
        let held = self.simulation.data.process_states[host].replicas().filter(has_it).count()
            >= change.awaited_replica_count;
        if self.simulation.is_running(host) && (held || self.simulation.now >= change.deadline) {
            let keys_in_slot = self.simulation.data.process_states[host].keys_in_slot(change.slot);
            return self.handle_input(
                host,
                ClusterInput::ReplicasAcknowledged {
                    token: change.token,
                    is_acknowledged: held,
                    keys_in_slot,
                },
            );
        }
        let incarnation = self.simulation.processes[host].incarnation;
        self.simulation
            .schedule_after(ACK_POLL_INTERVAL, ClusterEvent::CheckSlotChange { host, incarnation, change });
    }

    /// Issues client writes and checks which nodes accept writes.
    pub(super) fn write_and_check_hosts(&mut self) {
        if self.simulation.are_clients_writing() {
            let keys: Vec<KeyGroup> = self.sample_slots.iter().map(|slot| slot.number()).collect();
            self.simulation.start_client_writes(keys.into_iter(), 50_000);
        }
        self.simulation.run_maintenance();
        while let Some(host) = self.simulation.take_finished_shutdown() {
            self.restart_after_shutdown(host);
        }
        for host in 0..self.hosts.len() {
            if !self.simulation.is_running(host) {
                continue;
            }
            let offset = self.simulation.data.process_states[host].offset();
            let received_headers = self.simulation.data.process_states[host].slot_changes.has_received();
            if received_headers || self.hosts[host].watched_offset.is_some_and(|wanted| wanted <= offset) {
                self.handle_input(host, ClusterInput::Deadline);
            }
            self.check_reach(host);
        }
    }

    /// Returns the replication state as the `gossip` state machine needs it.
    pub(super) fn replication_state(&self, host: usize) -> ReplicationStatus {
        let store = &self.simulation.data.process_states[host];
        let mut facts =
            ReplicationStatus { offset: store.failover_offset(), source: store.replication_source() };
        if self.simulation.plan.injected_bug == Some(InjectedBug::UnreportedDataLoss)
            && store.has_invalid_data()
        {
            facts.offset = store.offset();
            facts.source =
                store.link_down_since().map_or(facts.source, |since| ReplicationSource::Lost { since });
        }
        facts
    }

    pub(super) fn follow(&mut self, host: usize, ip: IpAddr, is_data_foreign: bool) {
        if let Some(master) = self.hosts.iter().position(|other| other.ip == ip) {
            self.simulation.queue_role_change(
                host,
                RoleChange::BecomeReplica { master, has_foreign_data: is_data_foreign },
            );
        }
    }

    /// Publishes a topology. Slots that the node gains take effect at once, the others a moment later.
    pub(super) fn publish(&mut self, host: usize, topology: Topology) {
        self.simulation.empty_returning_slots(host, &topology);
        let (store, topology) = (&self.simulation.data.process_states[host], Arc::new(topology));
        self.hosts[host].topology = Some(topology.clone());
        let rerouting = store.engine().begin_topology_change(topology).expect("it is a node of a cluster");
        self.hosts[host].topology_being_published = Some((rerouting, store.running_commands()));
        let (incarnation, time) =
            (self.simulation.processes[host].incarnation, self.simulation.random.random_millis(0, 1));
        self.simulation.schedule_after(time, ClusterEvent::TopologyPublished { host, incarnation });
    }

    pub(super) fn on_published(&mut self, host: usize) {
        let Some((rerouting, under_way)) = self.hosts[host].topology_being_published.take() else { return };
        let store = &self.simulation.data.process_states[host];
        // Each slot is switched while it is locked, so running writes must end first.
        if !store.have_commands_ended(&under_way) {
            self.hosts[host].topology_being_published = Some((rerouting, under_way));
            let incarnation = self.simulation.processes[host].incarnation;
            return self
                .simulation
                .schedule_after(DRAIN_POLL_INTERVAL, ClusterEvent::TopologyPublished { host, incarnation });
        }
        store.engine().end_topology_change(rerouting);
        self.run_pending_actions(host);
    }

    /// Blocks new writes and waits until all running writes have ended.
    pub(super) fn pause_writes_until(&mut self, host: usize, until: Instant) {
        self.simulation.pause_writes(host, PausePurpose::Failover, Some(until));
        let under_way = self.simulation.data.process_states[host].running_commands();
        self.on_writes_drained(host, under_way);
    }

    pub(super) fn on_writes_drained(&mut self, host: usize, running_writes: BTreeSet<u64>) {
        let store = &self.simulation.data.process_states[host];
        if store.have_commands_ended(&running_writes)
            || self.simulation.plan.injected_bug == Some(InjectedBug::SkippedDrain)
        {
            let offset = store.offset();
            return self.handle_input(host, ClusterInput::WritesPaused { offset });
        }
        let incarnation = self.simulation.processes[host].incarnation;
        self.simulation.schedule_after(
            DRAIN_POLL_INTERVAL,
            ClusterEvent::CheckDrained { host, incarnation, running_writes },
        );
    }

    /// Empties slots that now belong to other nodes.
    pub(super) fn delete_slot_keys(&mut self, host: usize, slots: &SlotSet) {
        let lost = self.sample_slots.iter().filter(|slot| slots.contains(**slot));
        let keys: Vec<KeyGroup> = lost.map(|slot| slot.number()).collect();
        self.simulation.start_emptying_slots(host, &keys);
    }
}
