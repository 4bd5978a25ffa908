//! The forms of a log's lines (`log-format`, `log-timestamp-format`), beside Valkey's.

use harness::{Node, Program, eventually};
use serde_json::Value;

/// The last line with this text, once there is one.
fn line_of(node: &Node, text: &str) -> String {
    let find = |log: String| log.lines().rfind(|line| line.contains(text)).map(str::to_owned);
    eventually("the line is there", || find(node.log()))
}

/// The line with each of its numbers as 0.
fn without_numbers(line: &str) -> String {
    let mut plain = line.replace(|c: char| c.is_ascii_digit(), "0");
    while plain.contains("00") {
        plain = plain.replace("00", "0");
    }
    plain
}

#[test]
fn each_form_is_as_valkeys() {
    let Some(valkey) = Program::valkey() else { return };
    let options = "--log-format json --log-timestamp-format iso8601";
    let nodes = [Node::start(&Program::redoubt(), options), Node::start(&valkey, options)];
    let same = |text: &str| {
        // Valkey says where a line comes from that a script has written.
        let lines = nodes.each_ref().map(|node| without_numbers(&line_of(node, text)).replace("<lua> ", ""));
        assert_eq!(lines[0], lines[1], "{text}");
    };
    same("Ready to accept connections tcp");
    for format in ["json", "logfmt", "legacy"] {
        for timestamp in ["iso8601", "milliseconds", "legacy"] {
            let marker = format!("{format} and {timestamp}");
            for node in &nodes {
                let change = format!("CONFIG SET log-format {format} log-timestamp-format {timestamp}");
                node.run(&change).expect_ok();
                let script = format!("redis.log(redis.LOG_WARNING, '\"a\"\\t\\\\ x=y {marker}') return 1");
                assert_eq!(node.connect().call(&["EVAL", &script, "0"]).int(), 1);
            }
            same(&marker);
        }
    }
}

/// Whatever reads the log as JSON can read every line of it, from the first to the last.
#[test]
fn a_log_of_json_is_json_throughout() {
    let mut node = Node::start(&Program::redoubt(), "--log-format json --loglevel debug --activedefrag yes");
    node.run("REPLICAOF 127.0.0.1 1").expect_ok();
    line_of(&node, "\"role\":\"replica\"");
    assert!(node.terminate().success());
    let log = node.log();
    assert!(log.lines().count() > 5, "{log}");
    for line in log.lines() {
        let read: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(read["message"].is_string() && read["level"].is_string(), "{line}");
    }
}
