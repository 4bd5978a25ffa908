//! The keys that a command declares are those that its handler works on.
//!
//! Argument lists are made from each command's own grammar and then scrambled: options come several times and in any
//! order, option words stand where names belong, numbers are wrong. Every handler runs on them in this process. In a
//! debug build a handler gets its keys only where the command declared them, so a second reading of the arguments shows
//! as an error ([`engine::UndeclaredKeys`]). `KEY_LISTS` says how many lists are made, `KEY_SEED` from where.

use std::cell::Cell;

use clock::Millis;
use commands::for_server;
use differential::{Command, Generator, Grammar, Protocol, Way, setting, show};
use engine::{
    BackgroundMode, BeginSearch, CommandOrigin, Commands, DispatchStatus, Engine, FindKeys, KeySpec, NoLog,
    PipelinedRequests, Session,
};
use keyspace::Keyspace;
use resp::{Batch, ParseLimits, Parser};
use slot_routing::{Endpoint, Epoch, Member, NodeId, ReplOffset, Role, Slot, Topology};

/// How many lists are made by default, of each of the ways in which they reach the handlers.
const LISTS: u64 = 5000;
/// So many lists meet the same data.
const TOGETHER: u64 = 250;
/// So many commands make that data beforehand.
const PREPARED: usize = 150;

/// Requests whose keys were once found by one reading and used by another.
const KNOWN: &[&str] = &[
    "GEORADIUS missing 13 38 200 km STORE ok STORE no",
    "GEORADIUS missing 13 38 200 km STOREDIST ok STORE no STOREDIST other",
    "GEORADIUS missing 13 38 200 km COUNT 1 STORE ok ASC STORE no",
    "GEORADIUSBYMEMBER missing x 200 km STORE ok STORE no",
    "XGROUP CREATE no g 0 MKSTREAM",
    "XGROUP CREATE no STREAMS 0 MKSTREAM",
    "XREADGROUP COUNT 1 GROUP g STREAMS STREAMS no >",
    "XREADGROUP GROUP g STREAMS STREAMS no >",
    "XREADGROUP GROUP STREAMS c STREAMS no >",
    "XREADGROUP NOACK GROUP g STREAMS STREAMS no >",
    "XREADGROUP BLOCK 1 GROUP g STREAMS STREAMS no >",
    "XREAD COUNT 1 STREAMS STREAMS 0",
    "SORT no STORE BY STORE no2",
    "SORT no BY STORE STORE x",
    "SORT no GET STORE LIMIT 0 1 STORE a STORE b",
    "COPY db x DB 2",
    "COPY a b DB 1 DB 2",
    "MSETEX 2 a 1 b 2 EX 100",
    "SINTERCARD 2 LIMIT b LIMIT 1",
    "ZUNION 2 WEIGHTS b WEIGHTS 1 2",
    "LMPOP 2 LEFT b LEFT COUNT 1",
];

/// A client of a server in this process.
struct Client {
    engine: Engine,
    commands: Commands,
    worker: engine::Worker,
    session: Session,
    next_id: u64,
}

impl Client {
    fn of(engine: Engine) -> Self {
        let worker = engine.worker(|| 0);
        let session = Session::new(1, CommandOrigin::Client, true);
        Self { engine, commands: Commands::new(for_server()), worker, session, next_id: 2 }
    }

    fn alone() -> Self {
        Self::of(Engine::new(for_server().catalogue(), Keyspace::new(1, 16), None, Box::new(NoLog)))
    }

    /// A client of a node that serves every slot of a cluster, with several databases.
    fn clustered() -> Self {
        let me = NodeId::from_random([1; 20]);
        let member = Member {
            id: me,
            shard: me,
            endpoint: Endpoint::default(),
            role: Role::Master,
            config_epoch: Epoch(1),
            offset: ReplOffset(0),
            failed: false,
            suspected: false,
        };
        let mut topology = Topology::new(me, Epoch(1), true, vec![member]);
        topology.assign(Slot::all(), me);
        let keyspace = Keyspace::new(1, 16);
        Self::of(Engine::new(for_server().catalogue(), keyspace, Some(topology), Box::new(NoLog)))
    }

    /// Runs commands one after another. One that waits, or that its connection would carry out, is left.
    fn run(&mut self, commands: &[Command]) {
        for command in commands {
            let (mut buffer, mut batch, mut out) = (Vec::new(), Batch::default(), Vec::new());
            resp::encode_request(&mut buffer, command.iter().map(Vec::as_slice));
            let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
            assert_eq!(parsed.error, None);
            let requests = PipelinedRequests { buffer: &buffer, batch: &batch, from: 0 };
            let dispatcher = self.commands.on(&self.engine);
            let now = Millis(1_700_000_000_000);
            let (_, flow) = dispatcher.run(&mut self.worker, &mut self.session, now, requests, &mut out);
            if flow != DispatchStatus::Done {
                self.engine.disconnect(&mut self.session);
                self.session = Session::new(self.next_id, CommandOrigin::Client, true);
                self.session.background = BackgroundMode::Unavailable;
                self.next_id += 1;
            }
        }
    }
}

/// Names the commands that were run last if the test panics among them.
struct Witness<'a>(&'a Cell<Vec<Command>>);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown: Vec<String> = self.0.take().iter().map(show).collect();
            eprintln!("These commands ended the server:\n{}", shown.join("\n"));
        }
    }
}

/// Whether a command has keys and may run in this process.
fn has_keys(command: &Command) -> bool {
    let name = command.first().map(Vec::as_slice).unwrap_or_default();
    for_server().find(name).is_some_and(|entry| {
        let of_it = !entry.command.keys.is_empty();
        of_it || entry.subcommands().iter().any(|sub| !sub.command.keys.is_empty())
    })
}

/// Whether the places of its keys depend on its other words.
fn has_moving_keys(command: &Command) -> bool {
    let name = command.first().map(Vec::as_slice).unwrap_or_default();
    let moves =
        |spec: &KeySpec| !matches!((spec.begin, spec.find), (BeginSearch::Index(_), FindKeys::Range { .. }));
    for_server()
        .find(name)
        .is_some_and(|entry| entry.command.has_key_parser() || entry.command.keys.iter().any(moves))
}

/// Runs one command in a way, and says whether its handler asked for a key that it had not declared.
fn asks_for_more(client: &mut Client, way: Way, command: &Command) -> bool {
    let last = Cell::new(way.give(Protocol::V2, vec![command.clone()]));
    let commands = last.take();
    last.set(commands.clone());
    let witness = Witness(&last);
    let before = client.engine.undeclared_keys.count();
    client.run(&commands);
    drop(witness);
    client.engine.undeclared_keys.count() > before
}

fn scrambled_lists_touch_declared_keys(make: fn() -> Client, way: Way, in_one_slot: bool) {
    let grammar = Grammar::whole();
    let (lists, first) = (setting("KEY_LISTS", LISTS), setting("KEY_SEED", 1));
    let mut report = Vec::new();
    for round in 0..lists.div_ceil(TOGETHER) {
        let seed = first + round;
        let mut client = make();
        let mut generator = Generator::new(&grammar, &[], seed);
        if in_one_slot {
            generator = generator.in_one_slot();
        }
        let prepared: Vec<Command> =
            std::iter::repeat_with(|| generator.command()).filter(has_keys).take(PREPARED).collect();
        let known = KNOWN.iter().map(|line| line.split(' ').map(|word| word.as_bytes().to_vec()).collect());
        let mut fixed = 0;
        let scrambled = std::iter::repeat_with(|| generator.scrambled()).filter(has_keys).filter(|command| {
            // Most commands have their keys at fixed places, and few of these are enough.
            fixed += u64::from(!has_moving_keys(command));
            has_moving_keys(command) || fixed % 8 == 0
        });
        let lists = prepared.into_iter().chain(known).chain(scrambled.take(TOGETHER as usize));
        for command in lists {
            if asks_for_more(&mut client, way, &command) {
                report.push(format!("seed {seed}: {}", show(&command)));
            }
        }
    }
    assert!(report.is_empty(), "keys that were not declared, {way:?}:\n{}", report.join("\n"));
}

#[test]
fn handlers_touch_declared_keys() {
    scrambled_lists_touch_declared_keys(Client::alone, Way::Alone, false);
}

#[test]
fn handlers_touch_declared_keys_in_transactions() {
    scrambled_lists_touch_declared_keys(Client::alone, Way::Transaction, false);
}

#[test]
fn handlers_touch_declared_keys_in_scripts() {
    scrambled_lists_touch_declared_keys(Client::alone, Way::Script, false);
}

#[test]
fn handlers_touch_declared_keys_in_a_cluster() {
    for way in [Way::Alone, Way::Transaction, Way::Script] {
        scrambled_lists_touch_declared_keys(Client::clustered, way, true);
    }
}
