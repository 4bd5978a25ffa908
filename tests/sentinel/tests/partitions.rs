//! Tests of network partitions: each of three servers and three sentinels runs in its own network namespace.

use std::time::Duration;

use harness::{
    MASTER_NAME, Program, SentinelGroup, TestNetwork, eventually, field_map, never_within, value_or_skip,
};

/// The index of the master's host; servers have the first hosts, sentinels the others.
const MASTER_HOST: usize = 0;
const SERVER_HOSTS: [usize; 3] = [0, 1, 2];
const SENTINEL_HOSTS: [usize; 3] = [3, 4, 5];

/// How long to check that no failover happens. A failover takes less time.
const DOWN_AFTER_MARGIN: Duration = Duration::from_secs(3);

/// Starts a group on a simulated network. Returns `None`, with a message, if the system does not permit that.
fn start_group() -> Option<(SentinelGroup, TestNetwork)> {
    let network = value_or_skip("hosts of a network", TestNetwork::create(6))?;
    let redoubt: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    let group = SentinelGroup::start_on(&network, &Program::redoubt(), &redoubt);
    group.shorten_timeouts();
    Some((group, network))
}

fn server_role(group: &SentinelGroup, server: usize) -> String {
    group.servers[server].info("replication", "role").expect("a server says what it is")
}

fn sees_master_down(group: &SentinelGroup, sentinel: usize) -> bool {
    let fields = field_map(&group.sentinels[sentinel].run(&format!("SENTINEL MASTER {MASTER_NAME}")));
    fields["flags"].contains("s_down")
}

/// Waits until these sentinels agree on a master other than the first one, and returns its index.
fn wait_for_successor(group: &SentinelGroup, sentinels: &[usize]) -> usize {
    eventually("those who can have another master", || {
        let ports: Vec<u16> = sentinels.iter().map(|&sentinel| group.master_port(sentinel)).collect();
        let server = group.servers.iter().position(|node| node.port == ports[0])?;
        (server != MASTER_HOST && ports.iter().all(|port| *port == ports[0])).then_some(server)
    })
}

/// Checks that all sentinels report the same master, that the other servers replicate from it, and that no other server
/// is a master.
fn assert_agreement(group: &SentinelGroup, master: usize) {
    eventually("all sentinels agree", || (group.wait_for_master() == master).then_some(()));
    group.wait_until_healthy();
    for server in SERVER_HOSTS {
        assert_eq!(server_role(group, server) == "master", server == master, "server {server}");
    }
}

/// The isolated master is replaced, and becomes a replica when it is reachable again.
#[test]
fn isolated_master_is_replaced() {
    let Some((group, network)) = start_group() else { return };
    network.partition(&[&[MASTER_HOST]]);
    let new = wait_for_successor(&group, &[0, 1, 2]);
    assert_eq!(server_role(&group, MASTER_HOST), "master", "it cannot know");
    network.heal_partition();
    assert_agreement(&group, new);
}

/// An isolated sentinel considers the master down but cannot replace it. After the partition it learns about the
/// failover that it missed.
#[test]
fn isolated_sentinel_does_not_fail_over() {
    let Some((mut group, network)) = start_group() else { return };
    network.partition(&[&[SENTINEL_HOSTS[0]]]);
    eventually("it takes the master for down", || sees_master_down(&group, 0).then_some(()));
    never_within(DOWN_AFTER_MARGIN, "something was promoted", || {
        (1..3).any(|server| server_role(&group, server) == "master")
            || group.master_port(1) != group.servers[0].port
    });
    network.heal_partition();
    assert_agreement(&group, MASTER_HOST);

    network.partition(&[&[SENTINEL_HOSTS[0]]]);
    group.servers[MASTER_HOST].kill();
    let new = wait_for_successor(&group, &[1, 2]);
    assert_eq!(group.master_port(0), group.servers[MASTER_HOST].port, "it cannot know");
    network.heal_partition();
    group.servers[MASTER_HOST].launch();
    assert_agreement(&group, new);
}

/// One sentinel can reach the master and a replica; two sentinels can reach the other replica. Only the majority fails
/// over, and the single sentinel follows when the partition ends.
#[test]
fn master_in_the_minority_is_replaced() {
    let Some((group, network)) = start_group() else { return };
    network.partition(&[&[0, 1, SENTINEL_HOSTS[0]], &[2, SENTINEL_HOSTS[1], SENTINEL_HOSTS[2]]]);
    let new = wait_for_successor(&group, &[1, 2]);
    assert_eq!(new, 2, "the only one in reach");
    assert_eq!(group.master_port(0), group.servers[0].port);
    assert_eq!(server_role(&group, 1), "slave");
    network.heal_partition();
    assert_agreement(&group, new);
}

/// The master can reach two sentinels. The third sentinel can reach a replica, but cannot fail over without a majority.
#[test]
fn master_in_the_majority_is_not_replaced() {
    let Some((group, network)) = start_group() else { return };
    network.partition(&[&[0, 1, SENTINEL_HOSTS[0], SENTINEL_HOSTS[1]], &[2, SENTINEL_HOSTS[2]]]);
    eventually("the one takes the master for down", || sees_master_down(&group, 2).then_some(()));
    never_within(DOWN_AFTER_MARGIN, "a minority promoted a replica", || server_role(&group, 2) == "master");
    assert!((0..3).all(|sentinel| group.master_port(sentinel) == group.servers[0].port));
    network.heal_partition();
    assert_agreement(&group, MASTER_HOST);
}

/// Only packets from the master are lost. The sentinels receive nothing from it, so it is replaced.
#[test]
fn master_whose_packets_are_lost_is_replaced() {
    let Some((group, network)) = start_group() else { return };
    network.drop_packets(MASTER_HOST, &[1, 2, 3, 4, 5]);
    let new = wait_for_successor(&group, &[0, 1, 2]);
    network.heal_partition();
    assert_agreement(&group, new);
}

/// Only one sentinel cannot reach the master, which is not enough for the quorum.
#[test]
fn master_unreachable_for_one_sentinel_is_not_replaced() {
    let Some((group, network)) = start_group() else { return };
    network.drop_packets(MASTER_HOST, &[SENTINEL_HOSTS[2]]);
    eventually("the one takes the master for down", || sees_master_down(&group, 2).then_some(()));
    never_within(DOWN_AFTER_MARGIN, "one sentinel had its way", || {
        (0..3).any(|sentinel| group.master_port(sentinel) != group.servers[0].port)
    });
    network.heal_partition();
    eventually("the one takes the master for up", || (!sees_master_down(&group, 2)).then_some(()));
    assert_agreement(&group, MASTER_HOST);
}
