//! What is worth a line in the log.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot};

use crate::node::Cause;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For developers.
    Debug,
    /// Much detail.
    Verbose,
    /// What operators want to know.
    Notice,
    /// What operators must know.
    Warning,
}

/// Something the log should tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node is reached elsewhere from now on.
    AddressUpdated {
        /// The node.
        id: NodeId,
        /// Its new address.
        ip: IpAddr,
        /// Its new port.
        port: u16,
    },
    /// Others see this node at this address.
    MyAddress(IpAddr),
    /// A node that was met by address has told its name.
    HandshakeDone(NodeId),
    /// Another node than expected answers at an address.
    MismatchedSender {
        /// Who was expected.
        expected: NodeId,
        /// Who is there.
        found: NodeId,
    },
    /// This node suspects another.
    Suspected {
        /// The suspect.
        id: NodeId,
        /// Why.
        cause: Cause,
    },
    /// A suspect answered.
    SuspicionEnded(NodeId),
    /// A master reports a node as failing.
    ReportedBy {
        /// The suspect.
        id: NodeId,
        /// The master.
        reporter: NodeId,
    },
    /// A master takes its report back.
    ReportWithdrawn {
        /// The suspect.
        id: NodeId,
        /// The master.
        reporter: NodeId,
    },
    /// With this node's view a majority of the masters holds the node for failed.
    FailAgreed(NodeId),
    /// Another node says that a node failed.
    FailHeard {
        /// The failed node.
        id: NodeId,
        /// Who says so.
        from: NodeId,
    },
    /// A failed node counts as well again.
    FailEnded {
        /// The node.
        id: NodeId,
        /// Why.
        why: FailEnd,
    },
    /// The cluster serves, or no longer does, as this node sees it.
    StateChanged {
        /// Whether it serves.
        serving: bool,
    },
    /// This process was not run for so long.
    StoodStill(Duration),
    /// Another node has this node's epoch, and this node takes a new one.
    EpochCollision {
        /// The other node.
        with: NodeId,
        /// The epoch that both had.
        epoch: Epoch,
    },
    /// All of this node's slots belong to another.
    SlotsLost {
        /// The new owner.
        to: NodeId,
    },
    /// This node follows another master.
    Following {
        /// The master.
        master: NodeId,
    },
    /// This replica goes to a master that has none.
    Migrating {
        /// The master.
        to: NodeId,
    },
    /// A slot was imported under this new epoch.
    ImportedEpoch(Epoch),
    /// This node holds keys of a slot that is another's.
    KeysOfOther {
        /// The slot.
        slot: Slot,
        /// Its owner.
        owner: NodeId,
    },
    /// This node loaded keys of a slot that is nobody's, and claims it.
    KeysOfNobody {
        /// The slot.
        slot: Slot,
    },
    /// A message was passed over because of its epoch.
    UnbelievableEpoch {
        /// Who it claims to be from.
        sender: NodeId,
        /// The epoch.
        epoch: Epoch,
    },
    /// An election will be held.
    ElectionScheduled {
        /// In how long.
        delay: Duration,
        /// How many replicas have more data.
        rank: u32,
        /// The replication offset to stand with.
        offset: u64,
    },
    /// Other replicas turned out to have more data, or less.
    RankChanged {
        /// How many have more.
        rank: u32,
        /// By how much the election was put off.
        added: Duration,
    },
    /// An election began, in this epoch.
    ElectionStarted(Epoch),
    /// This node won the election of this epoch.
    ElectionWon(Epoch),
    /// The election of this epoch found no majority in time.
    ElectionExpired(Epoch),
    /// This node may not stand for election.
    CannotStand(Hindrance),
    /// This node voted.
    VoteGranted {
        /// For whom.
        candidate: NodeId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// This node refused to vote.
    VoteDenied {
        /// The candidate.
        candidate: NodeId,
        /// The election's epoch.
        epoch: Epoch,
        /// Why.
        why: Denial,
    },
    /// A replica of this master asks for a manual failover.
    ManualFailoverAsked {
        /// The replica.
        by: NodeId,
    },
    /// This replica begins a manual failover.
    ManualFailoverAccepted,
    /// It begins one without its master.
    ManualFailoverForced,
    /// It takes over without asking anybody.
    ManualFailoverTakeover,
    /// It has all its master's data and stands for election.
    ManualFailoverReady,
    /// A master that starts asks its replicas how far they are, before it serves.
    Comparing {
        /// How far the data reaches that was found on disk.
        found: u64,
    },
    /// This master started with less data than a replica has, and wants that one in its place.
    Resigned {
        /// The replica with most.
        replica: NodeId,
        /// How far it is.
        offset: u64,
    },
    /// This master has waited long enough for a replica with more data, and serves what it has.
    NobodyTookOver,
    /// A manual failover took too long.
    ManualFailoverTimedOut,
    /// The master's offset, up to which this replica must come.
    ManualOffset(u64),
    /// The operator set this node's epoch.
    ConfigEpochSet(Epoch),
    /// The operator reset this node.
    NodeReset,
    /// This node has a new name.
    NewIdentity(NodeId),
}

/// Why a FAIL was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailEnd {
    /// It serves nothing, and is reachable again.
    NoSlots {
        /// Whether it is a replica.
        replica: bool,
    },
    /// Nobody replaced it for long enough, and it is reachable again.
    NotReplaced,
}

/// Why a replica of a failed master does not stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// Its data is too old.
    DataTooOld {
        /// How old; `None` if it never had any.
        age: Option<Duration>,
    },
    /// The other masters have not confirmed its last election.
    NotConfirmed {
        /// Votes so far.
        votes: usize,
        /// Votes needed.
        needed: usize,
    },
}

/// Why a vote was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The election is of an epoch that is over.
    OldEpoch {
        /// This node's epoch.
        current: Epoch,
    },
    /// This node voted in that epoch.
    AlreadyVoted,
    /// The candidate is a master.
    NotAReplica,
    /// The candidate's master is not known.
    MasterUnknown,
    /// The candidate's master is not failed.
    MasterIsUp,
    /// This node voted for a replica of that master a moment ago.
    VotedForMasterRecently {
        /// How long until it would again.
        wait: Duration,
    },
    /// The candidate claims a slot under an older epoch than its owner's.
    StaleSlot {
        /// The slot.
        slot: Slot,
    },
}

impl Event {
    /// How loud the log should tell it.
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
            Self::KeysOfOther { slot, owner } => write!(
                f,
                "I have keys for slot {slot}, but the slot is assigned to {owner}. Setting it to importing state."
            ),
            Self::KeysOfNobody { slot } => {
                write!(f, "I have keys for unassigned slot {slot}. Taking responsibility for it.")
            }
            Self::UnbelievableEpoch { sender, epoch } => {
                write!(
                    f,
                    "A packet that claims to be of {sender} is passed over: nobody can be at epoch {epoch}"
                )
            }
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
            Self::Comparing { found } => write!(
                f,
                "Started with data up to offset {found}: asking my replicas how far they are before I serve"
            ),
            Self::Resigned { replica, offset } => write!(
                f,
                "Replica {replica} has data up to offset {offset}, more than I do: telling all that I have failed, so \
                 that it takes over"
            ),
            Self::NobodyTookOver => f.write_str(
                "No replica has taken over within stale-master-timeout: serving the data that I have",
            ),
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
