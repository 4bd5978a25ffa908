//! Tests of full synchronisation over two connections (`dual-channel-replication-enabled`) between Redoubt servers, and
//! between Redoubt and Valkey 9.1. Tests with Valkey are skipped where it is not installed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Node, Program, Reply, eventually};

/// The options enable dual channel and DEBUG DIGEST, and disable the sync delay and automatic saves.
const SERVER_OPTIONS: &str = "--dual-channel-replication-enabled yes --repl-diskless-sync-delay 0 \
                       --enable-debug-command yes --save ";

/// Pairs of master and replica programs, in each of which at least one is Redoubt.
fn server_pairs() -> Vec<(Program, Program)> {
    let ours = Program::redoubt;
    let mut pairs = vec![(ours(), ours())];
    if let Some(valkey) = Program::valkey() {
        pairs.extend([(ours(), valkey.clone()), (valkey, ours())]);
    }
    pairs
}

fn write_keys(node: &Node) {
    let script = "for i = 1, 2000 do redis.call('set', 'key:' .. i, 'value') end return redis.call('dbsize')";
    let keys = node.connect().call(&["EVAL", script, "0"]);
    assert_eq!(keys, Reply::Int(2000), "others than key:N: {:?}", unexpected_keys(node));
}

/// Returns the keys that `write_keys` did not write, and those that SCAN returned twice.
fn unexpected_keys(node: &Node) -> Vec<String> {
    let mut seen = HashSet::new();
    let all = node.run("SCAN 0 COUNT 1000000").items()[1].items().to_vec();
    all.iter().map(Reply::text).filter(|key| !key.starts_with("key:") || !seen.insert(key.clone())).collect()
}

/// Slows the transfer down, so that each snapshot takes some seconds.
fn slow_down_transfer(node: &Node) {
    node.run("CONFIG SET rdb-key-save-delay 1000").expect_ok();
}

fn replication_field(node: &Node, name: &str) -> String {
    node.info("replication", name).unwrap_or_default()
}

fn info_counter(node: &Node, name: &str) -> u64 {
    node.info("stats", name).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn start_replication(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
}

fn wait_for_link(replica: &Node) {
    eventually("the link is up", || (replication_field(replica, "master_link_status") == "up").then_some(()));
}

fn assert_same_data(replica: &Node, master: &Node) {
    let offset = |node: &Node| replication_field(node, "master_repl_offset");
    eventually("both have the same offset", || (offset(replica) == offset(master)).then_some(()));
    assert_eq!(replica.run("DEBUG DIGEST"), master.run("DEBUG DIGEST"));
}

/// The client ids of the RDB channel and the main channel of the master's only replica, once both are connected and
/// neither is marked as lost.
fn channel_client_ids(master: &Node) -> [String; 2] {
    eventually("the replica has two channels", || {
        let each = [replication_field(master, "slave0"), replication_field(master, "slave1")];
        let both = ["type=rdb-channel", "type=main-channel"];
        if !both.iter().all(|channel| each.iter().any(|replica| replica.contains(channel))) {
            return None;
        }
        let clients = master.run("CLIENT LIST TYPE replica").text();
        let mut lines: Vec<&str> = clients.lines().collect();
        // Redoubt lists the channels in the order in which they became replicas, Valkey in the order of connection.
        lines.sort_by_key(|line| !line.contains("cmd=sync "));
        let id = |line: &&str| Some(line.split_once("id=")?.1.split_once(' ')?.0.to_owned());
        let ids: Vec<String> = lines.iter().filter_map(id).collect();
        ids.try_into().ok()
    })
}

/// Writes to two databases, so that a wrong SELECT in the stream is detected.
fn start_writer(should_stop: &AtomicBool, master: &Node) {
    let mut connection = master.connect();
    let mut round = 0;
    while !should_stop.load(Ordering::Relaxed) {
        round += 1;
        let (round, key) = (round.to_string(), format!("load:{}", round % 89));
        connection.call_line(if key.len() % 2 == 0 { "SELECT 3" } else { "SELECT 0" }).expect_ok();
        connection.call(&["SET", &format!("{key}:s"), &round]).expect_ok();
        assert!(connection.call(&["INCR", &format!("{key}:n")]).int() > 0);
        assert!(connection.call(&["LPUSH", &format!("{key}:l"), &round]).int() > 0);
    }
}

/// Stops the writer when it is dropped, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Under load, snapshot and stream are transferred at the same time. Each channel is killed once during the transfer,
/// which restarts the synchronisation.
fn assert_dual_channel_sync(master: &Program, replica: &Program) {
    let (master, replica) = (Node::start(master, SERVER_OPTIONS), Node::start(replica, SERVER_OPTIONS));
    write_keys(&master);
    slow_down_transfer(&master);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| start_writer(&stop, &master));
        let stopped = StopOnDrop(&stop);
        start_replication(&replica, &master);
        for cut in 0..2 {
            let before = info_counter(&master, "sync_full");
            let channel = &channel_client_ids(&master)[cut];
            assert_eq!(master.run(&format!("CLIENT KILL ID {channel}")), Reply::Int(1));
            eventually("it begins anew", || (info_counter(&master, "sync_full") > before).then_some(()));
        }
        channel_client_ids(&master);
        eventually("the replica buffers the stream", || {
            (replication_field(&replica, "replicas_repl_buffer_size").parse::<u64>().ok()? > 1000)
                .then_some(())
        });
        assert_eq!(replication_field(&replica, "master_link_status"), "down");
        wait_for_link(&replica);
        drop(stopped);
        writer.join().expect("the writer does not fail");
    });
    assert_same_data(&replica, &master);
    let slave = replication_field(&master, "slave0");
    assert!(slave.contains("state=online") && slave.ends_with("type=replica"), "{slave}");
    assert_eq!(replication_field(&master, "replicas_waiting_psync"), "0");
    assert_eq!(replication_field(&replica, "replicas_repl_buffer_size"), "0");

    let (full, partial) = (info_counter(&master, "sync_full"), info_counter(&master, "sync_partial_ok"));
    assert_eq!(full, 3);
    master.run("CLIENT KILL TYPE replica");
    eventually("writing continues", || (info_counter(&master, "sync_partial_ok") > partial).then_some(()));
    wait_for_link(&replica);
    assert_eq!(info_counter(&master, "sync_full"), full);
    assert_same_data(&replica, &master);
}

#[test]
fn losing_either_channel_restarts_dual_channel_sync() {
    for (master, replica) in server_pairs() {
        println!("{} of {}", replica.name(), master.name());
        assert_dual_channel_sync(&master, &replica);
    }
}

/// During the snapshot, more is written than the replica may buffer. The rest stays in the master's buffer, and nothing
/// is lost.
#[test]
fn replica_buffers_no_more_than_its_limit_during_dual_channel_sync() {
    let ours = Program::redoubt();
    for master in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let master = Node::start(&master, SERVER_OPTIONS);
        let limit = "--client-output-buffer-limit replica 1mb 0 0";
        let replica = Node::start(&ours, &format!("{limit} {SERVER_OPTIONS}"));
        write_keys(&master);
        slow_down_transfer(&master);
        start_replication(&replica, &master);
        channel_client_ids(&master);
        let value = "x".repeat(100_000);
        let mut connection = master.connect();
        for number in 0..80 {
            connection.call(&["SET", &format!("large:{number}"), &value]).expect_ok();
        }
        let held = || replication_field(&replica, "replicas_repl_buffer_size").parse::<u64>().ok();
        let full = eventually("it is full", || held().filter(|held| *held >= 1 << 20));
        wait_for_link(&replica);
        let peak =
            replication_field(&replica, "replicas_repl_buffer_peak").parse::<u64>().unwrap_or_default();
        assert!(peak >= full && peak < (1 << 20) + 100_000, "{peak}");
        assert_same_data(&replica, &master);
        assert_eq!(info_counter(&master, "sync_full"), 1);
    }
}

/// The stream to a chained replica starts in the database that the top master has selected.
#[test]
fn chained_replica_uses_dual_channel_replication() {
    let ours = Program::redoubt();
    let [master, middle, last] = [0; 3].map(|_| Node::start(&ours, SERVER_OPTIONS));
    write_keys(&master);
    start_replication(&middle, &master);
    wait_for_link(&middle);
    let mut connection = master.connect();
    connection.call_line("SELECT 3").expect_ok();
    connection.call_line("SET before x").expect_ok();
    assert_same_data(&middle, &master);
    slow_down_transfer(&middle);
    start_replication(&last, &middle);
    channel_client_ids(&middle);
    connection.call_line("SET after x").expect_ok();
    wait_for_link(&last);
    assert_same_data(&last, &master);
    assert_eq!(info_counter(&middle, "sync_full"), 1);
}

/// If the master or the replica disables dual-channel replication, one connection is used. An unknown RDB client id is
/// refused with Valkey's error.
#[test]
fn single_channel_sync_is_used_if_either_side_disables_dual_channel() {
    let ours = Program::redoubt();
    for master_is_willing in [true, false] {
        let (master, replica) = (Node::start(&ours, SERVER_OPTIONS), Node::start(&ours, SERVER_OPTIONS));
        let unwilling = if master_is_willing { &replica } else { &master };
        unwilling.run("CONFIG SET dual-channel-replication-enabled no").expect_ok();
        start_replication(&replica, &master);
        wait_for_link(&replica);
        assert_eq!(info_counter(&master, "sync_full"), 1);
        assert!(!master.log().contains("over two channels"));
        let unknown = master.run("REPLCONF set-rdb-client-id 999");
        assert_eq!(unknown, Reply::Error("ERR Unrecognized RDB client id 999".into()));
    }
}
