//! The requests of a test, and their answers: one JSON object a line each.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kinds of places that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// One server.
    Server,
    /// Masters with replicas, joined into a cluster.
    Cluster,
    /// A master, two replicas and the three sentinels that watch them.
    Sentinel,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// One line of standard input.
#[derive(Debug, Deserialize)]
pub(super) struct Request {
    /// Comes back with the answer.
    #[serde(default)]
    pub(super) id: Value,
    #[serde(flatten)]
    pub(super) action: Action,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Action {
    Start(Start),
    /// The nodes as they are now.
    Show(At),
    Kill(AtNode),
    Freeze(AtNode),
    Thaw(AtNode),
    /// SIGTERM, and its end.
    Stop(AtNode),
    Restart(Restart),
    Partition(Partition),
    Lose(Lose),
    Heal(At),
    MoveSlot(MoveSlot),
    Failover(Failover),
    Wait(Wait),
    End(At),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    pub(super) kind: Kind,
    /// Of a cluster.
    #[serde(default = "three")]
    pub(super) masters: usize,
    /// Of each master of a cluster.
    #[serde(default = "one")]
    pub(super) replicas: usize,
    /// For every server (not for sentinels), as on its command line: `--maxmemory 100mb`.
    #[serde(default)]
    pub(super) options: Vec<String>,
    /// Another server's binary, of redis-server's form.
    #[serde(default)]
    pub(super) program: Option<PathBuf>,
    /// Whether it can be partitioned: servers then reach each other through relays.
    #[serde(default)]
    pub(super) partitions: bool,
    /// A folder with `server.crt`, `server.key` and `ca.crt`: every node then has a port for TLS as well, and the
    /// members of a sentinel group speak nothing else with each other.
    #[serde(default)]
    pub(super) tls: Option<PathBuf>,
}

fn three() -> usize {
    3
}

fn one() -> usize {
    1
}

/// Which of the places, if there are several.
#[derive(Debug, Deserialize)]
pub(super) struct At {
    #[serde(default)]
    pub(super) place: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AtNode {
    #[serde(flatten)]
    pub(super) at: At,
    pub(super) node: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct Restart {
    #[serde(flatten)]
    pub(super) at: At,
    pub(super) node: usize,
    /// Whether its data stays.
    #[serde(default = "yes")]
    pub(super) data: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
pub(super) struct Partition {
    #[serde(flatten)]
    pub(super) at: At,
    /// Each reaches only its own; nodes that are not named stay together.
    pub(super) groups: Vec<Vec<usize>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Lose {
    #[serde(flatten)]
    pub(super) at: At,
    /// The node whose bytes are lost.
    pub(super) node: usize,
    /// The nodes that its bytes do not reach; all others if none is named.
    #[serde(default)]
    pub(super) to: Vec<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct MoveSlot {
    #[serde(flatten)]
    pub(super) at: At,
    pub(super) slot: u16,
    /// The master that gets it.
    pub(super) to: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    /// With the master's help: nothing is lost.
    #[default]
    Planned,
    /// Without it, by a vote.
    Force,
    /// Without a vote.
    Takeover,
}

#[derive(Debug, Deserialize)]
pub(super) struct Failover {
    #[serde(flatten)]
    pub(super) at: At,
    /// The replica that takes over (in a cluster); the sentinels choose one themselves.
    #[serde(default)]
    pub(super) node: Option<usize>,
    #[serde(default)]
    pub(super) how: How,
}

/// The condition that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Until {
    /// All that run agree, every slot or the master is served, replicas are in step.
    Whole,
    /// Another node serves what `node` served.
    Replaced,
}

#[derive(Debug, Deserialize)]
pub(super) struct Wait {
    #[serde(flatten)]
    pub(super) at: At,
    pub(super) until: Until,
    #[serde(default)]
    pub(super) node: Option<usize>,
    #[serde(default = "half_a_minute")]
    pub(super) seconds: f64,
}

fn half_a_minute() -> f64 {
    30.0
}

/// A node as its test sees it.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    pub(super) node: usize,
    /// `master`, `replica` or `sentinel`; of a node that does not answer, nothing.
    pub(super) role: Option<String>,
    pub(super) host: &'static str,
    pub(super) port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls_port: Option<u16>,
    pub(super) pid: Option<u32>,
    pub(super) frozen: bool,
    /// Of a replica: its master's number.
    pub(super) master: Option<usize>,
    /// Of a master in a cluster: first and last of each range.
    pub(super) slots: Vec<(u16, u16)>,
    /// Its data and its `log`.
    pub(super) folder: PathBuf,
}

/// A place as it is now, as the test is shown it.
#[derive(Debug, Serialize)]
pub(super) struct ShownPlace {
    pub(super) place: String,
    pub(super) kind: Kind,
    /// For sentinels: under which name they watch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) master_name: Option<&'static str>,
    pub(super) nodes: Vec<Shown>,
}
