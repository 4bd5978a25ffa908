//! Tests of writing the append-only file: acknowledged writes survive a kill, whatever else happened before it.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use harness::{
    Node, Program, Reply,
    counters::{CounterClients, assert_counters_kept},
    eventually,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};

const FSYNC_ALWAYS_OPTIONS: &str = "--save  --appendonly yes --appendfsync always --enable-debug-command yes";
const FSYNC_EVERYSEC_OPTIONS: &str =
    "--save  --appendonly yes --appendfsync everysec --enable-debug-command yes";

fn wait_until_loaded(node: &Node) {
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
}

/// The files that the manifest names, in order.
fn manifest_paths(node: &Node) -> Vec<PathBuf> {
    let folder = node.folder().join("appendonlydir");
    let manifest = fs::read_to_string(folder.join("appendonly.aof.manifest")).expect("a manifest");
    let names = manifest.lines().map(|line| line.split(' ').nth(1).expect("a name").to_owned());
    names.map(|name| folder.join(name)).collect()
}

fn rewrite_count(node: &Node) -> u64 {
    node.info("persistence", "aof_rewrites").expect("it is shown").parse().expect("a number")
}

fn wait_for_rewrite(node: &Node, previous_count: u64) {
    eventually("the rewrite ends", || (rewrite_count(node) > previous_count).then_some(()));
    assert_eq!(node.info("persistence", "aof_last_bgrewrite_status").as_deref(), Some("ok"));
}

/// Kills the server at a random moment in each of `rounds` rounds, in half of them during a rewrite.
fn kill_repeatedly_under_load(rounds: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(rounds);
    let mut node = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    for round in 0..rounds {
        let counters = CounterClients::start(&node, 8);
        counters.wait_for_acknowledgements(random.random_range(0..5000));
        if random.random_ratio(1, 2) {
            node.run("BGREWRITEAOF");
            counters.wait_for_acknowledgements(random.random_range(0..2000));
        }
        // A random pause lets the kill fall between two replies.
        std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
        node.kill();
        let acknowledged = counters.stop();
        node.launch();
        wait_until_loaded(&node);
        assert_counters_kept(&node, &acknowledged, &format!("round {round}"));
    }
}

#[test]
fn acknowledged_writes_survive_a_kill_with_fsync_always() {
    kill_repeatedly_under_load(5);
}

#[test]
#[ignore = "long: make soak"]
fn acknowledged_writes_survive_a_hundred_kills_with_fsync_always() {
    kill_repeatedly_under_load(100);
}

#[test]
fn rewrite_under_load_loses_nothing_and_leaves_two_files() {
    let mut node = Node::start(&Program::redoubt(), FSYNC_EVERYSEC_OPTIONS);
    let counters = CounterClients::start(&node, 4);
    for _ in 0..3 {
        let before = rewrite_count(&node);
        counters.wait_for_acknowledgements(2000);
        assert!(node.run("BGREWRITEAOF").text().contains("started"));
        wait_for_rewrite(&node, before);
    }
    let acknowledged = counters.stop();
    let digest = node.run("DEBUG DIGEST");
    assert_eq!(manifest_paths(&node).len(), 2, "{:?}", manifest_paths(&node));
    let folder = fs::read_dir(node.folder().join("appendonlydir")).expect("the folder");
    assert_eq!(folder.count(), 3, "nothing else is left behind");
    assert!(node.terminate().success());
    node.launch();
    wait_until_loaded(&node);
    assert_counters_kept(&node, &acknowledged, "after rewrites");
    assert_eq!(node.run("DEBUG DIGEST"), digest);
}

#[test]
fn torn_tail_is_truncated_and_other_corruption_prevents_startup() {
    let mut node = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    let mut connection = node.connect();
    for line in ["SET a 1", "MULTI", "SET b 1", "SET c 1", "EXEC", "SET a 2"] {
        connection.call_line(line);
    }
    node.kill();
    let last = manifest_paths(&node).pop().expect("an increment");
    let whole = fs::read(&last).expect("it is there");
    let torn = [
        &b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n"[..],
        b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n9\r\n",
        b"#TS:17",
        b"*",
    ];
    for end in torn {
        fs::write(&last, [&whole, end].concat()).expect("it can be written");
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("GET a").text(), "2", "{}", end.escape_ascii());
        node.kill();
        assert!(fs::read(&last).expect("it is there").starts_with(&whole));
    }
    for (bytes, reason) in [
        ([&whole[..], b"nonsense\r\n"].concat(), "Bad file format"),
        ([&whole[..], b"*1\r\n$6\r\nNOSUCH\r\n"].concat(), "unknown command"),
        ([&whole[..], b"*2\r\n:1\r\n"].concat(), "Bad file format"),
    ] {
        fs::write(&last, bytes).expect("it can be written");
        node.spawn();
        assert!(!node.wait_for_exit_before_relaunch().success());
        assert!(node.log().contains(reason), "{reason}: {}", node.log());
    }
    fs::write(&last, [&whole[..], b"*1\r\n"].concat()).expect("it can be written");
    node.add_options("--aof-load-truncated no");
    node.spawn();
    assert!(!node.wait_for_exit_before_relaunch().success());
    assert!(node.log().contains("Unexpected end of file"), "{}", node.log());
}

#[test]
fn aof_can_be_switched_on_and_off_while_clients_write() {
    let mut node = Node::start(&Program::redoubt(), "--save  --appendonly no --enable-debug-command yes");
    let counters = CounterClients::start(&node, 4);
    node.run("CONFIG SET appendonly yes").expect_ok();
    wait_for_rewrite(&node, 0);
    counters.wait_for_acknowledgements(2000);
    node.run("CONFIG SET appendonly no").expect_ok();
    counters.wait_for_acknowledgements(2000);
    node.run("CONFIG SET appendonly yes").expect_ok();
    wait_for_rewrite(&node, 1);
    let acknowledged = counters.stop();
    node.add_options("--appendonly yes");
    assert!(node.terminate().success());
    node.launch();
    wait_until_loaded(&node);
    assert_counters_kept(&node, &acknowledged, "switched on");
}

/// A regular file is at the path of `appenddirname`, so the AOF cannot be created there.
#[test]
fn config_set_changes_nothing_if_the_aof_cannot_be_created() {
    let options = "--save  --appendonly no --appenddirname blocked --enable-protected-configs yes";
    let node = Node::start(&Program::redoubt(), options);
    let folder = node.folder().canonicalize().expect("a folder");
    let other = folder.join("other");
    fs::create_dir(&other).expect("a folder");
    fs::write(folder.join("blocked"), "").expect("a file");
    fs::write(other.join("blocked"), "").expect("a file");
    let all = || node.run("CONFIG GET *");
    let before = all();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let error = "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check \
                 server logs.";
    for line in [
        "CONFIG SET appendonly yes".to_owned(),
        format!("CONFIG SET port {} io-threads 3 appendonly yes", free.port()),
        format!("CONFIG SET dir {} maxclients 500 appendonly yes", other.display()),
        "CONFIG SET appendonly yes requirepass secret".to_owned(),
    ] {
        assert_eq!(node.run(&line), Reply::Error(error.to_owned()), "{line}");
        assert_eq!(all(), before, "{line}");
        node.run("SET key value").expect_ok();
        assert!(TcpStream::connect(free).is_err(), "{line}: the new port must not be open");
        assert_eq!(node.info("persistence", "aof_enabled").as_deref(), Some("0"));
        assert_eq!(node.info("server", "tcp_port"), Some(node.port.to_string()));
    }
    node.run("SAVE").expect_ok();
    assert!(folder.join("dump.rdb").exists(), "the process is still in its old working directory");
    assert!(node.log().contains("Can't open or create append-only dir"), "{}", node.log());
    // Once the obstacle is removed, the AOF can be switched on.
    fs::remove_file(folder.join("blocked")).expect("it is removed");
    node.run("CONFIG SET appendonly yes").expect_ok();
    wait_for_rewrite(&node, 0);
}

/// The refusal is logged with Valkey's phrases, because tools search for them.
#[test]
fn shutdown_is_refused_while_the_first_base_is_written() {
    let options = "--save  --appendonly no --rdb-key-save-delay 50000 --enable-debug-command yes";
    let mut node = Node::start(&Program::redoubt(), options);
    node.run("DEBUG POPULATE 1000").expect_ok();
    node.run("CONFIG SET appendonly yes").expect_ok();
    assert_eq!(node.info("persistence", "aof_rewrite_in_progress").as_deref(), Some("1"));
    for line in ["SHUTDOWN", "SHUTDOWN NOSAVE"] {
        assert!(node.run(line).is_error("ERR Errors trying to SHUTDOWN. Check logs."), "{line}");
        node.run("SET still served").expect_ok();
    }
    kill_process(Pid::from_raw(node.pid() as i32).expect("a pid"), Signal::TERM).expect("it runs");
    let refused = "Received SIGTERM but errors trying to shut down the server";
    eventually("the signal is refused", || node.log().contains(refused).then_some(()));
    assert!(node.log().contains("Writing initial AOF, can't exit."), "{}", node.log());
    node.run("SET still served").expect_ok();
    let _ = node.connect().try_call(&["SHUTDOWN", "FORCE"]);
    assert!(node.wait_for_exit_before_relaunch().success());
    assert!(node.log().contains("Writing initial AOF. Exit anyway."), "{}", node.log());
}

/// After the AOF was switched on, its increments cannot be loaded until the first base is complete.
#[test]
fn shutdown_succeeds_once_the_first_base_is_written() {
    for round in 0..5 {
        let mut node = Node::start(&Program::redoubt(), "--save  --appendonly no --enable-debug-command yes");
        node.run("DEBUG POPULATE 20000").expect_ok();
        node.run("CONFIG SET appendonly yes").expect_ok();
        node.run(&format!("SET last {round}")).expect_ok();
        eventually("the server stops", || {
            let _ = node.try_connect().ok().map(|mut connection| connection.try_call(&["SHUTDOWN"]));
            node.has_exited().then_some(())
        });
        assert!(node.wait_for_exit_before_relaunch().success());
        node.add_options("--appendonly yes");
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Reply::Int(20_001));
        assert_eq!(node.run("GET last").text(), round.to_string());
    }
}

/// A file size limit simulates the full disk.
#[test]
fn writes_are_not_acknowledged_while_the_aof_cannot_be_written() {
    let mut node = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    node.run("SET a 1").expect_ok();
    let limit = |bytes: &str| {
        let set = std::process::Command::new("prlimit")
            .args([&format!("--pid={}", node.pid()), &format!("--fsize={bytes}:unlimited")])
            .status();
        assert!(set.expect("prlimit is part of util-linux").success());
    };
    limit("2000");
    let mut connection = node.connect();
    let value = "x".repeat(3000);
    connection.send(&["SET", "b", &value]).expect("it is sent");
    eventually("the error is seen", || {
        (node.info("persistence", "aof_last_write_status")? == "err").then_some(())
    });
    assert!(node.run("SET c 1").is_error("MISCONF"), "writes are refused");
    assert_eq!(node.run("GET a").text(), "1");
    limit("unlimited");
    connection.read().expect("it is answered now").expect_ok();
    eventually("writes are taken again", || (!node.run("SET c 2").is_error("MISCONF")).then_some(()));
    node.kill();
    node.launch();
    wait_until_loaded(&node);
    assert_eq!((node.run("GET b").text(), node.run("GET c").text()), (value, "2".to_owned()));
}

#[test]
fn killed_replica_resumes_from_its_aof_by_partial_resync() {
    let master =
        Node::start(&Program::redoubt(), "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes");
    master.run("SET before 1").expect_ok();
    let port = master.address().rsplit(':').next().expect("a port").to_owned();
    let mut replica = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    replica.run("SET own 1").expect_ok();
    let rewritten = rewrite_count(&replica);
    replica.run(&format!("REPLICAOF 127.0.0.1 {port}"));
    eventually("the replica is synchronised", || {
        (replica.run("EXISTS before") == Reply::Int(1)).then_some(())
    });
    wait_for_rewrite(&replica, rewritten);
    for number in 0..100 {
        master.run(&format!("SET key:{number} {number}")).expect_ok();
    }
    eventually("the replica has all keys", || {
        (replica.run("GET key:99") == master.run("GET key:99")).then_some(())
    });
    eventually("the replica's AOF is flushed", || {
        let offset = replica.info("replication", "slave_repl_offset")?;
        (replica.info("persistence", "aof_buffer_length")? == "0" && offset != "0").then_some(())
    });
    replica.add_options(&format!("--replicaof 127.0.0.1 {port}"));
    let full = master.info("stats", "sync_full");
    replica.kill();
    master.run("SET meanwhile 1").expect_ok();
    replica.launch();
    wait_until_loaded(&replica);
    eventually("the replica receives new writes", || {
        (replica.run("EXISTS meanwhile") == Reply::Int(1)).then_some(())
    });
    assert_eq!(replica.run("DEBUG DIGEST"), master.run("DEBUG DIGEST"));
    assert_eq!(master.info("stats", "sync_full"), full, "the replica must resume by a partial resync");
}

/// An AOF directory is moved from Redoubt to Redis and back.
#[test]
fn redis_and_redoubt_load_each_others_aof() {
    let options = "--save  --appendonly yes";
    let mut ours = Node::start(&Program::redoubt(), options);
    for line in ["SET a 1", "HSET h f 1 g 2", "SET gone 1 PX 1", "INCR n", "INCR n"] {
        ours.run(line);
    }
    let mut connection = ours.connect();
    for line in ["SELECT 3", "SET there 1", "MULTI", "INCR x", "INCR x", "EXEC"] {
        connection.call_line(line);
    }
    assert!(ours.terminate().success());
    let mut theirs = Node::prepare(&Program::redis(), options);
    let copy = |from: &Node, to: &Node| {
        let (from, to) = (from.folder().join("appendonlydir"), to.folder().join("appendonlydir"));
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).expect("a folder");
        for file in fs::read_dir(from).expect("the folder").filter_map(Result::ok) {
            fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
        }
    };
    let expect = |node: &Node, n: &str| {
        wait_until_loaded(node);
        assert_eq!((node.run("GET a").text(), node.run("GET n").text()), ("1".to_owned(), n.to_owned()));
        assert_eq!(node.run("HGET h g").text(), "2");
        let mut connection = node.connect();
        connection.call_line("SELECT 3").expect_ok();
        assert_eq!(connection.call_line("GET x").text(), "2");
    };
    copy(&ours, &theirs);
    theirs.launch();
    expect(&theirs, "2");
    theirs.run("INCR n");
    theirs.run("BGREWRITEAOF");
    eventually("the rewrite ends", || {
        (theirs.info("persistence", "aof_rewrite_in_progress")? == "0"
            && theirs.info("persistence", "aof_rewrite_scheduled")? == "0")
            .then_some(())
    });
    theirs.run("INCR n");
    assert!(theirs.terminate().success());
    copy(&theirs, &ours);
    ours.launch();
    expect(&ours, "4");
    assert_eq!(ours.run("EXISTS gone"), Reply::Int(0));
}

#[test]
fn waitaof_waits_for_local_and_replica_disks() {
    let options = "--save  --appendonly yes --appendfsync everysec --repl-diskless-sync-delay 0";
    let master = Node::start(&Program::redoubt(), options);
    let port = master.address().rsplit(':').next().expect("a port").to_owned();
    let ours = Node::start(&Program::redoubt(), &format!("{options} --replicaof 127.0.0.1 {port}"));
    let theirs = Node::start(&Program::redis(), &format!("--save  --replicaof 127.0.0.1 {port}"));
    for replica in [&ours, &theirs] {
        eventually("the replica is there", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
    }
    let mut connection = master.connect();
    connection.call_line("SET a 1").expect_ok();
    let pair = |local, replicas| Reply::Array(vec![Reply::Int(local), Reply::Int(replicas)]);
    assert_eq!(connection.call_line("WAITAOF 1 1 20000"), pair(1, 1));
    // The Redis 7.0 replica has no AOF and cannot acknowledge a sync.
    assert_eq!(connection.call_line("WAITAOF 1 2 50"), pair(1, 1));
    connection.call_line("SET a 2").expect_ok();
    connection.call_line("CONFIG SET appendfsync always").expect_ok();
    connection.call_line("SET a 3").expect_ok();
    assert_eq!(
        connection.call_line("WAITAOF 1 0 0").items()[0],
        Reply::Int(1),
        "the write must be synced before its reply"
    );
}

#[test]
fn waitaof_fails_when_the_aof_is_switched_off() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let name = program.name();
        let node = Node::start(&program, FSYNC_EVERYSEC_OPTIONS);
        let mut waiting = node.connect();
        waiting.call_line("SET a 1").expect_ok();
        // There is no replica, so only switching off the AOF ends the wait.
        waiting.send(&["WAITAOF", "1", "1", "0"]).expect("it is sent");
        eventually("the client is blocked", || {
            (node.info("clients", "blocked_clients")? == "1").then_some(())
        });
        node.run("CONFIG SET appendonly no").expect_ok();
        let answer = waiting.read().expect("an answer");
        assert!(answer.is_error("ERR WAITAOF cannot be used when numlocal is set"), "{name}: {answer:?}");
    }
}

fn run_check_aof(arguments: &[&str], confirmation: &str) -> (bool, String) {
    let program = Program::redoubt();
    let mut command = std::process::Command::new(program.binary());
    command.arg("check-aof").args(arguments).stdin(std::process::Stdio::piped());
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), confirmation.as_bytes())
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn check_aof_detects_and_repairs_a_torn_file() {
    let mut node = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    node.run("SET a 1").expect_ok();
    node.kill();
    let manifest = node.folder().join("appendonlydir/appendonly.aof.manifest");
    let manifest = manifest.to_str().expect("a plain path");
    assert!(run_check_aof(&[manifest], "").0);
    let last = manifest_paths(&node).pop().expect("an increment");
    let whole = fs::read(&last).expect("it is there");
    fs::write(&last, [&whole[..], b"*1\r\n$5\r\nMULTI\r\n*1\r\n"].concat()).expect("it can be written");
    let (ok, text) = run_check_aof(&[manifest], "");
    assert!(!ok && text.contains("--fix"), "{text}");
    assert!(!run_check_aof(&["--fix", manifest], "n\n").0);
    let (ok, text) = run_check_aof(&["--fix", manifest], "y\n");
    assert!(ok && text.contains("Successfully truncated"), "{text}");
    assert_eq!(fs::read(&last).expect("it is there"), whole);
    node.add_options("--aof-load-truncated no");
    node.launch();
    wait_until_loaded(&node);
    assert_eq!(node.run("GET a").text(), "1");
}

/// With `aof-disable-auto-gc`, replaced files stay on disk and in the manifest until garbage collection is enabled
/// again.
#[test]
fn replaced_files_stay_while_garbage_collection_is_disabled() {
    let mut node =
        Node::start(&Program::redoubt(), &format!("{FSYNC_ALWAYS_OPTIONS} --aof-disable-auto-gc yes"));
    let folder = node.folder().join("appendonlydir");
    let count = || fs::read_dir(&folder).expect("the folder").count();
    let history = || {
        let manifest = fs::read_to_string(folder.join("appendonly.aof.manifest")).expect("a manifest");
        manifest.lines().filter(|line| line.ends_with("type h")).count()
    };
    for round in 1..=2 {
        let before = rewrite_count(&node);
        node.run("BGREWRITEAOF");
        wait_for_rewrite(&node, before);
        assert_eq!((history(), count()), (2 * round, 2 * round + 3), "base and increment of each");
    }
    assert!(node.terminate().success());
    node.launch();
    wait_until_loaded(&node);
    assert_eq!((history(), count()), (4, 7), "a restart keeps them, too");
    node.run("CONFIG SET aof-disable-auto-gc no").expect_ok();
    assert_eq!((history(), count()), (0, 3));
}

/// The values that the script in `scripts_direct_writes_to_the_file_or_to_replicas` writes.
fn values_written_by_script(node: &Node) -> String {
    let mut connection = node.connect();
    let keys = ["file", "replicas", "none", "text", "plain"];
    let mut values = keys.map(|key| connection.call_line(&format!("GET {key}"))).to_vec();
    connection.call_line("SELECT 3").expect_ok();
    values.push(connection.call_line("LRANGE file 0 -1"));
    format!("{values:?}")
}

/// The script directs writes with `redis.set_repl`; the replica and the restarted server must each have the writes
/// directed to them. Offsets must stay right, so that a replica continues after its master restarts, even after a kill.
#[test]
fn scripts_direct_writes_to_the_file_or_to_replicas() {
    let mut master = Node::start(&Program::redoubt(), FSYNC_ALWAYS_OPTIONS);
    let valkey = Program::valkey().unwrap_or_else(Program::redoubt);
    let replicas = [Program::redoubt(), valkey].map(|program| Node::start(&program, "--save "));
    for replica in &replicas {
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    }
    let wait_for_replicas = |master: &Node| {
        eventually("the replicas have the master's offset", || {
            let offset = master.info("replication", "master_repl_offset");
            let has_all = |replica: &Node| {
                replica.info("replication", "master_link_status").as_deref() == Some("up")
                    && replica.info("replication", "slave_repl_offset") == offset
            };
            replicas.iter().all(has_all).then_some(())
        });
    };
    wait_for_replicas(&master);
    let mut connection = master.connect();
    let write = "for i = 1, 3 do redis.set_repl(redis['REPL_' .. ARGV[i]]) redis.call('incrby', KEYS[i], 7) end \
                 redis.set_repl(redis.REPL_ALL) redis.call('select', 3) redis.call('rpush', KEYS[1], ARGV[1]) \
                 redis.set_repl(redis.REPL_AOF) redis.call('rpush', KEYS[1], 'file') \
                 redis.set_repl(redis.REPL_REPLICA) redis.call('rpush', KEYS[1], 'replicas')";
    let one = "redis.set_repl(redis['REPL_' .. ARGV[1]]) return redis.call('append', KEYS[1], ARGV[2])";
    for _ in 0..20 {
        connection.call(&["EVAL", write, "3", "file", "replicas", "none", "AOF", "REPLICA", "NONE"]);
        for targets in ["AOF", "REPLICA", "NONE", "ALL"] {
            connection.call(&["EVAL", one, "1", "text", targets, &targets[..1]]);
        }
        connection.call_line("INCR plain");
    }
    wait_for_replicas(&master);
    for replica in &replicas {
        let texts = values_written_by_script(replica);
        assert!(
            texts.contains(&"RA".repeat(20)) && texts.contains("140") && !texts.contains("file"),
            "{texts}"
        );
    }
    let offset = master.info("replication", "master_repl_offset");
    let kept = values_written_by_script(&replicas[0]);
    assert_eq!(values_written_by_script(&replicas[1]), kept);
    master.kill();
    master.launch();
    wait_until_loaded(&master);
    let texts = values_written_by_script(&master);
    assert!(
        texts.contains(&"AA".repeat(20)) && texts.contains("140") && !texts.contains("replicas"),
        "{texts}"
    );
    assert_eq!(master.info("replication", "master_repl_offset"), offset);
    wait_for_replicas(&master);
    master.run("INCR plain");
    wait_for_replicas(&master);
    assert_eq!(replicas[0].run("GET plain").text(), "21");
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("0"), "the replicas continue");
}
