//! Tests of how users start and stop a server: command line, configuration, log, limits and shutdown.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Node, Program, Reply, eventually, run_to_end};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn start_server(options: &str) -> Node {
    Node::start(&Program::redoubt(), options)
}

/// Runs the server until it exits; returns whether it succeeded, and its output.
fn run_until_exit(arguments: &[&str]) -> (bool, String) {
    let (status, printed) = run_to_end(Program::redoubt().command().args(arguments));
    (status.success(), printed)
}

#[test]
fn version_is_printed_in_the_format_of_redis() {
    let folder = TempDir::new().expect("a folder");
    let link = folder.path().join("redis-server");
    symlink(Program::redoubt().binary(), &link).expect("a link can be made");
    for command in [&mut Command::new(link), &mut Program::redoubt().command()] {
        let (status, printed) = run_to_end(command.arg("--version"));
        assert!(status.success());
        assert!(printed.contains(" v=7.4.0 "), "{printed}");
    }
    let (status, printed) = run_to_end(Command::new(Program::redoubt().binary()).arg("--version"));
    assert!(status.success());
    assert!(printed.starts_with("Redoubt ") && !printed.contains("v="), "{printed}");
}

/// Test containers and service managers wait for certain log lines, which must not change.
#[test]
fn log_has_the_lines_that_tools_wait_for() {
    let node = start_server("--save ");
    let log = node.log();
    let pid = node.pid();
    assert!(log.lines().next().expect("a first line").contains(&format!("PID: {pid}")), "{log}");
    assert!(log.contains("Server initialized"), "{log}");
    assert!(log.contains("Ready to accept connections tcp"), "{log}");
    assert!(
        log.lines().all(|line| line.starts_with(&format!("{pid}:M "))),
        "pid:role date level message:\n{log}"
    );
}

#[test]
fn term_and_int_signals_stop_the_server() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = start_server("--save ");
        kill_process(Pid::from_raw(node.pid() as i32).expect("a pid"), signal).expect("it can be signalled");
        let status = node.wait_for_exit();
        assert!(status.success(), "{signal:?}: {status}\n{}", node.log());
    }
}

#[test]
fn shutdown_stops_the_server() {
    let mut node = start_server("--save ");
    let mut connection = node.connect();
    connection.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    assert_eq!(connection.read_to_end().expect("the link is closed"), b"");
    assert!(node.wait_for_exit().success());
}

#[test]
fn symlink_named_redis_server_starts_a_server() {
    let folder = TempDir::new().expect("a folder");
    for name in ["redis-server", "valkey-server"] {
        let link = folder.path().join(name);
        symlink(Program::redoubt().binary(), &link).expect("a link can be made");
        let node = Node::start(&Program::from_binary(&link), "--save ");
        assert_eq!(node.run("PING"), Reply::Simple("PONG".into()));
    }
}

/// Reads the configuration file that Debian installs. Only root and the redis user have permission to read it.
fn read_debian_configuration() -> Vec<u8> {
    let path = "/etc/redis/redis.conf";
    fs::read(path).unwrap_or_else(|error| {
        let read = Command::new("sudo").args(["-n", "cat", path]).output().expect("sudo can be started");
        assert!(read.status.success(), "{path}, which redis-server brings, cannot be read: {error}");
        read.stdout
    })
}

/// Debian's file is used unchanged; options on the command line only override the port and the paths.
#[test]
fn configuration_file_of_debian_works_unchanged() {
    let mut node = Node::prepare(
        &Program::redoubt(),
        "--daemonize no --dir . --logfile server.log --pidfile server.pid",
    );
    let file = node.folder().join("redis.conf");
    fs::write(&file, read_debian_configuration()).expect("the folder can be written to");
    node.set_configuration(&file);
    node.launch();
    let log =
        fs::read_to_string(node.folder().join("server.log")).expect("the log is at the configured path");
    assert!(log.contains("Ready to accept connections tcp"), "{log}");
    assert!(!log.contains("no effect"), "{log}");
    let get = |name: &str| node.run(&format!("CONFIG GET {name}"));
    let pair =
        |name: &str, value: &str| Reply::Array(vec![Reply::Bulk(name.into()), Reply::Bulk(value.into())]);
    for (name, value) in [
        ("tcp-keepalive", "300"),
        ("appendfilename", "appendonly.aof"),
        ("client-output-buffer-limit", "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
        ("lazyfree-lazy-user-del", "no"),
        ("replica-priority", "100"),
    ] {
        assert_eq!(get(name), pair(name, value));
    }
}

/// DEBUG, MODULE LOAD and protected parameters are only available if the configuration allows them.
#[test]
fn protected_commands_are_refused_with_redis_errors() {
    let protected = "CONFIG SET dir .";
    let node = start_server("--save ");
    for (line, expected) in [
        ("DEBUG JMAP", "ERR DEBUG command not allowed. If the enable-debug-command option is set to"),
        ("DEBUG NOSUCH", "ERR DEBUG command not allowed."),
        ("MODULE LOAD x.so", "ERR MODULE command not allowed. If the enable-module-command option is set to"),
        (
            protected,
            "ERR CONFIG SET failed (possibly related to argument 'dir') - can't set protected config",
        ),
    ] {
        let reply = node.run(line);
        assert!(reply.is_error(expected), "{line}: {reply:?}");
    }
    let node = start_server("--save  --enable-debug-command local --enable-protected-configs yes");
    node.run("DEBUG SLEEP 0").expect_ok();
    node.run(protected).expect_ok();
    assert!(node.run("MODULE LOAD x.so").is_error("ERR MODULE command not allowed."));
}

/// CLIENT REPLY, SLOWLOG and the statistics apply to server commands as to data commands.
#[test]
fn client_reply_slowlog_and_statistics_apply_to_server_commands() {
    let node = start_server(
        "--save  --enable-debug-command yes --slowlog-log-slower-than 5000 --latency-monitor-threshold 5",
    );
    let mut connection = node.connect();
    for line in
        ["CLIENT REPLY SKIP", "INFO", "CLIENT REPLY OFF", "CONFIG GET maxclients", "PING", "CLIENT REPLY ON"]
    {
        connection.send(&line.split(' ').collect::<Vec<_>>()).expect("it reads");
    }
    assert_eq!(connection.read().expect("a reply"), Reply::Simple("OK".into()));
    connection.call_line("DEBUG SLEEP 0.02").expect_ok();
    let shown = |reply: Reply| format!("{reply:?}");
    let slow = shown(connection.call_line("SLOWLOG GET"));
    assert!(slow.contains("SLEEP") && slow.contains("0.02"), "{slow}");
    assert!(shown(connection.call_line("LATENCY LATEST")).contains("command"));
    assert!(shown(connection.call_line("LATENCY HISTOGRAM debug")).contains("histogram_usec"));
    let info = connection.call_line("INFO latencystats commandstats").text();
    assert!(info.contains("latency_percentiles_usec_debug:p50="), "{info}");
    assert!(info.contains("cmdstat_debug:calls=1,usec="), "{info}");
    for number in 0..510 {
        connection.call(&["EVAL", &format!("return {number}"), "0"]);
    }
    connection.call_line("SAVE").expect_ok();
    let counted = ["rdb_saves", "total_forks", "evicted_scripts"];
    let figures = || {
        let value = |name| node.info("everything", name).unwrap_or_default();
        counted.map(value).join(" ")
    };
    assert!(figures().starts_with("1 1 1"), "{}", figures());
    connection.call_line("CONFIG RESETSTAT").expect_ok();
    assert_eq!(figures(), "0 0 0");
    assert!(!shown(connection.call_line("LATENCY HISTOGRAM debug")).contains("histogram_usec"));
    let Reply::Array(time) = connection.call_line("TIME") else { panic!("TIME replies with two numbers") };
    assert_eq!(time.len(), 2);
}

/// The fields that exporters and dashboards read, except those shown only with replicas or during a save.
const INFO_FIELDS: &str = "redis_version redis_mode os arch_bits monotonic_clock multiplexing_api gcc_version \
    process_id process_supervised run_id tcp_port server_time_usec uptime_in_seconds uptime_in_days hz \
    configured_hz lru_clock executable config_file io_threads_active listener0 connected_clients \
    cluster_connections maxclients client_recent_max_input_buffer client_recent_max_output_buffer \
    blocked_clients tracking_clients clients_in_timeout_table paused_reason paused_actions \
    paused_timeout_milliseconds used_memory used_memory_human used_memory_rss used_memory_peak \
    used_memory_startup used_memory_dataset total_system_memory maxmemory maxmemory_policy mem_fragmentation_ratio \
    mem_allocator loading async_loading rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_save_time \
    rdb_last_bgsave_status rdb_last_bgsave_time_sec rdb_saves aof_enabled total_connections_received \
    total_commands_processed instantaneous_ops_per_sec total_net_input_bytes total_net_output_bytes \
    total_net_repl_input_bytes total_net_repl_output_bytes instantaneous_input_kbps instantaneous_output_kbps \
    instantaneous_input_repl_kbps instantaneous_output_repl_kbps rejected_connections sync_full sync_partial_ok \
    sync_partial_err expired_keys expired_stale_perc expired_time_cap_reached_count \
    expire_cycle_cpu_milliseconds evicted_keys evicted_clients total_eviction_exceeded_time \
    current_eviction_exceeded_time keyspace_hits keyspace_misses latest_fork_usec total_forks \
    tracking_total_keys tracking_total_items tracking_total_prefixes migrate_cached_sockets slave_expires_tracked_keys active_defrag_hits active_defrag_misses \
    active_defrag_key_hits active_defrag_key_misses total_active_defrag_time current_active_defrag_time \
    unexpected_error_replies total_error_replies dump_payload_sanitizations total_reads_processed \
    total_writes_processed io_threaded_reads_processed io_threaded_writes_processed reply_buffer_shrinks \
    reply_buffer_expands acl_access_denied_auth acl_access_denied_cmd acl_access_denied_key \
    acl_access_denied_channel role connected_slaves master_failover_state master_replid master_replid2 \
    master_repl_offset second_repl_offset repl_backlog_active repl_backlog_size repl_backlog_first_byte_offset \
    repl_backlog_histlen used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children \
    used_cpu_sys_main_thread used_cpu_user_main_thread cmdstat_set errorstat_ERR latency_percentiles_usec_set \
    cluster_enabled db0";

#[test]
fn info_has_every_field_with_correct_values() {
    let node = start_server("--save ");
    node.run("SET k v EX 1000").expect_ok();
    assert!(node.run("NOSUCH").is_error("ERR unknown command"));
    let info = node.run("INFO everything").text();
    let value = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in\n{info}")).to_owned()
    };
    INFO_FIELDS.split_whitespace().for_each(|name| drop(value(name)));
    let keyspace = value("db0");
    let ttl = keyspace
        .strip_prefix("keys=1,expires=1,avg_ttl=")
        .and_then(|text| text.split(',').next()?.parse().ok());
    assert!(ttl.is_some_and(|ttl: u64| (900_000..=1_000_000).contains(&ttl)), "{keyspace}");
    assert_eq!(value("errorstat_ERR"), "count=1");
    assert!(value("cmdstat_set").starts_with("calls=1,usec="));
    assert!(value("used_cpu_user_main_thread").parse::<f64>().is_ok());
    assert_eq!(value("paused_reason"), "none");
}

/// The command line overrides the configuration file; the file can also come from standard input.
#[test]
fn configuration_comes_from_a_file_standard_input_and_the_command_line() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("redis.conf");
    let text =
        "# a comment\nmaxmemory-policy allkeys-lru\ntimeout 300\nrequirepass \"a b\\x63\"\n\nsave \"\"\n";
    fs::write(&file, text).expect("the file can be written");

    let mut node = Node::prepare(&Program::redoubt(), "--timeout 100");
    node.set_configuration(&file);
    node.launch();
    let mut connection = node.connect();
    assert!(connection.call_line("GET a").is_error("NOAUTH Authentication required."));
    assert!(
        connection
            .call_line("AUTH wrong")
            .is_error("WRONGPASS invalid username-password pair or user is disabled.")
    );
    connection.call(&["AUTH", "a bc"]).expect_ok();
    let mut setting = |name: &str| connection.call(&["CONFIG", "GET", name]).items()[1].text();
    assert_eq!(setting("maxmemory-policy"), "allkeys-lru");
    assert_eq!(setting("timeout"), "100");

    let claim = harness::claim_port();
    let mut child = Program::redoubt()
        .command()
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the server starts");
    let mut input = child.stdin.take().expect("a pipe");
    writeln!(input, "port {}\nsave \"\"\ntimeout 77", claim.port).expect("the server reads");
    drop(input);
    let reply = std::panic::catch_unwind(|| {
        let mut connection = eventually("the server accepts connections", || {
            harness::Connection::open(("127.0.0.1", claim.port)).ok()
        });
        connection.call_line("CONFIG GET timeout").items()[1].text()
    });
    child.kill().expect("it can be killed");
    child.wait().expect("it can be waited for");
    assert_eq!(reply.expect("it answers"), "77");
}

#[test]
fn bad_configuration_prevents_startup_and_names_the_line() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("bad.conf");
    let name = file.to_str().expect("a path of text");
    for (text, line, reason) in [
        ("port 0\nnosuchoption 1\n", 2, "Bad directive or wrong number of arguments"),
        ("port 0\n\ntimeout banana\n", 3, "argument couldn't be parsed into an integer"),
        ("port 0 1\n", 1, "wrong number of arguments"),
        ("port 0\nsave \"1\n", 2, "Unbalanced quotes in configuration line"),
        ("maxmemory-policy sometimes\n", 1, "argument(s) must be one of the following:"),
    ] {
        fs::write(&file, text).expect("the file can be written");
        let (ended_well, printed) = run_until_exit(&[name]);
        assert!(!ended_well, "{text}");
        assert!(printed.contains("*** FATAL CONFIG FILE ERROR"), "{text}: {printed}");
        assert!(printed.contains(&format!("at line {line}")), "{text}: {printed}");
        assert!(printed.contains(reason), "{text}: {printed}");
    }
    let (ended_well, printed) = run_until_exit(&["/nonexistent/redis.conf"]);
    assert!(!ended_well);
    assert!(printed.contains("can't open config file"), "{printed}");
    let (ended_well, _) = run_until_exit(&["--nosuchoption", "1"]);
    assert!(!ended_well);
}

#[test]
fn port_in_use_prevents_startup() {
    let node = start_server("--save ");
    let (ended_well, printed) =
        run_until_exit(&["--port", &node.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    assert!(!ended_well);
    assert!(printed.contains("Address already in use"), "{printed}");
}

#[test]
fn corrupt_nodes_conf_prevents_startup() {
    let whole = {
        let node = Node::start_clustered(&Program::redoubt());
        node.run("CLUSTER ADDSLOTSRANGE 0 100").expect_ok();
        fs::read_to_string(node.folder().join("nodes.conf")).expect("the node wrote its file")
    };
    for (description, text) in [
        ("noise", "\u{1}\u{2}nothing like it\n".to_owned()),
        ("cut in the middle of a line", whole[..60].to_owned()),
        ("a slot out of range", whole.replace("0-100", "0-99999")),
        ("an unknown flag", whole.replace("myself,master", "myself,emperor")),
        ("no entry for this node", whole.replace("myself,", "")),
    ] {
        let mut node = Node::prepare(&Program::redoubt(), "--cluster-enabled yes");
        fs::write(node.folder().join("nodes.conf"), text).expect("the file can be written");
        node.spawn();
        let status = node.wait_for_exit();
        assert!(!status.success(), "{description}");
        let log = node.log();
        assert!(
            log.contains("nodes.conf") || log.contains("corrupted cluster config file"),
            "{description}: {log}"
        );
    }
}

/// Two processes with the same nodes.conf would both act as the same node, so the second one must not start.
#[test]
fn nodes_conf_is_locked_against_a_second_process() {
    let node = Node::start_clustered(&Program::redoubt());
    let claim = harness::claim_port();
    let mut second = Program::redoubt().command();
    second.args(["--cluster-enabled", "yes", "--port", &claim.port.to_string()]).current_dir(node.folder());
    let (status, printed) = run_to_end(&mut second);
    assert!(!status.success());
    assert!(printed.contains("already used by a different"), "{printed}");
}

#[test]
fn unix_sockets_are_served() {
    let node = start_server("--save  --unixsocket redis.sock --unixsocketperm 700");
    let mut stream = UnixStream::connect(node.folder().join("redis.sock")).expect("the socket is there");
    stream.write_all(b"PING\r\n").expect("the server reads");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("the server answers");
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn idle_clients_are_closed_after_the_timeout() {
    let node = start_server("--save  --timeout 1");
    let mut idle = node.connect();
    assert_eq!(idle.read_to_end().expect("the link is closed"), b"");
}

/// Active expiry deletes keys without any access; DBSIZE counts expired keys that are not yet deleted.
#[test]
fn expired_keys_are_deleted_without_access() {
    let node = start_server("--save ");
    let mut connection = node.connect();
    for number in 0..2000 {
        connection.send(&["SET", &format!("brief:{number}"), "x", "PX", "500"]).expect("it reads");
    }
    (0..2000).for_each(|_| connection.read().expect("it answers").expect_ok());
    let written = Instant::now();
    connection.call_line("SET lasting x").expect_ok();
    eventually("only the lasting key is left", || (connection.call_line("DBSIZE").int() == 1).then_some(()));
    let took = written.elapsed();
    assert!(took < Duration::from_millis(500 + 1000), "{took:?} after they were written");
}

/// The replies of a pipeline arrive in order whatever their sizes, even if the client reads late.
#[test]
fn long_pipelines_are_answered_in_order() {
    let node = start_server("--save ");
    let mut connection = node.connect();
    let sizes = [1, 100, 20_000, 0, 70_000, 3];
    for round in 0..50 {
        for (index, size) in sizes.iter().enumerate() {
            connection.send(&["SET", &format!("k{index}"), &"x".repeat(*size)]).expect("it reads");
            connection.send(&["GET", &format!("k{index}")]).expect("it reads");
            connection.send(&["ECHO", &format!("{round}.{index}")]).expect("it reads");
        }
    }
    for round in 0..50 {
        for (index, size) in sizes.iter().enumerate() {
            connection.read().expect("SET is answered").expect_ok();
            assert_eq!(connection.read().expect("GET is answered").text().len(), *size);
            assert_eq!(connection.read().expect("ECHO is answered").text(), format!("{round}.{index}"));
        }
    }
}

/// Data saved by SAVE is loaded at the next start.
#[test]
fn restarted_server_loads_its_saved_keys() {
    let mut node = start_server("--save ");
    node.run("SET kept value").expect_ok();
    node.run("SET expiring value EX 10000").expect_ok();
    node.run("SAVE").expect_ok();
    node.kill();
    node.launch();
    assert_eq!(node.run("GET kept").text(), "value");
    assert!(node.run("TTL expiring").int() > 9000);
}

/// A migration from a server to itself would delete the key after restoring it. Redis times out because it cannot
/// answer its own request.
#[test]
fn migrate_to_the_same_server_fails_and_keeps_the_key() {
    let node = Node::start(&Program::redoubt(), "--save ");
    node.run("SET k v").expect_ok();
    for line in [
        "MIGRATE 127.0.0.1 PORT k 0 500 REPLACE",
        "MIGRATE localhost PORT k 0 500",
        "MIGRATE 127.0.0.1 PORT k 1 500 REPLACE",
    ] {
        let reply = node.run(&line.replace("PORT", &node.port.to_string()));
        assert!(reply.is_error("IOERR error or timeout reading"), "{line}: {reply:?}");
        assert_eq!(node.run("GET k").text(), "v");
    }
}
