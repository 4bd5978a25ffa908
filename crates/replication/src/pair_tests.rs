//! A master and a replica, joined by a link that breaks, over virtual time.
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
use crate::replica;
use crate::{CursorId, Log, Master, Position, ReplId, Replica};

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

/// The master's side with its shell: one connection at a time.
struct MasterSide {
    machine: Master,
    log: Log,
    data: Vec<u64>,
    connection: Option<Served>,
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
    output: Vec<u8>,
}

const MARK: &[u8; 40] = b"mark5678901234567890mark5678901234567890";

impl MasterSide {
    fn new(backlog: u64) -> Self {
        let config = master::Config {
            ping_period: Duration::from_secs(3),
            timeout: Duration::from_secs(20),
            diskless: true,
            diskless_delay: Duration::from_millis(200),
            diskless_max_replicas: 0,
            dual_channel: false,
            backlog_ttl: Duration::from_secs(3600),
            max_lag: Duration::from_secs(10),
            output_limit: OutputLimit { hard: 1 << 20, soft: 0, soft_for: Duration::ZERO },
        };
        Self {
            machine: Master::new(config, true, Instant::ORIGIN),
            log: Log::new(id(0), backlog),
            data: Vec::new(),
            connection: None,
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

    fn accept(&mut self) {
        self.connections += 1;
        self.connection = Some(Served {
            peer: PeerId(self.connections),
            profile: Profile::default(),
            parser: Parser::new(),
            input: Vec::new(),
            cursor: None,
            streaming: false,
            snapshot: None,
            output: Vec::new(),
        });
    }

    fn disconnect(&mut self, now: Instant) {
        if let Some(gone) = self.connection.take() {
            if let Some(cursor) = gone.cursor {
                self.log.remove_cursor(cursor);
            }
            self.give(now, master::Input::Closed { peer: gone.peer });
        }
    }

    fn receive(&mut self, now: Instant, bytes: &[u8]) {
        let Some(served) = &mut self.connection else { return };
        served.input.extend_from_slice(bytes);
        let mut batch = Batch::default();
        let mut input = std::mem::take(&mut served.input);
        let parsed = served.parser.parse(&mut input, &mut batch, &Limits::default());
        assert_eq!(parsed.error, None);
        for index in 0..batch.len() {
            self.request(now, batch.args(index, &input));
        }
        if let Some(served) = &mut self.connection {
            served.input = input.split_off(parsed.consumed);
        }
    }

    fn request(&mut self, now: Instant, args: Args<'_>) {
        let Some(served) = &mut self.connection else { return };
        let peer = served.peer;
        match &args[0] {
            b"PING" => served.output.extend_from_slice(b"+PONG\r\n"),
            b"REPLCONF" => match served.profile.replconf(args).unwrap() {
                Replconf::Ack(offset) => {
                    self.give(now, master::Input::Acknowledged { peer, offset, synced: None });
                }
                _ => served.output.extend_from_slice(b"+OK\r\n"),
            },
            b"PSYNC" => {
                let request = PsyncRequest::parse(args).unwrap();
                let resume = self.log.resume(&request.id, request.first_byte).ok();
                let resume = resume.map(|offset| Position { id: self.log.position().id, offset });
                let profile = served.profile.clone();
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
        let output = self.connection.as_mut().map(|served| &mut served.output);
        match *action {
            Action::Snapshot { transfer, .. } => {
                let position = self.log.position();
                self.log.forget_db();
                let mut snapshot = format!("$EOF:{}\r\n", String::from_utf8_lossy(MARK)).into_bytes();
                for number in &self.data {
                    snapshot.extend_from_slice(format!("{number} ").as_bytes());
                }
                snapshot.extend_from_slice(MARK);
                if let Some(served) = &mut self.connection {
                    served.snapshot = Some(snapshot);
                }
                self.give(now, master::Input::Cut { transfer, position, db: None });
            }
            Action::FullResync { position, .. } => {
                self.full += 1;
                let line = format!("+FULLRESYNC {} {}\r\n", position.id, position.offset);
                output.unwrap().extend_from_slice(line.as_bytes());
                let served = self.connection.as_mut().unwrap();
                served.cursor = Some(self.log.add_cursor(position.offset));
                served.output.extend_from_slice(&served.snapshot.take().unwrap());
                let peer = served.peer;
                self.give(now, master::Input::Sent { peer });
            }
            Action::Continue { id, .. } => {
                self.partial += 1;
                output.unwrap().extend_from_slice(format!("+CONTINUE {}\r\n", id.unwrap()).as_bytes());
            }
            Action::Stream { from, .. } => {
                let served = self.connection.as_mut().unwrap();
                served.cursor.get_or_insert_with(|| self.log.add_cursor(from));
                served.streaming = true;
            }
            Action::ShowLife { .. } => output.unwrap().push(b'\n'),
            Action::Ping => drop(self.log.append(0, b"*1\r\n$4\r\nPING\r\n")),
            Action::Close { .. } => self.disconnect(now),
            Action::CloseLog => self.log.close(),
            Action::CancelSnapshot { .. } => {}
            Action::EndOffset { .. } | Action::Release { .. } => panic!("nobody asked for two channels"),
        }
    }

    /// What goes onto the wire now.
    fn take_output(&mut self) -> Vec<u8> {
        let Some(served) = &mut self.connection else { return Vec::new() };
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
    output: Vec<u8>,
    connected: bool,
    wants_connection: bool,
}

impl ReplicaSide {
    fn new() -> Self {
        let config = replica::Config {
            listening_port: 1,
            announce_ip: None,
            user: None,
            password: None,
            timeout: Duration::from_secs(20),
            failover: false,
        };
        Self {
            machine: Replica::new(config, None, Instant::ORIGIN),
            data: Vec::new(),
            snapshot: Vec::new(),
            stream: Vec::new(),
            output: Vec::new(),
            connected: false,
            wants_connection: false,
        }
    }

    fn give(&mut self, now: Instant, input: replica::Input) {
        use replica::Action;
        let mut out = Vec::new();
        self.machine.handle(now, input, &mut out);
        for action in out {
            match action {
                Action::Connect => self.wants_connection = true,
                Action::Close(_) => self.connected = false,
                Action::Send(bytes) => self.output.extend_from_slice(&bytes),
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

    fn disconnect(&mut self, now: Instant) {
        // A command that came half is not applied, and will be asked for again.
        self.stream.clear();
        self.output.clear();
        if std::mem::take(&mut self.connected) {
            self.give(now, replica::Input::Closed);
        }
    }
}

struct Pair {
    master: MasterSide,
    replica: ReplicaSide,
    now: u64,
    /// The master's process is there.
    master_up: bool,
    to_replica: VecDeque<(u64, Vec<u8>)>,
    to_master: VecDeque<(u64, Vec<u8>)>,
}

const LATENCY: u64 = 2;

impl Pair {
    fn new(backlog: u64) -> Self {
        Self {
            master: MasterSide::new(backlog),
            replica: ReplicaSide::new(),
            now: 0,
            master_up: true,
            to_replica: VecDeque::new(),
            to_master: VecDeque::new(),
        }
    }

    fn cut_link(&mut self) {
        let now = Instant::from_millis(self.now);
        self.to_replica.clear();
        self.to_master.clear();
        self.replica.disconnect(now);
        self.master.disconnect(now);
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
        if std::mem::take(&mut self.replica.wants_connection) {
            if self.master_up {
                self.master.accept();
                self.replica.connected = true;
                self.replica.give(now, replica::Input::Connected);
            } else {
                self.replica.give(now, replica::Input::ConnectFailed { refused: true });
            }
        }
        while self.to_master.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, bytes) = self.to_master.pop_front().unwrap();
            self.master.receive(now, &bytes);
        }
        while self.to_replica.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, bytes) = self.to_replica.pop_front().unwrap();
            self.replica.give(now, replica::Input::Received(bytes));
        }
        let out = std::mem::take(&mut self.replica.output);
        if !out.is_empty() {
            self.to_master.push_back((self.now + LATENCY, out));
        }
        let out = self.master.take_output();
        // In two pieces, so that lines and commands get cut.
        let (first, second) = out.split_at(out.len() / 3);
        for piece in [first, second].into_iter().filter(|piece| !piece.is_empty()) {
            self.to_replica.push_back((self.now + LATENCY, piece.to_vec()));
        }
        if self.replica.connected != self.master.connection.is_some() {
            self.cut_link();
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
        pair.to_master.clear();
        pair.to_replica.clear();
    }
    pair.cut_link();
    pair.master.write(5);
    pair.run(4000);
    pair.assert_same();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Random writes, breaks and outages; in the end everything is there, in order and once.
    #[test]
    fn whatever_happens_to_the_link_the_data_is_the_same(
        steps in prop::collection::vec((0u8..10, 1u64..400), 1..60),
        backlog in 0u64..3000,
    ) {
        let mut pair = Pair::new(backlog);
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
