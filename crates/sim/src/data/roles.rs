//! Simulates role changes. A change takes effect first in the log, then in write admission, then in the replication
//! thread.
//!
//! Role changes happen one at a time, because a node has one role lock. If a stream segment is being applied, it holds
//! the lock of the stream, and the role change waits.

use std::fmt::Debug;
use std::time::Duration;

use engine::NodeFlags;
use replication::{PsyncRequest, replica};

use super::serving::ReplicationMessage;
use super::store::ProcessState;
use super::{DataChange, DataEvent, DataSettings};
use crate::InjectedBug;
use crate::simulation::Simulation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoleChange {
    BecomeMaster,
    /// The process becomes a replica.
    BecomeReplica {
        master: usize,
        /// Whether the data belongs to another history than the master's, so that it cannot be continued.
        has_foreign_data: bool,
    },
    /// The process becomes a replica of `to` and asks that process to take over (PSYNC FAILOVER).
    HandOver {
        to: usize,
    },
    /// The process drops all its data.
    DropData,
}

impl<E: Debug> Simulation<E> {
    pub(crate) fn queue_role_change(&mut self, host: usize, change: RoleChange) {
        self.data.process_states[host].role_changes.push_back(change);
        self.perform_next_role_change(host);
        self.schedule_data_tick(host);
    }

    /// Performs the next role change, unless another one is in progress or a stream segment is being applied.
    pub(super) fn perform_next_role_change(&mut self, host: usize) {
        let mid_piece = self.data.process_states[host].applying_segment.is_some()
            && !self.has_injected_bug(InjectedBug::StreamAfterPromotion);
        if self.data.process_states[host].unpublished_change.is_some() || mid_piece {
            return;
        }
        let Some(order) = self.data.process_states[host].role_changes.pop_front() else { return };
        let (now, own, settings) = (self.clock_of(host), self.new_history(), self.data.settings);
        let answers_late = self.has_injected_bug(InjectedBug::ReplyAfterDemotion);
        let store = &mut self.data.process_states[host];
        let config = replica_config(&settings, store);
        let from = store.upstream();
        let message = match order {
            RoleChange::BecomeReplica { master, .. } if master == host => None,
            RoleChange::BecomeReplica { master, has_foreign_data: foreign } => {
                let stream = store.replica_driver.follow(now, master, config, &mut store.log);
                if foreign && stream.is_some() {
                    store.replica_driver.mark_data_foreign();
                }
                stream.map(ReplicationMessage::Follow)
            }
            RoleChange::HandOver { to } => {
                let config = replica::ReplicaConfig { requests_takeover: true, ..config };
                store.replica_driver.follow(now, to, config, &mut store.log).map(ReplicationMessage::Follow)
            }
            RoleChange::DropData => {
                store.engine().clear_all_unlogged();
                store.log.close();
                self.check_invariants(host, DataChange::Restarted { keeps_data: false });
                self.notify_file_of_log(host);
                return self.perform_next_role_change(host);
            }
            RoleChange::BecomeMaster => {
                store.replica_driver.promote(own, &mut store.log).then_some(ReplicationMessage::Unfollow)
            }
        };
        let Some(message) = message else { return self.perform_next_role_change(host) };
        store.unpublished_change = Some(message);
        if order == RoleChange::BecomeMaster {
            self.check_invariants(host, DataChange::Promoted { old_master: from });
        } else {
            store.history_number |= 1;
            if let Some(file) = store.data_file.as_mut().filter(|_| !answers_late) {
                file.drop_unsynced_writes();
            }
            self.check_invariants(host, DataChange::Demoted);
        }
        self.check_invariants(host, DataChange::ConsistentState);
        let at = self.process_id(host);
        self.schedule_data_within(800, DataEvent::RolePublished { process_id: at });
    }

    /// Handles the request of a master that this replica take over.
    pub(super) fn take_over(&mut self, host: usize, request: &PsyncRequest) -> Result<(), &'static str> {
        let store = &mut self.data.process_states[host];
        if store.upstream().is_none() {
            return Err("ERR PSYNC FAILOVER can't be sent to a master.");
        }
        if store.position().id.as_str().as_bytes() != request.repl_id.as_slice() {
            return Err("ERR PSYNC FAILOVER replid must match my replid.");
        }
        // A stream segment is being applied, so the role change must wait for the lock of the stream.
        if store.applying_segment.is_some()
            || store.unpublished_change.is_some()
            || !store.role_changes.is_empty()
        {
            return Err("ERR not now");
        }
        store.has_taken_over = true;
        self.queue_role_change(host, RoleChange::BecomeMaster);
        // The new role is published before the request is answered.
        self.publish_role(host);
        Ok(())
    }

    /// Once a handover has completed, records the new master as if an operator had configured it.
    pub(crate) fn record_new_master(&mut self, host: usize) {
        let store = &mut self.data.process_states[host];
        let config = replica_config(&self.data.settings, store);
        store.replica_driver.set_config(config);
    }

    pub(super) fn publish_role(&mut self, host: usize) {
        let store = &mut self.data.process_states[host];
        let Some(message) = store.unpublished_change.take() else { return };
        let replica = store.upstream().is_some();
        store.set_node_flag(
            NodeFlags::READ_ONLY_REPLICA,
            replica && !self.data.settings.are_replicas_writable,
        );
        store.set_node_flag(NodeFlags::REPLICA, replica);
        self.trace_data(host, |store| format!("is published as a replica of {:?}", store.upstream()));
        self.send_message(host, message);
        if replica {
            let history = &mut self.data.process_states[host].history_number;
            *history = (*history | 1) + 1;
            self.drop_waiting_clients(host);
        } else {
            self.drop_imports(host);
            self.continue_emptying_slots(host);
        }
        self.perform_next_role_change(host);
    }
}

fn replica_config(settings: &DataSettings, process_state: &ProcessState) -> replica::ReplicaConfig {
    replica::ReplicaConfig {
        listening_port: 6379,
        announce_ip: None,
        node_id: process_state.node_id(),
        user: None,
        password: None,
        timeout: Duration::from_secs(4),
        requests_takeover: false,
        dual_channel: settings.dual_channel,
        buffer_limit: settings.replica_buffer_limit,
    }
}
