//! Simulates the servers that sentinels monitor: requests with their side effects, and replication.

use std::time::Duration;

use engine::NodeFlags;
use gossip::ReplicaAdmission;
use replication::{EmptyMaster, RecordedReplicas};
use resp::Protocol;
use slot_routing::{ReplOffset, Slot, SlotSet};

use super::SentinelWorld;
use super::server::{PORT, RequestEffect, ServerReplication, Upstream};
use super::stream::ToClient;
use crate::InjectedBug;
use crate::data::{KeyGroup, RoleChange};

/// The value of `empty-master-timeout`, which is longer than any TILT.
const EMPTY_MASTER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of key groups to which clients write.
const WRITTEN_KEY_GROUPS: KeyGroup = 6;

/// Returns the slots that clients write to.
pub(super) fn written_slots() -> SlotSet {
    (0..WRITTEN_KEY_GROUPS).filter_map(Slot::new).collect()
}

impl SentinelWorld {
    pub(super) fn serve_server(&mut self, host: usize, conn: u64, request: &[Vec<u8>]) {
        let Some(stream) = self.streams.get_mut(&conn) else { return };
        let exec = request.first().is_some_and(|word| word.eq_ignore_ascii_case(b"EXEC"));
        if let Some(queued) = stream.multi.as_mut().filter(|_| !exec) {
            queued.push(request.to_vec());
            self.push_to_client(conn, ToClient::Bytes(b"+QUEUED\r\n".to_vec()));
            return;
        }
        let queued = stream.multi.take().unwrap_or_default();
        if exec {
            let mut reply = format!("*{}\r\n", queued.len()).into_bytes();
            for request in queued {
                reply.extend(self.execute(host, conn, &request));
            }
            self.push_to_client(conn, ToClient::Bytes(reply));
        } else {
            let reply = self.execute(host, conn, request);
            self.push_to_client(conn, ToClient::Bytes(reply));
        }
    }

    fn execute(&mut self, host: usize, conn: u64, request: &[Vec<u8>]) -> Vec<u8> {
        self.record_takeovers();
        let replication = self.server_replication(host);
        let (mut reply, effect) = self.server(host).answer(request, &replication);
        match effect {
            RequestEffect::None | RequestEffect::Exec => {}
            RequestEffect::Multi => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.multi = Some(Vec::new());
                }
            }
            RequestEffect::Subscribe => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.subscribed = true;
                }
            }
            RequestEffect::Publish(payload) => self.publish(host, &payload),
            RequestEffect::CloseConnections { subscribed } => {
                let conns =
                    self.find_connections(|stream| stream.server == host && stream.subscribed == subscribed);
                for other in conns.into_iter().filter(|&other| other != conn) {
                    self.push_to_client(other, ToClient::Closed);
                }
            }
            // With this injected bug, the server replies OK but does not follow the new master.
            RequestEffect::Follow(Some(_))
                if self.simulation.plan.injected_bug == Some(InjectedBug::IgnoredOrders) => {}
            RequestEffect::Follow(upstream) => {
                self.simulation.trace(|| format!("server {host} follows {upstream:?}"));
                self.follow(host, upstream);
            }
            RequestEffect::HandOver(word) => {
                if let Err(refusal) = self.begin_handover(host, word) {
                    reply = format!("-{refusal}\r\n").into_bytes();
                }
            }
        }
        reply
    }

    /// Makes a server follow a master.
    pub(super) fn follow(&mut self, host: usize, upstream: Upstream) {
        let master = upstream.as_ref().map(|(ip, _)| self.find_host(ip));
        self.server(host).upstream = upstream;
        self.end_wait(host);
        match master {
            None => {
                self.server(host).replica_recorder.on_promoted();
                self.simulation.queue_role_change(host, RoleChange::BecomeMaster);
            }
            Some(Some(master)) => {
                self.simulation
                    .queue_role_change(host, RoleChange::BecomeReplica { master, has_foreign_data: false });
            }
            // No host has this address, so the server stays without a link.
            Some(None) => {}
        }
    }

    fn publish(&mut self, host: usize, payload: &[u8]) {
        let mut message = Vec::new();
        let mut writer = resp::Writer::new(&mut message, Protocol::Resp2);
        writer.array(3);
        writer.bulk(b"message");
        writer.bulk(sentinel::HELLO_CHANNEL.as_bytes());
        writer.bulk(payload);
        for conn in self.find_connections(|stream| stream.server == host && stream.subscribed) {
            self.push_to_client(conn, ToClient::Bytes(message.clone()));
        }
    }

    fn server_replication(&self, host: usize) -> ServerReplication {
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        let store = &self.simulation.data.process_states[host];
        let replicas = store.replicas().map(|(replica, offset)| (self.ips[replica].clone(), offset.0));
        ServerReplication {
            offset: store.failover_offset().0,
            down_secs: store.link_down_since().map(|since| now.since(since).as_secs()),
            replicas: replicas.collect(),
        }
    }

    /// Makes a master that starts without its data wait for a replica to be promoted.
    pub(super) fn wait_if_empty(&mut self, host: usize) {
        let now = self.simulation.now;
        let store = &self.simulation.data.process_states[host];
        let has_data = store.offset() > ReplOffset(0);
        let planted = self.simulation.plan.injected_bug == Some(InjectedBug::EmptyMasterServes);
        let server = self.server(host);
        let Some(followers) = server.followers.clone() else { return };
        if server.upstream.is_some() || has_data || planted {
            return;
        }
        server.empty_master = Some(EmptyMaster::new(followers, now, EMPTY_MASTER_TIMEOUT));
        let store = &mut self.simulation.data.process_states[host];
        store.replica_admission = ReplicaAdmission::None;
        store.set_node_flag(NodeFlags::EMPTY_MASTER, true);
        self.simulation.trace(|| format!("server {host} has lost its data and waits"));
    }

    fn end_wait(&mut self, host: usize) {
        if self.server(host).empty_master.take().is_some() {
            self.simulation.trace(|| format!("server {host} waits no longer"));
            let store = &mut self.simulation.data.process_states[host];
            store.replica_admission = ReplicaAdmission::All;
            store.set_node_flag(NodeFlags::EMPTY_MASTER, false);
        }
    }

    /// Records each server's replicas, and checks how long empty masters wait.
    fn record_followers(&mut self) {
        for host in self
            .hosts_of(false)
            .into_iter()
            .filter(|&host| self.simulation.is_running(host))
            .collect::<Vec<_>>()
        {
            self.record_followers_of(host);
        }
    }

    pub(super) fn record_followers_of(&mut self, host: usize) {
        let now = self.simulation.now;
        let followers = self.simulation.data.process_states[host].connected_replicas();
        let replicas: Vec<_> = followers.map(|replica| (self.ips[replica].clone(), PORT)).collect();
        let history = self.simulation.data.process_states[host].history();
        let server = self.server(host);
        match &server.empty_master {
            Some(empty) if empty.has_timed_out(now) => {
                // The sentinels considered the master down until the end, and by their rules no replica could be
                // promoted.
                let forgiven = empty.is_down_to_sentinels();
                self.end_wait(host);
                for replica in self.hosts_of(false).into_iter().filter(|_| forgiven) {
                    self.simulation.remove_replica(replica, Some(host));
                }
            }
            Some(_) => {}
            None => {
                let leads = server.upstream.is_none();
                let kept = server.replica_recorder.update_recorded_replicas(
                    now,
                    leads.then_some(replicas),
                    EMPTY_MASTER_TIMEOUT,
                );
                if let Some(replicas) = kept.map(<[_]>::to_vec) {
                    let own = server.replica_recorder.own_address().cloned();
                    server.followers = Some(RecordedReplicas { history, own_address: own, replicas });
                }
            }
        }
    }

    /// Issues client writes.
    pub(super) fn replicate(&mut self) {
        self.record_takeovers();
        self.record_followers();
        if self.simulation.are_clients_writing() {
            self.simulation.start_client_writes(0..WRITTEN_KEY_GROUPS, 50_000);
        }
        self.simulation.run_maintenance();
        while let Some(host) = self.simulation.take_finished_shutdown() {
            self.stop(host);
        }
    }
}
