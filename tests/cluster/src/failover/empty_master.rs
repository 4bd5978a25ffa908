//! A master that restarts at once without its data is replaced by one of its replicas, in Redoubt clusters and mixed
//! clusters.

use harness::{Cluster, Node, Program, Reply, eventually, fill_cluster, find_lost_keys};

/// Kills a node, removes its saved data, and restarts it before another node can notice.
fn restart_without_data(node: &mut Node) {
    node.kill();
    // The node may not have saved a file yet.
    let _ = std::fs::remove_file(node.folder().join("dump.rdb"));
    let _ = std::fs::remove_dir_all(node.folder().join("appendonlydir"));
    node.launch();
}

/// Asserts that all keys survive the restart of the first master, whose replica is the last node.
fn assert_keys_survive_restart(mut cluster: Cluster) {
    let replica = cluster.nodes.len() - 1;
    cluster.wait_until_replica_is_known(replica, 0);
    let keys = fill_cluster(&cluster, "key", 2000);
    cluster.wait_until_synchronised();
    let expected = cluster.nodes[replica].run("DBSIZE");
    assert!(expected.int() > 0);
    restart_without_data(&mut cluster.nodes[0]);
    cluster.wait_for_owner(0, |port| port == cluster.nodes[replica].port);
    cluster.wait_until_ok();
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    eventually("the old master replicates and has all data", || {
        let link = cluster.nodes[0].info("replication", "master_link_status")?;
        (link == "up" && cluster.nodes[0].run("DBSIZE") == expected).then_some(())
    });
}

fn start_cluster_with_replica(masters: [&Program; 3], replica: &Program) -> Cluster {
    let nodes = masters.into_iter().map(Node::start_clustered).collect();
    let mut cluster = Cluster::join_nodes(nodes, 3);
    cluster.nodes.push(Node::start_clustered(replica));
    cluster.nodes[3].run(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port)).expect_ok();
    cluster.wait_until_all_nodes_known();
    cluster.make_replica(3, 0);
    cluster.wait_until_synchronised();
    cluster
}

#[test]
fn empty_master_is_replaced_by_its_replica() {
    let program = Program::redoubt();
    assert_keys_survive_restart(start_cluster_with_replica([&program; 3], &program));
}

#[test]
fn empty_master_is_replaced_by_elected_redis_replica() {
    let (redoubt, redis) = (Program::redoubt(), Program::redis());
    assert_keys_survive_restart(start_cluster_with_replica([&redoubt, &redis, &redis], &redis));
}

#[test]
fn empty_master_in_redis_cluster_is_replaced_by_its_replica() {
    let (redoubt, redis) = (Program::redoubt(), Program::redis());
    assert_keys_survive_restart(start_cluster_with_replica([&redoubt, &redis, &redis], &redoubt));
}

#[test]
fn empty_master_keeps_role_with_empty_master_timeout_disabled() {
    let program = Program::redoubt();
    let mut cluster = start_cluster_with_replica([&program; 3], &program);
    fill_cluster(&cluster, "key", 300);
    cluster.wait_until_synchronised();
    // The other nodes would take a slow start for a failure.
    for node in &cluster.nodes {
        node.run("CONFIG SET empty-master-timeout 0 cluster-connect-refused-timeout 0").expect_ok();
    }
    cluster.nodes[0].add_options("--empty-master-timeout 0 --cluster-connect-refused-timeout 0");
    restart_without_data(&mut cluster.nodes[0]);
    eventually("its replica has what it has", || {
        (cluster.nodes[3].run("DBSIZE") == Reply::Int(0)).then_some(())
    });
    assert_eq!(cluster.nodes[0].run("DBSIZE").int(), 0);
}
