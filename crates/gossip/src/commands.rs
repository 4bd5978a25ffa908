//! The commands of an operator (`CLUSTER ...`), and the answers to them.

use std::net::IpAddr;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot, SlotSet};
use thiserror::Error;

/// A change that an operator asks for. What the machine cannot know (how many keys there are) comes
/// with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// MEET: get to know a node.
    Meet {
        /// Its address.
        ip: IpAddr,
        /// Its port for clients.
        port: u16,
        /// Its port of the bus.
        bus_port: u16,
    },
    /// ADDSLOTS and ADDSLOTSRANGE.
    AddSlots(Vec<Slot>),
    /// DELSLOTS and DELSLOTSRANGE.
    DelSlots(Vec<Slot>),
    /// FLUSHSLOTS.
    FlushSlots {
        /// Whether this node has any key.
        holds_keys: bool,
    },
    /// SETSLOT.
    SetSlot {
        /// The slot.
        slot: Slot,
        /// The change.
        change: SlotChange,
        /// How many keys this node holds of it.
        keys_in_slot: u64,
        /// How long the replicas may take to have it.
        timeout: Duration,
    },
    /// The slots were imported whole, and are this node's from now on.
    ClaimSlots {
        /// The slots.
        slots: SlotSet,
        /// The node, or one of its shard, that served them until now and takes no writes to them.
        from: NodeId,
    },
    /// REPLICATE.
    Replicate {
        /// The master, as the operator typed it.
        node: String,
        /// Whether this node has any key.
        holds_keys: bool,
    },
    /// REPLICATE NO ONE.
    Detach,
    /// FAILOVER.
    Failover(FailoverMode),
    /// FORGET.
    Forget {
        /// The node, as the operator typed it.
        node: String,
    },
    /// RESET.
    Reset {
        /// HARD: also a new name and epoch 0.
        hard: bool,
        /// Whether this node has any key.
        holds_keys: bool,
    },
    /// SET-CONFIG-EPOCH.
    SetConfigEpoch(Epoch),
    /// BUMPEPOCH.
    BumpEpoch,
    /// SAVECONFIG.
    SaveConfig,
}

/// The change of a slot by SETSLOT. Nodes are named as the operator typed them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotChange {
    /// It is handed to another node.
    Migrating {
        /// That node.
        to: String,
    },
    /// It comes from another node.
    Importing {
        /// That node.
        from: String,
    },
    /// It is no longer on the move.
    Stable,
    /// It belongs to this node from now on.
    Node(String),
}

/// How long SETSLOT waits for the replicas, unless its words say otherwise (Valkey: the same).
pub const SET_SLOT_TIMEOUT: Duration = Duration::from_secs(2);

impl SlotChange {
    /// Reads what stands behind the slot in SETSLOT's words.
    #[must_use]
    pub fn parse(words: &[&str]) -> Option<Self> {
        let (action, node) =
            (words.first()?.to_ascii_lowercase(), words.get(1).map(|node| (*node).to_owned()));
        match (action.as_str(), node) {
            ("migrating", Some(to)) => Some(Self::Migrating { to }),
            ("importing", Some(from)) => Some(Self::Importing { from }),
            ("node", Some(node)) => Some(Self::Node(node)),
            ("stable", _) => Some(Self::Stable),
            _ => None,
        }
    }

    /// The words that [`SlotChange::parse`] reads.
    #[must_use]
    pub fn words(&self) -> Vec<&str> {
        match self {
            Self::Migrating { to } => vec!["MIGRATING", to],
            Self::Importing { from } => vec!["IMPORTING", from],
            Self::Node(node) => vec!["NODE", node],
            Self::Stable => vec!["STABLE"],
        }
    }
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

/// The answer to a command that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// +OK.
    Ok,
    /// The epoch was raised to this one.
    Bumped(Epoch),
    /// The epoch was the highest already.
    Still(Epoch),
}

/// Why a command was refused; the texts are Redis's, to go after `-ERR `.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// No node has this name.
    #[error("Unknown node {0}")]
    UnknownNode(String),
    /// FORGET or REPLICATE of a node that is not known.
    #[error("I don't know about node {0}")]
    DontKnowNode(String),
    /// ADDSLOTS of a slot that has an owner.
    #[error("Slot {0} is already busy")]
    SlotBusy(Slot),
    /// DELSLOTS of a slot that has none.
    #[error("Slot {0} is already unassigned")]
    SlotUnassigned(Slot),
    /// A slot is named twice.
    #[error("Slot {0} specified multiple times")]
    SlotTwice(Slot),
    /// FLUSHSLOTS with keys.
    #[error("DB must be empty to perform CLUSTER FLUSHSLOTS.")]
    FlushNotEmpty,
    /// SETSLOT at a replica.
    #[error("Please use SETSLOT only with masters.")]
    SetSlotOnReplica,
    /// SETSLOT that not all replicas have taken in time.
    #[error("Not enough good replicas to write.")]
    NoReplicas,
    /// The slot would go to a replica.
    #[error("Target node is not a master")]
    TargetNotMaster,
    /// MIGRATING to this node, or IMPORTING from it.
    #[error("Target node is myself")]
    TargetIsMyself,
    /// MIGRATING of a slot of somebody else.
    #[error("I'm not the owner of hash slot {0}")]
    NotOwner(Slot),
    /// IMPORTING of a slot of one's own.
    #[error("I'm already the owner of hash slot {0}")]
    AlreadyOwner(Slot),
    /// The slot would be given away while its keys are here.
    #[error("Can't assign hashslot {0} to a different node while I still hold keys for this hash slot.")]
    HoldsKeys(Slot),
    /// A claim at a replica.
    #[error("Slot migration can only be used on primary nodes.")]
    ClaimOnReplica,
    /// A claim of slots that are not their source's any more.
    #[error("Target node does not agree about current slot ownership")]
    ClaimOfOthers,
    /// REPLICATE of oneself.
    #[error("Can't replicate myself")]
    ReplicateMyself,
    /// REPLICATE of a replica.
    #[error("I can only replicate a master, not a replica.")]
    ReplicateReplica,
    /// REPLICATE at a master with slots or keys.
    #[error("To set a master the node must be empty and without assigned slots.")]
    ReplicateNotEmpty,
    /// FAILOVER at a master.
    #[error("You should send CLUSTER FAILOVER to a replica")]
    FailoverOnMaster,
    /// FAILOVER at a replica that does not know its master.
    #[error("I'm a replica but my master is unknown to me")]
    MasterUnknown,
    /// FAILOVER without FORCE while the master cannot agree.
    #[error("Master is down or failed, please use CLUSTER FAILOVER FORCE")]
    MasterDown,
    /// FAILOVER while one runs that was asked for in the same way, or in one that goes further.
    #[error("Manual failover is already in progress")]
    FailoverRuns,
    /// FORGET of oneself.
    #[error("I tried hard but I can't forget myself...")]
    ForgetMyself,
    /// FORGET of one's own master.
    #[error("Can't forget my master!")]
    ForgetMaster,
    /// RESET at a master with keys.
    #[error("CLUSTER RESET can't be called with master nodes containing keys")]
    ResetNotEmpty,
    /// SET-CONFIG-EPOCH where other nodes are known.
    #[error("The user can assign a config epoch only when the node does not know any other node.")]
    EpochNotAlone,
    /// SET-CONFIG-EPOCH where an epoch is set.
    #[error("Node config epoch is already non-zero")]
    EpochAlreadySet,
    /// A node that must be a master is none.
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
