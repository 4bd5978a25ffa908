//! Tests with many masters monitored by the same sentinels.

use harness::eventually;
use sentinel_tests::fake_servers::{
    FakeServers, master_addresses, server_address, start_sentinels, wait_until_sentinels_know_each_other,
};

const MASTER_COUNT: usize = 500;

/// A sentinel holds two connections to each instance (commands, Pub/Sub) and one to each other sentinel, regardless of
/// the number of masters, and does not keep reconnecting.
#[test]
fn links_are_shared_between_masters() {
    let farm = FakeServers::start(MASTER_COUNT, false);
    let sentinels = start_sentinels(&farm, MASTER_COUNT);
    wait_until_sentinels_know_each_other(&sentinels);
    for number in 0..MASTER_COUNT {
        assert_eq!(
            farm.connection_counts(number),
            (2 * sentinels.len(), 2 * sentinels.len() as u64),
            "m{number}"
        );
    }
    for node in &sentinels {
        eventually("each of the others has one connection", || {
            let clients = node.run("CLIENT LIST").text();
            let others = clients.lines().filter(|line| line.contains(" name=sentinel-")).count();
            (others == sentinels.len() - 1).then_some(())
        });
    }
}

/// Fifty masters die at the same time; each is replaced by its own replica, and all sentinels agree.
#[test]
fn fifty_masters_killed_at_once_are_all_replaced() {
    const KILLED_COUNT: usize = 50;
    let farm = FakeServers::start(KILLED_COUNT, true);
    let sentinels = start_sentinels(&farm, KILLED_COUNT);
    wait_until_sentinels_know_each_other(&sentinels);
    farm.wait_until_replicas_are_watched(KILLED_COUNT, &sentinels);
    farm.kill(0..KILLED_COUNT);
    let began = std::time::Instant::now();
    for number in 0..KILLED_COUNT {
        let replica = server_address(KILLED_COUNT + number).to_string();
        eventually(&format!("m{number} is served by its replica"), || {
            master_addresses(&sentinels, number).iter().all(|ip| *ip == replica).then_some(())
        });
        assert!(farm.is_master(KILLED_COUNT + number));
    }
    println!("all switched after {:?}", began.elapsed());
}
