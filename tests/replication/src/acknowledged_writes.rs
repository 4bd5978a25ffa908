//! Acknowledged writes survive and two replication histories never mix: a server is shut down, promoted or demoted
//! while clients write at full speed.

use std::sync::atomic::{AtomicBool, Ordering};

use harness::{
    Cluster, Node, Program, Reply,
    counters::{CounterClients, assert_counters_kept},
    eventually,
};

fn write_keys(node: &Node, count: usize) {
    let mut connection = node.connect();
    let value = "v".repeat(1000);
    for number in 0..count {
        connection.send(&["SET", &format!("filler:{number}"), &value]).expect("it takes commands");
        if number % 500 == 499 {
            (0..500).for_each(|_| connection.read().expect("it answers").expect_ok());
        }
    }
}

fn start_replication(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
}

/// Waits until both servers have the same offset, and asserts that their data is equal.
fn wait_until_equal(replica: &Node, master: &Node) {
    let offset = |node: &Node| node.info("replication", "master_repl_offset");
    eventually("the replica has the master's offset", || {
        (replica.info("replication", "master_link_status")? == "up" && offset(replica) == offset(master))
            .then_some(())
    });
    assert_eq!(replica.run("DEBUG DIGEST"), master.run("DEBUG DIGEST"), "the data is the same");
}

const SAVING_OPTIONS: &str = "--save 3600 1000000000";
const FAST_SYNC_OPTIONS: &str = "--repl-diskless-sync-delay 0";
const REPLICATION_OPTIONS: &str = "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes";

#[test]
fn writes_acknowledged_before_shutdown_are_saved() {
    for how in ["SIGTERM", "SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOW"] {
        let mut node = Node::start(&Program::redoubt(), SAVING_OPTIONS);
        let counters = CounterClients::start(&node, 4);
        shut_down(&mut node, how);
        let acknowledged = counters.stop();
        node.launch();
        assert_counters_kept(&node, &acknowledged, how);
    }
}

/// Shuts the server down with `how` and waits for the process to exit.
fn shut_down(node: &mut Node, command: &str) {
    if command == "SIGTERM" {
        assert!(node.terminate().success());
    } else {
        // There is no reply to the command, because the server closes the connection.
        let words: Vec<&str> = command.split(' ').collect();
        let reply = node.connect().try_call(&words);
        assert!(reply.is_err(), "{command}: {reply:?}");
        assert!(node.wait_for_exit_before_relaunch().success());
    }
}

/// A save that is running at the shutdown contains only the writes before the save's start.
#[test]
fn shutdown_during_bgsave_keeps_writes_made_after_its_start() {
    let mut node = Node::start(&Program::redoubt(), SAVING_OPTIONS);
    write_keys(&node, 20_000);
    let counters = CounterClients::start(&node, 4);
    node.run("BGSAVE");
    counters.wait_for_acknowledgements(1000);
    shut_down(&mut node, "SIGTERM");
    let acknowledged = counters.stop();
    node.launch();
    assert_counters_kept(&node, &acknowledged, "during BGSAVE");
}

/// The shutdown waits for a frozen replica for as long as `shutdown-timeout` says, and then exits.
#[test]
fn shutdown_acknowledges_no_writes_after_waiting_for_frozen_replica() {
    let mut node = Node::start(
        &Program::redoubt(),
        &format!("{SAVING_OPTIONS} {FAST_SYNC_OPTIONS} --shutdown-timeout 1"),
    );
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &node);
    let counters = CounterClients::start(&node, 4);
    replica.freeze();
    shut_down(&mut node, "SHUTDOWN");
    let acknowledged = counters.stop();
    node.launch();
    assert_counters_kept(&node, &acknowledged, "with a frozen replica");
}

/// Clients blocked by a shutdown continue when the shutdown is aborted or fails.
#[test]
fn writes_resume_after_aborted_or_failed_shutdown() {
    let node = Node::start(&Program::redoubt(), &format!("{SAVING_OPTIONS} {FAST_SYNC_OPTIONS}"));
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &node);
    replica.freeze();
    node.run("SET a 1").expect_ok();
    let mut stopping = node.connect();
    stopping.send(&["SHUTDOWN"]).expect("it takes commands");
    eventually("it waits for its replica", || {
        (node.info("clients", "paused_reason")? == "shutdown_in_progress").then_some(())
    });
    let mut held = node.connect();
    held.send(&["SET", "a", "2"]).expect("it takes commands");
    assert_eq!(node.run("GET a").text(), "1", "reads are answered");
    node.run("SHUTDOWN ABORT").expect_ok();
    assert!(stopping.read().expect("it is told").is_error("ERR Errors trying to SHUTDOWN"));
    held.read().expect("writing continues").expect_ok();

    replica.thaw();
    std::fs::create_dir_all(node.folder().join("dump.rdb").join("in-the-way")).expect("a folder");
    assert!(node.run("SHUTDOWN SAVE").is_error("ERR Errors trying to SHUTDOWN"));
    node.run("CONFIG SET stop-writes-on-bgsave-error no").expect_ok();
    node.run("SET a 3").expect_ok();
    eventually("the replica continues too", || {
        (replica.run("GET a") == Reply::Bulk("3".into())).then_some(())
    });
}

/// The new master ignores writes of the old master that are still in the stream. The new master's own acknowledged
/// writes must survive in the database to which they were written, and must also reach its replica.
#[test]
fn promoted_replica_ignores_pending_writes_of_old_master() {
    let master = Node::start(&Program::redoubt(), REPLICATION_OPTIONS);
    let middle = Node::start(&Program::redoubt(), REPLICATION_OPTIONS);
    let last = Node::start(&Program::redoubt(), REPLICATION_OPTIONS);
    start_replication(&middle, &master);
    start_replication(&last, &middle);
    for round in 0..10 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for database in ["0", "9"] {
                let (master, stop) = (&master, &stop);
                scope.spawn(move || overwrite_keys(master, database, stop));
            }
            eventually("the stream is applied", || (middle.run("EXISTS k:0") == Reply::Int(1)).then_some(()));
            let mut client = middle.connect();
            client.call_line("REPLICAOF NO ONE").expect_ok();
            for key in 0..KEY_COUNT {
                client.call_line(&format!("SET k:{key} new")).expect_ok();
            }
            let mut connection = middle.connect();
            for _ in 0..20 {
                for key in 0..KEY_COUNT {
                    let value = connection.call_line(&format!("GET k:{key}"));
                    assert_eq!(value.text(), "new", "round {round}: overwritten by the old master");
                }
            }
            wait_until_equal(&last, &middle);
            stop.store(true, Ordering::Relaxed);
        });
        master.run("FLUSHALL").expect_ok();
        start_replication(&middle, &master);
    }
}

const KEY_COUNT: usize = 20;
const PARALLEL_ROUNDS: usize = 100;

/// Overwrites the same keys again and again with large pipelines.
fn overwrite_keys(node: &Node, database: &str, should_stop: &AtomicBool) {
    let mut connection = node.connect();
    connection.call_line(&format!("SELECT {database}")).expect_ok();
    let batch: String = (0..KEY_COUNT).map(|key| format!("SET k:{key} old\r\n")).collect();
    let batch = batch.repeat(PARALLEL_ROUNDS);
    while !should_stop.load(Ordering::Relaxed) {
        connection.send_raw(batch.as_bytes()).expect("it takes commands");
        (0..KEY_COUNT * PARALLEL_ROUNDS).for_each(|_| connection.read().expect("it answers").expect_ok());
    }
}

/// When a master becomes a replica while clients write, the offset that it reports must match its data.
#[test]
fn demoted_master_matches_new_master_under_load() {
    let nodes: Vec<Node> = (0..2).map(|_| Node::start(&Program::redoubt(), REPLICATION_OPTIONS)).collect();
    start_replication(&nodes[1], &nodes[0]);
    for round in 0..10 {
        let (old, new) = (&nodes[round % 2], &nodes[(round + 1) % 2]);
        let counters = CounterClients::start(old, 4);
        if round < 5 {
            // The old master gets writes that the new master does not have; the old master must discard them.
            new.run("REPLICAOF NO ONE").expect_ok();
            old.run(&format!("REPLICAOF 127.0.0.1 {}", new.port)).expect_ok();
        } else {
            old.run("FAILOVER").expect_ok();
            eventually("the failover completes", || {
                (new.info("replication", "role")? == "master").then_some(())
            });
        }
        let acknowledged = counters.stop();
        new.run("SET round x").expect_ok();
        wait_until_equal(old, new);
        if round >= 5 {
            assert_counters_kept(new, &acknowledged, "after FAILOVER");
        }
        new.run("FLUSHALL").expect_ok();
        wait_until_equal(old, new);
    }
}

/// In a cluster, a replica takes over with and without its master's consent, and the offset of the demoted master must
/// match its data.
#[test]
fn demoted_cluster_master_matches_successor_under_load() {
    let nodes: Vec<Node> = (0..2)
        .map(|_| {
            let options = format!("--cluster-enabled yes --cluster-node-timeout 2000 {REPLICATION_OPTIONS}");
            Node::start(&Program::redoubt(), &options)
        })
        .collect();
    let cluster = Cluster::join_nodes(nodes, 1);
    for (round, how) in ["TAKEOVER", "", "TAKEOVER", ""].into_iter().enumerate() {
        let (old, new) = (&cluster.nodes[round % 2], &cluster.nodes[(round + 1) % 2]);
        let counters = CounterClients::start(old, 4);
        new.run(format!("CLUSTER FAILOVER {how}").trim_end()).expect_ok();
        cluster.wait_for_owner(0, |port| port == new.port);
        let acknowledged = counters.stop();
        eventually("the cluster serves", || {
            (new.run("SET round x") == Reply::Simple("OK".into())).then_some(())
        });
        wait_until_equal(old, new);
        if how.is_empty() {
            assert_counters_kept(new, &acknowledged, "after CLUSTER FAILOVER");
        }
        new.run("FLUSHALL").expect_ok();
        wait_until_equal(old, new);
        cluster.wait_until_replica_is_known(round % 2, (round + 1) % 2);
    }
}

/// Client writes on a writable replica are local: they do not change the offset and reach no other node.
#[test]
fn local_writes_on_replica_are_not_replicated() {
    let master = Node::start(&Program::redoubt(), REPLICATION_OPTIONS);
    let replica = Node::start(&Program::redoubt(), &format!("{REPLICATION_OPTIONS} --replica-read-only no"));
    let last = Node::start(&Program::redoubt(), REPLICATION_OPTIONS);
    start_replication(&replica, &master);
    start_replication(&last, &replica);
    master.run("SET a 1").expect_ok();
    wait_until_equal(&last, &master);
    let offset = |node: &Node| node.info("replication", "master_repl_offset");
    let before = offset(&replica);
    for line in ["SET own 1", "INCR own", "SET brief x PX 1", "PUBLISH channel x", "DEL a"] {
        replica.run(line);
    }
    eventually("it is past its time", || (replica.run("GET brief") == Reply::NullBulk).then_some(()));
    assert!(replica.run("WAIT 1 0").is_error("ERR WAIT cannot be used with replica instances"));
    assert_eq!(offset(&replica), before);
    master.run("SET b 2").expect_ok();
    wait_until_equal(&last, &master);
    assert_eq!(replica.run("GET own").text(), "2");
    assert_eq!(last.run("EXISTS own"), Reply::Int(0));
    assert_eq!(offset(&replica), offset(&master));
}
