//! Measures the cost of many masters for three Redoubt sentinels: the CPU usage with five hundred healthy masters, and
//! the time from killing fifty of them until all sentinels report their replicas. The masters are simulated in this
//! process.
#![forbid(unsafe_code)]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::Node;
use sentinel_tests::fake_servers::{FakeServers, address, current, sentinels, wait_until_known};

const MANY: usize = 500;
const KILLED: usize = 50;
const SPAN: Duration = Duration::from_secs(10);
/// The unit of `/proc/PID/stat`; the same on Linux for all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() {
    at_rest();
    killed_at_once();
}

fn at_rest() {
    let farm = FakeServers::start(MANY, false);
    let sentinels = sentinels(&farm, MANY);
    wait_until_known(&sentinels);
    // Waits until the sentinels have finished discovering each other.
    sleep(Duration::from_secs(3));
    let before: Vec<u64> = sentinels.iter().map(ticks).collect();
    sleep(SPAN);
    let used = sentinels.iter().zip(before).map(|(node, before)| ticks(node) - before);
    let shares: Vec<String> = used
        .map(|ticks| format!("{:.1} %", ticks as f64 / TICKS_PER_SECOND / SPAN.as_secs_f64() * 100.0))
        .collect();
    println!("{MANY} masters at rest: each sentinel uses {} of a core", shares.join(", "));
}

/// User and system time used so far, in ticks.
fn ticks(node: &Node) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("the sentinel runs");
    let (_, fields) = stat.rsplit_once(") ").expect("the name is in parentheses");
    let fields: Vec<&str> = fields.split(' ').collect();
    [11, 12].map(|at| fields[at].parse::<u64>().expect("a count of ticks")).iter().sum()
}

fn killed_at_once() {
    let farm = FakeServers::start(KILLED, true);
    let sentinels = sentinels(&farm, KILLED);
    wait_until_known(&sentinels);
    farm.wait_until_replicas_are_watched(KILLED, &sentinels);
    farm.kill(0..KILLED);
    let began = Instant::now();
    for number in 0..KILLED {
        let replica = address(KILLED + number).to_string();
        while !current(&sentinels, number).iter().all(|ip| *ip == replica) {
            sleep(Duration::from_millis(5));
        }
    }
    println!("{KILLED} masters killed at once: all switched after {} ms", began.elapsed().as_millis());
}
