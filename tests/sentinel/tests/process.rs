//! Tests of the sentinel process: configuration file, directories, signals and command names.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use harness::{Connection, Node, Program, Reply, claim_port, eventually, report_skipped, run_to_end};

const MONITOR_LINE: &str = "sentinel monitor mymaster 127.0.0.1 1 1\n";

/// Prepares a sentinel with these configuration lines without starting it.
fn prepare_sentinel(program: &Program, lines: &str) -> Node {
    let mut node = Node::prepare(program, "");
    let file = node.folder().join("sentinel.conf");
    fs::write(&file, [lines, MONITOR_LINE].concat()).expect("the folder can be written to");
    node.set_configuration(&file);
    node.add_options("--sentinel");
    node
}

fn start_sentinel(program: &Program, lines: &str) -> Node {
    let mut node = prepare_sentinel(program, lines);
    node.launch();
    node
}

/// Service managers pass `--port` at every start of a sentinel, which must not add a line to the file each time.
#[test]
fn restart_adds_no_line_to_the_configuration_file() {
    let mut node = start_sentinel(&Program::redoubt(), "");
    let file = node.folder().join("sentinel.conf");
    let mut texts = Vec::new();
    for _ in 0..3 {
        node.run("SENTINEL FLUSHCONFIG").expect_ok();
        texts.push(fs::read_to_string(&file).expect("it can be read"));
        node.kill();
        node.launch();
    }
    assert!(!texts[0].contains("port"), "{}", texts[0]);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:#?}");
}

/// A script that runs the commands in place of MOUNTS in a new mount namespace, and then starts a sentinel. Its
/// arguments are the directory, the program and the working directory.
const NAMESPACE_SCRIPT: &str = "cd $0 && MOUNTS && exec $1 sentinel sentinel.conf --dir $2";

/// docker-compose mounts the configuration file itself, which then cannot be replaced by a rename. If the directory is
/// read-only, the journal cannot be written beside the file either.
#[test]
fn configuration_file_that_is_a_mount_point_is_written_in_place() {
    let alone = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !alone.is_ok_and(|status| status.success()) {
        return report_skipped("a mounted configuration file", "this process may not make a mount namespace");
    }
    let read_only = "mount --bind . . && cd $0 && mount -o remount,bind,ro . && mount --bind $2/sentinel.conf sentinel.conf";
    for (mounts, journal_in_dir) in
        [("mount --bind $2/sentinel.conf sentinel.conf", false), (read_only, true)]
    {
        let (etc, data) =
            (tempfile::TempDir::new().expect("a folder"), tempfile::TempDir::new().expect("a folder"));
        let claim = claim_port();
        let text =
            format!("port {}\nbind 127.0.0.1\n# {}\n{MONITOR_LINE}", claim.port, "a comment ".repeat(500));
        fs::write(data.path().join("sentinel.conf"), text).expect("it can be written");
        fs::write(etc.path().join("sentinel.conf"), "").expect("it can be written");
        let script = NAMESPACE_SCRIPT.replace("MOUNTS", mounts);
        for _ in 0..2 {
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &script]).arg(etc.path()).arg(Program::redoubt().binary());
            let mut process = command.arg(data.path()).stdout(Stdio::null()).spawn().expect("it starts");
            let opened = || Connection::open(("127.0.0.1", claim.port)).ok();
            let mut connection = eventually("it answers", opened);
            connection.call_line("SENTINEL SET mymaster quorum 7").expect_ok();
            connection.call_line("SENTINEL FLUSHCONFIG").expect_ok();
            connection.send(&["SHUTDOWN"]).expect("it reads");
            assert!(process.wait().expect("it ends").success());
            let written = fs::read_to_string(data.path().join("sentinel.conf")).expect("it can be read");
            assert!(written.contains("sentinel myid ") && written.contains(" 7\n"), "{written}");
            assert_eq!(data.path().join("sentinel.conf.raft").exists(), journal_in_dir, "{mounts}");
            assert_eq!(etc.path().join("sentinel.conf.raft").exists(), !journal_in_dir, "{mounts}");
        }
    }
}

#[test]
fn sentinel_uses_its_dir_and_survives_its_terminal() {
    let mut node =
        prepare_sentinel(&Program::redoubt(), "logfile sentinel.log\npidfile sentinel.pid\ndir data\n");
    let data = node.folder().join("data");
    fs::create_dir(&data).expect("the folder can be made");
    node.launch();
    assert!(data.join("sentinel.log").exists() && data.join("sentinel.pid").exists());
    let mut connection = node.connect();
    let hangup = rustix::process::Signal::HUP;
    let pid = rustix::process::Pid::from_raw(node.pid() as i32).expect("a pid");
    rustix::process::kill_process(pid, hangup).expect("it can be signalled");
    assert_eq!(connection.call_line("PING"), Reply::Simple("PONG".into()));
    assert!(node.terminate().success());
    assert!(!data.join("sentinel.pid").exists());
}

#[test]
fn sentinel_daemonizes_or_reports_the_error() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("sentinel.conf");
    let claim = claim_port();
    let text =
        format!("port {}\nbind 127.0.0.1\ndaemonize yes\ndir .\nlogfile s.log\npidfile s.pid\n", claim.port);
    fs::write(&file, [text.as_str(), MONITOR_LINE].concat()).expect("the folder can be written to");
    let command = |more: &[&str]| {
        let mut command = Command::new(Program::redoubt().binary());
        command.args(["sentinel", "sentinel.conf"]).args(more).current_dir(folder.path());
        command
    };
    let (status, printed) = run_to_end(&mut command(&["--dir", "nosuch"]));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("No such file or directory"), "{printed}");
    let status = command(&[]).stdout(Stdio::null()).status().expect("it starts");
    assert!(status.success());
    let mut connection =
        eventually("the daemon answers", || Connection::open(("127.0.0.1", claim.port)).ok());
    connection.send(&["SHUTDOWN"]).expect("it reads");
    eventually("the daemon is gone", || (!folder.path().join("s.pid").exists()).then_some(()));
}

/// The command names that Valkey introduced get the same replies as Redis's names.
#[test]
fn valkey_command_names_are_supported() {
    let node = start_sentinel(&Program::redoubt(), "sentinel deny-scripts-reconfig yes\n");
    let mut connection = node.connect();
    for (valkey, redis) in [
        ("PRIMARY nosuch", "MASTER nosuch"),
        ("GET-PRIMARY-ADDR-BY-NAME mymaster", "GET-MASTER-ADDR-BY-NAME mymaster"),
        ("GET-PRIMARY-ADDR-BY-NAME nosuch", "GET-MASTER-ADDR-BY-NAME nosuch"),
        ("IS-PRIMARY-DOWN-BY-ADDR 127.0.0.1 2 0 *", "IS-MASTER-DOWN-BY-ADDR 127.0.0.1 2 0 *"),
        ("SET mymaster primary-reboot-down-after-period 5", "SET mymaster master-reboot-down-after-period 5"),
    ] {
        let answer = connection.call_line(&format!("SENTINEL {valkey}"));
        assert_eq!(answer, connection.call_line(&format!("SENTINEL {redis}")), "{valkey}");
    }
    let name = |reply: &Reply| reply.items()[1].text();
    assert_eq!(name(&connection.call_line("SENTINEL PRIMARY mymaster")), "mymaster");
    assert_eq!(name(&connection.call_line("SENTINEL PRIMARIES").items()[0]), "mymaster");
    let wrong = connection.call_line("SENTINEL PRIMARY");
    assert!(wrong.is_error("ERR wrong number of arguments for 'sentinel|primary' command"), "{wrong:?}");
}

/// CLIENT supports the subcommands of the Redis sentinel and also SETINFO, which the tested Redis does not have yet.
#[test]
fn client_supports_the_subcommands_of_redis() {
    let names = |program: &Program| -> BTreeSet<String> {
        let node = start_sentinel(program, "");
        let list = node.run("COMMAND LIST FILTERBY PATTERN client*");
        list.items().iter().map(Reply::text).collect()
    };
    let mut expected = names(&Program::redis());
    expected.insert("client|setinfo".to_owned());
    assert_eq!(names(&Program::redoubt()), expected);

    let node = start_sentinel(&Program::redoubt(), "");
    let unknown = node.run("CLIENT CAPA redirect");
    assert!(unknown.is_error("ERR unknown subcommand 'CAPA'. Try CLIENT HELP."), "{unknown:?}");
    node.run("CLIENT SETINFO LIB-NAME x").expect_ok();
    let help = node.run("CLIENT HELP");
    let explains = |name: &str| help.items().iter().any(|line| line.text().starts_with(name));
    assert!(explains("TRACKING") && !explains("CAPA") && !explains("NO-TOUCH"), "{help:?}");
}

/// As on a server, a client can pipeline large requests after an AUTH with the right password.
#[test]
fn large_requests_can_be_pipelined_after_auth() {
    let wire = |password: &str| {
        let long = "x".repeat(20_000);
        let mut wire =
            format!("*2\r\n$4\r\nAUTH\r\n$6\r\n{password}\r\n*2\r\n$4\r\nPING\r\n$20000\r\n{long}\r\n");
        wire.push_str(&format!(
            "*12\r\n$8\r\nSENTINEL\r\n$3\r\nSET\r\n$8\r\nmymaster\r\n{}",
            "$1\r\nx\r\n".repeat(9)
        ));
        wire
    };
    for program in [Program::redoubt(), Program::redis()] {
        let node = start_sentinel(&program, "requirepass secret\n");
        let mut connection = node.connect();
        connection.send_raw(wire("secret").as_bytes()).expect("it reads");
        connection.read().expect("AUTH is answered").expect_ok();
        assert_eq!(connection.read().expect("PING is answered").text().len(), 20_000, "{}", program.name());
        assert!(connection.read().expect("SET is answered").is_error("ERR "), "{}", program.name());

        let mut connection = node.connect();
        connection.send_raw(wire("wrong!").as_bytes()).expect("it reads");
        let rest = String::from_utf8_lossy(&connection.read_to_end().expect("it is closed")).into_owned();
        assert!(rest.starts_with("-WRONGPASS"), "{}: {rest}", program.name());
        assert!(rest.contains("-ERR Protocol error: unauthenticated bulk length"), "{rest}");
    }
}
