//! Events that the state machine writes to the server's log.

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
    /// For developers; the Redis level `debug`.
    Debug,
    /// More detail than operators usually need; the Redis level `verbose`.
    Verbose,
    /// Normal but significant events; the Redis level `notice`.
    Notice,
    /// Events that need the operator's attention; the Redis level `warning`.
    Warning,
}

/// An event for the server's log. `Display` formats the text, in the wording of Redis or Valkey where they log the same
/// event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// Another node announced a new address. This node will connect to that address.
    AddressUpdated {
        /// The node whose address changed.
        id: NodeId,
        /// The IP address that replaces the previous one.
        ip: IpAddr,
        /// The client port, as in CLUSTER NODES.
        port: u16,
    },
    /// The IP address at which other nodes reach this node has changed.
    MyAddressChanged(IpAddr),
    /// A handshake is complete, and the id of the node is known.
    HandshakeDone(NodeId),
    /// A different node answered at a known node's address.
    MismatchedSender {
        /// The node that was known at this address.
        expected_id: NodeId,
        /// The node that answered, which has another id.
        actual_id: NodeId,
    },
    /// A node was suspected, failed or recovered.
    Failure(FailureEvent),
    /// A change in an election or a vote.
    Election(ElectionEvent),
    /// A manual failover was requested, made progress or ended.
    ManualFailover(ManualFailoverEvent),
    /// The cluster state changed between `ok` and `fail`.
    StateChanged {
        /// The new state: true means `ok`.
        is_serving: bool,
    },
    /// The process was paused for this long, so another node may have taken over in the meantime.
    ProcessPaused(Duration),
    /// Another master has the same epoch, so this node takes a new one.
    EpochCollision {
        /// The other master with the same epoch.
        other_master: NodeId,
        /// The epoch that this node takes.
        epoch: Epoch,
    },
    /// The last slot of this node moved to another node, so this node becomes a replica of that node.
    SlotsLost {
        /// The new owner of the slot, which becomes this node's master.
        new_owner: NodeId,
    },
    /// The last slot of this master moved to another node, but this node remains a master.
    LastSlotLost {
        /// The new owner of the slot.
        new_owner: NodeId,
        /// The human-readable name of the new owner; may be empty.
        new_owner_name: String,
        /// The shard of the new owner, which is not this node's shard.
        shard: NodeId,
    },
    /// The slots of this node's master moved to another master, so this node now replicates that master.
    FollowingMaster {
        /// The new master of this node.
        master: NodeId,
    },
    /// The master of this replica became a replica itself.
    MasterBecameReplica {
        /// The master at the end of the chain of replicas, which this node now replicates.
        master: NodeId,
        /// The previous master of this node.
        old_master: NodeId,
    },
    /// This replica moves to a master without working replicas.
    ReplicaMigrating {
        /// The master without working replicas.
        new_master: NodeId,
    },
    /// This node took a new epoch for an imported slot.
    EpochTakenForImport(Epoch),
    /// The source of an import no longer claims the slot, so this node takes it.
    GivenAwaySlotClaimed {
        /// The slot that this node was importing.
        slot: Slot,
        /// The node from which the slot was imported.
        source: NodeId,
    },
    /// The replication stream assigns a slot to a node that this node does not know, so the change is ignored.
    SlotOfUnknownNode {
        /// The slot that would have changed.
        slot: Slot,
        /// The node id as written in the stream.
        node: String,
    },
    /// This node has keys in a slot that another node owns.
    KeysInForeignSlot {
        /// The slot, which is now marked as importing.
        slot: Slot,
        /// The node that owns the slot in this node's view.
        owner: NodeId,
    },
    /// This node loaded keys in an unassigned slot and claims the slot.
    KeysInUnassignedSlot {
        /// The slot that this node now owns.
        slot: Slot,
    },
    /// A packet was dropped because no cluster can have reached its epoch.
    ImpossibleEpoch {
        /// The sender named in the packet, which may be forged.
        sender: NodeId,
        /// The epoch that was too high.
        epoch: Epoch,
    },
    /// The operator set this node's configuration epoch.
    ConfigEpochSet(Epoch),
    /// An operator ran CLUSTER RESET on this node.
    NodeReset,
    /// The operator detached this replica from its master.
    ReplicaDetached {
        /// The new shard, in which this node is alone.
        shard: NodeId,
    },
    /// A hard reset gave this node a new id.
    NewIdentity(NodeId),
}

impl ClusterEvent {
    /// Returns the log level of the event. Most events have the level `warning`.
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

/// The wording of Redis and Valkey, for which log monitors search.
const FOLLOWING_TEXT: &str = "Configuration change detected. Reconfiguring myself as a replica of";
const DETACHED_TEXT: &str = "Stop replication and turning myself into empty primary (user request). \
                        Moving myself to a new shard";

impl fmt::Display for ClusterEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressUpdated { id, ip, port } => {
                write!(f, "Address updated for node {id}, now {ip}:{port}")
            }
            Self::MyAddressChanged(ip) => write!(f, "IP address for this node updated to {ip}"),
            Self::HandshakeDone(id) => write!(f, "Successfully completed handshake with {id}"),
            Self::MismatchedSender { expected_id: expected, actual_id: found } => {
                write!(
                    f,
                    "PONG contains mismatching sender ID. About node {expected}: {found} answers instead"
                )
            }
            Self::Failure(event) => event.fmt(f),
            Self::Election(event) => event.fmt(f),
            Self::ManualFailover(event) => event.fmt(f),
            Self::StateChanged { is_serving: serving } => {
                write!(f, "Cluster state changed: {}", if *serving { "ok" } else { "fail" })
            }
            Self::ProcessPaused(gap) => write_process_pause(f, *gap),
            Self::EpochCollision { other_master: with, epoch } => {
                write!(f, "configEpoch collision with node {with}. Updating my configEpoch to {epoch}")
            }
            Self::SlotsLost { new_owner: to } => {
                write!(
                    f,
                    "Lost my last slot during slot migration. Reconfiguring myself as a replica of {to}"
                )
            }
            Self::LastSlotLost { new_owner: to, new_owner_name: name, shard } => write!(
                f,
                "My last slot was migrated to node {to} ({name}) in shard {shard}. I am now an empty primary."
            ),
            Self::FollowingMaster { master } => write!(f, "{FOLLOWING_TEXT} {master}"),
            Self::MasterBecameReplica { master, old_master: from } => {
                write!(f, "I'm a sub-replica! Reconfiguring myself as a replica of {master} from {from}")
            }
            Self::ReplicaMigrating { new_master: to } => write!(f, "Migrating to orphaned primary {to}"),
            Self::EpochTakenForImport(_)
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
            Self::ReplicaDetached { shard } => write!(f, "{DETACHED_TEXT} {shard}."),
            Self::NodeReset => f.write_str("Cluster reset (user request)."),
            Self::NewIdentity(id) => write!(f, "Node hard reset, now I'm {id}"),
        }
    }
}

impl ClusterEvent {
    /// Writes the text of slot-related events; `Display` writes all others.
    fn write_slot_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EpochTakenForImport(epoch) => {
                write!(f, "configEpoch updated after importing slot: {epoch}")
            }
            Self::GivenAwaySlotClaimed { slot, source: from } => write!(
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

fn write_process_pause(f: &mut fmt::Formatter<'_>, pause: Duration) -> fmt::Result {
    let gap = pause.as_millis();
    write!(f, "Process was paused for {gap} ms; not serving before the other nodes have been heard")
}
