//! A deployment: a server, a cluster or a sentinel group.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::{Cluster, Connection, Group, MASTER, Node, Program, Relays, Value};

use super::request::{DeploymentState, Kind, NodeState, Start};

/// Timeout of a query to a node.
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
const CLUSTER: &str = "--cluster-enabled yes --cluster-node-timeout 2000";
/// Maximum number of nodes, to catch mistakes in requests.
const MAX_NODES: usize = 100;

pub(super) struct Deployment {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Servers first, then sentinels.
    pub(super) nodes: Vec<Node>,
    pub(super) relays: Option<Relays>,
    pub(super) frozen: BTreeSet<usize>,
}

impl Deployment {
    pub(super) fn start(name: String, start: &Start) -> Result<Self> {
        let count = start.masters.saturating_mul(start.replicas.saturating_add(1));
        ensure!((1..=MAX_NODES).contains(&count), "a cluster has one to {MAX_NODES} nodes, not {count}");
        let program = start.program.as_deref().map_or_else(Program::redoubt, Program::named);
        let relays = start.partitions.then(Relays::make).transpose().map_err(anyhow::Error::msg)?;
        if let Some(certificates) = &start.tls {
            certificates.canonicalize().with_context(|| format!("{}", certificates.display()))?;
            ensure!(
                start.kind != Kind::Sentinel || !start.partitions,
                "a sentinel group with TLS does not support partitions: relays only forward plain ports"
            );
        }
        let prepare_any = |number: usize, kind: harness::RelayedProcess| {
            let mut node = match &relays {
                Some(relays) => Node::prepare_behind(relays, number, kind, &program),
                None => Node::prepare(&program, ""),
            };
            if let Some(certificates) = &start.tls {
                node.speak_tls(certificates);
            }
            node
        };
        let prepare = |number: usize, kind: harness::RelayedProcess, options: &str| {
            let mut node = prepare_any(number, kind);
            node.add_options("--save --repl-diskless-sync-delay 0");
            node.add_options(options);
            for option in &start.options {
                node.add_options(option);
            }
            node
        };
        let nodes = match start.kind {
            Kind::Server => {
                let mut node = prepare(0, harness::RelayedProcess::Server, "");
                node.launch();
                vec![node]
            }
            Kind::Cluster => {
                let clustered = |number| prepare(number, harness::RelayedProcess::Clustered, CLUSTER);
                let mut nodes: Vec<Node> = (0..count).map(clustered).collect();
                nodes.iter_mut().for_each(Node::launch);
                Cluster::join(nodes, start.masters).nodes
            }
            Kind::Sentinel => {
                let group = Group::assemble(|number| match number {
                    0..3 => prepare(number, harness::RelayedProcess::Server, ""),
                    _ => prepare_any(number, harness::RelayedProcess::Sentinel),
                });
                group.shorten_timeouts();
                group.servers.into_iter().chain(group.sentinels).collect()
            }
        };
        Ok(Self { name, kind: start.kind, nodes, relays, frozen: BTreeSet::new() })
    }

    /// Number of servers, which are the first nodes.
    pub(super) fn servers(&self) -> usize {
        match self.kind {
            Kind::Server | Kind::Cluster => self.nodes.len(),
            Kind::Sentinel => self.nodes.len() / 2,
        }
    }

    pub(super) fn node(&mut self, number: usize) -> Result<&mut Node> {
        let count = self.nodes.len();
        self.nodes
            .get_mut(number)
            .with_context(|| format!("there is no node {number}, only 0 to {}", count - 1))
    }

    /// The port that other nodes use.
    fn port(&self, number: usize) -> u16 {
        let node = &self.nodes[number];
        match self.kind {
            Kind::Server | Kind::Cluster => node.port,
            Kind::Sentinel => Group::port_of(node),
        }
    }

    /// The number of the node with this port.
    pub(super) fn on_port(&self, port: u16) -> Option<usize> {
        (0..self.nodes.len()).find(|number| self.port(*number) == port)
    }

    /// Sends a command to a node.
    ///
    /// # Errors
    /// The node does not respond, or replies with an error.
    pub(super) fn ask(&self, number: usize, line: &str) -> Result<Value> {
        let node = self.nodes.get(number).with_context(|| format!("there is no node {number}"))?;
        ensure!(node.is_running() && !self.frozen.contains(&number), "node {number} is not running");
        let mut connection = connect(node)?;
        match connection.try_call(&line.split(' ').collect::<Vec<_>>())? {
            Value::Error(text) => bail!("node {number}: {text}"),
            reply => Ok(reply),
        }
    }

    /// The nodes that are running and not frozen.
    pub(super) fn responsive_nodes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len())
            .filter(|number| self.nodes[*number].is_running() && !self.frozen.contains(number))
    }

    pub(super) fn show(&self) -> DeploymentState {
        let nodes = (0..self.nodes.len()).map(|number| self.show_node(number)).collect();
        let master_name = (self.kind == Kind::Sentinel).then_some(MASTER);
        DeploymentState { place: self.name.clone(), kind: self.kind, master_name, nodes }
    }

    fn show_node(&self, number: usize) -> NodeState {
        let node = &self.nodes[number];
        let role = self.ask(number, "ROLE").ok();
        let items = role.as_ref().map_or(&[][..], Value::items);
        let word = items.first().map(Value::text);
        let master = items.get(2).filter(|_| word.as_deref() == Some("slave"));
        let master = master.and_then(|port| match port {
            Value::Int(port) => self.on_port(u16::try_from(*port).ok()?),
            _ => None,
        });
        NodeState {
            node: number,
            role: word.map(|word| if word == "slave" { "replica".to_owned() } else { word }),
            host: "127.0.0.1",
            port: node.port,
            tls_port: node.tls_port(),
            pid: node.is_running().then(|| node.pid()),
            frozen: self.frozen.contains(&number),
            master,
            slots: if self.kind == Kind::Cluster {
                self.slots(number).unwrap_or_default()
            } else {
                Vec::new()
            },
            folder: node.folder().to_owned(),
        }
    }

    /// The slots that a node reports as its own.
    fn slots(&self, number: usize) -> Result<Vec<(u16, u16)>> {
        let nodes = self.ask(number, "CLUSTER NODES")?.text();
        let line = nodes.lines().find(|line| line.contains("myself"));
        let words = line.unwrap_or_default().split(' ').skip(8);
        Ok(words.filter_map(range).collect())
    }

    /// Checks that all running nodes agree and all replicas are in sync.
    ///
    /// # Errors
    /// The failed check.
    pub(super) fn check_whole(&self) -> Result<()> {
        match self.kind {
            Kind::Server => self.ask(0, "PING").map(drop),
            Kind::Cluster => self.check_cluster(),
            Kind::Sentinel => self.check_group(),
        }
    }

    fn check_cluster(&self) -> Result<()> {
        let mut agreed = None;
        for number in self.responsive_nodes() {
            let info = self.ask(number, "CLUSTER INFO")?.text();
            ensure!(info.contains("cluster_state:ok"), "node {number} does not report cluster_state:ok");
            let view = self.owners(number)?;
            let first = agreed.get_or_insert_with(|| view.clone());
            ensure!(*first == view, "node {number} has a different view of the slot owners");
            self.check_link(number)?;
        }
        Ok(())
    }

    fn check_group(&self) -> Result<()> {
        let mut agreed = None;
        for sentinel in self.responsive_nodes().filter(|number| *number >= self.servers()) {
            let port = self.master_port(sentinel)?;
            let first = *agreed.get_or_insert(port);
            ensure!(first == port, "sentinels disagree about the master: {first} and {port}");
            let master = harness::field_map(&self.ask(sentinel, &format!("SENTINEL MASTER {MASTER}"))?);
            let busy = master.get("flags").is_some_and(|flags| flags.contains("failover"));
            ensure!(!busy, "node {sentinel} is in a failover");
        }
        for server in self.responsive_nodes().filter(|number| *number < self.servers()) {
            let is_named = agreed == Some(self.port(server));
            let role = self.ask(server, "ROLE")?.items()[0].text();
            ensure!((role == "master") == is_named, "node {server} is a {role}");
            self.check_link(server)?;
        }
        Ok(())
    }

    /// Checks that a replica is connected to its master.
    fn check_link(&self, number: usize) -> Result<()> {
        let role = self.ask(number, "ROLE")?;
        let state = role.items().get(3).filter(|_| role.items()[0].text() == "slave").map(Value::text);
        let up = state.as_deref().is_none_or(|state| state == "connected");
        ensure!(up, "replica {number} is not in sync: {}", state.unwrap_or_default());
        Ok(())
    }

    /// The port of the master according to a sentinel.
    pub(super) fn master_port(&self, sentinel: usize) -> Result<u16> {
        let reply = self.ask(sentinel, &format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER}"))?;
        Ok(reply.items()[1].text().parse()?)
    }

    /// The slot ranges in a node's view: first slot, last slot and port of the owner.
    fn owners(&self, number: usize) -> Result<Vec<(u16, u16, u16)>> {
        let nodes = self.ask(number, "CLUSTER NODES")?.text();
        let mut owners = Vec::new();
        for line in nodes.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, address, flags, ..] = words[..] else { continue };
            if flags.contains("fail") {
                continue;
            }
            let port = address.split('@').next().and_then(|address| address.rsplit(':').next());
            let port: u16 = port.unwrap_or_default().parse()?;
            let ranges = words.iter().skip(8).filter_map(|word| range(word));
            owners.extend(ranges.map(|(first, last)| (first, last, port)));
        }
        owners.sort_unstable();
        Ok(owners)
    }

    /// Checks that all responsive nodes know another owner of the slots, or another master, instead of this node.
    pub(super) fn check_replaced(&self, number: usize) -> Result<()> {
        self.nodes.get(number).with_context(|| format!("there is no node {number}"))?;
        let old = self.port(number);
        match self.kind {
            Kind::Server => bail!("a single server has no replica"),
            Kind::Cluster => {
                for other in self.responsive_nodes().filter(|other| *other != number) {
                    let owners = self.owners(other)?;
                    let covered: u32 =
                        owners.iter().map(|(first, last, _)| u32::from(last - first) + 1).sum();
                    let by_others = owners.iter().all(|(_, _, port)| *port != old);
                    ensure!(by_others, "node {other} still sees node {number} as the owner of its slots");
                    ensure!(covered == u32::from(harness::SLOTS), "node {other} sees slots without an owner");
                }
            }
            Kind::Sentinel => {
                for sentinel in
                    self.responsive_nodes().filter(|other| *other >= self.servers() && *other != number)
                {
                    let port = self.master_port(sentinel)?;
                    ensure!(port != old, "sentinel {sentinel} still reports node {number} as the master");
                    let server = self.on_port(port).context("an unknown server")?;
                    let role = self.ask(server, "ROLE")?.items()[0].text();
                    ensure!(role == "master", "the new master is still a {role}");
                }
            }
        }
        Ok(())
    }
}

/// Waits until `condition` succeeds and returns the seconds.
///
/// # Errors
/// The last error of `condition` after the timeout.
pub(super) fn wait_until(seconds: f64, condition: impl Fn() -> Result<()>) -> Result<f64> {
    let bound = Duration::try_from_secs_f64(seconds).context("invalid number of seconds")?;
    let began = Instant::now();
    loop {
        match condition() {
            Ok(()) => return Ok(began.elapsed().as_secs_f64()),
            Err(error) if began.elapsed() > bound => return Err(error.context("timeout")),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn connect(node: &Node) -> Result<Connection> {
    let mut connection = node.try_connect()?;
    connection.set_timeout(TIMEOUT);
    Ok(connection)
}

/// Parses a slot range. Migrating slots are in brackets, which do not parse, and also included in ranges.
fn range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}
