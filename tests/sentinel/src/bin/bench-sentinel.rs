//! Measures failovers with three Redoubt sentinels: the time from killing the master to the first successful write at
//! the address that the sentinels report. Usage: `bench-sentinel [ROUNDS]`; `SERVERS=redoubt` uses Redoubt servers
//! instead of Redis servers.
#![forbid(unsafe_code)]

use std::time::Duration;

use harness::{MASTER_NAME, Program, SentinelGroup, field_map};

fn main() {
    let rounds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(10);
    let ours = std::env::var("SERVERS").is_ok_and(|servers| servers == "redoubt");
    let server = if ours { Program::redoubt() } else { Program::redis() };
    let mut group = SentinelGroup::start(&server, &std::array::from_fn::<_, 3, _>(|_| Program::redoubt()));
    let name = server.name();
    print_times(
        &format!("{name}, SIGKILL of the master"),
        (0..rounds).map(|_| measure_killed_master(&mut group)).collect(),
    );
    print_times(
        &format!("{name}, SIGSTOP of the master"),
        (0..rounds).map(|_| measure_stopped_master(&group)).collect(),
    );
    let both = (0..rounds).map(|_| measure_killed_master_and_leader(&mut group)).collect();
    print_times(&format!("{name}, SIGKILL of the master and the leading sentinel"), both);
}

fn print_times(description: &str, mut times: Vec<Duration>) {
    times.sort();
    let millis: Vec<String> = times.iter().map(|time| time.as_millis().to_string()).collect();
    let median = millis.get(millis.len() / 2).map_or("-", String::as_str);
    println!("{description}: median {median} ms of {}", millis.join(" "));
}

fn measure_killed_master(group: &mut SentinelGroup) -> Duration {
    let master = group.wait_for_master();
    group.servers[master].kill();
    let (_, took) = group.wait_for_successor(master);
    group.servers[master].launch();
    group.wait_until_healthy();
    took
}

fn measure_stopped_master(group: &SentinelGroup) -> Duration {
    let master = group.wait_for_master();
    group.servers[master].freeze();
    let (_, took) = group.wait_for_successor(master);
    group.servers[master].thaw();
    group.wait_until_healthy();
    took
}

/// Kills the master together with the leader, which is the sentinel that the first one voted for in the last failover.
fn measure_killed_master_and_leader(group: &mut SentinelGroup) -> Duration {
    let master = group.wait_for_master();
    let leads = |node: &harness::Node| {
        let log = node.log();
        let epoch = field_map(&node.run(&format!("SENTINEL MASTER {MASTER_NAME}")))["config-epoch"].clone();
        let id = node.run("SENTINEL MYID").text();
        log.contains(&format!("+vote-for-leader {id} {epoch}"))
    };
    let leader = group.sentinels.iter().position(leads).unwrap_or(0);
    group.sentinels[leader].kill();
    group.servers[master].kill();
    let (_, took) = group.wait_for_successor(master);
    group.sentinels[leader].launch();
    group.servers[master].launch();
    group.wait_until_healthy();
    took
}
