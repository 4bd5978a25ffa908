//! Tests of a master and a replica in virtual time, over an unreliable link with one or two connections.
//!
//! The data is a list of numbers, and each write appends a number. However the link fails, the replica ends with the
//! master's list, and it takes a snapshot only when it must.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use proptest::prelude::*;
use resp::{Args, Batch, ParseLimits, Parser};

use crate::master::{self, OutputLimit, PeerId};
use crate::master_driver::{self, MasterDriverAction, MasterDriverEvent, PsyncAnswer, SnapshotPosition};
use crate::psync::{PeerProfile, PsyncRequest, ReplconfAction};
use crate::replica::{self, RdbChannelAction, RdbChannelEvent};
use crate::{CursorId, Log, MasterDriver, ReplId, Replica};

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

/// Index of the main connection.
const MAIN_CHANNEL: usize = 0;
const RDB_CHANNEL: usize = 1;

/// The master and its simulated process, which accepts one connection of each kind at a time.
struct MasterSide {
    driver: MasterDriver,
    log: Log,
    dataset: Vec<u64>,
    served_replicas: [Option<ServedReplica>; 2],
    connection_count: u64,
    full_syncs: u32,
    partial_syncs: u32,
    /// Delay of the second half of a snapshot in milliseconds.
    snapshot_rest_delay: u64,
}

struct ServedReplica {
    peer: PeerId,
    profile: PeerProfile,
    parser: Parser,
    input: Vec<u8>,
    stream_cursor: Option<CursorId>,
    /// The snapshot for the connected replica; `None` until it is taken.
    snapshot: Option<Vec<u8>>,
    /// The second half of the snapshot, and the time at which it must be sent.
    unsent_snapshot: Option<(Instant, Vec<u8>)>,
    output: Vec<u8>,
}

const END_MARK: &[u8; 40] = b"mark5678901234567890mark5678901234567890";

impl MasterSide {
    fn new(backlog_size: u64, dual_channel: bool) -> Self {
        let config = master::MasterConfig {
            ping_period: Duration::from_secs(3),
            timeout: Duration::from_secs(20),
            is_diskless: true,
            diskless_delay: Duration::from_millis(200),
            diskless_max_replicas: 0,
            dual_channel,
            backlog_ttl: Duration::from_secs(3600),
            max_lag: Duration::from_secs(10),
            output_limit: OutputLimit { hard_bytes: 1 << 20, soft_bytes: 0, soft_duration: Duration::ZERO },
            backlog_size: 0,
        };
        Self {
            driver: MasterDriver::new(config, Instant::ORIGIN),
            log: Log::new(id(0), backlog_size),
            dataset: Vec::new(),
            served_replicas: [None, None],
            connection_count: 0,
            full_syncs: 0,
            partial_syncs: 0,
            snapshot_rest_delay: 30,
        }
    }

    fn write(&mut self, number: u64) {
        self.dataset.push(number);
        let mut wire = Vec::new();
        resp::encode_request(&mut wire, [&b"PUSH"[..], number.to_string().as_bytes()]);
        self.log.append(0, &wire);
    }

    fn accept(&mut self, channel: usize) {
        self.connection_count += 1;
        self.served_replicas[channel] = Some(ServedReplica {
            peer: PeerId(self.connection_count),
            profile: PeerProfile::default(),
            parser: Parser::new(),
            input: Vec::new(),
            stream_cursor: None,
            snapshot: None,
            unsent_snapshot: None,
            output: Vec::new(),
        });
    }

    fn served_replica(&mut self, peer: PeerId) -> &mut ServedReplica {
        let mut all = self.served_replicas.iter_mut().flatten();
        all.find(|served_replica| served_replica.peer == peer).expect("it is still there")
    }

    fn disconnect(&mut self, now: Instant, channel: usize) {
        if let Some(gone) = self.served_replicas[channel].take() {
            self.handle_event(now, MasterDriverEvent::Closed(gone.peer));
        }
    }

    fn receive(&mut self, now: Instant, channel: usize, bytes: &[u8]) {
        let Some(served_replica) = &mut self.served_replicas[channel] else { return };
        served_replica.input.extend_from_slice(bytes);
        let mut batch = Batch::default();
        let mut input = std::mem::take(&mut served_replica.input);
        let parsed = served_replica.parser.parse(&mut input, &mut batch, &ParseLimits::default());
        assert_eq!(parsed.error, None);
        for index in 0..batch.len() {
            self.handle_request(now, channel, batch.args(index, &input));
        }
        if let Some(served_replica) = &mut self.served_replicas[channel] {
            served_replica.input = input.split_off(parsed.consumed_bytes);
        }
    }

    fn handle_request(&mut self, now: Instant, channel: usize, args: Args<'_>) {
        let Some(served_replica) = &mut self.served_replicas[channel] else { return };
        let peer = served_replica.peer;
        match &args[0] {
            b"PING" => served_replica.output.extend_from_slice(b"+PONG\r\n"),
            b"REPLCONF" => match served_replica.profile.apply_replconf(args).unwrap() {
                ReplconfAction::Ack(offset) => {
                    self.handle_event(
                        now,
                        MasterDriverEvent::Acknowledged { peer, offset, synced_offset: None },
                    );
                }
                ReplconfAction::UseSnapshotConnection(rdb) => {
                    let answer = match self.driver.link_channels(&mut served_replica.profile, rdb) {
                        Ok(()) => "+OK\r\n".to_owned(),
                        Err(error) => format!("-{error}\r\n"),
                    };
                    served_replica.output.extend_from_slice(answer.as_bytes());
                }
                _ => served_replica.output.extend_from_slice(b"+OK\r\n"),
            },
            b"SYNC" => {
                let profile = served_replica.profile.clone();
                self.handle_event(now, MasterDriverEvent::PsyncReceived { peer, profile, request: None });
            }
            b"PSYNC" => {
                let request = PsyncRequest::parse(args).unwrap();
                let profile = served_replica.profile.clone();
                if self.driver.needs_rdb_channel(&mut self.log, &request, &profile).is_some() {
                    return served_replica.output.extend_from_slice(b"+DUALCHANNELSYNC\r\n");
                }
                self.handle_event(
                    now,
                    MasterDriverEvent::PsyncReceived { peer, profile, request: Some(request) },
                );
            }
            other => panic!("{other:?}"),
        }
    }

    fn handle_event(&mut self, now: Instant, event: MasterDriverEvent) {
        let mut out = Vec::new();
        self.driver.handle(now, event, &mut self.log, &mut out);
        for order in out {
            self.perform_action(now, order);
        }
    }

    fn perform_action(&mut self, now: Instant, action: MasterDriverAction) {
        match action {
            MasterDriverAction::CountPsyncAnswer(_, PsyncAnswer::Partial { .. }) => self.partial_syncs += 1,
            MasterDriverAction::CountPsyncAnswer(_, PsyncAnswer::Full(_)) => self.full_syncs += 1,
            MasterDriverAction::TakeSnapshot { transfer, peers, .. } => {
                self.log.open(id(1));
                let cut = SnapshotPosition::record(&mut self.log, transfer, &peers, None);
                let mut snapshot = format!("$EOF:{}\r\n", String::from_utf8_lossy(END_MARK)).into_bytes();
                for number in &self.dataset {
                    snapshot.extend_from_slice(format!("{number} ").as_bytes());
                }
                snapshot.extend_from_slice(END_MARK);
                for peer in peers {
                    self.served_replica(peer).snapshot = Some(snapshot.clone());
                }
                self.handle_event(now, MasterDriverEvent::SnapshotTaken(cut));
            }
            MasterDriverAction::Send(peer, bytes) => {
                self.served_replica(peer).output.extend_from_slice(&bytes);
            }
            MasterDriverAction::SendContinue { peer, id } => {
                self.served_replica(peer).output.extend(master_driver::continue_line(id, ""));
            }
            MasterDriverAction::SendSnapshot(peer) => self.send_snapshot(now, peer),
            MasterDriverAction::SendFile { .. } => panic!("all read snapshots with an end mark"),
            MasterDriverAction::SendStream(peer, cursor) => {
                self.served_replica(peer).stream_cursor = Some(cursor);
            }
            MasterDriverAction::AppendToLog(bytes) => drop(self.log.append_control(bytes)),
            MasterDriverAction::Close(peer, _) => {
                let is = |served_replica: &Option<ServedReplica>| {
                    served_replica.as_ref().is_some_and(|served_replica| served_replica.peer == peer)
                };
                // The replica may disconnect once it has received its snapshot.
                if let Some(channel) = self.served_replicas.iter().position(is) {
                    self.served_replicas[channel] = None;
                }
            }
            MasterDriverAction::CloseLog => self.log.close(),
            MasterDriverAction::CancelSnapshot(_) => {}
        }
    }

    /// Sends half of the snapshot now and schedules the rest.
    fn send_snapshot(&mut self, now: Instant, peer: PeerId) {
        let second_half = Duration::from_millis(self.snapshot_rest_delay);
        let served_replica = self.served_replica(peer);
        let mut snapshot = served_replica.snapshot.take().unwrap();
        let rest = snapshot.split_off(snapshot.len() / 2);
        served_replica.output.extend_from_slice(&snapshot);
        served_replica.unsent_snapshot = Some((now + second_half, rest));
    }

    /// Sends the rest of a snapshot if it is due. Returns the replica that received it.
    fn send_due_snapshot_rest(&mut self, now: Instant, channel: usize) -> Option<PeerId> {
        let served_replica = self.served_replicas[channel].as_mut()?;
        let (_, rest) = served_replica.unsent_snapshot.take_if(|(at, _)| *at <= now)?;
        served_replica.output.extend_from_slice(&rest);
        Some(served_replica.peer)
    }

    /// Removes and returns the bytes to send over this connection now.
    fn take_output(&mut self, channel: usize) -> Vec<u8> {
        let Some(served_replica) = &mut self.served_replicas[channel] else { return Vec::new() };
        if let Some(cursor) = served_replica.stream_cursor {
            self.log.read(cursor, 1000, &mut served_replica.output).unwrap();
        }
        std::mem::take(&mut served_replica.output)
    }
}

/// The replica and its simulated process.
struct ReplicaSide {
    link_state_machine: Replica,
    dataset: Vec<u64>,
    snapshot: Vec<u8>,
    stream: Vec<u8>,
    output: [Vec<u8>; 2],
    is_connected: [bool; 2],
    wants_connection: [bool; 2],
}

impl ReplicaSide {
    fn new(dual_channel: bool) -> Self {
        let config = replica::ReplicaConfig {
            listening_port: 1,
            announce_ip: None,
            node_id: None,
            user: None,
            password: None,
            timeout: Duration::from_secs(20),
            requests_takeover: false,
            dual_channel,
            buffer_limit: 0,
        };
        Self {
            link_state_machine: Replica::new(config, None, Instant::ORIGIN),
            dataset: Vec::new(),
            snapshot: Vec::new(),
            stream: Vec::new(),
            output: Default::default(),
            is_connected: [false; 2],
            wants_connection: [false; 2],
        }
    }

    fn handle_event(&mut self, now: Instant, event: replica::ReplicaEvent) {
        use replica::ReplicaAction;
        let mut out = Vec::new();
        self.link_state_machine.handle(now, event, &mut out);
        for action in out {
            match action {
                ReplicaAction::Connect | ReplicaAction::RdbChannel(RdbChannelAction::Connect) => {
                    self.wants_connection
                        [if action == ReplicaAction::Connect { MAIN_CHANNEL } else { RDB_CHANNEL }] = true;
                }
                ReplicaAction::Close(_) => self.is_connected = [false; 2],
                ReplicaAction::RdbChannel(RdbChannelAction::Close) => self.is_connected[RDB_CHANNEL] = false,
                ReplicaAction::Send(bytes) => self.output[MAIN_CHANNEL].extend_from_slice(&bytes),
                ReplicaAction::RdbChannel(RdbChannelAction::Send(bytes)) => {
                    self.output[RDB_CHANNEL].extend_from_slice(&bytes);
                }
                ReplicaAction::BeginTransfer { .. } => self.snapshot.clear(),
                ReplicaAction::SnapshotBytes(bytes) => self.snapshot.extend_from_slice(&bytes),
                ReplicaAction::LoadSnapshot { .. } => {
                    let text = String::from_utf8(std::mem::take(&mut self.snapshot)).unwrap();
                    self.dataset = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
                    self.stream.clear();
                    self.handle_event(now, replica::ReplicaEvent::Loaded);
                }
                ReplicaAction::Resume { .. } | ReplicaAction::LinkUp => {}
                ReplicaAction::StreamBytes(bytes) => self.apply(now, &bytes),
            }
        }
    }

    fn apply(&mut self, now: Instant, bytes: &[u8]) {
        self.stream.extend_from_slice(bytes);
        let mut batch = Batch::default();
        let mut stream = std::mem::take(&mut self.stream);
        let parsed = Parser::new().parse(&mut stream, &mut batch, &ParseLimits::default());
        assert_eq!(parsed.error, None);
        for index in 0..batch.len() {
            let args = batch.args(index, &stream);
            if &args[0] == b"PUSH" {
                self.dataset.push(resp::parse_i64(&args[1]).unwrap() as u64);
            }
        }
        self.stream = stream.split_off(parsed.consumed_bytes);
        self.handle_event(now, replica::ReplicaEvent::Applied { bytes: parsed.consumed_bytes as u64 });
    }

    fn disconnect(&mut self, now: Instant, channel: usize) {
        self.output[channel].clear();
        if channel == MAIN_CHANNEL {
            // Drop an incomplete command; the master will send it again.
            self.stream.clear();
        }
        if std::mem::take(&mut self.is_connected[channel]) {
            self.handle_event(now, closed_event(channel));
        }
    }
}

fn connected_event(channel: usize) -> replica::ReplicaEvent {
    if channel == MAIN_CHANNEL {
        replica::ReplicaEvent::Connected
    } else {
        replica::ReplicaEvent::RdbChannel(RdbChannelEvent::Connected)
    }
}

fn received_event(channel: usize, bytes: Vec<u8>) -> replica::ReplicaEvent {
    if channel == MAIN_CHANNEL {
        replica::ReplicaEvent::Received(bytes)
    } else {
        replica::ReplicaEvent::RdbChannel(RdbChannelEvent::Received(bytes))
    }
}

fn closed_event(channel: usize) -> replica::ReplicaEvent {
    if channel == MAIN_CHANNEL {
        replica::ReplicaEvent::Closed
    } else {
        replica::ReplicaEvent::RdbChannel(RdbChannelEvent::Closed)
    }
}

struct ReplicationPair {
    master: MasterSide,
    replica: ReplicaSide,
    now: u64,
    /// Whether the master's simulated process is running.
    is_master_up: bool,
    to_replica: [VecDeque<(u64, Vec<u8>)>; 2],
    to_master: [VecDeque<(u64, Vec<u8>)>; 2],
}

const LATENCY_MILLIS: u64 = 2;

impl ReplicationPair {
    fn new(backlog_size: u64) -> Self {
        Self::with_config(backlog_size, false)
    }

    fn with_config(backlog_size: u64, dual_channel: bool) -> Self {
        Self {
            master: MasterSide::new(backlog_size, dual_channel),
            replica: ReplicaSide::new(dual_channel),
            now: 0,
            is_master_up: true,
            to_replica: Default::default(),
            to_master: Default::default(),
        }
    }

    fn break_link(&mut self) {
        self.break_channel(MAIN_CHANNEL);
        self.break_channel(RDB_CHANNEL);
    }

    fn break_channel(&mut self, channel: usize) {
        let now = Instant::from_millis(self.now);
        self.to_replica[channel].clear();
        self.to_master[channel].clear();
        self.replica.disconnect(now, channel);
        self.master.disconnect(now, channel);
    }

    /// Advances the virtual time by one millisecond.
    fn advance(&mut self) {
        self.now += 1;
        let now = Instant::from_millis(self.now);
        if self.master.driver.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.master.handle_event(now, MasterDriverEvent::Deadline);
        }
        if self.replica.link_state_machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.replica.handle_event(now, replica::ReplicaEvent::Deadline);
        }
        for channel in [MAIN_CHANNEL, RDB_CHANNEL] {
            self.advance_channel(now, channel);
        }
    }

    fn advance_channel(&mut self, now: Instant, channel: usize) {
        if std::mem::take(&mut self.replica.wants_connection[channel]) {
            if self.is_master_up {
                self.break_channel(channel);
                self.master.accept(channel);
                self.replica.is_connected[channel] = true;
                self.replica.handle_event(now, connected_event(channel));
            } else if channel == MAIN_CHANNEL {
                self.replica.handle_event(now, replica::ReplicaEvent::ConnectFailed { is_refused: true });
            } else {
                self.replica.handle_event(now, closed_event(RDB_CHANNEL));
            }
        }
        while self.to_master[channel].front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, bytes) = self.to_master[channel].pop_front().unwrap();
            self.master.receive(now, channel, &bytes);
        }
        while self.to_replica[channel].front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, bytes) = self.to_replica[channel].pop_front().unwrap();
            self.replica.handle_event(now, received_event(channel, bytes));
        }
        let out = std::mem::take(&mut self.replica.output[channel]);
        if !out.is_empty() {
            self.to_master[channel].push_back((self.now + LATENCY_MILLIS, out));
        }
        let sent = self.master.send_due_snapshot_rest(now, channel);
        let out = self.master.take_output(channel);
        // Split the bytes, so that lines and commands arrive in two chunks.
        let (first, second) = out.split_at(out.len() / 3);
        for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
            self.to_replica[channel].push_back((self.now + LATENCY_MILLIS, piece.to_vec()));
        }
        if let Some(peer) = sent {
            self.master.handle_event(now, MasterDriverEvent::SnapshotSent(peer));
        }
        // Bytes sent before a side closed the connection still arrive.
        let arrived = self.to_replica[channel].is_empty() && self.to_master[channel].is_empty();
        if arrived && self.replica.is_connected[channel] != self.master.served_replicas[channel].is_some() {
            self.break_channel(channel);
        }
    }

    fn run_for(&mut self, millis: u64) {
        for _ in 0..millis {
            self.advance();
        }
    }

    /// Waits until the replica has acknowledged everything, including a PING in flight, and compares the two lists.
    fn assert_converged(&mut self) {
        for _ in 0..2000 {
            if self.master.driver.master().acknowledged_offsets() == [self.master.log.position().offset] {
                break;
            }
            self.advance();
        }
        assert_eq!(self.replica.dataset, self.master.dataset);
        let acknowledged = self.master.driver.master().acknowledged_offsets();
        assert_eq!(acknowledged, [self.master.log.position().offset], "everything is acknowledged");
        let position = Some(self.master.log.position());
        assert_eq!(self.replica.link_state_machine.position(), position);
    }
}

#[test]
fn replica_synchronises_streams_and_continues_after_a_broken_link() {
    let mut pair = ReplicationPair::new(10_000);
    pair.master.write(1);
    pair.run_for(1000);
    pair.master.write(2);
    pair.run_for(2000);
    pair.assert_converged();
    assert_eq!((pair.master.full_syncs, pair.master.partial_syncs), (1, 0));
    pair.break_link();
    pair.master.write(3);
    pair.run_for(1500);
    pair.assert_converged();
    assert_eq!((pair.master.full_syncs, pair.master.partial_syncs), (1, 1));
}

#[test]
fn replica_that_lags_beyond_the_backlog_is_resynchronised_by_a_snapshot() {
    let mut pair = ReplicationPair::new(1000);
    pair.run_for(1000);
    pair.is_master_up = false;
    pair.break_link();
    for number in 0..8000 {
        pair.master.write(number);
    }
    pair.run_for(5000);
    pair.is_master_up = true;
    pair.run_for(3000);
    pair.assert_converged();
    assert_eq!((pair.master.full_syncs, pair.master.partial_syncs), (2, 0));
}

#[test]
fn changed_replication_id_needs_no_snapshot() {
    let mut pair = ReplicationPair::new(10_000);
    pair.run_for(1000);
    pair.master.write(1);
    pair.run_for(10);
    pair.is_master_up = false;
    pair.break_link();
    // The same stream continues under a new id, as after a promotion.
    pair.master.log.change_id(id(9));
    pair.master.write(2);
    pair.is_master_up = true;
    pair.run_for(2000);
    pair.assert_converged();
    assert_eq!(pair.replica.link_state_machine.position().unwrap().id, id(9));
    assert_eq!((pair.master.full_syncs, pair.master.partial_syncs), (1, 1));
}

#[test]
fn both_sides_detect_a_silent_link() {
    let mut pair = ReplicationPair::new(10_000);
    pair.run_for(1000);
    // All packets are lost for 30 seconds, and neither side is notified.
    for _ in 0..30_000 {
        pair.advance();
        pair.to_master[MAIN_CHANNEL].clear();
        pair.to_replica[MAIN_CHANNEL].clear();
    }
    pair.break_link();
    pair.master.write(5);
    pair.run_for(4000);
    pair.assert_converged();
}

#[test]
fn dual_channel_stream_arrives_during_the_snapshot() {
    let mut pair = ReplicationPair::with_config(100, true);
    for number in 0..200 {
        pair.master.write(number);
    }
    pair.run_for(235);
    assert!(pair.master.served_replicas.iter().all(Option::is_some));
    assert_eq!(pair.master.driver.master().peers().len(), 2);
    for number in 200..400 {
        pair.master.write(number);
    }
    pair.run_for(10);
    assert!(pair.replica.link_state_machine.buffered_bytes() > 1000, "it waits here");
    let cursor = pair.master.served_replicas[MAIN_CHANNEL].as_ref().unwrap().stream_cursor.unwrap();
    assert_eq!(pair.master.log.unread_bytes(cursor), Ok(0), "and not there");
    pair.run_for(2000);
    pair.assert_converged();
    assert_eq!((pair.master.full_syncs, pair.master.partial_syncs), (1, 1));
}

/// Regression test: a small snapshot over a slow network failed for ever, because the master forgot the replica when
/// the replica closed its RDB channel before its main channel had requested the stream.
#[test]
fn snapshot_completed_before_the_main_channel_psync_is_used() {
    for second_half in 0..8 {
        let mut pair = ReplicationPair::with_config(100, true);
        pair.master.snapshot_rest_delay = second_half;
        pair.master.write(1);
        pair.run_for(500);
        pair.master.write(2);
        pair.assert_converged();
        assert_eq!((pair.master.full_syncs, pair.master.partial_syncs), (1, 1), "{second_half}");
    }
}

#[test]
fn losing_either_channel_at_any_moment_is_recovered() {
    for channel in [MAIN_CHANNEL, RDB_CHANNEL] {
        for moment in 0..280 {
            let mut pair = ReplicationPair::with_config(1000, true);
            pair.master.write(1);
            pair.run_for(moment);
            pair.master.write(2);
            pair.break_channel(channel);
            pair.run_for(3000);
            pair.assert_converged();
            assert!(pair.master.full_syncs <= 2, "cut at {moment}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The link fails at random during random writes. In the end the replica has every number once and in order.
    #[test]
    fn data_converges_over_an_unreliable_link(
        steps in prop::collection::vec((0u8..10, 1u64..400), 1..60),
        backlog in 0u64..3000,
        dual_channel: bool,
    ) {
        let mut pair = ReplicationPair::with_config(backlog, dual_channel);
        let (mut number, mut names) = (0, 100);
        for (step, millis) in steps {
            match step {
                0 => pair.break_link(),
                1 => {
                    pair.is_master_up = !pair.is_master_up;
                    if !pair.is_master_up {
                        pair.break_link();
                    }
                }
                2 => {
                    names += 1;
                    pair.break_link();
                    pair.master.log.change_id(id(names));
                }
                3 => pair.break_channel(RDB_CHANNEL),
                _ => for _ in 0..millis / 10 {
                    number += 1;
                    pair.master.write(number);
                },
            }
            pair.run_for(millis);
        }
        pair.is_master_up = true;
        pair.run_for(5000);
        pair.assert_converged();
    }
}
