//! Masters that restart without their data before the other nodes notice.

use std::time::Duration;

use super::net::{Net, config};
use crate::Config;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Three masters with one replica each, and data in every shard.
fn six(config: &Config, seed: u64) -> Net {
    let mut net = Net::cluster(3, 6, config, seed);
    (0..6).for_each(|host| net.hosts[host].offset = 500);
    net.run(MS(500));
    net
}

#[test]
fn a_master_that_comes_back_empty_is_replaced_by_its_replica() {
    for seed in 0..10 {
        let mut net = six(&config(2000), seed);
        net.kill(0);
        net.restart_with(0, 0);
        assert!(!net.hosts[0].gossip.is_serving());
        let took =
            net.until("its replica takes over", |net| net.writer_of(0).is_some_and(|writer| writer == 3));
        assert!(took < MS(1000), "{took:?}\n{}", net.story());
        net.until("it follows", |net| net.hosts[0].gossip.myself().master() == Some(net.id(3)));
        net.until("all agree", Net::all_agree);
    }
}

#[test]
fn a_master_whose_file_is_older_than_its_replica_is_replaced_too() {
    let mut net = six(&config(2000), 3);
    net.kill(0);
    net.restart_with(0, 499);
    net.until("its replica takes over", |net| net.writer_of(0) == Some(3));
}

#[test]
fn a_master_that_has_all_its_data_goes_on() {
    let mut net = six(&config(2000), 4);
    net.kill(0);
    net.restart_with(0, 500);
    net.until("it serves again", |net| net.hosts[0].gossip.is_serving());
    assert_eq!(net.writer_of(0), Some(0));
}

#[test]
fn a_whole_cluster_that_starts_empty_serves_at_once() {
    let mut net = six(&config(2000), 5);
    (0..6).for_each(|host| net.kill(host));
    (0..6).for_each(|host| net.restart_with(host, 0));
    let took = net.until("all serve", |net| (0..3).all(|host| net.hosts[host].gossip.is_serving()));
    assert!(took < MS(4000), "{took:?}");
    assert_eq!(net.writer_of(0), Some(0));
}

#[test]
fn an_empty_master_waits_for_its_replicas_no_longer_than_it_is_told() {
    let patient = Config { empty_master_timeout: MS(8000), ..config(2000) };
    let mut net = six(&patient, 6);
    net.kill(3);
    net.kill(0);
    net.restart_with(0, 0);
    net.run(MS(7000));
    assert!(!net.hosts[0].gossip.is_serving());
    net.until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    let hasty = Config { empty_master_timeout: Duration::ZERO, ..config(2000) };
    let mut net = six(&hasty, 6);
    net.kill(0);
    net.restart_with(0, 0);
    net.until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    assert_eq!(net.writer_of(0), Some(0));
}

/// A partitioned replica misses a failover, and learns about it only when both its old and its new master have lost
/// their data.
#[test]
fn a_replica_that_missed_a_failover_counts_too() {
    for seed in 0..10 {
        let mut net = Net::cluster(3, 7, &config(2000), seed);
        (0..7).for_each(|host| net.hosts[host].offset = 500);
        net.run(MS(500));
        net.cut(&[6], &[0, 1, 2, 3, 4, 5]);
        net.kill(0);
        net.until("the other replica takes over", |net| net.writer_of(0) == Some(3));
        net.restart(0);
        net.until("it is followed", |net| net.hosts[0].gossip.myself().master() == Some(net.id(3)));
        net.run(MS(500));
        net.kill(0);
        net.kill(3);
        net.heal();
        net.restart_with(3, 0);
        net.restart_with(0, 0);
        net.until("who has the data serves", |net| net.writer_of(0) == Some(6));
    }
}

/// Regression test: the master waited a minute for a replica that never starts an election.
#[test]
fn empty_master_does_not_wait_for_a_replica_that_never_stands() {
    let mut net = six(&config(2000), 7);
    net.configure(3, |config| config.replica_no_failover = true);
    net.run(MS(500));
    net.kill(0);
    net.restart_with(0, 0);
    let took = net.until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    assert!(took < MS(2500), "{took:?}");
    // If that replica is down, the master waits only for the normal start delay.
    net.kill(3);
    net.kill(0);
    net.restart_with(0, 0);
    let took = net.until("it serves what it has", |net| net.hosts[0].gossip.is_serving());
    assert!(took < MS(2500), "{took:?}");
}
