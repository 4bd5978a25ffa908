//! Full synchronisations over two connections (`dual-channel-replication-enabled`): of ours by Valkey 9.1, of Valkey by
//! ours, and among ours. Valkey is left out where it is not installed.

use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Node, Program, Value, eventually};

/// Two channels, no delay, DEBUG DIGEST everywhere, nothing saved by itself.
const OPTIONS: &str = "--dual-channel-replication-enabled yes --repl-diskless-sync-delay 0 \
                       --enable-debug-command yes --save ";

/// The pairs of a master's and a replica's program, with at least one of ours in each.
fn pairs() -> Vec<(Program, Program)> {
    let ours = Program::redoubt;
    let mut pairs = vec![(ours(), ours())];
    if let Some(valkey) = Program::valkey() {
        pairs.extend([(ours(), valkey.clone()), (valkey, ours())]);
    }
    pairs
}

fn fill(node: &Node) {
    let script = "for i = 1, 2000 do redis.call('set', 'key:' .. i, 'value') end return redis.call('dbsize')";
    assert_eq!(node.connect().call(&["EVAL", script, "0"]), Value::Int(2000));
}

/// From now on a snapshot takes some seconds.
fn send_slowly(node: &Node) {
    node.run("CONFIG SET rdb-key-save-delay 1000").expect_ok();
}

fn replication(node: &Node, name: &str) -> String {
    node.info("replication", name).unwrap_or_default()
}

fn counter(node: &Node, name: &str) -> u64 {
    node.info("stats", name).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn begin_to_follow(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
}

fn wait_for_link(replica: &Node) {
    eventually("the link is up", || (replication(replica, "master_link_status") == "up").then_some(()));
}

fn same_data(replica: &Node, master: &Node) {
    let offset = |node: &Node| replication(node, "master_repl_offset");
    eventually("both are as far", || (offset(replica) == offset(master)).then_some(()));
    assert_eq!(replica.run("DEBUG DIGEST"), master.run("DEBUG DIGEST"));
}

/// The numbers of the clients that are the RDB channel and the main channel of the master's only replica, once both are
/// there and neither is lost.
fn channels(master: &Node) -> [String; 2] {
    eventually("the replica has two channels", || {
        let each = [replication(master, "slave0"), replication(master, "slave1")];
        let both = ["type=rdb-channel", "type=main-channel"];
        if !both.iter().all(|channel| each.iter().any(|replica| replica.contains(channel))) {
            return None;
        }
        let clients = master.run("CLIENT LIST TYPE replica").text();
        let mut lines: Vec<&str> = clients.lines().collect();
        // Ours are listed as they became replicas, Valkey's as they connected.
        lines.sort_by_key(|line| !line.contains("cmd=sync "));
        let id = |line: &&str| Some(line.split_once("id=")?.1.split_once(' ')?.0.to_owned());
        let ids: Vec<String> = lines.iter().filter_map(id).collect();
        ids.try_into().ok()
    })
}

/// Writes to two databases, so that it matters which one the stream has selected.
fn write_until(stop: &AtomicBool, master: &Node) {
    let mut connection = master.connect();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let (round, key) = (round.to_string(), format!("load:{}", round % 89));
        connection.run(if key.len() % 2 == 0 { "SELECT 3" } else { "SELECT 0" }).expect_ok();
        connection.call(&["SET", &format!("{key}:s"), &round]).expect_ok();
        assert!(connection.call(&["INCR", &format!("{key}:n")]).int() > 0);
        assert!(connection.call(&["LPUSH", &format!("{key}:l"), &round]).int() > 0);
    }
}

/// Ends the load also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Under load the snapshot and the stream come at the same time. Each channel is cut once on the way: all begins anew.
fn synchronises(master: &Program, replica: &Program) {
    let (master, replica) = (Node::start(master, OPTIONS), Node::start(replica, OPTIONS));
    fill(&master);
    send_slowly(&master);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&stop, &master));
        let stopped = StopAtEnd(&stop);
        begin_to_follow(&replica, &master);
        for cut in 0..2 {
            let before = counter(&master, "sync_full");
            let channel = &channels(&master)[cut];
            assert_eq!(master.run(&format!("CLIENT KILL ID {channel}")), Value::Int(1));
            eventually("it begins anew", || (counter(&master, "sync_full") > before).then_some(()));
        }
        channels(&master);
        eventually("the stream waits at the replica", || {
            (replication(&replica, "replicas_repl_buffer_size").parse::<u64>().ok()? > 1000).then_some(())
        });
        assert_eq!(replication(&replica, "master_link_status"), "down");
        wait_for_link(&replica);
        drop(stopped);
        writer.join().expect("the writer does not fail");
    });
    same_data(&replica, &master);
    let slave = replication(&master, "slave0");
    assert!(slave.contains("state=online") && slave.ends_with("type=replica"), "{slave}");
    assert_eq!(replication(&master, "replicas_waiting_psync"), "0");
    assert_eq!(replication(&replica, "replicas_repl_buffer_size"), "0");

    let (full, partial) = (counter(&master, "sync_full"), counter(&master, "sync_partial_ok"));
    assert_eq!(full, 3);
    master.run("CLIENT KILL TYPE replica");
    eventually("it goes on", || (counter(&master, "sync_partial_ok") > partial).then_some(()));
    wait_for_link(&replica);
    assert_eq!(counter(&master, "sync_full"), full);
    same_data(&replica, &master);
}

#[test]
fn the_stream_comes_beside_the_snapshot_and_a_cut_of_either_begins_anew() {
    for (master, replica) in pairs() {
        println!("{} of {}", replica.name(), master.name());
        synchronises(&master, &replica);
    }
}

/// More is written during the snapshot than the replica may hold: the rest waits at the master, and nothing is lost.
#[test]
fn a_replica_of_ours_holds_no_more_than_its_limit() {
    let ours = Program::redoubt();
    for master in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let master = Node::start(&master, OPTIONS);
        let limit = "--client-output-buffer-limit replica 1mb 0 0";
        let replica = Node::start(&ours, &format!("{limit} {OPTIONS}"));
        fill(&master);
        send_slowly(&master);
        begin_to_follow(&replica, &master);
        channels(&master);
        let value = "x".repeat(100_000);
        let mut connection = master.connect();
        for number in 0..80 {
            connection.call(&["SET", &format!("large:{number}"), &value]).expect_ok();
        }
        let held = || replication(&replica, "replicas_repl_buffer_size").parse::<u64>().ok();
        let full = eventually("it is full", || held().filter(|held| *held >= 1 << 20));
        wait_for_link(&replica);
        let peak = replication(&replica, "replicas_repl_buffer_peak").parse::<u64>().unwrap_or_default();
        assert!(peak >= full && peak < (1 << 20) + 100_000, "{peak}");
        same_data(&replica, &master);
        assert_eq!(counter(&master, "sync_full"), 1);
    }
}

/// A replica of a replica gets its stream in the database that its master's master has selected.
#[test]
fn a_chain_of_replicas_fetches_over_two_channels_too() {
    let ours = Program::redoubt();
    let [master, middle, last] = [0; 3].map(|_| Node::start(&ours, OPTIONS));
    fill(&master);
    begin_to_follow(&middle, &master);
    wait_for_link(&middle);
    let mut connection = master.connect();
    connection.run("SELECT 3").expect_ok();
    connection.run("SET before x").expect_ok();
    same_data(&middle, &master);
    send_slowly(&middle);
    begin_to_follow(&last, &middle);
    channels(&middle);
    connection.run("SET after x").expect_ok();
    wait_for_link(&last);
    same_data(&last, &master);
    assert_eq!(counter(&middle, "sync_full"), 1);
}

/// Without the switch on either side one connection does it, and an unknown number is refused in Valkey's words.
#[test]
fn one_channel_where_either_does_not_want_two() {
    let ours = Program::redoubt();
    for master_is_willing in [true, false] {
        let (master, replica) = (Node::start(&ours, OPTIONS), Node::start(&ours, OPTIONS));
        let unwilling = if master_is_willing { &replica } else { &master };
        unwilling.run("CONFIG SET dual-channel-replication-enabled no").expect_ok();
        begin_to_follow(&replica, &master);
        wait_for_link(&replica);
        assert_eq!(counter(&master, "sync_full"), 1);
        assert!(!master.log().contains("over two channels"));
        let unknown = master.run("REPLCONF set-rdb-client-id 999");
        assert_eq!(unknown, Value::Error("ERR Unrecognized RDB client id 999".into()));
    }
}
