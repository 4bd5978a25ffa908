//! Many masters monitored by the same sentinels.

use harness::eventually;
use sentinel_tests::fake_servers::{FakeServers, address, current, sentinels, wait_until_known};

const MANY: usize = 500;

/// A sentinel holds two connections to each instance (commands, Pub/Sub) and one to each other sentinel, regardless of
/// the number of masters, and does not keep reconnecting.
#[test]
fn links_are_shared_between_masters() {
    let farm = FakeServers::start(MANY, false);
    let sentinels = sentinels(&farm, MANY);
    wait_until_known(&sentinels);
    for number in 0..MANY {
        assert_eq!(farm.connections(number), (2 * sentinels.len(), 2 * sentinels.len() as u64), "m{number}");
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
    const MASTERS: usize = 50;
    let farm = FakeServers::start(MASTERS, true);
    let sentinels = sentinels(&farm, MASTERS);
    wait_until_known(&sentinels);
    farm.wait_until_replicas_are_watched(MASTERS, &sentinels);
    farm.kill(0..MASTERS);
    let began = std::time::Instant::now();
    for number in 0..MASTERS {
        let replica = address(MASTERS + number).to_string();
        eventually(&format!("m{number} is served by its replica"), || {
            current(&sentinels, number).iter().all(|ip| *ip == replica).then_some(())
        });
        assert!(farm.is_master(MASTERS + number));
    }
    println!("all switched after {:?}", began.elapsed());
}
