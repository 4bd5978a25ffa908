//! Tests of log lines that people and tools search for: at startup, at shutdown, and when the sentinel cannot start.
//! Events are covered by `states.rs` and `beside_valkey.rs`.

use harness::{Node, Program, eventually};

/// Lines that the log of a normal start and shutdown must contain.
const START_AND_SHUTDOWN_LINES: &[&str] = &[
    "is starting",
    "just started",
    "Configuration loaded",
    "Running mode=sentinel, port=",
    "Sentinel new configuration saved on disk",
    "Sentinel ID is ",
    "# +monitor master mymaster 127.0.0.1 1 quorum 1",
    "Received SIGTERM scheduling shutdown...",
    "User requested shutdown...",
    "Sentinel is now ready to exit, bye bye...",
];

/// Invalid configuration files, each with the reason that must be reported.
const INVALID_CONFIGURATIONS: &[(&str, &str)] = &[
    ("sentinel foo bar\n", "Unrecognized sentinel configuration statement."),
    ("sentinel monitor a 127.0.0.1 1 0\n", "Quorum must be 1 or greater."),
    ("sentinel down-after-milliseconds nope 5\n", "No such master with specified name."),
];

fn prepare_with_file(program: &Program, text: &str) -> Node {
    let mut node = Node::prepare(program, "");
    let file = node.folder().join("sentinel.conf");
    std::fs::write(&file, text).expect("the folder can be written to");
    node.set_configuration(&file);
    node.add_options("--sentinel");
    node
}

/// The programs to test: Redoubt, and Valkey if it is installed.
fn tested_programs() -> impl Iterator<Item = Program> {
    [Some(Program::redoubt()), Program::valkey()].into_iter().flatten()
}

#[test]
fn normal_start_and_shutdown_log_the_known_lines() {
    for program in tested_programs() {
        let mut node = prepare_with_file(&program, "sentinel monitor mymaster 127.0.0.1 1 1\n");
        node.launch();
        eventually("it has written its file", || node.log().contains("saved on disk").then_some(()));
        assert!(node.terminate().success(), "{}", program.name());
        let log = node.log();
        let missing: Vec<&&str> =
            START_AND_SHUTDOWN_LINES.iter().filter(|phrase| !log.contains(**phrase)).collect();
        assert!(missing.is_empty(), "{} says nothing of {missing:#?}:\n{log}", program.name());
    }
}

#[test]
fn invalid_configuration_file_is_reported_like_in_valkey() {
    for program in tested_programs() {
        for (text, reason) in INVALID_CONFIGURATIONS {
            let mut node = prepare_with_file(&program, text);
            node.spawn();
            assert!(!node.wait_for_exit().success());
            let log = node.log();
            for phrase in
                ["*** FATAL CONFIG FILE ERROR (", "Reading the configuration file", text.trim_end(), reason]
            {
                assert!(log.contains(phrase), "{} does not say {phrase:?}:\n{log}", program.name());
            }
        }
    }
}

#[test]
fn missing_configuration_file_is_reported() {
    for program in tested_programs() {
        let mut node = Node::prepare(&program, "--sentinel");
        node.spawn();
        assert!(!node.wait_for_exit().success());
        let log = node.log();
        assert!(
            log.contains("Sentinel needs config file on disk to save state."),
            "{}: {log}",
            program.name()
        );
    }
}
