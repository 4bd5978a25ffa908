//! Tests that resident memory returns to the system after a mass deletion: at once with MEMORY PURGE, and
//! automatically.

use std::time::Duration;

use harness::{Connection, Node, Program, eventually_within};

const KEY_COUNT: usize = 300_000;
const BATCH_SIZE: usize = 1000;
/// The time limit for the automatic release. A pass over all slots takes 13 seconds on an idle machine, and two passes
/// are needed.
const MAX_AUTOMATIC_DELAY: Duration = Duration::from_secs(180);

/// Sends the requests in batches and reads all replies.
fn pipeline_requests(
    connection: &mut Connection,
    numbers: std::ops::Range<usize>,
    request: impl Fn(usize) -> Vec<String>,
) {
    for start in numbers.clone().step_by(BATCH_SIZE) {
        let batch = start..(start + BATCH_SIZE).min(numbers.end);
        let count = batch.len();
        batch.for_each(|number| connection.send(&request(number)).expect("the server reads"));
        (0..count).for_each(|_| assert!(!connection.read().expect("an answer").is_error("")));
    }
}

/// Starts a server, fills it with about 150 MB and deletes 99 % of the keys; also returns the resident memory before
/// and after the fill.
fn start_and_delete_most_keys() -> (Node, u64, u64) {
    let node = Node::start(&Program::redoubt(), "--save ");
    let empty = node.resident_bytes();
    let mut connection = node.connect();
    let value = "v".repeat(400);
    pipeline_requests(&mut connection, 0..KEY_COUNT, |number| {
        vec!["SET".into(), format!("key:{number}"), value.clone()]
    });
    let full = node.resident_bytes();
    assert!(full > empty + 100_000_000, "{empty} became only {full}");
    pipeline_requests(&mut connection, 0..KEY_COUNT, |number| {
        let verb = if number % 100 == 7 { "GET" } else { "DEL" };
        vec![verb.into(), format!("key:{number}")]
    });
    (node, empty, full)
}

fn has_released_memory(node: &Node, resident_when_empty: u64, resident_when_full: u64) -> Option<()> {
    (node.resident_bytes() < resident_when_empty + (resident_when_full - resident_when_empty) / 5)
        .then_some(())
}

#[test]
fn memory_purge_releases_memory_immediately() {
    let (node, empty, full) = start_and_delete_most_keys();
    node.run("MEMORY PURGE").expect_ok();
    eventually_within(Duration::from_secs(10), "free memory is returned", || {
        has_released_memory(&node, empty, full)
    });
    assert_eq!(node.run("DBSIZE").int(), KEY_COUNT as i64 / 100);
}

/// Whether the kernel is prevented from using huge pages for the remaining memory. With huge pages, it could allocate
/// all of the freed memory again at any time.
fn has_huge_pages_disabled(node: &Node) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", node.pid())).expect("the process is there");
    maps.lines().any(|line| line.starts_with("VmFlags:") && line.split_whitespace().any(|flag| flag == "nh"))
}

#[test]
fn memory_is_released_automatically_after_a_mass_deletion() {
    let (node, empty, full) = start_and_delete_most_keys();
    eventually_within(MAX_AUTOMATIC_DELAY, "free memory is returned", || {
        has_released_memory(&node, empty, full)
    });
    assert!(has_huge_pages_disabled(&node), "huge pages must be disabled for freed memory");
    assert_eq!(node.run("GET key:107").text().len(), 400);
}
