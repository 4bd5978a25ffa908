//! Tests of hashes on masters and replicas: written during and after a synchronisation, and reloaded from disk.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Connection, Node, Program, Reply, eventually};

const SERVER_OPTIONS: &str = "--save  --enable-debug-command yes";

fn call_command(connection: &mut Connection, words: &[&str]) -> Reply {
    let reply = connection.call(words);
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
    reply
}

fn set_fields(connection: &mut Connection, key: &str, fields: std::ops::Range<usize>, value: &str) {
    let names: Vec<String> = fields.map(|number| format!("field:{number:08}")).collect();
    for names in names.chunks(200) {
        let mut words = vec!["HSET", key];
        words.extend(names.iter().flat_map(|name| [name.as_str(), value]));
        call_command(connection, &words);
    }
}

/// Writes small, medium and large hashes, and applies all kinds of changes to them.
fn write_hashes(connection: &mut Connection, prefix: &str) {
    for number in 0..200 {
        let key = format!("{prefix}:small:{number}");
        set_fields(connection, &key, 0..1 + number % 12, &"s".repeat(number));
        call_command(connection, &["HINCRBY", &key, "count", &number.to_string()]);
        call_command(connection, &["HINCRBYFLOAT", &key, "sum", "0.1"]);
        call_command(connection, &["HDEL", &key, "field:00000000"]);
    }
    for number in 0..10 {
        set_fields(connection, &format!("{prefix}:medium:{number}"), 0..100 + number * 60, "medium value");
    }
    let large = format!("{prefix}:large");
    set_fields(connection, &large, 0..5000, "a value of a large hash");
    set_fields(connection, &large, 2000..2200, "another value");
    call_command(connection, &["HDEL", &large, "field:00000001", "field:00004999"]);
    call_command(connection, &["COPY", &large, &format!("{prefix}:copy")]);
    call_command(connection, &["RENAME", &large, &format!("{prefix}:renamed")]);
    call_command(connection, &["HSETNX", &format!("{prefix}:renamed"), "new", "field"]);
    call_command(connection, &["DEL", &format!("{prefix}:small:7"), &format!("{prefix}:medium:3")]);
}

/// Sets TTLs on fields: some last an hour, and some expire within the test.
fn write_field_ttls(connection: &mut Connection, prefix: &str) {
    for key in [format!("{prefix}:renamed"), format!("{prefix}:medium:1"), format!("{prefix}:small:50")] {
        set_fields(connection, &key, 0..40, "a value that expires");
        for (number, time) in [(1, "50"), (2, "300"), (3, "3600000"), (4, "0")] {
            let (a, b) = (format!("field:{number:08}"), format!("field:{:08}", number + 20));
            call_command(connection, &["HPEXPIRE", &key, time, "FIELDS", "2", &a, &b]);
        }
        call_command(connection, &["HSETEX", &key, "EX", "3600", "FIELDS", "2", "x", "1", "y", "2"]);
        call_command(connection, &["HGETEX", &key, "PERSIST", "FIELDS", "1", "y"]);
        call_command(connection, &["HINCRBYFLOAT", &key, "x", "1.5"]);
        call_command(connection, &["HGETDEL", &key, "FIELDS", "1", "field:00000010"]);
    }
}

fn dataset_digest(node: &Node) -> String {
    node.run("DEBUG DIGEST").text()
}

fn wait_until_equal(replica: &Node, master: &Node) {
    eventually("the replica has what its master has", || {
        let same = replica.run("DBSIZE") == master.run("DBSIZE")
            && dataset_digest(replica) == dataset_digest(master);
        same.then_some(())
    });
}

fn start_replication(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
}

fn assert_replicates_hashes(
    master: &Program,
    replica: &Program,
    compares_expiry_times: bool,
) -> (Node, Node) {
    let (master, replica) = (Node::start(master, SERVER_OPTIONS), Node::start(replica, SERVER_OPTIONS));
    let mut connection = master.connect();
    write_hashes(&mut connection, "before");
    if compares_expiry_times {
        write_field_ttls(&mut connection, "before");
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A client writes before, during and after the synchronisation.
        scope.spawn(|| {
            let mut connection = master.connect();
            for round in 0..1000 {
                let over = done.load(Ordering::Relaxed);
                write_hashes(&mut connection, &format!("meanwhile:{}", round % 2));
                if compares_expiry_times {
                    write_field_ttls(&mut connection, &format!("meanwhile:{}", round % 2));
                }
                if over {
                    break;
                }
            }
        });
        start_replication(&replica, &master);
        done.store(true, Ordering::Relaxed);
    });
    write_hashes(&mut connection, "after");
    if compares_expiry_times {
        write_field_ttls(&mut connection, "after");
    }
    wait_until_equal(&replica, &master);
    (master, replica)
}

#[test]
fn replica_has_hashes_of_every_size_with_field_ttls() {
    let (master, replica) = assert_replicates_hashes(&Program::redoubt(), &Program::redoubt(), true);
    // `after:small:50` gets its TTLs last: a field that expired between the two digests would make them differ.
    for key in ["before:renamed", "after:medium:1", "meanwhile:0:small:50", "after:small:50"] {
        // Fields with a short TTL must have expired on both servers, and the remaining fields must have equal expiry
        // times on both.
        let line = format!("HPEXPIRETIME {key} FIELDS 5 field:00000001 field:00000022 field:00000003 x y");
        eventually("the fields expire", || {
            let times: Vec<i64> = master.run(&line).items().iter().map(Reply::int).collect();
            assert_eq!(times[4], -1, "y was made to stay");
            assert!(times[2] > 0 && times[3] > 0, "{key}: {times:?}");
            (times[0] == -2 && times[1] == -2 && replica.run(&line) == master.run(&line)).then_some(())
        });
    }
    wait_until_equal(&replica, &master);
    // Both servers save and reload their data.
    let before = dataset_digest(&master);
    master.run("DEBUG RELOAD").expect_ok();
    assert_eq!(dataset_digest(&master), before);
}

#[test]
fn redis_replicates_hashes_of_redoubt() {
    let (master, replica) = assert_replicates_hashes(&Program::redoubt(), &Program::redis(), false);
    for key in ["before:small:3", "after:medium:9", "after:renamed"] {
        let line = format!("OBJECT ENCODING {key}");
        assert_eq!(replica.run(&line), master.run(&line), "{key}");
    }
}

#[test]
fn redoubt_replicates_hashes_of_redis() {
    let (master, replica) = assert_replicates_hashes(&Program::redis(), &Program::redoubt(), false);
    for key in ["before:small:3", "after:medium:9", "after:renamed"] {
        let line = format!("OBJECT ENCODING {key}");
        assert_eq!(replica.run(&line), master.run(&line), "{key}");
    }
}

/// A key migrates to another server and back without changes, whichever of the two is a real Redis.
#[test]
fn hashes_survive_migrate_to_another_server_and_back() {
    let (ours, theirs) =
        (Node::start(&Program::redoubt(), SERVER_OPTIONS), Node::start(&Program::redis(), SERVER_OPTIONS));
    write_hashes(&mut ours.connect(), "k");
    for key in ["k:small:40", "k:medium:9", "k:renamed"] {
        let value = |node: &Node| node.run(&format!("DEBUG DIGEST-VALUE {key}"));
        let before = value(&ours);
        for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
            from.run(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port)).expect_ok();
            assert_eq!(value(to), before, "{key}");
            assert_eq!(from.run(&format!("EXISTS {key}")).int(), 0);
        }
    }
}

/// Thousands of fields of one large hash expire at the same time, and the hash must be deleted with the last one.
#[test]
fn large_hash_expires_many_fields_at_once() {
    let node = Node::start(&Program::redoubt(), SERVER_OPTIONS);
    let mut connection = node.connect();
    set_fields(&mut connection, "h", 0..10_000, "v");
    let names: Vec<String> = (0..10_000).map(|number| format!("field:{number:08}")).collect();
    for names in names.chunks(500) {
        let count = names.len().to_string();
        let mut words = vec!["HPEXPIRE", "h", "400", "FIELDS", &count];
        words.extend(names.iter().map(String::as_str));
        call_command(&mut connection, &words);
    }
    eventually("the hash is deleted with its last field", || (node.run("EXISTS h").int() == 0).then_some(()));
    assert_eq!(node.info("stats", "expired_fields").as_deref(), Some("10000"));
    let pending = || node.info("memory", "lazyfree_pending_objects");
    set_fields(&mut connection, "h", 0..10_000, "v");
    call_command(&mut connection, &["UNLINK", "h"]);
    harness::eventually_within(Duration::from_secs(10), "deleted memory is freed", || {
        (pending().as_deref() == Some("0")).then_some(())
    });
    assert_ne!(node.info("memory", "lazyfreed_objects").as_deref(), Some("0"));
}

/// Reads the arguments of the next request that the client sends.
fn read_request(reader: &mut impl BufRead) -> Vec<Vec<u8>> {
    let number = |reader: &mut dyn BufRead| -> usize {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line of RESP");
        line[1..].trim_end().parse().expect("a length")
    };
    (0..number(reader))
        .map(|_| {
            let mut word = vec![0; number(reader) + 2];
            reader.read_exact(&mut word).expect("a word");
            word.truncate(word.len() - 2);
            word
        })
        .collect()
}

/// Redis and Valkey encode hashes with field TTLs differently. If the target refuses the Redis encoding, MIGRATE
/// retries with Valkey's.
#[test]
fn migrate_falls_back_to_valkey_hash_encoding() {
    let node = Node::start(&Program::redoubt(), SERVER_OPTIONS);
    assert_eq!(node.run("HSET h f v").int(), 1);
    node.run("HPEXPIREAT h 4102444800000 FIELDS 1 f");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("the node connects");
            let mut reader = BufReader::new(stream.try_clone().expect("a socket can be shared"));
            for (kind, version, answer) in [(24, 10, "-ERR Bad data format\r\n"), (22, 80, "+OK\r\n")] {
                let request = read_request(&mut reader);
                let payload = &request[3];
                assert_eq!((request[0].as_slice(), request[1].as_slice()), (&b"RESTORE"[..], &b"h"[..]));
                assert_eq!((payload[0], payload[payload.len() - 10]), (kind, version));
                stream.write_all(answer.as_bytes()).expect("the node reads");
            }
        });
        node.run(&format!("MIGRATE 127.0.0.1 {port} h 0 5000")).expect_ok();
    });
    assert_eq!(node.run("EXISTS h").int(), 0);
}
