//! Tests of masters that restart without their data before the other nodes notice.

use std::time::Duration;

use super::net::{SimulatedNetwork, config};
use crate::ClusterConfig;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Three masters with one replica each, and data in every shard.
fn six_nodes(config: &ClusterConfig, seed: u64) -> SimulatedNetwork {
    let mut net = SimulatedNetwork::cluster(3, 6, config, seed);
    (0..6).for_each(|host| net.hosts[host].offset = 500);
    net.run(MS(500));
    net
}

#[test]
fn master_restarting_without_data_is_replaced_by_its_replica() {
    for seed in 0..10 {
        let mut net = six_nodes(&config(2000), seed);
        net.kill(0);
        net.restart_with_offset(0, 0);
        assert!(!net.hosts[0].gossip.is_serving());
        let took = net.run_until("its replica takes over", |net| {
            net.serving_master_of(0).is_some_and(|writer| writer == 3)
        });
        assert!(took < MS(1000), "{took:?}\n{}", net.merged_logs());
        net.run_until("it follows", |net| net.hosts[0].gossip.myself().master() == Some(net.id(3)));
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    }
}

#[test]
fn master_restarting_with_older_data_than_its_replica_is_replaced() {
    let mut net = six_nodes(&config(2000), 3);
    net.kill(0);
    net.restart_with_offset(0, 499);
    net.run_until("its replica takes over", |net| net.serving_master_of(0) == Some(3));
}

#[test]
fn master_restarting_with_all_its_data_stays_master() {
    let mut net = six_nodes(&config(2000), 4);
    net.kill(0);
    net.restart_with_offset(0, 500);
    net.run_until("it serves again", |net| net.hosts[0].gossip.is_serving());
    assert_eq!(net.serving_master_of(0), Some(0));
}

#[test]
fn cluster_restarting_without_data_serves_at_once() {
    let mut net = six_nodes(&config(2000), 5);
    (0..6).for_each(|host| net.kill(host));
    (0..6).for_each(|host| net.restart_with_offset(host, 0));
    let took = net.run_until("all serve", |net| (0..3).all(|host| net.hosts[host].gossip.is_serving()));
    assert!(took < MS(4000), "{took:?}");
    assert_eq!(net.serving_master_of(0), Some(0));
}

#[test]
fn empty_master_waits_for_its_replicas_only_until_the_timeout() {
    let patient = ClusterConfig { empty_master_timeout: MS(8000), ..config(2000) };
    let mut net = six_nodes(&patient, 6);
    net.kill(3);
    net.kill(0);
    net.restart_with_offset(0, 0);
    net.run(MS(7000));
    assert!(!net.hosts[0].gossip.is_serving());
    net.run_until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    let hasty = ClusterConfig { empty_master_timeout: Duration::ZERO, ..config(2000) };
    let mut net = six_nodes(&hasty, 6);
    net.kill(0);
    net.restart_with_offset(0, 0);
    net.run_until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    assert_eq!(net.serving_master_of(0), Some(0));
}

/// A partitioned replica misses a failover. It learns about the failover only when both its old and its new master have
/// lost their data.
#[test]
fn replica_that_missed_a_failover_takes_over_from_empty_masters() {
    for seed in 0..10 {
        let mut net = SimulatedNetwork::cluster(3, 7, &config(2000), seed);
        (0..7).for_each(|host| net.hosts[host].offset = 500);
        net.run(MS(500));
        net.block_links_between(&[6], &[0, 1, 2, 3, 4, 5]);
        net.kill(0);
        net.run_until("the other replica takes over", |net| net.serving_master_of(0) == Some(3));
        net.restart(0);
        net.run_until("it is followed", |net| net.hosts[0].gossip.myself().master() == Some(net.id(3)));
        net.run(MS(500));
        net.kill(0);
        net.kill(3);
        net.heal();
        net.restart_with_offset(3, 0);
        net.restart_with_offset(0, 0);
        net.run_until("the replica with data serves", |net| net.serving_master_of(0) == Some(6));
    }
}

/// Regression test: the master waited a minute for a replica that never starts an election.
#[test]
fn empty_master_does_not_wait_for_a_no_failover_replica() {
    let mut net = six_nodes(&config(2000), 7);
    net.configure(3, |config| config.replica_no_failover = true);
    net.run(MS(500));
    net.kill(0);
    net.restart_with_offset(0, 0);
    let took = net.run_until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    assert!(took < MS(2500), "{took:?}");
    // If the replica that never starts an election is down, the master waits only for the normal start delay.
    net.kill(3);
    net.kill(0);
    net.restart_with_offset(0, 0);
    let took = net.run_until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    assert!(took < MS(2500), "{took:?}");
}
