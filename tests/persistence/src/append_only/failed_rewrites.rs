//! Tests of failing AOF rewrites: acknowledged writes must be loaded exactly once, whatever files a failed rewrite
//! leaves behind.

use std::process::Command;
use std::time::{Duration, Instant};

use harness::{
    Node, Program,
    counters::{CounterClients, assert_counters_kept},
    eventually,
};

const FSYNC_ALWAYS_OPTIONS: &str =
    "--save  --appendonly yes --appendfsync always --rdbcompression no --enable-debug-command yes";
/// A file size limit in bytes: larger than an increment, smaller than a new base file.
const FILE_SIZE_LIMIT: &str = "4000000";
const ROUND_COUNT: usize = 3;

/// Limits the size of files that the server can write, to simulate a full disk.
fn limit_file_size(node: &Node, bytes: &str) {
    let set = Command::new("prlimit")
        .args([&format!("--pid={}", node.pid()), &format!("--fsize={bytes}:unlimited")])
        .status();
    assert!(set.expect("prlimit is part of util-linux").success());
}

/// Each rewrite switches the writer to a new increment and then fails. The next rewrite may start just before the
/// writer has switched.
#[test]
fn consecutive_failed_rewrites_lose_no_acknowledged_writes() {
    let mut node = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    node.run("DEBUG POPULATE 50000 key 100").expect_ok();
    // `DEBUG POPULATE` writes nothing to the AOF, so a rewrite must put its keys into a base file.
    node.run("BGREWRITEAOF");
    eventually("the base is there", || (node.info("persistence", "aof_rewrites")? != "1").then_some(()));
    for round in 0..ROUND_COUNT {
        limit_file_size(&node, FILE_SIZE_LIMIT);
        let counters = CounterClients::start(&node, 4);
        let mut connection = node.connect();
        let (until, mut failed) = (Instant::now() + Duration::from_secs(4), 0);
        while Instant::now() < until {
            failed += usize::from(!connection.call_line("BGREWRITEAOF").is_error("ERR"));
        }
        assert!(failed > 1, "{failed} rewrites");
        assert_eq!(node.info("persistence", "aof_last_bgrewrite_status").as_deref(), Some("err"));
        node.kill();
        let acknowledged = counters.stop();
        node.launch();
        eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
        assert_counters_kept(&node, &acknowledged, &format!("round {round}, {failed} rewrites that failed"));
    }
}

/// The failed shutdown has already flushed and synced the AOF, but the server continues and must still append to it.
#[test]
fn aof_is_still_written_after_a_failed_shutdown() {
    let mut node = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    node.run("DEBUG POPULATE 50000 key 100").expect_ok();
    limit_file_size(&node, FILE_SIZE_LIMIT);
    assert!(node.run("SHUTDOWN SAVE").is_error("ERR Errors trying to SHUTDOWN"));
    node.run("SET a 1").expect_ok();
    node.kill();
    node.launch();
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
    assert_eq!(node.run("GET a").text(), "1");
}
