//! Tests of loading an RDB file: progress reports, per-key idle times and frequencies, and memory use.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::{Node, Program, Reply, eventually};

const SERVER_OPTIONS: &str = "--enable-debug-command yes --appendonly no --save ";

/// The server reads the file from a pipe, so that the test controls the speed of loading.
#[test]
fn loading_reports_progress() {
    let first = Node::start(&Program::redoubt(), SERVER_OPTIONS);
    assert_eq!(first.run("DEBUG POPULATE 40000 key 10"), Reply::Simple("OK".into()));
    first.run("SAVE").expect_ok();
    let bytes = fs::read(first.folder().join("dump.rdb")).expect("the file was saved");
    let mut second = Node::prepare(&Program::redoubt(), SERVER_OPTIONS);
    let pipe = second.folder().join("dump.rdb");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there").success());
    second.spawn();
    let mut writer = File::options().write(true).open(&pipe).expect("the server opens the other end");
    let (half, mut rest) = bytes.split_at(bytes.len() / 4);
    writer.write_all(half).expect("the server reads it");
    let field = |name: &str| second.info("persistence", name).unwrap_or_default();
    let loaded = || field("loading_loaded_bytes").parse::<u64>().unwrap_or(0);
    eventually("the server answers while it loads", || {
        second.try_connect().ok()?.try_call(&["PING"]).ok()?.is_error("LOADING").then_some(())
    });
    assert_eq!(field("loading"), "1");
    let before = eventually("bytes are counted as they are read", || Some(loaded()).filter(|&read| read > 0));
    assert!(before <= half.len() as u64);
    assert!(field("loading_start_time").parse::<i64>().is_ok_and(|at| at > 1_500_000_000));
    let mut fed = Instant::now();
    eventually("the log shows the progress", || {
        if fed.elapsed() > Duration::from_millis(500) {
            fed = Instant::now();
            let (piece, after) = rest.split_at(rest.len().min(40_000));
            writer.write_all(piece).expect("the server reads it");
            rest = after;
        }
        second.log().contains("Loading: ").then_some(())
    });
    assert!(loaded() > before);
    writer.write_all(rest).expect("the server reads it");
    drop(writer);
    eventually("the data is loaded", || (second.run("DBSIZE") == Reply::Int(40_000)).then_some(()));
    assert_eq!(second.run("DEBUG DIGEST"), first.run("DEBUG DIGEST"));
    assert!(second.log().contains("Done loading RDB, keys loaded: 40000, keys expired: 0."));
    assert_eq!(
        second.info("persistence", "loading_loaded_bytes"),
        None,
        "the field must disappear after the load"
    );
}

/// The peak resident memory of the process, in bytes.
fn peak_resident_bytes(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn huge_hash_is_loaded_without_a_second_copy_in_memory() {
    const FIELD_COUNT: usize = 400_000;
    let mut node = Node::start(&Program::redoubt(), SERVER_OPTIONS);
    let empty = node.resident_bytes();
    let mut connection = node.connect();
    for start in (0..FIELD_COUNT).step_by(2000) {
        let mut words = vec!["HSET".to_owned(), "hash".to_owned()];
        for field in start..start + 2000 {
            words.extend([format!("field:{field:010}"), format!("{:>60}", field * 7919)]);
        }
        connection.send(&words).expect("the server takes it");
        assert_eq!(connection.read().expect("the server answers"), Reply::Int(2000));
    }
    let digest = node.run("DEBUG DIGEST");
    node.run("SAVE").expect_ok();
    // The hash is loaded both at start and by a replica during synchronisation.
    let replica = Node::start(&Program::redoubt(), SERVER_OPTIONS);
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", node.port)).expect_ok();
    eventually("the replica has it", || {
        (replica.run("HLEN hash") == Reply::Int(FIELD_COUNT as i64)).then_some(())
    });
    node.kill();
    node.launch();
    eventually("the data is loaded", || {
        (node.run("HLEN hash") == Reply::Int(FIELD_COUNT as i64)).then_some(())
    });
    for node in [&node, &replica] {
        let (peak, has) = (peak_resident_bytes(node), node.resident_bytes());
        let (grown, held) = (peak.saturating_sub(empty), has.saturating_sub(empty));
        assert!(
            grown < held * 3 / 2 + (8 << 20),
            "at most {peak} bytes, {has} at the end, {empty} when empty"
        );
        assert_eq!(node.run("DEBUG DIGEST"), digest);
    }
    let Reply::Bulk(payload) = connect_with_long_timeout(&node).call(&["DUMP", "hash"]) else {
        panic!("no payload")
    };
    let restore = [&b"RESTORE"[..], b"copy", b"0", &payload];
    assert_eq!(connect_with_long_timeout(&node).try_call(&restore).ok(), Some(Reply::Simple("OK".into())));
    assert_eq!(node.run("HLEN copy"), Reply::Int(FIELD_COUNT as i64));
    assert_eq!(node.run("HGET copy field:0000399999"), node.run("HGET hash field:0000399999"));
}

fn connect_with_long_timeout(node: &Node) -> harness::Connection {
    let mut connection = node.connect();
    connection.set_timeout(Duration::from_secs(60));
    connection
}

/// Starts `second` on the RDB file of `first`, both with the eviction policy `policy`.
fn load_file_with_usage_data(first: &Program, second: &Program, policy: &str) -> Node {
    let options = format!("--save  --maxmemory-policy {policy}");
    let first = Node::start(first, &options);
    first.run("SET key value").expect_ok();
    let Reply::Bulk(payload) = first.run("DUMP key") else { panic!("no payload") };
    for (name, option, number) in [("idle", "IDLETIME", "5000"), ("often", "FREQ", "200")] {
        let restore =
            [&b"RESTORE"[..], name.as_bytes(), b"0", &payload, option.as_bytes(), number.as_bytes()];
        assert_eq!(first.connect().try_call(&restore).ok(), Some(Reply::Simple("OK".into())));
    }
    first.run("SAVE").expect_ok();
    let mut second = Node::prepare(second, &options);
    fs::copy(first.folder().join("dump.rdb"), second.folder().join("dump.rdb")).expect("a copy");
    second.launch();
    eventually("the data is loaded", || (second.run("DBSIZE") == Reply::Int(3)).then_some(()));
    second
}

/// An RDB file contains each key's idle time if its writer used an LRU policy, and its frequency with an LFU policy.
#[test]
fn idle_times_and_frequencies_survive_a_reload() {
    let (ours, theirs) = (Program::redoubt(), Program::redis());
    for (first, second) in [(&theirs, &ours), (&ours, &ours), (&ours, &theirs)] {
        let node = load_file_with_usage_data(first, second, "allkeys-lru");
        let idle = node.run("OBJECT IDLETIME idle").int();
        assert!((5000..5120).contains(&idle), "{idle}");
        assert!(node.run("OBJECT IDLETIME key").int() < 120);
        let node = load_file_with_usage_data(first, second, "allkeys-lfu");
        let frequency = node.run("OBJECT FREQ often").int();
        assert!((195..=200).contains(&frequency), "{frequency}");
        assert!(node.run("OBJECT FREQ key").int() < 20);
    }
}

/// The expiry of `kept` in the AOF's base has passed by the next start, but `PERSIST` in the increment removes this
/// expiry.
#[test]
fn key_persisted_after_the_aof_base_survives_its_old_expiry() {
    let mut node = Node::start(&Program::redoubt(), "--save  --appendonly yes --appendfsync always");
    let until = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_secs(10);
    for key in ["kept", "brief"] {
        node.run(&format!("SET {key} v PXAT {}", until.as_millis())).expect_ok();
    }
    let rewrites = node.info("persistence", "aof_rewrites");
    assert!(!node.run("BGREWRITEAOF").is_error("ERR"));
    eventually("the base is rewritten", || {
        let running = node.info("persistence", "aof_rewrite_in_progress")? == "1";
        (!running && node.info("persistence", "aof_rewrites") != rewrites).then_some(())
    });
    assert_eq!(node.run("PERSIST kept"), Reply::Int(1));
    node.kill();
    eventually("the old expiry has passed", || (SystemTime::now() > UNIX_EPOCH + until).then_some(()));
    node.launch();
    assert_eq!(node.run("GET kept").text(), "v");
    assert_eq!(node.run("GET brief"), Reply::NullBulk);
}

/// While loading, the server refuses to change the directory or to switch the AOF on or off.
#[test]
fn dir_and_appendonly_cannot_be_changed_while_loading() {
    let options = "--save  --enable-protected-configs yes --enable-debug-command yes";
    let mut node = Node::start(&Program::redoubt(), options);
    node.run("DEBUG POPULATE 500").expect_ok();
    node.run("SAVE").expect_ok();
    node.kill();
    node.add_options("--key-load-delay 20000");
    node.spawn();
    let mut connection = eventually("the server accepts connections", || node.try_connect().ok());
    let folder = connection.call_line("CONFIG GET dir");
    for line in ["CONFIG SET dir /", "CONFIG SET maxclients 500 APPENDONLY yes", "CONFIG SET appendonly no"] {
        assert!(connection.call_line(line).is_error("LOADING "), "{line}");
    }
    connection.call_line("CONFIG SET maxclients 500 dbfilename other.rdb").expect_ok();
    assert_eq!(connection.call_line("CONFIG GET dir"), folder);
    connection.call_line("CONFIG SET key-load-delay 0");
}
