//! Injects the faults of a round and ends them.

use std::time::{Duration, Instant};

use harness::{Connection, LinkImpairment, Node, Reply, info_field, slot_of};

use crate::timeline::InjectedFault;
use crate::{Deployment, DeploymentMode, FaultKind, FaultRound, OpHistory, ScheduledFault, workload};

/// Time limit for slow operations of a server, such as a clean shutdown.
const SLOW_OPERATION_TIMEOUT: Duration = Duration::from_secs(20);
/// How long servers may take to recover before the operator repairs them.
const OPERATOR_DELAY: Duration = Duration::from_secs(4);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const CLOCK_JUMP_SECONDS: [i64; 5] = [1, 5, 30, 600, 3600];

/// Runs one round. Each fault begins and ends on schedule; the function returns after the end of all faults.
pub(crate) fn run_round(
    deployment: &mut Deployment,
    round: &FaultRound,
    history: &OpHistory,
) -> Vec<InjectedFault> {
    let began = Instant::now();
    let mut waiting: Vec<&ScheduledFault> = round.faults.iter().collect();
    let mut active: Vec<(&ScheduledFault, InjectedFault)> = Vec::new();
    let mut done = Vec::new();
    while !waiting.is_empty() || !active.is_empty() {
        let elapsed = began.elapsed();
        waiting.retain(|scheduled| {
            if elapsed < scheduled.start_delay {
                return true;
            }
            let begin = history.now();
            let nodes = start_fault(deployment, scheduled);
            let in_effect = history.now();
            let injected = InjectedFault { fault: scheduled.fault, nodes, begin, in_effect, end: in_effect };
            active.push((scheduled, injected));
            false
        });
        active.retain_mut(|(scheduled, injected)| {
            if elapsed < scheduled.start_delay + scheduled.duration {
                return true;
            }
            end_fault(deployment, scheduled);
            if !scheduled.fault.is_planned() {
                injected.end = history.now();
            }
            done.push(injected.clone());
            false
        });
        std::thread::sleep(POLL_INTERVAL);
    }
    done
}

/// Starts a fault and returns the affected nodes.
fn start_fault(deployment: &mut Deployment, scheduled_fault: &ScheduledFault) -> Vec<usize> {
    let node = scheduled_fault.node;
    match scheduled_fault.fault {
        FaultKind::Kill => deployment.nodes[node].kill(),
        FaultKind::Wipe => {
            deployment.nodes[node].kill();
            deployment.nodes[node].wipe();
            deployment.nodes[node].spawn();
        }
        FaultKind::Freeze => deployment.nodes[node].freeze(),
        FaultKind::Restart => {
            deployment.nodes[node].terminate();
            deployment.nodes[node].spawn();
        }
        FaultKind::Isolate | FaultKind::Halves | FaultKind::Bridge | FaultKind::OneWay => {
            return partition_network(deployment, scheduled_fault);
        }
        FaultKind::Delay | FaultKind::Loss | FaultKind::Duplication => {
            degrade_link(deployment, scheduled_fault);
        }
        FaultKind::FullDisk => deployment.nodes[node].fill_disk(),
        FaultKind::ClockJump => {
            let seconds = CLOCK_JUMP_SECONDS[scheduled_fault.random as usize % CLOCK_JUMP_SECONDS.len()];
            let back = scheduled_fault.random / 7 % 2 == 1;
            deployment.nodes[node].set_clock(if back { -seconds } else { seconds });
        }
        FaultKind::Failover => request_failover(deployment, node, ""),
        FaultKind::Force => request_failover(deployment, node, " FORCE"),
        FaultKind::Takeover => request_failover(deployment, node, " TAKEOVER"),
        FaultKind::SentinelFailover => {
            let sentinel = deployment.mode.data_node_count() + node % 3;
            send_command(&deployment.nodes[sentinel], &format!("SENTINEL FAILOVER {}", harness::MASTER_NAME));
        }
        FaultKind::MoveSlot => migrate_random_slot(deployment, scheduled_fault.random),
        FaultKind::Configure => change_settings(&deployment.nodes[node], scheduled_fault.random),
        FaultKind::Stall => {}
    }
    vec![node]
}

fn end_fault(deployment: &mut Deployment, scheduled_fault: &ScheduledFault) {
    match scheduled_fault.fault {
        FaultKind::Kill => deployment.nodes[scheduled_fault.node].spawn(),
        FaultKind::Freeze => deployment.nodes[scheduled_fault.node].thaw(),
        FaultKind::Isolate | FaultKind::Halves | FaultKind::Bridge | FaultKind::OneWay => {
            if let Some(network) = &deployment.network {
                network.heal_partition();
            }
        }
        FaultKind::Delay | FaultKind::Loss | FaultKind::Duplication => {
            if let Some(network) = &deployment.network {
                network.repair_link(scheduled_fault.node);
            }
        }
        FaultKind::FullDisk => deployment.nodes[scheduled_fault.node].free_disk(),
        FaultKind::ClockJump => deployment.nodes[scheduled_fault.node].set_clock(0),
        FaultKind::Wipe
        | FaultKind::Restart
        | FaultKind::Failover
        | FaultKind::SentinelFailover
        | FaultKind::Force
        | FaultKind::Takeover
        | FaultKind::MoveSlot
        | FaultKind::Configure
        | FaultKind::Stall => {}
    }
}

/// Partitions the network and returns the nodes that cannot reach all others.
fn partition_network(deployment: &Deployment, scheduled_fault: &ScheduledFault) -> Vec<usize> {
    let Some(network) = &deployment.network else { return Vec::new() };
    let all: Vec<usize> = (0..deployment.nodes.len()).collect();
    let (node, draw) = (scheduled_fault.node, scheduled_fault.random);
    match scheduled_fault.fault {
        FaultKind::Isolate => {
            network.partition(&[&[node]]);
            vec![node]
        }
        FaultKind::OneWay => {
            let others: Vec<usize> = all.into_iter().filter(|other| *other != node).collect();
            network.drop_packets(node, &others);
            vec![node]
        }
        FaultKind::Halves => {
            let (one, _): (Vec<usize>, Vec<usize>) = all.iter().partition(|each| draw >> *each & 1 == 1);
            network.partition(&[&one]);
            all
        }
        _ => {
            // All hosts except the middle one drop packets from the other group.
            let side = |each: &usize| draw >> *each & 1 == 1;
            for from in all.iter().filter(|from| **from != node) {
                let to: Vec<usize> =
                    all.iter().copied().filter(|to| *to != node && side(to) != side(from)).collect();
                network.drop_packets(*from, &to);
            }
            all
        }
    }
}

/// Degrades the link of a host.
fn degrade_link(deployment: &Deployment, scheduled_fault: &ScheduledFault) {
    let Some(network) = &deployment.network else { return };
    let draw = scheduled_fault.random;
    let millis = |most: u64| Duration::from_millis(5 + draw % most);
    let bad = match scheduled_fault.fault {
        FaultKind::Delay => {
            LinkImpairment { delay: millis(200), jitter: millis(100), ..LinkImpairment::default() }
        }
        FaultKind::Loss => {
            LinkImpairment { loss_percent: 5 + (draw % 30) as u32, ..LinkImpairment::default() }
        }
        _ => LinkImpairment { duplication_percent: 50, jitter: millis(10), ..LinkImpairment::default() },
    };
    network.impair_link(scheduled_fault.node, bad, draw).expect("the run looked whether it can");
}

/// Sends a command line to a node. Failures are ignored, since faults may be active.
fn send_command(node: &Node, line: &str) -> Option<Reply> {
    let mut connection = node.try_connect().ok()?;
    connection.set_timeout(Duration::from_secs(1));
    connection.try_call(&line.split(' ').collect::<Vec<_>>()).ok()
}

fn is_replica(node: &Node) -> bool {
    has_role(node, "slave")
}

fn is_master(node: &Node) -> bool {
    has_role(node, "master")
}

fn has_role(node: &Node, expected: &str) -> bool {
    let role = send_command(node, "ROLE");
    role.is_some_and(|role| matches!(role, Reply::Array(items) if items[0].text() == expected))
}

/// Requests a failover as an operator would, from the replica in the shard of `node`.
fn request_failover(deployment: &Deployment, node: usize, option: &str) {
    let shard = (0..deployment.nodes.len()).filter(|each| each % 3 == node % 3);
    if let Some(replica) = shard.into_iter().find(|each| is_replica(&deployment.nodes[*each])) {
        send_command(&deployment.nodes[replica], &format!("CLUSTER FAILOVER{option}"));
    }
}

/// Migrates the slot of a key in use, with the steps of redis-cli.
fn migrate_random_slot(deployment: &Deployment, random: u64) {
    let keys = workload::all_keys();
    let slot = slot_of(&keys[random as usize % keys.len()]);
    let masters: Vec<usize> =
        (0..deployment.nodes.len()).filter(|each| is_master(&deployment.nodes[*each])).collect();
    if let Some(target) = masters.get(random as usize / 7 % masters.len().max(1)) {
        // If the migration is interrupted, it is left unfinished, and the servers must recover.
        let _ = harness::move_slot(&deployment.nodes, slot, *target);
    }
}

/// Changes runtime parameters that trigger work at once.
fn change_settings(node: &Node, random: u64) {
    let lines = [
        "CONFIG SET repl-backlog-size 65536",
        "CONFIG SET repl-backlog-size 4194304",
        "BGREWRITEAOF",
        "CONFIG SET appendfsync always",
        "CONFIG SET appendfsync everysec",
        "BGSAVE",
        "CLIENT KILL TYPE replica",
        "CLIENT KILL TYPE normal",
        "CONFIG SET maxclients 5000",
    ];
    send_command(node, lines[random as usize % lines.len()]);
}

/// Returns the first failed check, or `None` if all nodes run, agree and are in sync.
pub(crate) fn find_failed_check(deployment: &mut Deployment) -> Option<String> {
    for node in &mut deployment.nodes {
        if node.has_exited() {
            return Some(format!("the process on {} ended by itself:\n{}", node.port, node.log()));
        }
    }
    match deployment.mode {
        DeploymentMode::Cluster => check_cluster(deployment),
        DeploymentMode::Sentinel => check_sentinel_group(deployment),
    }
}

fn check_cluster(deployment: &Deployment) -> Option<String> {
    let mut owners: Option<(u16, Vec<String>)> = None;
    for node in &deployment.nodes {
        let port = node.port;
        let Some(mut connection) = connect(node) else { return Some(format!("{port} does not answer")) };
        let state = harness::cluster_info_field(&mut connection, "cluster_state");
        if state.as_deref() != Some("ok") {
            return Some(format!("{port} says cluster_state {state:?}"));
        }
        let Some(view) = slot_map(&mut connection) else { return Some(format!("{port} shows no slots")) };
        if view.iter().any(|line| line.contains('[')) {
            return Some(format!("{port} has slots on their way: {view:?}"));
        }
        match &owners {
            Some((first, known)) if *known != view => {
                return Some(format!("{first} sees {known:?}, {port} sees {view:?}"));
            }
            Some(_) => {}
            None => owners = Some((port, view)),
        }
        if let Some(wrong) = check_replica_links(&mut connection, port) {
            return Some(wrong);
        }
    }
    None
}

/// Returns the slot ownership in a node's view, including migrating slots.
fn slot_map(connection: &mut Connection) -> Option<Vec<String>> {
    let text = connection.try_call(&["CLUSTER", "NODES"]).ok()?.text();
    let mut view: Vec<String> = text
        .lines()
        .filter(|line| line.contains("master"))
        .map(|line| line.split(' ').enumerate().filter(|(at, _)| *at == 0 || *at > 7).map(|(_, word)| word))
        .map(|words| words.collect::<Vec<_>>().join(" "))
        .collect();
    view.sort();
    Some(view)
}

fn check_sentinel_group(deployment: &Deployment) -> Option<String> {
    let (servers, sentinels) = deployment.nodes.split_at(deployment.mode.data_node_count());
    let mut master: Option<String> = None;
    for sentinel in sentinels {
        let Some(Reply::Array(address)) =
            send_command(sentinel, &format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", harness::MASTER_NAME))
        else {
            return Some(format!("the sentinel on {} does not answer", sentinel.port));
        };
        let port = address[1].text();
        if *master.get_or_insert_with(|| port.clone()) != port {
            return Some(format!("sentinels name {master:?} and {port}"));
        }
    }
    for server in servers {
        let port = server.port;
        let Some(mut connection) = connect(server) else { return Some(format!("{port} does not answer")) };
        let is_master = info_field(&mut connection, "replication", "role").as_deref() == Some("master");
        if is_master != (Some(port.to_string()) == master) {
            return Some(format!("{port} is a master: {is_master}, and sentinels name {master:?}"));
        }
        if let Some(wrong) = check_replica_links(&mut connection, port) {
            return Some(wrong);
        }
        if !is_master && info_field(&mut connection, "replication", "master_port") != master {
            return Some(format!("{port} follows another than {master:?}"));
        }
    }
    None
}

fn check_replica_links(connection: &mut Connection, port: u16) -> Option<String> {
    let role = info_field(connection, "replication", "role")?;
    let link = info_field(connection, "replication", "master_link_status");
    (role == "slave" && link.as_deref() != Some("up")).then(|| format!("the link of {port} is {link:?}"))
}

fn connect(node: &Node) -> Option<Connection> {
    let mut connection = node.try_connect().ok()?;
    connection.set_timeout(Duration::from_secs(1));
    let reply = connection.try_call(&["PING"]).ok()?;
    (reply == Reply::Simple("PONG".into())).then_some(connection)
}

/// Repairs interrupted slot migrations as an operator would.
fn repair_slots(deployment: &Deployment) {
    let node = &deployment.nodes[0];
    let fixing = node.redis_cli(&["--cluster", "fix", &node.address(), "--cluster-yes"]);
    if let Err(said) = fixing {
        eprintln!("--cluster fix: {said}");
    }
}

/// Waits until all checks pass. Returns the time taken, and the check that still failed after the `time_limit`.
pub(crate) fn wait_for_recovery(
    deployment: &mut Deployment,
    time_limit: Duration,
) -> (Duration, Option<String>) {
    let began = Instant::now();
    let mut fixed = false;
    loop {
        let Some(wrong) = find_failed_check(deployment) else { return (began.elapsed(), None) };
        // Migrating slots are shown in brackets. If a migration does not finish by itself, the operator repairs it.
        if !fixed && wrong.contains("->-") | wrong.contains("-<-") && began.elapsed() > OPERATOR_DELAY {
            repair_slots(deployment);
            fixed = true;
        }
        if began.elapsed() > time_limit.min(SLOW_OPERATION_TIMEOUT) {
            return (began.elapsed(), Some(wrong));
        }
        std::thread::sleep(POLL_INTERVAL * 10);
    }
}
