//! Resident memory goes back to the system after a mass deletion: at once by MEMORY PURGE, and by itself.

use std::time::Duration;

use harness::{Connection, Node, Program, eventually_within};

const KEYS: usize = 300_000;
const AT_ONCE: usize = 1000;
/// A pass over all slots takes 13 seconds and a second one the same, on a machine that has time for it.
const BY_ITSELF: Duration = Duration::from_secs(180);

/// Sends all of some commands and then reads all replies.
fn pour(
    connection: &mut Connection,
    numbers: std::ops::Range<usize>,
    request: impl Fn(usize) -> Vec<String>,
) {
    for start in numbers.clone().step_by(AT_ONCE) {
        let batch = start..(start + AT_ONCE).min(numbers.end);
        let count = batch.len();
        batch.for_each(|number| connection.send(&request(number)).expect("the server reads"));
        (0..count).for_each(|_| assert!(!connection.read().expect("an answer").is_error("")));
    }
}

/// A server that had some 150 MB of keys, of which one in a hundred is left; what it takes empty and full.
fn emptied() -> (Node, u64, u64) {
    let node = Node::start(&Program::redoubt(), "--save ");
    let empty = node.resident_bytes();
    let mut connection = node.connect();
    let value = "v".repeat(400);
    pour(&mut connection, 0..KEYS, |number| vec!["SET".into(), format!("key:{number}"), value.clone()]);
    let full = node.resident_bytes();
    assert!(full > empty + 100_000_000, "{empty} became only {full}");
    pour(&mut connection, 0..KEYS, |number| {
        let verb = if number % 100 == 7 { "GET" } else { "DEL" };
        vec![verb.into(), format!("key:{number}")]
    });
    (node, empty, full)
}

fn has_given_back(node: &Node, empty: u64, full: u64) -> Option<()> {
    (node.resident_bytes() < empty + (full - empty) / 5).then_some(())
}

#[test]
fn memory_purge_gives_back_at_once() {
    let (node, empty, full) = emptied();
    node.run("MEMORY PURGE").expect_ok();
    eventually_within(Duration::from_secs(10), "the general allocator follows", || {
        has_given_back(&node, empty, full)
    });
    assert_eq!(node.run("DBSIZE").int(), KEYS as i64 / 100);
}

/// Whether the system was told not to make large pages of what is left: it would bring all memory in again, at a time
/// of its own.
fn stays_in_small_pages(node: &Node) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", node.pid())).expect("the process is there");
    maps.lines().any(|line| line.starts_with("VmFlags:") && line.split_whitespace().any(|flag| flag == "nh"))
}

#[test]
fn a_mass_deletion_gives_back_by_itself() {
    let (node, empty, full) = emptied();
    eventually_within(BY_ITSELF, "free memory goes back", || has_given_back(&node, empty, full));
    assert!(stays_in_small_pages(&node), "the system may bring it in again");
    assert_eq!(node.run("GET key:107").text().len(), 400);
}
