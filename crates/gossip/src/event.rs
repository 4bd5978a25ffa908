//! The events that are worth a line in the log.

mod election;
mod failure;
mod manual_failover;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot};

pub use election::{Denial, ElectionEvent, Hindrance, Reset};
pub use failure::{FailEnd, FailureEvent};
pub use manual_failover::ManualFailoverEvent;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For developers.
    Debug,
    /// Much detail.
    Verbose,
    /// For operators: worth knowing.
    Notice,
    /// For operators: calls for their attention.
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
        /// The node that was expected.
        expected: NodeId,
        /// The node that answers.
        found: NodeId,
    },
    /// A node fails, or no longer does.
    Failure(FailureEvent),
    /// An election is held, or a vote given.
    Election(ElectionEvent),
    /// An operator's failover goes on.
    ManualFailover(ManualFailoverEvent),
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
    /// This master's last slot is another node's, whose replica it does not become.
    EmptyPrimary {
        /// The new owner.
        to: NodeId,
        /// The new owner's name for people; may be empty.
        name: String,
        /// The new owner's shard.
        shard: NodeId,
    },
    /// This node follows another master.
    Following {
        /// The master.
        master: NodeId,
    },
    /// This replica's master has become a replica itself.
    SubReplica {
        /// The master's master, which this node follows from now on.
        master: NodeId,
        /// The one that it followed.
        from: NodeId,
    },
    /// This replica goes to a master that has none.
    Migrating {
        /// The master.
        to: NodeId,
    },
    /// A slot was imported under this new epoch.
    ImportedEpoch(Epoch),
    /// A slot was imported from a node that gave it away and told nobody else: it is this node's.
    GivenAway {
        /// The slot.
        slot: Slot,
        /// The node that it was imported from.
        from: NodeId,
    },
    /// The master's stream names a node that is not known here.
    SlotOfUnknown {
        /// The slot.
        slot: Slot,
        /// The node, as the stream names it.
        node: String,
    },
    /// This node holds keys of a slot that is another's.
    KeysOfOther {
        /// The slot.
        slot: Slot,
        /// Its owner.
        owner: NodeId,
    },
    /// This node loaded keys of a slot without an owner, and claims it.
    KeysOfNobody {
        /// The slot.
        slot: Slot,
    },
    /// A message was passed over because of its epoch.
    UnbelievableEpoch {
        /// The node that it claims to be from.
        sender: NodeId,
        /// The epoch.
        epoch: Epoch,
    },
    /// The operator set this node's epoch.
    ConfigEpochSet(Epoch),
    /// The operator reset this node.
    NodeReset,
    /// This replica was told to copy nobody.
    Detached {
        /// Its new shard.
        shard: NodeId,
    },
    /// This node has a new name.
    NewIdentity(NodeId),
}

impl Event {
    /// How loud the log should tell it.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::MismatchedSender { .. } => Level::Debug,
            Self::HandshakeDone(_) => Level::Notice,
            Self::Failure(event) => event.level(),
            _ => Level::Warning,
        }
    }
}

/// The lines of Redis where it has them, so that what searches logs keeps finding.
const FOLLOWING: &str = "Configuration change detected. Reconfiguring myself as a replica of";
const DETACHED: &str = "Stop replication and turning myself into empty primary (user request). \
                        Moving myself to a new shard";

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressUpdated { id, ip, port } => {
                write!(f, "Address updated for node {id}, now {ip}:{port}")
            }
            Self::MyAddress(ip) => write!(f, "IP address for this node updated to {ip}"),
            Self::HandshakeDone(id) => write!(f, "Successfully completed handshake with {id}"),
            Self::MismatchedSender { expected, found } => {
                write!(
                    f,
                    "PONG contains mismatching sender ID. About node {expected}: {found} answers instead"
                )
            }
            Self::Failure(event) => event.fmt(f),
            Self::Election(event) => event.fmt(f),
            Self::ManualFailover(event) => event.fmt(f),
            Self::StateChanged { serving } => {
                write!(f, "Cluster state changed: {}", if *serving { "ok" } else { "fail" })
            }
            Self::StoodStill(gap) => write_standstill(f, *gap),
            Self::EpochCollision { with, epoch } => {
                write!(f, "configEpoch collision with node {with}. Updating my configEpoch to {epoch}")
            }
            Self::SlotsLost { to } => {
                write!(
                    f,
                    "Lost my last slot during slot migration. Reconfiguring myself as a replica of {to}"
                )
            }
            Self::EmptyPrimary { to, name, shard } => write!(
                f,
                "My last slot was migrated to node {to} ({name}) in shard {shard}. I am now an empty primary."
            ),
            Self::Following { master } => write!(f, "{FOLLOWING} {master}"),
            Self::SubReplica { master, from } => {
                write!(f, "I'm a sub-replica! Reconfiguring myself as a replica of {master} from {from}")
            }
            Self::Migrating { to } => write!(f, "Migrating to orphaned primary {to}"),
            Self::ImportedEpoch(_)
            | Self::GivenAway { .. }
            | Self::SlotOfUnknown { .. }
            | Self::KeysOfOther { .. }
            | Self::KeysOfNobody { .. } => self.write_slot_event(f),
            Self::UnbelievableEpoch { sender, epoch } => {
                write!(
                    f,
                    "A packet that claims to be of {sender} is passed over: nobody can be at epoch {epoch}"
                )
            }
            Self::ConfigEpochSet(epoch) => {
                write!(f, "configEpoch set to {epoch} via CLUSTER SET-CONFIG-EPOCH")
            }
            Self::Detached { shard } => write!(f, "{DETACHED} {shard}."),
            Self::NodeReset => f.write_str("Cluster reset (user request)."),
            Self::NewIdentity(id) => write!(f, "Node hard reset, now I'm {id}"),
        }
    }
}

impl Event {
    /// Writes an event about a slot; nothing for others.
    fn write_slot_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImportedEpoch(epoch) => {
                write!(f, "configEpoch updated after importing slot: {epoch}")
            }
            Self::GivenAway { slot, from } => write!(
                f,
                "Slot {slot} is no longer being imported from node {from}, which does not claim it any more. \
                 Taking it over."
            ),
            Self::SlotOfUnknown { slot, node } => {
                write!(
                    f,
                    "The primary says of slot {slot} that {node} has to do with it, which is not known here"
                )
            }
            Self::KeysOfOther { slot, owner } => write!(
                f,
                "I have keys for slot {slot}, but the slot is assigned to {owner}. Setting it to importing state."
            ),
            Self::KeysOfNobody { slot } => {
                write!(f, "I have keys for unassigned slot {slot}. Taking responsibility for it.")
            }
            _ => Ok(()),
        }
    }
}

fn write_standstill(f: &mut fmt::Formatter<'_>, gap: Duration) -> fmt::Result {
    let gap = gap.as_millis();
    write!(f, "This process stood still for {gap} ms; not serving before the others were heard")
}
