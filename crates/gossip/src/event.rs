//! What is worth a line in the log.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot};

use crate::node::Cause;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Verbose,
    Notice,
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    AddressUpdated { id: NodeId, ip: IpAddr, port: u16 },
    MyAddress(IpAddr),
    HandshakeDone(NodeId),
    MismatchedSender { expected: NodeId, found: NodeId },
    Suspected { id: NodeId, cause: Cause },
    SuspicionEnded(NodeId),
    ReportedBy { id: NodeId, reporter: NodeId },
    ReportWithdrawn { id: NodeId, reporter: NodeId },
    FailAgreed(NodeId),
    FailHeard { id: NodeId, from: NodeId },
    FailEnded { id: NodeId, why: FailEnd },
    StateChanged { serving: bool },
    StoodStill(Duration),
    EpochCollision { with: NodeId, epoch: Epoch },
    SlotsLost { to: NodeId },
    Following { master: NodeId },
    Migrating { to: NodeId },
    ImportedEpoch(Epoch),
    SlotMovedAway { slot: Slot, to: NodeId },
    ElectionScheduled { delay: Duration, rank: u32, offset: u64 },
    RankChanged { rank: u32, added: Duration },
    ElectionStarted(Epoch),
    ElectionWon(Epoch),
    ElectionExpired(Epoch),
    CannotStand(Hindrance),
    VoteGranted { candidate: NodeId, epoch: Epoch },
    VoteDenied { candidate: NodeId, epoch: Epoch, why: Denial },
    ManualFailoverAsked { by: NodeId },
    ManualFailoverAccepted,
    ManualFailoverForced,
    ManualFailoverTakeover,
    ManualFailoverReady,
    ManualFailoverTimedOut,
    ManualOffset(u64),
    ConfigEpochSet(Epoch),
    NodeReset,
    NewIdentity(NodeId),
}

/// Why a FAIL was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailEnd {
    /// It serves nothing, and is reachable again.
    NoSlots { replica: bool },
    /// Nobody replaced it for long enough, and it is reachable again.
    NotReplaced,
}

/// Why a replica of a failed master does not stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    DataTooOld { age: Option<Duration> },
    NotConfirmed { votes: usize, needed: usize },
}

/// Why a vote was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    OldEpoch { current: Epoch },
    AlreadyVoted,
    NotAReplica,
    MasterUnknown,
    MasterIsUp,
    VotedForMasterRecently { wait: Duration },
    StaleSlot { slot: Slot },
}

impl Event {
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::MismatchedSender { .. } | Self::SuspicionEnded(_) | Self::HandshakeDone(_) => Level::Debug,
            Self::ReportedBy { .. } | Self::ReportWithdrawn { .. } => Level::Verbose,
            Self::Suspected { .. }
            | Self::FailAgreed(_)
            | Self::FailHeard { .. }
            | Self::FailEnded { .. } => Level::Notice,
            _ => Level::Warning,
        }
    }
}

/// The lines of Redis where it has them, so that what searches logs keeps finding.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressUpdated { id, ip, port } => {
                write!(f, "Address updated for node {id}, now {ip}:{port}")
            }
            Self::MyAddress(ip) => write!(f, "IP address for this node updated to {ip}"),
            Self::HandshakeDone(id) => write!(f, "Handshake with node {id} completed."),
            Self::MismatchedSender { expected, found } => {
                write!(f, "PONG contains mismatching sender ID: {found} instead of {expected}")
            }
            Self::Suspected { id, cause: Cause::Silence } => {
                write!(f, "*** NODE {id} possibly failing: silent for the node timeout")
            }
            Self::Suspected { id, cause: Cause::Refused } => {
                write!(f, "*** NODE {id} possibly failing: its link broke and connections are refused")
            }
            Self::SuspicionEnded(id) => write!(f, "Node {id} answers again"),
            Self::ReportedBy { id, reporter } => {
                write!(f, "Node {reporter} reported node {id} as not reachable.")
            }
            Self::ReportWithdrawn { id, reporter } => {
                write!(f, "Node {reporter} reported node {id} is back online.")
            }
            Self::FailAgreed(id) => write!(f, "Marking node {id} as failing (quorum reached)."),
            Self::FailHeard { id, from } => write!(f, "FAIL message received from {from} about {id}"),
            Self::FailEnded { id, why } => write_fail_end(f, *id, *why),
            Self::StateChanged { serving } => {
                write!(f, "Cluster state changed: {}", if *serving { "ok" } else { "fail" })
            }
            Self::StoodStill(gap) => {
                write!(
                    f,
                    "This process stood still for {} ms; not serving before the others were heard",
                    gap.as_millis()
                )
            }
            Self::EpochCollision { with, epoch } => {
                write!(f, "configEpoch collision with node {with}. Updating my configEpoch to {epoch}")
            }
            Self::SlotsLost { to } => {
                write!(f, "Configuration change detected: my last slots are served by {to} now.")
            }
            Self::Following { master } => {
                write!(f, "Configuration change detected. Reconfiguring myself as a replica of {master}")
            }
            Self::Migrating { to } => write!(f, "Migrating to orphaned master {to}"),
            Self::ImportedEpoch(epoch) => {
                write!(f, "configEpoch updated after importing slot: {epoch}")
            }
            Self::SlotMovedAway { slot, to } => write!(f, "Slot {slot} moved to {to} while keys were here"),
            Self::ElectionScheduled { delay, rank, offset } => write!(
                f,
                "Start of election delayed for {} milliseconds (rank #{rank}, offset {offset}).",
                delay.as_millis()
            ),
            Self::RankChanged { rank, added } => write!(
                f,
                "Replica rank updated to #{rank}, added {} milliseconds of delay.",
                added.as_millis()
            ),
            Self::ElectionStarted(epoch) => write!(f, "Starting a failover election for epoch {epoch}."),
            Self::ElectionWon(epoch) => {
                write!(
                    f,
                    "Failover election won: I'm the new master. configEpoch set to {epoch} after successful failover"
                )
            }
            Self::ElectionExpired(epoch) => write!(f, "Failover attempt for epoch {epoch} expired."),
            Self::CannotStand(hindrance) => write_hindrance(f, *hindrance),
            Self::VoteGranted { candidate, epoch } => {
                write!(f, "Failover auth granted to {candidate} for epoch {epoch}")
            }
            Self::VoteDenied { candidate, epoch, why } => {
                write!(f, "Failover auth denied to {candidate}: ")?;
                write_denial(f, *epoch, *why)
            }
            Self::ManualFailoverAsked { by } => write!(f, "Manual failover requested by replica {by}."),
            Self::ManualFailoverAccepted => f.write_str("Manual failover user request accepted."),
            Self::ManualFailoverForced => f.write_str("Forced failover user request accepted."),
            Self::ManualFailoverTakeover => f.write_str("Taking over the master (user request)."),
            Self::ManualFailoverReady => {
                f.write_str("All master replication stream processed, manual failover can start.")
            }
            Self::ManualFailoverTimedOut => f.write_str("Manual failover timed out."),
            Self::ManualOffset(offset) => {
                write!(f, "Received replication offset for paused master manual failover: {offset}")
            }
            Self::ConfigEpochSet(epoch) => {
                write!(f, "configEpoch set to {epoch} via CLUSTER SET-CONFIG-EPOCH")
            }
            Self::NodeReset => f.write_str("Cluster reset (user request)."),
            Self::NewIdentity(id) => write!(f, "Node hard reset, now I'm {id}"),
        }
    }
}

fn write_fail_end(f: &mut fmt::Formatter<'_>, id: NodeId, why: FailEnd) -> fmt::Result {
    match why {
        FailEnd::NoSlots { replica } => {
            let what = if replica { "replica" } else { "master without slots" };
            write!(f, "Clear FAIL state for node {id}: {what} is reachable again.")
        }
        FailEnd::NotReplaced => write!(
            f,
            "Clear FAIL state for node {id}: is reachable again and nobody is serving its slots after some time."
        ),
    }
}

fn write_hindrance(f: &mut fmt::Formatter<'_>, hindrance: Hindrance) -> fmt::Result {
    f.write_str("Currently unable to failover: ")?;
    match hindrance {
        Hindrance::DataTooOld { age: Some(age) } => write!(
            f,
            "Disconnected from master for longer than allowed ({} ms). \
             Please check the 'cluster-replica-validity-factor' configuration option.",
            age.as_millis()
        ),
        Hindrance::DataTooOld { age: None } => f.write_str(
            "Never in sync with the master since the start. \
             Please check the 'cluster-replica-validity-factor' configuration option.",
        ),
        Hindrance::NotConfirmed { votes, needed } => {
            write!(f, "Waiting for votes, but majority still not reached: {votes} of {needed}.")
        }
    }
}

fn write_denial(f: &mut fmt::Formatter<'_>, epoch: Epoch, why: Denial) -> fmt::Result {
    match why {
        Denial::OldEpoch { current } => write!(f, "reqEpoch ({epoch}) < curEpoch({current})"),
        Denial::AlreadyVoted => write!(f, "already voted for epoch {epoch}"),
        Denial::NotAReplica => f.write_str("it is a master node"),
        Denial::MasterUnknown => f.write_str("I don't know its master"),
        Denial::MasterIsUp => f.write_str("its master is up"),
        Denial::VotedForMasterRecently { wait } => {
            write!(f, "can't vote about this master before {} milliseconds", wait.as_millis())
        }
        Denial::StaleSlot { slot } => {
            write!(f, "slot {slot} is served under a newer epoch than reqEpoch ({epoch})")
        }
    }
}
