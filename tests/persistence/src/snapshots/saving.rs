//! Tests of saving RDB files: saved data survives a restart, whichever server wrote the file.

use std::fs;

use harness::{Node, Program, Reply, eventually};

/// Writes strings of several encodings to two databases, some with an expiry.
fn fill_with_strings(node: &Node) {
    let mut connection = node.connect();
    for number in 0..2000 {
        let (key, value) = (format!("key:{number}"), format!("value {number} ").repeat(number % 7));
        connection.call(&["SET", &key, &value]).expect_ok();
    }
    for line in ["SET number 12345", "SET brief x PX 3600000", "SELECT 5", "SET elsewhere y"] {
        connection.call_line(line).expect_ok();
    }
}

fn dataset_digest(node: &Node) -> Reply {
    node.run("DEBUG DIGEST")
}

const SERVER_OPTIONS: &str = "--enable-debug-command yes --appendonly no";

#[test]
fn saved_data_survives_a_kill() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    fill_with_strings(&node);
    node.run("SAVE").expect_ok();
    let before = dataset_digest(&node);
    node.run("SET lost x").expect_ok();
    node.kill();
    node.launch();
    eventually("the data is loaded", || (node.run("EXISTS number") == Reply::Int(1)).then_some(()));
    assert_eq!(dataset_digest(&node), before);
    assert_eq!(node.info("persistence", "rdb_last_load_keys_loaded").as_deref(), Some("2003"));
    node.run("DEBUG RELOAD").expect_ok();
    assert_eq!(dataset_digest(&node), before);
}

#[test]
fn terminated_server_saves_if_it_has_save_points() {
    let mut saving = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save 3600 1000000"));
    let mut forgetting = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    for (node, keys) in [(&mut saving, 1), (&mut forgetting, 0)] {
        node.run("SET a 1").expect_ok();
        assert!(node.terminate().success());
        node.launch();
        eventually("the server is loaded", || (node.run("DBSIZE") == Reply::Int(keys)).then_some(()));
    }
}

#[test]
fn save_point_starts_a_background_save() {
    let node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save 1 10"));
    let saves = || node.info("persistence", "rdb_saves");
    fill_with_strings(&node);
    eventually("a save point is reached", || (saves()? != "0").then_some(()));
    eventually("nothing has changed since", || {
        (node.info("persistence", "rdb_changes_since_last_save")? == "0").then_some(())
    });
    assert_eq!(node.run("BGSAVE"), Reply::Simple("Background saving started".into()));
    eventually("the save ends", || {
        (node.info("persistence", "rdb_bgsave_in_progress")? == "0").then_some(())
    });
    assert_eq!(node.info("persistence", "rdb_last_bgsave_status").as_deref(), Some("ok"));
}

#[test]
fn failed_save_stops_writes_and_keeps_the_old_file() {
    let node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save 3600 1000000"));
    node.run("SET a 1").expect_ok();
    node.run("SAVE").expect_ok();
    let file = node.folder().join("dump.rdb");
    let old = fs::read(&file).expect("the file was saved");
    // The save fails because a non-empty directory has the file's name.
    let moved = node.folder().join("old.rdb");
    fs::rename(&file, &moved).expect("it can be moved");
    fs::create_dir_all(file.join("in-the-way")).expect("a folder");
    node.run("BGSAVE");
    eventually("the save fails", || {
        (node.info("persistence", "rdb_last_bgsave_status")? == "err").then_some(())
    });
    assert!(node.run("SET a 2").is_error("MISCONF"), "writes are refused");
    assert_eq!(node.run("GET a").text(), "1");
    assert_eq!(fs::read(&moved).expect("still there"), old);
    let leftovers = fs::read_dir(node.folder()).expect("a folder").filter_map(Result::ok);
    let temporary = leftovers.filter(|entry| entry.file_name().to_string_lossy().starts_with("temp-"));
    assert_eq!(temporary.count(), 0, "the unfinished file is removed");
    fs::remove_dir_all(&file).expect("the folder goes");
    node.run("BGSAVE");
    eventually("writes are taken again", || {
        (node.run("SET a 3") == Reply::Simple("OK".into())).then_some(())
    });
}

#[test]
fn corrupt_file_prevents_startup_and_logs_the_offset() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    fill_with_strings(&node);
    node.run("SAVE").expect_ok();
    node.kill();
    let file = node.folder().join("dump.rdb");
    let mut bytes = fs::read(&file).expect("the file was saved");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xFF;
    fs::write(&file, bytes).expect("it can be written");
    node.spawn();
    assert!(!node.wait_for_exit().success());
    let log = node.log();
    assert!(log.contains("at offset ") && log.contains("Fatal error loading the DB"), "{log}");
}

/// After a failed load, clients must not see an empty dataset, and no write may be acknowledged before the process
/// exits.
#[test]
fn server_that_fails_to_load_serves_no_clients() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    fill_with_strings(&node);
    node.run("SAVE").expect_ok();
    node.kill();
    let file = node.folder().join("dump.rdb");
    let mut bytes = fs::read(&file).expect("the file was saved");
    let last = bytes.len() - 9;
    // The changed byte is the end marker, so all data before it is loaded before the error.
    bytes[last] ^= 0xFF;
    fs::write(&file, bytes).expect("it can be written");
    for _ in 0..10 {
        node.spawn();
        loop {
            if let Ok(mut connection) = node.try_connect() {
                while let Ok(reply) = connection.try_call(&["SET", "a", "1"]) {
                    assert!(reply.is_error("LOADING"), "{reply:?}");
                }
            }
            if node.has_exited() {
                break;
            }
        }
        assert!(!node.wait_for_exit_before_relaunch().success());
    }
}

/// Checks that `second` loads the RDB file that `first` saved.
fn check_second_loads_file_of_first(first: &Program, second: &Program) {
    let options = "--enable-debug-command yes --save ";
    let first = Node::start(first, options);
    fill_with_strings(&first);
    first.run("SAVE").expect_ok();
    let mut second = Node::prepare(second, options);
    fs::copy(first.folder().join("dump.rdb"), second.folder().join("dump.rdb")).expect("a copy");
    second.launch();
    eventually("the data is loaded", || (second.run("DBSIZE") == first.run("DBSIZE")).then_some(()));
    let (mut ours, mut theirs) = (first.connect(), second.connect());
    for number in 0..2000 {
        let get = ["GET", &format!("key:{number}")];
        assert_eq!(ours.call(&get), theirs.call(&get), "{get:?}");
    }
    assert_eq!(ours.call_line("PEXPIRETIME brief"), theirs.call_line("PEXPIRETIME brief"));
}

#[test]
fn redis_loads_rdb_file_of_redoubt() {
    check_second_loads_file_of_first(&Program::redoubt(), &Program::redis());
}

#[test]
fn redoubt_loads_the_rdb_file_of_redis() {
    check_second_loads_file_of_first(&Program::redis(), &Program::redoubt());
}

/// The RDB file contains the replication id and offset, so a restarted replica needs only a partial resync.
#[test]
fn restarted_replica_resumes_from_its_rdb_file() {
    let master = Node::start(&Program::redoubt(), "--save  --repl-diskless-sync-delay 0");
    let mut replica = Node::start(&Program::redoubt(), "--save 3600 1000000");
    replica.add_options(&format!("--replicaof 127.0.0.1 {}", master.port));
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    fill_with_strings(&master);
    let offset = |node: &Node| node.info("replication", "master_repl_offset");
    let linked = |node: &Node| node.info("replication", "master_link_status").is_some_and(|is| is == "up");
    eventually("the replica has all data", || {
        (linked(&replica) && offset(&replica) == offset(&master)).then_some(())
    });
    assert!(replica.terminate().success());
    let mut connection = master.connect();
    connection.call_line("SELECT 5").expect_ok();
    connection.call_line("SET elsewhere later").expect_ok();
    replica.launch();
    eventually("the replica is back", || {
        (linked(&replica) && offset(&replica) == offset(&master)).then_some(())
    });
    let mut connection = replica.connect();
    connection.call_line("SELECT 5").expect_ok();
    assert_eq!(connection.call_line("GET elsewhere").text(), "later");
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("1"));
    assert_eq!(master.info("stats", "sync_partial_ok").as_deref(), Some("1"));
}

/// As in Redis, a replica saves the data of a full resync at once. After a kill, the replica continues with a partial
/// resync, and it has its data even if its master is down.
fn check_killed_replica_resumes(replica: &Program) {
    let mut master = Node::start(&Program::redoubt(), "--save  --repl-diskless-sync-delay 0");
    let mut replica = Node::start(replica, "--save 5 1");
    fill_with_strings(&master);
    replica.add_options(&format!("--replicaof 127.0.0.1 {}", master.port));
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    let linked = |node: &Node| node.info("replication", "master_link_status").is_some_and(|is| is == "up");
    eventually("the replica has all data", || linked(&replica).then_some(()));
    replica.kill();
    master.run("SET later x").expect_ok();
    replica.launch();
    eventually("the replica is back", || {
        (linked(&replica) && replica.run("EXISTS later") == Reply::Int(1)).then_some(())
    });
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("1"));
    assert_eq!(master.info("stats", "sync_partial_ok").as_deref(), Some("1"));
    master.kill();
    replica.kill();
    replica.launch();
    eventually("the data is loaded", || (replica.run("EXISTS number") == Reply::Int(1)).then_some(()));
}

#[test]
fn killed_replica_resumes_from_its_saved_full_resync() {
    check_killed_replica_resumes(&Program::redoubt());
}

#[test]
fn killed_redis_replica_resumes_from_its_saved_full_resync() {
    check_killed_replica_resumes(&Program::redis());
}
