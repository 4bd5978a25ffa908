//! Tests of blocking commands with a command table made for the tests: a key holds a number of items, TAKE blocks until
//! one of its keys has an item, and PASS moves an item from one key to another.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Millis;
use engine::{
    ClientFlags, Command, CommandError, CommandOrigin, CommandOutcome, CommandSet, ConnectionInfo, Context,
    DispatchStatus, Engine, Flags, Group, KeyFlags, KeySpec, KeyWait, PauseMode, PausePurpose, Registry,
    Session, UnblockReason, WaitEnd, Worker,
};
use keyspace::{Key, Keyspace, Kind, PackedValue};
use proptest::prelude::*;
use slot_routing::{Ownership, Slot};

use crate::COMMAND_TABLE;
use crate::testing::{RecordingLog, run_buffer};

const COMMANDS: &[Command] = &[
    Command::new("take", Group::Generic, "1.0.0", -3, "Takes one thing, or waits for it.")
        .flags(Flags::WRITE)
        .keys(&[KeySpec::key_range(1, -2, 1, KeyFlags::RW)])
        .may_block(run_take),
    Command::new("pass", Group::Generic, "1.0.0", 4, "Moves one thing, or waits for it.")
        .flags(Flags::WRITE)
        .keys(&[KeySpec::key_range(1, 2, 1, KeyFlags::RW)])
        .may_block(run_pass),
];

fn registry() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> =
        LazyLock::new(|| Registry::for_server(COMMAND_TABLE.iter().copied().chain([COMMANDS]).flatten()));
    &REGISTRY
}

/// Takes one item from the key at argument `index`. Returns whether there was an item.
fn take_item(context: &mut Context<'_>, index: usize) -> Result<bool, CommandError> {
    let key = context.key(index)?;
    let Some(place) = context.find(&key) else { return Ok(false) };
    let count = resp::parse_i64(context.string_value(&key, place)?.bytes).ok_or(CommandError::NotInteger)?;
    put_item(context, &key, count - 1);
    Ok(true)
}

fn put_item(context: &mut Context<'_>, key: &Key<'_>, count: i64) {
    let found = context.find(key);
    match (count, found) {
        (0, None) => {}
        (0, Some(place)) => {
            context.delete(key, place);
            context.log_effect(&[b"DEL", key.bytes()]);
        }
        _ => {
            let digits = count.to_string();
            context.put(key, found, PackedValue::string(digits.as_bytes()), None);
            context.log_effect(&[b"SET", key.bytes(), digits.as_bytes()]);
        }
    }
}

fn block_on(context: &Context<'_>, keys: std::ops::Range<usize>) -> Result<CommandOutcome, CommandError> {
    let seconds = context.integer_arg(context.args.len() - 1)?;
    let until = (seconds > 0).then(|| Millis(context.now.0 + seconds * 1000));
    Ok(CommandOutcome::Block(KeyWait::new(keys, Kind::String, until, |reply| reply.null_array())))
}

/// Handles `TAKE key [key ...] seconds`.
fn run_take(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let keys = 1..context.args.len() - 1;
    for index in keys.clone() {
        if take_item(context, index)? {
            let key = context.arg(index);
            context.reply.bulk(key);
            return Ok(CommandOutcome::Done);
        }
    }
    block_on(context, keys)
}

/// Handles `PASS from to seconds`.
fn run_pass(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    if !take_item(context, 1)? {
        return block_on(context, 1..2);
    }
    let key = context.key(2)?;
    let before = match context.find(&key) {
        Some(place) => {
            resp::parse_i64(context.string_value(&key, place)?.bytes).ok_or(CommandError::NotInteger)?
        }
        None => 0,
    };
    put_item(context, &key, before + 1);
    context.reply.ok();
    Ok(CommandOutcome::Done)
}

/// A server with several clients.
struct Server {
    engine: Engine,
    commands: CommandSet,
    worker: Worker,
    sessions: Vec<Session>,
    now: Millis,
    log: RecordingLog,
}

impl Server {
    fn new(clients: usize) -> Self {
        let log = RecordingLog::default();
        let engine = Engine::new(registry().catalogue(), Keyspace::new(1, 4), None, Box::new(log.clone()));
        let worker = engine.new_worker(|| 0);
        let connect = || engine.clients.connect(ConnectionInfo::default(), Millis(0), Box::new(|| {}));
        let sessions =
            (0..clients).map(|_| Session::for_client(connect(), CommandOrigin::Client, true)).collect();
        Self { engine, commands: CommandSet::new(registry()), worker, sessions, now: Millis(1_000_000), log }
    }

    fn run(&mut self, client: usize, text: &str) -> (DispatchStatus, String) {
        let (dispatcher, buffer) = (self.commands.dispatcher(&self.engine), format!("{text}\n").into_bytes());
        let session = &mut self.sessions[client];
        let (_, flow, out) = run_buffer(dispatcher, &mut self.worker, session, self.now, buffer);
        (flow, String::from_utf8(out).unwrap().replace("\r\n", "|"))
    }

    /// Runs a command that does not block.
    fn run_command(&mut self, client: usize, text: &str) -> String {
        let (flow, said) = self.run(client, text);
        assert_eq!(flow, DispatchStatus::Done, "{text}");
        said
    }

    fn block(&mut self, client: usize, text: &str) {
        assert_eq!(self.run(client, text), (DispatchStatus::Blocked, String::new()), "{text}");
        assert!(self.sessions[client].client().flags().contains(ClientFlags::BLOCKED));
    }

    fn is_served(&self, client: usize) -> bool {
        self.sessions[client].waiter().is_some_and(|waiter| waiter.is_served())
    }

    /// Returns the reply of a blocked client, or `None` if the client has not been served.
    fn take_served_reply(&mut self, client: usize) -> Option<String> {
        self.is_served(client).then(|| self.end_block(client, UnblockReason::Timeout).1)
    }

    fn end_block(&mut self, client: usize, reason: UnblockReason) -> (WaitEnd, String) {
        let (session, mut out) = (&mut self.sessions[client], Vec::new());
        let dispatcher = self.commands.dispatcher(&self.engine);
        let resumed = dispatcher.end_wait(&mut self.worker, session, self.now, reason, &mut out);
        assert!(!self.sessions[client].client().flags().contains(ClientFlags::BLOCKED));
        (resumed, String::from_utf8(out).unwrap().replace("\r\n", "|"))
    }

    /// Runs a client's blocked command again after its wait has ended.
    fn retry(&mut self, client: usize) -> (DispatchStatus, String) {
        let (session, mut out) = (&mut self.sessions[client], Vec::new());
        let dispatcher = self.commands.dispatcher(&self.engine);
        let status = dispatcher.retry(&mut self.worker, session, self.now, &mut out);
        (status, String::from_utf8(out).unwrap().replace("\r\n", "|"))
    }

    fn take_served_clients(&mut self) -> Vec<usize> {
        (0..self.sessions.len()).filter(|client| self.take_served_reply(*client).is_some()).collect()
    }
}

/// Returns the push messages that are queued for a client.
fn take_messages(session: &Session) -> String {
    let mut out = Vec::new();
    session.take_messages(&mut out);
    String::from_utf8(out).unwrap().replace("\r\n", "|")
}

#[test]
fn push_messages_follow_reply_of_served_client() {
    let mut server = Server::new(2);
    server.run_command(
        0,
        "hello 3\nclient tracking on\nlrange src 0 -1\nlrange dst 0 -1\nsubscribe __keyevent@0__:rpush",
    );
    server
        .engine
        .settings
        .set_notified_event_classes(engine::EventClass::KEYEVENT | engine::EventClass::LIST);
    server.block(0, "blmove src dst left right 0");
    server.run_command(1, "rpush src a");
    let push = |key: &str| format!(">2|$10|invalidate|*1|$3|{key}|");
    let event = |key: &str| format!(">3|$7|message|$20|__keyevent@0__:rpush|$3|{key}|");
    assert_eq!(take_messages(&server.sessions[0]), push("src") + &event("src"));
    assert_eq!(server.take_served_reply(0).as_deref(), Some("$1|a|"));
    assert_eq!(take_messages(&server.sessions[0]), push("dst") + &event("dst"));
    // A failed attempt to serve a blocked client leaves no push messages behind.
    server.block(0, "blmove src dst left right 0");
    server.run_command(1, "multi\nrpush src b\ndel src\nexec");
    assert!(!server.is_served(0));
    server.run_command(1, "rpush dst c");
    assert!(take_messages(&server.sessions[0]).ends_with(&event("dst")));
    server.end_block(0, UnblockReason::Timeout);
}

/// Checks that no waiter remains in the queues at the end of a test.
impl Drop for Server {
    fn drop(&mut self) {
        for session in &mut self.sessions {
            self.engine.disconnect(session);
        }
        if !std::thread::panicking() {
            assert_eq!(self.engine.scheduling.awaited_key_count(), 0);
            assert!(self.engine.scheduling.waiter_counts_match());
        }
    }
}

#[test]
fn longest_waiting_client_is_served_first() {
    let mut server = Server::new(5);
    for client in [3, 1, 2] {
        server.block(client, "take k 0");
    }
    assert_eq!(server.run_command(0, "set k 2\nget k"), "+OK|$-1|", "before the next command of who gave");
    assert_eq!(server.take_served_reply(3).as_deref(), Some("$1|k|"));
    assert_eq!(server.take_served_reply(1).as_deref(), Some("$1|k|"));
    assert_eq!(server.take_served_reply(2), None);
    server.block(3, "take k 0");
    server.run_command(0, "set k 1");
    assert_eq!(server.take_served_clients(), [2], "who came back stands behind");
    server.run_command(0, "set k 5");
    assert_eq!((server.take_served_clients(), server.run_command(0, "get k")), (vec![3], "$1|4|".to_owned()));
}

#[test]
fn push_is_replicated_before_pop_of_served_client() {
    let mut server = Server::new(3);
    server.block(1, "take k 0");
    server.block(2, "take k 0");
    server.run_command(0, "set k 2");
    assert_eq!(server.log.to_lines(), ["0 set k 2", "0 SET k 1", "0 DEL k"]);
    server.take_served_reply(1);
    server.take_served_reply(2);
    let (first, second) = (server.sessions[1].last_write(), server.sessions[2].last_write());
    assert!(first < second, "each knows where its own ends, for WAIT");
    let calls = registry().find(b"take").map(|entry| &server.worker.stats.commands[entry.index].calls);
    assert_eq!(calls.unwrap().load(Ordering::Relaxed), 2);
}

#[test]
fn transaction_serves_waiters_after_exec() {
    let mut server = Server::new(2);
    server.block(1, "take k l 0");
    assert_eq!(server.run_command(0, "multi\nset k 1\ndel k\nexec"), "+OK|+QUEUED|+QUEUED|*2|+OK|:1|");
    assert_eq!(server.take_served_reply(1), None, "it was gone again");
    server.run_command(0, "multi\nset l 1\nset k 1\nexec");
    assert_eq!(server.take_served_reply(1).as_deref(), Some("$1|k|"), "its own order of keys counts");
    assert_eq!(
        server.run_command(0, "multi\ntake x 0\nset k 1\ntake k 0\nexec"),
        "+OK|+QUEUED|+QUEUED|+QUEUED|*3|*-1|+OK|$1|k|"
    );
    let last = server.log.to_lines().split_off(server.log.to_lines().len() - 4);
    assert_eq!(last, ["0 MULTI", "0 set k 1", "0 DEL k", "0 EXEC"]);
}

#[test]
fn served_client_can_serve_another_waiter() {
    let mut server = Server::new(4);
    server.block(1, "take c 0");
    server.block(2, "pass b c 0");
    server.block(3, "pass a b 0");
    server.run_command(0, "set a 1");
    assert_eq!(server.take_served_clients(), [1, 2, 3]);
    assert_eq!(server.run_command(0, "dbsize"), ":0|");
}

#[test]
fn waiter_of_wrong_type_is_not_served() {
    let mut server = Server::new(3);
    server.block(1, "take k 0");
    server.run_command(0, "hset k f 1");
    assert_eq!(server.take_served_reply(1), None, "a value of another kind is not what it waits for");
    server.run_command(0, "del k\nselect 1\nset k 1");
    assert_eq!(server.take_served_reply(1), None, "nor is a key of another database");
    server.run_command(0, "swapdb 0 1");
    assert_eq!(server.take_served_reply(1).as_deref(), Some("$1|k|"));
    server.run_command(0, "select 0");
    server.block(2, "pass from to 0");
    server.run_command(0, "hset to f 1\nset from 1");
    assert!(server.take_served_reply(2).unwrap().starts_with("-WRONGTYPE"), "an error is an answer");
    server.block(1, "take r 0");
    server.run_command(0, "set other 1\nrename other r");
    assert_eq!(server.take_served_reply(1).as_deref(), Some("$1|r|"));
}

#[test]
fn timeout_unblock_and_role_change_end_blocking() {
    let mut server = Server::new(2);
    server.block(1, "take k 3");
    assert_eq!(server.sessions[1].waiter().unwrap().deadline(), Some(Millis(1_003_000)));
    assert_eq!(server.end_block(1, UnblockReason::Timeout), (WaitEnd::Replied, "*-1|".to_owned()));
    server.block(1, "take k 0");
    let id = server.sessions[1].client().id;
    assert_eq!(server.run_command(0, &format!("client unblock {id} error\nset k 1\nget k")), ":1|+OK|$1|1|");
    assert_eq!(server.take_served_reply(1), None, "who is unblocked is served no more");
    let how = server.sessions[1].client().take_unblock_reason().unwrap();
    assert_eq!(server.end_block(1, how).1, "-UNBLOCKED client unblocked via CLIENT UNBLOCK|");
    server.block(1, "take x 0");
    server.engine.unblock_all_waiters();
    let how = server.sessions[1].client().take_unblock_reason().unwrap();
    let said = server.end_block(1, how).1;
    assert!(said.starts_with("-UNBLOCKED force unblock from blocking operation, instance state"), "{said}");
    assert!(server.sessions[1].is_closing());
    let entry = registry().find(b"take").expect("it is one of the commands");
    let stats = &server.worker.stats.commands[entry.index];
    let counted = [&stats.rejected_calls, &stats.failed_calls].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counted, [2, 0], "as Valkey counts what the command has no part in");
}

#[test]
fn disconnected_waiter_is_not_served() {
    let mut server = Server::new(3);
    server.block(1, "take k 0");
    server.block(2, "take k 0");
    server.sessions[1].client().kill();
    server.run_command(0, "set k 1");
    assert_eq!(server.take_served_reply(2).as_deref(), Some("$1|k|"));
    server.block(2, "take k 0");
    let Server { engine, sessions, .. } = &mut server;
    engine.disconnect(&mut sessions[2]);
    assert_eq!(server.run_command(0, "set k 1\nget k"), "+OK|$1|1|");
}

#[test]
fn migrated_slot_redirects_its_waiters() {
    let mut server = Server::new(3);
    server.block(1, "take k 0");
    server.block(2, "take other 0");
    let slot = Slot::of_key(b"k");
    for stays in [Ownership::Migrating, Ownership::Importing, Ownership::Local] {
        server.engine.set_ownership(slot, stays);
        assert_eq!(server.sessions[1].client().take_unblock_reason(), None);
    }
    server.engine.set_ownership(slot, Ownership::Remote);
    let how = server.sessions[1].client().take_unblock_reason().unwrap();
    assert_eq!(server.end_block(1, how), (WaitEnd::Retry, String::new()));
    let request = server.sessions[1].waiter_to_retry().unwrap().request().clone();
    assert_eq!(request.args().iter().collect::<Vec<_>>(), [&b"take"[..], b"k", b"0"]);
    assert_eq!(
        server.retry(1),
        (DispatchStatus::Blocked, String::new()),
        "nothing is redirected without a topology"
    );
    assert_eq!(server.sessions[2].client().take_unblock_reason(), None);
    server.engine.retry_waiters();
    assert_eq!(server.sessions[2].client().take_unblock_reason(), Some(UnblockReason::Retry));
}

/// More clients wait for one key than the server wakes at once.
#[test]
fn thousands_of_waiters_are_served_in_order() {
    const CLIENT_COUNT: usize = 3000;
    let mut server = Server::new(CLIENT_COUNT);
    (1..CLIENT_COUNT).for_each(|client| server.block(client, "take k 0"));
    server.run_command(0, "set k 1000");
    assert_eq!(server.take_served_clients(), (1..=1000).collect::<Vec<_>>());
    server.run_command(0, "set k 999\nset k 1001");
    assert_eq!(server.take_served_clients(), (1001..=2999).collect::<Vec<_>>());
    assert_eq!(server.run_command(0, "get k"), "$1|1|");
}

const NO_GROUP: &str = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option|";
const XREADGROUP_LINE: &str = "xreadgroup group g alice block 0 streams s >";

/// More clients wait for a consumer group than the server wakes at once, and as many others wait for the same key
/// without a group.
#[test]
fn all_group_readers_fail_when_stream_is_deleted() {
    for line in ["del s", "rename s t", "set s 1", "flushall", "xgroup destroy s g", "swapdb 0 1"] {
        let mut server = Server::new(401);
        (1..=200).for_each(|client| server.block(client, "take s 0"));
        server.run_command(0, "xgroup create s g $ mkstream");
        (201..=400).for_each(|client| server.block(client, XREADGROUP_LINE));
        server.run_command(0, line);
        for client in 201..=400 {
            let said = server.take_served_reply(client).unwrap_or_else(|| panic!("{line}: {client}"));
            assert!(said == NO_GROUP || said.starts_with("-WRONGTYPE"), "{line}: {said}");
        }
    }
}

#[test]
fn blocked_group_reader_retries_when_stream_expires() {
    let expire = |server: &mut Server| {
        server.engine.run_expiry_cycle(&mut server.worker, server.now, Duration::from_secs(1));
    };
    let evict = |server: &mut Server| {
        server.engine.settings.eviction.store(config::EvictionPolicy::AllKeysRandom, 5, 10, true);
        server.engine.limit_memory(1);
        server.engine.evict_if_over_limit(&mut server.worker, server.now);
        server.engine.limit_memory(0);
    };
    let ways: [fn(&mut Server); 3] = [expire, |server| drop(server.run_command(0, "get s")), evict];
    for goes in ways {
        let mut server = Server::new(3);
        server.block(2, "take s 0");
        server.run_command(0, "xgroup create s g $ mkstream\npexpire s 10");
        server.block(1, XREADGROUP_LINE);
        server.now.0 += 10;
        goes(&mut server);
        assert_eq!(server.sessions[1].client().take_unblock_reason(), Some(UnblockReason::Retry));
        assert_eq!(
            server.sessions[2].client().take_unblock_reason(),
            None,
            "it goes on waiting for the key to come"
        );
        assert_eq!(server.end_block(1, UnblockReason::Retry), (WaitEnd::Retry, String::new()));
        assert_eq!(server.retry(1), (DispatchStatus::Done, NO_GROUP.to_owned()));
    }
}

#[test]
fn rerun_command_keeps_its_original_deadline() {
    let mut server = Server::new(2);
    server.block(0, "take k 3");
    server.now.0 += 2000;
    assert_eq!(server.end_block(0, UnblockReason::Retry).0, WaitEnd::Retry);
    assert_eq!(server.retry(0).0, DispatchStatus::Blocked);
    assert_eq!(server.sessions[0].waiter().unwrap().deadline(), Some(Millis(1_003_000)));
    server.end_block(0, UnblockReason::Retry);
    let (pauses, settings) = (&server.engine.scheduling.pauses, &server.engine.settings);
    pauses.pause(settings, PausePurpose::Client, PauseMode::All, Millis(server.now.0 + 1));
    assert_eq!(server.retry(0).0, DispatchStatus::Paused, "it still waits to run");
    server.now.0 += 1;
    assert_eq!(server.retry(0).0, DispatchStatus::Blocked);
    assert_eq!(server.sessions[0].waiter().unwrap().deadline(), Some(Millis(1_003_000)));
    server.run_command(1, "set k 1");
    assert_eq!(server.take_served_reply(0).unwrap(), "$1|k|");
    server.block(0, "take k 3");
    assert_eq!(server.sessions[0].waiter().unwrap().deadline(), Some(Millis(1_005_001)), "another command");
}

/// Several threads add and take items of the same keys. No item may be lost or taken twice, and every thread must end.
#[test]
fn concurrent_items_are_taken_exactly_once() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 500;
    let server = Server::new(0);
    let engine = &server.engine;
    let dispatcher = server.commands.dispatcher(engine);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let mut worker = engine.new_worker(|| 0);
                let client = engine.clients.connect(ConnectionInfo::default(), Millis(0), Box::new(|| {}));
                let mut session = Session::for_client(client, CommandOrigin::Client, true);
                let mut random = engine::Random::new(number as u64);
                for _ in 0..ROUNDS {
                    let (a, b) = (random.next_u64() % 3, random.next_u64() % 3);
                    let text = match number % 2 {
                        0 => format!("incr k{a}\nincr k{b}"),
                        _ if random.next_u64() & 1 == 0 => format!("take k{a} k{b} 0"),
                        _ => format!("take k{a} 0"),
                    };
                    let buffer = format!("{text}\n").into_bytes();
                    let (_, flow, _) = run_buffer(dispatcher, &mut worker, &mut session, Millis(1), buffer);
                    while flow == DispatchStatus::Blocked
                        && !session.waiter().is_some_and(|waiter| waiter.is_served())
                    {
                        std::thread::yield_now();
                    }
                    let how = UnblockReason::Timeout;
                    dispatcher.end_wait(&mut worker, &mut session, Millis(1), how, &mut Vec::new());
                }
                engine.disconnect(&mut session);
            });
        }
    });
    // In each round, two threads add two items each and two threads take one item each.
    let mut left = 0;
    for key in ["k0", "k1", "k2"] {
        let key = engine.keyspace.key(key.as_bytes());
        let guard = engine.keyspace.lock(key.slot());
        let table = guard.table_ref(0);
        if let keyspace::KeyLookup::Live(place) = table.find(&key, Millis(1))
            && let keyspace::Value::String(value) = table.value(place)
        {
            left += resp::parse_i64(value.bytes).unwrap();
        }
    }
    assert_eq!(left, (THREADS / 2 * ROUNDS) as i64);
}

/// A reference model of blocking: all waiters are in one queue. After each command, for each changed key in order, the
/// first waiter on that key takes an item from the first of its keys that has one.
#[derive(Default)]
struct ReferenceModel {
    item_counts: [i64; KEY_COUNT],
    waiting_clients: VecDeque<(usize, Vec<usize>)>,
}

const KEY_COUNT: usize = 3;
const CLIENT_COUNT: usize = 6;

impl ReferenceModel {
    fn take_item(&mut self, keys: &[usize]) -> Option<usize> {
        let key = *keys.iter().find(|key| self.item_counts[**key] > 0)?;
        self.item_counts[key] -= 1;
        Some(key)
    }

    /// Adds `count` items to each of `keys`. Returns the clients that are served, each with the key whose item it took.
    fn add_items(&mut self, keys: &[usize], count: i64) -> Vec<(usize, usize)> {
        keys.iter().for_each(|key| self.item_counts[*key] = count);
        let mut served = Vec::new();
        for key in keys {
            while self.item_counts[*key] > 0
                && let Some(place) = self.waiting_clients.iter().position(|(_, wanted)| wanted.contains(key))
            {
                let (client, wanted) = self.waiting_clients.remove(place).unwrap();
                served.push((client, self.take_item(&wanted).unwrap()));
            }
        }
        served
    }
}

#[derive(Debug, Clone)]
enum ModelStep {
    Add(Vec<usize>, i64),
    Take(usize, Vec<usize>),
    EndWait(usize),
}

fn model_steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let keys = || proptest::collection::vec(0..KEY_COUNT, 1..=KEY_COUNT);
    let step = prop_oneof![
        (keys(), 1..4_i64).prop_map(|(keys, count)| ModelStep::Add(keys, count)),
        (1..CLIENT_COUNT, keys()).prop_map(|(client, keys)| ModelStep::Take(client, keys)),
        (1..CLIENT_COUNT, keys()).prop_map(|(client, keys)| ModelStep::Take(client, keys)),
        (1..CLIENT_COUNT).prop_map(ModelStep::EndWait),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn blocking_matches_reference_model(steps in model_steps()) {
        let mut server = Server::new(CLIENT_COUNT);
        let mut model = ReferenceModel::default();
        let mut waits = [false; CLIENT_COUNT];
        for step in steps {
            match step {
                ModelStep::Add(mut keys, count) => {
                    let mut seen = Vec::new();
                    keys.retain(|key| !seen.contains(key) && { seen.push(*key); true });
                    let pairs: Vec<_> = keys.iter().map(|key| format!("k{key} {count}")).collect();
                    server.run_command(0, &format!("mset {}", pairs.join(" ")));
                    for (client, key) in model.add_items(&keys, count) {
                        waits[client] = false;
                        prop_assert_eq!(server.take_served_reply(client), Some(format!("$2|k{key}|")));
                    }
                }
                ModelStep::Take(client, keys) if !waits[client] => {
                    let names: Vec<_> = keys.iter().map(|key| format!("k{key}")).collect();
                    let (flow, said) = server.run(client, &format!("take {} 0", names.join(" ")));
                    match model.take_item(&keys) {
                        Some(key) => prop_assert_eq!((flow, said), (DispatchStatus::Done, format!("$2|k{key}|"))),
                        None => {
                            prop_assert_eq!(flow, DispatchStatus::Blocked);
                            waits[client] = true;
                            model.waiting_clients.push_back((client, keys));
                        }
                    }
                }
                ModelStep::EndWait(client) if waits[client] => {
                    waits[client] = false;
                    model.waiting_clients.retain(|(other, _)| *other != client);
                    prop_assert_eq!(server.end_block(client, UnblockReason::Timeout).1, "*-1|");
                }
                ModelStep::Take(..) | ModelStep::EndWait(_) => {}
            }
            prop_assert_eq!(server.take_served_clients(), Vec::<usize>::new());
        }
    }
}
