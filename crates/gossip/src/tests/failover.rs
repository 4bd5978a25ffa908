//! Failovers: masters that die, are paused, restart or are partitioned.

use std::time::Duration;

use super::net::{HostState, SimulatedNetwork, config};
use crate::{
    ClusterConfig, ClusterEvent, ClusterInput, ElectionEvent, FailoverMode, FailureEvent,
    ManualFailoverEvent, OperatorCommand, OperatorError, OperatorReply, SuspicionCause,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn six_nodes(seed: u64) -> SimulatedNetwork {
    SimulatedNetwork::cluster(3, 6, &config(2000), seed)
}

/// Whether a node other than 0 serves slot 0.
fn is_first_master_replaced(network: &SimulatedNetwork) -> bool {
    network.serving_master_of(0).is_some_and(|writer| writer != 0)
}

#[test]
fn killed_master_is_replaced_long_before_the_node_timeout() {
    for seed in 0..20 {
        let mut net = six_nodes(seed);
        net.run(MS(777 + seed * 13));
        net.kill(0);
        let took = net.run_until("a replica takes over", is_first_master_replaced);
        assert!(took > MS(150), "not before the refusal was confirmed: {took:?}");
        assert!(took < MS(400), "{took:?}\n{}", net.merged_logs());
        assert_eq!(net.serving_master_of(0), Some(3));
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        let record = net.hosts[3].gossip.timeline().records().last().unwrap().clone();
        assert_eq!(record.node, net.id(0));
        assert!(record.agreed_at.is_some() && record.replacement.is_some());
        assert_eq!(record.election_attempts.len(), 1);
        assert!(record.election_attempts[0].votes.len() >= 2);
        let me = net.id(3);
        let mine = record.suspicions.iter().find(|suspicion| suspicion.reporter == me);
        assert!(mine.is_none_or(|suspicion| suspicion.cause == Some(SuspicionCause::Refused)));
    }
}

#[test]
fn masters_that_die_in_turn_are_replaced_at_once() {
    for seed in 0..5 {
        let mut net = six_nodes(seed);
        for (victim, heir) in [(0, 3), (3, 0), (0, 3), (3, 0)] {
            net.kill(victim);
            let took = net.run_until("the other takes over", |net| net.serving_master_of(0) == Some(heir));
            assert!(took < MS(400), "{took:?}\n{}", net.merged_logs());
            net.restart(victim);
            net.run_until("it comes back as a replica", SimulatedNetwork::all_hosts_agree);
        }
    }
}

#[test]
fn other_shards_serve_while_a_master_is_replaced() {
    for seed in 0..5 {
        let mut net = six_nodes(seed);
        net.kill(0);
        net.run_until("a replica takes over", |net| {
            let others = net.hosts.iter().filter(|host| host.host_state == HostState::Running);
            assert!(others.clone().all(|host| host.gossip.is_serving()), "{}", net.merged_logs());
            is_first_master_replaced(net)
        });
    }
}

#[test]
fn uncovered_slots_without_a_replica_stop_the_cluster() {
    // Nodes 3 and 4 replicate nodes 0 and 1; node 2 has no replica.
    let mut net = SimulatedNetwork::cluster(3, 5, &config(2000), 1);
    let serves = |net: &SimulatedNetwork| net.hosts[1].gossip.is_serving();
    let failed =
        |net: &SimulatedNetwork, index: usize| net.hosts[1].gossip.node(net.id(index)).unwrap().has_failed();
    net.kill(2);
    net.run_until("it is failed", |net| failed(net, 2));
    assert!(!serves(&net), "{}", net.merged_logs());
    net.restart(2);
    net.run_until("all serve again", |net| serves(net) && !failed(net, 2));
    // A replica that is too outdated to be elected delays `cluster_state:fail` only until the node timeout.
    net.block_links_between(&[3], &[1, 2, 4]);
    net.kill(0);
    net.run_until("it is failed", |net| failed(net, 0));
    let took = net.run_until("it is waited for no longer", |net| !serves(net));
    assert!(took <= MS(2100), "{took:?}");
}

#[test]
fn old_master_returns_as_a_replica_of_the_new_one() {
    let mut net = six_nodes(1);
    net.kill(0);
    net.run_until("a replica takes over", is_first_master_replaced);
    net.run(MS(3000));
    net.restart(0);
    assert!(net.hosts[0].topology.as_ref().is_some_and(|topology| !topology.is_serving));
    net.run_until("the old master follows", |net| net.hosts[0].replicated_master == Some(net.id(3)));
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert_eq!(net.owner_of(0, 0), Some(3));
    assert!(!net.hosts[0].gossip.node(net.id(0)).unwrap().is_master());
}

#[test]
fn paused_master_is_replaced_right_after_the_node_timeout() {
    for seed in 0..20 {
        let mut net = six_nodes(seed);
        net.run(MS(500 + seed * 37));
        net.freeze(0);
        let took = net.run_until("a replica takes over", is_first_master_replaced);
        assert!(took >= MS(1750) && took <= MS(2250), "{took:?}\n{}", net.merged_logs());
    }
}

#[test]
fn resumed_master_does_not_serve_before_it_learns_of_its_replacement() {
    let mut net = six_nodes(3);
    net.freeze(0);
    net.run_until("a replica takes over", is_first_master_replaced);
    net.run(MS(1000));
    net.thaw(0);
    net.run_until("the old master follows", |net| {
        let old = net.hosts[0].topology.as_ref().unwrap();
        assert!(
            !old.is_serving || !old.my_member().role.eq(&slot_routing::Role::Master),
            "two masters serve one slot"
        );
        net.hosts[0].replicated_master == Some(net.id(3))
    });
    // The pause of this node did not count as silence of the other nodes.
    assert!(
        !net.hosts[0]
            .has_logged(|event| matches!(event, ClusterEvent::Failure(FailureEvent::Suspected { .. }))),
        "{}",
        net.merged_logs()
    );
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}

#[test]
fn master_paused_for_less_than_the_timeout_stays_master() {
    let mut net = six_nodes(4);
    net.freeze(0);
    net.run(MS(1200));
    net.thaw(0);
    net.run(MS(5000));
    assert_eq!(net.serving_master_of(0), Some(0), "{}", net.merged_logs());
    assert!(net.hosts.iter().all(|host| {
        !host.has_logged(|event| matches!(event, ClusterEvent::Failure(FailureEvent::FailAgreed(_))))
    }));
}

#[test]
fn dead_replica_is_marked_failed_and_recovers_after_a_restart() {
    let mut net = six_nodes(5);
    net.kill(4);
    net.run_until("it is failed", |net| net.hosts[0].gossip.node(net.id(4)).unwrap().has_failed());
    assert!(net.hosts[0].gossip.is_serving());
    net.restart(4);
    net.run_until("all agree again", |net| {
        net.all_hosts_agree() && net.hosts[0].gossip.node(net.id(4)).unwrap().is_healthy()
    });
    assert_eq!(net.hosts[4].replicated_master, Some(net.id(1)));
}

#[test]
fn replica_with_more_data_is_elected() {
    for seed in 0..10 {
        let mut net = SimulatedNetwork::cluster(3, 9, &config(2000), seed);
        // Node 0 has the replicas 3 and 6.
        net.hosts[0].offset = 1000;
        net.hosts[3].offset = 900;
        net.hosts[6].offset = 1000;
        net.kill(0);
        let took = net.run_until("a replica takes over", is_first_master_replaced);
        assert_eq!(net.serving_master_of(0), Some(6), "{}", net.merged_logs());
        assert!(took < MS(400), "{took:?}");
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!(net.hosts[3].replicated_master, Some(net.id(6)));
    }
}

#[test]
fn replicas_with_the_same_data_do_not_split_the_vote() {
    for seed in 0..8 {
        let mut net = SimulatedNetwork::cluster(3, 12, &config(2000), seed);
        net.kill(0);
        let took = net.run_until("a replica takes over", is_first_master_replaced);
        assert!(took < MS(400), "seed {seed}: {took:?}\n{}", net.merged_logs());
    }
}

#[test]
fn two_masters_that_die_at_once_are_both_replaced() {
    let mut net = SimulatedNetwork::cluster(5, 10, &config(2000), 6);
    net.kill(0);
    net.kill(1);
    net.run_until("both are replaced", |net| {
        net.serving_master_of(0).is_some() && net.serving_master_of(4000).is_some()
    });
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}

#[test]
fn no_master_is_replaced_without_a_majority() {
    let mut net = six_nodes(7);
    net.kill(0);
    net.kill(1);
    net.run(MS(10_000));
    assert_eq!(net.serving_master_of(0), None);
    assert!(
        net.hosts
            .iter()
            .filter(|host| host.host_state == HostState::Running)
            .all(|host| !host.gossip.is_serving())
    );
    net.restart(0);
    net.run_until("the majority is back", |net| {
        net.serving_master_of(16_000).is_some() && net.serving_master_of(0).is_some()
    });
    net.run_until("node 1 is replaced now", |net| net.serving_master_of(8000).is_some());
}

#[test]
fn minority_stops_serving_and_the_majority_continues() {
    let mut net = six_nodes(8);
    // Master 0 is isolated; its replica 3 stays with the majority.
    net.block_links_between(&[0], &[1, 2, 3, 4, 5]);
    let stopped = net.run_until("the minority stops", |net| !net.hosts[0].gossip.is_serving());
    assert!(stopped <= MS(2100), "{stopped:?}");
    net.run_until("the majority replaces it", |net| net.serving_master_of(0) == Some(3));
    net.run(MS(5000));
    net.heal();
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert_eq!(net.hosts[0].replicated_master, Some(net.id(3)));
}

#[test]
fn minority_elects_no_replica() {
    let mut net = six_nodes(9);
    // Master 0 and the replica of master 1 are cut off as a minority.
    net.block_links_between(&[0, 4], &[1, 2, 3, 5]);
    net.run(MS(10_000));
    assert!(!net.hosts[4].gossip.node(net.id(4)).unwrap().is_master());
    assert_eq!(net.serving_master_of(0), Some(3), "{}", net.merged_logs());
    net.heal();
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}

#[test]
fn restarted_voter_does_not_vote_twice_in_one_epoch() {
    let mut net = six_nodes(10);
    net.kill(0);
    net.run_until("a replica takes over", is_first_master_replaced);
    let epoch = net.hosts[1].gossip.last_vote_epoch();
    assert!(epoch.0 > 0);
    net.kill(1);
    net.restart(1);
    assert_eq!(net.hosts[1].gossip.last_vote_epoch(), epoch);
}

#[test]
fn manual_failover_waits_for_the_replication_stream() {
    let mut net = six_nodes(11);
    net.hosts[0].offset = 500;
    net.hosts[3].offset = 400;
    assert_eq!(net.failover(3, FailoverMode::Graceful), Ok(OperatorReply::Ok));
    net.run_until("the master pauses", |net| net.hosts[0].are_writes_paused);
    net.run(MS(200));
    assert_eq!(net.owner_of(3, 0), Some(0), "not before the replica has everything");
    net.hosts[3].offset = 500;
    let took = net.run_until("the replica is master", |net| net.serving_master_of(0) == Some(3));
    assert!(took < MS(300), "{took:?}");
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert!(!net.hosts[0].are_writes_paused);
    assert_eq!(net.hosts[0].replicated_master, Some(net.id(3)));
    // The failover back to the old master is possible at once.
    assert_eq!(net.failover(0, FailoverMode::Graceful), Ok(OperatorReply::Ok));
    net.run_until("the old master is master again", |net| net.serving_master_of(0) == Some(0));
}

/// A second request during a failover is refused and the failover continues. A request with FORCE replaces the running
/// failover.
#[test]
fn second_failover_request_does_not_restart_the_failover() {
    use FailoverMode::{Force, Graceful};
    let runs = || Err(OperatorError::FailoverInProgress);
    let mut net = six_nodes(11);
    net.hosts[0].offset = 500;
    net.hosts[3].offset = 400;
    assert_eq!(net.failover(3, Graceful), Ok(OperatorReply::Ok));
    net.run_until("the master pauses", |net| net.hosts[0].are_writes_paused);
    net.run(MS(20));
    assert_eq!(net.failover(3, Graceful), runs());
    net.hosts[3].offset = 500;
    let took = net.run_until("the replica is master", |net| net.serving_master_of(0) == Some(3));
    assert!(took < MS(300), "{took:?}");
    let record = net.hosts[3].gossip.timeline().records().last().unwrap();
    assert_eq!((record.request.map(|(by, _)| by), record.election_attempts.len()), (Some(net.id(3)), 1));
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);

    net.hosts[0].offset = 400;
    net.block_links_between(&[0], &[1, 2]);
    assert_eq!(net.failover(0, Graceful), Ok(OperatorReply::Ok));
    assert_eq!(net.failover(0, Graceful), runs());
    assert_eq!(net.failover(0, Force), Ok(OperatorReply::Ok));
    assert_eq!((net.failover(0, Force), net.failover(0, Graceful)), (runs(), runs()));
    net.run(config(2000).manual_failover_timeout);
    assert_eq!(net.failover(0, Graceful), Ok(OperatorReply::Ok), "the last one is over");
}

#[test]
fn new_replica_can_request_a_failover_at_once() {
    let mut net = six_nodes(15);
    net.kill(0);
    net.run_until("a replica takes over", is_first_master_replaced);
    net.restart(0);
    // Repeats the request until node 0 is a replica with a link to its master.
    while net.failover(0, FailoverMode::Graceful).is_err() {
        net.run(Duration::from_micros(100));
    }
    let took = net.run_until("it is master again", |net| net.serving_master_of(0) == Some(0));
    assert!(took < MS(300), "{took:?}");
}

#[test]
fn manual_failover_times_out_if_the_replica_cannot_catch_up() {
    let mut net = six_nodes(12);
    net.hosts[0].offset = 500;
    net.hosts[3].offset = 400;
    net.failover(3, FailoverMode::Graceful).unwrap();
    net.run_until("the master pauses", |net| net.hosts[0].are_writes_paused);
    net.run_until("it resumes", |net| !net.hosts[0].are_writes_paused);
    assert_eq!(net.serving_master_of(0), Some(0));
    net.run_until("the replica gave up too", |net| {
        net.hosts[3]
            .has_logged(|event| matches!(event, ClusterEvent::ManualFailover(ManualFailoverEvent::TimedOut)))
    });
}

#[test]
fn force_and_takeover_do_not_ask_the_master() {
    let mut net = six_nodes(13);
    net.failover(3, FailoverMode::Force).unwrap();
    net.run_until("forced", |net| net.serving_master_of(0) == Some(3));
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    net.failover(4, FailoverMode::Takeover).unwrap();
    assert_eq!(net.serving_master_of(8000), Some(1), "both serve for the moment that the news takes");
    net.run_until("taken over", |net| net.serving_master_of(8000) == Some(4));
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}

/// SHUTDOWN FAILOVER: the replication stream names the successor. A failover in progress continues without waiting for
/// the master.
#[test]
fn master_that_shuts_down_is_replaced_by_the_named_replica() {
    for asked_before in [false, true] {
        let mut net = six_nodes(13);
        net.hosts[0].offset = 500;
        net.hosts[3].offset = 500;
        if asked_before {
            net.block_links_between(&[0], &[3]);
            net.failover(3, FailoverMode::Graceful).unwrap();
        }
        net.feed(3, ClusterInput::MasterShutdown);
        let took = net.run_until("it takes over", |net| net.serving_master_of(0) == Some(3));
        assert!(took < MS(100), "{took:?}\n{}", net.merged_logs());
        let record = net.hosts[3].gossip.timeline().records().last().unwrap();
        assert_eq!((record.request.map(|(by, _)| by), record.election_attempts.len()), (Some(net.id(3)), 1));
        net.heal();
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!(net.hosts[0].gossip.myself().master(), Some(net.id(3)));
    }
}

#[test]
fn takeover_works_without_a_majority() {
    let mut net = six_nodes(14);
    net.kill(0);
    net.kill(1);
    net.run(MS(5000));
    net.failover(3, FailoverMode::Takeover).unwrap();
    net.run_until("three owners, two of them healthy", |net| net.owner_of(2, 0) == Some(3));
    net.run_until("serving again", |net| net.serving_master_of(0) == Some(3));
}

#[test]
fn answering_nodes_are_never_suspected() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 15);
    net.run(Duration::from_secs(50));
    assert!(net.hosts.iter().all(|host| {
        !host.has_logged(|event| matches!(event, ClusterEvent::Failure(FailureEvent::Suspected { .. })))
    }));
}

#[test]
fn starting_node_by_node_causes_no_failover() {
    let mut net = six_nodes(16);
    for index in 0..6 {
        net.kill(index);
    }
    net.run(MS(1000));
    for index in 0..6 {
        net.restart(index);
        net.run(MS(350));
    }
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert!(net.hosts.iter().all(|host| {
        !host.has_logged(|event| matches!(event, ClusterEvent::Election(ElectionEvent::Started(_))))
    }));
    assert_eq!(net.serving_master_of(0), Some(0));
}

#[test]
fn equal_seeds_give_equal_logs() {
    let story = |seed| {
        let mut net = six_nodes(seed);
        net.kill(0);
        net.run_until("a replica takes over", is_first_master_replaced);
        net.run(MS(2000));
        net.merged_logs()
    };
    assert_eq!(story(42), story(42));
    assert_ne!(story(42), story(43));
}

#[test]
fn restarted_master_without_peers_does_not_serve() {
    // The node timeout exceeds the start delay, so no node is suspected when the delay ends.
    let mut net = SimulatedNetwork::cluster(3, 3, &config(15_000), 13);
    net.kill(0);
    net.block_links_between(&[0], &[1, 2]);
    net.restart(0);
    for _ in 0..40 {
        net.run(MS(500));
        assert!(!net.hosts[0].gossip.is_serving(), "at {:?}", net.now);
    }
}

#[test]
fn resumed_master_serves_as_soon_as_a_majority_confirms_it() {
    for seed in 0..10 {
        let mut net = six_nodes(seed);
        net.run(MS(seed * 31));
        net.freeze(0);
        net.run(MS(1650));
        net.thaw(0);
        assert!(!net.hosts[0].gossip.is_serving(), "what lay in its queue says nothing of now");
        let took = net.run_until("it serves again", |net| net.serving_master_of(0) == Some(0));
        assert!(took <= MS(50), "{took:?}\n{}", net.merged_logs());
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    }
}

#[test]
fn resumed_master_that_others_consider_failed_waits() {
    // No replica can take over, but the master cannot know this.
    let mut net = SimulatedNetwork::cluster(3, 3, &config(2000), 6);
    net.freeze(0);
    net.run_until("the others fail it", |net| net.hosts[1].gossip.node(net.id(0)).unwrap().has_failed());
    net.run(MS(500));
    net.thaw(0);
    let took = net.run_until("it serves again", |net| net.serving_master_of(0) == Some(0));
    assert!(took >= MS(1900), "{took:?}\n{}", net.merged_logs());
}

#[test]
fn resumed_master_without_peers_does_not_serve() {
    // The network fails during a long pause. Messages from before the pause must not count, however long the master
    // waits.
    let mut net = six_nodes(14);
    net.freeze(0);
    net.run(MS(4000));
    net.block_links_between(&[0], &[1, 2, 3, 4, 5]);
    net.hosts[0].clear_backlog();
    net.thaw(0);
    for _ in 0..100 {
        net.run(MS(50));
        assert!(!net.hosts[0].gossip.is_serving(), "at {:?}", net.now);
    }
}

/// Regression test: nodes kept the old id as `fail?,noaddr` with its slots, and did not gossip it.
#[test]
fn master_that_returns_at_once_under_a_new_id_is_replaced() {
    for (seed, connect_refused_timeout, down) in
        [(0, 150, 1), (1, 150, 90), (2, 0, 1), (3, 0, 1500), (4, 0, 3)]
    {
        let mut net = SimulatedNetwork::cluster(
            3,
            6,
            &ClusterConfig { connect_refused_timeout: MS(connect_refused_timeout), ..config(2000) },
            seed,
        );
        net.run(MS(777 + seed * 13));
        let old = net.id(0);
        net.kill(0);
        net.run(MS(down));
        net.restart_with_new_id(0);
        let took = net.run_until("a replica takes over", is_first_master_replaced);
        assert!(took < MS(600), "{took:?}\n{}", net.merged_logs());
        assert_eq!(net.serving_master_of(0), Some(3));
        net.run_until("the others serve on, and hold the old id for failed", |net| {
            net.hosts[1..].iter().all(|host| {
                host.gossip.is_serving() && host.gossip.node(old).is_some_and(|node| node.has_failed())
            })
        });
    }
}

#[test]
fn master_that_is_reset_under_a_new_id_is_replaced() {
    for seed in 0..5 {
        let mut net = six_nodes(seed);
        net.run(MS(777 + seed * 13));
        net.run_command(0, OperatorCommand::Reset { is_hard: true, holds_keys: false }).unwrap();
        let took = net.run_until("a replica takes over", is_first_master_replaced);
        assert!(took < MS(300), "{took:?}\n{}", net.merged_logs());
    }
}

/// Regression test: node 2 missed the promotion of node 3 and agreed on the failure of node 3 while its own links were
/// down. Node 2 did not send the FAIL later, and gossip never mentioned a replica without slots.
#[test]
fn fail_agreed_without_links_is_sent_once_they_are_up() {
    let mut net = SimulatedNetwork::cluster(3, 5, &config(2000), 31);
    net.kill(2);
    net.failover(3, FailoverMode::Graceful).unwrap();
    net.run_until("3 takes over", |net| net.serving_master_of(0) == Some(3));
    net.run_until("0 follows it", |net| net.hosts[0].gossip.myself().master() == Some(net.id(3)));
    net.kill(3);
    net.restart(2);
    net.run(Duration::from_secs(1));
    net.block_links_between(&[2], &[0, 1, 4]);
    let agreed = ClusterEvent::Failure(FailureEvent::FailAgreed(net.id(3)));
    net.run_until("2 agrees", |net| net.hosts[2].has_logged(|event| *event == agreed));
    net.heal();
    net.run_until("0 takes its place again", |net| net.serving_master_of(0) == Some(0));
}

#[test]
fn reset_of_a_master_without_replicas_stops_the_cluster() {
    let mut net = SimulatedNetwork::cluster(3, 3, &config(2000), 1);
    net.run_command(0, OperatorCommand::Reset { is_hard: true, holds_keys: false }).unwrap();
    let took =
        net.run_until("no other serves", |net| net.hosts[1..].iter().all(|host| !host.gossip.is_serving()));
    assert!(took < MS(300), "{took:?}\n{}", net.merged_logs());
}

/// A different id at a node's address is no reason for suspicion if no link to the node has worked before: here all
/// nodes restart and two have swapped their addresses.
#[test]
fn swapped_addresses_at_startup_cause_no_suspicion() {
    let mut net = six_nodes(5);
    net.run(MS(500));
    let old = net.id(0);
    (0..6).for_each(|host| net.kill(host));
    net.restart_with_new_id(0);
    (1..6).for_each(|host| net.restart(host));
    net.run(MS(1500));
    assert!(net.hosts[1].gossip.node(old).is_some_and(|node| node.is_healthy()), "{}", net.merged_logs());
    net.run_until("a replica takes over", is_first_master_replaced);
}

/// Regression test: of two masters with the same epoch, the one with more data lost its data to the one with the
/// smaller id.
#[test]
fn master_with_the_larger_offset_wins_a_collision_within_a_shard() {
    for ahead in [0, 3] {
        let mut net = six_nodes(8);
        (0..6).for_each(|host| net.hosts[host].offset = 500);
        net.run(MS(500));
        net.block_links_between(&[0], &[1, 2, 3, 4, 5]);
        net.block_links_between(&[3], &[1, 2, 4, 5]);
        net.failover(3, FailoverMode::Takeover).unwrap();
        let epoch = net.hosts[3].gossip.myself().config_epoch;
        net.hosts[0].gossip.adopt_epoch(epoch);
        net.hosts[ahead].offset = 600;
        net.heal();
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!(net.owner_of(1, 0), Some(ahead), "{}", net.merged_logs());
    }
}

/// The replica cannot reach the promoted master. It learns about the promotion from the old master, and from the node
/// that answers its outdated claim.
#[test]
fn replica_follows_a_promoted_master_it_cannot_reach() {
    for seed in 0..20 {
        let mut net = SimulatedNetwork::cluster(3, 7, &config(2000), seed);
        net.block_links_between(&[6], &[3]);
        net.run(MS(seed * 37));
        net.failover(3, FailoverMode::Graceful).unwrap();
        net.run_until("it follows the new master", |net| {
            net.hosts[6].replicated_master == Some(net.id(3)) && net.owner_of(6, 0) == Some(3)
        });
    }
}

/// The promoted node dies before it can tell the other masters, which consider it a replica without slots. They learn
/// about the promotion from the demoted master; otherwise they would not agree that the promoted node has failed.
#[test]
fn promoted_node_that_dies_unheard_is_replaced() {
    for seed in 0..20 {
        let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), seed);
        net.block_links_between(&[3], &[1, 2]);
        net.run(MS(seed * 37));
        net.failover(3, FailoverMode::Takeover).unwrap();
        net.run_until("the old master follows", |net| net.hosts[0].replicated_master == Some(net.id(3)));
        net.kill(3);
        net.heal();
        net.run_until("the old master takes over", |net| net.serving_master_of(0) == Some(0));
    }
}
