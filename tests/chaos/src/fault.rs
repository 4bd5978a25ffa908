//! The faults there are.

use clap::ValueEnum;
use serde::Serialize;

use crate::Mode;

/// Something that is done to servers or to the network between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// SIGKILL; started again with its data when the fault ends.
    Kill,
    /// SIGKILL, its data removed, started again at once, as a supervisor does.
    Wipe,
    /// SIGSTOP until the fault ends.
    Freeze,
    /// SIGTERM and started again at once.
    Restart,
    /// One host is cut off from all others.
    Isolate,
    /// The hosts fall into two groups.
    Halves,
    /// Two groups that only one host in the middle reaches; it belongs to both.
    Bridge,
    /// All packets from one host to the others are lost.
    OneWay,
    /// All packets of one host, in both directions, come late and out of order.
    Delay,
    /// A part of what one host sends and gets is lost.
    Loss,
    /// Half of what one host sends and gets comes twice.
    Duplication,
    /// The disk of a node is full until the fault ends.
    FullDisk,
    /// The wall clock of a node jumps, forwards or backwards, and back when the fault ends.
    ClockJump,
    /// CLUSTER FAILOVER.
    Failover,
    /// SENTINEL FAILOVER.
    SentinelFailover,
    /// CLUSTER FAILOVER FORCE.
    Force,
    /// CLUSTER FAILOVER TAKEOVER.
    Takeover,
    /// A slot that holds data moves to another master.
    MoveSlot,
    /// A setting is changed that makes the server do more: another backlog, another number of threads' work.
    Configure,
    /// The machine let processes wait. It is seen, and never drawn.
    #[value(skip)]
    Stall,
}

impl Fault {
    /// Whether it can happen in this mode.
    #[must_use]
    pub fn is_of(self, mode: Mode) -> bool {
        match self {
            Self::Failover | Self::Force | Self::Takeover | Self::MoveSlot => mode == Mode::Cluster,
            Self::SentinelFailover => mode == Mode::Sentinel,
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

    /// Those to draw from where none are named.
    #[must_use]
    pub fn usual(mode: Mode) -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|fault| fault.is_of(mode)).collect()
    }

    /// Whether it cuts the network.
    #[must_use]
    pub fn cuts_network(self) -> bool {
        matches!(self, Self::Isolate | Self::Halves | Self::Bridge | Self::OneWay)
    }

    /// Whether it makes the line of a host a bad one.
    #[must_use]
    pub fn impairs_line(self) -> bool {
        matches!(self, Self::Delay | Self::Loss | Self::Duplication)
    }

    /// Whether writes that were acknowledged may be lost by it, as asynchronous replication has it.
    #[must_use]
    pub fn may_lose(self) -> bool {
        !self.is_planned() && !matches!(self, Self::FullDisk | Self::ClockJump)
    }

    /// Whether replicas may be behind because of it.
    #[must_use]
    pub fn holds_back(self) -> bool {
        self.may_lose() || self == Self::FullDisk
    }

    /// Whether nothing acknowledged may be lost by it: an operator does it on purpose.
    #[must_use]
    pub fn is_planned(self) -> bool {
        matches!(
            self,
            Self::Restart | Self::Failover | Self::SentinelFailover | Self::MoveSlot | Self::Configure
        )
    }

    /// Whether it happens to a server of the data, rather than to whatever host was drawn.
    #[must_use]
    pub fn is_of_servers(self) -> bool {
        self.is_planned() || matches!(self, Self::Wipe | Self::Force | Self::Takeover)
    }
}
