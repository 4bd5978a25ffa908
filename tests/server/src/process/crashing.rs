//! Tests that a panic ends the process immediately and writes a crash report.

use std::os::unix::process::ExitStatusExt;

use harness::{Node, Program};

#[test]
fn panic_ends_the_process_with_a_crash_report() {
    let mut node = Node::start(&Program::redoubt(), "--save  --enable-debug-command yes");
    let mut other = node.connect();
    other.call_line("CLIENT SETNAME bystander").expect_ok();
    let mut client = node.connect();
    client.call_line("CLIENT SETNAME culprit").expect_ok();
    let pipeline = b"SET before 1\r\nDEBUG PANIC\r\nSET after 1\r\n";
    client.send_raw(pipeline).expect("sent");
    let status = node.wait_for_exit();
    assert_eq!(status.signal(), Some(6), "{status:?}");
    assert!(other.try_call(&["PING"]).is_err() && node.try_connect().is_err());

    let log = node.log();
    let report = log.split("=== REDIS BUG REPORT START").nth(1).expect("a report");
    let report = report.split("=== REDIS BUG REPORT END").next().expect("its end");
    let (current, list) = report.split_once("CLIENT LIST OUTPUT").expect("the clients");
    for part in [
        "Redoubt 0.",
        "panicked: DEBUG PANIC was called",
        "thread 'worker-",
        "STACK TRACE",
        "INFO OUTPUT",
        "redis_version:",
        "total_commands_processed:",
        "name=culprit",
        "argv[0]: '\"DEBUG\"'",
        "argv[1]: '\"PANIC\"'",
    ] {
        assert!(current.contains(part), "{part} in {current}");
    }
    assert!(!current.contains("bystander") && list.contains("name=bystander"), "{list}");
}
