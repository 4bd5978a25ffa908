//! Tests of `redis-cli --cluster` as operators use it, on clusters with keys.

use harness::{
    Cluster, Connection, Node, Program, eventually, fill_cluster, find_lost_keys, redis_cli, run_to_end,
};
use std::path::PathBuf;
use std::process::Command;

/// Runs `redis-cli --cluster` and returns its output.
fn run_cluster_cli(arguments: &[&str]) -> String {
    redis_cli(&[&["--cluster"], arguments].concat()).unwrap_or_else(|output| {
        // The tool prints one line for each of thousands of slots, which would hide the rest of the output.
        let lines: Vec<&str> = output.lines().filter(|line| !line.contains("Moving slot")).collect();
        panic!("redis-cli --cluster {}:\n{}", arguments.join(" "), lines.join("\n"))
    })
}

/// Starts nodes with a long timeout, because syncing each moved slot to a busy disk must not cause a failover.
fn start_nodes(count: usize) -> Vec<Node> {
    let options = "--cluster-enabled yes --cluster-node-timeout 10000";
    (0..count).map(|_| Node::start(&Program::redoubt(), options)).collect()
}

/// Starts six empty nodes that redis-cli joins to a cluster; the tool chooses the replicas.
fn create_cluster() -> Cluster {
    let nodes = start_nodes(6);
    let addresses: Vec<String> = nodes.iter().map(Node::address).collect();
    let mut arguments = vec!["create"];
    arguments.extend(addresses.iter().map(String::as_str));
    arguments.extend(["--cluster-replicas", "1", "--cluster-yes"]);
    let output = run_cluster_cli(&arguments);
    assert!(output.contains("[OK] All 16384 slots covered."), "{output}");
    let cluster = Cluster { nodes, master_count: 3 };
    cluster.wait_until_ok();
    cluster.wait_until_synchronised();
    cluster
}

fn wait_for_clean_check(cluster: &Cluster) {
    // The changes of the last command must reach all nodes before the check succeeds.
    eventually("redis-cli --cluster check reports no problem", || {
        let output = redis_cli(&["--cluster", "check", &cluster.nodes[0].address()]).ok()?;
        (output.contains("[OK] All nodes agree about slots configuration.")
            && output.contains("[OK] All 16384 slots covered."))
        .then_some(())
    });
}

fn count_served_slots(cluster: &Cluster, node: usize) -> usize {
    let id = cluster.node_id(node);
    let nodes = cluster.nodes[0].run("CLUSTER NODES").text();
    let line = nodes.lines().find(|line| line.starts_with(&id)).expect("the node is known");
    line.split(' ')
        .skip(8)
        .filter(|range| !range.starts_with('['))
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            last.parse::<usize>().expect("a slot") + 1 - first.parse::<usize>().expect("a slot")
        })
        .sum()
}

#[test]
fn redis_cli_create_reshard_and_rebalance_keep_every_key() {
    let cluster = create_cluster();
    wait_for_clean_check(&cluster);
    let keys = fill_cluster(&cluster, "key", 20_000);
    let address = cluster.nodes[0].address();

    let (from, to) = (cluster.node_id(0), cluster.node_id(1));
    let before = count_served_slots(&cluster, 1);
    run_cluster_cli(&[
        "reshard",
        &address,
        "--cluster-from",
        &from,
        "--cluster-to",
        &to,
        "--cluster-slots",
        "400",
        "--cluster-yes",
    ]);
    wait_for_clean_check(&cluster);
    assert_eq!(count_served_slots(&cluster, 1), before + 400);
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    assert_eq!(cluster.key_count(), keys.len() as i64);

    run_cluster_cli(&["rebalance", &address, "--cluster-threshold", "1"]);
    wait_for_clean_check(&cluster);
    for master in 0..3 {
        let slots = count_served_slots(&cluster, master);
        assert!((5400..=5520).contains(&slots), "node {master} serves {slots} slots");
    }
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    assert_eq!(cluster.key_count(), keys.len() as i64);
    let info = run_cluster_cli(&["info", &address]);
    assert!(info.contains("[OK] 20000 keys in 3 masters."), "{info}");
    let called = run_cluster_cli(&["call", &address, "PING"]);
    assert_eq!(called.matches("PONG").count(), 6, "{called}");
}

#[test]
fn redis_cli_adds_rebalances_and_deletes_nodes() {
    let mut cluster = create_cluster();
    let keys = fill_cluster(&cluster, "key", 5000);
    let address = cluster.nodes[0].address();
    cluster.nodes.extend(start_nodes(2));
    let (master, replica) = (cluster.nodes[6].address(), cluster.nodes[7].address());

    run_cluster_cli(&["add-node", &master, &address]);
    cluster.nodes[7].run("PING");
    eventually("the others have met the new node", || {
        let nodes = cluster.nodes[1].run("CLUSTER NODES").text();
        (nodes.lines().filter(|line| !line.contains("handshake")).count() == 7).then_some(())
    });
    wait_for_clean_check(&cluster);
    let id = cluster.node_id(6);
    run_cluster_cli(&["add-node", &replica, &address, "--cluster-slave", "--cluster-master-id", &id]);
    cluster.wait_until_all_nodes_known();
    eventually("the new replica is linked", || {
        (cluster.nodes[7].info("replication", "master_link_status")? == "up").then_some(())
    });

    // A small weight gives the node about a fifteenth of the slots, which keeps the test short.
    let weight = format!("{id}=0.2");
    run_cluster_cli(&["rebalance", &address, "--cluster-use-empty-masters", "--cluster-weight", &weight]);
    wait_for_clean_check(&cluster);
    assert_eq!(count_served_slots(&cluster, 6), 1024);
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());

    let replica_id = cluster.node_id(7);
    run_cluster_cli(&["del-node", &address, &replica_id]);
    let weight = format!("{id}=0");
    run_cluster_cli(&["rebalance", &address, "--cluster-weight", &weight]);
    wait_for_clean_check(&cluster);
    run_cluster_cli(&["del-node", &address, &id]);
    eventually("the deleted nodes are forgotten", || {
        let nodes = cluster.nodes[2].run("CLUSTER NODES").text();
        (nodes.lines().count() == 6).then_some(())
    });
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
}

/// Valkey's tool lets the nodes move the slots: each range moves atomically.
#[test]
fn valkey_cli_moves_each_slot_range_atomically() {
    let Some(valkey) = Program::valkey() else { return };
    let cluster = create_cluster();
    let keys = fill_cluster(&cluster, "key", 5000);
    let (from, to) = (cluster.node_id(0), cluster.node_id(1));
    let before = count_served_slots(&cluster, 1);
    let mut reshard = Command::new(valkey.binary().with_file_name("valkey-cli"));
    reshard.args(["--cluster", "reshard", &cluster.nodes[0].address(), "--cluster-from", &from]);
    reshard.args(["--cluster-to", &to, "--cluster-slots", "400", "--cluster-yes"]);
    reshard.arg("--cluster-use-atomic-slot-migration");
    let (status, printed) = run_to_end(&mut reshard);
    assert!(status.success(), "{printed}");
    wait_for_clean_check(&cluster);
    assert_eq!(count_served_slots(&cluster, 1), before + 400);
    let moves = format!("{:?}", cluster.nodes[0].run("CLUSTER GETSLOTMIGRATIONS"));
    assert!(moves.contains("success"), "{moves}");
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    assert_eq!(cluster.key_count(), keys.len() as i64);
}

/// `set-timeout` sets the parameter on every node and rewrites its configuration file; `import` fetches the data of a
/// server outside of the cluster; `backup` saves the masters' data and a description of the cluster.
#[test]
fn redis_cli_sets_timeouts_imports_and_backs_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nodes: Vec<Node> = (0..3)
        .map(|number| {
            let mut node = Node::prepare(&Program::redoubt(), "");
            let file = folder.path().join(format!("{number}.conf"));
            std::fs::write(&file, "save \"\"\ncluster-enabled yes\ncluster-node-timeout 2000\n")
                .expect("a file");
            node.set_configuration(&file);
            node.launch();
            node
        })
        .collect();
    let cluster = Cluster::join_nodes(nodes, 3);
    cluster.wait_until_ok();
    let address = cluster.nodes[0].address();
    let output = run_cluster_cli(&["set-timeout", &address, "3000"]);
    assert!(output.contains("New node timeout set. 3 OK, 0 ERR."), "{output}");
    for (number, node) in cluster.nodes.iter().enumerate() {
        assert_eq!(node.run("CONFIG GET cluster-node-timeout").items()[1].text(), "3000");
        let file = std::fs::read_to_string(folder.path().join(format!("{number}.conf"))).expect("a file");
        assert!(file.contains("cluster-node-timeout 3000"), "{file}");
    }

    let outside = Node::start(&Program::redoubt(), "--save ");
    for number in 0..200 {
        outside.run(&format!("SET outside:{number} {number}")).expect_ok();
    }
    run_cluster_cli(&["import", &address, "--cluster-from", &outside.address()]);
    assert_eq!((cluster.key_count(), outside.run("DBSIZE").int()), (200, 0));

    let saved = folder.path().join("backup");
    std::fs::create_dir(&saved).expect("a folder");
    let output = run_cluster_cli(&["backup", &address, saved.to_str().expect("a plain path")]);
    assert!(output.contains("[OK] Backup created"), "{output}");
    let files = std::fs::read_dir(&saved).expect("the folder").count();
    assert_eq!(files, 4, "three masters and nodes.json");
}

/// `redis-cli --cluster check` finds a slot migration that was aborted halfway, and `fix` finishes it.
#[test]
fn cluster_fix_finishes_aborted_slot_migration() {
    let cluster = create_cluster();
    let keys = fill_cluster(&cluster, "key", 3000);
    let address = cluster.nodes[0].address();
    cluster.nodes[0].run(&format!("CLUSTER SETSLOT 100 MIGRATING {}", cluster.node_id(1))).expect_ok();
    cluster.nodes[1].run(&format!("CLUSTER SETSLOT 100 IMPORTING {}", cluster.node_id(0))).expect_ok();
    let found = match redis_cli(&["--cluster", "check", &address]) {
        Ok(output) | Err(output) => output,
    };
    assert!(found.contains("The following slots are open: 100"), "{found}");
    run_cluster_cli(&["fix", &address]);
    wait_for_clean_check(&cluster);
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
}

const STEP_FUNCTION_LIBRARY: &str =
    "#!lua name=steps\nredis.register_function('step', function() return 7 end)";

/// The tools of Redis and Valkey copy the functions of one server without its keys, and a Valkey server must load them.
#[test]
fn redis_cli_fetches_functions_without_keys() {
    let valkey = Program::valkey();
    let beside = |program: &Program| program.binary().with_file_name("valkey-cli");
    let tools = [Some(PathBuf::from("redis-cli")), valkey.as_ref().map(beside)];
    let source = Node::start(&Program::redoubt(), "--repl-diskless-sync-delay 0");
    source.run("SET key value").expect_ok();
    assert_eq!(source.connect().call(&["FUNCTION", "LOAD", STEP_FUNCTION_LIBRARY]).text(), "steps");
    for tool in tools.into_iter().flatten() {
        for program in [Some(Program::redoubt()), valkey.clone()].into_iter().flatten() {
            let mut target = Node::prepare(&program, "--dbfilename functions.rdb");
            let file = target.folder().join("functions.rdb");
            let mut fetch = Command::new(&tool);
            fetch.args(["-p", &source.port.to_string(), "--functions-rdb"]).arg(&file);
            let (status, printed) = run_to_end(&mut fetch);
            assert!(status.success(), "{printed}");
            target.launch();
            assert_eq!(target.run("FCALL step 0").int(), 7);
            assert_eq!(target.run("DBSIZE").int(), 0);
        }
    }
    // As in Valkey, a tool that does not announce support for it gets no functions-only snapshot, because the tool
    // could mistake it for a full one.
    let mut old = Connection::open(("127.0.0.1", source.port)).expect("it listens");
    old.call_line("REPLCONF rdb-filter-only functions").expect_ok();
    assert!(old.call_line("SYNC").is_error("ERR Filtered replica requires EOF capability"));
}
