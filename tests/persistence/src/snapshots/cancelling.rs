//! Tests of slow saves, AOF rewrites and full synchronisations: what INFO reports, and what cancels them.

use harness::{Node, Program, eventually};

/// The options make saving take two seconds per key, so no save finishes during a test.
const SLOW_SAVE_OPTIONS: &str = "--rdb-key-save-delay 2000000 --enable-debug-command yes";

fn persistence_field(node: &Node, field: &str) -> String {
    node.info("persistence", field).unwrap_or_else(|| panic!("{field} is shown"))
}

fn wait_for_field(node: &Node, field: &str, expected: &str) {
    eventually(&format!("{field} is {expected}"), || {
        (persistence_field(node, field) == expected).then_some(())
    });
}

/// FLUSHALL cancels the save because it deletes the data that the save would write.
#[test]
fn flushall_cancels_a_background_save() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, &format!("--save  {SLOW_SAVE_OPTIONS}"));
        node.run("DEBUG POPULATE 100").expect_ok();
        node.run("BGSAVE");
        wait_for_field(&node, "rdb_bgsave_in_progress", "1");
        node.run("FLUSHALL").expect_ok();
        wait_for_field(&node, "rdb_bgsave_in_progress", "0");
        assert!(!node.folder().join("dump.rdb").exists(), "the cancelled save must leave no file");
        assert!(node.run("BGSAVE").text().contains("started"), "the next save can start");
        eventually("the data is saved", || node.folder().join("dump.rdb").exists().then_some(()));
        wait_for_field(&node, "rdb_last_bgsave_status", "ok");
    }
}

/// With save points configured, FLUSHALL also saves the empty dataset.
#[test]
fn killed_server_starts_empty_after_flushall() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let mut node = Node::start(&program, "--save 3600 1000000");
        node.run("SET a 1").expect_ok();
        node.run("SAVE").expect_ok();
        let saved = || std::fs::metadata(node.folder().join("dump.rdb")).expect("it was saved").len();
        let before = saved();
        node.run("FLUSHALL").expect_ok();
        eventually("the data is saved", || (saved() < before).then_some(()));
        node.kill();
        node.launch();
        eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
        assert_eq!(node.run("DBSIZE").int(), 0);
    }
}

#[test]
fn disabling_the_aof_cancels_a_rewrite_and_allows_the_next() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, &format!("--save  --appendonly yes {SLOW_SAVE_OPTIONS}"));
        node.run("DEBUG POPULATE 100").expect_ok();
        node.run("BGREWRITEAOF");
        wait_for_field(&node, "aof_rewrite_in_progress", "1");
        node.run("CONFIG SET appendonly no").expect_ok();
        wait_for_field(&node, "aof_rewrite_in_progress", "0");
        node.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
        assert!(!node.run("BGREWRITEAOF").is_error("ERR"));
        wait_for_field(&node, "aof_rewrite_in_progress", "0");
        assert_eq!(persistence_field(&node, "aof_last_bgrewrite_status"), "ok");
    }
}

#[test]
fn full_resync_is_reported_as_a_background_save() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let master =
            Node::start(&program, &format!("--save  --repl-diskless-sync-delay 0 {SLOW_SAVE_OPTIONS}"));
        master.run("DEBUG POPULATE 100").expect_ok();
        let replica = Node::start(&Program::redoubt(), "--save ");
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        wait_for_field(&master, "rdb_bgsave_in_progress", "1");
        wait_for_field(&master, "current_save_keys_total", "100");
        assert_ne!(persistence_field(&master, "rdb_current_bgsave_time_sec"), "-1");
        master.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
        drop(replica);
        wait_for_field(&master, "rdb_bgsave_in_progress", "0");
        wait_for_field(&master, "current_save_keys_total", "0");
    }
}

#[test]
fn info_shows_a_shutdown_that_waits_for_replicas() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let options = "--save  --repl-diskless-sync-delay 0 --shutdown-timeout 60";
        let master = Node::start(&program, options);
        let replica = Node::start(&Program::redoubt(), "--save ");
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        eventually("the replica is there", || {
            (master.info("replication", "slave0")?.contains("online")).then_some(())
        });
        replica.freeze();
        master.run("SET a 1").expect_ok();
        let mut asker = master.connect();
        asker.send(&["SHUTDOWN"]).expect("it is sent");
        eventually("INFO shows the pending shutdown", || master.info("server", "shutdown_in_milliseconds"));
        assert!(master.run("SHUTDOWN ABORT").text().contains("OK"));
        assert_eq!(master.info("server", "shutdown_in_milliseconds"), None);
        replica.thaw();
    }
}
