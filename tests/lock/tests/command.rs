//! Tests of the command `redoubt lock`.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use harness::{Node, Program, eventually};
use rustix::process::{Pid, Signal, kill_process};

fn lock_command(node: &Node, options: &str, command: &[&str]) -> Command {
    let mut line = Command::new(Program::redoubt().binary());
    line.args(["lock", "l", "--url"]).arg(format!("redis://{}", node.address()));
    line.args(options.split_whitespace()).arg("--").args(command);
    line.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    line
}

fn lock_status(node: &Node, options: &str, command: &[&str]) -> Option<i32> {
    lock_command(node, options, command).status().unwrap().code()
}

/// Starts `redoubt lock`, and waits until its command holds the lock.
fn start_holder(node: &Node, options: &str, command: &[&str]) -> Child {
    let child = lock_command(node, options, command).spawn().unwrap();
    eventually("the lock is held", || (node.run("EXISTS l").int() == 1).then_some(()));
    child
}

fn wait_for_exit(mut child: Child) -> (ExitStatus, String) {
    let status = eventually("the command ends", || child.try_wait().unwrap());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (status, stderr)
}

/// Reads one line byte by byte, to leave later bytes to the next reader.
fn first_line(out: &mut impl Read) -> String {
    let mut line = String::new();
    let mut byte = [0];
    while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(char::from(byte[0]));
    }
    line
}

#[test]
fn exit_status_is_that_of_the_command_and_the_lock_is_released() {
    let node = Node::start(&Program::redoubt(), "");
    assert_eq!(lock_status(&node, "", &["true"]), Some(0));
    assert_eq!(lock_status(&node, "--fair", &["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(lock_status(&node, "", &["sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(lock_status(&node, "", &["/no/such/command"]), Some(127));
    assert_eq!(lock_status(&node, "", &["/"]), Some(126));
    assert_eq!(node.run("EXISTS l").int(), 0);
}

#[test]
fn command_receives_fencing_token_of_its_lock() {
    let node = Node::start(&Program::redoubt(), "");
    let token = || {
        let out = lock_command(&node, "", &["sh", "-c", "echo $REDOUBT_LOCK_TOKEN"]).output().unwrap().stdout;
        String::from_utf8(out).unwrap().trim().parse::<u64>().unwrap()
    };
    assert!(token() < token());
}

#[test]
fn lock_timeout_is_reported() {
    let node = Node::start(&Program::redoubt(), "");
    let mut holder = start_holder(&node, "", &["sleep", "60"]);
    assert_eq!(lock_status(&node, "--wait 200ms", &["true"]), Some(75));
    kill_process(Pid::from_child(&holder), Signal::TERM).unwrap();
    // The second command waits for the first holder to release the lock.
    assert_eq!(lock_status(&node, "--wait 20s", &["true"]), Some(0));
    assert_eq!(holder.wait().unwrap().code(), Some(143));
    let nowhere = Command::new(Program::redoubt().binary())
        .args(["lock", "l", "--wait", "0s", "--url", "redis://127.0.0.1:1", "--", "true"])
        .status()
        .unwrap();
    assert_eq!(nowhere.code(), Some(69));
}

#[test]
fn signals_are_forwarded_to_the_command() {
    let node = Node::start(&Program::redoubt(), "");
    let script = "trap 'echo heard; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = start_holder(&node, "", &["sh", "-c", script]);
    assert_eq!(first_line(child.stdout.as_mut().unwrap()), "ready");
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    assert_eq!(first_line(child.stdout.as_mut().unwrap()), "heard");
    assert_eq!(wait_for_exit(child).0.code(), Some(5));
    assert_eq!(node.run("EXISTS l").int(), 0);
}

/// Both the command and its child ignore SIGTERM, so losing the lock must end them by SIGKILL.
#[test]
fn losing_the_lock_kills_the_command_and_its_children() {
    let node = Node::start(&Program::redoubt(), "");
    let script = "trap '' TERM; sleep 600 & echo $!; wait; sleep 600";
    let mut child = start_holder(&node, "--lease 900ms --kill-after 300ms", &["sh", "-c", script]);
    let started: i32 = first_line(child.stdout.as_mut().unwrap()).parse().unwrap();
    node.run("DEL l");
    let (status, stderr) = wait_for_exit(child);
    assert_eq!(status.code(), Some(74));
    assert!(stderr.contains("l is lost: the server no longer has it"), "{stderr}");
    eventually("the child process is gone", || {
        let state = std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
        // An ended process may still exist as a zombie.
        (state.is_empty() || state.contains(") Z ")).then_some(())
    });
}

#[test]
fn on_lost_warn_keeps_the_command_running() {
    let node = Node::start(&Program::redoubt(), "");
    let file = node.folder().join("go");
    let script = format!("while ! [ -e {} ]; do sleep 0.05; done; exit 3", file.display());
    let mut child = start_holder(&node, "--lease 900ms --on-lost warn", &["sh", "-c", &script]);
    node.freeze();
    let mut stderr = child.stderr.take().unwrap();
    assert_eq!(first_line(&mut stderr), "redoubt lock: l is lost: the lease expired");
    node.thaw();
    std::fs::write(file, "").unwrap();
    let status = eventually("the command ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3));
}

/// After its holder is killed, the lock becomes free when the lease ends and not earlier.
#[test]
fn lock_of_a_killed_holder_expires_with_its_lease() {
    let node = Node::start(&Program::redoubt(), "");
    let mut child = start_holder(&node, "--lease 2s", &["sleep", "1"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lock_status(&node, "--wait 0s", &["true"]), Some(75));
    let began = std::time::Instant::now();
    assert_eq!(lock_status(&node, "--wait 20s", &["true"]), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// A typo in the command must be reported at once, and not only after a long wait for the lock.
#[test]
fn missing_command_is_reported_before_waiting() {
    let node = Node::start(&Program::redoubt(), "");
    let mut holder = start_holder(&node, "", &["sleep", "600"]);
    assert_eq!(lock_status(&node, "", &["no-such-command"]), Some(127));
    assert_eq!(lock_status(&node, "", &["/etc/passwd"]), Some(126));
    kill_process(Pid::from_child(&holder), Signal::TERM).unwrap();
    holder.wait().unwrap();
}

/// While no server is reachable, a command that waits forever prints why, and continues once a server is up.
#[test]
fn waiting_for_an_unreachable_server_is_reported() {
    let mut node = Node::start(&Program::redoubt(), "");
    node.kill();
    let mut child = lock_command(&node, "", &["true"]).spawn().unwrap();
    let stderr = first_line(child.stderr.as_mut().unwrap());
    assert!(stderr.contains("l: ") && stderr.contains("refused") && stderr.contains("retrying"), "{stderr}");
    node.launch();
    let status = eventually("the command ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

/// The command succeeds before the loss of the lock is detected, so its work may have been done twice.
#[test]
fn lock_lost_before_command_end_is_reported_as_failure() {
    let node = Node::start(&Program::redoubt(), "");
    let file = node.folder().join("go");
    let script = format!("while ! [ -e {} ]; do sleep 0.05; done", file.display());
    for (options, status) in [("--lease 600s", 74), ("--lease 600s --on-lost warn", 0)] {
        let child = start_holder(&node, options, &["sh", "-c", &script]);
        node.run("DEL l");
        std::fs::write(&file, "").unwrap();
        let (ended, stderr) = wait_for_exit(child);
        assert_eq!(ended.code(), Some(status), "{stderr}");
        assert!(stderr.contains("redoubt lock: l: "), "{stderr}");
        std::fs::remove_file(&file).unwrap();
    }
}
