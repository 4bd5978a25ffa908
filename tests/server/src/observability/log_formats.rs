//! Compares the formats of log lines (`log-format`, `log-timestamp-format`) with Valkey.

use harness::{Node, Program, eventually};
use serde_json::Value;

/// Waits for a log line that contains `text`; returns the last such line.
fn wait_for_line(node: &Node, text: &str) -> String {
    let find = |log: String| log.lines().rfind(|line| line.contains(text)).map(str::to_owned);
    eventually("the line is logged", || find(node.log()))
}

/// Replaces each number in the line by 0.
fn mask_numbers(line: &str) -> String {
    let mut plain = line.replace(|c: char| c.is_ascii_digit(), "0");
    while plain.contains("00") {
        plain = plain.replace("00", "0");
    }
    plain
}

#[test]
fn log_formats_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let options = "--log-format json --log-timestamp-format iso8601";
    let nodes = [Node::start(&Program::redoubt(), options), Node::start(&valkey, options)];
    let same = |text: &str| {
        // Valkey marks the lines that a script has logged by `<lua>`.
        let lines =
            nodes.each_ref().map(|node| mask_numbers(&wait_for_line(node, text)).replace("<lua> ", ""));
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

/// With `log-format json`, every line of the log must be valid JSON.
#[test]
fn every_line_of_a_json_log_is_valid_json() {
    let mut node = Node::start(&Program::redoubt(), "--log-format json --loglevel debug --activedefrag yes");
    node.run("REPLICAOF 127.0.0.1 1").expect_ok();
    wait_for_line(&node, "\"role\":\"replica\"");
    assert!(node.terminate().success());
    let log = node.log();
    assert!(log.lines().count() > 5, "{log}");
    for line in log.lines() {
        let read: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(read["message"].is_string() && read["level"].is_string(), "{line}");
    }
}
