//! Scenarios on real servers: the test kit's cluster or sentinel group in the place of scripted nodes.
//!
//! Not every scenario can be played so: real servers do not lie about their map, nor break off a reply on demand
//! ([`can_play`]). MONITOR tells which commands they ran, and INFO's counts of errors how often they redirected.

mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use harness::{Cluster, Connection, Group, Node, Program, Value, move_slot, slot_of, slot_owner};

use crate::log::{Entry, Happened};
use crate::nodes::{Nodes, Seen};
use crate::protocol::Mode;
use crate::scenario::{Event, NetState, NodeSpec, Scenario, Tells};
use crate::stage::{Refusal, first_key};
use watch::{MARK, Record, watch};

/// The servers that scenarios are played on.
#[derive(Debug, Clone)]
pub struct Servers {
    /// For data.
    pub server: Program,
    /// For watching.
    pub sentinel: Program,
}

impl Servers {
    /// The program's name and version, in its own words.
    pub(crate) fn name(&self) -> String {
        let told = self.server.command().arg("--version").output();
        let told = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
        let version = told.split_whitespace().find_map(|word| word.strip_prefix("v="));
        format!("{} {}", self.server.name(), version.unwrap_or_default()).trim().to_owned()
    }
}

/// A server that is killed and started again has its data.
const OPTIONS: &str =
    "--cluster-enabled yes --cluster-node-timeout 2000 --appendonly yes --appendfsync always";

/// How long the judge waits for an answer to a question of its own.
const ANSWER: Duration = Duration::from_millis(500);
/// How long MONITOR's last lines may take, on a busy machine.
const LAST_LINES: Duration = Duration::from_secs(5);
/// A mark that was made while no MONITOR was on is made again after so long.
const NEXT_MARK: Duration = Duration::from_millis(200);

/// Real servers of a scenario.
pub(crate) struct RealNodes {
    servers: Arc<Inner>,
    /// Events that happen later.
    later: Mutex<Vec<JoinHandle<()>>>,
}

struct Inner {
    began: Instant,
    place: Mutex<Deployment>,
    record: Arc<Record>,
}

/// The servers, and which of them each of the scenario's nodes is.
struct Deployment {
    nodes: Vec<Node>,
    of: BTreeMap<String, usize>,
    masters: BTreeMap<String, String>,
    frozen: Vec<usize>,
    mode: Mode,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether real servers can do what the scenario wants of its nodes.
#[must_use]
pub(crate) fn can_play(scenario: &Scenario) -> bool {
    let ordinary = |node: &NodeSpec| {
        !node.absent
            && node.tells == Tells::Truth
            && (node.state == NetState::Up || node.sentinel && node.state == NetState::Refuses)
    };
    let masters = scenario.nodes.values().filter(|node| !node.sentinel && node.replica_of.is_none());
    let (with_slots, without): (Vec<_>, Vec<_>) = masters.partition(|node| !node.slots.is_empty());
    let shape = match scenario.mode {
        Mode::Cluster => {
            let mut followed: Vec<&String> =
                scenario.nodes.values().filter_map(|node| node.replica_of.as_ref()).collect();
            let followers = followed.len();
            followed.sort_unstable();
            followed.dedup();
            let one_each = followed.len() == followers;
            one_each && without.is_empty() && slots_in_all(&with_slots) == usize::from(harness::SLOTS)
        }
        Mode::Sentinel => true,
    };
    let possible = |event: &Event| match event {
        Event::Net { .. } | Event::Promote { .. } | Event::Move { .. } | Event::Run { .. } => true,
        Event::Tells { .. } | Event::Readdress { .. } | Event::Certificate { .. } => false,
    };
    scenario.rules.is_empty()
        && !scenario.tls
        && shape
        && scenario.nodes.values().all(ordinary)
        && scenario.events().all(possible)
}

fn slots_in_all(masters: &[&NodeSpec]) -> usize {
    let ranges = masters.iter().flat_map(|node| &node.slots);
    let lengths = ranges.filter_map(|range| crate::scenario::range_of(range).ok());
    lengths.map(|(first, last)| usize::from(last - first) + 1).sum()
}

impl RealNodes {
    /// Starts them.
    pub(crate) fn open(scenario: &Scenario, servers: &Servers) -> Self {
        let place = match scenario.mode {
            Mode::Cluster => cluster(scenario, &servers.server),
            Mode::Sentinel => group(scenario, servers),
        };
        let mut names = vec![String::new(); place.nodes.len()];
        for (name, node) in &place.of {
            names[*node].clone_from(name);
        }
        let ports = place.nodes.iter().map(|node| node.port).collect();
        let began = Instant::now();
        let record = Arc::new(Record::new(began, names, ports));
        for (index, node) in place.nodes.iter().enumerate() {
            if node.is_running() {
                watch(index, node, &record);
            }
        }
        let servers = Arc::new(Inner { began, place: Mutex::new(place), record });
        Self { servers, later: Mutex::default() }
    }
}

impl Inner {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn note(&self, what: Happened) {
        let ms = self.now();
        self.record.note(Entry { ms, node: String::new(), connection: 0, what });
    }

    /// A connection of the judge's.
    fn own_connection(&self, node: &Node) -> Option<Connection> {
        let mut connection = node.try_connect().ok()?;
        connection.set_timeout(ANSWER);
        // The log has this request, which comes before the port is known; it has none of the later ones.
        if let Value::Bulk(line) = connection.try_call(&["CLIENT", "INFO"]).ok()? {
            self.record.is_own(port_of_client(&String::from_utf8_lossy(&line))?);
        }
        Some(connection)
    }

    /// Carries out an event; one about roles or slots is waited for.
    fn event(&self, event: &Event) {
        self.note(Happened::Event(event.told()));
        let mut place = lock(&self.place);
        match event {
            Event::Net { node, state, .. } => {
                let Some(index) = place.of.get(node).copied() else { return };
                let was_running = place.nodes[index].is_running();
                if *state != NetState::Up {
                    self.let_replicas_catch_up(&place, &place.nodes[index]);
                }
                place.net(index, *state);
                if !was_running && place.nodes[index].is_running() {
                    watch(index, &place.nodes[index], &self.record);
                }
            }
            Event::Promote { node, .. } => {
                let reply = place.promote(node);
                if place.mode == Mode::Sentinel {
                    // With the clients' connections those of MONITOR have ended, and begin anew.
                    self.catch_up(&place);
                }
                drop(place);
                self.note(Happened::Said(format!("{reply:?}")));
            }
            Event::Move { key, to, .. } => {
                let Some(target) = place.of.get(to).copied() else { return };
                let moved = move_slot(&place.nodes, slot_of(key), target);
                drop(place);
                self.note(Happened::Said(format!("{moved:?}")));
            }
            Event::Run { command, .. } => self.run(&place, command),
            // A scenario with one of these is not played here.
            Event::Tells { .. } | Event::Readdress { .. } | Event::Certificate { .. } => {}
        }
    }

    /// Waits until the running replicas of a node have all that it has: what they lack when it dies is lost by the
    /// servers, and no client can be blamed for that.
    fn let_replicas_catch_up(&self, place: &Deployment, master: &Node) {
        let figure = |node: &Node, field: &str| {
            let mut connection = self.own_connection(node)?;
            harness::info_field(&mut connection, "replication", field)
        };
        let offset = |node: &Node, field: &str| figure(node, field)?.parse::<u64>().ok();
        let port = master.port.to_string();
        let Some(written) = offset(master, "master_repl_offset").filter(|_| master.is_running()) else {
            return;
        };
        let is_behind = |node: &&Node| {
            figure(node, "master_port").as_ref() == Some(&port)
                && offset(node, "slave_repl_offset").is_none_or(|there| there < written)
        };
        let until = Instant::now() + ANSWER;
        while place.running_with_data().any(|node| is_behind(&node)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Another client's command.
    fn run(&self, place: &Deployment, command: &[String]) {
        let Some(key) = first_key(command) else {
            for node in place.running_with_data() {
                let _ = self.own_connection(node).map(|mut connection| connection.try_call(command));
            }
            return;
        };
        harness::eventually("another client's command is run", || {
            place.running_with_data().find_map(|node| {
                let mut connection = self.own_connection(node)?;
                let is_owner = match place.mode {
                    Mode::Cluster => slot_owner(&mut connection, slot_of(key)) == Some(node.port),
                    Mode::Sentinel => node.info("replication", "role")? == "master",
                };
                let reply = is_owner.then(|| connection.try_call(command).ok()).flatten()?;
                (!reply.is_error("")).then_some(())
            })
        });
    }

    /// Waits until all lines of MONITOR have come: each node's shows a mark that is made now.
    fn catch_up(&self, place: &Deployment) {
        self.record.forget_marks();
        let is_watched = |index: &usize| !place.frozen.contains(index) && self.record.is_watched(*index);
        let nodes = place.nodes.iter().enumerate();
        let mut missing: Vec<usize> = nodes
            .filter(|(index, node)| node.is_running() && is_watched(index))
            .map(|(index, _)| index)
            .collect();
        let until = Instant::now() + LAST_LINES;
        // Without the last lines a verdict may miss something, and says so by its evidence.
        while !missing.is_empty() && Instant::now() < until {
            for index in &missing {
                let mark = |mut connection: Connection| connection.try_call(&["ECHO", MARK]).ok();
                let _ = self.own_connection(&place.nodes[*index]).and_then(mark);
            }
            missing = self.record.without_mark(&missing, NEXT_MARK);
        }
    }

    fn refusals(&self, place: &Deployment) -> Vec<Refusal> {
        let mut refused = Vec::new();
        for (index, node) in place.nodes.iter().enumerate() {
            if !node.is_running() || place.frozen.contains(&index) {
                continue;
            }
            for code in ["MOVED", "ASK"] {
                let told = node.info("errorstats", &format!("errorstat_{code}"));
                let count: usize =
                    told.and_then(|told| told.strip_prefix("count=")?.parse().ok()).unwrap_or(0);
                let one = Refusal { ms: 0, step: 0, node: index, code: code.to_owned(), args: Vec::new() };
                refused.extend(std::iter::repeat_n(one, count));
            }
        }
        refused
    }
}

/// The port in CLIENT INFO's `addr`.
fn port_of_client(line: &str) -> Option<u16> {
    let address = line.split_whitespace().find_map(|field| field.strip_prefix("addr="))?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// One master with slots for each of the scenario's, in the order of their slots, and a replica each if there is any.
fn cluster(scenario: &Scenario, program: &Program) -> Deployment {
    let mut masters: Vec<(&String, &NodeSpec)> =
        scenario.nodes.iter().filter(|(_, node)| !node.slots.is_empty()).collect();
    masters.sort_by_key(|(_, node)| crate::scenario::range_of(&node.slots[0]).unwrap_or_default());
    let followers = scenario.nodes.iter().filter_map(|(name, node)| Some((name, node.replica_of.as_ref()?)));
    let followers: Vec<(&String, &String)> = followers.collect();
    let count = masters.len() * if followers.is_empty() { 1 } else { 2 };
    let nodes = (0..count).map(|_| Node::start(program, OPTIONS)).collect();
    let cluster = Cluster::join(nodes, masters.len());
    let mut of: BTreeMap<String, usize> =
        masters.iter().enumerate().map(|(index, (name, _))| ((*name).clone(), index)).collect();
    for (name, master) in &followers {
        if let Some(index) = of.get(*master) {
            of.insert((*name).clone(), index + masters.len());
        }
    }
    let masters = followers.into_iter().map(|(name, master)| (name.clone(), master.clone())).collect();
    Deployment { nodes: cluster.nodes, of, masters, frozen: Vec::new(), mode: Mode::Cluster }
}

/// A group is always three servers and three sentinels; the scenario's are the first of each.
fn group(scenario: &Scenario, servers: &Servers) -> Deployment {
    let sentinels = [0; 3].map(|_| servers.sentinel.clone());
    let group = Group::start(&servers.server, &sentinels);
    if servers.sentinel == Program::redoubt() {
        group.hurry();
    }
    let of_kind = |sentinel: bool| scenario.nodes.iter().filter(move |(_, node)| node.sentinel == sentinel);
    let mut data: Vec<(&String, &NodeSpec)> = of_kind(false).collect();
    data.sort_by_key(|(_, node)| node.replica_of.is_some());
    let numbered = data.into_iter().zip(0..).chain(of_kind(true).zip(3..));
    let of = numbered.map(|((name, _), index)| (name.clone(), index)).collect();
    let nodes = group.servers.into_iter().chain(group.sentinels).collect();
    let mut place =
        Deployment { nodes, of, masters: BTreeMap::new(), frozen: Vec::new(), mode: Mode::Sentinel };
    for (name, node) in &scenario.nodes {
        if node.state != NetState::Up
            && let Some(index) = place.of.get(name).copied()
        {
            place.net(index, node.state);
        }
    }
    place
}

impl Deployment {
    fn net(&mut self, index: usize, state: NetState) {
        let node = &mut self.nodes[index];
        match state {
            NetState::Up => {
                if self.frozen.contains(&index) {
                    node.thaw();
                    self.frozen.retain(|frozen| *frozen != index);
                }
                if !node.is_running() {
                    node.launch();
                }
            }
            NetState::Silent => {
                node.freeze();
                self.frozen.push(index);
            }
            NetState::Refuses | NetState::Slams => {
                if node.is_running() {
                    node.kill();
                }
            }
        }
    }

    /// With the master's help where it can give it, without a vote where it is gone.
    fn promote(&self, name: &str) -> Option<Value> {
        let replica = &self.nodes[*self.of.get(name)?];
        match self.mode {
            Mode::Cluster => {
                let master = self.of.get(self.masters.get(name)?)?;
                let serves = self.nodes[*master].is_running() && !self.frozen.contains(master);
                let words = if serves { "CLUSTER FAILOVER" } else { "CLUSTER FAILOVER TAKEOVER" };
                let reply = replica.run(words);
                harness::eventually("the replica is the master", || {
                    (replica.info("replication", "role")? == "master").then_some(())
                });
                Some(reply)
            }
            // If the master is down they do it themselves.
            Mode::Sentinel => {
                let serves = self.nodes[0].is_running() && !self.frozen.contains(&0);
                serves.then(|| self.fail_over_to_another())?
            }
        }
    }

    /// The first server is the master; the sentinels replace it. They leave it a master for some seconds, and then tell it
    /// what it is told here at once: a client that wrote to it meanwhile would have written in vain.
    fn fail_over_to_another(&self) -> Option<Value> {
        let old = &self.nodes[0];
        let sentinel = self.nodes[3..].iter().find(|node| node.is_running())?;
        let reply = sentinel.run(&format!("SENTINEL FAILOVER {}", harness::MASTER));
        let question = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", harness::MASTER);
        let new = harness::eventually("the sentinels name another master", || {
            let Value::Array(told) = sentinel.run(&question) else { return None };
            let port = told.get(1)?.text();
            (port != old.port.to_string()).then_some(port)
        });
        let mut connection = old.connect();
        let orders = [
            &["MULTI"][..],
            &["REPLICAOF", "127.0.0.1", &new],
            &["CLIENT", "KILL", "TYPE", "normal"],
            &["CLIENT", "KILL", "TYPE", "pubsub"],
            &["EXEC"],
        ];
        // The sentinels' own order may end this connection with the others.
        let _ = orders.iter().try_for_each(|words| connection.try_call(words).map(drop));
        Some(reply)
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        let frozen = |index: &usize| self.frozen.contains(index);
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(index, node)| node.is_running() && !frozen(index))
            .map(|(_, node)| node)
    }

    /// All but sentinels.
    fn running_with_data(&self) -> impl Iterator<Item = &Node> {
        let sentinels = match self.mode {
            Mode::Cluster => &[],
            Mode::Sentinel => &self.nodes[3..],
        };
        self.running().filter(move |node| sentinels.iter().all(|sentinel| sentinel.port != node.port))
    }
}

impl Nodes for RealNodes {
    fn now(&self) -> u64 {
        self.servers.now()
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let place = lock(&self.servers.place);
        place.of.iter().map(|(name, index)| (name.clone(), place.nodes[*index].address())).collect()
    }

    fn authority(&self) -> Option<&Path> {
        None
    }

    fn note(&self, what: Happened) {
        self.servers.note(what);
    }

    fn event(&self, event: &Event) {
        if event.after_ms() == 0 {
            self.servers.event(event);
            return;
        }
        let (servers, event) = (Arc::clone(&self.servers), event.clone());
        lock(&self.later).push(thread::spawn(move || {
            thread::sleep(Duration::from_millis(event.after_ms()));
            servers.event(&event);
        }));
    }

    fn publish(&self, channel: &str, data: &str, sharded: bool) {
        let place = lock(&self.servers.place);
        for node in place.running() {
            let Some(mut connection) = self.servers.own_connection(node) else { continue };
            let name = if sharded { "SPUBLISH" } else { "PUBLISH" };
            // A sharded message goes to its slot's owner; any node of a cluster takes another, and one is enough.
            let is_wrong = sharded && slot_owner(&mut connection, slot_of(channel)) != Some(node.port);
            if !is_wrong && matches!(connection.try_call(&[name, channel, data]), Ok(Value::Int(_))) {
                return;
            }
        }
    }

    fn seen(&self) -> Seen {
        for event in lock(&self.later).drain(..) {
            if let Err(panic) = event.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let place = lock(&self.servers.place);
        self.servers.catch_up(&place);
        let refused = self.servers.refusals(&place);
        let (log, executed) = self.servers.record.take();
        // A process that is stopped is killed as any other; it is let go on, so that nothing is left behind it.
        place.frozen.iter().for_each(|index| place.nodes[*index].thaw());
        Seen { log, executed, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judges_own_port_is_known() {
        assert_eq!(port_of_client("id=3 addr=127.0.0.1:4711 laddr=127.0.0.1:7000 fd=8"), Some(4711));
        assert_eq!(port_of_client("id=3"), None);
    }

    #[test]
    fn real_servers_play_what_real_servers_can() {
        let names: Vec<String> = crate::scenarios::built_in()
            .unwrap()
            .into_iter()
            .filter(can_play)
            .map(|scenario| scenario.name)
            .collect();
        for played in ["moved-once", "master-dies", "pipeline-over-a-moved-slot", "sentinel-master-dies"] {
            assert!(names.iter().any(|name| name == played), "{played} is not in {names:?}");
        }
        for scripted in
            ["reply-cut", "map-empty-later", "moved-in-circle", "map-with-holes", "shard-is-added"]
        {
            assert!(names.iter().all(|name| name != scripted), "{scripted}");
        }
    }
}
