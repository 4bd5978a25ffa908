//! A deployment: one server, a cluster, or a sentinel group, with the means to query and check it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::{Cluster, Connection, MASTER_NAME, Node, Program, RelayNetwork, Reply, SentinelGroup};

use super::request::{DeploymentKind, DeploymentState, NodeState, StartRequest};

/// Timeout of a query to a node.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(20);
const CLUSTER_OPTIONS: &str = "--cluster-enabled yes --cluster-node-timeout 2000";
/// Maximum number of nodes per deployment, to catch mistakes in requests.
const MAX_NODES: usize = 100;

pub(super) struct TestDeployment {
    pub(super) name: String,
    pub(super) kind: DeploymentKind,
    /// The servers, followed by the sentinels.
    pub(super) nodes: Vec<Node>,
    pub(super) relays: Option<RelayNetwork>,
    pub(super) frozen_nodes: BTreeSet<usize>,
}

impl TestDeployment {
    pub(super) fn start(name: String, start_request: &StartRequest) -> Result<Self> {
        let count = start_request.masters.saturating_mul(start_request.replicas.saturating_add(1));
        ensure!((1..=MAX_NODES).contains(&count), "a cluster has one to {MAX_NODES} nodes, not {count}");
        let program = start_request.program.as_deref().map_or_else(Program::redoubt, Program::from_binary);
        let relays =
            start_request.partitions.then(RelayNetwork::create).transpose().map_err(anyhow::Error::msg)?;
        if let Some(certificates) = &start_request.tls {
            certificates.canonicalize().with_context(|| format!("{}", certificates.display()))?;
            ensure!(
                start_request.kind != DeploymentKind::Sentinel || !start_request.partitions,
                "a sentinel group with TLS does not support partitions: relays only forward plain ports"
            );
        }
        let prepare_any = |number: usize, kind: harness::RelayedProcess| {
            let mut node = match &relays {
                Some(relays) => Node::prepare_behind_relay(relays, number, kind, &program),
                None => Node::prepare(&program, ""),
            };
            if let Some(certificates) = &start_request.tls {
                node.enable_tls(certificates);
            }
            node
        };
        let prepare = |number: usize, kind: harness::RelayedProcess, options: &str| {
            let mut node = prepare_any(number, kind);
            node.add_options("--save --repl-diskless-sync-delay 0");
            node.add_options(options);
            for option in &start_request.options {
                node.add_options(option);
            }
            node
        };
        let nodes = match start_request.kind {
            DeploymentKind::Server => {
                let mut node = prepare(0, harness::RelayedProcess::Server, "");
                node.launch();
                vec![node]
            }
            DeploymentKind::Cluster => {
                let clustered =
                    |number| prepare(number, harness::RelayedProcess::ClusterNode, CLUSTER_OPTIONS);
                let mut nodes: Vec<Node> = (0..count).map(clustered).collect();
                nodes.iter_mut().for_each(Node::launch);
                Cluster::join_nodes(nodes, start_request.masters).nodes
            }
            DeploymentKind::Sentinel => {
                let group = SentinelGroup::start_with_nodes(|number| match number {
                    0..3 => prepare(number, harness::RelayedProcess::Server, ""),
                    _ => prepare_any(number, harness::RelayedProcess::Sentinel),
                });
                group.shorten_timeouts();
                group.servers.into_iter().chain(group.sentinels).collect()
            }
        };
        Ok(Self { name, kind: start_request.kind, nodes, relays, frozen_nodes: BTreeSet::new() })
    }

    /// Number of servers, which are the first nodes.
    pub(super) fn server_count(&self) -> usize {
        match self.kind {
            DeploymentKind::Server | DeploymentKind::Cluster => self.nodes.len(),
            DeploymentKind::Sentinel => self.nodes.len() / 2,
        }
    }

    pub(super) fn find_node(&mut self, number: usize) -> Result<&mut Node> {
        let count = self.nodes.len();
        self.nodes
            .get_mut(number)
            .with_context(|| format!("there is no node {number}, only 0 to {}", count - 1))
    }

    /// Returns the port at which other nodes reach this node, directly or through a relay.
    fn relayed_port(&self, number: usize) -> u16 {
        let node = &self.nodes[number];
        match self.kind {
            DeploymentKind::Server | DeploymentKind::Cluster => node.port,
            DeploymentKind::Sentinel => SentinelGroup::port_of(node),
        }
    }

    /// Returns the number of the node with this port.
    pub(super) fn node_on_port(&self, port: u16) -> Option<usize> {
        (0..self.nodes.len()).find(|number| self.relayed_port(*number) == port)
    }

    /// Sends a command to a node.
    ///
    /// # Errors
    /// The node does not respond, or replies with an error.
    pub(super) fn query_node(&self, number: usize, line: &str) -> Result<Reply> {
        let node = self.nodes.get(number).with_context(|| format!("there is no node {number}"))?;
        ensure!(node.is_running() && !self.frozen_nodes.contains(&number), "node {number} is not running");
        let mut connection = connect_to_node(node)?;
        match connection.try_call(&line.split(' ').collect::<Vec<_>>())? {
            Reply::Error(text) => bail!("node {number}: {text}"),
            reply => Ok(reply),
        }
    }

    /// Returns the numbers of the nodes that are running and not frozen.
    pub(super) fn responsive_nodes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len())
            .filter(|number| self.nodes[*number].is_running() && !self.frozen_nodes.contains(number))
    }

    pub(super) fn describe(&self) -> DeploymentState {
        let nodes = (0..self.nodes.len()).map(|number| self.describe_node(number)).collect();
        let master_name = (self.kind == DeploymentKind::Sentinel).then_some(MASTER_NAME);
        DeploymentState { place: self.name.clone(), kind: self.kind, master_name, nodes }
    }

    fn describe_node(&self, number: usize) -> NodeState {
        let node = &self.nodes[number];
        let role = self.query_node(number, "ROLE").ok();
        let items = role.as_ref().map_or(&[][..], Reply::items);
        let word = items.first().map(Reply::text);
        let master = items.get(2).filter(|_| word.as_deref() == Some("slave"));
        let master = master.and_then(|port| match port {
            Reply::Int(port) => self.node_on_port(u16::try_from(*port).ok()?),
            _ => None,
        });
        NodeState {
            node: number,
            role: word.map(|word| if word == "slave" { "replica".to_owned() } else { word }),
            host: "127.0.0.1",
            port: node.port,
            tls_port: node.tls_port(),
            pid: node.is_running().then(|| node.pid()),
            frozen: self.frozen_nodes.contains(&number),
            master,
            slots: if self.kind == DeploymentKind::Cluster {
                self.slots_of_node(number).unwrap_or_default()
            } else {
                Vec::new()
            },
            folder: node.folder().to_owned(),
        }
    }

    /// Returns the slot ranges that a node reports as its own.
    fn slots_of_node(&self, number: usize) -> Result<Vec<(u16, u16)>> {
        let nodes = self.query_node(number, "CLUSTER NODES")?.text();
        let line = nodes.lines().find(|line| line.contains("myself"));
        let words = line.unwrap_or_default().split(' ').skip(8);
        Ok(words.filter_map(parse_slot_range).collect())
    }

    /// Checks that all running nodes agree and all replicas are in sync.
    ///
    /// # Errors
    /// Says which check has failed.
    pub(super) fn check_healthy(&self) -> Result<()> {
        match self.kind {
            DeploymentKind::Server => self.query_node(0, "PING").map(drop),
            DeploymentKind::Cluster => self.check_cluster(),
            DeploymentKind::Sentinel => self.check_sentinel_group(),
        }
    }

    fn check_cluster(&self) -> Result<()> {
        let mut agreed = None;
        for number in self.responsive_nodes() {
            let info = self.query_node(number, "CLUSTER INFO")?.text();
            ensure!(info.contains("cluster_state:ok"), "node {number} does not report cluster_state:ok");
            let view = self.slot_owners(number)?;
            let first = agreed.get_or_insert_with(|| view.clone());
            ensure!(*first == view, "node {number} has a different view of the slot owners");
            self.check_replica_link(number)?;
        }
        Ok(())
    }

    fn check_sentinel_group(&self) -> Result<()> {
        let mut agreed = None;
        for sentinel in self.responsive_nodes().filter(|number| *number >= self.server_count()) {
            let port = self.master_port(sentinel)?;
            let first = *agreed.get_or_insert(port);
            ensure!(first == port, "sentinels disagree about the master: {first} and {port}");
            let master =
                harness::field_map(&self.query_node(sentinel, &format!("SENTINEL MASTER {MASTER_NAME}"))?);
            let busy = master.get("flags").is_some_and(|flags| flags.contains("failover"));
            ensure!(!busy, "node {sentinel} is in a failover");
        }
        for server in self.responsive_nodes().filter(|number| *number < self.server_count()) {
            let is_named = agreed == Some(self.relayed_port(server));
            let role = self.query_node(server, "ROLE")?.items()[0].text();
            ensure!((role == "master") == is_named, "node {server} is a {role}");
            self.check_replica_link(server)?;
        }
        Ok(())
    }

    /// Checks that a replica is connected to its master.
    fn check_replica_link(&self, number: usize) -> Result<()> {
        let role = self.query_node(number, "ROLE")?;
        let state = role.items().get(3).filter(|_| role.items()[0].text() == "slave").map(Reply::text);
        let up = state.as_deref().is_none_or(|state| state == "connected");
        ensure!(up, "replica {number} is not in sync: {}", state.unwrap_or_default());
        Ok(())
    }

    /// Returns the port of the master, as the given sentinel reports it.
    pub(super) fn master_port(&self, sentinel: usize) -> Result<u16> {
        let reply = self.query_node(sentinel, &format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER_NAME}"))?;
        Ok(reply.items()[1].text().parse()?)
    }

    /// Returns the slot ranges that a node reports, each with its first slot, last slot and the owner's port.
    fn slot_owners(&self, number: usize) -> Result<Vec<(u16, u16, u16)>> {
        let nodes = self.query_node(number, "CLUSTER NODES")?.text();
        let mut owners = Vec::new();
        for line in nodes.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, address, flags, ..] = words[..] else { continue };
            if flags.contains("fail") {
                continue;
            }
            let port = address.split('@').next().and_then(|address| address.rsplit(':').next());
            let port: u16 = port.unwrap_or_default().parse()?;
            let ranges = words.iter().skip(8).filter_map(|word| parse_slot_range(word));
            owners.extend(ranges.map(|(first, last)| (first, last, port)));
        }
        owners.sort_unstable();
        Ok(owners)
    }

    /// Checks that this node has been replaced: every responsive node knows another owner of its slots, or another
    /// master.
    pub(super) fn check_node_replaced(&self, number: usize) -> Result<()> {
        self.nodes.get(number).with_context(|| format!("there is no node {number}"))?;
        let old = self.relayed_port(number);
        match self.kind {
            DeploymentKind::Server => bail!("a single server has no replica"),
            DeploymentKind::Cluster => {
                for other in self.responsive_nodes().filter(|other| *other != number) {
                    let owners = self.slot_owners(other)?;
                    let covered: u32 =
                        owners.iter().map(|(first, last, _)| u32::from(last - first) + 1).sum();
                    let by_others = owners.iter().all(|(_, _, port)| *port != old);
                    ensure!(by_others, "node {other} still sees node {number} as the owner of its slots");
                    ensure!(
                        covered == u32::from(harness::SLOT_COUNT),
                        "node {other} sees slots without an owner"
                    );
                }
            }
            DeploymentKind::Sentinel => {
                for sentinel in
                    self.responsive_nodes().filter(|other| *other >= self.server_count() && *other != number)
                {
                    let port = self.master_port(sentinel)?;
                    ensure!(port != old, "sentinel {sentinel} still reports node {number} as the master");
                    let server = self.node_on_port(port).context("an unknown server")?;
                    let role = self.query_node(server, "ROLE")?.items()[0].text();
                    ensure!(role == "master", "the new master is still a {role}");
                }
            }
        }
        Ok(())
    }
}

/// Waits until `condition` succeeds, and returns how many seconds that took.
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
            Err(_) => std::thread::sleep(RETRY_DELAY),
        }
    }
}

fn connect_to_node(node: &Node) -> Result<Connection> {
    let mut connection = node.try_connect()?;
    connection.set_timeout(QUERY_TIMEOUT);
    Ok(connection)
}

/// Parses a slot range. Migrating slots do not parse, because they are in brackets; they are included in other ranges.
fn parse_slot_range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}
