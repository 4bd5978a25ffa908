//! Checks that the log contains the phrases that people and tools search for. The same scenario runs on Redoubt and
//! Valkey, and both logs must contain the phrases.
//!
//! Redoubt writes "primary" where Valkey does.

use std::fs::{self, OpenOptions};
use std::io::Write;

use harness::{Cluster, Node, Program, Reply, eventually, slot_owner};
use rustix::process::{Pid, Signal, kill_process};

/// The phrases expected in the log of each part of the scenario.
const SERVER_PHRASES: &[(&str, &[&str])] = &[
    (
        "the master",
        &[
            "is starting",
            "just started",
            "Configuration loaded",
            "Running mode=standalone, port=",
            "Server initialized",
            "Ready to accept connections tcp",
            "Replica 127.0.0.1:",
            "asks for synchronization",
            "Full resync requested by replica 127.0.0.1:",
            "Starting BGSAVE for SYNC with target: replicas sockets using: normal sync",
            "Streamed RDB transfer with replica 127.0.0.1:",
            "Synchronization with replica 127.0.0.1:",
            "Connection with replica 127.0.0.1:",
            "Waiting for REPLCONF ACK from replica to enable streaming",
            "Partial resynchronization request from 127.0.0.1:",
            "of backlog starting from offset",
            "Background saving started",
            "DB saved on disk",
            "Background saving terminated with success",
            "Background append only file rewriting started",
            "Successfully renamed the temporary AOF base file",
            "Removing the history file",
            "Background AOF rewrite terminated with success",
            "Background AOF rewrite finished successfully",
            "Changing replication IDs after receiving DEBUG change-repl-id",
        ],
    ),
    (
        "the replica",
        &[
            "Connecting to PRIMARY 127.0.0.1:",
            "PRIMARY <-> REPLICA sync started",
            "Non blocking connect for SYNC fired the event.",
            "Partial resynchronization not possible (no cached primary)",
            "Full resync from primary: ",
            "PRIMARY <-> REPLICA sync: receiving streamed RDB from primary with EOF to disk",
            "PRIMARY <-> REPLICA sync: Loading DB in memory",
            "PRIMARY <-> REPLICA sync: Finished with success",
            "Connection with primary lost.",
            "Caching the disconnected primary state.",
            "Reconnecting to PRIMARY 127.0.0.1:",
            "Trying a partial resynchronization (request ",
            "Successful partial resynchronization with primary.",
            "PRIMARY <-> REPLICA sync: Primary accepted a Partial Resynchronization.",
            "PRIMARY aborted replication with an error: NOAUTH Authentication required.",
            "Unable to AUTH to PRIMARY: -",
            "Error condition on socket for SYNC: Connection refused",
            "REPLICAOF 127.0.0.1:",
            "enabled (user request from 'id=",
            "Before turning into a replica, using my own primary parameters to synthesize a cached primary",
            "PRIMARY MODE enabled (user request from 'id=",
            "Setting secondary replication ID to ",
            "Discarding previously cached primary state.",
            "User requested shutdown...",
            "Saving the final RDB snapshot before exiting.",
            "is now ready to exit, bye bye...",
        ],
    ),
    (
        "loading an append-only file",
        &[
            "Reading RDB base file on AOF loading...",
            "DB loaded from base file appendonly.aof",
            "DB loaded from append only file: ",
            "Opening AOF incr file appendonly.aof",
            "Received SIGTERM scheduling shutdown...",
            "User requested shutdown...",
            "Calling fsync() on the AOF file.",
            "is now ready to exit, bye bye...",
        ],
    ),
    (
        "loading a truncated append-only file",
        &[
            "!!! Warning: short read while loading the AOF file appendonly.aof",
            "!!! Truncating the AOF appendonly.aof",
            "loaded anyway because aof-load-truncated is enabled",
            "Received SIGINT scheduling shutdown...",
        ],
    ),
    ("loading a corrupt append-only file", &["Bad file format reading the append only file appendonly.aof"]),
    ("loading an RDB file", &["Done loading RDB, keys loaded: 1, keys expired: 0", "DB loaded from disk: "]),
    ("loading a truncated RDB file", &["Short read or OOM loading DB. Unrecoverable error, aborting now."]),
];

const CLUSTER_PHRASES: &[&str] = &[
    "No cluster configuration found, I'm ",
    "Node configuration loaded, I'm ",
    "Successfully completed handshake with ",
    "IP address for this node updated to ",
    "Cluster state changed: ok",
    "Manual failover user request accepted",
    "Manual failover requested by replica ",
    "Received replication offset for paused primary manual failover: ",
    "All primary replication stream processed, manual failover can start.",
    "Configuration change detected. Reconfiguring myself as a replica of ",
    "possibly failing",
    "as failing (quorum reached).",
    "FAIL message received from ",
    "Start of election delayed for ",
    "Starting a failover election for epoch ",
    "Failover auth granted to ",
    "Failover election won: I'm the new primary.",
    "configEpoch set to ",
    "after successful failover",
    "Clear FAIL state for node ",
];

/// Replaces Redoubt's terms in a phrase by Valkey's.
fn translate_to_valkey_terms(phrase: &str) -> String {
    phrase.replace("MASTER", "PRIMARY").replace("Master", "Primary").replace("master", "primary")
}

fn wait_for_field(node: &Node, section: &str, field: &str, value: &str) {
    eventually(&format!("{field} is {value}"), || {
        (node.info(section, field).as_deref() == Some(value)).then_some(())
    });
}

/// Breaks the replication link and waits until it is restored by a partial resync.
fn break_replication_link(master: &Node, replica: &Node) {
    let accepted = replica.log().matches("accepted a Partial Resynchronization").count();
    assert!(master.run("CLIENT KILL TYPE replica").int() > 0);
    eventually("the replica resumes by a partial resync", || {
        let now = replica.log().matches("accepted a Partial Resynchronization").count();
        (now > accepted).then_some(())
    });
    wait_for_field(replica, "replication", "master_link_status", "up");
}

/// Waits for a log line that contains the phrase in the terms of either server.
fn wait_for_line(node: &Node, phrase: &str) {
    eventually(&format!("the log has {phrase:?}"), || {
        let log = node.log();
        (log.contains(phrase) || log.contains(&translate_to_valkey_terms(phrase))).then_some(())
    });
}

/// Restarts the server with an empty log.
fn restart_with_empty_log(node: &mut Node, expects_exit: bool) {
    fs::write(node.folder().join("log"), "").expect("the log can be emptied");
    if expects_exit {
        node.spawn();
        eventually("the server exits", || node.has_exited().then_some(()));
    } else {
        node.launch();
    }
}

fn stop_with_signal(node: &mut Node, signal: Signal) {
    kill_process(Pid::from_raw(node.pid() as i32).expect("a pid"), signal).expect("it can be signalled");
    assert!(node.wait_for_exit_before_relaunch().success());
}

fn append_to_aof(node: &Node, bytes: &[u8]) {
    let files = fs::read_dir(node.folder().join("appendonlydir")).expect("a folder");
    let is_increment = |path: &std::path::PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let path = files.filter_map(|file| Some(file.ok()?.path())).find(is_increment).expect("an increment");
    let mut file = OpenOptions::new().append(true).open(path).expect("it can be written");
    file.write_all(bytes).expect("it can be written");
}

/// Runs a master and a replica through saves, rewrites, a broken link, a missing and a wrong password, and the death of
/// the master.
fn run_master_and_replica(program: &Program) -> (Node, Node) {
    let options = "--save  --appendonly yes --repl-diskless-sync-delay 0 --enable-debug-command yes";
    let mut master = Node::start(program, options);
    let replica = Node::start(program, &format!("--save  --replicaof 127.0.0.1 {}", master.port));
    wait_for_field(&replica, "replication", "master_link_status", "up");
    master.run("SET k v").expect_ok();
    master.run("BGSAVE");
    wait_for_line(&master, "Background saving terminated with success");
    let finished = |node: &Node| node.log().matches("Background AOF rewrite finished successfully").count();
    let before = finished(&master);
    master.run("BGREWRITEAOF");
    eventually("the rewrite ends", || (finished(&master) > before).then_some(()));
    break_replication_link(&master, &replica);
    master.run("CONFIG SET requirepass secret").expect_ok();
    let mut operator = master.connect();
    operator.call_line("AUTH secret").expect_ok();
    operator.call_line("CLIENT KILL TYPE replica");
    wait_for_line(&replica, "PRIMARY aborted replication with an error: NOAUTH Authentication required.");
    replica.run("CONFIG SET masterauth wrong").expect_ok();
    wait_for_line(&replica, "Unable to AUTH to PRIMARY: -");
    replica.run("CONFIG SET masterauth secret").expect_ok();
    wait_for_field(&replica, "replication", "master_link_status", "up");
    operator.call_line("DEBUG CHANGE-REPL-ID").expect_ok();
    operator.call_line("WAITAOF 1 0 10000");
    master.kill();
    wait_for_line(&replica, "Error condition on socket for SYNC: Connection refused");
    replica.run("REPLICAOF NO ONE").expect_ok();
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    (master, replica)
}

/// Runs the scenario and returns the logs of its parts.
fn run_server_scenario(program: &Program) -> Vec<(&'static str, String)> {
    let (mut master, mut replica) = run_master_and_replica(program);
    let mut logs = vec![("the master", master.log())];
    replica.connect().send(&["SHUTDOWN", "SAVE"]).expect("it reads");
    assert!(replica.wait_for_exit_before_relaunch().success());
    logs.push(("the replica", replica.log()));
    // The password was not written to the configuration, so the restarted master has none.
    restart_with_empty_log(&mut master, false);
    stop_with_signal(&mut master, Signal::TERM);
    logs.push(("loading an append-only file", master.log()));
    append_to_aof(&master, b"*3\r\n$3\r\nSET\r\n$1\r\na");
    restart_with_empty_log(&mut master, false);
    stop_with_signal(&mut master, Signal::INT);
    logs.push(("loading a truncated append-only file", master.log()));
    append_to_aof(&master, b"nonsense\r\n");
    restart_with_empty_log(&mut master, true);
    logs.push(("loading a corrupt append-only file", master.log()));
    let mut alone = Node::prepare(program, "--save ");
    fs::copy(replica.folder().join("dump.rdb"), alone.folder().join("dump.rdb")).expect("a copy");
    alone.launch();
    stop_with_signal(&mut alone, Signal::TERM);
    logs.push(("loading an RDB file", alone.log()));
    let whole = fs::read(alone.folder().join("dump.rdb")).expect("the file is there");
    fs::write(alone.folder().join("dump.rdb"), &whole[..whole.len() / 2]).expect("it can be cut");
    restart_with_empty_log(&mut alone, true);
    logs.push(("loading a truncated RDB file", alone.log()));
    logs
}

#[test]
fn server_log_has_the_phrases_that_tools_search_for() {
    let ours = run_server_scenario(&Program::redoubt());
    let theirs = Program::valkey().map(|program| run_server_scenario(&program));
    let log = |logs: &[(&str, String)], part: &str| {
        logs.iter().find(|(known, _)| *known == part).expect("a part").1.clone()
    };
    let mut missing = Vec::new();
    for (part, phrases) in SERVER_PHRASES {
        let (own, other) = (log(&ours, part), theirs.as_ref().map(|logs| log(logs, part)));
        for phrase in *phrases {
            if !own.contains(phrase) {
                missing.push(format!("{part}: {phrase}"));
            }
            if other.as_ref().is_some_and(|other| {
                !other.contains(phrase) && !other.contains(&translate_to_valkey_terms(phrase))
            }) {
                missing.push(format!("{part}, missing in Valkey too: {phrase}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Collects the logs of all cluster nodes during the creation of the cluster, a manual failover, and a failover from a
/// dead master.
fn run_cluster_scenario(program: &Program) -> String {
    let options = "--save  --cluster-enabled yes --cluster-node-timeout 1500 --repl-diskless-sync-delay 0";
    let nodes = (0..4).map(|_| Node::start(program, options)).collect();
    let mut cluster = Cluster::join_nodes(nodes, 3);
    cluster.wait_until_ok();
    cluster.wait_until_synchronised();
    let [master, replica] = [0, 3].map(|node| cluster.nodes[node].port);
    cluster.nodes[3].run("CLUSTER FAILOVER").expect_ok();
    cluster.wait_for_owner(0, |port| port == replica);
    wait_for_field(&cluster.nodes[0], "replication", "master_link_status", "up");
    // With refused connections, all nodes suspect the dead node at once and no FAIL message is needed. The timeout of 0
    // restores Valkey's behaviour; Valkey does not have this parameter.
    let _ = cluster.nodes[0].run("CONFIG SET cluster-connect-refused-timeout 0");
    cluster.nodes[3].kill();
    cluster.wait_for_owner(0, |port| port == master);
    cluster.nodes[3].launch();
    eventually("the nodes clear the FAIL flag", || {
        let is_clear = |node: &Node| node.log().contains("Clear FAIL state for node ");
        cluster.nodes[..3].iter().all(is_clear).then_some(())
    });
    cluster.nodes.iter().map(Node::log).collect()
}

/// Returns the phrases that none of up to three runs has logged. Several runs are needed, because the steps of a
/// failover depend on which node detects the failure first.
fn missing_phrases(program: &Program, log_contains: impl Fn(&str, &str) -> bool) -> Vec<&'static str> {
    let mut missing = CLUSTER_PHRASES.to_vec();
    for _ in 0..3 {
        let log = run_cluster_scenario(program);
        missing.retain(|phrase| !log_contains(&log, phrase));
        if missing.is_empty() {
            break;
        }
    }
    missing
}

#[test]
fn cluster_logs_have_every_step_of_a_failover() {
    let ours = missing_phrases(&Program::redoubt(), |log, phrase| log.contains(phrase));
    assert!(ours.is_empty(), "{ours:#?}");
    let contains_in_either_terms =
        |log: &str, phrase: &str| log.contains(phrase) || log.contains(&translate_to_valkey_terms(phrase));
    let theirs = Program::valkey()
        .map_or_else(Vec::new, |program| missing_phrases(&program, contains_in_either_terms));
    assert!(theirs.is_empty(), "missing in Valkey too: {theirs:#?}");
}

/// Phrases that are logged in unusual situations.
const UNUSUAL_PHRASES: &[&str] = &[
    "I'm a sub-replica! Reconfiguring myself as a replica of ",
    "PONG contains mismatching sender ID. About node ",
];

/// A replica learns either before or after it has scheduled its election that it has the best rank; timing decides
/// which phrase is logged.
const BEST_RANK_PHRASES: &[&str] = &[
    "This is the best ranked replica and can initiate the election immediately.",
    "Myself become the best ranked replica, initiate the election immediately.",
];

/// Starts three masters, two replicas of the first, and an empty master with a replica. The empty master becomes a
/// replica, so its replica becomes a sub-replica, which then resets its node id. Finally, the first master dies.
fn run_unusual_cluster_scenario(program: &Program) -> String {
    let options = "--save  --cluster-enabled yes --cluster-node-timeout 1500 --loglevel debug \
                   --repl-diskless-sync-delay 0";
    let mut nodes: Vec<Node> = (0..7).map(|_| Node::start(program, options)).collect();
    let (last, empty) = (nodes.pop().expect("seven"), nodes.pop().expect("seven"));
    let mut cluster = Cluster::join_nodes(nodes, 3);
    cluster.make_replica(4, 0);
    cluster.nodes.extend([empty, last]);
    for node in &cluster.nodes[5..] {
        node.run(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port)).expect_ok();
    }
    cluster.wait_until_all_nodes_known();
    cluster.make_replica(6, 5);
    for (replica, master) in [(6, 5), (4, 0), (3, 0)] {
        cluster.wait_until_replica_is_known(replica, master);
        wait_for_field(&cluster.nodes[replica], "replication", "master_link_status", "up");
    }
    cluster.make_replica(5, 1);
    wait_for_line(&cluster.nodes[6], UNUSUAL_PHRASES[0]);
    cluster.nodes[6].run("CLUSTER RESET HARD").expect_ok();
    eventually("a node learns the new node id", || {
        cluster.nodes[..6].iter().any(|node| node.log().contains(UNUSUAL_PHRASES[1])).then_some(())
    });
    let ports = [3, 4].map(|node| cluster.nodes[node].port);
    cluster.nodes[0].kill();
    // The reset node has left the cluster.
    eventually("a replica of the first takes over", || {
        ports.contains(&slot_owner(&mut cluster.nodes[1].connect(), 0)?).then_some(())
    });
    cluster.nodes.iter().map(Node::log).collect()
}

#[test]
fn cluster_logs_report_sub_replicas_changed_ids_and_best_ranks() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let is_ours = program.name() == Program::redoubt().name();
        let (mut missing, mut best) = (UNUSUAL_PHRASES.to_vec(), false);
        // Timing decides whether a replica of Valkey learns its rank in time. A replica of Redoubt learns it in one of
        // a few runs.
        for _ in 0..3 {
            let log = run_unusual_cluster_scenario(&program);
            missing.retain(|words| !log.contains(words));
            best |= BEST_RANK_PHRASES.iter().any(|words| log.contains(words));
            if missing.is_empty() && (best || !is_ours) {
                break;
            }
        }
        assert!(missing.is_empty(), "{}: {missing:?}", program.name());
        assert!(best || !is_ours, "no replica logged that it has the best rank");
    }
}

/// Failed authentications are not logged; `ACL LOG` and a counter record them.
#[test]
fn failed_authentications_are_counted() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let node = Node::start(&program, "--save  --requirepass secret");
        assert!(node.run("AUTH wrong").is_error("WRONGPASS"));
        let mut operator = node.connect();
        operator.call_line("AUTH secret").expect_ok();
        let log = operator.call_line("ACL LOG");
        let entry: Vec<String> = log.items()[0].items().iter().take(8).map(reply_text).collect();
        assert_eq!(entry.join(" "), "count 1 reason auth context toplevel object AUTH", "{}", program.name());
        let refused = harness::info_field(&mut operator, "stats", "acl_access_denied_auth");
        assert_eq!(refused.as_deref(), Some("1"), "{}", program.name());
    }
}

fn reply_text(value: &Reply) -> String {
    match value {
        Reply::Int(number) => number.to_string(),
        other => other.text(),
    }
}
