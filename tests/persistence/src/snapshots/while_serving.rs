//! Tests of snapshots under load: they are consistent, concurrent resyncs share one snapshot, and a failed save has no
//! other effect.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use harness::{Connection, Node, Program, Reply, eventually};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

const SERVER_OPTIONS: &str = "--enable-debug-command yes --appendonly no --repl-diskless-sync-delay 0";

fn populate_keys(node: &Node, keys: usize) {
    assert_eq!(node.run(&format!("DEBUG POPULATE {keys} key 100")), Reply::Simple("OK".into()));
}

fn info_field(node: &Node, section: &str, name: &str) -> String {
    node.info(section, name).unwrap_or_default()
}

fn wait_for_save(node: &Node) {
    eventually("the save ends", || {
        (info_field(node, "persistence", "rdb_bgsave_in_progress") == "0").then_some(())
    });
}

fn wait_until_equal(replica: &Node, master: &Node) {
    let offset = |node: &Node| info_field(node, "replication", "master_repl_offset");
    eventually(&format!("{} has all of {}", replica.port, master.port), || {
        let linked = info_field(replica, "replication", "master_link_status") == "up";
        (linked && offset(replica) == offset(master)).then_some(())
    });
    assert_eq!(replica.run("DEBUG DIGEST"), master.run("DEBUG DIGEST"));
    assert_eq!(replica.run("DBSIZE"), master.run("DBSIZE"));
}

/// A client that changes keys of several types until it is stopped.
struct BackgroundWriter {
    should_stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl BackgroundWriter {
    fn start(node: &Node, keys: usize) -> Self {
        let (stop, mut connection) = (Arc::new(AtomicBool::new(false)), node.connect());
        let should_stop = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut number, mut rounds) = (1_usize, 0);
            while !should_stop.load(Ordering::Relaxed) {
                for _ in 0..50 {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    send_random_write(&mut connection, number >> 33, keys);
                }
                (0..50).for_each(|_| drop(connection.read().expect("the server answers")));
                rounds += 1;
            }
            rounds
        });
        Self { should_stop: stop, thread }
    }

    fn stop(self) {
        self.should_stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().expect("the load does not fail") > 0);
    }
}

fn send_random_write(connection: &mut Connection, number: usize, keys: usize) {
    let key = format!("key:{}", number % keys);
    let value = "v".repeat(number % 301);
    let (field, hash) = (format!("f{}", number % 997), format!("hash:{}", number % 3));
    let words: &[&str] = match number % 11 {
        0 => &["DEL", &key],
        1 => &["APPEND", &key, "more"],
        2 => &["SETRANGE", &key, "100000", "long"],
        3 => &["PEXPIRE", &key, "86400000"],
        4 => &["RENAME", &key, &format!("key:{}", number % keys + 1)],
        5 => &["SET", &format!("new:{number}"), &value],
        6..8 => &["HSET", &hash, &field, &value],
        8 => &["HDEL", &hash, &field],
        _ => &["SET", &key, &value],
    };
    connection.send(words).expect("the server takes it");
}

/// The RDB file of a save under load plus the replication log from the file's offset must equal the live dataset.
#[test]
fn snapshot_under_load_plus_replication_log_equals_the_live_dataset() {
    let master =
        Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save  --repl-backlog-size 256mb"));
    populate_keys(&master, 20_000);
    let load = BackgroundWriter::start(&master, 20_000);
    let synchronised = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    synchronised.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica is linked", || {
        (info_field(&synchronised, "replication", "master_link_status") == "up").then_some(())
    });
    assert_eq!(master.run("BGSAVE"), Reply::Simple("Background saving started".into()));
    wait_for_save(&master);
    assert_eq!(info_field(&master, "persistence", "rdb_last_bgsave_status"), "ok");
    assert_eq!(info_field(&master, "stats", "total_forks"), "2");
    let mut restarted = Node::prepare(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    fs::copy(master.folder().join("dump.rdb"), restarted.folder().join("dump.rdb")).expect("a copy");
    restarted.add_options(&format!("--replicaof 127.0.0.1 {}", master.port));
    restarted.launch();
    eventually("the restarted server is linked", || {
        (info_field(&restarted, "replication", "master_link_status") == "up").then_some(())
    });
    load.stop();
    wait_until_equal(&synchronised, &master);
    wait_until_equal(&restarted, &master);
    assert_eq!(info_field(&master, "stats", "sync_full"), "1", "the restarted server needed only the log");
    assert_eq!(info_field(&master, "stats", "sync_partial_ok"), "1");
}

#[test]
fn concurrent_full_resyncs_share_a_snapshot() {
    let master =
        Node::start(&Program::redoubt(), "--save  --repl-diskless-sync-delay 2 --enable-debug-command yes");
    populate_keys(&master, 5000);
    let replicas: Vec<Node> =
        (0..3).map(|_| Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "))).collect();
    for replica in &replicas {
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    }
    let load = BackgroundWriter::start(&master, 5000);
    // A BGSAVE that runs at the same time takes a separate snapshot.
    eventually("all replicas are connected", || {
        (info_field(&master, "replication", "connected_slaves") == "3").then_some(())
    });
    master.run("BGSAVE");
    for replica in &replicas {
        eventually("the replica is linked", || {
            (info_field(replica, "replication", "master_link_status") == "up").then_some(())
        });
    }
    wait_for_save(&master);
    load.stop();
    for replica in &replicas {
        wait_until_equal(replica, &master);
    }
    let log = master.log();
    assert_eq!(log.matches("Starting BGSAVE for SYNC with target: ").count(), 1, "{log}");
    assert_eq!(log.matches("Streamed RDB transfer with replica ").count(), 3, "{log}");
    assert_eq!(info_field(&master, "persistence", "rdb_last_bgsave_status"), "ok");
}

/// Each replica connects after the snapshot for the previous replica has started, and during a BGSAVE, so no snapshot
/// can be shared.
#[test]
fn successive_full_resyncs_during_a_save_all_succeed() {
    let master = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save  --rdbcompression no"));
    populate_keys(&master, 150_000);
    let replicas: Vec<Node> =
        (0..3).map(|_| Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "))).collect();
    let load = BackgroundWriter::start(&master, 5000);
    assert_eq!(master.run("BGSAVE"), Reply::Simple("Background saving started".into()));
    for (count, replica) in replicas.iter().enumerate() {
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        eventually("the snapshot for the replica has started", || {
            (master.log().matches("Starting BGSAVE for SYNC with target: ").count() > count).then_some(())
        });
    }
    wait_for_save(&master);
    assert_eq!(info_field(&master, "persistence", "rdb_last_bgsave_status"), "ok");
    for replica in &replicas {
        eventually("the replica is linked", || {
            (info_field(replica, "replication", "master_link_status") == "up").then_some(())
        });
    }
    load.stop();
    for replica in &replicas {
        wait_until_equal(replica, &master);
    }
    assert_eq!(info_field(&master, "stats", "sync_full"), "3");
}

/// Limits the size of files that the server can write.
fn limit_file_size(node: &Node, max_bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(node.pid()).expect("a small number"));
    prlimit(pid, Resource::Fsize, Rlimit { current: max_bytes, maximum: None }).expect("it is our child");
}

fn unfinished_file_count(node: &Node) -> usize {
    let files = fs::read_dir(node.folder()).expect("a folder").filter_map(Result::ok);
    files.filter(|entry| entry.file_name().to_string_lossy().starts_with("temp-")).count()
}

/// The disk becomes full in the middle of the RDB file.
#[test]
fn full_disk_keeps_the_old_file_and_stops_writes() {
    let node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save 3600 1000000"));
    node.run("SET a 1").expect_ok();
    node.run("SAVE").expect_ok();
    let file = node.folder().join("dump.rdb");
    let old = fs::read(&file).expect("the file was saved");
    populate_keys(&node, 20_000);
    limit_file_size(&node, Some(500_000));
    assert_eq!(node.run("BGSAVE"), Reply::Simple("Background saving started".into()));
    eventually("the save fails", || {
        (info_field(&node, "persistence", "rdb_last_bgsave_status") == "err").then_some(())
    });
    let refused = "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk. \
                   Commands that may modify the data set are disabled, because this instance is configured to report \
                   errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check \
                   the Valkey logs for details about the RDB error.";
    assert_eq!(node.run("SET a 2"), Reply::Error(refused.into()));
    assert_eq!(node.run("GET a").text(), "1");
    assert!(node.run("SAVE").is_error("ERR"));
    assert_eq!(fs::read(&file).expect("still there"), old);
    assert_eq!(unfinished_file_count(&node), 0, "the unfinished file is removed");
    node.run("CONFIG SET stop-writes-on-bgsave-error no").expect_ok();
    node.run("SET a 3").expect_ok();
    node.run("CONFIG SET stop-writes-on-bgsave-error yes").expect_ok();
    limit_file_size(&node, None);
    node.run("BGSAVE");
    eventually("writes are taken again", || {
        (node.run("SET a 4") == Reply::Simple("OK".into())).then_some(())
    });
    assert!(fs::read(&file).expect("the new file").len() > old.len());
}

#[test]
fn kill_during_a_save_keeps_the_old_file() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save  --rdbcompression no"));
    populate_keys(&node, 1000);
    node.run("SAVE").expect_ok();
    let (file, digest) = (node.folder().join("dump.rdb"), node.run("DEBUG DIGEST"));
    let old = fs::read(&file).expect("the file was saved");
    assert_eq!(node.run("DEBUG POPULATE 500000 more 200"), Reply::Simple("OK".into()));
    node.run("BGSAVE");
    eventually("the save has begun to write", || (unfinished_file_count(&node) == 1).then_some(()));
    node.kill();
    assert_eq!(fs::read(&file).expect("still there"), old);
    assert_eq!(unfinished_file_count(&node), 1, "the killed server cannot remove it");
    node.launch();
    eventually("the data is loaded", || (node.run("DBSIZE") == Reply::Int(1000)).then_some(()));
    assert_eq!(node.run("DEBUG DIGEST"), digest);
    assert_eq!(unfinished_file_count(&node), 0, "the next start must remove it");
}

#[test]
fn save_reports_progress_and_can_be_cancelled() {
    let node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    assert_eq!(node.run("BGSAVE CANCEL").error_text(), SAVE_NOT_RUNNING_ERROR);
    populate_keys(&node, 300_000);
    node.run("CONFIG SET rdb-key-save-delay 20").expect_ok();
    assert_eq!(node.run("BGSAVE SCHEDULE"), Reply::Simple("Background saving started".into()));
    assert_eq!(node.run("BGSAVE").error_text(), "ERR Background save already in progress");
    eventually("the keys are counted at the cut", || {
        (info_field(&node, "persistence", "current_save_keys_total") == "300000").then_some(())
    });
    eventually("keys are counted as they are written", || {
        (info_field(&node, "persistence", "current_save_keys_processed").parse::<u64>().ok()? > 0)
            .then_some(())
    });
    assert_eq!(node.run("BGSAVE CANCEL"), Reply::Simple("Background saving cancelled".into()));
    wait_for_save(&node);
    assert_eq!(info_field(&node, "persistence", "rdb_saves"), "0");
    assert_eq!(
        info_field(&node, "persistence", "rdb_last_bgsave_status"),
        "ok",
        "a cancelled save is no failure"
    );
    assert!(!node.folder().join("dump.rdb").exists());
    // INFO reports the save as ended at once; the saver thread stops at its next key.
    eventually("the unfinished file is removed", || (unfinished_file_count(&node) == 0).then_some(()));
    assert_eq!(node.run("BGSAVE CANCEL").error_text(), SAVE_NOT_RUNNING_ERROR);
}

const SAVE_NOT_RUNNING_ERROR: &str = "ERR Background saving is currently not in progress or scheduled";

trait ErrorText {
    fn error_text(&self) -> String;
}

impl ErrorText for Reply {
    fn error_text(&self) -> String {
        match self {
            Self::Error(text) => text.clone(),
            other => panic!("no error: {other:?}"),
        }
    }
}
