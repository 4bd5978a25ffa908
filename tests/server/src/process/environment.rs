//! Tests of the process and its environment: working directory, files, signals, logs and supervisors. Most tests also
//! run on Redis, which defines the expected behaviour.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Connection, Node, Program, Reply, claim_port, eventually, run_to_end};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn redoubt_and_redis() -> [Program; 2] {
    [Program::redoubt(), Program::redis()]
}

fn send_signal(node: &Node, signal: Signal) {
    kill_process(Pid::from_raw(node.pid() as i32).expect("a pid"), signal).expect("it can be signalled");
}

fn config_parameter(node: &Node, name: &str) -> String {
    node.run(&format!("CONFIG GET {name}")).items()[1].text()
}

/// Relative paths in the configuration are relative to `dir`, wherever the server was started.
#[test]
fn relative_paths_are_relative_to_dir() {
    for program in redoubt_and_redis() {
        let mut node = Node::prepare(&program, "");
        let data = node.folder().join("data");
        fs::create_dir(&data).expect("the folder can be made");
        let file = node.folder().join("server.conf");
        let text = "logfile server.log\npidfile server.pid\nunixsocket server.sock\ndbfilename data.rdb\n\
                    cluster-enabled yes\ncluster-config-file own.conf\nsave \"\"\ndaemonize no\ndir data\n";
        fs::write(&file, text).expect("the folder can be written to");
        node.set_configuration(&file);
        node.launch();
        node.run("SAVE").expect_ok();
        let name = program.name();
        for path in ["server.log", "server.sock", "data.rdb", "own.conf"] {
            assert!(data.join(path).exists(), "{name}: {path}");
        }
        let log = fs::read_to_string(data.join("server.log")).expect("the log can be read");
        assert!(log.contains("Server initialized"), "{name}: {log}");
        let whole = data.canonicalize().expect("it is there");
        assert_eq!(config_parameter(&node, "dir"), whole.to_str().expect("a path of text"), "{name}");
        // CONFIG REWRITE writes the absolute path of `dir` and keeps the other paths relative.
        node.run("CONFIG REWRITE").expect_ok();
        let rewritten = fs::read_to_string(&file).expect("the file can be read");
        assert!(rewritten.contains(whole.to_str().expect("a path of text")), "{name}: {rewritten}");
        assert!(rewritten.lines().any(|line| line.replace('"', "") == "logfile server.log"), "{rewritten}");
    }
}

#[test]
fn config_get_dir_returns_an_absolute_path() {
    let node = Node::start(&Program::redoubt(), "--save  --enable-protected-configs yes");
    fs::create_dir(node.folder().join("other")).expect("the folder can be made");
    node.run("CONFIG SET dir other").expect_ok();
    let whole = node.folder().join("other").canonicalize().expect("it is there");
    assert_eq!(config_parameter(&node, "dir"), whole.to_str().expect("a path of text"));
    let refused = node.run("CONFIG SET dir nosuch");
    assert!(refused.is_error("ERR CONFIG SET failed"), "{refused:?}");
    assert_eq!(config_parameter(&node, "dir"), whole.to_str().expect("a path of text"));
    node.run("SAVE").expect_ok();
    assert!(whole.join("dump.rdb").exists());
}

/// Backups are often made by another user, so files must have the mode that the umask allows.
#[test]
fn files_respect_the_umask() {
    for program in redoubt_and_redis() {
        let node = Node::start(&program, "--save  --logfile server.log");
        let other = node.folder().join("other");
        fs::write(&other, "").expect("the folder can be written to");
        node.run("SAVE").expect_ok();
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        for name in ["dump.rdb", "server.log"] {
            assert_eq!(mode(&node.folder().join(name)), mode(&other), "{}: {name}", program.name());
        }
    }
}

/// SIGHUP arrives when the terminal that started the server is closed, and must not end the server.
#[test]
fn sighup_is_ignored() {
    for program in redoubt_and_redis() {
        let node = Node::start(&program, "--save ");
        let mut connection = node.connect();
        send_signal(&node, Signal::HUP);
        connection.call_line("SET k v").expect_ok();
        assert_eq!(node.run("GET k").text(), "v", "{}", program.name());
    }
}

/// SIGALRM logs the stack traces of all threads, and the server continues.
#[test]
fn sigalrm_logs_stack_traces() {
    let node = Node::start(&Program::redoubt(), "--save ");
    for _ in 0..2 {
        send_signal(&node, Signal::ALARM);
    }
    eventually("the log has the stacks", || {
        let log = node.log();
        (log.contains("Received SIGALRM") && log.contains("STACK TRACE")).then_some(())
    });
    assert_eq!(node.run("PING"), Reply::Simple("PONG".to_owned()));
}

/// After the first SIGINT the server waits for its replicas, after the second it ends at once.
#[test]
fn second_sigint_ends_the_server_immediately() {
    for program in redoubt_and_redis() {
        let mut node = Node::start(&program, "--save  --shutdown-timeout 600");
        let replica = Node::start(&Program::redoubt(), "--save ");
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", node.port)).expect_ok();
        eventually("the replica is linked", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        replica.freeze();
        node.run("SET k v").expect_ok();
        send_signal(&node, Signal::INT);
        eventually("the shutdown waits for the replica", || {
            node.log().contains("User requested shutdown").then_some(())
        });
        assert!(!node.has_exited());
        send_signal(&node, Signal::INT);
        assert_eq!(node.wait_for_exit().code(), Some(1), "{}", program.name());
        assert!(node.log().contains("You insist... exiting now."), "{}", program.name());
        replica.thaw();
    }
}

/// The log is rotated without a signal, so the server must reopen the file for its next line.
#[test]
fn renamed_log_file_is_reopened() {
    for program in redoubt_and_redis() {
        let node = Node::start(&program, "--save  --logfile server.log");
        let (log, moved) = (node.folder().join("server.log"), node.folder().join("server.log.1"));
        fs::rename(&log, &moved).expect("it can be moved");
        let before = fs::read(&moved).expect("it can be read");
        node.run("BGSAVE");
        eventually("a new log begins", || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("DB saved on disk")).then_some(())
        });
        assert_eq!(fs::read(&moved).expect("it can be read"), before, "{}", program.name());
    }
}

/// A daemon that cannot start reports the error on the terminal before it detaches, because its log may not be
/// writable.
#[test]
fn daemon_reports_startup_errors_on_the_terminal() {
    let folder = TempDir::new().expect("a folder");
    for program in redoubt_and_redis() {
        for (option, path) in [("--dir", "nosuch"), ("--logfile", "nosuch/server.log")] {
            let port = claim_port();
            let mut command = program.command();
            command.args(["--daemonize", "yes", "--save", "", option, path]).current_dir(folder.path());
            command.args(["--port", &port.port.to_string(), "--bind", "127.0.0.1"]);
            let (status, printed) = run_to_end(&mut command);
            assert_eq!(status.code(), Some(1), "{} {option}: {printed}", program.name());
            assert!(printed.contains("No such file or directory"), "{} {option}: {printed}", program.name());
        }
    }
}

/// A daemon changes to its `dir` although it restarts itself as a separate process.
#[test]
fn daemon_changes_to_the_configured_dir() {
    let folder = TempDir::new().expect("a folder");
    fs::create_dir(folder.path().join("data")).expect("the folder can be made");
    let claim = claim_port();
    let text = format!(
        "port {}\nbind 127.0.0.1\ndir data\nlogfile server.log\npidfile server.pid\ndaemonize yes\nsave \"\"\n",
        claim.port
    );
    fs::write(folder.path().join("server.conf"), text).expect("the folder can be written to");
    let mut command = Program::redoubt().command();
    let status = command.arg("server.conf").current_dir(folder.path()).stdout(Stdio::null()).status();
    assert!(status.expect("it starts").success());
    let mut connection =
        eventually("the daemon answers", || Connection::open(("127.0.0.1", claim.port)).ok());
    assert_eq!(connection.call_line("PING"), Reply::Simple("PONG".into()));
    let pid = eventually("the daemon has written its pid file", || {
        let text = fs::read_to_string(folder.path().join("data/server.pid")).ok()?;
        text.trim().parse::<i32>().ok()
    });
    assert!(folder.path().join("data/server.log").exists());
    connection.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    eventually("the daemon is gone", || {
        kill_process(Pid::from_raw(pid).expect("a pid"), Signal::CONT).is_err().then_some(())
    });
}

#[test]
fn server_starts_without_a_syslog_socket() {
    for program in redoubt_and_redis() {
        let node = Node::start(&program, "--save  --syslog-enabled yes");
        assert_eq!(node.run("PING"), Reply::Simple("PONG".into()), "{}", program.name());
    }
}

/// systemd is notified when the server is ready and when it starts to stop.
#[test]
fn systemd_is_notified_of_start_and_stop() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket can be made");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is accepted");
    let wait_for_notification = |wanted: &str| loop {
        let mut buffer = [0; 1024];
        let len = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{wanted}: {error}"));
        if String::from_utf8_lossy(&buffer[..len]).lines().any(|line| line == wanted) {
            return;
        }
    };
    let claim = claim_port();
    let mut command = Program::redoubt().command();
    command.args(["--port", &claim.port.to_string(), "--save", "", "--supervised", "systemd"]);
    command.current_dir(folder.path()).env("NOTIFY_SOCKET", &path);
    let mut child = command.stdout(Stdio::null()).spawn().expect("it starts");
    let result = std::panic::catch_unwind(|| {
        wait_for_notification("READY=1");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it can be signalled");
        wait_for_notification("STOPPING=1");
    });
    if result.is_err() {
        child.kill().expect("it can be killed");
    }
    assert!(child.wait().expect("it ends").success());
    assert!(result.is_ok());
}

/// Only the bus port is in use by another process, so the last log line must name the bus port.
#[test]
fn bus_port_in_use_is_named_in_the_error() {
    let (claim, taken) = (claim_port(), claim_port());
    let _listener = std::net::TcpListener::bind(("127.0.0.1", taken.port)).expect("the port was claimed");
    let folder = TempDir::new().expect("a folder");
    for program in redoubt_and_redis() {
        let mut command = program.command();
        command.args(["--port", &claim.port.to_string(), "--bind", "127.0.0.1", "--cluster-enabled", "yes"]);
        command.args(["--cluster-port", &taken.port.to_string()]).current_dir(folder.path());
        let (status, printed) = run_to_end(&mut command);
        assert_eq!(status.code(), Some(1), "{printed}");
        assert!(
            printed.contains(&format!("Failed listening on port {} (cluster), aborting.", taken.port)),
            "{}: {printed}",
            program.name()
        );
        fs::remove_file(folder.path().join("nodes.conf")).expect("it was made");
    }
}

/// A previous process may still hold the ports for a moment after its reply to SHUTDOWN, so startup must retry.
#[test]
fn startup_waits_for_ports_that_are_about_to_be_released() {
    let mut node = Node::prepare(&Program::redoubt(), "--cluster-enabled yes");
    let taken = [node.port, node.port + 10_000].map(|port| std::net::TcpListener::bind(("127.0.0.1", port)));
    let taken = taken.map(|listener| listener.expect("the node's ports are claimed for it"));
    node.spawn();
    eventually("the server starts to listen", || node.log().contains("Server initialized").then_some(()));
    drop(taken);
    eventually("the server accepts connections", || {
        let reply = node.try_connect().ok()?.try_call(&["PING"]).ok()?;
        (reply == Reply::Simple("PONG".into())).then_some(())
    });
}

/// Redoubt rewrites a configuration file with names of older versions; Redis 7 must still be able to read it.
#[test]
fn redis_reads_a_configuration_rewritten_by_redoubt() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("server.conf");
    let text = "slave-priority 10\nmin-slaves-to-write 0\nlua-time-limit 3000\nslowlog-max-len 100\n\
                hash-max-ziplist-entries 100\nlist-max-ziplist-entries 512\nslave-read-only yes\nsave \"\"\n";
    fs::write(&file, text).expect("the file can be written");
    {
        let mut node = Node::prepare(&Program::redoubt(), "");
        node.set_configuration(&file);
        node.launch();
        for (name, value) in [
            ("replica-priority", "20"),
            ("slowlog-max-len", "64"),
            ("slowlog-log-slower-than", "5000"),
            ("hash-max-listpack-entries", "50"),
            ("primaryauth", "secret"),
        ] {
            node.run(&format!("CONFIG SET {name} {value}")).expect_ok();
        }
        node.run("CONFIG REWRITE").expect_ok();
    }
    let text = fs::read_to_string(&file).expect("it can be read");
    assert!(text.contains("slave-priority 20\n") && text.contains("hash-max-ziplist-entries 50\n"), "{text}");
    // `dir` no longer exists, and other machine-specific values stay as they are.
    let portable: Vec<&str> = text.lines().filter(|line| !line.starts_with("dir ")).collect();
    fs::write(&file, portable.join("\n")).expect("it can be written");
    let mut redis = Node::prepare(&Program::redis(), "");
    redis.set_configuration(&file);
    redis.launch();
    for (name, value) in [
        ("replica-priority", "20"),
        ("slowlog-max-len", "64"),
        ("slowlog-log-slower-than", "5000"),
        ("masterauth", "secret"),
    ] {
        assert_eq!(config_parameter(&redis, name), value, "{name}");
    }
}

#[test]
fn replicaof_cannot_be_set_by_config_set() {
    for program in redoubt_and_redis() {
        let node = Node::start(&program, "--save ");
        let refused = node.connect().call(&["CONFIG", "SET", "replicaof", "127.0.0.1 7000"]);
        assert!(
            refused.is_error(
                "ERR CONFIG SET failed (possibly related to argument 'replicaof') - can't set immutable config"
            ),
            "{refused:?}"
        );
    }
}

/// CONFIG is disabled and FLUSHALL renamed, as hosting providers do. Clients can then use
/// only the new names.
#[test]
fn commands_can_be_renamed_and_disabled() {
    for program in redoubt_and_redis() {
        let mut node = Node::prepare(&program, "--save ");
        let file = node.folder().join("server.conf");
        let text = "rename-command CONFIG \"\"\nrename-command FLUSHALL wipe-it-all\nrename-command GET fetch\n\
                    rename-command CLIENT kunde\n";
        fs::write(&file, text).expect("the folder can be written to");
        node.set_configuration(&file);
        node.launch();
        let mut connection = node.connect();
        let name = program.name();
        let mut run = |line: &str| connection.call_line(line);
        for line in ["CONFIG GET save", "FLUSHALL", "get k", "CLIENT ID"] {
            assert!(run(line).is_error("ERR unknown command"), "{name}: {line}");
        }
        run("SET k v").expect_ok();
        assert_eq!(run("FETCH k").text(), "v");
        run("MULTI").expect_ok();
        assert_eq!(run("fetch k"), Reply::Simple("QUEUED".into()));
        assert_eq!(run("EXEC").items()[0].text(), "v");
        assert!(run("fetch").is_error("ERR wrong number of arguments for 'get' command"));
        assert!(run("kunde nosuch").is_error("ERR unknown subcommand 'nosuch'. Try KUNDE HELP."));
        assert!(run("kunde info").text().contains("cmd=client|info"));
        run("Wipe-It-All").expect_ok();
        assert_eq!(run("DBSIZE").int(), 0);
        // COMMAND looks commands up by their new names but reports their original names.
        let shown = |reply: Reply| format!("{reply:?}");
        assert!(shown(run("COMMAND INFO fetch")).contains("\"get\""), "{name}");
        assert!(!shown(run("COMMAND INFO get")).contains("\"get\""), "{name}");
        let list = shown(run("COMMAND LIST"));
        assert!(list.contains("\"get\"") && list.contains("\"client|list\""), "{name}");
        assert!(!list.contains("fetch") && !list.contains("\"config\""), "{name}");
        assert_eq!(run("COMMAND GETKEYS fetch k").items()[0].text(), "k");
        assert!(run("INFO commandstats").text().contains("cmdstat_get:calls=2"), "{name}");
    }
}

#[test]
fn invalid_rename_command_prevents_startup() {
    for program in redoubt_and_redis() {
        for (from, to, reason) in [
            ("NOSUCH", "x", "No such command in rename-command"),
            ("GET", "set", "Target command name already exists"),
        ] {
            let (status, printed) =
                run_to_end(program.command().args(["--port", "0", "--rename-command", from, to]));
            assert_eq!(status.code(), Some(1), "{printed}");
            assert!(printed.contains(reason) && printed.contains("FATAL CONFIG FILE ERROR"), "{printed}");
        }
    }
}

/// A replica with renamed commands applies the replication stream, which uses the original names.
#[test]
fn replica_with_renamed_commands_replicates_its_master() {
    let master = Node::start(&Program::redoubt(), "--save  --repl-diskless-sync-delay 0");
    let mut replica = Node::prepare(&Program::redoubt(), "--save ");
    let file = replica.folder().join("server.conf");
    let text = format!(
        "replicaof 127.0.0.1 {}\nrename-command SET \"\"\nrename-command DEL remove\nrename-command MULTI \"\"\n",
        master.port
    );
    fs::write(&file, text).expect("the folder can be written to");
    replica.set_configuration(&file);
    replica.launch();
    eventually("the replica follows", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    master.run("SET k v").expect_ok();
    master.run("SET gone v").expect_ok();
    assert_eq!(master.run("DEL gone").int(), 1);
    let mut connection = master.connect();
    for line in ["MULTI", "SET a 1", "SET b 2", "EXEC"] {
        connection.call_line(line);
    }
    assert_eq!(connection.call_line("WAIT 1 20000").int(), 1);
    assert_eq!(replica.run("GET k").text(), "v");
    assert_eq!(replica.run("DBSIZE").int(), 3);
}

/// A client pipelines long requests after AUTH without waiting for the reply. These requests must not be refused by the
/// limits for unauthenticated clients.
#[test]
fn long_requests_pipelined_after_auth_are_accepted() {
    for program in redoubt_and_redis() {
        let node = Node::start(&program, "--save  --requirepass secret");
        let long = "x".repeat(20_000);
        let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
        let mut many = vec!["DEL"];
        many.extend(keys.iter().map(String::as_str));
        let mut wire = Vec::new();
        for request in [&["AUTH", "secret"][..], &["SET", "k", &long], &many, &["PING"]] {
            wire.extend(format!("*{}\r\n", request.len()).bytes());
            request.iter().for_each(|word| wire.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
        }
        let mut connection = node.connect();
        connection.send_raw(&wire).expect("it reads");
        connection.read().expect("AUTH is answered").expect_ok();
        connection.read().expect("SET is answered").expect_ok();
        assert_eq!(connection.read().expect("DEL is answered").int(), 0, "{}", program.name());
        assert_eq!(connection.read().expect("PING is answered"), Reply::Simple("PONG".into()));

        // With a wrong password, the limits for unauthenticated clients apply.
        let wire = String::from_utf8(wire).expect("text").replace("secret", "wrong!");
        let mut connection = node.connect();
        connection.send_raw(wire.as_bytes()).expect("it reads");
        let rest = String::from_utf8_lossy(&connection.read_to_end().expect("it is closed")).into_owned();
        assert!(rest.starts_with("-WRONGPASS"), "{rest}");
        assert!(rest.contains("-ERR Protocol error: unauthenticated bulk length"), "{rest}");
    }
}

/// Users of redis-server type `redoubt FILE` or `redoubt --port 1`, so the error must name the subcommand.
#[test]
fn redis_server_command_line_is_refused_with_a_hint() {
    for arguments in [&["redis.conf"][..], &["--port", "1"], &["redis.conf", "--port", "1"]] {
        let (status, printed) = run_to_end(Command::new(Program::redoubt().binary()).args(arguments));
        assert_eq!(status.code(), Some(2), "{printed}");
        let hint = format!("redoubt server {}", arguments.join(" "));
        assert!(printed.contains(&hint), "{printed}");
    }
}

/// SHUTDOWN SAFE protects against an operator who mistakes a voting primary for a replica and shuts it down.
#[test]
fn shutdown_safe_is_refused_by_a_voting_primary() {
    let programs = std::iter::once(Program::redoubt()).chain(Program::valkey());
    for program in programs {
        let mut alone = Node::start(&program, "--save ");
        alone.connect().send(&["SHUTDOWN", "SAFE"]).expect("it is read");
        assert!(
            alone.wait_for_exit_before_relaunch().success(),
            "a standalone server is not needed by any cluster"
        );
        let mut node = Node::start(&program, "--save  --cluster-enabled yes");
        node.run("CLUSTER ADDSLOTS 7").expect_ok();
        eventually("the node serves a slot", || {
            node.run("CLUSTER NODES").text().contains(" 7\n").then_some(())
        });
        assert!(node.run("SHUTDOWN SAFE").is_error("ERR Errors trying to SHUTDOWN. Check logs."));
        assert!(node.log().contains("This is a voting primary"), "{}", node.log());
        node.connect().send(&["SHUTDOWN", "SAFE", "FORCE"]).expect("it is read");
        assert!(node.wait_for_exit_before_relaunch().success());
    }
}

/// Returns a process's command line as `ps` shows it, without the zeros behind the title.
fn process_command_line(node: &Node) -> String {
    let bytes = fs::read(format!("/proc/{}/cmdline", node.pid())).expect("the process runs");
    // After the title, Valkey leaves zeros and a dot in the memory that held its arguments.
    let title = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(title).into_owned()
}

#[test]
fn process_title_follows_its_template() {
    let valkey = Program::valkey().unwrap_or_else(Program::redis);
    let nodes = [Program::redoubt(), valkey].map(|program| {
        let node = Node::start(&program, "--save  --cluster-enabled yes --tls-port 0");
        let started = process_command_line(&node);
        assert!(started.ends_with(&format!(":{} [cluster]", node.port)), "{started}");
        node
    });
    // Valkey refuses `{title}` in CONFIG SET, although its documentation lists that placeholder.
    for template in
        ["{listen-addr}", "  {server-mode} x ", "{port} {tls-port}", "{config-file}", "{{a} {unixsocket}b"]
    {
        let titles = nodes.each_ref().map(|node| {
            node.connect().call(&["CONFIG", "SET", "proc-title-template", template]).expect_ok();
            let file = node.run("CONFIG GET proc-title-template").items()[1].text();
            assert_eq!(file, template);
            let title = process_command_line(node).replace(&node.port.to_string(), "PORT");
            let folder = node.folder().to_string_lossy().into_owned();
            let title = title.replace(&folder, "FOLDER");
            title.rsplit_once('/').map_or_else(|| title.clone(), |(_, name)| name.to_owned())
        });
        let name = |title: &str| title.replace("valkey-server", "NAME").replace("redoubt", "NAME");
        assert_eq!(name(&titles[0]), name(&titles[1]), "{template}");
    }
}
