//! The servers under test.

use std::cell::RefCell;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use harness::{Cluster, Endpoint, Group, Network, Node, Program, permitted};
use serde::Serialize;

use crate::Fault;

/// How servers find out that one is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Three masters with a replica each, over the cluster bus.
    Cluster,
    /// A master, two replicas and three sentinels.
    Sentinel,
}

impl Mode {
    /// How many processes there are.
    #[must_use]
    pub fn nodes(self) -> usize {
        6
    }

    /// How many of them, the first ones, hold data.
    #[must_use]
    pub fn servers(self) -> usize {
        match self {
            Self::Cluster => 6,
            Self::Sentinel => 3,
        }
    }

    /// How many shards; node `n` begins in shard `n % shards`.
    #[must_use]
    pub fn shards(self) -> usize {
        match self {
            Self::Cluster => 3,
            Self::Sentinel => 1,
        }
    }
}

/// The options of a cluster's node.
const CLUSTER: &str = "--cluster-enabled yes --cluster-node-timeout 1500 --appendonly yes --save \
    --auto-aof-rewrite-min-size 4mb --repl-diskless-sync-delay 0 --enable-debug-command yes";
/// The options of a server that sentinels watch: it takes no writes when it has lost its replicas.
const WATCHED: &str = "--appendonly yes --save --auto-aof-rewrite-min-size 4mb --repl-diskless-sync-delay 0 --enable-debug-command yes \
    --min-replicas-to-write 1 --min-replicas-max-lag 2 --repl-ping-replica-period 1";

/// The bytes of each node's disk where disks are filled: some of the log's rewrites, and little of the machine's
/// memory.
const DISK: u64 = 64 << 20;

/// The servers, and the network between them where this machine allows one.
#[derive(Debug)]
pub struct Deployment {
    /// Which kind.
    pub mode: Mode,
    /// The servers with data first, then the sentinels.
    pub nodes: Vec<Node>,
    /// The hosts, one for each node.
    pub network: Option<Network>,
    /// The faults that this machine does not allow.
    impossible: Vec<Fault>,
}

impl Deployment {
    /// Starts it, for these faults. With `other`, the last server that begins as a replica is of that program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(mode: Mode, program: &Program, other: Option<&Program>, faults: &[Fault]) -> Result<Self> {
        let network = permitted("cuts of the network and bad lines", Network::make(mode.nodes() as u8));
        let impossible = RefCell::new(Vec::new());
        if network.is_none() {
            let on_network = |fault: &&Fault| fault.cuts_network() || fault.impairs_line();
            impossible.borrow_mut().extend(Fault::value_variants().iter().filter(on_network));
        }
        let last = mode.servers() - 1;
        let program_of = |place: usize| if place == last { other.unwrap_or(program) } else { program };
        let wants = |fault| faults.contains(&fault) && !impossible.borrow().contains(&fault);
        let prepare = |place: usize, options: &str| {
            let mut node = match &network {
                Some(network) => Node::prepare_on(&network.hosts[place], program_of(place), options),
                None => Node::prepare(program_of(place), options),
            };
            if wants(Fault::FullDisk) && permitted("full disks", node.limit_disk(DISK)).is_none() {
                impossible.borrow_mut().push(Fault::FullDisk);
            }
            if wants(Fault::ClockJump) && permitted("jumps of the clock", node.fake_clock()).is_none() {
                impossible.borrow_mut().push(Fault::ClockJump);
            }
            node
        };
        let nodes = match mode {
            Mode::Cluster => {
                let mut nodes: Vec<Node> = (0..mode.nodes()).map(|place| prepare(place, CLUSTER)).collect();
                nodes.iter_mut().for_each(Node::launch);
                Cluster::join(nodes, mode.shards()).nodes
            }
            Mode::Sentinel => {
                let group = Group::assemble(|place| {
                    prepare(place, if place < mode.servers() { WATCHED } else { "" })
                });
                group.hurry();
                group.servers.into_iter().chain(group.sentinels).collect()
            }
        };
        let impossible = impossible.take();
        Ok(Self { mode, nodes, network, impossible })
    }

    /// Whether this fault can be injected on this machine.
    #[must_use]
    pub fn can(&self, fault: Fault) -> bool {
        !self.impossible.contains(&fault)
    }

    /// Copies what the nodes logged into a folder, by the numbers that the report has for them.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_logs(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for (number, node) in self.nodes.iter().enumerate() {
            let name = format!("node-{number}-{}.log", node.port);
            std::fs::write(folder.join(name), node.log())?;
        }
        Ok(())
    }

    /// Where the nodes answer.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.nodes.iter().map(Node::endpoint).collect()
    }

    /// The node on this port.
    #[must_use]
    pub fn on_port(&self, port: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.port.to_string() == port)
    }
}
