//! Tests of `maxmemory`: which keys are evicted, which writes are refused, and that memory use stays below the limit.

use std::time::Duration;

use harness::{Connection, Node, Program, Reply, eventually};

const MIB: u64 = 1 << 20;

fn info_number(node: &Node, section: &str, field: &str) -> u64 {
    node.info(section, field).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {field}"))
}

fn is_oom_error(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("OOM "))
}

/// Values of 20 MiB arrive in quick succession. Every write that exceeds the limit must be refused, not only the writes
/// after the next timer tick.
#[test]
fn writes_beyond_maxmemory_are_refused_immediately() {
    let node = Node::start(&Program::redoubt(), "--save  --maxmemory 100mb");
    let mut connection = node.connect();
    let value = "x".repeat(20 << 20);
    let replies: Vec<Reply> =
        (0..10).map(|key| connection.call(&["SET", &format!("k{key}"), &value])).collect();
    let stored = replies.iter().filter(|reply| !is_oom_error(reply)).count();
    // Memory use includes the query buffer of the current value, and sometimes one of an earlier value that is not
    // freed yet. So timing decides which values are refused.
    assert!((2..=4).contains(&stored), "{stored} values of 20 MB under a limit of 100: {replies:?}");
    // The query buffer of a refused value is freed when its connection is served again.
    eventually("memory use is below the limit", || {
        (info_number(&node, "memory", "used_memory") <= 100 * MIB).then_some(())
    });
    assert_eq!(connection.call_line("DEL k0"), Reply::Int(1), "the first value always fits");
    assert_eq!(
        connection.call_line("SET small x"),
        Reply::Simple("OK".to_owned()),
        "there is room again at once"
    );
    assert!(info_number(&node, "stats", "total_eviction_exceeded_time") < 60_000);
}

/// Writes `count` keys with this prefix in batches of 1,000; returns the number of OOM errors.
fn write_keys(connection: &mut Connection, prefix: &str, count: usize, value: &str) -> usize {
    let mut errors = 0;
    for chunk in (0..count).collect::<Vec<_>>().chunks(1000) {
        let wire: String = chunk
            .iter()
            .map(|n| {
                let key = format!("{prefix}{n}");
                format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len())
            })
            .collect();
        connection.send_raw(wire.as_bytes()).expect("sent");
        for _ in chunk {
            errors += usize::from(is_oom_error(&connection.read().expect("a reply")));
        }
    }
    errors
}

/// Two clients write more data than fits. Memory use must stay below the limit, no write may be refused, and the
/// replica must have the master's keys although its own limit is lower.
#[test]
fn cache_stays_below_maxmemory_and_its_replica_follows() {
    let options = "--save  --io-threads 2 --maxmemory 40mb --maxmemory-policy allkeys-lru";
    let master = Node::start(&Program::redoubt(), options);
    let options = format!(
        "--save  --maxmemory 10mb --maxmemory-policy allkeys-lru --replicaof 127.0.0.1 {}",
        master.port
    );
    let replica = Node::start(&Program::redoubt(), &options);
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    let value = "v".repeat(100);
    std::thread::scope(|scope| {
        for prefix in ["a", "b"] {
            let (master, value) = (&master, &value);
            scope.spawn(move || {
                let mut connection = master.connect();
                for round in 0..6 {
                    assert_eq!(write_keys(&mut connection, &format!("{prefix}{round}:"), 50_000, value), 0);
                    // What a slow replica has not read yet does not cause evictions.
                    let memory = |field| info_number(master, "memory", field);
                    let used = memory("used_memory") - memory("mem_not_counted_for_evict");
                    assert!(used < 42 * MIB, "{used} bytes under a limit of 40 MB");
                }
            });
        }
    });
    let (keys, evicted) = (master.run("DBSIZE").int(), info_number(&master, "stats", "evicted_keys") as i64);
    assert_eq!(keys + evicted, 600_000);
    assert!(keys > 100_000, "{keys} keys of 112 bytes under a limit of 40 MB");
    // The master may still be evicting keys.
    eventually("the replica has the same keys", || {
        (replica.run("DBSIZE") == master.run("DBSIZE")).then_some(())
    });
    assert_eq!(info_number(&replica, "stats", "evicted_keys"), 0);
    eventually("the data is the same", || {
        (replica.run("DEBUG DIGEST") == master.run("DEBUG DIGEST")).then_some(())
    });
}

/// When the limit is lowered, keys are evicted without another write.
#[test]
fn lowered_maxmemory_evicts_without_a_write() {
    let node = Node::start(&Program::redoubt(), "--save  --maxmemory-policy allkeys-random");
    let mut connection = node.connect();
    let value = "v".repeat(1000);
    write_keys(&mut connection, "k", 50_000, &value);
    assert!(info_number(&node, "memory", "used_memory") > 50 * MIB);
    connection.call_line("CONFIG SET maxmemory 30mb").expect_ok();
    eventually("keys are evicted", || {
        (info_number(&node, "memory", "used_memory") <= 30 * MIB).then_some(())
    });
    let left = connection.call_line("DBSIZE").int();
    assert!((20_000..30_000).contains(&left), "{left}");
}

/// During a save, evicted values stay in memory for the snapshot, which must not cause further evictions.
#[test]
fn save_does_not_cause_excessive_eviction() {
    let node = Node::start(&Program::redoubt(), "--save  --maxmemory 60mb --maxmemory-policy allkeys-lru");
    let mut connection = node.connect();
    let value = "v".repeat(500);
    write_keys(&mut connection, "k", 200_000, &value);
    let before = connection.call_line("DBSIZE").int();
    connection.call_line("BGSAVE");
    write_keys(&mut connection, "more", 20_000, &value);
    let after = connection.call_line("DBSIZE").int();
    assert!(after * 10 > before * 8, "of {before} keys {after} are left");
}

/// Requests with 300,000 arguments for `command` in total, 1,000 per request.
fn requests_with_many_arguments(command: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for first in (0..300_000).step_by(1000) {
        wire.extend_from_slice(format!("*1001\r\n${}\r\n{command}\r\n", command.len()).as_bytes());
        for number in first..first + 1000 {
            wire.extend_from_slice(format!("$30\r\nname-of-something-{number:012}\r\n").as_bytes());
        }
    }
    wire
}

/// Watched keys, subscriptions and incomplete requests all use memory of their client.
#[test]
fn clients_with_many_watches_subscriptions_or_unfinished_requests_are_evicted() {
    let unfinished = format!("*2\r\n$4\r\nECHO\r\n$40000000\r\n{}", "x".repeat(30_000_000));
    let requests = [
        ("watches", requests_with_many_arguments("WATCH")),
        ("listens", requests_with_many_arguments("SUBSCRIBE")),
        ("does not end its request", unfinished.into_bytes()),
    ];
    let node = Node::start(&Program::redoubt(), "--save  --maxmemory-clients 20mb");
    let mut bystander = node.connect();
    for (closed, (does, wire)) in requests.iter().enumerate() {
        let mut stream = std::net::TcpStream::connect(node.address()).expect("a connection");
        let mut replies = stream.try_clone().expect("its other end");
        std::thread::spawn(move || std::io::copy(&mut replies, &mut std::io::sink()));
        // The write fails once the server has closed the connection, which the test expects.
        let _ = std::io::Write::write_all(&mut stream, wire);
        eventually(&format!("the client that {does} is evicted"), || {
            (info_number(&node, "stats", "evicted_clients") > closed as u64).then_some(())
        });
        assert_eq!(bystander.call_line("PING"), Reply::Simple("PONG".to_owned()));
    }
}

/// The client that uses most memory is disconnected unless it is exempt.
#[test]
fn clients_over_maxmemory_clients_are_evicted() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let mut control = node.connect();
    // As in Valkey, an exempt client counts towards the limit: while it exceeds the limit, all other clients are
    // disconnected, however little memory they use.
    control.call_line("CLIENT NO-EVICT ON").expect_ok();
    control.call_line("CONFIG SET maxmemory-clients 5mb").expect_ok();
    let fat = |exempt: bool| {
        let mut connection = node.connect();
        connection.set_timeout(Duration::from_secs(5));
        if exempt {
            connection.call_line("CLIENT NO-EVICT ON").expect_ok();
        }
        connection.call_line("MULTI").expect_ok();
        for _ in 0..8 {
            // The command fails once the server has closed the connection, which the test expects.
            let _ = connection.try_call(&["SET", "k", &"x".repeat(1 << 20)]);
        }
        connection
    };
    let mut stays = fat(true);
    assert_eq!(stays.call_line("DISCARD"), Reply::Simple("OK".to_owned()));
    let mut goes = fat(false);
    eventually("the client is evicted", || goes.try_call(&["PING"]).is_err().then_some(()));
    assert_eq!(info_number(&node, "stats", "evicted_clients"), 1);
    assert_eq!(control.call_line("PING"), Reply::Simple("PONG".to_owned()));
}

/// Regression test: with room for a few thousand keys only, a worker's per-slot bookkeeping used a quarter of this
/// room, so all keys were evicted and every write was refused.
#[test]
fn small_cache_refuses_no_writes() {
    let node = Node::start(&Program::redoubt(), "--save  --maxmemory-policy allkeys-lru");
    let mut connection = node.connect();
    // The first commands make the server allocate memory that it keeps.
    write_keys(&mut connection, "before", 1000, "value");
    for room in [200_000, 500_000] {
        connection.call_line("FLUSHALL").expect_ok();
        let limit = info_number(&node, "memory", "used_memory") + room;
        connection.call_line(&format!("CONFIG SET maxmemory {limit}")).expect_ok();
        assert_eq!(
            write_keys(&mut connection, "key", 30_000, "value"),
            0,
            "refused with room for {room} bytes"
        );
        let kept = connection.call_line("DBSIZE").int() as u64;
        assert!(kept >= room / 250, "{kept} keys in {room} bytes");
    }
}

/// Clients that request much data and read nothing are disconnected before any key is evicted.
#[test]
fn clients_are_evicted_before_keys() {
    let options = "--save  --maxmemory 60mb --maxmemory-clients 10% --maxmemory-policy allkeys-lru";
    for program in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let node = Node::start(&program, options);
        let mut control = node.connect();
        control.call_line("CLIENT NO-EVICT ON").expect_ok();
        write_keys(&mut control, "key:", 2000, &"x".repeat(10_000));
        let reads: String = (0..2000).map(|number| format!("GET key:{number}\r\n")).collect();
        let greedy: Vec<std::net::TcpStream> = (0..30)
            .map(|_| {
                let mut stream = std::net::TcpStream::connect(node.address()).expect("a connection");
                // The write fails once the server has closed the connection, which the test expects.
                let _ = std::io::Write::write_all(&mut stream, reads.as_bytes());
                stream
            })
            .collect();
        eventually("most clients are evicted", || {
            (info_number(&node, "stats", "evicted_clients") >= 25).then_some(())
        });
        assert_eq!(info_number(&node, "stats", "evicted_keys"), 0, "{}", program.name());
        assert_eq!(control.call_line("DBSIZE").int(), 2000, "{}", program.name());
        drop(greedy);
    }
}

/// The output buffer of a stopped replica must not count towards `maxmemory`.
#[test]
fn stuck_replica_causes_no_evictions() {
    for program in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let master = Node::start(&program, "--save  --repl-backlog-size 64kb");
        let replica = Node::start(&Program::redoubt(), "--save ");
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        eventually("the replica is linked", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        let mut client = master.connect();
        client.call(&["CONFIG", "SET", "client-output-buffer-limit", "replica 0 0 0"]).expect_ok();
        for key in 0..1000 {
            client.call(&["SET", &format!("key:{}", key % 100), &"x".repeat(5000)]).expect_ok();
        }
        replica.freeze();
        client.call_line("CONFIG SET maxmemory-policy allkeys-random").expect_ok();
        let limit = info_number(&master, "memory", "used_memory") + (1 << 20);
        client.call_line(&format!("CONFIG SET maxmemory {limit}")).expect_ok();
        for write in 0..20_000 {
            let reply = client.call(&["SETRANGE", &format!("key:{}", write % 100), "0", &"y".repeat(1000)]);
            assert!(!is_oom_error(&reply), "{}: {reply:?}", program.name());
        }
        assert_eq!(info_number(&master, "stats", "evicted_keys"), 0, "{}", program.name());
        let waiting = |client: &mut Connection| -> u64 {
            let list = client.call_line("CLIENT LIST TYPE replica").text();
            let omem = list.split(" omem=").nth(1).and_then(|rest| rest.split(' ').next());
            omem.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("no omem: {list}"))
        };
        let before = waiting(&mut client);
        assert!(before > 8 << 20, "{}: {before}", program.name());
        client.call(&["SET", "key:0", &"z".repeat(100_000)]).expect_ok();
        let more = waiting(&mut client) - before;
        assert!(more >= 100_000, "{}: the output buffer is counted at once: {more}", program.name());
        for field in ["mem_clients_slaves", "mem_not_counted_for_evict"] {
            assert!(info_number(&master, "memory", field) > 8 << 20, "{}: {field}", program.name());
        }
        client.call(&["CONFIG", "SET", "client-output-buffer-limit", "replica 1mb 0 0"]).expect_ok();
        eventually("the replica is disconnected and counted", || {
            client.call_line("SET more 1").expect_ok();
            (info_number(&master, "stats", "client_output_buffer_limit_disconnections") == 1).then_some(())
        });
        replica.thaw();
    }
}

/// Memory of the Lua interpreter (arguments and garbage) must not cause evictions. A script that uses too much memory
/// is refused.
#[test]
fn script_memory_causes_no_evictions_and_is_limited() {
    for program in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let node = Node::start(&program, "--save  --maxmemory 60mb --maxmemory-policy allkeys-lru");
        let mut client = node.connect();
        let value = "x".repeat(10_000);
        for key in 0..4000 {
            client.call(&["SET", &format!("k{key}"), &value]).expect_ok();
        }
        let keys: Vec<String> = (0..100_000).map(|key| format!("key:{key:06}")).collect();
        let mut words = vec!["EVAL", "return #KEYS", "100000"];
        words.extend(keys.iter().map(String::as_str));
        for _ in 0..4 {
            assert_eq!(client.call(&words).int(), 100_000);
        }
        client.call_line("CONFIG SET maxmemory-policy noeviction").expect_ok();
        assert_eq!(client.call(&words).int(), 100_000);
        client.call_line("SET another 1").expect_ok();
        assert_eq!(client.call_line("DBSIZE").int(), 4001, "{}", program.name());
        assert_eq!(info_number(&node, "stats", "evicted_keys"), 0, "{}", program.name());
    }
    let node = Node::start(&Program::redoubt(), "--save  --maxmemory 60mb");
    let alive = "local t={} for i=1,40 do t[i]=('x'):rep(1000000)..i end return #t";
    assert!(node.connect().call(&["EVAL", alive, "0"]).is_error("ERR not enough memory"));
}
