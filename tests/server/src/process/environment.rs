//! The process among others of its machine: where it works and writes, signals, logs, supervisors. The behaviour of
//! Redis in the same place is taken from a real Redis.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Connection, Node, Program, Value, claim_port, eventually, run_to_end};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn both() -> [Program; 2] {
    [Program::redoubt(), Program::redis()]
}

fn signal(node: &Node, signal: Signal) {
    kill_process(Pid::from_raw(node.pid() as i32).expect("a pid"), signal).expect("it can be signalled");
}

fn parameter(node: &Node, name: &str) -> String {
    node.run(&format!("CONFIG GET {name}")).items()[1].text()
}

/// A file may be named by `dir` and relative names: it is found in that folder, wherever the server was started.
#[test]
fn relative_paths_are_relative_to_dir() {
    for program in both() {
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
        assert_eq!(parameter(&node, "dir"), whole.to_str().expect("a path of text"), "{name}");
        // Its rewritten file names the folder wholly and everything else as before.
        node.run("CONFIG REWRITE").expect_ok();
        let rewritten = fs::read_to_string(&file).expect("the file can be read");
        assert!(rewritten.contains(whole.to_str().expect("a path of text")), "{name}: {rewritten}");
        assert!(rewritten.lines().any(|line| line.replace('"', "") == "logfile server.log"), "{rewritten}");
    }
}

#[test]
fn a_new_dir_is_shown_whole() {
    let node = Node::start(&Program::redoubt(), "--save  --enable-protected-configs yes");
    fs::create_dir(node.folder().join("other")).expect("the folder can be made");
    node.run("CONFIG SET dir other").expect_ok();
    let whole = node.folder().join("other").canonicalize().expect("it is there");
    assert_eq!(parameter(&node, "dir"), whole.to_str().expect("a path of text"));
    let refused = node.run("CONFIG SET dir nosuch");
    assert!(refused.is_error("ERR CONFIG SET failed"), "{refused:?}");
    assert_eq!(parameter(&node, "dir"), whole.to_str().expect("a path of text"));
    node.run("SAVE").expect_ok();
    assert!(whole.join("dump.rdb").exists());
}

/// A backup is fetched by another user: files have the mode that the umask leaves.
#[test]
fn files_have_the_umasks_mode() {
    for program in both() {
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

/// The terminal that a server was started from is closed.
#[test]
fn a_hangup_is_ignored() {
    for program in both() {
        let node = Node::start(&program, "--save ");
        let mut connection = node.connect();
        signal(&node, Signal::HUP);
        connection.run("SET k v").expect_ok();
        assert_eq!(node.run("GET k").text(), "v", "{}", program.name());
    }
}

/// The log says what the threads are doing, and the server goes on.
#[test]
fn an_alarm_is_answered_with_stack_traces() {
    let node = Node::start(&Program::redoubt(), "--save ");
    for _ in 0..2 {
        signal(&node, Signal::ALARM);
    }
    eventually("the log has the stacks", || {
        let log = node.log();
        (log.contains("Received SIGALRM") && log.contains("STACK TRACE")).then_some(())
    });
    assert_eq!(node.run("PING"), Value::Simple("PONG".to_owned()));
}

/// The first interrupt waits for replicas, the second does not.
#[test]
fn a_second_interrupt_ends_the_server_at_once() {
    for program in both() {
        let mut node = Node::start(&program, "--save  --shutdown-timeout 600");
        let replica = Node::start(&Program::redoubt(), "--save ");
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", node.port)).expect_ok();
        eventually("it is linked", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        replica.freeze();
        node.run("SET k v").expect_ok();
        signal(&node, Signal::INT);
        eventually("it waits for its replica", || {
            node.log().contains("User requested shutdown").then_some(())
        });
        assert!(!node.has_ended());
        signal(&node, Signal::INT);
        assert_eq!(node.wait_for_exit().code(), Some(1), "{}", program.name());
        assert!(node.log().contains("You insist... exiting now."), "{}", program.name());
        replica.thaw();
    }
}

/// logrotate without a signal: the next line begins a new file.
#[test]
fn a_log_that_was_moved_away_is_opened_anew() {
    for program in both() {
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

/// A daemon that cannot start says so on the terminal at once, and not in a log that could not be opened.
#[test]
fn a_daemon_that_cannot_work_where_it_should_says_so() {
    let folder = TempDir::new().expect("a folder");
    for program in both() {
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

/// A daemon begins where it was told, though it is started as a process of its own.
#[test]
fn a_daemon_works_in_its_dir() {
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
    assert_eq!(connection.run("PING"), Value::Simple("PONG".into()));
    let pid = eventually("it has written its number", || {
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
fn a_machine_without_a_log_socket_does_not_keep_it_from_starting() {
    for program in both() {
        let node = Node::start(&program, "--save  --syslog-enabled yes");
        assert_eq!(node.run("PING"), Value::Simple("PONG".into()), "{}", program.name());
    }
}

/// systemd hears when the service is ready, and when it has begun to stop.
#[test]
fn systemd_is_told_of_the_beginning_and_of_the_end() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket can be made");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is accepted");
    let hear = |wanted: &str| loop {
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
    let heard = std::panic::catch_unwind(|| {
        hear("READY=1");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it can be signalled");
        hear("STOPPING=1");
    });
    if heard.is_err() {
        child.kill().expect("it can be killed");
    }
    assert!(child.wait().expect("it ends").success());
    assert!(heard.is_ok());
}

/// The port is free and the one of the bus is not: the last line says which of the two it was.
#[test]
fn a_bus_port_in_use_is_called_so() {
    let (claim, taken) = (claim_port(), claim_port());
    let _listener = std::net::TcpListener::bind(("127.0.0.1", taken.port)).expect("the port was claimed");
    let folder = TempDir::new().expect("a folder");
    for program in both() {
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

/// The process before it has answered SHUTDOWN, and is not gone yet.
#[test]
fn ports_that_are_let_go_of_in_a_moment_are_waited_for() {
    let mut node = Node::prepare(&Program::redoubt(), "--cluster-enabled yes");
    let taken = [node.port, node.port + 10_000].map(|port| std::net::TcpListener::bind(("127.0.0.1", port)));
    let taken = taken.map(|listener| listener.expect("the node's ports are claimed for it"));
    node.spawn();
    eventually("it is about to listen", || node.log().contains("Server initialized").then_some(()));
    drop(taken);
    eventually("it is served", || {
        let reply = node.try_connect().ok()?.try_call(&["PING"]).ok()?;
        (reply == Value::Simple("PONG".into())).then_some(())
    });
}

/// A file of an older Redis goes through Redoubt and back: each line is still one that Redis 7 reads.
#[test]
fn redis_reads_a_file_that_redoubt_rewrote() {
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
    // Some values are of one machine only: the folder is gone by now, and the number of threads is Redoubt's choice.
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
        assert_eq!(parameter(&redis, name), value, "{name}");
    }
}

#[test]
fn a_master_is_not_set_as_a_parameter() {
    for program in both() {
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

/// CONFIG is taken away and FLUSHALL hidden, as hosting companies do; everything else knows the commands as before.
#[test]
fn commands_are_renamed_and_disabled() {
    for program in both() {
        let mut node = Node::prepare(&program, "--save ");
        let file = node.folder().join("server.conf");
        let text = "rename-command CONFIG \"\"\nrename-command FLUSHALL wipe-it-all\nrename-command GET fetch\n\
                    rename-command CLIENT kunde\n";
        fs::write(&file, text).expect("the folder can be written to");
        node.set_configuration(&file);
        node.launch();
        let mut connection = node.connect();
        let name = program.name();
        let mut run = |line: &str| connection.run(line);
        for line in ["CONFIG GET save", "FLUSHALL", "get k", "CLIENT ID"] {
            assert!(run(line).is_error("ERR unknown command"), "{name}: {line}");
        }
        run("SET k v").expect_ok();
        assert_eq!(run("FETCH k").text(), "v");
        run("MULTI").expect_ok();
        assert_eq!(run("fetch k"), Value::Simple("QUEUED".into()));
        assert_eq!(run("EXEC").items()[0].text(), "v");
        assert!(run("fetch").is_error("ERR wrong number of arguments for 'get' command"));
        assert!(run("kunde nosuch").is_error("ERR unknown subcommand 'nosuch'. Try KUNDE HELP."));
        assert!(run("kunde info").text().contains("cmd=client|info"));
        run("Wipe-It-All").expect_ok();
        assert_eq!(run("DBSIZE").int(), 0);
        // COMMAND finds them by the new names and calls them by their own.
        let shown = |reply: Value| format!("{reply:?}");
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
fn a_command_that_cannot_be_renamed_stops_the_start() {
    for program in both() {
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

/// A replica that renames commands still takes what its master says by their own names.
#[test]
fn a_replica_with_renamed_commands_follows_its_master() {
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
        connection.run(line);
    }
    assert_eq!(connection.run("WAIT 1 20000").int(), 1);
    assert_eq!(replica.run("GET k").text(), "v");
    assert_eq!(replica.run("DBSIZE").int(), 3);
}

/// A client sends AUTH and does not wait for its answer: what is behind it may be as long as anything that it may send.
#[test]
fn what_follows_auth_in_one_write_may_be_long() {
    for program in both() {
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
        assert_eq!(connection.read().expect("PING is answered"), Value::Simple("PONG".into()));

        // A node without the right secret is cut off as before.
        let wire = String::from_utf8(wire).expect("text").replace("secret", "wrong!");
        let mut connection = node.connect();
        connection.send_raw(wire.as_bytes()).expect("it reads");
        let rest = String::from_utf8_lossy(&connection.read_to_end().expect("it is closed")).into_owned();
        assert!(rest.starts_with("-WRONGPASS"), "{rest}");
        assert!(rest.contains("-ERR Protocol error: unauthenticated bulk length"), "{rest}");
    }
}

/// `redoubt FILE` and `redoubt --port 1`, as a user of redis-server types them.
#[test]
fn who_types_as_for_redis_server_is_told_the_word_that_is_missing() {
    for arguments in [&["redis.conf"][..], &["--port", "1"], &["redis.conf", "--port", "1"]] {
        let (status, printed) = run_to_end(Command::new(Program::redoubt().binary()).args(arguments));
        assert_eq!(status.code(), Some(2), "{printed}");
        let hint = format!("redoubt server {}", arguments.join(" "));
        assert!(printed.contains(&hint), "{printed}");
    }
}

/// The story: an operator took down a node that he thought was a replica.
#[test]
fn a_node_that_is_needed_stays_if_it_is_asked_to_take_care() {
    let programs = std::iter::once(Program::redoubt()).chain(Program::valkey());
    for program in programs {
        let mut alone = Node::start(&program, "--save ");
        alone.connect().send(&["SHUTDOWN", "SAFE"]).expect("it is read");
        assert!(alone.ended().success(), "there is no cluster that needs it");
        let mut node = Node::start(&program, "--save  --cluster-enabled yes");
        node.run("CLUSTER ADDSLOTS 7").expect_ok();
        eventually("it serves a slot", || node.run("CLUSTER NODES").text().contains(" 7\n").then_some(()));
        assert!(node.run("SHUTDOWN SAFE").is_error("ERR Errors trying to SHUTDOWN. Check logs."));
        assert!(node.log().contains("This is a voting primary"), "{}", node.log());
        node.connect().send(&["SHUTDOWN", "SAFE", "FORCE"]).expect("it is read");
        assert!(node.ended().success());
    }
}
