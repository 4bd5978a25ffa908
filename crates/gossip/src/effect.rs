//! The decisions of the state machine's components, for the coordinator to carry out.
//!
//! A component changes only its own fields and returns effects. The coordinator applies the effects in order, so log
//! lines and messages appear in the order of the decisions.

use slot_routing::{Epoch, NodeId, Slot};

use crate::commands::{OperatorError, OperatorReply, SlotChange};
use crate::contract::ClusterAction;
use crate::event::ClusterEvent;
use crate::timeline::TimelineEntry;
use crate::wire::MessageBody;

/// The message types that carry gossip entries and extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GossipKind {
    Ping,
    Pong,
    Meet,
}

/// A decision of one component of the state machine that concerns other components, the peers or the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Write an event to the log, in the order of the effects.
    Log(ClusterEvent),
    /// Pass an action to the driver.
    DriverAction(ClusterAction),
    /// Add an entry to the failover timeline of `node`, with the current wall-clock time.
    RecordTimeline { node: NodeId, entry: TimelineEntry },
    /// Send a message on the outbound link to `to`.
    Send { to: NodeId, body: MessageBody },
    /// Send a message with a gossip section on the outbound link to `to`.
    SendGossip { to: NodeId, kind: GossipKind },
    /// Send a PONG with this node's current state to all nodes.
    BroadcastPong,
    /// Send a PONG to the other replicas of this node's master, which need this node's offset to rank themselves.
    SendOffsetToSiblings,
    /// Request the vote of `to`. Voters accept a `forced` request even if the master is up.
    RequestVote { to: NodeId, forced: bool },
    /// Vote for `to` in `epoch`. The vote must be durable before it is sent.
    Vote { to: NodeId, epoch: Epoch },
    /// Enter `epoch` and reserve this node's own vote in it for itself.
    VoteForMyself { epoch: Epoch },
    /// Close the outbound link to this node, to be reopened later.
    CloseLink(NodeId),
    /// Replace the outbound link to this node at once.
    Reconnect(NodeId),
    /// Remove this node and all references to it.
    RemoveNode(NodeId),
    /// Become a replica of this master. If the master is in another shard, clear the migration marks.
    BecomeReplicaOf(NodeId),
    /// Announce the slots that this node has taken from another shard, under a new epoch.
    ClaimImportedSlots,
    /// Take over the master's slots under `epoch`.
    TakeOver { epoch: Epoch },
    /// The topology may have changed and must be published at the end of the step.
    Publish,
    /// `nodes.conf` is outdated and must be written, possibly with a delay.
    Save,
    /// The topology may have changed, and `nodes.conf` is outdated.
    ConfigChanged,
    /// `nodes.conf` must be durable before the packets of this step are sent.
    SaveBeforeSending,
    /// `nodes.conf` must be durable before any further packet is sent, because every header carries the new claim.
    SaveBeforeClaiming,
    /// Write a slot change into the replication stream after the topology is published.
    ReplicateSlotChange { slot: Slot, change: SlotChange },
    /// Answer an operator command.
    Reply { token: u64, result: Result<OperatorReply, OperatorError> },
    /// End the pause of writes once the new slot owners are published.
    ResumeWrites,
    /// Do not resume client writes in this step; cancels [`Effect::ResumeWrites`].
    KeepWritesPaused,
    /// Take over the master's slots under a new epoch without an election.
    TakeOverWithoutElection,
}

impl Effect {
    pub(crate) fn log(event: impl Into<ClusterEvent>) -> Self {
        Self::Log(event.into())
    }
}
