//! Parameters of the cluster that say what a node does when something is wrong: each is seen to make the difference.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, cluster_field, eventually, never_within};

fn role(node: &Node) -> String {
    node.run("ROLE").items()[0].text()
}

fn set(node: &Node, parameter: &str, value: &str) {
    node.run(&format!("CONFIG SET {parameter} {value}")).expect_ok();
}

/// A replica that must not take over leaves its master's slots alone until it may.
#[test]
fn a_replica_with_cluster_replica_no_failover_stands_in_no_election() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    set(&cluster.nodes[3], "cluster-replica-no-failover", "yes");
    eventually("the others know", || {
        let nodes = cluster.nodes[1].run("CLUSTER NODES").text();
        nodes.lines().any(|line| line.contains("slave,nofailover")).then_some(())
    });
    cluster.nodes[0].kill();
    eventually("the replica's master has failed", || {
        let nodes = cluster.nodes[3].run("CLUSTER NODES").text();
        nodes.lines().any(|line| line.contains("master,fail ")).then_some(())
    });
    // A whole node timeout more than a replica needs that may stand.
    never_within(Duration::from_secs(2), "the replica takes over", || role(&cluster.nodes[3]) == "master");
    set(&cluster.nodes[3], "cluster-replica-no-failover", "no");
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
}

/// Data that is older than the factor allows is not good enough; with a factor of 0 any is.
#[test]
fn a_replica_whose_data_is_older_than_cluster_replica_validity_factor_allows_does_not_stand() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let replica = &cluster.nodes[3];
    set(replica, "cluster-replica-no-failover", "yes");
    set(replica, "cluster-replica-validity-factor", "1");
    set(replica, "repl-ping-replica-period", "1");
    cluster.nodes[0].kill();
    let replica = &cluster.nodes[3];
    let timeout = replica.run("CONFIG GET cluster-node-timeout").items()[1].text();
    let allowed = timeout.parse::<u64>().expect("milliseconds") / 1000 + 1;
    eventually("its data is older than that", || {
        let age = replica.info("replication", "master_link_down_since_seconds")?.parse::<u64>().ok()?;
        (age > allowed + 1).then_some(())
    });
    set(replica, "cluster-replica-no-failover", "no");
    let hindrance = "Currently unable to failover: Disconnected from primary for longer than allowed";
    eventually("the replica says why it does not stand", || replica.log().contains(hindrance).then_some(()));
    assert_eq!(role(replica), "slave");
    set(replica, "cluster-replica-validity-factor", "0");
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
}

/// The output that waits for a node that stands still is limited: its link is given up, which is counted, and all is
/// well again when it goes on.
#[test]
fn a_link_whose_output_is_over_cluster_link_sendbuf_limit_is_given_up() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let (sender, frozen) = (&cluster.nodes[0], &cluster.nodes[1]);
    let exceeded = |connection: &mut Connection| {
        cluster_field(connection, "total_cluster_links_buffer_limit_exceeded")?.parse::<u64>().ok()
    };
    let mut connection = sender.connect();
    assert_eq!(exceeded(&mut connection), Some(0));
    set(sender, "cluster-link-sendbuf-limit", "1000000");
    frozen.freeze();
    let message = "x".repeat(1 << 20);
    eventually("the link is given up", || {
        connection.call(&["PUBLISH", "channel", &message]);
        (exceeded(&mut connection)? > 0).then_some(())
    });
    frozen.thaw();
    cluster.wait_until_ok();
}
