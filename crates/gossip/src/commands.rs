//! Operator commands (`CLUSTER ...`) and their replies.

use std::net::IpAddr;
use std::time::Duration;

pub use slot_routing::SlotChange;
use slot_routing::{Epoch, NodeId, Slot, SlotSet};
use thiserror::Error;

/// A command of the operator. The caller supplies facts that the state machine does not know, such as key counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorCommand {
    /// CLUSTER MEET: starts a handshake with a node.
    Meet {
        /// IPv4 or IPv6 address; hostnames are not resolved.
        ip: IpAddr,
        /// Client port, as typed by the operator. The port that the node announces replaces it.
        port: u16,
        /// Cluster bus port; the connection is opened to this port.
        bus_port: u16,
    },
    /// CLUSTER ADDSLOTS and ADDSLOTSRANGE: assigns slots that have no owner to this node.
    AddSlots(Vec<Slot>),
    /// CLUSTER DELSLOTS and DELSLOTSRANGE: removes the owners of slots in this node's view.
    DelSlots(Vec<Slot>),
    /// CLUSTER FLUSHSLOTS: removes all slots from this node, which must not have keys.
    FlushSlots {
        /// Whether this node has any keys; if so, the command is refused.
        holds_keys: bool,
    },
    /// CLUSTER SETSLOT: marks a slot as migrating or importing, or assigns it to a node.
    SetSlot {
        /// The slot whose state changes.
        slot: Slot,
        /// One of MIGRATING, IMPORTING, STABLE and NODE, with the node id as typed by the operator.
        change: SlotChange,
        /// Number of keys that this node has in the slot. A node cannot give away a slot that contains keys.
        keys_in_slot: u64,
        /// How long to wait for the replicas to acknowledge the change.
        timeout: Duration,
    },
    /// Claims slots after an atomic slot import.
    ClaimSlots {
        /// The imported slots; the claim covers all of them or, on an error, none.
        slots: SlotSet,
        /// The previous owner of the slots, or another node of its shard. The source no longer accepts writes to the
        /// slots.
        source: NodeId,
    },
    /// CLUSTER REPLICATE: makes this node a replica of the given master.
    Replicate {
        /// The id of the new master, as typed by the operator.
        node: String,
        /// Whether this node has any keys. A master with keys cannot become a replica.
        holds_keys: bool,
    },
    /// CLUSTER REPLICATE NO ONE: makes this replica an empty master in a shard of its own.
    Detach,
    /// CLUSTER FAILOVER: this replica must take over from its master.
    Failover(FailoverMode),
    /// CLUSTER FORGET: removes a node from the table. For a while, gossip cannot add the node again.
    Forget {
        /// The id of the node to forget, as typed by the operator.
        node: String,
    },
    /// CLUSTER RESET: forgets all other nodes and slots.
    Reset {
        /// HARD: also takes a new node id and resets the epoch to 0.
        is_hard: bool,
        /// Whether this node has any keys. A master with keys is not reset.
        holds_keys: bool,
    },
    /// CLUSTER SET-CONFIG-EPOCH: sets the epoch of a new node that knows no other node.
    SetConfigEpoch(Epoch),
    /// CLUSTER BUMPEPOCH: takes an epoch above all known ones without a vote.
    BumpEpoch,
    /// CLUSTER SAVECONFIG: writes `nodes.conf` and replies when it is durable.
    SaveConfig,
}

/// Default time that SETSLOT waits for the replicas; the same as in Valkey.
pub const SET_SLOT_TIMEOUT: Duration = Duration::from_secs(2);

/// The option of CLUSTER FAILOVER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailoverMode {
    /// The master pauses writes and the replica catches up first, so no write is lost.
    Graceful,
    /// FORCE: an election without the cooperation of the master.
    Force,
    /// TAKEOVER: promotion without an election, even if no majority is reachable.
    Takeover,
}

/// The reply to a successful command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorReply {
    /// `+OK`, the reply to every command except BUMPEPOCH.
    Ok,
    /// BUMPEPOCH set this new epoch.
    EpochBumped(Epoch),
    /// BUMPEPOCH left this epoch unchanged because it was already the highest.
    EpochUnchanged(Epoch),
}

/// Why a command was refused. The texts are those of Redis; the caller prepends `-ERR `.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OperatorError {
    /// No known node has the id that was given to FORGET, REPLICATE, SETSLOT NODE or a query.
    #[error("Unknown node {0}")]
    UnknownNode(String),
    /// No known node has the id that was given to SETSLOT MIGRATING or IMPORTING.
    #[error("I don't know about node {0}")]
    UnknownMigrationPeer(String),
    /// ADDSLOTS for a slot that has an owner.
    #[error("Slot {0} is already busy")]
    SlotBusy(Slot),
    /// DELSLOTS for a slot without an owner.
    #[error("Slot {0} is already unassigned")]
    SlotUnassigned(Slot),
    /// The same slot occurs twice in the arguments.
    #[error("Slot {0} specified multiple times")]
    DuplicateSlot(Slot),
    /// FLUSHSLOTS on a node with keys.
    #[error("DB must be empty to perform CLUSTER FLUSHSLOTS.")]
    FlushNotEmpty,
    /// SETSLOT was sent to a replica, which cannot change slots.
    #[error("Please use SETSLOT only with masters.")]
    SetSlotOnReplica,
    /// Not all replicas acknowledged the SETSLOT in time, or this restarted master accepts no replicas yet.
    #[error("Not enough good replicas to write.")]
    NoReplicas,
    /// SETSLOT names a replica as the source or target.
    #[error("Target node is not a master")]
    TargetNotMaster,
    /// SETSLOT MIGRATING to, or IMPORTING from, this node itself.
    #[error("Target node is myself")]
    TargetIsMyself,
    /// SETSLOT MIGRATING for a slot that this node does not own.
    #[error("I'm not the owner of hash slot {0}")]
    NotOwner(Slot),
    /// SETSLOT IMPORTING for a slot that this node already owns.
    #[error("I'm already the owner of hash slot {0}")]
    AlreadyOwner(Slot),
    /// SETSLOT NODE would give the slot to another node while this node has keys in it.
    #[error("Can't assign hashslot {0} to a different node while I still hold keys for this hash slot.")]
    SlotHasKeys(Slot),
    /// An atomic slot import on a replica.
    #[error("Slot migration can only be used on primary nodes.")]
    ClaimOnReplica,
    /// The source of an atomic slot import no longer owns the slots.
    #[error("Target node does not agree about current slot ownership")]
    SourceIsNotOwner,
    /// REPLICATE names this node itself.
    #[error("Can't replicate myself")]
    ReplicateMyself,
    /// REPLICATE names a replica; only a master can be replicated in a cluster.
    #[error("I can only replicate a master, not a replica.")]
    ReplicateReplica,
    /// REPLICATE on a master that has slots or keys.
    #[error("To set a master the node must be empty and without assigned slots.")]
    ReplicateNotEmpty,
    /// FAILOVER was sent to a master; only a replica can take over.
    #[error("You should send CLUSTER FAILOVER to a replica")]
    FailoverOnMaster,
    /// FAILOVER on a replica whose master is unknown.
    #[error("I'm a replica but my master is unknown to me")]
    MasterUnknown,
    /// FAILOVER without FORCE while the master is unreachable.
    #[error("Master is down or failed, please use CLUSTER FAILOVER FORCE")]
    MasterDown,
    /// FAILOVER while a failover with the same or a stronger option is in progress.
    #[error("Manual failover is already in progress")]
    FailoverInProgress,
    /// FORGET with this node's own id.
    #[error("I tried hard but I can't forget myself...")]
    ForgetMyself,
    /// FORGET with the id of this replica's master.
    #[error("Can't forget my master!")]
    ForgetMaster,
    /// RESET on a master with keys.
    #[error("CLUSTER RESET can't be called with master nodes containing keys")]
    ResetNotEmpty,
    /// SET-CONFIG-EPOCH on a node that knows other nodes.
    #[error("The user can assign a config epoch only when the node does not know any other node.")]
    KnowsOtherNodes,
    /// SET-CONFIG-EPOCH on a node whose epoch is already set.
    #[error("Node config epoch is already non-zero")]
    EpochAlreadySet,
    /// The command requires the id of a master.
    #[error("The specified node is not a master")]
    NotAMaster,
}

impl OperatorError {
    pub(crate) fn unknown_node(node: &str) -> Self {
        Self::UnknownNode(node.to_owned())
    }
}

pub(crate) fn parse_node_id(name: &str) -> Option<NodeId> {
    name.parse().ok()
}
