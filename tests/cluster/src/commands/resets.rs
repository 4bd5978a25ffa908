//! Tests of CLUSTER RESET: a reset node deletes its data, and so do its replicas.

use harness::{Cluster, Node, Program, Reply, eventually, fill_cluster};

fn count_keys(node: &Node) -> i64 {
    node.run("DBSIZE").int()
}

/// The bug: the replica continued by partial resync with data that the reset node had deleted.
#[test]
fn replica_of_reset_node_resyncs_to_empty_dataset() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 2);
    fill_cluster(&cluster, "key", 300);
    cluster.wait_until_synchronised();
    let (reset, sibling) = (&cluster.nodes[3], &cluster.nodes[6]);
    assert!(count_keys(reset) > 50 && count_keys(reset) == count_keys(sibling));

    reset.run("CLUSTER RESET SOFT").expect_ok();
    assert_eq!(count_keys(reset), 0);
    reset.run(&format!("CLUSTER MEET 127.0.0.1 {}", cluster.nodes[0].port)).expect_ok();
    let id = cluster.node_id(3);
    eventually("its sibling follows it", || {
        let replicates = sibling.run(&format!("CLUSTER REPLICATE {id}"));
        (replicates == Reply::Simple("OK".into())).then_some(())
    });
    eventually("they have equal offsets", || {
        let role = sibling.run("ROLE");
        let is_there =
            role.items()[2].int() == i64::from(reset.port) && role.items()[3].text() == "connected";
        is_there.then_some(())
    });
    assert_eq!(count_keys(sibling), 0);
}

#[test]
fn aof_of_reset_node_is_empty() {
    let mut node = Node::start(&Program::redoubt(), "--cluster-enabled yes --appendonly yes");
    let mut master = Node::start(&Program::redoubt(), "--cluster-enabled yes");
    master.run("CLUSTER ADDSLOTSRANGE 0 16383").expect_ok();
    eventually("it serves", || (master.run("SET key value") == Reply::Simple("OK".into())).then_some(()));
    node.run(&format!("CLUSTER MEET 127.0.0.1 {}", master.port)).expect_ok();
    let id = master.run("CLUSTER MYID").text();
    eventually("it follows", || {
        let replicates = node.run(&format!("CLUSTER REPLICATE {id}"));
        (replicates == Reply::Simple("OK".into())).then_some(())
    });
    eventually("it has the key", || (node.run("DBSIZE") == Reply::Int(1)).then_some(()));
    let rewrites = |node: &Node| node.info("persistence", "aof_rewrites")?.parse::<u64>().ok();
    let before = eventually("its file begins with that", || {
        let is_done = node.info("persistence", "aof_rewrite_in_progress")? == "0";
        rewrites(&node).filter(|rewrites| is_done && *rewrites > 1)
    });
    node.run("CLUSTER RESET SOFT").expect_ok();
    master.kill();
    eventually("its file begins anew", || {
        (rewrites(&node)? > before && node.info("persistence", "aof_rewrite_in_progress")? == "0")
            .then_some(())
    });
    node.kill();
    node.launch();
    eventually("it is loaded", || (node.info("persistence", "loading")? == "0").then_some(()));
    assert_eq!(count_keys(&node), 0);
}
