//! Injects the faults of a round and ends them.

use std::time::{Duration, Instant};

use harness::{Connection, Impairment, Node, Value, info_field, slot_of};

use crate::timeline::Injected;
use crate::{Deployment, Fault, History, Mode, Planned, Round, workload};

/// The longest time that a server takes for slow work, such as a clean stop.
const BOUND: Duration = Duration::from_secs(20);
/// After so long an operator comes.
const UNAIDED: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(5);
/// By how many seconds a clock may jump.
const JUMPS: [i64; 5] = [1, 5, 30, 600, 3600];

/// Carries out a round: every fault begins and ends at its time; all have ended when it returns.
pub(crate) fn carry_out(deployment: &mut Deployment, round: &Round, history: &History) -> Vec<Injected> {
    let began = Instant::now();
    let mut waiting: Vec<&Planned> = round.faults.iter().collect();
    let mut active: Vec<(&Planned, Injected)> = Vec::new();
    let mut done = Vec::new();
    while !waiting.is_empty() || !active.is_empty() {
        let elapsed = began.elapsed();
        waiting.retain(|planned| {
            if elapsed < planned.after {
                return true;
            }
            let begin = history.now();
            let nodes = inject(deployment, planned);
            let in_effect = history.now();
            let injected = Injected { fault: planned.fault, nodes, begin, in_effect, end: in_effect };
            active.push((planned, injected));
            false
        });
        active.retain_mut(|(planned, injected)| {
            if elapsed < planned.after + planned.lasts {
                return true;
            }
            end(deployment, planned);
            if !planned.fault.is_planned() {
                injected.end = history.now();
            }
            done.push(injected.clone());
            false
        });
        std::thread::sleep(PAUSE);
    }
    done
}

/// Begins a fault; gives the nodes that it disturbs.
fn inject(deployment: &mut Deployment, planned: &Planned) -> Vec<usize> {
    let node = planned.node;
    match planned.fault {
        Fault::Kill => deployment.nodes[node].kill(),
        Fault::Wipe => {
            deployment.nodes[node].kill();
            deployment.nodes[node].wipe();
            deployment.nodes[node].spawn();
        }
        Fault::Freeze => deployment.nodes[node].freeze(),
        Fault::Restart => {
            deployment.nodes[node].terminate();
            deployment.nodes[node].spawn();
        }
        Fault::Isolate | Fault::Halves | Fault::Bridge | Fault::OneWay => return cut(deployment, planned),
        Fault::Delay | Fault::Loss | Fault::Duplication => impair(deployment, planned),
        Fault::FullDisk => deployment.nodes[node].fill_disk(),
        Fault::ClockJump => {
            let seconds = JUMPS[planned.draw as usize % JUMPS.len()];
            let back = planned.draw / 7 % 2 == 1;
            deployment.nodes[node].set_clock(if back { -seconds } else { seconds });
        }
        Fault::Failover => failover(deployment, node, ""),
        Fault::Force => failover(deployment, node, " FORCE"),
        Fault::Takeover => failover(deployment, node, " TAKEOVER"),
        Fault::SentinelFailover => {
            let sentinel = deployment.mode.servers() + node % 3;
            tell(&deployment.nodes[sentinel], &format!("SENTINEL FAILOVER {}", harness::MASTER));
        }
        Fault::MoveSlot => move_slot(deployment, planned.draw),
        Fault::Configure => configure(&deployment.nodes[node], planned.draw),
        Fault::Stall => {}
    }
    vec![node]
}

fn end(deployment: &mut Deployment, planned: &Planned) {
    match planned.fault {
        Fault::Kill => deployment.nodes[planned.node].spawn(),
        Fault::Freeze => deployment.nodes[planned.node].thaw(),
        Fault::Isolate | Fault::Halves | Fault::Bridge | Fault::OneWay => {
            if let Some(network) = &deployment.network {
                network.heal();
            }
        }
        Fault::Delay | Fault::Loss | Fault::Duplication => {
            if let Some(network) = &deployment.network {
                network.mend(planned.node);
            }
        }
        Fault::FullDisk => deployment.nodes[planned.node].free_disk(),
        Fault::ClockJump => deployment.nodes[planned.node].set_clock(0),
        Fault::Wipe
        | Fault::Restart
        | Fault::Failover
        | Fault::SentinelFailover
        | Fault::Force
        | Fault::Takeover
        | Fault::MoveSlot
        | Fault::Configure
        | Fault::Stall => {}
    }
}

/// Cuts the network; returns the nodes that no longer reach all others.
fn cut(deployment: &Deployment, planned: &Planned) -> Vec<usize> {
    let Some(network) = &deployment.network else { return Vec::new() };
    let all: Vec<usize> = (0..deployment.nodes.len()).collect();
    let (node, draw) = (planned.node, planned.draw);
    match planned.fault {
        Fault::Isolate => {
            network.split(&[&[node]]);
            vec![node]
        }
        Fault::OneWay => {
            let others: Vec<usize> = all.into_iter().filter(|other| *other != node).collect();
            network.lose(node, &others);
            vec![node]
        }
        Fault::Halves => {
            let (one, _): (Vec<usize>, Vec<usize>) = all.iter().partition(|each| draw >> *each & 1 == 1);
            network.split(&[&one]);
            all
        }
        _ => {
            // All but the one in the middle lose what they send to the other side.
            let side = |each: &usize| draw >> *each & 1 == 1;
            for from in all.iter().filter(|from| **from != node) {
                let to: Vec<usize> =
                    all.iter().copied().filter(|to| *to != node && side(to) != side(from)).collect();
                network.lose(*from, &to);
            }
            all
        }
    }
}

/// Makes the line of a host a bad one.
fn impair(deployment: &Deployment, planned: &Planned) {
    let Some(network) = &deployment.network else { return };
    let draw = planned.draw;
    let millis = |most: u64| Duration::from_millis(5 + draw % most);
    let bad = match planned.fault {
        Fault::Delay => Impairment { delay: millis(200), jitter: millis(100), ..Impairment::default() },
        Fault::Loss => Impairment { loss: 5 + (draw % 30) as u32, ..Impairment::default() },
        _ => Impairment { duplication: 50, jitter: millis(10), ..Impairment::default() },
    };
    network.impair(planned.node, bad, draw).expect("the run looked whether it can");
}

/// Tells a node to do something; whether it can is its own affair.
fn tell(node: &Node, line: &str) -> Option<Value> {
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

fn has_role(node: &Node, wanted: &str) -> bool {
    let role = tell(node, "ROLE");
    role.is_some_and(|role| matches!(role, Value::Array(items) if items[0].text() == wanted))
}

/// A failover as an operator asks for it: of the replica in the shard of the node that was drawn.
fn failover(deployment: &Deployment, node: usize, how: &str) {
    let shard = (0..deployment.nodes.len()).filter(|each| each % 3 == node % 3);
    if let Some(replica) = shard.into_iter().find(|each| is_replica(&deployment.nodes[*each])) {
        tell(&deployment.nodes[replica], &format!("CLUSTER FAILOVER{how}"));
    }
}

/// Moves the slot of some key that is written to, as redis-cli does it.
fn move_slot(deployment: &Deployment, draw: u64) {
    let keys = workload::keys();
    let slot = slot_of(&keys[draw as usize % keys.len()]);
    let masters: Vec<usize> =
        (0..deployment.nodes.len()).filter(|each| is_master(&deployment.nodes[*each])).collect();
    if let Some(target) = masters.get(draw as usize / 7 % masters.len().max(1)) {
        // A move that something disturbs is left where it is: healing is the servers' affair.
        let _ = harness::move_slot(&deployment.nodes, slot, *target);
    }
}

/// Settings that a running server takes, and that make it do some work at once.
fn configure(node: &Node, draw: u64) {
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
    tell(node, lines[draw as usize % lines.len()]);
}

/// Returns the first check that fails; none if all is well again: all nodes run, agree and are in step.
pub(crate) fn what_is_wrong(deployment: &mut Deployment) -> Option<String> {
    for node in &mut deployment.nodes {
        if node.has_ended() {
            return Some(format!("the process on {} ended by itself:\n{}", node.port, node.log()));
        }
    }
    match deployment.mode {
        Mode::Cluster => wrong_in_cluster(deployment),
        Mode::Sentinel => wrong_in_group(deployment),
    }
}

fn wrong_in_cluster(deployment: &Deployment) -> Option<String> {
    let mut owners: Option<(u16, Vec<String>)> = None;
    for node in &deployment.nodes {
        let port = node.port;
        let Some(mut connection) = connect(node) else { return Some(format!("{port} does not answer")) };
        let state = harness::cluster_field(&mut connection, "cluster_state");
        if state.as_deref() != Some("ok") {
            return Some(format!("{port} says cluster_state {state:?}"));
        }
        let Some(view) = slots(&mut connection) else { return Some(format!("{port} shows no slots")) };
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
        if let Some(wrong) = wrong_link(&mut connection, port) {
            return Some(wrong);
        }
    }
    None
}

/// Which master serves which slots, in a node's view, with slots that are on their way.
fn slots(connection: &mut Connection) -> Option<Vec<String>> {
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

fn wrong_in_group(deployment: &Deployment) -> Option<String> {
    let (servers, sentinels) = deployment.nodes.split_at(deployment.mode.servers());
    let mut master: Option<String> = None;
    for sentinel in sentinels {
        let Some(Value::Array(address)) =
            tell(sentinel, &format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", harness::MASTER))
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
        if let Some(wrong) = wrong_link(&mut connection, port) {
            return Some(wrong);
        }
        if !is_master && info_field(&mut connection, "replication", "master_port") != master {
            return Some(format!("{port} follows another than {master:?}"));
        }
    }
    None
}

fn wrong_link(connection: &mut Connection, port: u16) -> Option<String> {
    let role = info_field(connection, "replication", "role")?;
    let link = info_field(connection, "replication", "master_link_status");
    (role == "slave" && link.as_deref() != Some("up")).then(|| format!("the link of {port} is {link:?}"))
}

fn connect(node: &Node) -> Option<Connection> {
    let mut connection = node.try_connect().ok()?;
    connection.set_timeout(Duration::from_secs(1));
    let reply = connection.try_call(&["PING"]).ok()?;
    (reply == Value::Simple("PONG".into())).then_some(connection)
}

/// The operator's repair of a slot whose move was disturbed.
fn fix(deployment: &Deployment) {
    let node = &deployment.nodes[0];
    let fixing = node.redis_cli(&["--cluster", "fix", &node.address(), "--cluster-yes"]);
    if let Err(said) = fixing {
        eprintln!("--cluster fix: {said}");
    }
}

/// Waits until nothing is wrong; gives how long that took, and what was still wrong at the bound.
pub(crate) fn heal(deployment: &mut Deployment, bound: Duration) -> (Duration, Option<String>) {
    let began = Instant::now();
    let mut fixed = false;
    loop {
        let Some(wrong) = what_is_wrong(deployment) else { return (began.elapsed(), None) };
        // A slot on its way is shown in brackets. A move that does not end by itself is an operator's affair.
        if !fixed && wrong.contains("->-") | wrong.contains("-<-") && began.elapsed() > UNAIDED {
            fix(deployment);
            fixed = true;
        }
        if began.elapsed() > bound.min(BOUND) {
            return (began.elapsed(), Some(wrong));
        }
        std::thread::sleep(PAUSE * 10);
    }
}
