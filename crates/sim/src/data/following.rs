//! Simulates the replica's side of replication: the task that carries out the actions of the driver
//! ([`replication::ReplicaDriver`]), and the applier of the master's stream.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;

use engine::{CommandOrigin, NodeFlags, Session};
use migration::{ControlCommand, SyncSlotsCommand};
use replication::replica::{RdbChannelAction, RdbChannelEvent, ReplicaAction, ReplicaEvent};
use replication::replica_driver::{self, ReplicaDriverAction};
use replication::{IncomingStream, ReplPosition, StreamEpoch, master_driver};
use resp::Args;

use super::data_store::slot_of_command;
use super::link::StreamItem;
use super::serving::ReplicationMessage;
use super::store::ProcessState;
use super::{DataChange, DataEvent, KeyGroup, LOCK_RETRY_INTERVAL};
use crate::simulation::Simulation;
use crate::{InjectedBug, InvariantName};

/// The task that follows one master.
pub(super) struct Follower {
    master: usize,
    stream: StreamEpoch,
    link: Option<u64>,
    /// The second connection, which transfers the snapshot with dual-channel replication.
    rdb_link: Option<u64>,
    /// The snapshot bytes received so far.
    received_snapshot: Vec<u8>,
    /// Stream bytes that have been received but not applied yet.
    incoming: IncomingStream,
    /// The session that executes the stream's commands.
    session: Session,
}

/// An event of a connection to a master.
pub(super) enum LinkEvent {
    Connected,
    Refused,
    Bytes(Vec<u8>),
    Closed,
}

/// Complete commands of the stream that are applied together.
pub(super) struct StreamSegment {
    stream: StreamEpoch,
    batch: replication::StreamBatch,
    commands: VecDeque<StreamCommand>,
    is_ack_requested: bool,
}

enum StreamCommand {
    /// A command for the engine, with the slot of its keys if it has any.
    Run(Vec<u8>, Option<KeyGroup>),
    /// An input for the `gossip` state machine.
    GossipInput(gossip::ClusterInput),
    /// A change of the state of an import.
    Import(Box<SyncSlotsCommand>),
}

/// A snapshot being loaded.
pub(super) struct SnapshotLoad {
    stream: StreamEpoch,
    pub(super) position: ReplPosition,
    snapshot: Vec<u8>,
}

impl<E: Debug> Simulation<E> {
    /// Returns whether the replica does not read from this connection, because it is still applying earlier data.
    pub(super) fn is_follower_busy(&self, host: usize, link_id: u64) -> bool {
        let store = &self.data.process_states[host];
        let Some(Follower { stream, link: main, .. }) = &store.follower else {
            return store.applying_segment.is_some();
        };
        let reads = match *main == Some(link_id) {
            true => store.replica_driver.should_read(*stream),
            false => store.replica_driver.should_read_rdb_channel(*stream),
        };
        store.applying_segment.is_some() || !reads && store.replica_driver.stream() == Some(*stream)
    }

    /// Starts to follow the master of `stream`.
    pub(super) fn follow(&mut self, host: usize, stream_epoch: StreamEpoch) {
        self.stop_following(host);
        let store = &mut self.data.process_states[host];
        let Some(master) = store.upstream().filter(|_| store.replica_driver.stream() == Some(stream_epoch))
        else {
            return;
        };
        let (link, rdb, snapshot, incoming) = (None, None, Vec::new(), IncomingStream::default());
        let session = stream_session();
        store.follower = Some(Follower {
            master,
            stream: stream_epoch,
            link,
            rdb_link: rdb,
            received_snapshot: snapshot,
            incoming,
            session,
        });
        let under_way = store.running_commands();
        let at = self.process_id(host);
        self.schedule_data_within(
            500,
            DataEvent::StartFollowing { process_id: at, stream: stream_epoch, running_commands: under_way },
        );
    }

    pub(super) fn stop_following(&mut self, host: usize) {
        let follower = self.data.process_states[host].follower.take();
        let links = follower.into_iter().flat_map(|follower| [follower.link, follower.rdb_link]);
        links.flatten().for_each(|link| self.close_side(link, 0));
    }

    /// Chooses the start position in the stream. Retries later if an earlier snapshot is still loading or writes are
    /// still running.
    pub(super) fn start_following(
        &mut self,
        host: usize,
        stream_epoch: StreamEpoch,
        running_commands: BTreeSet<u64>,
    ) {
        let store = &mut self.data.process_states[host];
        if store.follower.as_ref().is_none_or(|follower| follower.stream != stream_epoch) {
            return;
        }
        let drained = store.have_commands_ended(&running_commands)
            || self.plan.injected_bug == Some(InjectedBug::SkippedDrain);
        if store.snapshot_load.is_some() || !drained {
            let at = self.process_id(host);
            return self.schedule_data(
                self.now + LOCK_RETRY_INTERVAL,
                DataEvent::StartFollowing { process_id: at, stream: stream_epoch, running_commands },
            );
        }
        store.engine().unblock_all_waiters();
        self.handle_driver_event(host, replica_driver::ReplicaDriverEvent::WritesDrained);
        self.trace_data(host, |store| format!("follows from {:?}", store.position()));
    }

    /// Passes a connection event to the replica's state machine and carries out the resulting actions.
    pub(super) fn handle_link_event(&mut self, host: usize, link_id: u64, event: LinkEvent) {
        let Some(follower) = self.data.process_states[host].follower.as_ref() else { return };
        if !self.processes[host].is_up {
            return;
        }
        if follower.link == Some(link_id) {
            let input = match event {
                LinkEvent::Bytes(bytes) if self.ignores_promotion(host) => {
                    return self.receive_segment(host, bytes);
                }
                LinkEvent::Connected => ReplicaEvent::Connected,
                LinkEvent::Bytes(bytes) => ReplicaEvent::Received(bytes),
                LinkEvent::Refused => ReplicaEvent::ConnectFailed { is_refused: true },
                LinkEvent::Closed => ReplicaEvent::Closed,
            };
            self.handle_replica_event(host, input);
        } else if follower.rdb_link == Some(link_id) {
            let input = match event {
                LinkEvent::Connected => RdbChannelEvent::Connected,
                LinkEvent::Bytes(bytes) => RdbChannelEvent::Received(bytes),
                LinkEvent::Refused | LinkEvent::Closed => RdbChannelEvent::Closed,
            };
            self.handle_replica_event(host, ReplicaEvent::RdbChannel(input));
        }
    }

    pub(super) fn follower_deadline(&self, host: usize) -> Option<clock::Instant> {
        let store = &self.data.process_states[host];
        store.replica_driver.next_deadline(store.follower.as_ref()?.stream)
    }

    /// Returns whether an injected bug makes this promoted node apply the rest of its old master's stream.
    fn ignores_promotion(&self, host: usize) -> bool {
        self.has_injected_bug(InjectedBug::StreamAfterPromotion)
            && self.data.process_states[host].upstream().is_none()
    }

    pub(super) fn handle_replica_event(&mut self, host: usize, input: ReplicaEvent) {
        let Some(follower) = &mut self.data.process_states[host].follower else { return };
        if matches!(input, ReplicaEvent::Closed | ReplicaEvent::ConnectFailed { .. }) {
            follower.link = None;
        }
        if input == ReplicaEvent::RdbChannel(RdbChannelEvent::Closed) {
            follower.rdb_link = None;
        }
        self.handle_driver_event(host, replica_driver::ReplicaDriverEvent::LinkEvent(input));
    }

    fn handle_driver_event(&mut self, host: usize, input: replica_driver::ReplicaDriverEvent) {
        let now = self.clock_of(host);
        let synced = self.data.process_states[host].disk_progress().end_offset();
        let ProcessState { replica_driver: following, follower, log, .. } =
            &mut self.data.process_states[host];
        let Some(follower) = follower else { return };
        let mut orders = Vec::new();
        following.set_fsynced_offset(synced);
        following.handle(now, follower.stream, input, log, &mut orders);
        for order in orders {
            match order {
                ReplicaDriverAction::StreamSuperseded if self.ignores_promotion(host) => {}
                ReplicaDriverAction::StreamSuperseded => self.stop_following(host),
                ReplicaDriverAction::HistoryReplaced => self.send_message(
                    host,
                    ReplicationMessage::MasterEvent(master_driver::MasterDriverEvent::HistoryReplaced),
                ),
                ReplicaDriverAction::LinkAction(action) => self.perform_replica_action(host, action),
            }
        }
    }

    fn perform_replica_action(&mut self, host: usize, action: ReplicaAction) {
        let Some(follower) = &mut self.data.process_states[host].follower else { return };
        match action {
            ReplicaAction::Connect => {
                follower.incoming.discard_partial();
                if self.plan.injected_bug != Some(InjectedBug::ResumedTransactions) {
                    follower.session = stream_session();
                }
                let master = follower.master;
                let link = self.dial(host, master);
                if let Some(follower) = &mut self.data.process_states[host].follower {
                    follower.link = Some(link);
                }
            }
            ReplicaAction::Close(reason) => {
                let links = [follower.link.take(), follower.rdb_link.take()];
                self.trace_data(host, |_| format!("leaves its master: {reason}"));
                links.into_iter().flatten().for_each(|link| self.close_side(link, 0));
            }
            ReplicaAction::Send(bytes) => {
                if let Some(link) = follower.link {
                    self.enqueue(link, 1, StreamItem::Bytes(bytes));
                }
            }
            ReplicaAction::BeginTransfer { .. } => follower.received_snapshot.clear(),
            ReplicaAction::SnapshotBytes(bytes) => follower.received_snapshot.extend(bytes),
            ReplicaAction::LoadSnapshot { position } => self.load_snapshot(host, position),
            ReplicaAction::Resume { slot_states, .. } => {
                if let Some(states) = slot_states {
                    let moves = gossip::parse_slot_states(&states);
                    self.data.process_states[host]
                        .slot_changes
                        .add_received(gossip::ClusterInput::SlotMarksLoaded(moves));
                }
                self.trace_data(host, |store| format!("goes on at {:?}", store.position()));
            }
            ReplicaAction::LinkUp => {}
            ReplicaAction::RdbChannel(RdbChannelAction::Connect) => {
                let master = follower.master;
                let link = self.dial(host, master);
                if let Some(follower) = &mut self.data.process_states[host].follower {
                    follower.rdb_link = Some(link);
                }
            }
            ReplicaAction::RdbChannel(RdbChannelAction::Send(bytes)) => {
                if let Some(link) = follower.rdb_link {
                    self.enqueue(link, 1, StreamItem::Bytes(bytes));
                }
            }
            ReplicaAction::RdbChannel(RdbChannelAction::Close) => {
                let link = follower.rdb_link.take();
                link.into_iter().for_each(|link| self.close_side(link, 0));
            }
            ReplicaAction::StreamBytes(bytes) => {
                self.receive_segment(host, bytes);
            }
        }
    }

    /// Starts to load a complete snapshot on a separate thread, which continues even if the connection closes.
    fn load_snapshot(&mut self, host: usize, position: ReplPosition) {
        let store = &mut self.data.process_states[host];
        let Some(follower) = &mut store.follower else { return };
        let (stream, snapshot) = (follower.stream, std::mem::take(&mut follower.received_snapshot));
        // Sometimes the snapshot is found to be invalid before any data is dropped.
        if self.new_history().as_str().starts_with('f') {
            self.trace_data(host, |store| {
                format!("rejects {position:?} and stands at {:?}", store.position())
            });
            return self.handle_replica_event(host, ReplicaEvent::LoadRejected);
        }
        let store = &mut self.data.process_states[host];
        store.snapshot_load = Some(SnapshotLoad { stream, position, snapshot });
        store.log.close();
        store.set_node_flag(NodeFlags::LOADING, true);
        store.data_store.clear();
        self.check_invariants(host, DataChange::DataReplaced);
        let at = self.process_id(host);
        self.schedule_data_within(20_000, DataEvent::SnapshotLoaded { process_id: at });
    }

    /// Finishes loading a snapshot. Loading sometimes fails at random, which leaves the process without data.
    pub(super) fn on_snapshot_loaded(&mut self, host: usize) {
        let own = self.new_history();
        let failed = own.as_str().starts_with('0');
        let store = &mut self.data.process_states[host];
        let Some(SnapshotLoad { stream, position, snapshot }) = store.snapshot_load.take() else { return };
        if !failed {
            let loaded = store.data_store.load_snapshot(&snapshot);
            store.imports.end_all_imports(&store.data_store.engine());
            let moves = gossip::parse_slot_states(&loaded.slot_states);
            store.slot_changes.add_received(gossip::ClusterInput::SlotMarksLoaded(moves));
            store.log.adopt_loaded_history(position, own);
        }
        store.set_node_flag(NodeFlags::LOADING, false);
        let awaited = store.follower.as_ref().is_some_and(|follower| follower.stream == stream);
        let outcome = if failed { "could not load" } else { "has loaded" };
        self.trace_data(host, |store| format!("{outcome} {position:?} and stands at {:?}", store.position()));
        self.check_invariants(host, DataChange::DataReplaced);
        self.check_invariants(host, DataChange::ConsistentState);
        self.notify_file_of_log(host);
        if awaited {
            self.handle_replica_event(
                host,
                if failed { ReplicaEvent::LoadFailed } else { ReplicaEvent::Loaded },
            );
        }
    }

    /// Begins to apply the complete commands received so far. Until they are applied, the stream is locked. If the
    /// stream is no longer accepted, closes its link instead.
    fn receive_segment(&mut self, host: usize, bytes: Vec<u8>) {
        let endless = self.has_injected_bug(InjectedBug::StreamAfterPromotion);
        let store = &mut self.data.process_states[host];
        let me = store.node_id();
        let Some(follower) = store.follower.as_mut().filter(|_| store.applying_segment.is_none()) else {
            return;
        };
        let came = follower.incoming.add_bytes(bytes);
        assert_eq!(came.error, None, "a master's stream makes sense");
        if came.bytes.is_empty() {
            return self.handle_replica_event(host, ReplicaEvent::Applied { bytes: 0 });
        }
        if !endless && !store.log.authority().accepts_stream(follower.stream) {
            return self.close_upstream_link(host);
        }
        let (mut commands, mut ack_wanted) = (VecDeque::new(), false);
        for index in 0..came.batch.len() {
            let args = came.batch.args(index, &came.bytes);
            let command = ControlCommand::decode(args).expect("a master's stream makes sense");
            match command {
                Some(ControlCommand::AckRequested) => ack_wanted = true,
                Some(ControlCommand::SyncSlots(command)) => {
                    commands.push_back(StreamCommand::Import(Box::new(command)));
                }
                Some(ControlCommand::TakeOver(replica)) => commands.extend(
                    (me == Some(replica))
                        .then_some(StreamCommand::GossipInput(gossip::ClusterInput::MasterShutdown)),
                ),
                Some(ControlCommand::SetSlot(slot, change)) => {
                    commands.push_back(StreamCommand::GossipInput(gossip::ClusterInput::SlotChanged {
                        slot,
                        change,
                    }));
                }
                None => commands.push_back(StreamCommand::Run(encode_request(args), slot_of_command(args))),
            }
        }
        let stream = follower.stream;
        store.applying_segment =
            Some(StreamSegment { stream, batch: came, commands, is_ack_requested: ack_wanted });
        let at = self.process_id(host);
        self.schedule_data_within(
            self.data.settings.max_apply_micros,
            DataEvent::ApplyCommands { process_id: at },
        );
    }

    /// Breaks a link within a transaction. This happens too rarely by chance, so it is forced when the bug
    /// `ResumedTransactions` is injected.
    pub(super) fn break_link_within_transaction(&mut self, host: usize) {
        let store = &self.data.process_states[host];
        let within = store.follower.as_ref().is_some_and(|follower| follower.session.in_transaction());
        if within
            && store.applying_segment.is_none()
            && self.has_injected_bug(InjectedBug::ResumedTransactions)
        {
            self.close_upstream_link(host);
        }
    }

    /// Ends the master's stream and closes its link.
    fn close_upstream_link(&mut self, host: usize) {
        let link = self.data.process_states[host].follower.as_mut().and_then(|follower| follower.link.take());
        link.into_iter().for_each(|link| self.close_side(link, 0));
        self.handle_replica_event(host, ReplicaEvent::Closed);
    }

    /// Executes some commands of the segment, each while its slot is locked. After the last command, the bytes of the
    /// segment enter the log.
    pub(super) fn apply_command_batch(&mut self, host: usize) {
        let (at, wall) = (self.process_id(host), self.wall_clock_of(host));
        for _ in 0..=self.random.random_below(3) {
            let store = &mut self.data.process_states[host];
            let Some(piece) = &store.applying_segment else { return };
            let Some(command) = piece.commands.front() else { break };
            if let StreamCommand::Run(_, Some(key)) = command
                && store.is_locked(*key)
            {
                return self.schedule_data(
                    self.now + LOCK_RETRY_INTERVAL,
                    DataEvent::ApplyCommands { process_id: at },
                );
            }
            let Some(piece) = &mut store.applying_segment else { return };
            match piece.commands.pop_front() {
                Some(StreamCommand::Run(request, _)) => {
                    let Some(follower) = &mut store.follower else { return };
                    if let Err(error) = store.data_store.apply_command(&mut follower.session, wall, request) {
                        self.record_violation(
                            InvariantName::SameData,
                            &format!("host {host} cannot do what its master did: {error}"),
                        );
                    }
                }
                Some(StreamCommand::Import(command)) => {
                    store.imports.apply_command(&store.data_store.engine(), &command);
                }
                Some(StreamCommand::GossipInput(input)) => store.slot_changes.add_received(input),
                None => {}
            }
            self.check_invariants(host, DataChange::CommandApplied);
        }
        let store = &mut self.data.process_states[host];
        if store.applying_segment.as_ref().is_some_and(|piece| !piece.commands.is_empty()) {
            return self.schedule_data_within(
                self.data.settings.max_apply_micros,
                DataEvent::ApplyCommands { process_id: at },
            );
        }
        self.log_segment(host);
        self.check_invariants(host, DataChange::ConsistentState);
        self.perform_next_role_change(host);
    }

    /// Appends the bytes of the segment to the log and reports them as applied.
    fn log_segment(&mut self, host: usize) {
        let endless = self.has_injected_bug(InjectedBug::StreamAfterPromotion);
        let store = &mut self.data.process_states[host];
        let Some(StreamSegment { stream, batch: came, is_ack_requested: ack_wanted, .. }) =
            store.applying_segment.take()
        else {
            return;
        };
        let ProcessState { follower, log, .. } = store;
        let Some(follower) = follower else { return };
        let append = |bytes: &[u8]| {
            let taken = log.append_stream(stream, bytes);
            assert!(taken || endless, "what was applied in the stream's turn is logged in it");
        };
        let in_transaction = follower.session.in_transaction();
        let bytes = follower.incoming.append_executed(&came, in_transaction, append);
        self.wake_replica_connections(host);
        self.handle_replica_event(host, ReplicaEvent::Applied { bytes });
        if ack_wanted {
            self.handle_replica_event(host, ReplicaEvent::AckRequested);
        }
    }
}

/// Creates the session that executes a master's stream.
fn stream_session() -> Session {
    Session::new(0, CommandOrigin::Master, true)
}

fn encode_request(args: Args<'_>) -> Vec<u8> {
    let mut request = Vec::new();
    resp::encode_request(&mut request, args.iter());
    request
}
