//! Saves, rewrites and synchronisations that take long: how they are shown, and what ends them before their time.

use harness::{Node, Program, eventually};

/// A key takes so long to be saved that nothing ends by itself.
const SLOW: &str = "--rdb-key-save-delay 2000000 --enable-debug-command yes";

fn info(node: &Node, field: &str) -> String {
    node.info("persistence", field).unwrap_or_else(|| panic!("{field} is shown"))
}

fn shows(node: &Node, field: &str, expected: &str) {
    eventually(&format!("{field} is {expected}"), || (info(node, field) == expected).then_some(()));
}

/// The data that the save would write is gone.
#[test]
fn flushall_ends_a_save_in_the_background() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, &format!("--save  {SLOW}"));
        node.run("DEBUG POPULATE 100").expect_ok();
        node.run("BGSAVE");
        shows(&node, "rdb_bgsave_in_progress", "1");
        node.run("FLUSHALL").expect_ok();
        shows(&node, "rdb_bgsave_in_progress", "0");
        assert!(!node.folder().join("dump.rdb").exists(), "it was not finished");
        assert!(node.run("BGSAVE").text().contains("started"), "nor is it in the way of the next");
        eventually("it is saved", || node.folder().join("dump.rdb").exists().then_some(()));
        shows(&node, "rdb_last_bgsave_status", "ok");
    }
}

/// Where there are save points, the file no longer has what was deleted.
#[test]
fn after_flushall_a_server_that_is_killed_begins_with_nothing() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let mut node = Node::start(&program, "--save 3600 1000000");
        node.run("SET a 1").expect_ok();
        node.run("SAVE").expect_ok();
        let saved = || std::fs::metadata(node.folder().join("dump.rdb")).expect("it was saved").len();
        let before = saved();
        node.run("FLUSHALL").expect_ok();
        eventually("it is saved", || (saved() < before).then_some(()));
        node.kill();
        node.launch();
        eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
        assert_eq!(node.run("DBSIZE").int(), 0);
    }
}

#[test]
fn appendonly_no_ends_a_rewrite_and_the_next_can_begin() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, &format!("--save  --appendonly yes {SLOW}"));
        node.run("DEBUG POPULATE 100").expect_ok();
        node.run("BGREWRITEAOF");
        shows(&node, "aof_rewrite_in_progress", "1");
        node.run("CONFIG SET appendonly no").expect_ok();
        shows(&node, "aof_rewrite_in_progress", "0");
        node.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
        assert!(!node.run("BGREWRITEAOF").is_error("ERR"));
        shows(&node, "aof_rewrite_in_progress", "0");
        assert_eq!(info(&node, "aof_last_bgrewrite_status"), "ok");
    }
}

#[test]
fn a_full_synchronisation_is_shown_as_a_save() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let master = Node::start(&program, &format!("--save  --repl-diskless-sync-delay 0 {SLOW}"));
        master.run("DEBUG POPULATE 100").expect_ok();
        let replica = Node::start(&Program::redoubt(), "--save ");
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        shows(&master, "rdb_bgsave_in_progress", "1");
        shows(&master, "current_save_keys_total", "100");
        assert_ne!(info(&master, "rdb_current_bgsave_time_sec"), "-1");
        master.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
        drop(replica);
        shows(&master, "rdb_bgsave_in_progress", "0");
        shows(&master, "current_save_keys_total", "0");
    }
}

#[test]
fn info_answers_while_a_shutdown_waits_for_replicas() {
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
        eventually("INFO says so", || master.info("server", "shutdown_in_milliseconds"));
        assert!(master.run("SHUTDOWN ABORT").text().contains("OK"));
        assert_eq!(master.info("server", "shutdown_in_milliseconds"), None);
        replica.thaw();
    }
}
