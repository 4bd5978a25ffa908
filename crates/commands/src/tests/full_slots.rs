//! Tests of slots with the maximum number of small values.

use crate::testing::Client;

const SLOT_FULL_ERROR: &str = "-OOM command not allowed when a slot holds as many small values as it can";

/// Regression test: a page number has nineteen bits, and a slot with gigabytes of small values panicked when it needed
/// a page beyond this limit.
#[test]
fn full_slot_refuses_writes_and_allows_deletes() {
    keyspace::limit_pages(64);
    let mut client = Client::new();
    let value = "v".repeat(200);
    let ok = resp::Value::Simple("OK".to_owned());
    let stored = (0..100_000).find(|n| client.call(&["set", &format!("{{a}}{n}"), &value]) != ok);
    let stored = stored.expect("it is full at some time");
    assert!(stored > 100, "{stored}");
    client.check_replies(&[
        ("set {a}more x", SLOT_FULL_ERROR),
        ("hset {a}hash f v", SLOT_FULL_ERROR),
        ("append {a}1 x", SLOT_FULL_ERROR),
        ("get {a}nosuch", "$-1"),
        ("set {other}1 x", "+OK"),
        ("multi", "+OK"),
        ("set {a}more x", "+QUEUED"),
        ("exec", &format!("*1|{SLOT_FULL_ERROR}")),
    ]);
    // Commands that pass the check before execution must fail without a panic as well.
    for n in 0..stored {
        client.call(&["pexpire", &format!("{{a}}{n}"), "1000000"]);
    }
    for n in 0..20_000 {
        client.call(&["set", "{b}source", &value]);
        client.call(&["rename", "{b}source", &format!("{{a}}moved{n}")]);
    }
    client.check_replies(&[
        ("rename {other}1 {a}x", SLOT_FULL_ERROR),
        ("persist {a}1", SLOT_FULL_ERROR),
        ("hset {a}hash f v", SLOT_FULL_ERROR),
    ]);
    for n in 0..stored {
        client.call(&["del", &format!("{{a}}{n}")]);
    }
    for n in 0..20_000 {
        client.call(&["unlink", &format!("{{a}}moved{n}")]);
    }
    client.check_replies(&[("set {a}more x", "+OK"), ("get {a}more", "$1|x")]);
}

#[test]
fn full_large_hash_refuses_new_fields() {
    keyspace::limit_pages(64);
    let mut client = Client::new();
    let value = "v".repeat(200);
    let new = resp::Value::Integer(1);
    let set = |client: &mut Client, n: usize| client.call(&["hset", "h", &format!("field:{n}"), &value]);
    let stored = (0..100_000).find(|n| set(&mut client, *n) != new).expect("it is full at some time");
    assert!(stored > 600, "{stored} fields, so that it is a large one");
    client.check_replies(&[
        ("hset h more x", SLOT_FULL_ERROR),
        ("set {h}other x", "+OK"),
        ("hget h field:1", &format!("$200|{value}")),
    ]);
    for n in 0..stored {
        client.call(&["hdel", "h", &format!("field:{n}")]);
    }
    client.check_replies(&[("exists h", ":0"), ("hset h more x", ":1")]);
}
