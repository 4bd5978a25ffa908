//! A network that is cut: hosts of their own for three servers and three sentinels, and what each side does.

use std::time::Duration;

use harness::{Group, MASTER, Network, Program, eventually, field_map, never_within, permitted};

/// The hosts: servers, then sentinels.
const MASTER_HOST: usize = 0;
const SERVERS: [usize; 3] = [0, 1, 2];
const SENTINELS: [usize; 3] = [3, 4, 5];

/// Longer than a failover takes.
const LONG: Duration = Duration::from_secs(3);

/// A group on a network; none, and the reason said, where there can be no network.
fn group() -> Option<(Group, Network)> {
    let network = permitted("hosts of a network", Network::make(6))?;
    let redoubt: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    let group = Group::start_on(&network, &Program::redoubt(), &redoubt);
    group.hurry();
    Some((group, network))
}

fn role(group: &Group, server: usize) -> String {
    group.servers[server].info("replication", "role").expect("a server says what it is")
}

fn is_down_for(group: &Group, sentinel: usize) -> bool {
    let fields = field_map(&group.sentinels[sentinel].run(&format!("SENTINEL MASTER {MASTER}")));
    fields["flags"].contains("s_down")
}

/// Waits until these sentinels send clients to the same server, other than the first; gives which.
fn successor(group: &Group, sentinels: &[usize]) -> usize {
    eventually("those who can have another master", || {
        let ports: Vec<u16> = sentinels.iter().map(|&sentinel| group.master_port(sentinel)).collect();
        let server = group.servers.iter().position(|node| node.port == ports[0])?;
        (server != MASTER_HOST && ports.iter().all(|port| *port == ports[0])).then_some(server)
    })
}

/// All agree on one master and follow it, and no other server takes itself for one.
fn agrees(group: &Group, master: usize) {
    eventually("all sentinels agree", || (group.master() == master).then_some(()));
    group.wait_until_whole();
    for server in SERVERS {
        assert_eq!(role(group, server) == "master", server == master, "server {server}");
    }
}

/// The master is cut off: the others replace it, and once reachable it follows its successor.
#[test]
fn a_master_alone() {
    let Some((group, network)) = group() else { return };
    network.split(&[&[MASTER_HOST]]);
    let new = successor(&group, &[0, 1, 2]);
    assert_eq!(role(&group, MASTER_HOST), "master", "it cannot know");
    network.heal();
    agrees(&group, new);
}

/// A sentinel that is cut off takes the master for down and can do nothing about it; when it is back, the failover that
/// it missed is known to it.
#[test]
fn a_sentinel_alone() {
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

/// One sentinel is with the master and a replica, two with the other replica: only the two may switch. The one
/// holds fast to what it knows, and gives way when it hears of more.
#[test]
fn two_halves_and_the_master_among_the_fewer() {
    let Some((group, network)) = group() else { return };
    network.split(&[&[0, 1, SENTINELS[0]], &[2, SENTINELS[1], SENTINELS[2]]]);
    let new = successor(&group, &[1, 2]);
    assert_eq!(new, 2, "the only one in reach");
    assert_eq!(group.master_port(0), group.servers[0].port);
    assert_eq!(role(&group, 1), "slave");
    network.heal();
    agrees(&group, new);
}

/// The other way round: the sentinel that lost the master has a replica at hand and no majority.
#[test]
fn two_halves_and_the_master_among_the_more() {
    let Some((group, network)) = group() else { return };
    network.split(&[&[0, 1, SENTINELS[0], SENTINELS[1]], &[2, SENTINELS[2]]]);
    eventually("the one takes the master for down", || is_down_for(&group, 2).then_some(()));
    never_within(LONG, "a minority promoted a replica", || role(&group, 2) == "master");
    assert!((0..3).all(|sentinel| group.master_port(sentinel) == group.servers[0].port));
    network.heal();
    agrees(&group, MASTER_HOST);
}

/// Packets from the master are lost, those from others arrive: it is silent, so it is replaced.
#[test]
fn a_master_that_hears_and_is_not_heard() {
    let Some((group, network)) = group() else { return };
    network.lose(MASTER_HOST, &[1, 2, 3, 4, 5]);
    let new = successor(&group, &[0, 1, 2]);
    network.heal();
    agrees(&group, new);
}

/// One sentinel hears nothing of the master, the others do: its word alone is no quorum.
#[test]
fn a_sentinel_that_the_master_does_not_answer() {
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
