//! A master and a replica, joined by a link that breaks, over virtual time; with a second one for snapshots, or
//! without.
//!
//! The data is a list of numbers; an effect appends one. Whatever happens to the link, the replica ends
//! with the master's list; it takes a snapshot only where it must.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use proptest::prelude::*;
use resp::{Args, Batch, Limits, Parser};

use crate::master::{self, OutputLimit, PeerId};
use crate::psync::{Profile, PsyncRequest, Replconf};
use crate::replica::{self, ChannelAction, ChannelInput};
use crate::{CursorId, Log, Master, Position, ReplId, Replica};

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

/// The two connections.
const MAIN: usize = 0;
const RDB: usize = 1;

/// The master's side with its shell: one connection of each kind at a time.
struct MasterSide {
    machine: Master,
    log: Log,
    data: Vec<u64>,
    connection: [Option<Served>; 2],
    connections: u64,
    full: u32,
    partial: u32,
}

struct Served {
    peer: PeerId,
    profile: Profile,
    parser: Parser,
    input: Vec<u8>,
    cursor: Option<CursorId>,
    streaming: bool,
    /// The snapshot for it, once cut.
    snapshot: Option<Vec<u8>>,
    /// The end of it, which takes a while, and when it goes.
    rest: Option<(Instant, Vec<u8>)>,
    output: Vec<u8>,
}

const MARK: &[u8; 40] = b"mark5678901234567890mark5678901234567890";

impl MasterSide {
    fn new(backlog: u64, dual_channel: bool) -> Self {
        let config = master::Config {
            ping_period: Duration::from_secs(3),
            timeout: Duration::from_secs(20),
            diskless: true,
            diskless_delay: Duration::from_millis(200),
            diskless_max_replicas: 0,
            dual_channel,
            backlog_ttl: Duration::from_secs(3600),
            max_lag: Duration::from_secs(10),
            output_limit: OutputLimit { hard: 1 << 20, soft: 0, soft_for: Duration::ZERO },
            backlog: 0,
        };
        Self {
            machine: Master::new(config, true, Instant::ORIGIN),
            log: Log::new(id(0), backlog),
            data: Vec::new(),
            connection: [None, None],
            connections: 0,
            full: 0,
            partial: 0,
        }
    }

    fn write(&mut self, number: u64) {
        self.data.push(number);
        let mut wire = Vec::new();
        resp::encode_request(&mut wire, [&b"PUSH"[..], number.to_string().as_bytes()]);
        self.log.append(0, &wire);
    }

    fn accept(&mut self, channel: usize) {
        self.connections += 1;
        self.connection[channel] = Some(Served {
            peer: PeerId(self.connections),
            profile: Profile::default(),
            parser: Parser::new(),
            input: Vec::new(),
            cursor: None,
            streaming: false,
            snapshot: None,
            rest: None,
            output: Vec::new(),
        });
    }

    fn served(&mut self, peer: PeerId) -> &mut Served {
        let mut all = self.connection.iter_mut().flatten();
        all.find(|served| served.peer == peer).expect("it is still there")
    }

    fn disconnect(&mut self, now: Instant, channel: usize) {
        if let Some(gone) = self.connection[channel].take() {
            if let Some(cursor) = gone.cursor {
                self.log.remove_cursor(cursor);
            }
            self.give(now, master::Input::Closed { peer: gone.peer });
        }
    }

    fn receive(&mut self, now: Instant, channel: usize, bytes: &[u8]) {
        let Some(served) = &mut self.connection[channel] else { return };
        served.input.extend_from_slice(bytes);
        let mut batch = Batch::default();
        let mut input = std::mem::take(&mut served.input);
        let parsed = served.parser.parse(&mut input, &mut batch, &Limits::default());
        assert_eq!(parsed.error, None);
        for index in 0..batch.len() {
            self.request(now, channel, batch.args(index, &input));
        }
        if let Some(served) = &mut self.connection[channel] {
            served.input = input.split_off(parsed.consumed);
        }
    }

    fn request(&mut self, now: Instant, channel: usize, args: Args<'_>) {
        let Some(served) = &mut self.connection[channel] else { return };
        let peer = served.peer;
        match &args[0] {
            b"PING" => served.output.extend_from_slice(b"+PONG\r\n"),
            b"REPLCONF" => match served.profile.replconf(args).unwrap() {
                Replconf::Ack(offset) => {
                    self.give(now, master::Input::Acknowledged { peer, offset, synced: None });
                }
                Replconf::SnapshotOver(rdb) if !self.machine.awaits_main_channel(rdb) => {
                    served.output.extend_from_slice(b"-ERR Unrecognized RDB client id\r\n");
                }
                asked => {
                    if let Replconf::SnapshotOver(rdb) = asked {
                        served.profile.snapshot_over = Some(rdb);
                    }
                    served.output.extend_from_slice(b"+OK\r\n");
                }
            },
            b"SYNC" => {
                let profile = served.profile.clone();
                self.log.open(id(1));
                self.give(now, master::Input::Joined { peer, profile, resume: None });
            }
            b"PSYNC" => {
                let request = PsyncRequest::parse(args).unwrap();
                let resume = self.log.resume(&request.id, request.first_byte).ok();
                let resume = resume.map(|offset| Position { id: self.log.position().id, offset });
                let profile = served.profile.clone();
                if resume.is_none() && self.machine.sends_apart(&profile) {
                    return served.output.extend_from_slice(b"+DUALCHANNELSYNC\r\n");
                }
                self.log.open(id(1));
                self.give(now, master::Input::Joined { peer, profile, resume });
            }
            other => panic!("{other:?}"),
        }
    }

    fn give(&mut self, now: Instant, input: master::Input) {
        let mut out = Vec::new();
        self.machine.handle(now, input, &mut out);
        for action in out {
            self.act(now, &action);
        }
    }

    fn act(&mut self, now: Instant, action: &master::Action) {
        use master::Action;
        match *action {
            Action::Snapshot { transfer, ref peers, .. } => {
                let position = self.log.position();
                self.log.forget_db();
                let mut snapshot = format!("$EOF:{}\r\n", String::from_utf8_lossy(MARK)).into_bytes();
                for number in &self.data {
                    snapshot.extend_from_slice(format!("{number} ").as_bytes());
                }
                snapshot.extend_from_slice(MARK);
                for peer in peers {
                    self.served(*peer).snapshot = Some(snapshot.clone());
                }
                self.give(now, master::Input::Cut { transfer, position, db: None });
            }
            Action::FullResync { peer, position } => {
                let line = format!("+FULLRESYNC {} {}\r\n", position.id, position.offset);
                self.send_snapshot(now, peer, position, &line);
            }
            Action::EndOffset { peer, position, .. } => {
                let line = format!("$ENDOFF:{} {} -1 {}\r\n", position.offset, position.id, peer.0);
                self.send_snapshot(now, peer, position, &line);
            }
            Action::Release { peer } => {
                let cursor = self.served(peer).cursor.take().unwrap();
                self.log.remove_cursor(cursor);
            }
            Action::Continue { peer, id } => {
                self.partial += 1;
                let line = format!("+CONTINUE {}\r\n", id.unwrap());
                self.served(peer).output.extend_from_slice(line.as_bytes());
            }
            Action::Stream { peer, from } => {
                let cursor = self.served(peer).cursor.unwrap_or_else(|| self.log.add_cursor(from));
                let served = self.served(peer);
                (served.cursor, served.streaming) = (Some(cursor), true);
            }
            Action::ShowLife { peer } => self.served(peer).output.push(b'\n'),
            Action::Ping => drop(self.log.append(0, b"*1\r\n$4\r\nPING\r\n")),
            Action::Close { peer, .. } => {
                let is = |served: &Option<Served>| served.as_ref().is_some_and(|served| served.peer == peer);
                let channel = self.connection.iter().position(is).expect("it is still there");
                self.disconnect(now, channel);
            }
            Action::CloseLog => self.log.close(),
            Action::CancelSnapshot { .. } => {}
        }
    }

    /// One half of it at once, the other one after a while.
    fn send_snapshot(&mut self, now: Instant, peer: PeerId, position: Position, line: &str) {
        self.full += 1;
        let cursor = self.log.add_cursor(position.offset);
        let served = self.served(peer);
        served.cursor = Some(cursor);
        served.output.extend_from_slice(line.as_bytes());
        let mut snapshot = served.snapshot.take().unwrap();
        let rest = snapshot.split_off(snapshot.len() / 2);
        served.output.extend_from_slice(&snapshot);
        served.rest = Some((now + Duration::from_millis(30), rest));
    }

    /// Puts the end of a snapshot onto the wire if it is due, and returns its replica.
    fn send_rest(&mut self, now: Instant, channel: usize) -> Option<PeerId> {
        let served = self.connection[channel].as_mut()?;
        let (_, rest) = served.rest.take_if(|(at, _)| *at <= now)?;
        served.output.extend_from_slice(&rest);
        Some(served.peer)
    }

    /// Takes the bytes that go onto the wire now.
    fn take_output(&mut self, channel: usize) -> Vec<u8> {
        let Some(served) = &mut self.connection[channel] else { return Vec::new() };
        if let (true, Some(cursor)) = (served.streaming, served.cursor) {
            self.log.read(cursor, 1000, &mut served.output).unwrap();
        }
        std::mem::take(&mut served.output)
    }
}

/// The replica's side with its shell.
struct ReplicaSide {
    machine: Replica,
    data: Vec<u64>,
    snapshot: Vec<u8>,
    stream: Vec<u8>,
    output: [Vec<u8>; 2],
    connected: [bool; 2],
    wants_connection: [bool; 2],
}

impl ReplicaSide {
    fn new(dual_channel: bool) -> Self {
        let config = replica::Config {
            listening_port: 1,
            announce_ip: None,
            user: None,
            password: None,
            timeout: Duration::from_secs(20),
            failover: false,
            dual_channel,
            held_limit: 0,
        };
        Self {
            machine: Replica::new(config, None, Instant::ORIGIN),
            data: Vec::new(),
            snapshot: Vec::new(),
            stream: Vec::new(),
            output: Default::default(),
            connected: [false; 2],
            wants_connection: [false; 2],
        }
    }

    fn give(&mut self, now: Instant, input: replica::Input) {
        use replica::Action;
        let mut out = Vec::new();
        self.machine.handle(now, input, &mut out);
        for action in out {
            match action {
                Action::Connect | Action::RdbChannel(ChannelAction::Connect) => {
                    self.wants_connection[if action == Action::Connect { MAIN } else { RDB }] = true;
                }
                Action::Close(_) => self.connected = [false; 2],
                Action::RdbChannel(ChannelAction::Close) => self.connected[RDB] = false,
                Action::Send(bytes) => self.output[MAIN].extend_from_slice(&bytes),
                Action::RdbChannel(ChannelAction::Send(bytes)) => self.output[RDB].extend_from_slice(&bytes),
                Action::BeginTransfer { .. } => self.snapshot.clear(),
                Action::Snapshot(bytes) => self.snapshot.extend_from_slice(&bytes),
                Action::Load { .. } => {
                    let text = String::from_utf8(std::mem::take(&mut self.snapshot)).unwrap();
                    self.data = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
                    self.stream.clear();
                    self.give(now, replica::Input::Loaded);
                }
                Action::Resume { .. } | Action::Up => {}
                Action::Stream(bytes) => self.apply(now, &bytes),
            }
        }
    }

    fn apply(&mut self, now: Instant, bytes: &[u8]) {
        self.stream.extend_from_slice(bytes);
        let mut batch = Batch::default();
        let mut stream = std::mem::take(&mut self.stream);
        let parsed = Parser::new().parse(&mut stream, &mut batch, &Limits::default());
        assert_eq!(parsed.error, None);
        for index in 0..batch.len() {
            let args = batch.args(index, &stream);
            if &args[0] == b"PUSH" {
                self.data.push(resp::parse_i64(&args[1]).unwrap() as u64);
            }
        }
        self.stream = stream.split_off(parsed.consumed);
        self.give(now, replica::Input::Applied { bytes: parsed.consumed as u64 });
    }

    fn disconnect(&mut self, now: Instant, channel: usize) {
        self.output[channel].clear();
        if channel == MAIN {
            // A command that came half is not applied, and will be asked for again.
            self.stream.clear();
        }
        if std::mem::take(&mut self.connected[channel]) {
            self.give(now, closed(channel));
        }
    }
}

fn connected(channel: usize) -> replica::Input {
    if channel == MAIN {
        replica::Input::Connected
    } else {
        replica::Input::RdbChannel(ChannelInput::Connected)
    }
}

fn received(channel: usize, bytes: Vec<u8>) -> replica::Input {
    if channel == MAIN {
        replica::Input::Received(bytes)
    } else {
        replica::Input::RdbChannel(ChannelInput::Received(bytes))
    }
}

fn closed(channel: usize) -> replica::Input {
    if channel == MAIN { replica::Input::Closed } else { replica::Input::RdbChannel(ChannelInput::Closed) }
}

struct Pair {
    master: MasterSide,
    replica: ReplicaSide,
    now: u64,
    /// The master's process is there.
    master_up: bool,
    to_replica: [VecDeque<(u64, Vec<u8>)>; 2],
    to_master: [VecDeque<(u64, Vec<u8>)>; 2],
}

const LATENCY: u64 = 2;

impl Pair {
    fn new(backlog: u64) -> Self {
        Self::of(backlog, false)
    }

    fn of(backlog: u64, dual_channel: bool) -> Self {
        Self {
            master: MasterSide::new(backlog, dual_channel),
            replica: ReplicaSide::new(dual_channel),
            now: 0,
            master_up: true,
            to_replica: Default::default(),
            to_master: Default::default(),
        }
    }

    fn cut_link(&mut self) {
        self.cut_channel(MAIN);
        self.cut_channel(RDB);
    }

    fn cut_channel(&mut self, channel: usize) {
        let now = Instant::from_millis(self.now);
        self.to_replica[channel].clear();
        self.to_master[channel].clear();
        self.replica.disconnect(now, channel);
        self.master.disconnect(now, channel);
    }

    /// One millisecond.
    fn tick(&mut self) {
        self.now += 1;
        let now = Instant::from_millis(self.now);
        if self.master.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.master.give(now, master::Input::Deadline);
        }
        if self.replica.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.replica.give(now, replica::Input::Deadline);
        }
        for channel in [MAIN, RDB] {
            self.tick_channel(now, channel);
        }
    }

    fn tick_channel(&mut self, now: Instant, channel: usize) {
        if std::mem::take(&mut self.replica.wants_connection[channel]) {
            if self.master_up {
                self.cut_channel(channel);
                self.master.accept(channel);
                self.replica.connected[channel] = true;
                self.replica.give(now, connected(channel));
            } else if channel == MAIN {
                self.replica.give(now, replica::Input::ConnectFailed { refused: true });
            } else {
                self.replica.give(now, closed(RDB));
            }
        }
        while self.to_master[channel].front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, bytes) = self.to_master[channel].pop_front().unwrap();
            self.master.receive(now, channel, &bytes);
        }
        while self.to_replica[channel].front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, bytes) = self.to_replica[channel].pop_front().unwrap();
            self.replica.give(now, received(channel, bytes));
        }
        let out = std::mem::take(&mut self.replica.output[channel]);
        if !out.is_empty() {
            self.to_master[channel].push_back((self.now + LATENCY, out));
        }
        let sent = self.master.send_rest(now, channel);
        let out = self.master.take_output(channel);
        // In two pieces, so that lines and commands get cut.
        let (first, second) = out.split_at(out.len() / 3);
        for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
            self.to_replica[channel].push_back((self.now + LATENCY, piece.to_vec()));
        }
        if let Some(peer) = sent {
            self.master.give(now, master::Input::Sent { peer });
        }
        // Bytes that a side sent before it closed the connection still arrive.
        let arrived = self.to_replica[channel].is_empty() && self.to_master[channel].is_empty();
        if arrived && self.replica.connected[channel] != self.master.connection[channel].is_some() {
            self.cut_channel(channel);
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.tick();
        }
    }

    /// A ping may be on its way, so this waits until all is acknowledged.
    fn assert_same(&mut self) {
        for _ in 0..2000 {
            if self.master.machine.acknowledged() == [self.master.log.position().offset] {
                break;
            }
            self.tick();
        }
        assert_eq!(self.replica.data, self.master.data);
        let acknowledged = self.master.machine.acknowledged();
        assert_eq!(acknowledged, [self.master.log.position().offset], "everything is acknowledged");
        let position = Some(self.master.log.position());
        assert_eq!(self.replica.machine.position(), position);
    }
}

#[test]
fn a_replica_syncs_streams_and_goes_on_after_a_break() {
    let mut pair = Pair::new(10_000);
    pair.master.write(1);
    pair.run(1000);
    pair.master.write(2);
    pair.run(2000);
    pair.assert_same();
    assert_eq!((pair.master.full, pair.master.partial), (1, 0));
    pair.cut_link();
    pair.master.write(3);
    pair.run(1500);
    pair.assert_same();
    assert_eq!((pair.master.full, pair.master.partial), (1, 1));
}

#[test]
fn who_was_away_for_too_long_takes_a_snapshot_again() {
    let mut pair = Pair::new(1000);
    pair.run(1000);
    pair.master_up = false;
    pair.cut_link();
    for number in 0..8000 {
        pair.master.write(number);
    }
    pair.run(5000);
    pair.master_up = true;
    pair.run(3000);
    pair.assert_same();
    assert_eq!((pair.master.full, pair.master.partial), (2, 0));
}

#[test]
fn a_master_that_takes_another_identifier_is_followed_without_a_snapshot() {
    let mut pair = Pair::new(10_000);
    pair.run(1000);
    pair.master.write(1);
    pair.run(10);
    pair.master_up = false;
    pair.cut_link();
    // As after a promotion: the same stream goes on under a new name.
    pair.master.log.rename(id(9));
    pair.master.write(2);
    pair.master_up = true;
    pair.run(2000);
    pair.assert_same();
    assert_eq!(pair.replica.machine.position().unwrap().id, id(9));
    assert_eq!((pair.master.full, pair.master.partial), (1, 1));
}

#[test]
fn a_silent_link_is_noticed_by_both() {
    let mut pair = Pair::new(10_000);
    pair.run(1000);
    // Packets are lost for half a minute, and nobody is told.
    for _ in 0..30_000 {
        pair.tick();
        pair.to_master[MAIN].clear();
        pair.to_replica[MAIN].clear();
    }
    pair.cut_link();
    pair.master.write(5);
    pair.run(4000);
    pair.assert_same();
}

#[test]
fn over_two_channels_the_stream_comes_beside_the_snapshot() {
    let mut pair = Pair::of(100, true);
    for number in 0..200 {
        pair.master.write(number);
    }
    pair.run(235);
    assert!(pair.master.connection.iter().all(Option::is_some));
    assert_eq!(pair.master.machine.peers().len(), 2);
    for number in 200..400 {
        pair.master.write(number);
    }
    pair.run(10);
    assert!(pair.replica.machine.held() > 1000, "it waits here");
    let cursor = pair.master.connection[MAIN].as_ref().unwrap().cursor.unwrap();
    assert_eq!(pair.master.log.pending(cursor), Ok(0), "and not there");
    pair.run(2000);
    pair.assert_same();
    assert_eq!((pair.master.full, pair.master.partial), (1, 1));
}

#[test]
fn a_cut_of_either_channel_at_any_moment_of_a_synchronisation_is_made_good() {
    for channel in [MAIN, RDB] {
        for moment in 0..280 {
            let mut pair = Pair::of(1000, true);
            pair.master.write(1);
            pair.run(moment);
            pair.master.write(2);
            pair.cut_channel(channel);
            pair.run(3000);
            pair.assert_same();
            assert!(pair.master.full <= 2, "cut at {moment}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Random writes, breaks and outages; in the end everything is there, in order and once.
    #[test]
    fn whatever_happens_to_the_link_the_data_is_the_same(
        steps in prop::collection::vec((0u8..10, 1u64..400), 1..60),
        backlog in 0u64..3000,
        dual_channel: bool,
    ) {
        let mut pair = Pair::of(backlog, dual_channel);
        let (mut number, mut names) = (0, 100);
        for (step, millis) in steps {
            match step {
                0 => pair.cut_link(),
                1 => {
                    pair.master_up = !pair.master_up;
                    if !pair.master_up {
                        pair.cut_link();
                    }
                }
                2 => {
                    names += 1;
                    pair.cut_link();
                    pair.master.log.rename(id(names));
                }
                3 => pair.cut_channel(RDB),
                _ => for _ in 0..millis / 10 {
                    number += 1;
                    pair.master.write(number);
                },
            }
            pair.run(millis);
        }
        pair.master_up = true;
        pair.run(5000);
        pair.assert_same();
    }
}
