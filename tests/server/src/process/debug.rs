//! Tests of the DEBUG subcommands that act on the process: restarts, crashes, reloads, sleeps and broken cluster links.

use std::time::{Duration, Instant};

use harness::{Cluster, Connection, Node, Program, Reply, cluster_info_field, eventually};

const SERVER_OPTIONS: &str = "--save  --enable-debug-command yes";

fn start_server(extra_options: &str) -> Node {
    Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} {extra_options}"))
}

fn run_commands(node: &Node, lines: &[&str]) {
    let mut connection = node.connect();
    for line in lines {
        let reply = connection.call_line(line);
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
    }
}

/// DEBUG LOADAOF discards data that is only in memory, and loads the data from the append-only file.
#[test]
fn debug_loadaof_reloads_the_append_only_file() {
    let node = start_server("--appendonly yes");
    run_commands(&node, &["SET a 1", "RPUSH l x y", "SELECT 2", "SET b 2", "DEBUG POPULATE 10 unlogged"]);
    node.run("DEBUG LOADAOF").expect_ok();
    assert_eq!(node.run("GET a").text(), "1");
    assert_eq!(node.run("LLEN l").int(), 2);
    let mut other = node.connect();
    other.call_line("SELECT 2").expect_ok();
    assert_eq!((other.call_line("GET b").text(), other.call_line("DBSIZE").int()), ("2".to_owned(), 1));
    // The server must still append to the file, and must write no command twice.
    run_commands(&node, &["RPUSH l z", "DEBUG LOADAOF"]);
    assert_eq!(node.run("LLEN l").int(), 3);
    let without = start_server("");
    assert!(without.run("DEBUG LOADAOF").is_error("ERR Error trying to load the AOF files"));
    // BGREWRITEAOF writes a base file even while the AOF is off, and the AOF stays off.
    run_commands(&without, &["SET a 1"]);
    without.run("BGREWRITEAOF");
    eventually("the base is written", || (without.info("persistence", "aof_rewrites")? == "1").then_some(()));
    run_commands(&without, &["SET b 2", "DEBUG LOADAOF"]);
    assert_eq!((without.run("GET a").text(), without.run("EXISTS b").int()), ("1".to_owned(), 0));
    assert_eq!(without.info("persistence", "aof_enabled").as_deref(), Some("0"));
    assert!(without.log().contains("Append Only File loaded by DEBUG LOADAOF"), "{}", without.log());
}

#[test]
fn debug_reload_merges_the_file_into_the_dataset() {
    let node = start_server("");
    run_commands(&node, &["SET a saved", "SAVE", "SET a changed", "SET b new"]);
    node.run("DEBUG RELOAD NOSAVE NOFLUSH MERGE").expect_ok();
    assert_eq!((node.run("GET a").text(), node.run("GET b").text()), ("saved".to_owned(), "new".to_owned()));
    node.run("DEBUG RELOAD NOSAVE").expect_ok();
    assert_eq!(node.run("EXISTS a b").int(), 1);
    let refused = node.run("DEBUG RELOAD FAST");
    assert!(refused.is_error("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."));
}

/// DEBUG SLEEP blocks all clients, as if the server hung.
#[test]
fn debug_sleep_blocks_all_clients() {
    let node = start_server("");
    let mut sleeper = node.connect();
    let mut other = node.connect();
    sleeper.send(&["DEBUG", "SLEEP", "0.5"]).expect("it reads");
    let begun = Instant::now();
    eventually("the server blocks", || {
        let asked = Instant::now();
        other.call_line("PING");
        (asked.elapsed() > Duration::from_millis(100)).then_some(())
    });
    sleeper.read().expect("an answer").expect_ok();
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
    other.call_line("SET k v").expect_ok();
}

#[test]
fn debug_restart_keeps_the_data() {
    let node = start_server("--appendonly yes");
    let run_id = |node: &Node| node.info("server", "run_id").expect("a name");
    for (line, kept) in [("DEBUG RESTART", true), ("DEBUG CRASH-AND-RECOVER 10", true)] {
        node.run("SET k v").expect_ok();
        node.run("WAITAOF 1 0 5000");
        let (before, pid) = (run_id(&node), node.pid());
        let _ = node.connect().try_call(&line.split(' ').collect::<Vec<_>>());
        eventually("the process has restarted", || {
            let mut connection = node.try_connect().ok()?;
            let info = connection.try_call(&["INFO", "server"]).ok()?.text();
            let loads = connection.try_call(&["GET", "k"]).ok()?.is_error("LOADING");
            (!loads && !info.contains(&before) && info.contains(&format!("process_id:{pid}"))).then_some(())
        });
        assert_eq!(node.run("EXISTS k").int() == 1, kept, "{line}");
    }
}

#[test]
fn debug_crash_commands_end_the_process() {
    for line in ["DEBUG SEGFAULT", "DEBUG ASSERT", "DEBUG OOM", "DEBUG PANIC"] {
        let mut node = start_server("");
        let _ = node.connect().try_call(&line.split(' ').collect::<Vec<_>>());
        eventually("the process ends", || node.has_exited().then_some(()));
        assert!(!node.wait_for_exit_before_relaunch().success(), "{line}");
    }
}

#[test]
fn debug_reports_the_allocator_and_client_eviction_pools() {
    let node = start_server("--maxmemory-clients 100mb");
    assert!(node.run("DEBUG MALLCTL arenas.narenas").int() > 0);
    assert!(node.run("DEBUG MALLCTL nosuch").is_error("ERR No such file or directory"));
    assert!(node.run("DEBUG MALLCTL-STR version").text().starts_with('5'));
    let pools = node.run("DEBUG CLIENT-EVICTION").text();
    assert_eq!(pools.lines().count(), 19, "{pools}");
    // A client that was just closed may still be counted.
    assert!(!pools.lines().next().expect("a line").ends_with("clients: 0"), "{pools}");
    let without = start_server("");
    assert!(without.run("DEBUG CLIENT-EVICTION").is_error("ERR maxmemory-clients is disabled."));
    assert!(without.run("DEBUG CLUSTERLINK KILL all abc").is_error("ERR Debug option only available"));
    run_commands(&node, &["DEBUG PAUSE-CRON 1", "DEBUG PAUSE-CRON 0", "DEBUG AOF-FLUSH-SLEEP 0"]);
}

/// A node that drops all bus packets marks the other nodes as failed. A node reopens links that DEBUG has closed.
#[test]
fn debug_commands_break_cluster_links() {
    let mut nodes: Vec<Node> =
        (0..3).map(|_| Node::prepare(&Program::redoubt(), "--cluster-enabled yes")).collect();
    for node in &mut nodes {
        node.add_options("--save  --enable-debug-command yes --cluster-node-timeout 1000");
        node.launch();
    }
    let cluster = Cluster::join_nodes(nodes, 3);
    cluster.wait_until_ok();
    let node = &cluster.nodes[0];
    let field = |name: &str| cluster_info_field(&mut node.connect(), name);
    let created = |node: &Node| format!("{:?}", node.run("CLUSTER LINKS"));
    let before = created(node);
    let other = cluster.node_id(1);
    node.run(&format!("DEBUG CLUSTERLINK KILL all {other}")).expect_ok();
    eventually("the links are reopened", || {
        let now = created(node);
        (now != before && now.matches("create-time").count() == 4).then_some(())
    });
    assert!(node.run(&format!("DEBUG CLUSTERLINK KILL all {}", "0".repeat(40))).is_error("ERR Unknown node"));
    node.run("DEBUG DROP-CLUSTER-PACKET-FILTER -2").expect_ok();
    eventually("the other nodes are marked as failed", || (field("cluster_state")? == "fail").then_some(()));
    node.run("DEBUG DROP-CLUSTER-PACKET-FILTER -1").expect_ok();
    eventually("the other nodes are reachable again", || (field("cluster_state")? == "ok").then_some(()));
}

/// `enable-debug-command local` allows connections from the loopback address only.
#[test]
fn enable_debug_command_local_allows_loopback_clients() {
    let node = Node::start(&Program::redoubt(), "--save  --enable-debug-command local");
    let mut connection: Connection = node.connect();
    for line in
        ["DEBUG JMAP", "DEBUG DICT-RESIZING 0", "DEBUG SET-DISABLE-DENY-SCRIPTS 1", "DEBUG LOG message"]
    {
        let reply = connection.call_line(line);
        let unknown = "ERR unknown subcommand or wrong number of arguments for 'JMAP'. Try DEBUG HELP.";
        assert!(
            line == "DEBUG JMAP" && reply.is_error(unknown) || reply == Reply::Simple("OK".into()),
            "{reply:?}"
        );
    }
    eventually("the log has it", || node.log().contains("DEBUG LOG: message").then_some(()));
}

/// A protected client that is killed stays in the list and keeps its connection, but is no longer served.
#[test]
fn client_kill_keeps_the_connection_of_a_protected_client() {
    let options = "--save  --enable-debug-command yes";
    let servers = [Some(start_server("")), Program::valkey().map(|valkey| Node::start(&valkey, options))];
    for server in servers.iter().flatten() {
        let (mut victim, mut killer) = (server.connect(), server.connect());
        let id = victim.call_line("CLIENT ID").int();
        killer.call_line(&format!("DEBUG PROTECT-CLIENT {id}")).expect_ok();
        assert_eq!(killer.call_line(&format!("CLIENT KILL ID {id}")).int(), 1);
        let line = killer.call_line(&format!("CLIENT LIST ID {id}")).text();
        assert!(line.contains(" flags=A "), "{line}");
        victim.send(&["PING"]).expect("the connection is open");
        victim.set_timeout(Duration::from_millis(300));
        assert!(victim.read().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
}

/// Redoubt knows every subcommand in Valkey's DEBUG HELP and returns Valkey's errors for invalid arguments.
#[test]
fn every_debug_subcommand_of_valkey_is_known() {
    let Some(valkey) = Program::valkey() else { return };
    let options = "--save  --enable-debug-command yes";
    let (ours, theirs) = (start_server(""), Node::start(&valkey, options));
    let names = |node: &Node| -> Vec<String> {
        let help = node.run("DEBUG HELP");
        let lines = help.items().iter().skip(1).map(Reply::text).filter(|line| !line.starts_with(' '));
        let name = |line: String| line.split(' ').next().unwrap_or_default().to_owned();
        lines.map(name).collect()
    };
    let known = names(&ours);
    let missing: Vec<String> = names(&theirs).into_iter().filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for line in [
        "PROTECT-CLIENT 9999",
        "PROTECT-CLIENT x",
        "protect-client",
        "SLOTMIGRATION PREVENT-PAUSE 1",
        "SLOTMIGRATION PREVENT-FAILOVER 0",
        "SLOTMIGRATION NOSUCH 1",
        "FORCE-FREE-PRIMARY-ASYNC 0",
        "DELAY-RDB-CLIENT-FREE-SECONDS 0",
        "HASHTABLE-CAN-ABORT-SHRINK 1",
        "CLIENT-ENFORCE-REPLY-LIST 0",
        "DISABLE-CLUSTER-RANDOM-PING 0",
        "REPLYBUFFER RESIZING 1",
        "REPLYBUFFER NOSUCH 1",
        "DICT-RESIZING 1",
        "SET-ACTIVE-EXPIRE 1",
        "HTSTATS-KEY nosuch",
        "LISTPACK nosuch",
        "QUICKLIST nosuch",
        "SDSLEN nosuch",
        "MALLCTL nosuch",
        "RELOAD NOSUCH",
        "JMAP",
    ] {
        let line = format!("DEBUG {line}");
        assert_eq!(ours.run(&line), theirs.run(&line), "{line}");
    }
}
