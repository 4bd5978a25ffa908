//! Tests of client sessions: replicated functions, limits before authentication, and many connections at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Cluster, Connection, Node, Program, Reply, eventually, redis_cli};

const FUNCTION_LIBRARY: &str = "#!lua name=own\nredis.register_function{function_name='twice', flags={'no-writes'}, \
                       callback=function(keys, args) return tonumber(args[1]) * 2 end}";

fn load_library(node: &Node) {
    assert_eq!(node.connect().call(&["FUNCTION", "LOAD", FUNCTION_LIBRARY]).text(), "own");
}

fn call_function(node: &Node) -> Option<i64> {
    match node.try_connect().ok()?.try_call(&["FCALL", "twice", "0", "21"]).ok()? {
        Reply::Int(number) => Some(number),
        _ => None,
    }
}

#[test]
fn functions_are_replicated() {
    let master = Node::start(&Program::redoubt(), "--save ");
    load_library(&master);
    // The replica gets the function by a full resync, and its deletion by the replication stream.
    let replica = Node::start(&Program::redoubt(), "--save ");
    replica
        .run(&format!("REPLICAOF 127.0.0.1 {}", master.address().rsplit(':').next().expect("a port")))
        .expect_ok();
    eventually("the replica has the function", || (call_function(&replica)? == 42).then_some(()));
    master.run("FUNCTION DELETE own").expect_ok();
    eventually("the replica deletes the function", || {
        replica.run("FCALL twice 0 21").is_error("ERR Function not found").then_some(())
    });
}

#[test]
fn functions_survive_restarts() {
    for (options, before) in [
        ("--save 1000 1", "SAVE"),
        ("--appendonly yes --save ", "WAITAOF 1 0 5000"),
        ("--appendonly yes --save ", "BGREWRITEAOF"),
    ] {
        let mut node = Node::start(&Program::redoubt(), options);
        load_library(&node);
        node.run(before);
        eventually("a rewrite has ended", || {
            (node.info("persistence", "aof_rewrite_in_progress")? == "0"
                && node.info("persistence", "aof_rewrite_scheduled")? == "0")
                .then_some(())
        });
        node.run("WAITAOF 1 0 5000");
        node.kill();
        node.launch();
        assert_eq!(call_function(&node), Some(42), "{options} {before}");
    }
}

/// A node added by `redis-cli --cluster add-node` gets the functions of the cluster.
#[test]
fn added_cluster_node_gets_the_functions() {
    let nodes = (0..3).map(|_| Node::start_clustered(&Program::redoubt())).collect();
    let cluster = Cluster::join_nodes(nodes, 3);
    cluster.wait_until_ok();
    cluster.nodes.iter().for_each(load_library);
    let new = Node::start_clustered(&Program::redoubt());
    let (address, first) = (new.address(), cluster.nodes[0].address());
    redis_cli(&["--cluster", "add-node", &address, &first]).unwrap_or_else(|text| panic!("{text}"));
    let list = new.run("FUNCTION LIST");
    assert!(format!("{list:?}").contains("own"), "{list:?}");
}

/// Unauthenticated clients may only send short requests.
#[test]
fn unauthenticated_requests_are_limited() {
    for program in [Program::redoubt(), Program::redis()] {
        let node = Node::start(&program, "--save  --requirepass secret");
        for (request, error) in [
            ("*11\r\n", "ERR Protocol error: unauthenticated multibulk length"),
            ("*2\r\n$4\r\nECHO\r\n$16385\r\n", "ERR Protocol error: unauthenticated bulk length"),
        ] {
            let mut unauthenticated = node.connect();
            unauthenticated.send_raw(request.as_bytes()).expect("it reads");
            let reply = unauthenticated.read().expect("a reply");
            assert!(reply.is_error(error), "{}: {reply:?}", program.name());
            assert!(unauthenticated.read().is_err(), "the connection ends");
        }
        let mut authenticated = node.connect();
        authenticated.call_line("AUTH secret").expect_ok();
        assert_eq!(authenticated.call(&["ECHO", &"x".repeat(20_000)]).text().len(), 20_000);
    }
}

/// While thousands of clients connect, existing clients are served without delay, and all new clients are accepted.
#[test]
fn connection_storm_does_not_delay_existing_clients() {
    const NEW_CLIENT_COUNT: usize = 3000;
    let node = Node::start(&Program::redoubt(), "--save  --maxclients 10000 --io-threads 1");
    let mut there = node.connect();
    there.call_line("SET k v").expect_ok();
    let over = AtomicBool::new(false);
    let (slowest, connections) = std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let connections: Vec<Connection> =
                (0..NEW_CLIENT_COUNT).filter_map(|_| node.try_connect().ok()).collect();
            over.store(true, Ordering::Release);
            connections
        });
        let mut slowest = Duration::ZERO;
        while !over.load(Ordering::Acquire) {
            let asked = Instant::now();
            assert_eq!(there.call_line("GET k").text(), "v");
            slowest = slowest.max(asked.elapsed());
        }
        (slowest, storm.join().expect("it connects"))
    });
    assert_eq!(connections.len(), NEW_CLIENT_COUNT);
    eventually("all clients are accepted", || {
        (node.info("clients", "connected_clients")?.parse::<usize>().ok()? > NEW_CLIENT_COUNT).then_some(())
    });
    // On an idle machine, each reply takes less than a millisecond.
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
}
