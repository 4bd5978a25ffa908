//! Events that the state machine writes to the log.

mod election;
mod failure;
mod manual_failover;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot};

pub use election::{CannotFailoverReason, ElectionEvent, ElectionResetReason, VoteDenial};
pub use failure::{FailClearReason, FailureEvent, SuspicionCause};
pub use manual_failover::ManualFailoverEvent;

/// The log level of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For developers.
    Debug,
    /// Detailed information.
    Verbose,
    /// Normal but significant information for operators.
    Notice,
    /// Calls for the operator's attention.
    Warning,
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// The address of a node changed.
    AddressUpdated {
        /// The node whose address changed.
        id: NodeId,
        /// Its new IP address.
        ip: IpAddr,
        /// Its new port.
        port: u16,
    },
    /// Other nodes reach this node at this IP address.
    MyAddress(IpAddr),
    /// A handshake ended: the node at the address has told its id.
    HandshakeDone(NodeId),
    /// A different node answered at a known node's address.
    MismatchedSender {
        /// The node that this address belonged to.
        expected: NodeId,
        /// The node that answered.
        found: NodeId,
    },
    /// A change in failure detection.
    Failure(FailureEvent),
    /// A change in an election or a vote.
    Election(ElectionEvent),
    /// A change in a manual failover.
    ManualFailover(ManualFailoverEvent),
    /// The cluster state changed between `ok` and `fail`.
    StateChanged {
        /// Whether the new state is `ok`.
        serving: bool,
    },
    /// The process was paused for this long.
    ProcessPaused(Duration),
    /// Another master has the same epoch, so this node takes a new one.
    EpochCollision {
        /// The other master.
        with: NodeId,
        /// The new epoch of this node.
        epoch: Epoch,
    },
    /// The last slot of this node moved to another node, and this node becomes its replica.
    SlotsLost {
        /// The new owner.
        to: NodeId,
    },
    /// The last slot of this master moved to another node, and this node stays a master.
    LastSlotLost {
        /// The new owner.
        to: NodeId,
        /// The new owner's human-readable name; may be empty.
        name: String,
        /// The new owner's shard.
        shard: NodeId,
    },
    /// This node becomes a replica of another master.
    FollowingMaster {
        /// The new master.
        master: NodeId,
    },
    /// This replica's master became a replica itself.
    SubReplica {
        /// The master at the end of the chain, which this node now replicates.
        master: NodeId,
        /// The former master.
        from: NodeId,
    },
    /// This replica migrates to an orphaned master.
    Migrating {
        /// The orphaned master.
        to: NodeId,
    },
    /// This node took a new epoch for an imported slot.
    ImportedEpoch(Epoch),
    /// The source of an import no longer claims the slot, so this node takes it.
    GivenAwaySlotClaimed {
        /// The imported slot.
        slot: Slot,
        /// The source of the import.
        from: NodeId,
    },
    /// The replication stream names a node that this node does not know.
    SlotOfUnknownNode {
        /// The slot of the change.
        slot: Slot,
        /// The node id in the stream.
        node: String,
    },
    /// This node has keys in a slot that another node owns.
    KeysInForeignSlot {
        /// The slot that contains keys.
        slot: Slot,
        /// The owner of the slot.
        owner: NodeId,
    },
    /// This node loaded keys in an unassigned slot and claims the slot.
    KeysInUnassignedSlot {
        /// The claimed slot.
        slot: Slot,
    },
    /// A packet was dropped because no cluster can have reached its epoch.
    ImpossibleEpoch {
        /// The sender according to the packet.
        sender: NodeId,
        /// The impossible epoch.
        epoch: Epoch,
    },
    /// The operator set this node's configuration epoch.
    ConfigEpochSet(Epoch),
    /// The operator reset this node.
    NodeReset,
    /// The operator detached this replica from its master.
    Detached {
        /// The new shard of this node.
        shard: NodeId,
    },
    /// A hard reset gave this node a new id.
    NewIdentity(NodeId),
}

impl ClusterEvent {
    /// The level to log this event with.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        match self {
            Self::MismatchedSender { .. } => LogLevel::Debug,
            Self::HandshakeDone(_) => LogLevel::Notice,
            Self::Failure(event) => event.level(),
            _ => LogLevel::Warning,
        }
    }
}

/// Wording of Redis and Valkey, which log monitors search for.
const FOLLOWING: &str = "Configuration change detected. Reconfiguring myself as a replica of";
const DETACHED: &str = "Stop replication and turning myself into empty primary (user request). \
                        Moving myself to a new shard";

impl fmt::Display for ClusterEvent {
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
            Self::ProcessPaused(gap) => write_process_pause(f, *gap),
            Self::EpochCollision { with, epoch } => {
                write!(f, "configEpoch collision with node {with}. Updating my configEpoch to {epoch}")
            }
            Self::SlotsLost { to } => {
                write!(
                    f,
                    "Lost my last slot during slot migration. Reconfiguring myself as a replica of {to}"
                )
            }
            Self::LastSlotLost { to, name, shard } => write!(
                f,
                "My last slot was migrated to node {to} ({name}) in shard {shard}. I am now an empty primary."
            ),
            Self::FollowingMaster { master } => write!(f, "{FOLLOWING} {master}"),
            Self::SubReplica { master, from } => {
                write!(f, "I'm a sub-replica! Reconfiguring myself as a replica of {master} from {from}")
            }
            Self::Migrating { to } => write!(f, "Migrating to orphaned primary {to}"),
            Self::ImportedEpoch(_)
            | Self::GivenAwaySlotClaimed { .. }
            | Self::SlotOfUnknownNode { .. }
            | Self::KeysInForeignSlot { .. }
            | Self::KeysInUnassignedSlot { .. } => self.write_slot_event(f),
            Self::ImpossibleEpoch { sender, epoch } => {
                write!(f, "Ignoring a packet from {sender}: no node can have reached epoch {epoch}")
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

impl ClusterEvent {
    /// Writes the slot-related events; the others are handled by `Display`.
    fn write_slot_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImportedEpoch(epoch) => {
                write!(f, "configEpoch updated after importing slot: {epoch}")
            }
            Self::GivenAwaySlotClaimed { slot, from } => write!(
                f,
                "Slot {slot} is no longer being imported from node {from}, which does not claim it any more. \
                 Taking it over."
            ),
            Self::SlotOfUnknownNode { slot, node } => {
                write!(f, "Replication stream names unknown node {node} for slot {slot}")
            }
            Self::KeysInForeignSlot { slot, owner } => write!(
                f,
                "I have keys for slot {slot}, but the slot is assigned to {owner}. Setting it to importing state."
            ),
            Self::KeysInUnassignedSlot { slot } => {
                write!(f, "I have keys for unassigned slot {slot}. Taking responsibility for it.")
            }
            _ => Ok(()),
        }
    }
}

fn write_process_pause(f: &mut fmt::Formatter<'_>, gap: Duration) -> fmt::Result {
    let gap = gap.as_millis();
    write!(f, "Process was paused for {gap} ms; not serving before the other nodes have been heard")
}
