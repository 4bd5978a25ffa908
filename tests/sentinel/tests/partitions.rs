//! Network partitions: three servers and three sentinels in network namespaces of their own.

use std::time::Duration;

use harness::{Group, MASTER, Network, Program, eventually, field_map, never_within, permitted};

/// The hosts: servers first, then sentinels.
const MASTER_HOST: usize = 0;
const SERVERS: [usize; 3] = [0, 1, 2];
const SENTINELS: [usize; 3] = [3, 4, 5];

/// Exceeds the duration of a failover.
const LONG: Duration = Duration::from_secs(3);

/// Starts a group on a simulated network. Returns `None`, with a message, if the system does not permit that.
fn group() -> Option<(Group, Network)> {
    let network = permitted("hosts of a network", Network::make(6))?;
    let redoubt: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    let group = Group::start_on(&network, &Program::redoubt(), &redoubt);
    group.shorten_timeouts();
    Some((group, network))
}

fn role(group: &Group, server: usize) -> String {
    group.servers[server].info("replication", "role").expect("a server says what it is")
}

fn is_down_for(group: &Group, sentinel: usize) -> bool {
    let fields = field_map(&group.sentinels[sentinel].run(&format!("SENTINEL MASTER {MASTER}")));
    fields["flags"].contains("s_down")
}

/// Waits until these sentinels agree on a master other than the first, and returns it.
fn successor(group: &Group, sentinels: &[usize]) -> usize {
    eventually("those who can have another master", || {
        let ports: Vec<u16> = sentinels.iter().map(|&sentinel| group.master_port(sentinel)).collect();
        let server = group.servers.iter().position(|node| node.port == ports[0])?;
        (server != MASTER_HOST && ports.iter().all(|port| *port == ports[0])).then_some(server)
    })
}

/// Checks that all sentinels report the same master, that the others replicate from it, and that it is the only master.
fn agrees(group: &Group, master: usize) {
    eventually("all sentinels agree", || (group.master() == master).then_some(()));
    group.wait_until_whole();
    for server in SERVERS {
        assert_eq!(role(group, server) == "master", server == master, "server {server}");
    }
}

/// The isolated master is replaced, and becomes a replica when it is reachable again.
#[test]
fn isolated_master_is_replaced() {
    let Some((group, network)) = group() else { return };
    network.split(&[&[MASTER_HOST]]);
    let new = successor(&group, &[0, 1, 2]);
    assert_eq!(role(&group, MASTER_HOST), "master", "it cannot know");
    network.heal();
    agrees(&group, new);
}

/// An isolated sentinel considers the master down but cannot replace it. After the partition it learns about the
/// failover that it missed.
#[test]
fn isolated_sentinel_does_not_fail_over() {
    let Some((mut group, network)) = group() else { return };
    network.split(&[&[SENTINELS[0]]]);
    eventually("it takes the master for down", || is_down_for(&group, 0).then_some(()));
    never_within(LONG, "something was promoted", || {
        (1..3).any(|server| role(&group, server) == "master") || group.master_port(1) != group.servers[0].port
    });
    network.heal();
    agrees(&group, MASTER_HOST);

    network.split(&[&[SENTINELS[0]]]);
    group.servers[MASTER_HOST].kill();
    let new = successor(&group, &[1, 2]);
    assert_eq!(group.master_port(0), group.servers[MASTER_HOST].port, "it cannot know");
    network.heal();
    group.servers[MASTER_HOST].launch();
    agrees(&group, new);
}

/// One sentinel is with the master and a replica, two are with the other replica. Only the majority fails over, and the
/// single sentinel follows when the partition ends.
#[test]
fn master_in_the_minority_is_replaced() {
    let Some((group, network)) = group() else { return };
    network.split(&[&[0, 1, SENTINELS[0]], &[2, SENTINELS[1], SENTINELS[2]]]);
    let new = successor(&group, &[1, 2]);
    assert_eq!(new, 2, "the only one in reach");
    assert_eq!(group.master_port(0), group.servers[0].port);
    assert_eq!(role(&group, 1), "slave");
    network.heal();
    agrees(&group, new);
}

/// One sentinel is with a replica, two are with the master. The single sentinel has a replica but no majority.
#[test]
fn master_in_the_majority_is_not_replaced() {
    let Some((group, network)) = group() else { return };
    network.split(&[&[0, 1, SENTINELS[0], SENTINELS[1]], &[2, SENTINELS[2]]]);
    eventually("the one takes the master for down", || is_down_for(&group, 2).then_some(()));
    never_within(LONG, "a minority promoted a replica", || role(&group, 2) == "master");
    assert!((0..3).all(|sentinel| group.master_port(sentinel) == group.servers[0].port));
    network.heal();
    agrees(&group, MASTER_HOST);
}

/// Only packets from the master are lost. It is silent, so it is replaced.
#[test]
fn master_whose_packets_are_lost_is_replaced() {
    let Some((group, network)) = group() else { return };
    network.lose(MASTER_HOST, &[1, 2, 3, 4, 5]);
    let new = successor(&group, &[0, 1, 2]);
    network.heal();
    agrees(&group, new);
}

/// Only one sentinel cannot reach the master, which is not enough for the quorum.
#[test]
fn master_unreachable_for_one_sentinel_is_not_replaced() {
    let Some((group, network)) = group() else { return };
    network.lose(MASTER_HOST, &[SENTINELS[2]]);
    eventually("the one takes the master for down", || is_down_for(&group, 2).then_some(()));
    never_within(LONG, "one sentinel had its way", || {
        (0..3).any(|sentinel| group.master_port(sentinel) != group.servers[0].port)
    });
    network.heal();
    eventually("the one takes the master for up", || (!is_down_for(&group, 2)).then_some(()));
    agrees(&group, MASTER_HOST);
}
