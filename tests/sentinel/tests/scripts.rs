//! Tests of operator scripts as real processes: they get Redis's arguments, are retried on failure, and are killed when
//! they hang.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use harness::{Node, Program, eventually};
use sentinel_tests::fake_servers::{FakeServers, server_address};

/// Creates an executable script in this directory.
fn create_script(folder: &Path, name: &str, body: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}")).expect("the folder can be written to");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a file of our own");
    path
}

/// Prepares a sentinel that monitors the first fake server with a quorum of one, without starting it.
fn prepare_sentinel(servers: &FakeServers, lines: &str) -> Node {
    let mut node = Node::prepare(&Program::redoubt(), "");
    let file = node.folder().join("sentinel.conf");
    let monitor = format!("sentinel monitor mymaster {} {} 1\n", server_address(0), servers.port());
    fs::write(&file, monitor + lines).expect("the folder can be written to");
    node.set_configuration(&file);
    node.add_options("--sentinel");
    node
}

#[test]
fn scripts_are_retried_until_they_succeed() {
    let farm = FakeServers::start(1, true);
    let mut node = prepare_sentinel(&farm, "sentinel deny-scripts-reconfig no\n");
    let folder = node.folder().to_owned();
    let told = folder.join("told");
    let notify = create_script(&folder, "notify", "echo \"$#: $1 $2\" >> told\n");
    // The script fails first, then hangs, then succeeds.
    let reconfig = create_script(
        &folder,
        "reconfig",
        "echo try >> tries\ncase $(wc -l < tries) in\n1) exit 1 ;;\n2) exec sleep 600 ;;\nesac\necho \"$*\" > clients\n",
    );
    node.launch();
    let set = |option: &str, path: &Path| {
        node.run(&format!("SENTINEL SET mymaster {option} {}", path.display())).expect_ok();
    };
    set("notification-script", &notify);
    set("client-reconfig-script", &reconfig);
    let missing = node.run("SENTINEL SET mymaster notification-script /nonexistent");
    assert!(missing.is_error("ERR Notification script seems non existing or non executable"), "{missing:?}");
    node.run("SENTINEL DEBUG script-retry-delay 100 script-max-runtime 500").expect_ok();
    farm.wait_until_replicas_are_watched(1, std::slice::from_ref(&node));
    farm.kill(0..1);

    let (old, new, port) = (server_address(0), server_address(1), farm.port());
    let clients = eventually("the clients are told", || {
        fs::read_to_string(folder.join("clients")).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(clients, format!("mymaster leader start {old} {port} {new} {port}\n"));
    assert_eq!(fs::read_to_string(folder.join("tries")).unwrap(), "try\n".repeat(3));
    eventually("the operator is told of the switch", || {
        let text = fs::read_to_string(&told).ok()?;
        let line = |line: String| text.lines().any(|one| one == line).then_some(());
        line(format!("2: +sdown master mymaster {old} {port}"))?;
        line(format!("2: +switch-master mymaster {old} {port} {new} {port}"))
    });
    eventually("no script is left", || node.run("SENTINEL PENDING-SCRIPTS").items().is_empty().then_some(()));
}

/// A script that cannot be executed would only fail during a failover, so the sentinel refuses to start.
#[test]
fn missing_script_prevents_the_start() {
    let farm = FakeServers::start(1, false);
    let mut node = prepare_sentinel(&farm, "sentinel notification-script mymaster /nonexistent\n");
    node.spawn();
    assert!(!node.wait_for_exit().success());
    let log = node.log();
    assert!(log.contains("Notification script seems non existing or non executable."), "{log}");
}
