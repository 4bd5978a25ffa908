//! Runs scenarios on real servers: a cluster or sentinel group of the test kit replaces the
//! scripted nodes.
//!
//! Real servers cannot send a false slot map or cut a reply on demand, so some scenarios are
//! skipped ([`is_supported`]). MONITOR reveals the executed commands, and the error counters of INFO
//! reveal redirections.

mod monitor;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use harness::{Cluster, Connection, Node, Program, Reply, SentinelGroup, move_slot, slot_of, slot_owner};

use crate::event_log::{LogEntry, LogEvent};
use crate::nodes::{Nodes, NodesRecord};
use crate::protocol::DiscoveryMode;
use crate::scenario::{ConnectionHandling, NodeEvent, NodeSpec, ReportedMap, Scenario};
use crate::simulation::{RefusedCommand, first_key};
use monitor::{END_MARKER, MonitorRecord, monitor_node};

/// The server programs to run scenarios on.
#[derive(Debug, Clone)]
pub struct ServerPrograms {
    /// The program that serves data.
    pub server: Program,
    /// The program that runs as sentinel.
    pub sentinel: Program,
}

impl ServerPrograms {
    /// Returns the program's name and version as the program reports them.
    pub(crate) fn name(&self) -> String {
        let told = self.server.command().arg("--version").output();
        let told = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
        let version = told.split_whitespace().find_map(|word| word.strip_prefix("v="));
        format!("{} {}", self.server.name(), version.unwrap_or_default()).trim().to_owned()
    }
}

/// The appendonly options make a killed server restart with its data.
const SERVER_OPTIONS: &str =
    "--cluster-enabled yes --cluster-node-timeout 2000 --appendonly yes --appendfsync always";

/// Timeout of the test program's own requests.
const HARNESS_REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit for the last MONITOR lines to arrive. They arrive late if the machine is busy.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the marker is sent again, because a marker sent before MONITOR was active is not seen.
const MARKER_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The real servers that replace a scenario's scripted nodes.
pub(crate) struct RealNodes {
    shared: Arc<RealServers>,
    /// Threads that carry out events of the scenario after a delay.
    delayed_events: Mutex<Vec<JoinHandle<()>>>,
}

struct RealServers {
    started_at: Instant,
    deployment: Mutex<Deployment>,
    record: Arc<MonitorRecord>,
}

/// The running servers, and which of them plays which node of the scenario.
struct Deployment {
    nodes: Vec<Node>,
    node_index_by_name: BTreeMap<String, usize>,
    master_by_node: BTreeMap<String, String>,
    frozen_nodes: Vec<usize>,
    mode: DiscoveryMode,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether real servers can run the scenario.
#[must_use]
pub(crate) fn is_supported(scenario: &Scenario) -> bool {
    let ordinary = |node: &NodeSpec| {
        !node.absent
            && node.tells == ReportedMap::Current
            && (node.state == ConnectionHandling::Serve
                || node.sentinel && node.state == ConnectionHandling::Refuse)
    };
    let masters = scenario.nodes.values().filter(|node| !node.sentinel && node.replica_of.is_none());
    let (with_slots, without): (Vec<_>, Vec<_>) = masters.partition(|node| !node.slots.is_empty());
    let shape = match scenario.mode {
        DiscoveryMode::Cluster => {
            let mut followed: Vec<&String> =
                scenario.nodes.values().filter_map(|node| node.replica_of.as_ref()).collect();
            let followers = followed.len();
            followed.sort_unstable();
            followed.dedup();
            let one_each = followed.len() == followers;
            one_each
                && without.is_empty()
                && total_slot_count(&with_slots) == usize::from(harness::SLOT_COUNT)
        }
        DiscoveryMode::Sentinel => true,
    };
    let possible = |event: &NodeEvent| match event {
        NodeEvent::SetConnectionHandling { .. }
        | NodeEvent::Promote { .. }
        | NodeEvent::MoveSlot { .. }
        | NodeEvent::RunCommand { .. } => true,
        NodeEvent::ReportMap { .. }
        | NodeEvent::ChangeAddress { .. }
        | NodeEvent::ReplaceCertificate { .. } => false,
    };
    scenario.rules.is_empty()
        && !scenario.tls
        && shape
        && scenario.nodes.values().all(ordinary)
        && scenario.events().all(possible)
}

fn total_slot_count(masters: &[&NodeSpec]) -> usize {
    let ranges = masters.iter().flat_map(|node| &node.slots);
    let lengths = ranges.filter_map(|range| crate::scenario::parse_slot_range(range).ok());
    lengths.map(|(first, last)| usize::from(last - first) + 1).sum()
}

impl RealNodes {
    /// Starts the servers and waits until the cluster or sentinel group is healthy.
    pub(crate) fn start(scenario: &Scenario, servers: &ServerPrograms) -> Self {
        let deployment = match scenario.mode {
            DiscoveryMode::Cluster => start_cluster(scenario, &servers.server),
            DiscoveryMode::Sentinel => start_sentinel_group(scenario, servers),
        };
        let mut names = vec![String::new(); deployment.nodes.len()];
        for (name, node) in &deployment.node_index_by_name {
            names[*node].clone_from(name);
        }
        let ports = deployment.nodes.iter().map(|node| node.port).collect();
        let began = Instant::now();
        let record = Arc::new(MonitorRecord::new(began, names, ports));
        for (index, node) in deployment.nodes.iter().enumerate() {
            if node.is_running() {
                monitor_node(index, node, &record);
            }
        }
        let servers = Arc::new(RealServers { started_at: began, deployment: Mutex::new(deployment), record });
        Self { shared: servers, delayed_events: Mutex::default() }
    }
}

impl RealServers {
    fn now(&self) -> u64 {
        self.started_at.elapsed().as_millis() as u64
    }

    fn log_event(&self, event: LogEvent) {
        let ms = self.now();
        self.record.log_event(LogEntry { ms, node: String::new(), connection: 0, event });
    }

    /// Opens a connection for the test program. Its port is registered, so that the verdict ignores its commands.
    fn harness_connection(&self, node: &Node) -> Option<Connection> {
        let mut connection = node.try_connect().ok()?;
        connection.set_timeout(HARNESS_REQUEST_TIMEOUT);
        // The first request appears in MONITOR output before the port of the connection is known. All later requests
        // are filtered out.
        if let Reply::Bulk(line) = connection.try_call(&["CLIENT", "INFO"]).ok()? {
            self.record.add_harness_port(port_of_client(&String::from_utf8_lossy(&line))?);
        }
        Some(connection)
    }

    /// Applies an event. If the event changes roles or slots, waits until the servers have completed the change.
    fn apply_event(&self, event: &NodeEvent) {
        self.log_event(LogEvent::NodesChanged(event.describe()));
        let mut deployment = lock(&self.deployment);
        match event {
            NodeEvent::SetConnectionHandling { node, state, .. } => {
                let Some(index) = deployment.node_index_by_name.get(node).copied() else { return };
                let was_running = deployment.nodes[index].is_running();
                if *state != ConnectionHandling::Serve {
                    self.wait_for_replicas(&deployment, &deployment.nodes[index]);
                }
                deployment.set_connection_handling(index, *state);
                if !was_running && deployment.nodes[index].is_running() {
                    monitor_node(index, &deployment.nodes[index], &self.record);
                }
            }
            NodeEvent::Promote { node, .. } => {
                let reply = deployment.promote(node);
                if deployment.mode == DiscoveryMode::Sentinel {
                    // A role change closes MONITOR connections like those of clients, so wait until they are open
                    // again.
                    self.wait_for_monitor(&deployment);
                }
                drop(deployment);
                self.log_event(LogEvent::AdapterAnswered(format!("{reply:?}")));
            }
            NodeEvent::MoveSlot { key, to, .. } => {
                let Some(target) = deployment.node_index_by_name.get(to).copied() else { return };
                let moved = move_slot(&deployment.nodes, slot_of(key), target);
                drop(deployment);
                self.log_event(LogEvent::AdapterAnswered(format!("{moved:?}")));
            }
            NodeEvent::RunCommand { command, .. } => self.run_as_other_client(&deployment, command),
            // `is_supported` excludes scenarios with this kind of event.
            NodeEvent::ReportMap { .. }
            | NodeEvent::ChangeAddress { .. }
            | NodeEvent::ReplaceCertificate { .. } => {}
        }
    }

    /// Waits until all running replicas of a node have its data. Otherwise the servers would lose writes when the
    /// master dies, which is not the client's fault.
    fn wait_for_replicas(&self, deployment: &Deployment, master: &Node) {
        let figure = |node: &Node, field: &str| {
            let mut connection = self.harness_connection(node)?;
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
        let until = Instant::now() + HARNESS_REQUEST_TIMEOUT;
        while deployment.running_data_nodes().any(|node| is_behind(&node)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a command as another client would, at the owner of its key or at every data node.
    fn run_as_other_client(&self, deployment: &Deployment, command: &[String]) {
        let Some(key) = first_key(command) else {
            for node in deployment.running_data_nodes() {
                let _ = self.harness_connection(node).map(|mut connection| connection.try_call(command));
            }
            return;
        };
        harness::eventually("another client's command is run", || {
            deployment.running_data_nodes().find_map(|node| {
                let mut connection = self.harness_connection(node)?;
                let is_owner = match deployment.mode {
                    DiscoveryMode::Cluster => slot_owner(&mut connection, slot_of(key)) == Some(node.port),
                    DiscoveryMode::Sentinel => node.info("replication", "role")? == "master",
                };
                let reply = is_owner.then(|| connection.try_call(command).ok()).flatten()?;
                (!reply.is_error("")).then_some(())
            })
        });
    }

    /// Waits until all MONITOR lines have arrived. For this it sends a marker command to each node and waits until
    /// MONITOR shows it.
    fn wait_for_monitor(&self, deployment: &Deployment) {
        self.record.clear_markers();
        let is_watched =
            |index: &usize| !deployment.frozen_nodes.contains(index) && self.record.is_monitored(*index);
        let nodes = deployment.nodes.iter().enumerate();
        let mut missing: Vec<usize> = nodes
            .filter(|(index, node)| node.is_running() && is_watched(index))
            .map(|(index, _)| index)
            .collect();
        let until = Instant::now() + MONITOR_TIMEOUT;
        // After the timeout the verdict is based on the lines that have arrived.
        while !missing.is_empty() && Instant::now() < until {
            for index in &missing {
                let mark = |mut connection: Connection| connection.try_call(&["ECHO", END_MARKER]).ok();
                let _ = self.harness_connection(&deployment.nodes[*index]).and_then(mark);
            }
            missing = self.record.nodes_without_marker(&missing, MARKER_RETRY_INTERVAL);
        }
    }

    fn refused_commands(&self, deployment: &Deployment) -> Vec<RefusedCommand> {
        let mut refused = Vec::new();
        for (index, node) in deployment.nodes.iter().enumerate() {
            if !node.is_running() || deployment.frozen_nodes.contains(&index) {
                continue;
            }
            for code in ["MOVED", "ASK"] {
                let told = node.info("errorstats", &format!("errorstat_{code}"));
                let count: usize =
                    told.and_then(|told| told.strip_prefix("count=")?.parse().ok()).unwrap_or(0);
                let one =
                    RefusedCommand { ms: 0, step: 0, node: index, code: code.to_owned(), args: Vec::new() };
                refused.extend(std::iter::repeat_n(one, count));
            }
        }
        refused
    }
}

/// Parses the port from the `addr` field of CLIENT INFO.
fn port_of_client(line: &str) -> Option<u16> {
    let address = line.split_whitespace().find_map(|field| field.strip_prefix("addr="))?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// Starts one master for each scenario node with slots, in the order of the slots. Each master gets one replica if the
/// scenario has replicas.
fn start_cluster(scenario: &Scenario, program: &Program) -> Deployment {
    let mut masters: Vec<(&String, &NodeSpec)> =
        scenario.nodes.iter().filter(|(_, node)| !node.slots.is_empty()).collect();
    masters.sort_by_key(|(_, node)| crate::scenario::parse_slot_range(&node.slots[0]).unwrap_or_default());
    let followers = scenario.nodes.iter().filter_map(|(name, node)| Some((name, node.replica_of.as_ref()?)));
    let followers: Vec<(&String, &String)> = followers.collect();
    let count = masters.len() * if followers.is_empty() { 1 } else { 2 };
    let nodes = (0..count).map(|_| Node::start(program, SERVER_OPTIONS)).collect();
    let cluster = Cluster::join_nodes(nodes, masters.len());
    let mut of: BTreeMap<String, usize> =
        masters.iter().enumerate().map(|(index, (name, _))| ((*name).clone(), index)).collect();
    for (name, master) in &followers {
        if let Some(index) = of.get(*master) {
            of.insert((*name).clone(), index + masters.len());
        }
    }
    let masters = followers.into_iter().map(|(name, master)| (name.clone(), master.clone())).collect();
    Deployment {
        nodes: cluster.nodes,
        node_index_by_name: of,
        master_by_node: masters,
        frozen_nodes: Vec::new(),
        mode: DiscoveryMode::Cluster,
    }
}

/// Starts three servers and three sentinels. The scenario uses the first server and the first sentinel.
fn start_sentinel_group(scenario: &Scenario, servers: &ServerPrograms) -> Deployment {
    let sentinels = [0; 3].map(|_| servers.sentinel.clone());
    let group = SentinelGroup::start(&servers.server, &sentinels);
    if servers.sentinel == Program::redoubt() {
        group.shorten_timeouts();
    }
    let of_kind = |sentinel: bool| scenario.nodes.iter().filter(move |(_, node)| node.sentinel == sentinel);
    let mut data: Vec<(&String, &NodeSpec)> = of_kind(false).collect();
    data.sort_by_key(|(_, node)| node.replica_of.is_some());
    let numbered = data.into_iter().zip(0..).chain(of_kind(true).zip(3..));
    let of = numbered.map(|((name, _), index)| (name.clone(), index)).collect();
    let nodes = group.servers.into_iter().chain(group.sentinels).collect();
    let mut deployment = Deployment {
        nodes,
        node_index_by_name: of,
        master_by_node: BTreeMap::new(),
        frozen_nodes: Vec::new(),
        mode: DiscoveryMode::Sentinel,
    };
    for (name, node) in &scenario.nodes {
        if node.state != ConnectionHandling::Serve
            && let Some(index) = deployment.node_index_by_name.get(name).copied()
        {
            deployment.set_connection_handling(index, node.state);
        }
    }
    deployment
}

impl Deployment {
    fn set_connection_handling(&mut self, index: usize, state: ConnectionHandling) {
        let node = &mut self.nodes[index];
        match state {
            ConnectionHandling::Serve => {
                if self.frozen_nodes.contains(&index) {
                    node.thaw();
                    self.frozen_nodes.retain(|frozen| *frozen != index);
                }
                if !node.is_running() {
                    node.launch();
                }
            }
            ConnectionHandling::NeverReply => {
                node.freeze();
                self.frozen_nodes.push(index);
            }
            ConnectionHandling::Refuse | ConnectionHandling::CloseAtOnce => {
                if node.is_running() {
                    node.kill();
                }
            }
        }
    }

    /// Promotes a replica: with CLUSTER FAILOVER if its master runs, otherwise with CLUSTER FAILOVER TAKEOVER.
    fn promote(&self, name: &str) -> Option<Reply> {
        let replica = &self.nodes[*self.node_index_by_name.get(name)?];
        match self.mode {
            DiscoveryMode::Cluster => {
                let master = self.node_index_by_name.get(self.master_by_node.get(name)?)?;
                let serves = self.nodes[*master].is_running() && !self.frozen_nodes.contains(master);
                let words = if serves { "CLUSTER FAILOVER" } else { "CLUSTER FAILOVER TAKEOVER" };
                let reply = replica.run(words);
                harness::eventually("the replica is the master", || {
                    (replica.info("replication", "role")? == "master").then_some(())
                });
                Some(reply)
            }
            // If the master is down, the sentinels fail over on their own.
            DiscoveryMode::Sentinel => {
                let serves = self.nodes[0].is_running() && !self.frozen_nodes.contains(&0);
                serves.then(|| self.fail_over_to_another())?
            }
        }
    }

    /// Makes the sentinels fail over to another server than the first one. Sentinels demote the old master only after
    /// some seconds, so it is demoted here at once; writes to it in the meantime would be lost.
    fn fail_over_to_another(&self) -> Option<Reply> {
        let old = &self.nodes[0];
        let sentinel = self.nodes[3..].iter().find(|node| node.is_running())?;
        let reply = sentinel.run(&format!("SENTINEL FAILOVER {}", harness::MASTER_NAME));
        let question = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", harness::MASTER_NAME);
        let new = harness::eventually("the sentinels name another master", || {
            let Reply::Array(told) = sentinel.run(&question) else { return None };
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
        // The sentinels may close this connection together with the others.
        let _ = orders.iter().try_for_each(|words| connection.try_call(words).map(drop));
        Some(reply)
    }

    fn running_nodes(&self) -> impl Iterator<Item = &Node> {
        let frozen = |index: &usize| self.frozen_nodes.contains(index);
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(index, node)| node.is_running() && !frozen(index))
            .map(|(_, node)| node)
    }

    /// Returns the running, unfrozen nodes that hold data, which excludes sentinels.
    fn running_data_nodes(&self) -> impl Iterator<Item = &Node> {
        let sentinels = match self.mode {
            DiscoveryMode::Cluster => &[],
            DiscoveryMode::Sentinel => &self.nodes[3..],
        };
        self.running_nodes().filter(move |node| sentinels.iter().all(|sentinel| sentinel.port != node.port))
    }
}

impl Nodes for RealNodes {
    fn now(&self) -> u64 {
        self.shared.now()
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let deployment = lock(&self.shared.deployment);
        deployment
            .node_index_by_name
            .iter()
            .map(|(name, index)| (name.clone(), deployment.nodes[*index].address()))
            .collect()
    }

    fn ca_file(&self) -> Option<&Path> {
        None
    }

    fn log_event(&self, event: LogEvent) {
        self.shared.log_event(event);
    }

    fn apply_event(&self, event: &NodeEvent) {
        if event.after_ms() == 0 {
            self.shared.apply_event(event);
            return;
        }
        let (servers, event) = (Arc::clone(&self.shared), event.clone());
        lock(&self.delayed_events).push(thread::spawn(move || {
            thread::sleep(Duration::from_millis(event.after_ms()));
            servers.apply_event(&event);
        }));
    }

    fn publish(&self, channel: &str, data: &str, is_sharded: bool) {
        let deployment = lock(&self.shared.deployment);
        for node in deployment.running_nodes() {
            let Some(mut connection) = self.shared.harness_connection(node) else { continue };
            let name = if is_sharded { "SPUBLISH" } else { "PUBLISH" };
            // A sharded message must be published at the owner of its slot; any other message can be published at any
            // node.
            let is_wrong = is_sharded && slot_owner(&mut connection, slot_of(channel)) != Some(node.port);
            if !is_wrong && matches!(connection.try_call(&[name, channel, data]), Ok(Reply::Int(_))) {
                return;
            }
        }
    }

    fn take_record(&self) -> NodesRecord {
        for event in lock(&self.delayed_events).drain(..) {
            if let Err(panic) = event.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let deployment = lock(&self.shared.deployment);
        self.shared.wait_for_monitor(&deployment);
        let refused = self.shared.refused_commands(&deployment);
        let (log, executed) = self.shared.record.take_commands();
        // Resume stopped processes so that killing them leaves nothing behind.
        deployment.frozen_nodes.iter().for_each(|index| deployment.nodes[*index].thaw());
        NodesRecord { log, executed_commands: executed, refused_commands: refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_port_is_parsed_from_client_info() {
        assert_eq!(port_of_client("id=3 addr=127.0.0.1:4711 laddr=127.0.0.1:7000 fd=8"), Some(4711));
        assert_eq!(port_of_client("id=3"), None);
    }

    #[test]
    fn scenarios_that_need_scripted_nodes_are_not_supported() {
        let names: Vec<String> = crate::scenario_files::built_in_scenarios()
            .unwrap()
            .into_iter()
            .filter(is_supported)
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
