//! Checks that handlers access only the keys that their command declares.
//!
//! Requests are generated from the grammar and then scrambled: options come several times and in any order, option
//! names stand where other names belong, numbers are wrong. Every handler runs on such requests in this process. In a
//! debug build a handler can only access declared keys, so a handler that parses its arguments differently from the key
//! extraction gets an error ([`engine::UndeclaredKeys`]). `KEY_LISTS` sets the number of requests, `KEY_SEED` the first
//! seed.

use std::cell::Cell;

use clock::Millis;
use commands::server_registry;
use differential::{Command, ExecutionMode, Generator, Grammar, Protocol, env_number, format_command};
use engine::{
    BackgroundMode, BeginSearch, CommandOrigin, CommandSet, DispatchStatus, Engine, FindKeys, KeySpec, NoLog,
    PipelinedRequests, Session,
};
use keyspace::Keyspace;
use resp::{Batch, ParseLimits, Parser};
use slot_routing::{Endpoint, Epoch, Member, NodeId, ReplOffset, Role, Slot, Topology};

/// The default number of requests for each execution mode.
const DEFAULT_REQUEST_COUNT: u64 = 5000;
/// The number of requests that run on the same dataset.
const REQUESTS_PER_DATASET: u64 = 250;
/// The number of commands that create the dataset.
const DATASET_COMMAND_COUNT: usize = 150;

/// Requests for which key extraction and the handler once disagreed.
const KNOWN_MISMATCHES: &[&str] = &[
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

/// A client of a server that runs in this process.
struct InProcessClient {
    engine: Engine,
    commands: CommandSet,
    worker: engine::Worker,
    session: Session,
    next_id: u64,
}

impl InProcessClient {
    fn new(engine: Engine) -> Self {
        let worker = engine.new_worker(|| 0);
        let session = Session::new(1, CommandOrigin::Client, true);
        Self { engine, commands: CommandSet::new(server_registry()), worker, session, next_id: 2 }
    }

    fn new_standalone() -> Self {
        Self::new(Engine::new(server_registry().catalogue(), Keyspace::new(1, 16), None, Box::new(NoLog)))
    }

    /// Creates a client of a node that serves every slot of a cluster, with several databases.
    fn new_clustered() -> Self {
        let me = NodeId::from_random([1; 20]);
        let member = Member {
            id: me,
            shard: me,
            endpoint: Endpoint::default(),
            role: Role::Master,
            config_epoch: Epoch(1),
            offset: ReplOffset(0),
            has_failed: false,
            is_suspected: false,
        };
        let mut topology = Topology::new(me, Epoch(1), true, vec![member]);
        topology.assign(Slot::all(), me);
        let keyspace = Keyspace::new(1, 16);
        Self::new(Engine::new(server_registry().catalogue(), keyspace, Some(topology), Box::new(NoLog)))
    }

    /// Runs commands one after another. Blocking commands, and commands that the connection layer would execute, are
    /// skipped.
    fn run(&mut self, commands: &[Command]) {
        for command in commands {
            let (mut buffer, mut batch, mut out) = (Vec::new(), Batch::default(), Vec::new());
            resp::encode_request(&mut buffer, command.iter().map(Vec::as_slice));
            let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
            assert_eq!(parsed.error, None);
            let requests = PipelinedRequests { buffer: &buffer, batch: &batch, first_pending: 0 };
            let dispatcher = self.commands.dispatcher(&self.engine);
            let now = Millis(1_700_000_000_000);
            let (_, flow) = dispatcher.run(&mut self.worker, &mut self.session, now, requests, &mut out);
            if flow != DispatchStatus::Done {
                self.engine.disconnect(&mut self.session);
                self.session = Session::new(self.next_id, CommandOrigin::Client, true);
                self.session.set_background(BackgroundMode::Unavailable);
                self.next_id += 1;
            }
        }
    }
}

/// Prints the last commands when it is dropped by a panic.
struct PrintOnPanic<'a>(&'a Cell<Vec<Command>>);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown: Vec<String> = self.0.take().iter().map(format_command).collect();
            eprintln!("These commands ended the server:\n{}", shown.join("\n"));
        }
    }
}

/// Whether a command has keys and can run in this process.
fn has_keys(command: &Command) -> bool {
    let name = command.first().map(Vec::as_slice).unwrap_or_default();
    server_registry().find(name).is_some_and(|entry| {
        let of_it = !entry.command.keys.is_empty();
        of_it || entry.subcommands().iter().any(|sub| !sub.command.keys.is_empty())
    })
}

/// Whether the positions of the command's keys depend on its other arguments.
fn has_variable_key_positions(command: &Command) -> bool {
    let name = command.first().map(Vec::as_slice).unwrap_or_default();
    let moves = |spec: &KeySpec| {
        !matches!((spec.search_start, spec.find_keys), (BeginSearch::Index(_), FindKeys::Range { .. }))
    };
    server_registry()
        .find(name)
        .is_some_and(|entry| entry.command.has_key_parser() || entry.command.keys.iter().any(moves))
}

/// Runs one command and returns whether its handler accessed an undeclared key.
fn accesses_undeclared_key(client: &mut InProcessClient, mode: ExecutionMode, command: &Command) -> bool {
    let last = Cell::new(mode.wrap_commands(Protocol::V2, vec![command.clone()]));
    let commands = last.take();
    last.set(commands.clone());
    let witness = PrintOnPanic(&last);
    let before = client.engine.diagnostics.undeclared_keys.count();
    client.run(&commands);
    drop(witness);
    client.engine.diagnostics.undeclared_keys.count() > before
}

fn assert_scrambled_requests_access_declared_keys(
    create_client: fn() -> InProcessClient,
    mode: ExecutionMode,
    in_one_slot: bool,
) {
    let grammar = Grammar::all_tables();
    let (lists, first) = (env_number("KEY_LISTS", DEFAULT_REQUEST_COUNT), env_number("KEY_SEED", 1));
    let mut report = Vec::new();
    for round in 0..lists.div_ceil(REQUESTS_PER_DATASET) {
        let seed = first + round;
        let mut client = create_client();
        let mut generator = Generator::new(&grammar, &[], seed);
        if in_one_slot {
            generator = generator.with_keys_of_one_slot();
        }
        let prepared: Vec<Command> = std::iter::repeat_with(|| generator.generate_command())
            .filter(has_keys)
            .take(DATASET_COMMAND_COUNT)
            .collect();
        let known = KNOWN_MISMATCHES
            .iter()
            .map(|line| line.split(' ').map(|word| word.as_bytes().to_vec()).collect());
        let mut fixed = 0;
        let scrambled = std::iter::repeat_with(|| generator.generate_scrambled_command())
            .filter(has_keys)
            .filter(|command| {
                // Most commands have keys at fixed positions, so only a few of them are tested.
                fixed += u64::from(!has_variable_key_positions(command));
                has_variable_key_positions(command) || fixed % 8 == 0
            });
        let lists = prepared.into_iter().chain(known).chain(scrambled.take(REQUESTS_PER_DATASET as usize));
        for command in lists {
            if accesses_undeclared_key(&mut client, mode, &command) {
                report.push(format!("seed {seed}: {}", format_command(&command)));
            }
        }
    }
    assert!(report.is_empty(), "keys that were not declared, {mode:?}:\n{}", report.join("\n"));
}

#[test]
fn handlers_access_only_declared_keys() {
    assert_scrambled_requests_access_declared_keys(
        InProcessClient::new_standalone,
        ExecutionMode::Sequential,
        false,
    );
}

#[test]
fn handlers_access_only_declared_keys_in_transactions() {
    assert_scrambled_requests_access_declared_keys(
        InProcessClient::new_standalone,
        ExecutionMode::Transaction,
        false,
    );
}

#[test]
fn handlers_access_only_declared_keys_in_scripts() {
    assert_scrambled_requests_access_declared_keys(
        InProcessClient::new_standalone,
        ExecutionMode::Script,
        false,
    );
}

#[test]
fn handlers_access_only_declared_keys_in_a_cluster() {
    for way in [ExecutionMode::Sequential, ExecutionMode::Transaction, ExecutionMode::Script] {
        assert_scrambled_requests_access_declared_keys(InProcessClient::new_clustered, way, true);
    }
}
