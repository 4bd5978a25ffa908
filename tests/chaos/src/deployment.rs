//! The servers under test.

use std::cell::RefCell;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use harness::{Cluster, Endpoint, Node, Program, SentinelGroup, TestNetwork, value_or_skip};
use serde::Serialize;

use crate::FaultKind;

/// How servers detect and replace a failed node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DeploymentMode {
    /// Three masters with one replica each on the cluster bus.
    Cluster,
    /// A master, two replicas and three sentinels.
    Sentinel,
}

impl DeploymentMode {
    /// Returns the number of processes, which includes sentinels.
    #[must_use]
    pub fn node_count(self) -> usize {
        6
    }

    /// Returns the number of data nodes, which come first.
    #[must_use]
    pub fn data_node_count(self) -> usize {
        match self {
            Self::Cluster => 6,
            Self::Sentinel => 3,
        }
    }

    /// Returns the number of shards. Node `n` starts in shard `n % shards`.
    #[must_use]
    pub fn shard_count(self) -> usize {
        match self {
            Self::Cluster => 3,
            Self::Sentinel => 1,
        }
    }
}

/// Options of a cluster node.
const CLUSTER_OPTIONS: &str = "--cluster-enabled yes --cluster-node-timeout 1500 --appendonly yes --save \
    --auto-aof-rewrite-min-size 4mb --repl-diskless-sync-delay 0 --enable-debug-command yes";
/// Options of a sentinel-monitored server, which rejects writes when it has no connected replica.
const MONITORED_OPTIONS: &str = "--appendonly yes --save --auto-aof-rewrite-min-size 4mb --repl-diskless-sync-delay 0 --enable-debug-command yes \
    --min-replicas-to-write 1 --min-replicas-max-lag 2 --repl-ping-replica-period 1";

/// Disk size of each node for full-disk faults. It has room for a few AOF rewrites and takes little of the machine's
/// memory.
const DISK_BYTES: u64 = 64 << 20;

/// The servers, and the simulated network between them if the machine permits one.
#[derive(Debug)]
pub struct Deployment {
    /// Whether the servers form a cluster or a sentinel group.
    pub mode: DeploymentMode,
    /// The data nodes, followed by the sentinels.
    pub nodes: Vec<Node>,
    /// The simulated network with one host per node; `None` if the machine does not permit one.
    pub network: Option<TestNetwork>,
    /// The faults that this machine does not permit, such as those that need a network.
    unsupported_faults: Vec<FaultKind>,
}

impl Deployment {
    /// Starts the deployment with everything that `faults` need. If `other_program` is given, the last replica runs that
    /// program.
    ///
    /// # Errors
    /// The deployment cannot be started.
    pub fn start(
        mode: DeploymentMode,
        program: &Program,
        other_program: Option<&Program>,
        faults: &[FaultKind],
    ) -> Result<Self> {
        let network =
            value_or_skip("cuts of the network and bad lines", TestNetwork::create(mode.node_count() as u8));
        let unsupported = RefCell::new(Vec::new());
        if network.is_none() {
            let on_network = |fault: &&FaultKind| fault.partitions_network() || fault.degrades_link();
            unsupported.borrow_mut().extend(FaultKind::value_variants().iter().filter(on_network));
        }
        let last = mode.data_node_count() - 1;
        let program_of =
            |place: usize| if place == last { other_program.unwrap_or(program) } else { program };
        let wants = |fault| faults.contains(&fault) && !unsupported.borrow().contains(&fault);
        let prepare = |place: usize, options: &str| {
            let mut node = match &network {
                Some(network) => Node::prepare_on(&network.hosts[place], program_of(place), options),
                None => Node::prepare(program_of(place), options),
            };
            if wants(FaultKind::FullDisk)
                && value_or_skip("full disks", node.limit_disk(DISK_BYTES)).is_none()
            {
                unsupported.borrow_mut().push(FaultKind::FullDisk);
            }
            if wants(FaultKind::ClockJump) && value_or_skip("jumps of the clock", node.fake_clock()).is_none()
            {
                unsupported.borrow_mut().push(FaultKind::ClockJump);
            }
            node
        };
        let nodes = match mode {
            DeploymentMode::Cluster => {
                let mut nodes: Vec<Node> =
                    (0..mode.node_count()).map(|place| prepare(place, CLUSTER_OPTIONS)).collect();
                nodes.iter_mut().for_each(Node::launch);
                Cluster::join_nodes(nodes, mode.shard_count()).nodes
            }
            DeploymentMode::Sentinel => {
                let group = SentinelGroup::start_with_nodes(|place| {
                    prepare(place, if place < mode.data_node_count() { MONITORED_OPTIONS } else { "" })
                });
                group.shorten_timeouts();
                group.servers.into_iter().chain(group.sentinels).collect()
            }
        };
        let unsupported = unsupported.take();
        Ok(Self { mode, nodes, network, unsupported_faults: unsupported })
    }

    /// Returns whether this machine permits `fault`.
    #[must_use]
    pub fn supports(&self, fault: FaultKind) -> bool {
        !self.unsupported_faults.contains(&fault)
    }

    /// Copies the node logs to `folder`, named by the node numbers of the report.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn copy_logs(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for (number, node) in self.nodes.iter().enumerate() {
            let name = format!("node-{number}-{}.log", node.port);
            std::fs::write(folder.join(name), node.log())?;
        }
        Ok(())
    }

    /// Returns the client addresses of all nodes.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.nodes.iter().map(Node::endpoint).collect()
    }

    /// Returns the index of the node that listens for clients on `port`.
    #[must_use]
    pub fn node_on_port(&self, port: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.port.to_string() == port)
    }
}
