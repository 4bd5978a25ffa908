//! Measures the cost of many masters for three Redoubt sentinels: the CPU usage with five hundred healthy masters, and
//! the time from killing fifty of them until all sentinels report their replicas. The masters are simulated in this
//! process.
#![forbid(unsafe_code)]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::Node;
use sentinel_tests::fake_servers::{
    FakeServers, master_addresses, server_address, start_sentinels, wait_until_sentinels_know_each_other,
};

const MASTER_COUNT: usize = 500;
const KILLED_COUNT: usize = 50;
const MEASURED_TIME: Duration = Duration::from_secs(10);
/// The number of CPU ticks per second in `/proc/PID/stat`, which is the same on Linux for all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() {
    measure_idle_cpu();
    measure_mass_failover();
}

fn measure_idle_cpu() {
    let farm = FakeServers::start(MASTER_COUNT, false);
    let sentinels = start_sentinels(&farm, MASTER_COUNT);
    wait_until_sentinels_know_each_other(&sentinels);
    // Waits until the sentinels have finished discovering each other.
    sleep(Duration::from_secs(3));
    let before: Vec<u64> = sentinels.iter().map(cpu_ticks).collect();
    sleep(MEASURED_TIME);
    let used = sentinels.iter().zip(before).map(|(node, before)| cpu_ticks(node) - before);
    let shares: Vec<String> = used
        .map(|ticks| {
            format!("{:.1} %", ticks as f64 / TICKS_PER_SECOND / MEASURED_TIME.as_secs_f64() * 100.0)
        })
        .collect();
    println!("{MASTER_COUNT} masters at rest: each sentinel uses {} of a core", shares.join(", "));
}

/// User and system time used so far, in ticks.
fn cpu_ticks(node: &Node) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("the sentinel runs");
    let (_, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
    let fields: Vec<&str> = fields.split(' ').collect();
    [11, 12].map(|at| fields[at].parse::<u64>().expect("a count of ticks")).iter().sum()
}

fn measure_mass_failover() {
    let farm = FakeServers::start(KILLED_COUNT, true);
    let sentinels = start_sentinels(&farm, KILLED_COUNT);
    wait_until_sentinels_know_each_other(&sentinels);
    farm.wait_until_replicas_are_watched(KILLED_COUNT, &sentinels);
    farm.kill(0..KILLED_COUNT);
    let began = Instant::now();
    for number in 0..KILLED_COUNT {
        let replica = server_address(KILLED_COUNT + number).to_string();
        while !master_addresses(&sentinels, number).iter().all(|ip| *ip == replica) {
            sleep(Duration::from_millis(5));
        }
    }
    println!("{KILLED_COUNT} masters killed at once: all switched after {} ms", began.elapsed().as_millis());
}
