//! Tests of events that happen between two steps of the dispatcher, with a small command table.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use keyspace::{Keyspace, PackedValue, StringRef};
use parking_lot::Mutex;
use resp::Protocol;
use slot_routing::{
    ClientTransport, Endpoint, Epoch, Member, NodeId, Ownership, ReplOffset, Role, RouteRequest, Topology,
};

use super::*;
use crate::command::{Command, Group, Registry};
use crate::effects::EffectLog;
use crate::keys::{KeyFlags, KeySpec};
use crate::settings::NodeFlags;

const SINGLE_KEY: &[KeySpec] = &[KeySpec::single_key(1, KeyFlags::RW)];

const fn test_command(name: &'static str, arity: i8, flags: Flags) -> Command {
    Command::new(name, Group::Generic, "1.0.0", arity, "Is a command.").flags(flags)
}

const COMMANDS: &[Command] = &[
    test_command("set", 3, Flags::WRITE.union(Flags::FAST)).keys(SINGLE_KEY).run(set),
    test_command("get", 2, Flags::READONLY.union(Flags::FAST)).keys(SINGLE_KEY).run(get),
    test_command("slow-get", 2, Flags::READONLY).keys(SINGLE_KEY).run(get),
    test_command("flushall", 1, Flags::WRITE).locks_all_slots().run(flushall),
    test_command("faulty", -3, Flags::WRITE).keys(SINGLE_KEY).run(access_undeclared_key),
];

fn registry() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::for_server(COMMANDS));
    &REGISTRY
}

fn set(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let (found, value) = (context.find(&key), context.arg(2));
    context.put(&key, found, PackedValue::string(value), None);
    context.reply.ok();
    Ok(())
}

fn get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    match context.find_typed::<StringRef<'_>>(&key)? {
        None => context.reply.null(),
        Some(place) => {
            let value = context.string_value(&key, place)?.bytes.to_vec();
            context.reply.bulk(&value);
        }
    }
    Ok(())
}

/// Handler that accesses an undeclared key: its last argument, or an index beyond the arguments.
fn access_undeclared_key(context: &mut Context<'_>) -> Result<(), CommandError> {
    let index = context.args.len() - usize::from(context.arg(2) != b"beyond");
    let key = context.key(index)?;
    let found = context.find(&key);
    context.put(&key, found, PackedValue::string(b"faulty"), None);
    context.reply.ok();
    Ok(())
}

fn flushall(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.clear_databases(None, true);
    context.count_changes(1);
    context.reply.ok();
    Ok(())
}

/// Records everything appended to the log.
#[derive(Debug, Default, Clone)]
struct RecordedLog(Arc<Mutex<Vec<u8>>>);

impl EffectLog for RecordedLog {
    fn has_readers(&self) -> bool {
        true
    }

    fn append(&self, _db: u16, commands: &[u8]) -> ReplOffset {
        let mut kept = self.0.lock();
        kept.extend_from_slice(commands);
        ReplOffset(kept.len() as u64)
    }
}

struct TestClient {
    engine: Engine,
    commands: CommandSet,
    worker: Worker,
    session: Session,
    log: RecordedLog,
}

impl TestClient {
    /// Connects a client to an empty server.
    fn new(topology: Option<Topology>) -> Self {
        let log = RecordedLog::default();
        let engine =
            Engine::new(registry().catalogue(), Keyspace::new(1, 1), topology, Box::new(log.clone()));
        let worker = engine.new_worker(|| 0);
        Self {
            engine,
            commands: CommandSet::new(registry()),
            worker,
            session: Session::new(1, CommandOrigin::Client, true),
            log,
        }
    }

    fn is_logged(&self) -> bool {
        !self.log.0.lock().is_empty()
    }

    fn run_lines(&mut self, lines: &str) -> String {
        let (buffer, batch) = parse_batch(lines);
        let (worker, session, mut out) = (&mut self.worker, &mut self.session, Vec::new());
        let requests = PipelinedRequests { buffer: &buffer, batch: &batch, first_pending: 0 };
        self.commands.dispatcher(&self.engine).run(worker, session, NOW, requests, &mut out);
        String::from_utf8(out).expect("text")
    }
}

const NOW: Millis = Millis(1_700_000_000_000);

fn parse_batch(lines: &str) -> (Vec<u8>, Batch) {
    let (mut buffer, mut batch) = (format!("{lines}\n").into_bytes(), Batch::default());
    resp::Parser::new().parse(&mut buffer, &mut batch, &resp::ParseLimits::default());
    (buffer, batch)
}

/// Sets flags after a command's admission and before its slot is locked. A pause, demotion or load proceeds once each
/// slot was unlocked, so a command that was admitted earlier must not write when it locks its slot later.
fn run_with_flag_set_after_admission(
    client: &mut TestClient,
    line: &str,
    flags: NodeFlags,
) -> (DispatchStatus, String) {
    let (buffer, batch) = parse_batch(line);
    let engine = &client.engine;
    let mut prepared = SmallVec::new();
    let mut out = Vec::new();
    let reply = Writer::new(&mut out, Protocol::Resp2);
    let (worker, session) = (&mut client.worker, &mut client.session);
    let transactions = BatchTransactions::default();
    let context = Context::new(engine, &client.commands, worker, session, NOW, reply);
    let mut pipeline = Pipeline::new(context, &transactions);
    engine.prepare(&mut pipeline, batch.requests(0..1, &buffer), &mut prepared);
    let request = &prepared[0];
    let entry = engine.admit(&pipeline.context, request).expect("no flag is set yet");
    engine.settings.set_node_flag(flags, true);
    let flow = engine.run_admitted(&mut pipeline, request, entry, false);
    drop(pipeline);
    engine.settings.set_node_flag(flags, false);
    (flow, String::from_utf8(out).unwrap())
}

#[test]
fn command_admitted_before_pause_waits_at_its_slot() {
    let mut client = TestClient::new(None);
    for (line, flow) in [
        ("set k v", DispatchStatus::Paused),
        ("get k", DispatchStatus::Done),
        ("flushall", DispatchStatus::Paused),
    ] {
        assert_eq!(
            run_with_flag_set_after_admission(&mut client, line, NodeFlags::WRITES_PAUSED).0,
            flow,
            "{line}"
        );
    }
    assert!(!client.is_logged());
}

#[test]
fn command_admitted_before_demotion_or_loading_is_refused_at_its_slot() {
    let mut client = TestClient::new(None);
    let replica = NodeFlags::REPLICA | NodeFlags::READ_ONLY_REPLICA;
    let readonly = "-READONLY You can't write against a read only replica.\r\n";
    let table = [
        ("set k v", replica, readonly),
        ("flushall", replica, readonly),
        ("get k", replica, "$-1\r\n"),
        ("set k v", NodeFlags::LOADING, "-LOADING Valkey is loading the dataset in memory\r\n"),
        ("get k", NodeFlags::LOADING, "-LOADING Valkey is loading the dataset in memory\r\n"),
    ];
    for (line, gate, reply) in table {
        let outcome = run_with_flag_set_after_admission(&mut client, line, gate);
        assert_eq!(outcome, (DispatchStatus::Done, reply.to_owned()), "{line}");
    }
    assert_eq!(client.engine.keyspace.len(0), 0);
    assert!(!client.is_logged());
    client.engine.settings.extended_redis_compatibility.store(true, Ordering::Relaxed);
    let (_, reply) = run_with_flag_set_after_admission(&mut client, "get k", NodeFlags::LOADING);
    assert_eq!(reply, "-LOADING Redis is loading the dataset in memory\r\n");
    let (_, reply) = run_with_flag_set_after_admission(&mut client, "set k v", NodeFlags::MISCONF);
    assert!(reply.starts_with("-MISCONF Redis is configured to save RDB snapshots"), "{reply}");
    assert!(reply.contains("check the Redis logs"), "{reply}");
}

/// With `replica-read-only no` a replica accepts writes but does not propagate them.
#[test]
fn write_on_writable_replica_is_not_logged() {
    let mut client = TestClient::new(None);
    assert_eq!(run_with_flag_set_after_admission(&mut client, "set k v", NodeFlags::REPLICA).1, "+OK\r\n");
    assert_eq!(client.run_lines("get k"), "$1\r\nv\r\n");
    assert!(!client.is_logged());
    client.run_lines("set k w");
    assert!(client.is_logged());
}

fn master_node(byte: u8, endpoint: Endpoint) -> Member {
    let id = NodeId::from_random([byte; 20]);
    Member {
        id,
        shard: id,
        endpoint,
        role: Role::Master,
        config_epoch: Epoch(1),
        offset: ReplOffset(0),
        has_failed: false,
        is_suspected: false,
    }
}

/// Regression: clients were redirected to `MOVED 0 :0`.
#[test]
fn no_redirect_to_node_without_address() {
    let known = Endpoint { ip: "127.0.0.1".to_owned(), port: 7001, ..Endpoint::default() };
    let unserved = Err(CommandError::SlotNotServed);
    let slot = Slot::new(0).unwrap();
    let redirect = |ask| Err(CommandError::Redirect { ask, slot, host: "127.0.0.1".to_owned(), port: 7001 });
    for (endpoint, moved, asked) in
        [(known, redirect(false), redirect(true)), (Endpoint::default(), unserved.clone(), unserved)]
    {
        let (me, other) = (master_node(1, Endpoint::default()), master_node(2, endpoint));
        let (my_id, other_id) = (me.id, other.id);
        let mut topology = Topology::new(my_id, Epoch(1), true, vec![me, other]);
        topology.assign([slot], other_id);
        topology.mark_migrating(slot, other_id);
        let engine = TestClient::new(Some(topology.clone())).engine;
        let missing = RouteRequest { key_count: 1, missing_key_count: 1, ..RouteRequest::default() };
        let routed =
            |ownership| engine.check_route(&topology, slot, ownership, missing, ClientTransport::default());
        assert_eq!((routed(Ownership::Remote), routed(Ownership::Migrating)), (moved, asked));
    }
}

/// A topology is published slot by slot. During a role change, a slot may still be marked as the node's own although
/// the role does not permit writes.
#[test]
fn replica_does_not_write_to_slots_it_still_owns() {
    let member = master_node(1, Endpoint::default());
    let me = member.id;
    let mut topology = Topology::new(me, Epoch(1), true, vec![member]);
    topology.assign(Slot::all(), me);
    let mut client = TestClient::new(Some(topology));
    for line in ["set k v", "get k"] {
        let (_, reply) = run_with_flag_set_after_admission(&mut client, line, NodeFlags::REPLICA);
        assert_eq!(reply.starts_with("-READONLY"), line.starts_with("set"), "{line}: {reply}");
    }
}

#[test]
fn transaction_admitted_before_pause_runs_after_it() {
    let mut client = TestClient::new(None);
    client.session.begin_transaction();
    assert_eq!(client.run_lines("set k v\nget k"), "+QUEUED\r\n+QUEUED\r\n");
    let engine = &client.engine;
    let (worker, session) = (&mut client.worker, &mut client.session);
    for (gate, flow, replied) in [
        (NodeFlags::WRITES_PAUSED, DispatchStatus::Paused, ""),
        (NodeFlags::empty(), DispatchStatus::Done, "*2\r\n+OK\r\n$1\r\nv\r\n"),
    ] {
        engine.settings.set_node_flag(gate, true);
        let mut out = Vec::new();
        let reply = Writer::new(&mut out, Protocol::Resp2);
        let transactions = BatchTransactions::default();
        let context = Context::new(engine, &client.commands, worker, session, NOW, reply);
        let ran = engine.exec(&mut Pipeline::new(context, &transactions), false);
        engine.settings.set_node_flag(gate, false);
        assert_eq!((ran, out.as_slice()), (Ok(flow), replied.as_bytes()));
    }
}

/// Slots locked ahead for later commands are released before a command that may be slow.
#[test]
fn slow_command_releases_prefetched_slots() {
    let mut client = TestClient::new(None);
    client.run_lines("set a 1\nset b 2\nset c 3\nset d 4");
    let (buffer, batch) = parse_batch("get a\nset b 5\nslow-get c\nget d");
    let (engine, mut out, mut prepared) = (&client.engine, Vec::new(), SmallVec::new());
    let reply = Writer::new(&mut out, Protocol::Resp2);
    let (worker, session) = (&mut client.worker, &mut client.session);
    let transactions = BatchTransactions::default();
    let context = Context::new(engine, &client.commands, worker, session, NOW, reply);
    let mut pipeline = Pipeline::new(context, &transactions);
    engine.prepare(&mut pipeline, batch.requests(0..4, &buffer), &mut prepared);
    let held = |pipeline: &Pipeline<'_>| {
        pipeline.prefetched_slots.iter().filter(|touched| touched.is_some()).count()
    };
    assert_eq!(held(&pipeline), 4);
    for (request, held_after) in prepared.iter().zip([3, 2, 0, 0]) {
        assert_eq!(engine.run_request(&mut pipeline, request, true), DispatchStatus::Done);
        assert_eq!(held(&pipeline), held_after);
    }
    drop(pipeline);
    assert_eq!(out, b"$1\r\n1\r\n+OK\r\n$1\r\n3\r\n$1\r\n4\r\n");
}

#[test]
fn undeclared_key_access_is_error_for_that_client_only() {
    const UNDECLARED_KEY_ERROR: &str =
        "-ERR internal error: 'faulty' asked for a key that it did not declare\r\n";
    let mut client = TestClient::new(None);
    assert_eq!(client.run_lines("set other v"), "+OK\r\n");
    for line in ["faulty key other", "faulty {key}1 {key}2", "faulty key beyond"] {
        assert_eq!(client.run_lines(line), UNDECLARED_KEY_ERROR, "{line}");
    }
    assert_eq!(
        (
            client.engine.diagnostics.undeclared_keys.count(),
            &*client.engine.diagnostics.undeclared_keys.last_command()
        ),
        (3, "faulty")
    );
    assert_eq!(client.run_lines("get other"), "$1\r\nv\r\n", "the server lives, and nothing was written");
}
