//! A master that is started again at once, without its data: one of its replicas takes its place, whatever kind it is.

use harness::{Cluster, Node, Program, Value, eventually, fill, lost};

/// Kills a node, removes its saved data, and starts it again before another node could have missed it.
fn restart_empty(node: &mut Node) {
    node.kill();
    // It may have saved nothing.
    let _ = std::fs::remove_file(node.folder().join("dump.rdb"));
    let _ = std::fs::remove_dir_all(node.folder().join("appendonlydir"));
    node.launch();
}

/// The keys survive the restart of the first master, whose replica is the last node.
fn keeps_the_keys(mut cluster: Cluster) {
    let replica = cluster.nodes.len() - 1;
    cluster.wait_until_all_see_replica(replica, 0);
    let keys = fill(&cluster, "key", 2000);
    cluster.wait_until_synchronised();
    let expected = cluster.nodes[replica].run("DBSIZE");
    assert!(expected.int() > 0);
    restart_empty(&mut cluster.nodes[0]);
    cluster.wait_for_owner(0, |port| port == cluster.nodes[replica].port);
    cluster.wait_until_ok();
    assert_eq!(lost(&cluster, &keys), Vec::<String>::new());
    eventually("the old master follows and has everything", || {
        let link = cluster.nodes[0].info("replication", "master_link_status")?;
        (link == "up" && cluster.nodes[0].run("DBSIZE") == expected).then_some(())
    });
}

fn with_replica(masters: [&Program; 3], replica: &Program) -> Cluster {
    let nodes = masters.into_iter().map(Node::start_clustered).collect();
    let mut cluster = Cluster::join(nodes, 3);
    cluster.nodes.push(Node::start_clustered(replica));
    cluster.nodes[3].run(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port)).expect_ok();
    cluster.wait_until_known();
    cluster.replicate(3, 0);
    cluster.wait_until_synchronised();
    cluster
}

#[test]
fn an_empty_master_gives_its_place_to_its_replica() {
    let program = Program::redoubt();
    keeps_the_keys(with_replica([&program; 3], &program));
}

#[test]
fn an_empty_master_gives_its_place_to_a_redis_by_the_votes_of_others() {
    let (redoubt, redis) = (Program::redoubt(), Program::redis());
    keeps_the_keys(with_replica([&redoubt, &redis, &redis], &redis));
}

#[test]
fn an_empty_master_among_masters_of_redis_gives_its_place_to_its_replica() {
    let (redoubt, redis) = (Program::redoubt(), Program::redis());
    keeps_the_keys(with_replica([&redoubt, &redis, &redis], &redoubt));
}

#[test]
fn with_the_rule_switched_off_an_empty_master_serves_and_is_copied() {
    let program = Program::redoubt();
    let mut cluster = with_replica([&program; 3], &program);
    fill(&cluster, "key", 300);
    cluster.wait_until_synchronised();
    // The others would take a slow start for a death.
    for node in &cluster.nodes {
        node.run("CONFIG SET empty-master-timeout 0 cluster-connect-refused-timeout 0").expect_ok();
    }
    cluster.nodes[0].add_options("--empty-master-timeout 0 --cluster-connect-refused-timeout 0");
    restart_empty(&mut cluster.nodes[0]);
    eventually("its replica has what it has", || {
        (cluster.nodes[3].run("DBSIZE") == Value::Int(0)).then_some(())
    });
    assert_eq!(cluster.nodes[0].run("DBSIZE").int(), 0);
}
