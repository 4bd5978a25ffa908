//! Tests of clusters in which Redoubt and Redis nodes share the bus and shards, and vote for each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, eventually, fill_cluster, find_lost_keys};

/// Starts three masters that run one program; a node that runs another program joins by MEET and replicates the first
/// master.
fn join_mixed_cluster(master_program: &Program, newcomer_program: &Program) -> Cluster {
    let nodes = (0..3).map(|_| Node::start_clustered(master_program)).collect();
    let mut cluster = Cluster::join_nodes(nodes, 3);
    cluster.nodes.push(Node::start_clustered(newcomer_program));
    cluster.nodes[3].run(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port)).expect_ok();
    cluster.wait_until_all_nodes_known();
    cluster
}

fn replicate_and_wait(cluster: &Cluster) {
    cluster.make_replica(3, 0);
    cluster.wait_until_synchronised();
    cluster.wait_until_replica_is_known(3, 0);
}

/// The new node replicates the first master, is elected by the other two masters when the first dies, serves every key,
/// and gets the old master back as its replica.
fn assert_newcomer_takes_over(master_program: &Program, newcomer_program: &Program) {
    let mut cluster = join_mixed_cluster(master_program, newcomer_program);
    let before = fill_cluster(&cluster, "before", 3000);
    replicate_and_wait(&cluster);
    let after = fill_cluster(&cluster, "after", 3000);
    let expected = cluster.nodes[0].run("DBSIZE");
    assert_eq!(cluster.nodes[3].run("DBSIZE"), expected);

    cluster.nodes[0].kill();
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
    cluster.wait_until_ok();
    assert_eq!(find_lost_keys(&cluster, &before), Vec::<String>::new());
    assert_eq!(find_lost_keys(&cluster, &after), Vec::<String>::new());
    fill_cluster(&cluster, "promoted", 1000);
    let expected = cluster.nodes[3].run("DBSIZE");

    cluster.nodes[0].launch();
    eventually("the old master replicates its successor", || {
        let link = cluster.nodes[0].info("replication", "master_link_status")?;
        (link == "up" && cluster.nodes[0].run("DBSIZE") == expected).then_some(())
    });
    cluster.wait_until_ok();
}

/// Fails over manually between nodes of the two programs, in both directions.
fn fail_over_and_back(master_program: &Program, newcomer_program: &Program) {
    let cluster = join_mixed_cluster(master_program, newcomer_program);
    replicate_and_wait(&cluster);
    let keys = fill_cluster(&cluster, "key", 1000);
    for (new, old) in [(3, 0), (0, 3)] {
        cluster.nodes[new].run("CLUSTER FAILOVER").expect_ok();
        cluster.wait_for_owner(0, |port| port == cluster.nodes[new].port);
        eventually("the old master is a replica", || {
            (cluster.nodes[old].info("replication", "master_link_status")? == "up").then_some(())
        });
        cluster.wait_until_replica_is_known(old, new);
        assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    }
}

/// Writes keys one by one on whichever node accepts them until `stop` is set. Returns the keys that WAIT confirmed on a
/// replica.
fn start_writer(should_stop: &AtomicBool, ports: &[u16]) -> Vec<String> {
    let mut replicated = Vec::new();
    let mut open: Vec<Option<Connection>> = ports.iter().map(|_| None).collect();
    for number in 0.. {
        if should_stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("load:{number}");
        for (port, kept) in ports.iter().zip(&mut open) {
            let Some(mut connection) = kept.take().or_else(|| {
                let mut connection = Connection::open(("127.0.0.1", *port)).ok()?;
                connection.set_timeout(Duration::from_secs(2));
                Some(connection)
            }) else {
                continue;
            };
            let Ok(reply) = connection.try_call(&["SET", &key, &key]) else { continue };
            let accepted = !matches!(reply, harness::Reply::Error(_));
            let copied =
                accepted && connection.try_call(&["WAIT", "1", "1000"]).is_ok_and(|reply| reply.int() >= 1);
            *kept = Some(connection);
            if copied {
                replicated.push(key.clone());
            }
            if accepted {
                break;
            }
        }
    }
    replicated
}

/// Stops the writer when it is dropped, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each master has a replica that runs the other program. Under load, whichever master dies, its replica takes over and
/// has every write that the replica had acknowledged.
#[test]
fn mixed_cluster_loses_no_replicated_write_when_masters_die_under_load() {
    let (redoubt, redis) = (Program::redoubt(), Program::redis());
    let kinds = [&redoubt, &redis, &redoubt, &redis, &redoubt, &redis];
    let mut cluster = Cluster::join_nodes(kinds.map(Node::start_clustered).into(), 3);
    for master in 0..3 {
        cluster.make_replica(master + 3, master);
    }
    cluster.wait_until_synchronised();
    for master in 0..3 {
        cluster.wait_until_replica_is_known(master + 3, master);
    }
    cluster.wait_until_ok();
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    let stop = AtomicBool::new(false);
    let replicated = std::thread::scope(|scope| {
        let writer = scope.spawn(|| start_writer(&stop, &ports));
        let stopped = StopOnDrop(&stop);
        for (master, slot) in [(0, 0), (1, 8000)] {
            cluster.nodes[master].kill();
            cluster.wait_for_owner(slot, |port| port == ports[master + 3]);
            cluster.wait_until_ok();
            cluster.nodes[master].launch();
            eventually("the old master is a replica", || {
                (cluster.nodes[master].info("replication", "master_link_status")? == "up").then_some(())
            });
            cluster.wait_until_ok();
        }
        drop(stopped);
        writer.join().expect("the writer does not fail")
    });
    assert!(replicated.len() > 100, "{} keys were replicated", replicated.len());
    assert_eq!(find_lost_keys(&cluster, &replicated), Vec::<String>::new());
}

/// Redis sends its announced hostname only to nodes that support the hostname extension.
#[test]
fn hostnames_are_exchanged_between_redoubt_and_redis() {
    let options = "--cluster-enabled yes --cluster-node-timeout 2000 --cluster-announce-hostname";
    let start = |program, name: &str| Node::start(program, &format!("{options} {name}"));
    let nodes = vec![start(&Program::redoubt(), "ours.example"), start(&Program::redis(), "theirs.example")];
    let cluster = Cluster::join_nodes(nodes, 2);
    for node in &cluster.nodes {
        eventually("both names are known", || {
            let nodes = node.run("CLUSTER NODES").text();
            (nodes.contains(",ours.example ") && nodes.contains(",theirs.example ")).then_some(())
        });
    }
    assert!(!cluster.nodes[1].log().contains("unknown extension"), "{}", cluster.nodes[1].log());
}

#[test]
fn redis_replica_takes_over_from_redoubt_master() {
    assert_newcomer_takes_over(&Program::redoubt(), &Program::redis());
}

#[test]
fn redoubt_replica_takes_over_from_redis_master() {
    assert_newcomer_takes_over(&Program::redis(), &Program::redoubt());
}

#[test]
fn manual_failover_from_redoubt_to_redis_and_back() {
    fail_over_and_back(&Program::redoubt(), &Program::redis());
}

#[test]
fn manual_failover_from_redis_to_redoubt_and_back() {
    fail_over_and_back(&Program::redis(), &Program::redoubt());
}
