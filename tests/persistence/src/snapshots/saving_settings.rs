//! Tests of the RDB options: compression, checksums, delays, error handling and payload validation.

use std::fs;

use harness::{Node, Program, Reply, eventually};

const SERVER_OPTIONS: &str = "--appendonly no --enable-debug-command yes";

fn save_and_read_file(node: &Node) -> Vec<u8> {
    node.run("SAVE").expect_ok();
    fs::read(node.folder().join("dump.rdb")).expect("it was saved")
}

#[test]
fn compression_and_checksums_can_be_disabled() {
    let node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    node.connect().call(&["SET", "key", &"v".repeat(10_000)]).expect_ok();
    assert!(save_and_read_file(&node).len() < 1000);
    node.run("CONFIG SET rdbcompression no").expect_ok();
    assert!(save_and_read_file(&node).len() > 10_000);
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save  --rdbchecksum no"));
    node.run("SET key value").expect_ok();
    let mut file = save_and_read_file(&node);
    assert!(file.ends_with(&[0; 8]), "the checksum must be zero");
    // With a wrong checksum, only a server with `rdbchecksum no` loads the file.
    let len = file.len();
    file[len - 8..].copy_from_slice(&[1; 8]);
    node.kill();
    fs::write(node.folder().join("dump.rdb"), &file).expect("it can be written");
    node.launch();
    eventually("the data is loaded", || {
        (node.run("GET key") == Reply::Bulk(b"value".to_vec())).then_some(())
    });
    node.kill();
    node.add_options("--rdbchecksum yes");
    node.spawn();
    assert!(!node.wait_for_exit_before_relaunch().success());
    assert!(node.log().contains("wrong RDB checksum"), "{}", node.log());
}

#[test]
fn rdb_key_save_delay_slows_down_a_save() {
    let node =
        Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save  --rdb-key-save-delay 20000"));
    node.run("DEBUG POPULATE 1000").expect_ok();
    node.run("BGSAVE");
    let field = |name| node.info("persistence", name);
    assert_eq!(field("current_save_keys_total").as_deref(), Some("1000"), "the total is known at once");
    eventually("some keys are written", || {
        (field("current_save_keys_processed")?.parse::<u64>().ok()? > 5).then_some(())
    });
    assert_eq!(field("rdb_bgsave_in_progress").as_deref(), Some("1"));
    assert_eq!(node.run("PING").text(), "PONG", "other clients must not wait for the save");
    node.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
    eventually("the rest is written at once", || (field("rdb_bgsave_in_progress")? == "0").then_some(()));
    assert_eq!(field("rdb_last_bgsave_status").as_deref(), Some("ok"));
}

#[test]
fn writes_continue_after_a_failed_save_if_configured() {
    let node = Node::start(
        &Program::redoubt(),
        &format!("{SERVER_OPTIONS} --save 3600 1000000 --stop-writes-on-bgsave-error no"),
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

/// With `rdb-del-sync-files`, a replica without persistence must not keep the RDB file of a full resync.
#[test]
fn full_resync_files_are_deleted_without_persistence() {
    let master =
        Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save  --repl-diskless-sync-delay 0"));
    master.run("SET a 1").expect_ok();
    for (options, is_there) in [
        ("--save  --rdb-del-sync-files yes", false),
        ("--save  --rdb-del-sync-files no", true),
        ("--save 3600 1000000 --rdb-del-sync-files yes", true),
    ] {
        let replica = Node::start(
            &Program::redoubt(),
            &format!("{SERVER_OPTIONS} {options} --replicaof 127.0.0.1 {}", master.port),
        );
        eventually("the replica is synchronised", || {
            (replica.run("EXISTS a") == Reply::Int(1)).then_some(())
        });
        eventually("the file exists or not, as expected", || {
            (replica.folder().join("dump.rdb").exists() == is_there).then_some(())
        });
        let left = fs::read_dir(replica.folder()).expect("the folder").filter_map(Result::ok);
        let temporary = left.filter(|file| file.file_name().to_string_lossy().starts_with("temp-"));
        assert_eq!(temporary.count(), 0, "{options}");
    }
}

/// A structurally broken value is refused with every value of `sanitize-dump-payload`. The option only decides about
/// values whose headers contradict their content, which Redoubt itself could read.
#[test]
fn corrupt_payloads_are_refused_with_every_sanitize_option() {
    let node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --save "));
    // This listpack's header claims more bytes than the listpack has.
    let body = b"\x10\x0b\xff\x00\x00\x00\x02\x00\x81a\x02\x01\x01\xff";
    let mut payload = [&body[..], &10u16.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    for value in ["no", "yes", "clients"] {
        node.run(&format!("CONFIG SET sanitize-dump-payload {value}")).expect_ok();
        let mut connection = node.connect();
        let reply = connection.try_call(&[&b"RESTORE"[..], b"key", b"0", &payload]).expect("it is answered");
        assert!(matches!(&reply, Reply::Error(text) if text == "ERR Bad data format"), "{reply:?}");
    }
    // This listpack's header claims three items, but the listpack has two.
    let body = b"\x10\x0d\x0d\x00\x00\x00\x03\x00\x81a\x02\x81b\x02\xff";
    let mut payload = [&body[..], &10u16.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    for (value, is_accepted) in [("no", true), ("yes", false), ("clients", false)] {
        node.run(&format!("CONFIG SET sanitize-dump-payload {value}")).expect_ok();
        let mut connection = node.connect();
        let words = [&b"RESTORE"[..], b"key", b"0", &payload, b"REPLACE"];
        let reply = connection.try_call(&words).expect("it is answered");
        assert_eq!(reply == Reply::Simple("OK".to_owned()), is_accepted, "{value}: {reply:?}");
    }
    assert!(node.log().contains("Hash listpack integrity check failed."), "{}", node.log());
    // The payload has an RDB version from the future.
    let mut payload = [&b"\x00\x01a"[..], &79u16.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64(&payload).to_le_bytes());
    for (value, is_accepted) in [("strict", false), ("relaxed", true)] {
        node.run(&format!("CONFIG SET rdb-version-check {value}")).expect_ok();
        let words = [&b"RESTORE"[..], b"key", b"0", &payload, b"REPLACE"];
        let reply = node.connect().try_call(&words).expect("it is answered");
        assert_eq!(reply == Reply::Simple("OK".to_owned()), is_accepted, "{value}: {reply:?}");
    }
}

/// Computes CRC-64, the checksum of DUMP payloads, bit by bit.
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
