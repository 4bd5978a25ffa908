//! Tests of replicas that cannot keep up because the master writes too fast or because their own disk fails.

use std::fs;

use harness::{Node, Program, Reply, eventually};

fn start_pair(master_options: &str, replica_options: &str) -> (Node, Node) {
    let program = Program::redoubt();
    let master = Node::start(&program, &format!("--repl-diskless-sync-delay 0 {master_options}"));
    let replica = Node::start(&program, &format!("--replicaof 127.0.0.1 {} {replica_options}", master.port));
    wait_for_link(&replica);
    (master, replica)
}

fn wait_for_link(replica: &Node) {
    eventually("the link is up", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
}

/// Writes until `until_log_line` appears in the master's log.
fn start_writer(master: &Node, until_log_line: &str) {
    let (mut connection, value) = (master.connect(), "x".repeat(50_000));
    eventually(&format!("{until_log_line:?} is in the log"), || {
        connection.call(&["SET", "key", &value]).expect_ok();
        master.log().contains(until_log_line).then_some(())
    });
}

/// When the replica falls behind for the first time, it is disconnected. After it has reconnected, writers are
/// throttled so that it can catch up.
#[test]
fn writers_are_throttled_for_reconnecting_slow_replica() {
    let (master, replica) =
        start_pair("--client-output-buffer-limit replica 16mb 0 0 --repl-backlog-size 1mb", "");
    let delayed = "Writers are slowed down";
    replica.freeze();
    start_writer(&master, "it is too far behind");
    assert!(!master.log().contains(delayed));
    replica.thaw();
    // The replica reports its link as up until it notices that the master has closed the link.
    eventually("it asks for everything", || (master.info("stats", "sync_full")? == "2").then_some(()));
    wait_for_link(&replica);
    replica.freeze();
    start_writer(&master, delayed);
    let given_up = master.log().matches("it is too far behind").count();
    assert_eq!(given_up, 1, "that is half of its limit");
    replica.thaw();
    eventually("it has caught up", || master.log().contains("Writers are no longer slowed").then_some(()));
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("2"));
}

fn make_saves_fail(node: &Node) {
    fs::create_dir_all(node.folder().join("dump.rdb/in-the-way")).expect("a folder");
    eventually("the save fails", || {
        node.run("BGSAVE");
        (node.info("persistence", "rdb_last_bgsave_status")? == "err").then_some(())
    });
}

/// With `replica-ignore-disk-write-errors no` a replica stops applying writes that it cannot persist, and resumes
/// without help when its disk works again.
#[test]
fn replica_with_disk_errors_stops_applying_writes_unless_configured_to_ignore_them() {
    let save = "--save 3600 1000000 --rdb-del-sync-files yes";
    let (master, replica) = start_pair("", save);
    let has = |value: &[u8]| replica.run("GET key") == Reply::Bulk(value.to_vec());
    let _ = fs::remove_file(replica.folder().join("dump.rdb"));
    make_saves_fail(&replica);
    eventually("it leaves its master", || {
        (replica.info("replication", "master_link_status")? == "down").then_some(())
    });
    master.run("SET key 1").expect_ok();
    replica.run("CONFIG SET replica-ignore-disk-write-errors yes").expect_ok();
    wait_for_link(&replica);
    eventually("writing continues", || has(b"1").then_some(()));
    replica.run("CONFIG SET replica-ignore-disk-write-errors no").expect_ok();
    eventually("it leaves again", || {
        (replica.info("replication", "master_link_status")? == "down").then_some(())
    });
    master.run("SET key 2").expect_ok();
    fs::remove_dir_all(replica.folder().join("dump.rdb")).expect("it was made here");
    replica.run("BGSAVE");
    eventually("it goes on by itself", || has(b"2").then_some(()));
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("1"), "from where it was");
}
