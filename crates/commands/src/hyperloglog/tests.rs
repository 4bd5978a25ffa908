use engine::{CommandOrigin, NodeFlags, Session};

use crate::testing::Client;

#[test]
fn pfcount_estimates_cardinality() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("pfadd h a b c", ":1"),
        ("pfadd h a b", ":0"),
        ("pfadd h", ":0"),
        ("pfcount h", ":3"),
        ("pfcount h", ":3"),
        ("pfadd empty", ":1"),
        ("pfcount empty", ":0"),
        ("pfadd i c d", ":1"),
        ("pfcount h i nosuch", ":4"),
        ("pfcount nosuch", ":0"),
        ("pfcount nosuch other", ":0"),
        ("pfmerge m h i nosuch", "+OK"),
        ("pfcount m", ":4"),
        ("object encoding m", "$3|raw"),
        ("pfmerge n", "+OK"),
        ("pfcount n", ":0"),
        ("expire m 100", ":1"),
        ("pfadd m e", ":1"),
        ("pfmerge m i", "+OK"),
        ("ttl m", ":100"),
        ("pfcount m", ":5"),
    ]);
    let log = client.logged_commands();
    assert_eq!(log[..3], ["0 pfadd h a b c", "0 pfcount h", "0 pfadd empty"], "{log:?}");
}

#[test]
fn sketch_becomes_dense_above_sparse_limit() {
    let mut client = Client::new();
    client.check_replies(&[("pfadd h 0", ":1"), ("pfdebug encoding h", "+sparse")]);
    client.engine.settings.value_limits.hll_sparse_max_bytes.store(40, std::sync::atomic::Ordering::Relaxed);
    let add = |client: &mut Client, range: std::ops::Range<u32>| {
        let words: Vec<String> = range.map(|number| number.to_string()).collect();
        let mut request = vec!["pfadd", "h"];
        request.extend(words.iter().map(String::as_str));
        client.call(&request);
    };
    add(&mut client, 0..100);
    client.check_replies(&[("pfdebug encoding h", "+dense"), ("strlen h", ":12304"), ("pfcount h", ":100")]);
    add(&mut client, 0..100);
    client.check_replies(&[("pfadd h 5", ":0"), ("pfcount h", ":100")]);
    client.check_replies(&[("pfadd s x", ":1"), ("pfmerge s h", "+OK"), ("pfdebug encoding s", "+dense")]);
    client.check_replies(&[
        ("pfcount s", ":101"),
        ("pfcount s h", ":101"),
        ("pfadd s y", ":1"),
        ("pfcount s", ":102"),
    ]);
}

#[test]
fn pfdebug_simd_is_accepted_without_effect() {
    Client::new().check_replies(&[
        ("pfdebug simd on", "+enabled"),
        ("pfdebug SIMD OFF", "+disabled"),
        ("pfdebug simd x", "-ERR Argument must be ON or OFF"),
        ("pfdebug simd", "-ERR wrong number of arguments for 'pfdebug' command"),
    ]);
}

#[test]
fn pfdebug_shows_internals() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("pfadd h a", ":1"),
        ("pfdebug decode h", "$20|Z:12711 v:2,1 Z:3672"),
        ("pfdebug encoding h", "+sparse"),
        ("pfdebug nosuch h", "-ERR Unknown PFDEBUG subcommand 'nosuch'"),
        ("pfdebug decode nosuch", "-ERR The specified key does not exist"),
        ("pfdebug todense h", ":1"),
        ("pfdebug todense h", ":0"),
        ("pfdebug decode h", "-ERR HLL encoding is not sparse"),
        ("pfselftest", "+OK"),
    ]);
    let registers = client.call(&["pfdebug", "getreg", "h"]);
    let registers = registers.as_array().expect("registers");
    assert_eq!((registers.len(), &registers[12_711]), (16_384, &resp::Value::Integer(2)));
    assert_eq!(client.logged_commands(), ["0 pfadd h a", "0 pfdebug todense h"]);
}

#[test]
fn invalid_and_corrupt_sketches_are_refused() {
    let (wrong, broken) = (
        "-WRONGTYPE Key is not a valid HyperLogLog string value.",
        "-INVALIDOBJ Corrupted HLL object detected",
    );
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    Client::new().check_replies(&[
        ("set s text", "+OK"),
        ("pfadd h a", ":1"),
        ("pfadd s a", wrong),
        ("pfcount s", wrong),
        ("pfcount h s", wrong),
        ("pfmerge h s", wrong),
        ("pfmerge s h", wrong),
        ("pfdebug encoding s", wrong),
        ("hset hash a 1", ":1"),
        ("pfadd hash a", wrong_type),
        ("pfcount hash", wrong_type),
        ("pfcount h hash", wrong_type),
        ("pfmerge hash h", wrong_type),
        ("set c \"HYLL\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x80\\x7f\\xf0\"", "+OK"),
        ("pfcount c", broken),
        ("pfcount c h", broken),
        ("pfmerge h c", broken),
        ("pfdebug todense c", broken),
        ("set e \"HYLL\\x01\\x00\\x00\\x00\\x05\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"", "+OK"),
        ("pfcount e", ":5"),
        ("pfadd e a", broken),
    ]);
}

#[test]
fn replica_pfcount_does_not_write_cache() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[("pfadd h a", ":1")]);
    let stale = client.run_to_text("get h");
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    client.check_replies(&[("pfcount h", ":1")]);
    assert_eq!(client.run_to_text("get h"), stale);
    client.session = Session::new(2, CommandOrigin::Master, true);
    client.check_replies(&[("pfcount h", ":1")]);
    assert_ne!(client.run_to_text("get h"), stale);
}

#[test]
fn commands_send_keyspace_events() {
    Client::new().check_events(&[
        ("pfadd h a", "pfadd h"),
        ("pfadd h a", ""),
        ("pfadd h", ""),
        ("pfadd i", "pfadd i"),
        ("pfcount h", ""),
        ("pfmerge j h i", "pfadd j"),
        ("pfdebug todense j", ""),
    ]);
}
