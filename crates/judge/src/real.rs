//! Scenarios on real servers: the test kit's cluster or sentinel group in the place of scripted nodes.
//!
//! Not every scenario can be played so: real servers do not lie about their map, nor break off a reply on demand
//! ([`can_play`]). MONITOR tells which commands they ran, and INFO's counts of errors how often they redirected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Cluster, Connection, Group, Node, Program, Value, move_slot, slot_of, slot_owner};

use crate::log::{Entry, Happened};
use crate::nodes::{Nodes, Seen};
use crate::protocol::Mode;
use crate::scenario::{Act, Event, NetState, NodeSpec, Scenario, Tells};
use crate::stage::{Executed, Refusal};

/// The servers that scenarios are played on.
#[derive(Debug, Clone)]
pub struct Servers {
    /// For data.
    pub server: Program,
    /// For watching.
    pub sentinel: Program,
}

/// A server that is killed and started again has its data.
const OPTIONS: &str =
    "--cluster-enabled yes --cluster-node-timeout 2000 --appendonly yes --appendfsync always";

/// Real servers of a scenario.
pub(crate) struct RealNodes {
    began: Instant,
    names: Vec<String>,
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

#[derive(Default)]
struct Record {
    over: AtomicBool,
    log: Mutex<Vec<Entry>>,
    executed: Mutex<Vec<Executed>>,
    /// The ports of the judge's own clients, which are not to be judged.
    own: Mutex<BTreeSet<u16>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether real servers can do what the scenario wants of its nodes.
#[must_use]
pub(crate) fn can_play(scenario: &Scenario) -> bool {
    let ordinary = |node: &NodeSpec| {
        node.tells == Tells::Truth
            && (node.state == NetState::Up || node.sentinel && node.state == NetState::Refuses)
    };
    let masters = scenario.nodes.values().filter(|node| !node.sentinel && node.replica_of.is_none());
    let (with_slots, without): (Vec<_>, Vec<_>) = masters.partition(|node| !node.slots.is_empty());
    let shape = match scenario.mode {
        Mode::Cluster => without.is_empty() && slots_in_all(&with_slots) == usize::from(harness::SLOTS),
        Mode::Sentinel => true,
    };
    let tells = |act: &Act| matches!(act, Act::Stage(Event::Tells { .. }));
    scenario.rules.is_empty()
        && shape
        && scenario.nodes.values().all(ordinary)
        && !scenario.steps.iter().any(|step| tells(&step.act))
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
        let record = Arc::new(Record::default());
        let began = Instant::now();
        let mut names = vec![String::new(); place.nodes.len()];
        for (name, node) in &place.of {
            names[*node].clone_from(name);
        }
        let ports: Arc<Vec<u16>> = Arc::new(place.nodes.iter().map(|node| node.port).collect());
        for (index, node) in place.nodes.iter().enumerate() {
            let (record, ports) = (Arc::clone(&record), Arc::clone(&ports));
            let watch = Watch { index, name: names[index].clone(), port: node.port, ports, began };
            watch.listening_now(&record);
        }
        Self { began, names, place: Mutex::new(place), record }
    }
}

impl RealNodes {
    /// A connection of the judge's.
    fn own_connection(&self, node: &Node) -> Option<Connection> {
        let mut connection = node.try_connect().ok()?;
        connection.set_timeout(Duration::from_millis(500));
        // The log has this request, which comes before the port is known; it has none of the later ones.
        if let Value::Bulk(line) = connection.try_call(&["CLIENT", "INFO"]).ok()? {
            lock(&self.record.own).extend(port_of_client(&String::from_utf8_lossy(&line)));
        }
        Some(connection)
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
        if node.state != NetState::Up {
            place.net(name, node.state);
        }
    }
    place
}

impl Deployment {
    fn net(&mut self, name: &str, state: NetState) {
        let Some(index) = self.of.get(name).copied() else { return };
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
                let sentinel = self.nodes[3..].iter().find(|node| node.is_running())?;
                serves.then(|| sentinel.run(&format!("SENTINEL FAILOVER {}", harness::MASTER)))
            }
        }
    }

    fn running(&self) -> impl Iterator<Item = &Node> {
        let frozen = |index: &usize| self.frozen.contains(index);
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(index, node)| node.is_running() && !frozen(index))
            .map(|(_, node)| node)
    }
}

/// One node's MONITOR, attached again whenever the node is started again.
struct Watch {
    index: usize,
    name: String,
    port: u16,
    /// The ports of all nodes: commands from there are replication.
    ports: Arc<Vec<u16>>,
    began: Instant,
}

impl Watch {
    /// Returns once MONITOR is on, if the node serves.
    fn listening_now(self, record: &Arc<Record>) {
        let first = self.attach();
        let record = Arc::clone(record);
        thread::spawn(move || {
            let mut connection = first;
            while !record.over.load(Ordering::Acquire) {
                match &mut connection {
                    Some(open) => {
                        if !self.read(open, &record) {
                            connection = None;
                        }
                    }
                    None => {
                        thread::sleep(Duration::from_millis(20));
                        connection = self.attach();
                    }
                }
            }
        });
    }

    fn attach(&self) -> Option<Connection> {
        let mut connection = Connection::open(("127.0.0.1", self.port)).ok()?;
        connection.set_timeout(Duration::from_millis(200));
        (connection.try_call(&["MONITOR"]).ok()? == Value::Simple("OK".to_owned())).then_some(connection)
    }

    /// Reads one line, if one comes; whether the connection goes on.
    fn read(&self, connection: &mut Connection, record: &Record) -> bool {
        if !connection.has_come() {
            thread::sleep(Duration::from_millis(2));
            return true;
        }
        let Ok(Value::Simple(line)) = connection.read() else { return false };
        let Some((from, args)) = monitored(&line) else { return true };
        let is_ours = args.first().is_some_and(|name| {
            ["PING", "INFO", "REPLCONF", "PSYNC", "MONITOR"]
                .iter()
                .any(|word| name.eq_ignore_ascii_case(word))
        });
        if self.ports.contains(&from) || is_ours || lock(&record.own).contains(&from) {
            return true;
        }
        let ms = self.began.elapsed().as_millis() as u64;
        let what = Happened::Asked(crate::stage::shown(&args));
        lock(&record.log).push(Entry { ms, node: self.name.clone(), connection: from.into(), what });
        lock(&record.executed).push(Executed { ms, node: self.index, args });
        true
    }
}

/// The client's port and the words of a line of MONITOR: `1.5 [0 127.0.0.1:7] "GET" "k"`.
fn monitored(line: &str) -> Option<(u16, Vec<String>)> {
    let (_, rest) = line.split_once(" [")?;
    let (from, words) = rest.split_once("] ")?;
    let port = from.rsplit_once(':')?.1.parse().ok()?;
    resp::split_words(words).map(|words| (port, words))
}

impl Nodes for RealNodes {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let place = lock(&self.place);
        place.of.iter().map(|(name, index)| (name.clone(), place.nodes[*index].address())).collect()
    }

    fn note(&self, what: Happened) {
        let ms = self.now();
        lock(&self.record.log).push(Entry { ms, node: String::new(), connection: 0, what });
    }

    /// Carries out an event after its delay, in this thread: a real failover is waited for by the client's tries.
    fn event(&self, event: &Event) {
        thread::sleep(Duration::from_millis(event.after_ms()));
        self.note(Happened::Event(format!("{event:?}")));
        let mut place = lock(&self.place);
        match event {
            Event::Net { node, state, .. } => place.net(node, *state),
            Event::Promote { node, .. } => {
                let reply = place.promote(node);
                drop(place);
                self.note(Happened::Said(format!("{reply:?}")));
            }
            Event::Move { key, to, .. } => {
                let Some(target) = place.of.get(to).copied() else { return };
                let moved = move_slot(&place.nodes, slot_of(key), target);
                drop(place);
                self.note(Happened::Said(format!("{moved:?}")));
            }
            Event::Tells { .. } => {}
        }
    }

    fn publish(&self, channel: &str, data: &str, sharded: bool) {
        let place = lock(&self.place);
        for node in place.running() {
            let Some(mut connection) = self.own_connection(node) else { continue };
            let name = if sharded { "SPUBLISH" } else { "PUBLISH" };
            // A sharded message goes to its slot's owner; any node of a cluster takes another, and one is enough.
            let is_wrong = sharded && slot_owner(&mut connection, slot_of(channel)) != Some(node.port);
            if !is_wrong && matches!(connection.try_call(&[name, channel, data]), Ok(Value::Int(_))) {
                return;
            }
        }
    }

    fn seen(&self) -> Seen {
        // MONITOR's lines are on their way for a moment.
        thread::sleep(Duration::from_millis(100));
        let mut refused = Vec::new();
        let place = lock(&self.place);
        for (index, node) in place.nodes.iter().enumerate() {
            if !node.is_running() || place.frozen.contains(&index) {
                continue;
            }
            for code in ["MOVED", "ASK"] {
                let told = node.info("errorstats", &format!("errorstat_{code}"));
                let count: usize =
                    told.and_then(|told| told.strip_prefix("count=")?.parse().ok()).unwrap_or(0);
                let one = Refusal { ms: 0, node: index, code: code.to_owned(), args: Vec::new() };
                refused.extend(std::iter::repeat_n(one, count));
            }
        }
        for index in &place.frozen {
            place.nodes[*index].thaw();
        }
        self.record.over.store(true, Ordering::Release);
        let mut log = std::mem::take(&mut *lock(&self.record.log));
        log.sort_by_key(|entry| entry.ms);
        let executed = std::mem::take(&mut *lock(&self.record.executed));
        drop(place);
        debug_assert!(executed.iter().all(|executed| executed.node < self.names.len()));
        Seen { log, executed, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_monitor_has_its_client_and_its_words() {
        let line = r#"1700000000.5 [0 127.0.0.1:4711] "SET" "a key" "x\"y""#;
        assert_eq!(monitored(line), Some((4711, ["SET", "a key", "x\"y"].map(str::to_owned).to_vec())));
        assert_eq!(monitored("OK"), None);
        assert_eq!(monitored(r#"1.5 [0 lua] "GET" "k""#), None, "a script's calls are its own");
    }

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
