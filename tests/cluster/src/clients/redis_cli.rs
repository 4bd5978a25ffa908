//! `redis-cli --cluster` as operators use it, with keys in place.

use harness::{Cluster, Connection, Node, Program, eventually, fill, lost, redis_cli, run_to_end};
use std::path::PathBuf;
use std::process::Command;

/// Runs `redis-cli --cluster` and gives what it said.
fn cluster_cli(arguments: &[&str]) -> String {
    redis_cli(&[&["--cluster"], arguments].concat()).unwrap_or_else(|output| {
        // One line for each of thousands of slots says nothing.
        let lines: Vec<&str> = output.lines().filter(|line| !line.contains("Moving slot")).collect();
        panic!("redis-cli --cluster {}:\n{}", arguments.join(" "), lines.join("\n"))
    })
}

/// Nobody is to be failed over here: each slot that moves is synced, which a busy disk makes long.
fn started(count: usize) -> Vec<Node> {
    let options = "--cluster-enabled yes --cluster-node-timeout 10000";
    (0..count).map(|_| Node::start(&Program::redoubt(), options)).collect()
}

/// Six empty nodes, joined by redis-cli; it decides which nodes are replicas of which.
fn created() -> Cluster {
    let nodes = started(6);
    let addresses: Vec<String> = nodes.iter().map(Node::address).collect();
    let mut arguments = vec!["create"];
    arguments.extend(addresses.iter().map(String::as_str));
    arguments.extend(["--cluster-replicas", "1", "--cluster-yes"]);
    let output = cluster_cli(&arguments);
    assert!(output.contains("[OK] All 16384 slots covered."), "{output}");
    let cluster = Cluster { nodes, masters: 3 };
    cluster.wait_until_ok();
    cluster.wait_until_synchronised();
    cluster
}

fn check(cluster: &Cluster) {
    // The last command's changes have to reach all nodes before they agree.
    eventually("redis-cli --cluster check is content", || {
        let output = redis_cli(&["--cluster", "check", &cluster.nodes[0].address()]).ok()?;
        (output.contains("[OK] All nodes agree about slots configuration.")
            && output.contains("[OK] All 16384 slots covered."))
        .then_some(())
    });
}

fn slots_served(cluster: &Cluster, node: usize) -> usize {
    let id = cluster.id(node);
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
fn create_check_reshard_and_rebalance_keep_every_key() {
    let cluster = created();
    check(&cluster);
    let keys = fill(&cluster, "key", 20_000);
    let address = cluster.nodes[0].address();

    let (from, to) = (cluster.id(0), cluster.id(1));
    let before = slots_served(&cluster, 1);
    cluster_cli(&[
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
    check(&cluster);
    assert_eq!(slots_served(&cluster, 1), before + 400);
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());
    assert_eq!(cluster.key_count(), keys.len() as i64);

    cluster_cli(&["rebalance", &address, "--cluster-threshold", "1"]);
    check(&cluster);
    for master in 0..3 {
        let slots = slots_served(&cluster, master);
        assert!((5400..=5520).contains(&slots), "node {master} serves {slots} slots");
    }
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());
    assert_eq!(cluster.key_count(), keys.len() as i64);
    let info = cluster_cli(&["info", &address]);
    assert!(info.contains("[OK] 20000 keys in 3 masters."), "{info}");
    let called = cluster_cli(&["call", &address, "PING"]);
    assert_eq!(called.matches("PONG").count(), 6, "{called}");
}

#[test]
fn nodes_are_added_filled_emptied_and_deleted() {
    let mut cluster = created();
    let keys = fill(&cluster, "key", 5000);
    let address = cluster.nodes[0].address();
    cluster.nodes.extend(started(2));
    let (master, replica) = (cluster.nodes[6].address(), cluster.nodes[7].address());

    cluster_cli(&["add-node", &master, &address]);
    cluster.nodes[7].run("PING");
    eventually("the others have met the new node", || {
        let nodes = cluster.nodes[1].run("CLUSTER NODES").text();
        (nodes.lines().filter(|line| !line.contains("handshake")).count() == 7).then_some(())
    });
    check(&cluster);
    let id = cluster.id(6);
    cluster_cli(&["add-node", &replica, &address, "--cluster-slave", "--cluster-master-id", &id]);
    cluster.wait_until_known();
    eventually("the new replica is linked", || {
        (cluster.nodes[7].info("replication", "master_link_status")? == "up").then_some(())
    });

    // A fifteenth of what the three others have together, to be quick.
    let weight = format!("{id}=0.2");
    cluster_cli(&["rebalance", &address, "--cluster-use-empty-masters", "--cluster-weight", &weight]);
    check(&cluster);
    assert_eq!(slots_served(&cluster, 6), 1024);
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());

    let replica_id = cluster.id(7);
    cluster_cli(&["del-node", &address, &replica_id]);
    let weight = format!("{id}=0");
    cluster_cli(&["rebalance", &address, "--cluster-weight", &weight]);
    check(&cluster);
    cluster_cli(&["del-node", &address, &id]);
    eventually("the deleted nodes are forgotten", || {
        let nodes = cluster.nodes[2].run("CLUSTER NODES").text();
        (nodes.lines().count() == 6).then_some(())
    });
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());
}

/// Valkey's tool has slots moved by the nodes, each range in one piece.
#[test]
fn slots_are_resharded_in_one_piece() {
    let Some(valkey) = Program::valkey() else { return };
    let cluster = created();
    let keys = fill(&cluster, "key", 5000);
    let (from, to) = (cluster.id(0), cluster.id(1));
    let before = slots_served(&cluster, 1);
    let mut reshard = Command::new(valkey.binary().with_file_name("valkey-cli"));
    reshard.args(["--cluster", "reshard", &cluster.nodes[0].address(), "--cluster-from", &from]);
    reshard.args(["--cluster-to", &to, "--cluster-slots", "400", "--cluster-yes"]);
    reshard.arg("--cluster-use-atomic-slot-migration");
    let (status, printed) = run_to_end(&mut reshard);
    assert!(status.success(), "{printed}");
    check(&cluster);
    assert_eq!(slots_served(&cluster, 1), before + 400);
    let moves = format!("{:?}", cluster.nodes[0].run("CLUSTER GETSLOTMIGRATIONS"));
    assert!(moves.contains("success"), "{moves}");
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());
    assert_eq!(cluster.key_count(), keys.len() as i64);
}

/// `set-timeout` sets the parameter on every node and has it written into its file; `import` fetches what a server
/// outside holds; `backup` saves the masters' data beside a description of the cluster.
#[test]
fn timeouts_are_set_and_data_is_imported_and_backed_up() {
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
    let cluster = Cluster::join(nodes, 3);
    cluster.wait_until_ok();
    let address = cluster.nodes[0].address();
    let output = cluster_cli(&["set-timeout", &address, "3000"]);
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
    cluster_cli(&["import", &address, "--cluster-from", &outside.address()]);
    assert_eq!((cluster.key_count(), outside.run("DBSIZE").int()), (200, 0));

    let saved = folder.path().join("backup");
    std::fs::create_dir(&saved).expect("a folder");
    let output = cluster_cli(&["backup", &address, saved.to_str().expect("a plain path")]);
    assert!(output.contains("[OK] Backup created"), "{output}");
    let files = std::fs::read_dir(&saved).expect("the folder").count();
    assert_eq!(files, 4, "three masters and nodes.json");
}

/// A migration that was broken off half way is found by `check` and finished by `fix`.
#[test]
fn fix_closes_an_open_slot() {
    let cluster = created();
    let keys = fill(&cluster, "key", 3000);
    let address = cluster.nodes[0].address();
    cluster.nodes[0].run(&format!("CLUSTER SETSLOT 100 MIGRATING {}", cluster.id(1))).expect_ok();
    cluster.nodes[1].run(&format!("CLUSTER SETSLOT 100 IMPORTING {}", cluster.id(0))).expect_ok();
    let found = match redis_cli(&["--cluster", "check", &address]) {
        Ok(output) | Err(output) => output,
    };
    assert!(found.contains("The following slots are open: 100"), "{found}");
    cluster_cli(&["fix", &address]);
    check(&cluster);
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());
}

const LIBRARY: &str = "#!lua name=steps\nredis.register_function('step', function() return 7 end)";

/// An operator carries the functions from one server to another, without the keys: with Redis's tool and with Valkey's.
/// A Valkey loads the functions that they fetch, too.
#[test]
fn the_functions_alone_are_fetched() {
    let valkey = Program::valkey();
    let beside = |program: &Program| program.binary().with_file_name("valkey-cli");
    let tools = [Some(PathBuf::from("redis-cli")), valkey.as_ref().map(beside)];
    let source = Node::start(&Program::redoubt(), "--repl-diskless-sync-delay 0");
    source.run("SET key value").expect_ok();
    assert_eq!(source.connect().call(&["FUNCTION", "LOAD", LIBRARY]).text(), "steps");
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
    // As Valkey: part of a snapshot is not given to a tool that could take it for the whole.
    let mut old = Connection::open(("127.0.0.1", source.port)).expect("it listens");
    old.run("REPLCONF rdb-filter-only functions").expect_ok();
    assert!(old.run("SYNC").is_error("ERR Filtered replica requires EOF capability"));
}
