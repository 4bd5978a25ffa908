//! What an operator may ask for (`CLUSTER ...`), and what it is answered.

use std::net::IpAddr;

use slot_routing::{Epoch, NodeId, Slot};
use thiserror::Error;

/// A change that an operator asks for. What the machine cannot know (how many keys there are) comes
/// with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Meet { ip: IpAddr, port: u16, bus_port: u16 },
    AddSlots(Vec<Slot>),
    DelSlots(Vec<Slot>),
    FlushSlots { holds_keys: bool },
    SetSlot { slot: Slot, change: SlotChange, keys_in_slot: u64 },
    Replicate { node: String, holds_keys: bool },
    Failover(FailoverMode),
    Forget { node: String },
    Reset { hard: bool, holds_keys: bool },
    SetConfigEpoch(Epoch),
    BumpEpoch,
    SaveConfig,
}

/// What SETSLOT does to a slot. Nodes are named as the operator typed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotChange {
    Migrating { to: String },
    Importing { from: String },
    Stable,
    Node(String),
}

/// How much a manual failover waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailoverMode {
    /// The master agrees and is caught up with: nothing is lost.
    Graceful,
    /// The master is not asked; the other masters vote.
    Force,
    /// Nobody is asked.
    Takeover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Ok,
    Bumped(Epoch),
    Still(Epoch),
}

/// Why a command was refused; the texts are Redis's, to go after `-ERR `.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    #[error("Unknown node {0}")]
    UnknownNode(String),
    #[error("I don't know about node {0}")]
    DontKnowNode(String),
    #[error("Slot {0} is already busy")]
    SlotBusy(Slot),
    #[error("Slot {0} is already unassigned")]
    SlotUnassigned(Slot),
    #[error("Slot {0} specified multiple times")]
    SlotTwice(Slot),
    #[error("DB must be empty to perform CLUSTER FLUSHSLOTS.")]
    FlushNotEmpty,
    #[error("Please use SETSLOT only with masters.")]
    SetSlotOnReplica,
    #[error("Target node is not a master")]
    TargetNotMaster,
    #[error("I'm not the owner of hash slot {0}")]
    NotOwner(Slot),
    #[error("I'm already the owner of hash slot {0}")]
    AlreadyOwner(Slot),
    #[error("Can't assign hashslot {0} to a different node while I still hold keys for this hash slot.")]
    HoldsKeys(Slot),
    #[error("Can't replicate myself")]
    ReplicateMyself,
    #[error("I can only replicate a master, not a replica.")]
    ReplicateReplica,
    #[error("To set a master the node must be empty and without assigned slots.")]
    ReplicateNotEmpty,
    #[error("You should send CLUSTER FAILOVER to a replica")]
    FailoverOnMaster,
    #[error("I'm a replica but my master is unknown to me")]
    MasterUnknown,
    #[error("Master is down or failed, please use CLUSTER FAILOVER FORCE")]
    MasterDown,
    #[error("I tried hard but I can't forget myself...")]
    ForgetMyself,
    #[error("Can't forget my master!")]
    ForgetMaster,
    #[error("CLUSTER RESET can't be called with master nodes containing keys")]
    ResetNotEmpty,
    #[error("The user can assign a config epoch only when the node does not know any other node.")]
    EpochNotAlone,
    #[error("Node config epoch is already non-zero")]
    EpochAlreadySet,
    #[error("The specified node is not a master")]
    NotAMaster,
}

impl CommandError {
    pub(crate) fn unknown(node: &str) -> Self {
        Self::UnknownNode(node.to_owned())
    }
}

/// A node's name as an operator typed it.
pub(crate) fn parse_name(name: &str) -> Option<NodeId> {
    name.parse().ok()
}
