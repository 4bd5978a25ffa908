//! The settings of RDB files do what they say.

use std::fs;

use harness::{Node, Program, Value, eventually};

const OPTIONS: &str = "--appendonly no --enable-debug-command yes";

fn saved(node: &Node) -> Vec<u8> {
    node.run("SAVE").expect_ok();
    fs::read(node.folder().join("dump.rdb")).expect("it was saved")
}

#[test]
fn compression_and_checksums_are_left_out_where_that_is_asked_for() {
    let node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --save "));
    node.connect().call(&["SET", "key", &"v".repeat(10_000)]).expect_ok();
    assert!(saved(&node).len() < 1000);
    node.run("CONFIG SET rdbcompression no").expect_ok();
    assert!(saved(&node).len() > 10_000);
    let mut node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --save  --rdbchecksum no"));
    node.run("SET key value").expect_ok();
    let mut file = saved(&node);
    assert!(file.ends_with(&[0; 8]), "none was counted");
    // With a wrong checksum instead it is loaded by a server that does not check, and by no other.
    let len = file.len();
    file[len - 8..].copy_from_slice(&[1; 8]);
    node.kill();
    fs::write(node.folder().join("dump.rdb"), &file).expect("it can be written");
    node.launch();
    eventually("the data is loaded", || {
        (node.run("GET key") == Value::Bulk(b"value".to_vec())).then_some(())
    });
    node.kill();
    node.add_options("--rdbchecksum yes");
    node.spawn();
    assert!(!node.ended().success());
    assert!(node.log().contains("wrong RDB checksum"), "{}", node.log());
}

#[test]
fn a_delay_for_each_key_makes_a_save_last() {
    let node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --save  --rdb-key-save-delay 20000"));
    node.run("DEBUG POPULATE 1000").expect_ok();
    node.run("BGSAVE");
    let field = |name| node.info("persistence", name);
    assert_eq!(field("current_save_keys_total").as_deref(), Some("1000"), "it is known at once");
    eventually("some keys are written", || {
        (field("current_save_keys_processed")?.parse::<u64>().ok()? > 5).then_some(())
    });
    assert_eq!(field("rdb_bgsave_in_progress").as_deref(), Some("1"));
    assert_eq!(node.run("PING").text(), "PONG", "nobody waits for it");
    node.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
    eventually("the rest is written at once", || (field("rdb_bgsave_in_progress")? == "0").then_some(()));
    assert_eq!(field("rdb_last_bgsave_status").as_deref(), Some("ok"));
}

#[test]
fn writes_go_on_after_a_save_that_failed_if_that_is_wanted() {
    let node = Node::start(
        &Program::redoubt(),
        &format!("{OPTIONS} --save 3600 1000000 --stop-writes-on-bgsave-error no"),
    );
    fs::create_dir_all(node.folder().join("dump.rdb/in-the-way")).expect("a folder");
    node.run("SET a 1").expect_ok();
    node.run("BGSAVE");
    eventually("the save fails", || {
        (node.info("persistence", "rdb_last_bgsave_status")? == "err").then_some(())
    });
    node.run("SET a 2").expect_ok();
    node.run("CONFIG SET stop-writes-on-bgsave-error yes").expect_ok();
    assert!(node.run("SET a 3").is_error("MISCONF"));
    node.run("CONFIG SET stop-writes-on-bgsave-error no").expect_ok();
    node.run("SET a 4").expect_ok();
}

/// A node that keeps nothing by itself keeps no file of its master's data either.
#[test]
fn the_file_of_a_synchronisation_goes_where_nothing_is_to_be_kept() {
    let master = Node::start(&Program::redoubt(), &format!("{OPTIONS} --save  --repl-diskless-sync-delay 0"));
    master.run("SET a 1").expect_ok();
    for (options, is_there) in [
        ("--save  --rdb-del-sync-files yes", false),
        ("--save  --rdb-del-sync-files no", true),
        ("--save 3600 1000000 --rdb-del-sync-files yes", true),
    ] {
        let replica = Node::start(
            &Program::redoubt(),
            &format!("{OPTIONS} {options} --replicaof 127.0.0.1 {}", master.port),
        );
        eventually("it is synchronised", || (replica.run("EXISTS a") == Value::Int(1)).then_some(()));
        eventually("the file is there or not", || {
            (replica.folder().join("dump.rdb").exists() == is_there).then_some(())
        });
        let left = fs::read_dir(replica.folder()).expect("the folder").filter_map(Result::ok);
        let temporary = left.filter(|file| file.file_name().to_string_lossy().starts_with("temp-"));
        assert_eq!(temporary.count(), 0, "{options}");
    }
}

/// Whatever `sanitize-dump-payload` says: a value that is broken inside is never stored. Where only another reader would
/// notice, it says whether the value is refused.
#[test]
fn a_broken_value_is_refused_with_and_without_being_asked_for_it() {
    let node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --save "));
    // A listpack that says it is longer than it is.
    let body = b"\x10\x0b\xff\x00\x00\x00\x02\x00\x81a\x02\x01\x01\xff";
    let mut payload = [&body[..], &10u16.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    for value in ["no", "yes", "clients"] {
        node.run(&format!("CONFIG SET sanitize-dump-payload {value}")).expect_ok();
        let mut connection = node.connect();
        let reply = connection.try_call(&[&b"RESTORE"[..], b"key", b"0", &payload]).expect("it is answered");
        assert!(matches!(&reply, Value::Error(text) if text == "ERR Bad data format"), "{reply:?}");
    }
    // One that says that it has three items, and has two.
    let body = b"\x10\x0d\x0d\x00\x00\x00\x03\x00\x81a\x02\x81b\x02\xff";
    let mut payload = [&body[..], &10u16.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    for (value, is_taken) in [("no", true), ("yes", false), ("clients", false)] {
        node.run(&format!("CONFIG SET sanitize-dump-payload {value}")).expect_ok();
        let mut connection = node.connect();
        let words = [&b"RESTORE"[..], b"key", b"0", &payload, b"REPLACE"];
        let reply = connection.try_call(&words).expect("it is answered");
        assert_eq!(reply == Value::Simple("OK".to_owned()), is_taken, "{value}: {reply:?}");
    }
    assert!(node.log().contains("Hash listpack integrity check failed."), "{}", node.log());
    // A version of the future.
    let mut payload = [&b"\x00\x01a"[..], &79u16.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    for (value, is_taken) in [("strict", false), ("relaxed", true)] {
        node.run(&format!("CONFIG SET rdb-version-check {value}")).expect_ok();
        let words = [&b"RESTORE"[..], b"key", b"0", &payload, b"REPLACE"];
        let reply = node.connect().try_call(&words).expect("it is answered");
        assert_eq!(reply == Value::Simple("OK".to_owned()), is_taken, "{value}: {reply:?}");
    }
}

/// The checksum of payloads, bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    const POLYNOMIAL: u64 = 0x95AC_9329_AC4B_C9B5;
    let mut crc = 0;
    for byte in bytes {
        crc ^= u64::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ POLYNOMIAL };
        }
    }
    crc
}
