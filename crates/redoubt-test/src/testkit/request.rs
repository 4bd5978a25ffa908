//! The requests and answers of the test kit: one JSON object per line.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Kinds of deployments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DeploymentKind {
    /// One server.
    Server,
    /// Masters with replicas in cluster mode.
    Cluster,
    /// A master, two replicas and three sentinels.
    Sentinel,
}

impl DeploymentKind {
    pub(super) fn default_name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// A request, which is one line of standard input.
#[derive(Debug, Deserialize)]
pub(super) struct TestkitRequest {
    /// An arbitrary value that the answer repeats, so that the caller can match it with the request.
    #[serde(default)]
    pub(super) id: Value,
    #[serde(flatten)]
    pub(super) action: TestkitAction,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum TestkitAction {
    Start(StartRequest),
    /// Answer with the current state of the nodes.
    Show(TargetDeployment),
    Kill(TargetNode),
    Freeze(TargetNode),
    Thaw(TargetNode),
    /// Send SIGTERM and wait until the process has ended.
    Stop(TargetNode),
    Restart(RestartRequest),
    Partition(PartitionRequest),
    Lose(DropPacketsRequest),
    Heal(TargetDeployment),
    MoveSlot(MoveSlotRequest),
    Failover(FailoverRequest),
    Wait(WaitRequest),
    End(TargetDeployment),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartRequest {
    pub(super) kind: DeploymentKind,
    /// Number of masters in a cluster.
    #[serde(default = "default_masters")]
    pub(super) masters: usize,
    /// Number of replicas per master in a cluster.
    #[serde(default = "default_replicas")]
    pub(super) replicas: usize,
    /// Command-line options for every server (not for sentinels), such as `--maxmemory 100mb`.
    #[serde(default)]
    pub(super) options: Vec<String>,
    /// Path of another server binary that has the command line of redis-server.
    #[serde(default)]
    pub(super) program: Option<PathBuf>,
    /// Whether partitions are possible. The nodes are then connected through relays.
    #[serde(default)]
    pub(super) partitions: bool,
    /// A directory with `server.crt`, `server.key` and `ca.crt`. Every node gets an additional TLS port; the members of a
    /// sentinel group use only TLS with each other.
    #[serde(default)]
    pub(super) tls: Option<PathBuf>,
}

fn default_masters() -> usize {
    3
}

fn default_replicas() -> usize {
    1
}

/// Names the deployment that a request is for. It may be omitted if only one is running.
#[derive(Debug, Deserialize)]
pub(super) struct TargetDeployment {
    #[serde(default)]
    pub(super) place: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TargetNode {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    pub(super) node: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct RestartRequest {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    pub(super) node: usize,
    /// Whether the restarted node keeps its data.
    #[serde(default = "default_keeps_data")]
    pub(super) data: bool,
}

fn default_keeps_data() -> bool {
    true
}

#[derive(Debug, Deserialize)]
pub(super) struct PartitionRequest {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    /// Groups of nodes that reach only each other; unlisted nodes form another group.
    pub(super) groups: Vec<Vec<usize>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DropPacketsRequest {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    /// The number of the node whose packets are dropped.
    pub(super) node: usize,
    /// The numbers of the receiving nodes. An empty list means all other nodes.
    #[serde(default)]
    pub(super) to: Vec<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct MoveSlotRequest {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    pub(super) slot: u16,
    /// The number of the node that becomes the slot's owner.
    pub(super) to: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FailoverKind {
    /// The old master takes part in the failover, so that no write is lost.
    #[default]
    Planned,
    /// The replica is elected without the participation of the old master.
    Force,
    /// The replica takes over without an election.
    Takeover,
}

#[derive(Debug, Deserialize)]
pub(super) struct FailoverRequest {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    /// The number of the replica to promote in a cluster. Sentinels choose a replica themselves.
    #[serde(default)]
    pub(super) node: Option<usize>,
    #[serde(default)]
    pub(super) how: FailoverKind,
}

/// What a `wait` request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WaitCondition {
    /// All running nodes agree, all slots are served, and all replicas are in sync.
    Whole,
    /// Another node serves the slots of `node`, or is the master instead of it.
    Replaced,
}

#[derive(Debug, Deserialize)]
pub(super) struct WaitRequest {
    #[serde(flatten)]
    pub(super) deployment: TargetDeployment,
    pub(super) until: WaitCondition,
    #[serde(default)]
    pub(super) node: Option<usize>,
    #[serde(default = "default_wait_seconds")]
    pub(super) seconds: f64,
}

fn default_wait_seconds() -> f64 {
    30.0
}

/// The state of a node as it appears in answers.
#[derive(Debug, Serialize)]
pub(super) struct NodeState {
    pub(super) node: usize,
    /// `master`, `replica` or `sentinel`. `None` if the node does not respond.
    pub(super) role: Option<String>,
    pub(super) host: &'static str,
    pub(super) port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls_port: Option<u16>,
    pub(super) pid: Option<u32>,
    pub(super) frozen: bool,
    /// The number of a replica's master; `None` for other nodes.
    pub(super) master: Option<usize>,
    /// The first and last slot of each range of a cluster's master.
    pub(super) slots: Vec<(u16, u16)>,
    /// The directory that contains the node's data and its `log`.
    pub(super) folder: PathBuf,
}

/// The state of a deployment as it appears in answers.
#[derive(Debug, Serialize)]
pub(super) struct DeploymentState {
    pub(super) place: String,
    pub(super) kind: DeploymentKind,
    /// The name by which sentinels know the master; `None` without sentinels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) master_name: Option<&'static str>,
    pub(super) nodes: Vec<NodeState>,
}
