//! Tests of cluster parameters that control a node's behavior in failures: each test shows the parameter's effect.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, cluster_info_field, eventually, never_within};

fn read_role(node: &Node) -> String {
    node.run("ROLE").items()[0].text()
}

fn set_parameter(node: &Node, parameter: &str, value: &str) {
    node.run(&format!("CONFIG SET {parameter} {value}")).expect_ok();
}

/// A replica with `cluster-replica-no-failover yes` does not claim its master's slots until the parameter is set to
/// `no`.
#[test]
fn replica_with_cluster_replica_no_failover_is_not_elected() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    set_parameter(&cluster.nodes[3], "cluster-replica-no-failover", "yes");
    eventually("the other nodes have received the change", || {
        let nodes = cluster.nodes[1].run("CLUSTER NODES").text();
        nodes.lines().any(|line| line.contains("slave,nofailover")).then_some(())
    });
    cluster.nodes[0].kill();
    eventually("the replica's master has failed", || {
        let nodes = cluster.nodes[3].run("CLUSTER NODES").text();
        nodes.lines().any(|line| line.contains("master,fail ")).then_some(())
    });
    // The period is a whole node timeout longer than an eligible replica needs.
    never_within(Duration::from_secs(2), "the replica takes over", || {
        read_role(&cluster.nodes[3]) == "master"
    });
    set_parameter(&cluster.nodes[3], "cluster-replica-no-failover", "no");
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
}

/// A replica with data older than the factor allows is not eligible; with a factor of 0 any age is accepted.
#[test]
fn replica_with_data_older_than_cluster_replica_validity_factor_is_not_elected() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let replica = &cluster.nodes[3];
    set_parameter(replica, "cluster-replica-no-failover", "yes");
    set_parameter(replica, "cluster-replica-validity-factor", "1");
    set_parameter(replica, "repl-ping-replica-period", "1");
    cluster.nodes[0].kill();
    let replica = &cluster.nodes[3];
    let timeout = replica.run("CONFIG GET cluster-node-timeout").items()[1].text();
    let allowed = timeout.parse::<u64>().expect("milliseconds") / 1000 + 1;
    eventually("its data is older than that", || {
        let age = replica.info("replication", "master_link_down_since_seconds")?.parse::<u64>().ok()?;
        (age > allowed + 1).then_some(())
    });
    set_parameter(replica, "cluster-replica-no-failover", "no");
    let hindrance = "Currently unable to failover: Disconnected from primary for longer than allowed";
    eventually("the replica logs why it is not eligible", || replica.log().contains(hindrance).then_some(()));
    assert_eq!(read_role(replica), "slave");
    set_parameter(replica, "cluster-replica-validity-factor", "0");
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
}

/// The send buffer for a frozen node is limited: the link is closed and counted, and the cluster recovers when the node
/// continues.
#[test]
fn link_over_cluster_link_sendbuf_limit_is_closed() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let (sender, frozen) = (&cluster.nodes[0], &cluster.nodes[1]);
    let exceeded = |connection: &mut Connection| {
        cluster_info_field(connection, "total_cluster_links_buffer_limit_exceeded")?.parse::<u64>().ok()
    };
    let mut connection = sender.connect();
    assert_eq!(exceeded(&mut connection), Some(0));
    set_parameter(sender, "cluster-link-sendbuf-limit", "1000000");
    frozen.freeze();
    let message = "x".repeat(1 << 20);
    eventually("the link is closed", || {
        connection.call(&["PUBLISH", "channel", &message]);
        (exceeded(&mut connection)? > 0).then_some(())
    });
    frozen.thaw();
    cluster.wait_until_ok();
}
