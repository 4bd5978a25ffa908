//! Tests of replicas that load their master's snapshot directly from the socket (`repl-diskless-load`).

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use harness::{Node, Program, Reply, eventually};

fn start_server(options: &str) -> Node {
    Node::start(&Program::redoubt(), &format!("--repl-diskless-sync-delay 0 {options}"))
}

fn write_keys(node: &Node, value: &str) {
    let script = "for i = 1, 500 do redis.call('set', 'key:' .. i, ARGV[1]) end return 500";
    assert_eq!(node.connect().call(&["EVAL", script, "0", value]), Reply::Int(500));
}

fn replication_field(node: &Node, section: &str, name: &str) -> String {
    node.info(section, name).unwrap_or_default()
}

fn start_replication(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    wait_for_link(replica);
}

fn wait_for_link(replica: &Node) {
    eventually("the link is up", || {
        (replication_field(replica, "replication", "master_link_status") == "up").then_some(())
    });
}

/// The replica ends up with the master's data in every mode, with or without old data, and for both snapshot transfer
/// formats.
#[test]
fn every_diskless_load_mode_replaces_data_with_masters_data() {
    for diskless in ["yes", "no"] {
        let master = start_server(&format!("--repl-diskless-sync {diskless}"));
        write_keys(&master, "new");
        for way in ["disabled", "on-empty-db", "swapdb", "flush-before-load"] {
            let replica = start_server(&format!("--repl-diskless-load {way}"));
            replica.run("SET own value").expect_ok();
            start_replication(&replica, &master);
            assert_eq!(replica.run("DBSIZE"), Reply::Int(500), "{way}");
            assert_eq!(replica.run("GET key:7").text(), "new", "{way}");
            master.run("SET later value").expect_ok();
            eventually("the stream is applied", || (replica.run("DBSIZE") == Reply::Int(501)).then_some(()));
            master.run("DEL later");
        }
    }
}

/// Freezes the replica until the master's backlog no longer covers its offset.
fn force_full_resync(replica: &Node, master: &Node, value: &str) {
    replica.freeze();
    master.run("CLIENT KILL TYPE replica");
    write_keys(master, value);
    // The value is longer than the backlog.
    master.connect().call(&["SET", "large", &"x".repeat(100_000)]).expect_ok();
    master.run("DEL large");
    replica.thaw();
}

/// The replica's old data is from the same replication history as the master's, so it is served until the new data is
/// loaded.
#[test]
fn old_data_is_served_while_new_snapshot_loads() {
    let master = start_server("--repl-backlog-size 16kb");
    write_keys(&master, "old");
    let replica = start_server("--repl-diskless-load swapdb --key-load-delay 10000");
    start_replication(&replica, &master);
    force_full_resync(&replica, &master, "new");
    eventually("the snapshot is loading", || {
        (replication_field(&replica, "persistence", "async_loading") == "1").then_some(())
    });
    assert_eq!(replication_field(&replica, "persistence", "loading"), "0");
    assert_eq!(replica.run("GET key:7").text(), "old");
    assert_eq!(replica.run("DBSIZE"), Reply::Int(500));
    assert!(replica.run("BGSAVE").is_error("LOADING"));
    replica.run("CONFIG SET key-load-delay 0").expect_ok();
    wait_for_link(&replica);
    assert_eq!(replica.run("GET key:7").text(), "new");
    assert_eq!(replication_field(&replica, "persistence", "async_loading"), "0");
    assert_eq!(replication_field(&master, "stats", "sync_full"), "2");
}

/// If the link breaks during the transfer, the old data is lost only in the mode that flushes it first.
#[test]
fn broken_transfer_keeps_old_data_unless_it_was_flushed_first() {
    for (way, left) in [("disabled", 1000), ("swapdb", 1000), ("flush-before-load", 0)] {
        let mut master =
            start_server("--repl-backlog-size 16kb --rdbcompression no --rdb-key-save-delay 10000");
        write_keys(&master, "old");
        // There is so much data that the start of the snapshot is sent long before its end.
        let script = "for i = 1, 500 do redis.call('set', 'more:' .. i, ARGV[1]) end return 500";
        assert_eq!(master.connect().call(&["EVAL", script, "0", &"x".repeat(2000)]), Reply::Int(500));
        let replica = start_server(&format!("--repl-diskless-load {way}"));
        master.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
        start_replication(&replica, &master);
        master.run("CONFIG SET rdb-key-save-delay 10000").expect_ok();
        force_full_resync(&replica, &master, "new");
        eventually("a snapshot comes", || {
            (replication_field(&replica, "replication", "master_sync_in_progress") == "1").then_some(())
        });
        if way == "flush-before-load" {
            eventually("the old data is gone", || {
                (replication_field(&replica, "persistence", "loading") == "1").then_some(())
            });
        }
        master.kill();
        eventually("the replica has detected it", || {
            (replication_field(&replica, "replication", "master_sync_in_progress") == "0"
                && replication_field(&replica, "persistence", "loading") == "0"
                && replication_field(&replica, "persistence", "async_loading") == "0")
                .then_some(())
        });
        assert_eq!(replica.run("DBSIZE"), Reply::Int(left), "{way}");
        master.add_options("--rdb-key-save-delay 0");
        master.launch();
        write_keys(&master, "newest");
        wait_for_link(&replica);
        eventually("it has everything again", || {
            (replica.run("GET key:7") == Reply::Bulk(b"newest".to_vec())).then_some(())
        });
    }
}

/// Starts a fake master that answers each PSYNC with `snapshot`, and returns its port.
fn start_scripted_master(snapshot: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let snapshot = snapshot.clone();
            thread::spawn(move || send_reply(stream, &snapshot));
        }
    });
    port
}

fn send_reply(mut stream: TcpStream, snapshot: &[u8]) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
    while let Some(count) = lines.next()?.strip_prefix('*').and_then(|count| count.parse::<usize>().ok()) {
        // In a request, each argument follows a line that contains its length.
        let words: Vec<String> = lines.by_ref().take(2 * count).skip(1).step_by(2).collect();
        let reply = match words.first()?.to_ascii_uppercase().as_str() {
            "PING" => b"+PONG\r\n".to_vec(),
            "PSYNC" => {
                let head = format!("+FULLRESYNC {} 1\r\n${}\r\n", "ab".repeat(20), snapshot.len());
                [head.as_bytes(), snapshot].concat()
            }
            _ => b"+OK\r\n".to_vec(),
        };
        stream.write_all(&reply).ok()?;
    }
    None
}

/// The bug: one vector set on a Redis 8 master made its replica flush all its data repeatedly.
#[test]
fn unloadable_snapshot_keeps_old_data() {
    let vector_set = [b"REDIS0012\xfe\x00\x00\x01k\x01v\x07\x01s".as_slice(), &[0; 200]].concat();
    let snapshots = [
        ("a vector set", vector_set),
        ("a version of the future", b"REDIS0999\xfe\x00\xff".to_vec()),
        ("garbage", vec![b'x'; 1000]),
        ("nothing", Vec::new()),
        ("a part", b"REDIS0011\xfe\x00\x00\x01k".to_vec()),
    ];
    let replica = start_server("");
    write_keys(&replica, "own");
    let failures = || replica.log().matches("Failed trying to load the PRIMARY synchronization DB").count();
    for (what, snapshot) in snapshots {
        let can_be_told_by_header = !matches!(what, "a vector set" | "a part");
        let port = start_scripted_master(snapshot);
        for way in ["disabled", "on-empty-db", "swapdb", "flush-before-load"] {
            if way == "flush-before-load" && !can_be_told_by_header {
                continue;
            }
            replica.run(&format!("CONFIG SET repl-diskless-load {way}")).expect_ok();
            let before = failures();
            replica.run(&format!("REPLICAOF 127.0.0.1 {port}")).expect_ok();
            eventually("the load has failed twice", || (failures() >= before + 2).then_some(()));
            assert_eq!(replica.run("DBSIZE"), Reply::Int(500), "{what}, {way}");
            assert_eq!(replica.run("GET key:7").text(), "own", "{what}, {way}");
            replica.run("REPLICAOF NO ONE").expect_ok();
        }
    }
    let master = start_server("");
    write_keys(&master, "new");
    start_replication(&replica, &master);
    assert_eq!(replica.run("GET key:7").text(), "new");
}

/// A Redis master can send a snapshot in both transfer formats.
#[test]
fn diskless_load_accepts_snapshots_of_redis() {
    for diskless in ["yes", "no"] {
        let options = format!("--repl-diskless-sync {diskless} --repl-diskless-sync-delay 0");
        let master = Node::start(&Program::redis(), &options);
        write_keys(&master, "new");
        let replica = start_server("--repl-diskless-load swapdb");
        start_replication(&replica, &master);
        assert_eq!(replica.run("DBSIZE"), Reply::Int(500));
        assert_eq!(replica.run("DBSIZE"), master.run("DBSIZE"));
    }
}
