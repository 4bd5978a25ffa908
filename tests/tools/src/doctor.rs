//! Tests of `redoubt doctor` on a real cluster, and of `redoubt convert` with a configuration file that Valkey wrote.

use std::process::Command;

use harness::{Cluster, Node, Program, eventually, run_to_end};
use serde_json::Value;

/// Runs the program with these arguments. Returns its exit status and output.
fn run_redoubt(arguments: &[&str]) -> (i32, String) {
    let (status, printed) = run_to_end(Command::new(Program::redoubt().binary()).args(arguments));
    (status.code().expect("it ends by itself"), printed)
}

/// The problems that doctor reports about the servers at `url`.
fn run_doctor(url: &str) -> (i32, Vec<String>) {
    let (status, printed) = run_redoubt(&["doctor", "--no-host", "--quiet", "--json", "--from", url]);
    let read: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    let text = |finding: &Value| {
        assert!(finding["fix"].is_string(), "{finding}");
        format!(
            "{}: {}",
            finding["about"].as_str().unwrap_or_default(),
            finding["text"].as_str().unwrap_or_default()
        )
    };
    (status, read.as_array().expect("a list").iter().map(text).collect())
}

/// When a replica of a healthy cluster dies, doctor reports the replica until it is back.
#[test]
fn doctor_reports_dead_cluster_node() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let url = format!("redis://{}", cluster.nodes[0].address());
    eventually("nothing is left to repair", || (run_doctor(&url) == (0, Vec::new())).then_some(()));
    let dead = cluster.nodes[3].address();
    cluster.nodes[3].kill();
    eventually("the other nodes have received the change", || {
        let (status, found) = run_doctor(&url);
        let has = |text: &str| found.iter().any(|finding| finding.starts_with(text));
        let is_told = has(&format!("{dead}: cannot connect"))
            && has(&format!("cluster: {dead} has failed"))
            && found.iter().any(|finding| finding.contains("has no replica"));
        (status == 2 && is_told).then_some(())
    });
}

#[test]
fn doctor_reports_unreachable_and_password_protected_servers() {
    let node = Node::start(&Program::redoubt(), "--requirepass secret");
    let address = node.address();
    assert_eq!(run_doctor(&format!("redis://:secret@{address}")), (0, Vec::new()));
    let (status, found) = run_doctor(&format!("redis://:wrong@{address}"));
    assert_eq!((status, found.len()), (2, 1), "{found:?}");
    assert_eq!(run_doctor("redis://127.0.0.1:1").0, 2);
}

/// The configuration file was written by Valkey and has a parameter that Redoubt does not support.
#[test]
fn converted_valkey_configuration_starts_server() {
    let Some(valkey) = Program::valkey() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (folder.path().join("valkey.conf"), folder.path().join("redoubt.conf"));
    std::fs::write(&old, "# the shop's\nmaxmemory 100mb\n").expect("a file");
    let mut theirs = Node::prepare(&valkey, "--save ");
    theirs.set_configuration(&old);
    theirs.launch();
    theirs
        .run("CONFIG SET activedefrag no maxmemory-policy allkeys-lru hash-max-listpack-entries 99")
        .expect_ok();
    theirs.run("CONFIG REWRITE").expect_ok();
    let mut text = std::fs::read_to_string(&old).expect("it was written");
    text.push_str("loadmodule /usr/lib/some.so\n");
    std::fs::write(&old, text).expect("a file");
    let [old, new] = [&old, &new].map(|path| path.to_str().expect("text"));
    let (status, printed) = run_redoubt(&["convert", old, "--output", new]);
    assert!(
        status == 1
            && printed
                .contains("REFUSED: the server does not start with this line: modules are not supported"),
        "{printed}"
    );
    let (status, printed) = run_redoubt(&["convert", "--quiet", new]);
    assert_eq!(status, 0, "{printed}");
    theirs.kill();
    let mut ours = Node::prepare(&Program::redoubt(), "");
    ours.set_configuration(new.as_ref());
    ours.launch();
    for (name, value) in [("maxmemory-policy", "allkeys-lru"), ("hash-max-listpack-entries", "99")] {
        assert_eq!(ours.run(&format!("CONFIG GET {name}")).items()[1].text(), value);
    }
    let kept = std::fs::read_to_string(new).expect("it is there");
    assert!(kept.starts_with("# the shop's\n"), "{kept}");
}

/// Doctor skips no check of the machine, and its exit status is that of the worst finding.
#[test]
fn doctor_reports_findings_about_the_machine() {
    let (status, printed) = run_redoubt(&["doctor"]);
    assert!((0..=2).contains(&status) && printed.contains("open files"), "{printed}");
    let worst = if printed.contains("FAULT ") { 2 } else { i32::from(printed.contains("WARNING ")) };
    assert_eq!(status, worst, "{printed}");
    let (status, printed) = run_redoubt(&["doctor", "--config", "/nowhere/redis.conf"]);
    assert!(status == 2 && printed.contains("can't open config file"), "{printed}");
}

/// A server is live as soon as it replies, even with an error. It is ready when clients can rely on its replies.
#[test]
fn server_is_live_before_it_is_ready() {
    let ping = |node: &Node, options: &[&str]| {
        let url = format!("redis://{}", node.address());
        run_redoubt(&[&["ping", "--from", &url], options].concat()).0
    };
    let mut node = Node::start(&Program::redoubt(), "");
    assert_eq!((ping(&node, &[]), ping(&node, &["--ready"])), (0, 0));
    node.run("REPLICAOF 127.0.0.1 1").expect_ok();
    assert_eq!((ping(&node, &[]), ping(&node, &["--ready"])), (0, 1));
    node.run("REPLICAOF NO ONE").expect_ok();
    node.run("CONFIG SET requirepass secret").expect_ok();
    assert_eq!((ping(&node, &[]), ping(&node, &["--ready"])), (0, 1));
    node.freeze();
    assert_eq!(ping(&node, &["--timeout", "1"]), 1);
    node.thaw();
    node.kill();
    assert_eq!(ping(&node, &[]), 1);
    let clustered = Node::start_clustered(&Program::redoubt());
    assert_eq!((ping(&clustered, &[]), ping(&clustered, &["--ready"])), (0, 1));
}

/// Errors of the client library include their cause in their own text, so the cause must not be appended.
#[test]
fn server_error_is_printed_once() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let url = format!("redis://{}", node.address());
    let (status, printed) = run_redoubt(&["cluster", "failovers", "--from", &url]);
    assert_eq!(status, 1);
    assert_eq!(printed.matches("cluster support disabled").count(), 1, "{printed}");
}
