//! Simulates the master's side of replication: the replication thread, which carries out the actions of the driver
//! ([`replication::MasterDriver`]), and the connections of replicas.

use std::fmt::Debug;

use gossip::ReplicaAdmission;
use migration::ControlCommand;
use replication::master::{PeerId, TransferId};
use replication::master_driver::{self, MasterDriverAction, MasterDriverEvent, SnapshotPosition};
use replication::replica;
use replication::{CursorId, PeerProfile, PsyncRequest, ReplconfAction, StreamEpoch};
use resp::{Args, Batch, ParseLimits, Parser};

use super::link::StreamItem;
use super::store::ProcessState;
use super::{DataChange, DataEvent, LOCK_RETRY_INTERVAL};
use crate::InjectedBug;
use crate::delivery_queue::DeliveryPoll;
use crate::simulation::Simulation;

/// The end marker of every snapshot.
const SNAPSHOT_EOF_MARK: &str = "mark5678901234567890mark5678901234567890";

/// Messages to the replication thread.
pub(super) enum ReplicationMessage {
    Follow(StreamEpoch),
    Unfollow,
    /// An event for the master's driver.
    MasterEvent(MasterDriverEvent),
}

/// The master's side of a replica's connection.
pub(super) struct ReplicaConnection {
    link: u64,
    pub(super) host: usize,
    /// The replica's incarnation when it connected.
    incarnation: u64,
    profile: PeerProfile,
    input: Vec<u8>,
    /// The position in the log from which the stream is sent; `None` before the stream starts.
    stream_cursor: Option<CursorId>,
    /// Whether an event that checks for new log data is scheduled.
    is_log_check_scheduled: bool,
    /// The snapshot to send to this replica, once it is written.
    unsent_snapshot: Option<Vec<u8>>,
}

impl ReplicaConnection {
    pub(super) fn new(link_id: u64, host: usize, incarnation: u64) -> Self {
        let (profile, input) = (PeerProfile::default(), Vec::new());
        Self {
            link: link_id,
            host,
            incarnation,
            profile,
            input,
            stream_cursor: None,
            is_log_check_scheduled: false,
            unsent_snapshot: None,
        }
    }
}

impl<E: Debug> Simulation<E> {
    /// Queues a message for the replication thread.
    pub(super) fn send_message(&mut self, host: usize, message: ReplicationMessage) {
        let at = self.now + self.random.random_millis(0, 1);
        if let Some(due) = self.data.process_states[host].inbox.push(at, message) {
            let at = self.process_id(host);
            self.schedule_data(due, DataEvent::NextMessage { process_id: at });
        }
    }

    /// Processes queued messages. The replication thread also applies the stream, so no message is processed while a
    /// segment is being applied.
    pub(super) fn process_messages(&mut self, host: usize) {
        loop {
            let store = &mut self.data.process_states[host];
            let blocked_for = store.applying_segment.is_some().then_some(LOCK_RETRY_INTERVAL);
            match store.inbox.next(self.now, blocked_for) {
                DeliveryPoll::Empty => return,
                DeliveryPoll::RetryAt(at) => {
                    let process = self.process_id(host);
                    return self.schedule_data(at, DataEvent::NextMessage { process_id: process });
                }
                DeliveryPoll::Item(message) => self.on_message(host, message),
            }
        }
    }

    fn on_message(&mut self, host: usize, message: ReplicationMessage) {
        match message {
            ReplicationMessage::Follow(stream) => {
                self.handle_master_event(host, MasterDriverEvent::Demoted);
                self.follow(host, stream);
            }
            ReplicationMessage::Unfollow => {
                if !self.has_injected_bug(InjectedBug::StreamAfterPromotion) {
                    self.stop_following(host);
                }
                self.handle_master_event(host, MasterDriverEvent::Promoted);
            }
            ReplicationMessage::MasterEvent(MasterDriverEvent::Acknowledged {
                peer,
                mut offset,
                synced_offset: synced,
            }) => {
                if self.has_injected_bug(InjectedBug::EarlyAcknowledgement) {
                    offset = self.data.process_states[host].offset();
                }
                self.handle_master_event(
                    host,
                    MasterDriverEvent::Acknowledged { peer, offset, synced_offset: synced },
                );
                if let Some(replica) = self.running_replica(host, peer) {
                    self.check_invariants(host, DataChange::AcknowledgedByReplica { replica, offset });
                }
            }
            ReplicationMessage::MasterEvent(input) => self.handle_master_event(host, input),
        }
        self.release_copy_waiters(host);
    }

    /// Returns the replica's host if the process that opened the connection still runs.
    fn running_replica(&self, host: usize, peer: PeerId) -> Option<usize> {
        let peer = self.data.process_states[host].peers.get(&peer)?;
        (self.processes[peer.host].incarnation == peer.incarnation).then_some(peer.host)
    }

    /// Handles bytes received from a replica.
    pub(super) fn handle_replica_bytes(&mut self, host: usize, id: PeerId, bytes: &[u8]) {
        let Some(peer) = self.data.process_states[host].peers.get_mut(&id) else { return };
        peer.input.extend_from_slice(bytes);
        let mut input = std::mem::take(&mut peer.input);
        // A replica that loads a snapshot sends newlines as keepalives. They are not part of a command.
        let signs = input.iter().take_while(|byte| **byte == b'\n').count();
        input.drain(..signs);
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut input, &mut batch, &ParseLimits::default());
        assert_eq!(parsed.error, None, "a replica makes sense");
        for index in 0..batch.len() {
            self.handle_replica_command(host, id, batch.args(index, &input));
        }
        if let Some(peer) = self.data.process_states[host].peers.get_mut(&id) {
            peer.input = input.split_off(parsed.consumed_bytes);
        }
    }

    fn handle_replica_command(&mut self, host: usize, id: PeerId, args: Args<'_>) {
        let serves = self.can_serve(host, id, &args);
        let hands_over = PsyncRequest::parse(args).is_ok_and(|request| request.is_failover);
        let ProcessState { master_driver: serving, peers, .. } = &mut self.data.process_states[host];
        let Some(peer) = peers.get_mut(&id) else { return };
        match &args[0] {
            b"REPLCONF" => match peer.profile.apply_replconf(args) {
                Ok(ReplconfAction::Ack(offset)) => {
                    let acknowledged = MasterDriverEvent::Acknowledged {
                        peer: id,
                        offset,
                        synced_offset: peer.profile.fsynced_offset,
                    };
                    self.send_message(host, ReplicationMessage::MasterEvent(acknowledged));
                }
                Ok(ReplconfAction::UseSnapshotConnection(rdb)) => {
                    let answer = match serving.link_channels(&mut peer.profile, rdb) {
                        Ok(()) => "+OK\r\n".to_owned(),
                        Err(error) => format!("-{error}\r\n"),
                    };
                    self.send_line(host, id, answer);
                }
                _ => self.send_line(host, id, "+OK\r\n".to_owned()),
            },
            b"PSYNC" | b"SYNC" if !serves && !hands_over => {
                let error = "-NOMASTERLINK Can't SYNC while not connected with my master\r\n";
                self.send_line(host, id, error.to_owned());
            }
            b"PSYNC" => {
                let request = PsyncRequest::parse(args).expect("a replica asks for a number");
                if request.is_failover
                    && let Err(error) = self.take_over(host, &request)
                {
                    return self.send_line(host, id, format!("-{error}\r\n"));
                }
                let ProcessState { master_driver: serving, log, peers, .. } =
                    &mut self.data.process_states[host];
                let Some(peer) = peers.get(&id) else { return };
                if serving.needs_rdb_channel(log, &request, &peer.profile).is_some() {
                    return self.send_line(host, id, "+DUALCHANNELSYNC\r\n".to_owned());
                }
                let profile = peer.profile.clone();
                let asked = MasterDriverEvent::PsyncReceived { peer: id, profile, request: Some(request) };
                self.send_message(host, ReplicationMessage::MasterEvent(asked));
            }
            b"SYNC" => {
                let profile = peer.profile.clone();
                let asked = MasterDriverEvent::PsyncReceived { peer: id, profile, request: None };
                self.send_message(host, ReplicationMessage::MasterEvent(asked));
            }
            _ => self.send_line(host, id, "+PONG\r\n".to_owned()),
        }
    }

    /// Returns whether this master may serve the replica, given the arguments of its PSYNC.
    fn can_serve(&self, host: usize, id: PeerId, args: &Args<'_>) -> bool {
        let store = &self.data.process_states[host];
        // A replica that has just received a snapshot from this process has no data of its own.
        let fetched = store.peers.get(&id).is_some_and(|peer| peer.profile.snapshot_connection.is_some());
        let has_data = || !fetched && PsyncRequest::parse(*args).is_ok_and(|request| request.has_data());
        let may = match store.replica_admission {
            ReplicaAdmission::All => true,
            ReplicaAdmission::OnlyEmpty => !has_data(),
            ReplicaAdmission::None => false,
        };
        may && store.replica_driver.is_in_sync()
    }

    fn send_line(&mut self, host: usize, id: PeerId, line: String) {
        self.send(host, id, line.into_bytes());
    }

    fn send(&mut self, host: usize, id: PeerId, bytes: Vec<u8>) {
        if let Some(peer) = self.data.process_states[host].peers.get(&id) {
            self.enqueue(peer.link, 0, StreamItem::Bytes(bytes));
        }
    }

    fn handle_master_event(&mut self, host: usize, input: MasterDriverEvent) {
        let now = self.clock_of(host);
        let ProcessState { master_driver: serving, log, .. } = &mut self.data.process_states[host];
        let mut orders = Vec::new();
        serving.handle(now, input, log, &mut orders);
        self.perform_all_master_actions(host, orders);
    }

    fn perform_all_master_actions(&mut self, host: usize, actions: Vec<MasterDriverAction>) {
        for order in actions {
            self.perform_master_action(host, order);
        }
    }

    fn perform_master_action(&mut self, host: usize, action: MasterDriverAction) {
        match action {
            MasterDriverAction::CountPsyncAnswer(peer, answer) => {
                self.trace_data(host, |_| format!("is asked by {peer:?} and gives {answer:?}"));
            }
            MasterDriverAction::TakeSnapshot { transfer, peers, uses_end_mark: eof, .. } => {
                let at = self.process_id(host);
                self.schedule_data_within(
                    3000,
                    DataEvent::TakeSnapshot { process_id: at, transfer, peers, uses_eof_mark: eof },
                );
            }
            // No replica needs the snapshot any more, so there is nothing to cancel.
            MasterDriverAction::CancelSnapshot(_) => {}
            MasterDriverAction::Send(peer, bytes) => self.send(host, peer, bytes),
            MasterDriverAction::SendContinue { peer, id } => {
                let states = self.data.process_states[host].slot_states();
                self.send(host, peer, master_driver::continue_line(id, &states));
            }
            MasterDriverAction::SendSnapshot(peer) => {
                let waiting = self.data.process_states[host].peers.get_mut(&peer);
                if let Some(snapshot) = waiting.and_then(|peer| peer.unsent_snapshot.take()) {
                    self.send(host, peer, snapshot);
                    self.send_message(
                        host,
                        ReplicationMessage::MasterEvent(MasterDriverEvent::SnapshotSent(peer)),
                    );
                }
            }
            MasterDriverAction::SendFile { peers, .. } => {
                let Some(snapshot) = self.data.process_states[host].snapshot_file.take() else { return };
                for peer in peers {
                    self.send(host, peer, snapshot.clone());
                    self.send_message(
                        host,
                        ReplicationMessage::MasterEvent(MasterDriverEvent::SnapshotSent(peer)),
                    );
                }
            }
            MasterDriverAction::SendStream(peer, cursor) => {
                if let Some(peer) = self.data.process_states[host].peers.get_mut(&peer) {
                    peer.stream_cursor = Some(cursor);
                    self.wake_replica_connections(host);
                }
            }
            MasterDriverAction::AppendToLog(bytes) => {
                self.data.process_states[host].log.append_control(bytes);
                self.wake_replica_connections(host);
            }
            MasterDriverAction::Close(peer, reason) => {
                self.trace_data(host, |_| format!("closes the link of {peer:?}: {reason}"));
                if let Some(peer) = self.data.process_states[host].peers.remove(&peer) {
                    self.close_side(peer.link, 1);
                }
            }
            MasterDriverAction::CloseLog => {
                let store = &mut self.data.process_states[host];
                // With an append-only file, the log stays open, because the file still reads from it.
                if store.data_file.is_none() {
                    store.log.close();
                }
            }
        }
    }

    /// Takes a snapshot and records its log offset. If a slot is locked, retries later.
    pub(super) fn take_snapshot(
        &mut self,
        host: usize,
        transfer: TransferId,
        peers: Vec<PeerId>,
        uses_eof_mark: bool,
    ) {
        if !self.data.process_states[host].can_snapshot() {
            let at = self.process_id(host);
            return self.schedule_data(
                self.now + LOCK_RETRY_INTERVAL,
                DataEvent::TakeSnapshot { process_id: at, transfer, peers, uses_eof_mark },
            );
        }
        let fresh = self.new_history();
        let store = &mut self.data.process_states[host];
        store.log.open(fresh);
        // Only a replica records the database that its master has selected, which is always 0 in the simulation.
        let db = store.upstream().map(|_| 0);
        let cut = SnapshotPosition::record(&mut store.log, transfer, &peers, db);
        let data = store.data_store.rdb_snapshot(store.log.position(), &store.slot_states());
        store.imports.repeat_running_imports_in_log(&mut store.log);
        let (head, tail) = if uses_eof_mark {
            (format!("$EOF:{SNAPSHOT_EOF_MARK}\r\n"), SNAPSHOT_EOF_MARK)
        } else {
            (format!("${}\r\n", data.len()), "")
        };
        let snapshot = [head.as_bytes(), &data, tail.as_bytes()].concat();
        if uses_eof_mark {
            for peer in peers {
                if let Some(peer) = store.peers.get_mut(&peer) {
                    peer.unsent_snapshot = Some(snapshot.clone());
                }
            }
        } else {
            store.snapshot_file = Some(snapshot);
            let at = self.process_id(host);
            self.schedule_data_within(100_000, DataEvent::SnapshotWritten { process_id: at, transfer });
        }
        self.check_invariants(host, DataChange::ConsistentState);
        self.send_message(host, ReplicationMessage::MasterEvent(MasterDriverEvent::SnapshotTaken(cut)));
    }

    /// Handles the end of writing a snapshot file.
    pub(super) fn on_snapshot_written(&mut self, host: usize, transfer: TransferId) {
        self.send_message(
            host,
            ReplicationMessage::MasterEvent(MasterDriverEvent::SnapshotWritten(transfer)),
        );
    }

    /// Returns whether the replica process that last connected still runs.
    pub(crate) fn is_replica_alive(&self, host: usize, replica: usize) -> bool {
        let mut peers = self.data.process_states[host].peers.values().filter(|peer| peer.host == replica);
        peers.next_back().is_some_and(|peer| self.is_incarnation(replica, peer.incarnation))
    }

    /// Requests acknowledgements from the replicas (REPLCONF GETACK).
    pub(crate) fn request_acknowledgements(&mut self, host: usize) {
        self.data.process_states[host].log.append_control(&ControlCommand::AckRequested.to_resp());
        self.wake_replica_connections(host);
    }

    /// Wakes the connections of all replicas that had reached the end of the log.
    pub(super) fn wake_replica_connections(&mut self, host: usize) {
        self.check_invariants(host, DataChange::ConsistentState);
        let at = self.process_id(host);
        let mut woken = Vec::new();
        for (id, peer) in &mut self.data.process_states[host].peers {
            if peer.stream_cursor.is_some() && !std::mem::replace(&mut peer.is_log_check_scheduled, true) {
                woken.push(*id);
            }
        }
        for peer in woken {
            self.schedule_data_within(1000, DataEvent::LogGrown { process_id: at, peer });
        }
        self.schedule_file_work(host);
    }

    /// Sends new log data to a replica.
    pub(super) fn send_log(&mut self, host: usize, id: PeerId) {
        let most = self.data.settings.max_chunk;
        let store = &mut self.data.process_states[host];
        let Some(peer) = store.peers.get_mut(&id) else { return };
        peer.is_log_check_scheduled = false;
        let Some(cursor) = peer.stream_cursor else { return };
        let mut bytes = Vec::new();
        if store.log.read(cursor, most, &mut bytes).is_err() {
            let link = peer.link;
            self.close_side(link, 1);
            return self.drop_peer(host, id);
        }
        let more = store.log.unread_bytes(cursor).is_ok_and(|pending| pending > 0);
        peer.is_log_check_scheduled = more;
        let link = peer.link;
        if !bytes.is_empty() {
            self.enqueue(link, 0, StreamItem::Bytes(bytes));
        }
        if more {
            let at = self.process_id(host);
            self.schedule_data_within(200, DataEvent::LogGrown { process_id: at, peer: id });
        }
    }

    /// Forgets a replica whose connection has ended.
    pub(super) fn drop_peer(&mut self, host: usize, id: PeerId) {
        self.data.process_states[host].peers.remove(&id);
        self.send_message(host, ReplicationMessage::MasterEvent(MasterDriverEvent::Closed(id)));
    }

    /// Calls the replication state machines whose deadline has passed, unless their thread is busy.
    pub(super) fn run_due_data_timers(&mut self, host: usize) {
        let now = self.clock_of(host);
        self.data.process_states[host].next_tick_at = None;
        if self.data.process_states[host].applying_segment.is_some() {
            return;
        }
        if self.data.process_states[host].master_driver.next_deadline().is_some_and(|due| due <= now) {
            self.handle_master_event(host, MasterDriverEvent::Deadline);
        }
        if self.data.process_states[host].next_pending_check_at().is_some_and(|due| due <= now) {
            let ProcessState { master_driver: serving, log, .. } = &mut self.data.process_states[host];
            let mut orders = Vec::new();
            // The number of writers is small, so write admission is not simulated.
            serving.check_pending(now, log, &mut orders);
            self.perform_all_master_actions(host, orders);
        }
        if self.follower_deadline(host).is_some_and(|due| due <= now) {
            self.handle_replica_event(host, replica::ReplicaEvent::Deadline);
        }
    }

    /// Schedules the next deadline of the replication state machines, unless an earlier one is scheduled.
    pub(super) fn schedule_data_tick(&mut self, host: usize) {
        if !self.processes[host].is_up {
            return;
        }
        let (now, skew) = (self.now, self.processes[host].clock_offset);
        let follower = self.follower_deadline(host);
        let store = &mut self.data.process_states[host];
        let wanted = [store.master_driver.next_deadline(), store.next_pending_check_at(), follower];
        let Some(due) = wanted.into_iter().flatten().min() else { return };
        let due =
            if store.applying_segment.is_some() { now + LOCK_RETRY_INTERVAL } else { (due - skew).max(now) };
        if store.next_tick_at.is_none_or(|at| due < at || at < now) {
            store.next_tick_at = Some(due);
            let at = self.process_id(host);
            self.schedule_data(due, DataEvent::Tick { process_id: at });
        }
    }
}
