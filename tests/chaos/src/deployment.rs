//! The servers under test.

use anyhow::Result;
use clap::ValueEnum;
use harness::{Cluster, Endpoint, Group, Network, Node, Program};
use serde::Serialize;

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

/// What a node of a cluster is started with.
const CLUSTER: &str = "--cluster-enabled yes --cluster-node-timeout 1500 --appendonly yes --save \
    --repl-diskless-sync-delay 0 --enable-debug-command yes";
/// What a server that sentinels watch is started with: it takes no writes when it has lost its replicas.
const WATCHED: &str = "--appendonly yes --save --repl-diskless-sync-delay 0 --enable-debug-command yes \
    --min-replicas-to-write 1 --min-replicas-max-lag 2 --repl-ping-replica-period 1";

/// The servers, and the network between them where this machine allows one.
#[derive(Debug)]
pub struct Deployment {
    /// Which kind.
    pub mode: Mode,
    /// The servers with data first, then the sentinels.
    pub nodes: Vec<Node>,
    /// The hosts, one for each node.
    pub network: Option<Network>,
}

impl Deployment {
    /// Starts it. With `other`, the last server that begins as a replica is of that program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(mode: Mode, program: &Program, other: Option<&Program>) -> Result<Self> {
        let network = match Network::make(mode.nodes() as u8) {
            Ok(network) => Some(network),
            Err(reason) => {
                eprintln!("Without cuts of the network: {reason}");
                None
            }
        };
        let last = mode.servers() - 1;
        let program_of = |place: usize| if place == last { other.unwrap_or(program) } else { program };
        let prepare = |place: usize, options: &str| match &network {
            Some(network) => Node::prepare_on(&network.hosts[place], program_of(place), options),
            None => Node::prepare(program_of(place), options),
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
        Ok(Self { mode, nodes, network })
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
