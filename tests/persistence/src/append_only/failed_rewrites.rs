//! The append-only file while rewrites fail: whatever they leave behind, what was acknowledged is loaded, and once.

use std::process::Command;
use std::time::{Duration, Instant};

use harness::{
    Node, Program,
    counters::{Counters, assert_kept},
    eventually,
};

const ALWAYS: &str =
    "--save  --appendonly yes --appendfsync always --rdbcompression no --enable-debug-command yes";
/// A base is longer, an increment shorter.
const LIMIT: &str = "4000000";
const ROUNDS: usize = 3;

/// No file may be longer, as on a disk that is full.
fn limit(node: &Node, bytes: &str) {
    let set = Command::new("prlimit")
        .args([&format!("--pid={}", node.pid()), &format!("--fsize={bytes}:unlimited")])
        .status();
    assert!(set.expect("prlimit is part of util-linux").success());
}

/// Each rewrite cuts, has the writer go on in another increment, and fails. The next may cut while the writer is just
/// about to.
#[test]
fn rewrites_that_fail_in_a_row_lose_nothing_that_was_acknowledged() {
    let mut node = Node::start(&Program::redoubt(), ALWAYS);
    node.run("DEBUG POPULATE 50000 key 100").expect_ok();
    // Keys made by DEBUG are in no increment.
    node.run("BGREWRITEAOF");
    eventually("the base is there", || (node.info("persistence", "aof_rewrites")? != "1").then_some(()));
    for round in 0..ROUNDS {
        limit(&node, LIMIT);
        let counters = Counters::start(&node, 4);
        let mut connection = node.connect();
        let (until, mut failed) = (Instant::now() + Duration::from_secs(4), 0);
        while Instant::now() < until {
            failed += usize::from(!connection.run("BGREWRITEAOF").is_error("ERR"));
        }
        assert!(failed > 1, "{failed} rewrites");
        assert_eq!(node.info("persistence", "aof_last_bgrewrite_status").as_deref(), Some("err"));
        node.kill();
        let acknowledged = counters.stop();
        node.launch();
        eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
        assert_kept(&node, &acknowledged, &format!("round {round}, {failed} rewrites that failed"));
    }
}

/// The end of the file was brought to the disk at a shutdown; then the data could not be saved, and the server goes on.
#[test]
fn after_a_shutdown_that_could_not_save_the_file_is_still_written() {
    let mut node = Node::start(&Program::redoubt(), ALWAYS);
    node.run("DEBUG POPULATE 50000 key 100").expect_ok();
    limit(&node, LIMIT);
    assert!(node.run("SHUTDOWN SAVE").is_error("ERR Errors trying to SHUTDOWN"));
    node.run("SET a 1").expect_ok();
    node.kill();
    node.launch();
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
    assert_eq!(node.run("GET a").text(), "1");
}
