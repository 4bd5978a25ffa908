//! Defines the injectable faults.

use clap::ValueEnum;
use serde::Serialize;

use crate::DeploymentMode;

/// A fault of a server or of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// SIGKILL; the node is restarted with its data when the fault ends.
    Kill,
    /// SIGKILL and data loss; the node is restarted at once, as by a supervisor.
    Wipe,
    /// SIGSTOP; the process is resumed when the fault ends.
    Freeze,
    /// SIGTERM; the process is restarted at once.
    Restart,
    /// One host is cut off from all others.
    Isolate,
    /// The hosts are partitioned into two groups.
    Halves,
    /// The hosts are partitioned into two groups, connected only through one host that belongs to both.
    Bridge,
    /// All packets from one host to the others are lost.
    OneWay,
    /// All packets of one host, in both directions, are delayed and reordered.
    Delay,
    /// Some packets from and to one host are lost.
    Loss,
    /// Half of the packets from and to one host are duplicated.
    Duplication,
    /// A node's disk is full until the fault ends.
    FullDisk,
    /// A node's wall clock jumps forward or backward, and back when the fault ends.
    ClockJump,
    /// A manual failover in a cluster (CLUSTER FAILOVER).
    Failover,
    /// A failover ordered at a sentinel (SENTINEL FAILOVER).
    SentinelFailover,
    /// A failover without the master's help (CLUSTER FAILOVER FORCE).
    Force,
    /// A failover without votes (CLUSTER FAILOVER TAKEOVER).
    Takeover,
    /// A slot with data migrates to another master.
    MoveSlot,
    /// CONFIG SET of a parameter that triggers work, such as the backlog size or the number of
    /// threads.
    Configure,
    /// A stall of the machine that stopped processes. It is observed and never injected.
    #[value(skip)]
    Stall,
}

impl FaultKind {
    /// Returns whether the fault can occur in this mode.
    #[must_use]
    pub fn occurs_in(self, mode: DeploymentMode) -> bool {
        match self {
            Self::Failover | Self::Force | Self::Takeover | Self::MoveSlot => mode == DeploymentMode::Cluster,
            Self::SentinelFailover => mode == DeploymentMode::Sentinel,
            Self::Kill
            | Self::Wipe
            | Self::Freeze
            | Self::Restart
            | Self::Isolate
            | Self::Halves
            | Self::Bridge
            | Self::OneWay
            | Self::Delay
            | Self::Loss
            | Self::Duplication
            | Self::FullDisk
            | Self::ClockJump
            | Self::Configure
            | Self::Stall => true,
        }
    }

    /// Returns the faults from which a run in this mode draws by default.
    #[must_use]
    pub fn default_faults(mode: DeploymentMode) -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|fault| fault.occurs_in(mode)).collect()
    }

    /// Returns whether the fault partitions the network.
    #[must_use]
    pub fn partitions_network(self) -> bool {
        matches!(self, Self::Isolate | Self::Halves | Self::Bridge | Self::OneWay)
    }

    /// Returns whether the fault degrades the link of a host.
    #[must_use]
    pub fn degrades_link(self) -> bool {
        matches!(self, Self::Delay | Self::Loss | Self::Duplication)
    }

    /// Returns whether asynchronous replication may lose acknowledged writes during the fault.
    #[must_use]
    pub fn may_lose_writes(self) -> bool {
        !self.is_planned() && !matches!(self, Self::FullDisk | Self::ClockJump)
    }

    /// Returns whether replicas may lag because of the fault.
    #[must_use]
    pub fn delays_replicas(self) -> bool {
        self.may_lose_writes() || self == Self::FullDisk
    }

    /// Returns whether the fault is a scheduled operation, which must not lose acknowledged writes.
    #[must_use]
    pub fn is_planned(self) -> bool {
        matches!(
            self,
            Self::Restart | Self::Failover | Self::SentinelFailover | Self::MoveSlot | Self::Configure
        )
    }

    /// Returns whether the fault needs a data node; other faults can hit any host.
    #[must_use]
    pub fn needs_data_node(self) -> bool {
        self.is_planned() || matches!(self, Self::Wipe | Self::Force | Self::Takeover)
    }
}
