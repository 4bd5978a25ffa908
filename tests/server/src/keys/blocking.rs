//! Tests of blocking commands: the order in which clients are served, and the other events that unblock a client.

use std::time::{Duration, Instant};

use harness::{Connection, Node, Program, Reply, cpu_ticks, eventually, never_within};

fn start_server(options: &str) -> Node {
    Node::start(&Program::redoubt(), &format!("--save  {options}"))
}

/// Uses several workers, so that successive clients in the queue are on different threads.
fn start_with_three_workers() -> Node {
    start_server("--io-threads 3")
}

fn wait_for_blocked(node: &Node, count: usize) {
    eventually(&format!("{count} clients wait"), || {
        (node.info("clients", "blocked_clients")? == count.to_string()).then_some(())
    });
}

/// Connects one client per command; each blocks before the next client sends its command.
fn connect_blocked(node: &Node, lines: &[&str]) -> Vec<Connection> {
    let before: usize =
        node.info("clients", "blocked_clients").and_then(|n| n.parse().ok()).expect("a number");
    let wait = |(number, line): (usize, &&str)| {
        let mut connection = node.connect();
        connection.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
        wait_for_blocked(node, before + number + 1);
        connection
    };
    lines.iter().enumerate().map(wait).collect()
}

/// Reads the next reply as text; an array becomes `[a b]`.
fn read_reply(connection: &mut Connection) -> String {
    reply_text(&connection.read().expect("a reply"))
}

fn reply_text(value: &Reply) -> String {
    match value {
        Reply::Array(items) => format!("[{}]", items.iter().map(reply_text).collect::<Vec<_>>().join(" ")),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Simple(text) => text.clone(),
        Reply::Int(number) => number.to_string(),
        Reply::Error(text) => format!("-{text}"),
        other => format!("{other:?}"),
    }
}

fn run_commands(node: &Node, lines: &[&str]) {
    let mut connection = node.connect();
    for line in lines {
        let reply = connection.call_line(line);
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
    }
}

#[test]
fn blocked_clients_are_served_in_order_across_threads_and_commands() {
    let node = start_with_three_workers();
    let mut clients = connect_blocked(&node, &["BLPOP a b 0"; 12]);
    for (number, client) in clients.iter_mut().enumerate() {
        let key = if number % 3 == 0 { "a" } else { "b" };
        run_commands(&node, &[&format!("RPUSH {key} {number}")]);
        assert_eq!(read_reply(client), format!("[{key} {number}]"));
    }
    let lines = [
        ("BLPOP l 0", "[l 1]"),
        ("BRPOP other l 0", "[l 5]"),
        ("BLMPOP 0 2 l other LEFT COUNT 2", "[l [2 3]]"),
        ("BLMOVE l dest LEFT RIGHT 0", "4"),
        ("BRPOPLPUSH l dest 0", "6"),
    ];
    let mut clients = connect_blocked(&node, &lines.map(|(line, _)| line));
    run_commands(&node, &["RPUSH l 1 2 3 4 5", "RPUSH l 6"]);
    for (client, (line, reply)) in clients.iter_mut().zip(lines) {
        assert_eq!(read_reply(client), reply, "{line}");
    }
    assert_eq!(reply_text(&node.run("LRANGE dest 0 -1")), "[6 4]");
    assert_eq!(node.run("EXISTS l a b").int(), 0);
    wait_for_blocked(&node, 0);
}

#[test]
fn blocking_commands_work_for_sorted_sets_and_streams() {
    let node = start_with_three_workers();
    let lines = [
        ("BZPOPMIN z 0", "[z a 1]"),
        ("BZPOPMAX none z 0", "[z d 4]"),
        ("BZMPOP 0 1 z MIN COUNT 2", "[z [[b 2] [c 3]]]"),
    ];
    let mut clients = connect_blocked(&node, &lines.map(|(line, _)| line));
    run_commands(&node, &["ZADD z 1 a 2 b 3 c 4 d"]);
    for (client, (line, reply)) in clients.iter_mut().zip(lines) {
        assert_eq!(read_reply(client), reply, "{line}");
    }
    // Each client in XREAD gets the entry, but only one client per consumer group.
    run_commands(&node, &["XGROUP CREATE s g $ MKSTREAM", "XGROUP CREATE s h $"]);
    let group = |name: &str| format!("XREADGROUP GROUP {name} me BLOCK 0 STREAMS s >");
    let lines =
        ["XREAD BLOCK 0 STREAMS s $", &group("g"), &group("g"), &group("h"), "XREAD BLOCK 0 STREAMS t s 0 0"];
    let mut clients = connect_blocked(&node, &lines);
    run_commands(&node, &["XADD s 1-1 f v"]);
    let mut second = clients.remove(2);
    for client in &mut clients {
        assert_eq!(read_reply(client), "[[s [[1-1 [f v]]]]]");
    }
    wait_for_blocked(&node, 1);
    run_commands(&node, &["XADD s 2-1 f v"]);
    assert_eq!(read_reply(&mut second), "[[s [[2-1 [f v]]]]]");
    assert_eq!(reply_text(&node.run("XPENDING s g")), "[2 1-1 2-1 [[me 2]]]");
}

#[test]
fn blocking_commands_do_not_block_in_transactions_and_scripts() {
    let node = start_with_three_workers();
    let mut connection = node.connect();
    connection.call_line("XGROUP CREATE s g $ MKSTREAM").expect_ok();
    connection.call_line("MULTI").expect_ok();
    let lines = [
        "BLPOP l 0",
        "BLMOVE l d LEFT LEFT 0",
        "BLMPOP 0 1 l LEFT",
        "BZPOPMIN z 0",
        "BZMPOP 0 1 z MIN",
        "XREAD BLOCK 0 STREAMS s $",
        "XREADGROUP GROUP g me BLOCK 0 STREAMS s >",
    ];
    lines.iter().for_each(|line| assert_eq!(connection.call_line(line), Reply::Simple("QUEUED".into())));
    assert_eq!(reply_text(&connection.call_line("EXEC")), "[*-1 $-1 *-1 *-1 *-1 *-1 *-1]");
    let script = ["EVAL", "return redis.call('blpop', KEYS[1], 0)", "1", "l"];
    assert_eq!(connection.call(&script), Reply::NullBulk);
}

/// A blocked client must be served whichever command creates the key.
#[test]
fn blocked_clients_are_served_whichever_command_creates_the_key() {
    let node = start_with_three_workers();
    let other = start_server("");
    run_commands(&node, &["RPUSH made v", "ZADD places 0 v", "SET string v", "SET nothing 1"]);
    let Reply::Bulk(payload) = node.run("DUMP made") else { panic!("it is dumped") };
    other.run("RPUSH k v");
    let migrate = format!("MIGRATE 127.0.0.1 {} k 0 5000", node.port);
    let list: [&[&str]; 10] = [
        &["COPY made source", "RENAME source k"],
        &["COPY made source", "RENAMENX source k"],
        &["COPY made k"],
        &["SORT made BY nosort STORE k"],
        &["SORT made ALPHA STORE k"],
        &["RPUSH source v", "LMOVE source k LEFT LEFT"],
        &["MULTI", "DEL nosuch", "LPUSH k x v", "LREM k 1 x", "EXEC"],
        &["SET k x", "DEL k", "HSET k f v", "DEL k", "RPUSH k v"],
        &["SELECT 1", "RPUSH k v", "SWAPDB 0 1"],
        &["SET k x", "COPY made k REPLACE"],
    ];
    for lines in list {
        let mut client = connect_blocked(&node, &["BLPOP k 0"]).remove(0);
        run_commands(&node, lines);
        assert_eq!(read_reply(&mut client), "[k v]", "{lines:?}");
        if lines.contains(&"SELECT 1") {
            run_commands(&node, &["SWAPDB 0 1"]);
        }
    }
    let mut client = connect_blocked(&node, &["BLPOP k 0"]).remove(0);
    node.connect().try_call(&[b"RESTORE", b"k".as_slice(), b"0", &payload]).expect("a reply").expect_ok();
    assert_eq!(read_reply(&mut client), "[k v]");
    let mut client = connect_blocked(&node, &["BLPOP k 0"]).remove(0);
    other.run(&migrate).expect_ok();
    assert_eq!(read_reply(&mut client), "[k v]");
    let mut client = connect_blocked(&node, &["BLPOP k 0"]).remove(0);
    node.connect().call(&["EVAL", "return redis.call('rpush', KEYS[1], 'v')", "1", "k"]);
    assert_eq!(read_reply(&mut client), "[k v]");
    for line in ["ZUNIONSTORE k 1 places", "GEOSEARCHSTORE k places FROMLONLAT 0 0 BYRADIUS 40000 km"] {
        let mut client = connect_blocked(&node, &["BZPOPMIN k 0"]).remove(0);
        run_commands(&node, &[line]);
        assert!(read_reply(&mut client).starts_with("[k v "), "{line}");
    }
}

/// A key created and deleted inside one transaction does not unblock a client, and neither does a value of another
/// type.
#[test]
fn deleted_keys_and_other_types_do_not_unblock_clients() {
    let node = start_with_three_workers();
    let mut client = connect_blocked(&node, &["BLPOP k 0"]).remove(0);
    run_commands(&node, &["MULTI", "RPUSH k 1", "DEL k", "EXEC"]);
    run_commands(&node, &["MULTI", "RPUSH k 1", "DEL k", "SET k x", "EXEC", "APPEND k y", "SADD other 1"]);
    run_commands(
        &node,
        &["RENAME other k", "ZADD k2 1 a", "RENAME k2 k", "XADD k3 * f v", "RENAME k3 k", "DEL k"],
    );
    client.set_timeout(Duration::from_millis(100));
    assert!(client.read().is_err(), "the client must stay blocked");
    client.set_timeout(Duration::from_secs(30));
    run_commands(&node, &["RPUSH k 2"]);
    assert_eq!(read_reply(&mut client), "[k 2]");
}

#[test]
fn xreadgroup_is_unblocked_when_the_group_disappears() {
    let node = start_server("--enable-debug-command yes");
    let gone = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option";
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    let ways: [(&[&str], &str); 10] = [
        (&["DEL s"], gone),
        (&["UNLINK s"], gone),
        (&["RENAME s t"], gone),
        (&["XGROUP DESTROY s g"], gone),
        (&["FLUSHDB"], gone),
        (&["SWAPDB 0 1", "SWAPDB 0 1"], gone),
        (&["PEXPIRE s 1"], gone),
        (
            &[
                "DEBUG SET-ACTIVE-EXPIRE 0",
                "PEXPIRE s 1",
                "DEBUG SLEEP 0.01",
                "TYPE s",
                "DEBUG SET-ACTIVE-EXPIRE 1",
            ],
            gone,
        ),
        (&["SET s x"], wrong),
        (&["CONFIG SET maxmemory-policy allkeys-random maxmemory 1", "CONFIG SET maxmemory 0"], gone),
    ];
    for (lines, error) in ways {
        run_commands(&node, &["FLUSHALL", "XGROUP CREATE s g $ MKSTREAM"]);
        let mut clients = connect_blocked(&node, &["XREADGROUP GROUP g me BLOCK 0 STREAMS s >"; 3]);
        run_commands(&node, lines);
        for client in &mut clients {
            assert_eq!(read_reply(client), error, "{lines:?}");
        }
    }
    wait_for_blocked(&node, 0);
}

#[test]
fn disconnected_clients_receive_no_elements() {
    let node = start_with_three_workers();
    let mut clients = connect_blocked(&node, &["BLPOP k 0"; 3]);
    drop(clients.remove(1));
    wait_for_blocked(&node, 2);
    let id = node.run("CLIENT LIST TYPE normal").text();
    let first = id.lines().find(|line| line.contains("cmd=blpop")).expect("the first that waits");
    let id = first.split(['=', ' ']).nth(1).expect("its id");
    assert_eq!(node.run(&format!("CLIENT KILL ID {id}")).int(), 1);
    wait_for_blocked(&node, 1);
    run_commands(&node, &["RPUSH k 1 2"]);
    assert_eq!(read_reply(&mut clients[1]), "[k 1]", "the next in the queue");
    assert!(clients[0].read().is_err());
    let alone = connect_blocked(&node, &["BLPOP other 0"]);
    drop(alone);
    wait_for_blocked(&node, 0);
    run_commands(&node, &["RPUSH other 1"]);
    assert_eq!((node.run("LLEN other").int(), node.run("LLEN k").int()), (1, 1));
}

#[test]
fn client_unblock_ends_a_blocking_command() {
    let node = start_with_three_workers();
    let mut client = node.connect();
    let id = client.call_line("CLIENT ID").int();
    let table = [
        ("BLPOP k 0", "", "*-1"),
        ("BLPOP k 0", " TIMEOUT", "*-1"),
        ("BLMOVE k l LEFT LEFT 0", " TIMEOUT", "*-1"),
        ("BZPOPMIN k 0", " TIMEOUT", "*-1"),
        ("XREAD BLOCK 0 STREAMS k $", " TIMEOUT", "*-1"),
        ("BZMPOP 0 1 k MIN", " ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK"),
        ("BLPOP k 0", " ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK"),
    ];
    for (line, how, reply) in table {
        client.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
        wait_for_blocked(&node, 1);
        assert_eq!(node.run(&format!("CLIENT UNBLOCK {id}{how}")).int(), 1);
        assert_eq!(read_reply(&mut client), reply, "{line}{how}");
        wait_for_blocked(&node, 0);
    }
    assert_eq!(node.run(&format!("CLIENT UNBLOCK {id}")).int(), 0);
    run_commands(&node, &["RPUSH k 1"]);
    assert_eq!(reply_text(&client.call_line("BLPOP k 0")), "[k 1]");
}

#[test]
fn paused_blocked_clients_are_served_in_order_after_the_pause() {
    let node = start_with_three_workers();
    let mut clients = connect_blocked(&node, &["BLPOP k 0"; 2]);
    run_commands(&node, &["CLIENT PAUSE 60000 WRITE"]);
    let (mut pusher, mut late) = (node.connect(), node.connect());
    pusher.send(&["RPUSH", "k", "1", "2"]).expect("the node takes commands");
    late.send(&["BLPOP", "k", "0.1"]).expect("the node takes commands");
    wait_for_blocked(&node, 4);
    never_within(Duration::from_millis(200), "a client is served during the pause", || {
        node.info("clients", "blocked_clients").as_deref() != Some("4")
    });
    run_commands(&node, &["CLIENT UNPAUSE"]);
    assert_eq!((read_reply(&mut clients[0]), read_reply(&mut clients[1])), ("[k 1]".into(), "[k 2]".into()));
    assert_eq!(pusher.read().expect("a reply").int(), 2);
    assert_eq!(read_reply(&mut late), "*-1");
    // Timeouts of blocked clients continue to run during a pause.
    let mut short = connect_blocked(&node, &["BLPOP k 0.3"]).remove(0);
    run_commands(&node, &["CLIENT PAUSE 60000 WRITE"]);
    assert_eq!(read_reply(&mut short), "*-1");
    run_commands(&node, &["CLIENT UNPAUSE"]);
}

#[test]
fn blocking_commands_time_out_after_their_timeout() {
    let node = start_with_three_workers();
    let table = [
        ("BLPOP k 0.05", 50),
        ("BLPOP k 1", 1000),
        ("BRPOPLPUSH k l .25", 250),
        ("BZMPOP 0.001 1 k MIN", 1),
        ("BLMPOP 1e-1 1 k LEFT", 100),
        ("XREAD BLOCK 70 STREAMS k $", 70),
    ];
    let mut clients: Vec<(Connection, Instant)> = Vec::new();
    for (line, _) in table {
        let mut client = node.connect();
        let start = Instant::now();
        client.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
        clients.push((client, start));
    }
    // All clients block concurrently, so their replies are read in order of their timeouts.
    let mut order: Vec<usize> = (0..table.len()).collect();
    order.sort_by_key(|index| table[*index].1);
    for index in order {
        let (line, millis) = table[index];
        let (client, start) = &mut clients[index];
        assert_eq!(read_reply(client), "*-1", "{line}");
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(millis), "{line}: {took:?}");
        assert!(took < Duration::from_millis(millis + 3000), "{line}: {took:?}");
    }
    let mut client = node.connect();
    client.call_line("HELLO 3");
    assert_eq!(client.call_line("BLPOP k 0.01"), Reply::Null);
}

/// The replica is a Redis server, because its MONITOR shows the commands that it receives.
#[test]
fn blocking_commands_are_replicated_as_their_effects() {
    let node = start_with_three_workers();
    let replica = Node::start(&Program::redis(), "--save ");
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", node.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    let mut monitor = replica.connect();
    monitor.call_line("MONITOR").expect_ok();
    run_commands(&node, &["XGROUP CREATE s g $ MKSTREAM"]);
    let table = [
        ("BLPOP a l 0", "RPUSH l 1", "\"LPOP\" \"l\""),
        ("BRPOP l 0", "RPUSH l 1", "\"RPOP\" \"l\""),
        ("BLMPOP 0 1 l RIGHT COUNT 9", "RPUSH l 1 2", "\"RPOP\" \"l\" \"2\""),
        ("BLMOVE l d LEFT RIGHT 0", "RPUSH l 1", "\"LMOVE\" \"l\" \"d\" \"LEFT\" \"RIGHT\""),
        ("BRPOPLPUSH l d 0", "RPUSH l 1", "\"RPOPLPUSH\" \"l\" \"d\""),
        ("BZPOPMIN z 0", "ZADD z 1 a", "\"ZPOPMIN\" \"z\""),
        ("BZMPOP 0 1 z MAX COUNT 9", "ZADD z 1 a 2 b", "\"ZPOPMAX\" \"z\" \"2\""),
        (
            "XREADGROUP GROUP g me BLOCK 0 STREAMS s >",
            "XADD s 1-1 f v",
            "\"XCLAIM\" \"s\" \"g\" \"me\" \"0\" \"1-1\"",
        ),
    ];
    for (wait, push, effect) in table {
        let mut client = connect_blocked(&node, &[wait]).remove(0);
        run_commands(&node, &[push]);
        assert!(read_reply(&mut client).len() < 60);
        let mut lines = Vec::new();
        loop {
            let line = monitor.read().expect("MONITOR reports the replicated commands").text();
            let found = line.contains(effect);
            lines.push(line);
            if found {
                break;
            }
            assert!(lines.len() < 20, "{wait}: {lines:?}");
        }
        let pushed = lines
            .iter()
            .position(|line| line.to_uppercase().contains(&push.to_uppercase().replace(' ', "\" \"")));
        assert!(pushed.is_some_and(|at| at + 1 < lines.len()), "{wait}: pushed, then taken: {lines:?}");
        assert!(!lines.iter().any(|line| line.to_uppercase().contains("\"BL")), "{lines:?}");
    }
    assert_eq!(node.run("WAIT 1 20000").int(), 1);
    assert_eq!(reply_text(&replica.run("LRANGE d 0 -1")), reply_text(&node.run("LRANGE d 0 -1")));
    assert_eq!(replica.run("EXISTS l z").int(), 0);
}

/// A client that blocks on a replica gets the entries that the master adds. When a server becomes a replica, its
/// blocked clients are unblocked.
#[test]
fn role_change_unblocks_clients_and_replicas_serve_blocked_readers() {
    let (master, node) = (start_with_three_workers(), start_with_three_workers());
    run_commands(&node, &["XGROUP CREATE s g $ MKSTREAM"]);
    let lines = [
        "BLPOP k 0",
        "BZMPOP 0 1 k MIN",
        "XREAD BLOCK 0 STREAMS k $",
        "XREADGROUP GROUP g me BLOCK 0 STREAMS s >",
    ];
    let mut clients = connect_blocked(&node, &lines);
    node.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    for (client, line) in clients.iter_mut().zip(lines) {
        let reply = read_reply(client);
        assert!(reply.starts_with("-UNBLOCKED force unblock from blocking operation"), "{line}: {reply}");
        assert!(client.read().is_err(), "{line}: the link is closed");
    }
    eventually("the replica is linked", || {
        (node.info("replication", "master_link_status")? == "up").then_some(())
    });
    let mut readers =
        connect_blocked(&node, &["XREAD BLOCK 0 STREAMS k $", "XREAD BLOCK 0 STREAMS other k $ $"]);
    run_commands(&master, &["XADD k 1-1 f v"]);
    for reader in &mut readers {
        assert_eq!(read_reply(reader), "[[k [[1-1 [f v]]]]]");
    }
    // FAILOVER demotes the old master, so its blocked clients get an error.
    let mut client = connect_blocked(&master, &["BLPOP l 0"]).remove(0);
    master.run(&format!("FAILOVER TO 127.0.0.1 {}", node.port)).expect_ok();
    assert!(read_reply(&mut client).starts_with("-UNBLOCKED "));
    eventually("the replica is promoted", || (node.info("replication", "role")? == "master").then_some(()));
}

/// The CPU time of SET on other keys must not depend on thousands of clients blocked on one key.
#[test]
fn thousands_of_blocked_clients_do_not_slow_down_others() {
    const BLOCKED_CLIENT_COUNT: usize = 3000;
    let node = start_server("--maxclients 10000 --io-threads 1");
    let mut connection = node.connect();
    let mut cost = || {
        let before = cpu_ticks(&node);
        for _ in 0..40 {
            for number in 0..5000 {
                let key = (number % 1000).to_string();
                connection.send(&["SET", &key, "value"]).expect("the node takes commands");
            }
            (0..5000).for_each(|_| connection.read().expect("a reply").expect_ok());
        }
        cpu_ticks(&node) - before
    };
    let warm = cost();
    let alone = cost().min(warm);
    let mut clients: Vec<Connection> = (0..BLOCKED_CLIENT_COUNT).map(|_| node.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(&["BLPOP", "k", "0"]).expect("the node takes commands"));
    wait_for_blocked(&node, BLOCKED_CLIENT_COUNT);
    let watched = cost().min(cost());
    println!("200,000 SETs: {alone} ticks alone, {watched} with {BLOCKED_CLIENT_COUNT} blocked clients");
    assert!(watched <= alone * 3 + 20, "{alone} ticks alone, {watched} with blocked clients");
    let numbers: Vec<String> = (0..BLOCKED_CLIENT_COUNT).map(|number| number.to_string()).collect();
    let mut push = vec!["RPUSH", "k"];
    push.extend(numbers.iter().map(String::as_str));
    connection.call(&push);
    clients.iter_mut().for_each(|client| assert!(read_reply(client).starts_with("[k ")));
    assert_eq!(connection.call_line("EXISTS k").int(), 0);
}
