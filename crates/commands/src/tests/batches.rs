//! Tests of batches: execution order, replication and refusals.

use std::sync::atomic::Ordering;

use clock::Millis;
use engine::{
    CommandOrigin, CommandSet, DispatchStatus, Engine, NodeFlags, PauseMode, PausePurpose, PipelinedRequests,
    Session,
};
use keyspace::LockedSlots;
use resp::Batch;

use crate::testing::{Client, Connection};

#[test]
fn pipeline_continues_after_refused_command() {
    let mut client = Client::new();
    client.check_replies(&[
        ("set k v\nget k\nnosuch a b\nget\nping", "+OK|$1|v|-ERR unknown command 'nosuch', with args beginning with: 'a' 'b' |-ERR wrong number of arguments for 'get' command|+PONG"),
    ]);
    let stats = &client.worker.stats.commands[crate::server_registry().find(b"get").unwrap().index];
    assert_eq!(stats.calls.load(Ordering::Relaxed), 1);
    assert_eq!(stats.rejected_calls.load(Ordering::Relaxed), 1);
}

#[test]
fn commands_are_refused_depending_on_node_state() {
    let mut client = Client::new();
    let table = [
        (NodeFlags::LOADING, "get k", "-LOADING Valkey is loading the dataset in memory"),
        (NodeFlags::READ_ONLY_REPLICA, "set k v", "-READONLY You can't write against a read only replica."),
        (NodeFlags::READ_ONLY_REPLICA, "get k", "$-1"),
        (NodeFlags::NO_REPLICAS, "set k v", "-NOREPLICAS Not enough good replicas to write."),
        (NodeFlags::OUT_OF_MEMORY, "set k v", "-OOM command not allowed when used memory > 'maxmemory'."),
        (NodeFlags::OUT_OF_MEMORY, "get k", "$-1"),
        (NodeFlags::CLUSTER_DOWN, "get k", "-CLUSTERDOWN The cluster is down"),
        (NodeFlags::CLUSTER_DOWN, "ping", "+PONG"),
        (
            NodeFlags::EMPTY_MASTER,
            "get k",
            "-MASTERDOWN This master started without its data and waits until a replica has taken its place.",
        ),
        (NodeFlags::EMPTY_MASTER, "ping", "+PONG"),
        (NodeFlags::EMPTY_MASTER, "publish channel text", ":0"),
        (NodeFlags::ASYNC_LOADING, "get k", "$-1"),
        (NodeFlags::ASYNC_LOADING, "bgsave", "-LOADING Valkey is loading the dataset in memory"),
    ];
    for (state, line, reply) in table {
        client.engine.settings.set_node_flag(state, true);
        client.check_replies(&[(line, reply)]);
        client.engine.settings.set_node_flag(state, false);
    }
    client.require_password(b"secret");
    client.check_replies(&[("get k", "-NOAUTH Authentication required.")]);
}

/// Only sentinels see the master as down, so that they promote a replica; PING of other clients succeeds.
#[test]
fn master_without_dataset_appears_down_only_to_sentinels() {
    let mut client = Client::new();
    client.engine.settings.set_node_flag(NodeFlags::EMPTY_MASTER, true);
    client.engine.settings.sentinel.rejects_sentinel_pings.store(true, Ordering::Relaxed);
    let down =
        "-EMPTYMASTER This master started without its data and waits until a replica has taken its place.";
    client.check_replies(&[
        ("ping", "+PONG"),
        ("client setname sentinel-0123abcd-cmd", "+OK"),
        ("ping", down),
    ]);
    client.check_replies(&[("publish __sentinel__:hello a,b", ":0")]);
    assert!(client.engine.settings.sentinel.hello_seen.load(Ordering::Relaxed));
    let greeting = client.engine.settings.sentinel.last_hello.swap(None);
    assert_eq!(greeting.as_deref().map(Vec::as_slice), Some(&b"a,b"[..]));
    client.engine.settings.sentinel.rejects_sentinel_pings.store(false, Ordering::Relaxed);
    client.check_replies(&[("ping", "+PONG")]);
}

/// A request from a web browser (cross-protocol attack) closes the connection, since its body may contain commands.
#[test]
fn http_request_closes_connection() {
    for line in ["POST / HTTP/1.1", "Host: localhost", "hOSt: a"] {
        let mut client = Client::new();
        assert_eq!(client.run_status(line), DispatchStatus::Close, "{line}");
        assert!(client.session.is_closing(), "{line}");
    }
}

/// The slots must be unlocked after the flush even if the next command of the pipeline locks no slot.
#[test]
fn flush_frees_memory_after_unlocking_slots() {
    let mut client = Client::new();
    for next in ["ping", "flushdb sync", "nosuch", "mset a 1 b 2"] {
        client.check_replies(&[("set k v", "+OK")]);
        assert!(client.run_to_text(&format!("flushall sync\n{next}")).starts_with("+OK\r\n"));
    }
}

/// However large or numerous a client's replies are, its output stops at the output buffer limit and the client is
/// disconnected.
#[test]
fn client_is_disconnected_while_building_oversized_reply() {
    let value = "v".repeat(1000);
    let pipeline = "get k\n".repeat(100) + "set after 1";
    for text in
        ["hrandfield h -1000000\nset after 1", "get large\nset after 1", &pipeline, "multi\nget large\nexec"]
    {
        let mut client = Client::new();
        client.check_replies(&[("hset h f v", ":1")]);
        client.call(&["set", "k", &value]);
        client.call(&["set", "large", &value.repeat(1000)]);
        client.session.set_reply_limit(50_000);
        let (flow, out) = client.run_lines(text);
        assert_eq!(flow, DispatchStatus::Close, "{text}");
        assert!(
            client.session.client().exceeded_output_limit() && out.capacity() <= 51_000,
            "{text}: {}",
            out.capacity()
        );
        // A disconnected client executes no more commands, so another client checks the state.
        client.session = Session::new(2, engine::CommandOrigin::Client, true);
        client.check_replies(&[("exists after", ":0")]);
    }
}

#[test]
fn only_writes_are_replicated() {
    let mut client = Client::with_recording_log();
    client.run_to_text("set k v\nget k");
    assert_eq!(client.logged_commands(), ["0 set k v"]);
    assert_eq!(client.session.last_write(), slot_routing::ReplOffset(27));
    assert_eq!(client.call(&["get", "k"]), resp::Value::Bulk(b"v".to_vec()));
}

/// With `replica-read-only no`, a replica accepts writes but does not replicate them: its log must remain a byte-exact
/// copy of the master's stream.
#[test]
fn client_writes_on_replica_are_not_replicated() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[("set gone v px 10", "+OK"), ("set k v", "+OK")]);
    let before = client.logged_commands();
    client.now.0 += 10;
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    client.check_replies(&[
        ("set k 2", "+OK"),
        ("incr k", ":3"),
        ("set gone w", "+OK"),
        ("multi", "+OK"),
        ("incr k", "+QUEUED"),
        ("exec", "*1|:4"),
        ("publish channel x", ":0"),
        ("set brief x px 5", "+OK"),
    ]);
    client.now.0 += 5;
    client.engine.run_expiry_cycle(&mut client.worker, client.now, std::time::Duration::from_secs(1));
    client.check_replies(&[("get brief", "$-1"), ("flushall", "+OK"), ("dbsize", ":0")]);
    assert_eq!(client.logged_commands(), before);
}

/// The topology is published slot by slot, so during a role change a slot may already be assigned while the role is
/// still that of a replica.
#[test]
fn cluster_replica_refuses_writes_to_own_slot() {
    let mut client = Client::in_cluster();
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    assert!(client.run_to_text("set k v").starts_with("-READONLY"));
    client.run_to_text("multi\nset k v");
    assert!(client.run_to_text("exec").starts_with("-EXECABORT"));
    client.check_replies(&[("get k", "$-1")]);
}

/// A read of an expired key deletes the key, which is a write and must not happen while writes are paused.
#[test]
fn paused_writes_prevent_expiry_deletions() {
    let mut client = Client::with_recording_log();
    client.run_to_text("set k v px 10");
    client.now.0 += 11;
    let (engine, until) = (&client.engine, Millis(client.now.0 + 1000));
    engine.scheduling.pauses.pause(&engine.settings, PausePurpose::Failover, PauseMode::Writes, until);
    client.check_replies(&[("get k", "$-1")]);
    assert_eq!(client.logged_commands().len(), 1);
    client.engine.scheduling.pauses.unpause(&client.engine.settings, PausePurpose::Failover);
    client.check_replies(&[("get k", "$-1")]);
    assert_eq!(client.logged_commands().last().map(String::as_str), Some("0 UNLINK k"));
}

/// A slot stays locked between consecutive commands on it, and is unlocked before any other command.
#[test]
fn retained_slot_lock_is_released() {
    for mut client in [Client::new(), Client::with_recording_log(), Client::in_cluster()] {
        let several = "set k 1\nincr k\nget k\nmulti\nincr k\nget k\nexec\nincr k\nincr k x\nget k\nwatch k\n\
                       mget k k\nget k\nlpos k\nget k\ndbsize\nget k\nflushall\nincr k\nincr {k}2\nget k\n\
                       client reply skip\nget k\nget k";
        let said = client.run_to_text(several);
        assert_eq!(said.lines().filter(|line| line.starts_with('-')).count(), 2, "{said}");
        assert!(said.ends_with("$1\r\n1\r\n"), "{said}");
        // This call blocks forever if a slot is still locked.
        drop(LockedSlots::lock_all(&client.engine.keyspace.acquire_global_lock()));
    }
}

/// Runs four connections on separate threads, each with batches of about forty requests. `request` generates a request
/// from the thread number, the batch number and a random number.
fn write_from_threads(
    (engine, commands): (&Engine, &CommandSet),
    batches: u64,
    request: impl Fn(u64, u64, u64) -> String + Sync,
) {
    const THREADS: u64 = 4;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let request = &request;
            scope.spawn(move || {
                let session = Session::new(thread + 2, CommandOrigin::Client, true);
                let mut connection = Connection::new(engine, commands, session, Millis(1));
                let mut random = engine::Random::new(thread);
                for read in 0..batches {
                    let lines: String = (0..40).map(|_| request(thread, read, random.next_u64())).collect();
                    let (stopped, flow, _) = connection.run(&lines);
                    assert_eq!((stopped, flow), (lines.lines().count(), DispatchStatus::Done));
                }
            });
        }
    });
}

/// Threads lock slots in advance, in any order, while other threads wait for these slots. There must be no deadlock.
#[test]
fn concurrent_batches_on_shared_slots_do_not_deadlock() {
    let mut client = Client::new();
    write_from_threads((&client.engine, &client.commands), 300, |_, _, random| {
        let (one, other) = (random >> 8 & 7, random >> 16 & 7);
        match random & 7 {
            0 => format!("mget key:{one} key:{other}\n"),
            1 => format!("getrange key:{one} 0 -1\n"),
            2 => "dbsize\n".to_owned(),
            _ => format!("hincrby hash:{one} f 1\nincr key:{other}\n"),
        }
    });
    for (command, made) in [("get key", "incr"), ("hget hash", "hincrby")] {
        let entry = crate::server_registry().find(made.as_bytes()).unwrap();
        let stats = client.engine.diagnostics.worker_stats();
        let calls: u64 =
            stats.iter().map(|worker| worker.commands[entry.index].calls.load(Ordering::Relaxed)).sum();
        let field = if made == "incr" { "" } else { " f" };
        let counted = (0..8).map(|number| {
            let said = client.run_to_text(&format!("{command}:{number}{field}"));
            said.lines().nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
        });
        assert_eq!(counted.sum::<u64>(), calls, "{made}");
    }
}

/// A batch is appended to the log with a single append, in execution order, before any of its slots is unlocked.
#[test]
fn batch_is_appended_to_log_at_once() {
    let mut client = Client::with_recording_log();
    client.run_to_text("set a 1\nset b 2\nget a\nset a 3\nincr b\nhset h f v\nset a 4");
    let all = ["set a 1", "set b 2", "set a 3", "incr b", "hset h f v", "set a 4"];
    assert_eq!(client.logged_commands(), all.map(|line| format!("0 {line}")));
    assert_eq!(client.append_count(), 1);
    drop(LockedSlots::lock_all(&client.engine.keyspace.acquire_global_lock()));
    // The effects of slow, multi-key and keyless commands are appended after the effects of the commands before them.
    for between in ["getrange a 0 1", "mget a b", "dbsize", "multi\nget a\nexec", "nosuch"] {
        let before = client.append_count();
        client.run_to_text(&format!("set x 1\nset y 2\n{between}\nset x 3"));
        assert_eq!(client.append_count(), before + 2, "{between}");
    }
    let before = client.append_count();
    client.run_to_text("set a 1\nselect 1\nset a 2\nselect 0\nset a 3");
    assert_eq!(client.append_count(), before + 3);
    assert_eq!(
        client.logged_commands().split_off(client.logged_commands().len() - 3),
        ["0 set a 1", "1 set a 2", "0 set a 3"]
    );
    let end: usize = client.log_bytes();
    assert_eq!(client.session.last_write(), slot_routing::ReplOffset(end as u64));
}

/// The deletion of an expired key is replicated after earlier writes to its slot and before later ones.
#[test]
fn expired_key_deletion_is_replicated_in_order() {
    let mut client = Client::with_recording_log();
    client.run_to_text("set {s}a 1 px 10");
    client.now.0 += 11;
    client.run_to_text("set {s}b 1\nappend {s}a 2\nset {s}b 3");
    assert_eq!(
        client.logged_commands().split_off(1),
        ["0 set {s}b 1", "0 UNLINK {s}a", "0 append {s}a 2", "0 set {s}b 3"]
    );
}

/// Threads write to the same keys in batches whose slots stay locked until the batch is logged. Replaying the log gives
/// the same dataset.
#[test]
fn replaying_log_of_concurrent_writes_gives_same_dataset() {
    let mut client = Client::with_recording_log();
    write_from_threads((&client.engine, &client.commands), 200, |thread, read, random| {
        let (one, other) = (random >> 8 & 7, random >> 16 & 7);
        match random & 15 {
            0 => format!("mset key:{one} {thread} key:{other} {read}\n"),
            1 => format!("getrange key:{one} 0 -1\n"),
            2 => format!("set key:{one} {thread}:{read}\n"),
            3 => format!("multi\nappend key:{one} {thread}\ndel key:{other}\nexec\n"),
            4 => format!("del key:{one}\n"),
            _ => format!("append key:{one} {thread}\nget key:{other}\n"),
        }
    });
    let mut replica = Client::new();
    for line in client.logged_commands() {
        replica.call(&line.split(' ').skip(1).collect::<Vec<_>>());
    }
    for key in 0..8 {
        let key = format!("key:{key}");
        assert_eq!(replica.call(&["get", &key]), client.call(&["get", &key]), "{key}");
    }
}

/// A batch yields at the end of its time slice, so that other clients of the worker are served, and continues later.
#[test]
fn batch_yields_at_end_of_time_slice_and_resumes() {
    let mut client = Client::new();
    let mut buffer = b"incr k\nget k\nnosuch\nincr k\n".to_vec();
    let mut batch = Batch::default();
    resp::Parser::new().parse(&mut buffer, &mut batch, &resp::ParseLimits::default());
    let mut out = Vec::new();
    client.session.set_time_slice_end(0);
    let (mut from, mut turns) = (0, 0);
    let mut flow = DispatchStatus::TimeSliceOver;
    while flow == DispatchStatus::TimeSliceOver {
        let requests = PipelinedRequests { buffer: &buffer, batch: &batch, first_pending: from };
        let dispatcher = client.commands.dispatcher(&client.engine);
        (from, flow) =
            dispatcher.run(&mut client.worker, &mut client.session, client.now, requests, &mut out);
        turns += 1;
    }
    assert_eq!((from, flow), (4, DispatchStatus::Done));
    // Each command ends its time slice, except possibly the refused one, which does not update the clock.
    assert!((3..=4).contains(&turns), "{turns}");
    let said = String::from_utf8_lossy(&out).replace("\r\n", "|");
    let nosuch = "-ERR unknown command 'nosuch', with args beginning with: |";
    assert_eq!(said, format!(":1|$1|1|{nosuch}:2|"));
}

/// The count of a client's executed commands includes those in transactions and scripts, but not refused commands.
#[test]
fn only_executed_commands_count_for_client() {
    let mut client = Client::new();
    let count = |client: &mut Client| -> u64 {
        let line = client.run_to_text("client info");
        line.split("tot-cmds=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap()
    };
    let mut before = count(&mut client);
    for (lines, ran) in [
        ("set k 1\nget k", 2),
        ("nosuch\nget\nget a b", 0),
        ("lpush k x", 1),
        ("multi\nset k 2\nget k\nexec", 4),
        ("eval \"redis.call('get','k') return redis.call('set','k',1)\" 0", 3),
    ] {
        client.run_to_text(lines);
        let now = count(&mut client);
        assert_eq!(now - before, ran + 1, "{lines}");
        before = now;
    }
}

/// Regression test: a replica crashed when its master sent DEBUG PANIC, and ACL SETUSER from a master created a user on
/// the replica.
#[test]
fn replica_refuses_admin_commands_from_master() {
    let mut client = Client::new();
    client.session = Session::new(1, CommandOrigin::Master, true);
    for line in [
        "debug panic",
        "acl setuser me on nopass ~* +@all",
        "acl deluser default",
        "client kill type normal",
        "client pause 100000",
        "config set maxmemory 1",
        "config resetstat",
        "shutdown nosave",
        "replicaof no one",
        "cluster reset",
        "slowlog reset",
        "monitor",
    ] {
        let reply = client.run_to_text(line);
        assert!(reply.starts_with("-NOEFFECT "), "{line}: {reply}");
    }
    client.check_replies(&[
        ("set k v", "+OK"),
        ("multi", "+OK"),
        ("select 1", "+QUEUED"),
        ("pfadd p a", "+QUEUED"),
        ("exec", "*2|+OK|:1"),
        ("script load \"return 1\"", "$40|e0e1f9fabfc9d4800c877a703b823ac0578ff8db"),
        ("publish c m", ":0"),
    ]);
    assert_eq!(client.engine.access.users.read().iter().count(), 1);
}

/// As in Valkey, an unauthenticated client cannot learn which commands exist.
#[test]
fn unauthenticated_client_gets_noauth_first() {
    let mut client = Client::new();
    client.require_password(b"secret");
    let noauth = "-NOAUTH Authentication required.";
    client.check_replies(&[
        ("nosuch", noauth),
        ("get", noauth),
        ("config nosuch", noauth),
        ("debug nosuch", noauth),
        ("ping", noauth),
        ("auth", "-ERR wrong number of arguments for 'auth' command"),
        ("auth secret", "+OK"),
        ("nosuch", "-ERR unknown command 'nosuch', with args beginning with: "),
    ]);
}

/// A client that runs MONITOR may not access keys, and neither may the connection of a replica.
#[test]
fn monitor_client_cannot_access_keys() {
    let mut client = Client::new();
    client.run_to_text("monitor");
    let refused = "-ERR Replica can't interact with the keyspace\r\n";
    for line in ["set k v", "get k", "eval \"return 1\" 0", "del k", "dbsize", "multi\nset k v\ndiscard"] {
        assert!(client.run_to_text(line).contains(refused), "{line}");
    }
    assert!(client.run_to_text("ping").contains("+PONG\r\n"));
    client.run_to_text("reset");
    client.check_replies(&[("get k", "$-1")]);
}
