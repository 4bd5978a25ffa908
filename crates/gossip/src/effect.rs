//! What the parts of the machine decide, for the coordinator to carry out.
//!
//! A part changes only its own fields and returns effects. The coordinator applies them in order, so the order of log
//! lines and messages is that of the decisions.

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

/// A decision of one part of the machine that concerns other parts, the peers or the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Write an event to the log, in the order of the effects.
    Log(ClusterEvent),
    /// Pass an action to the driver.
    Act(ClusterAction),
    /// Add an entry to the failover timeline of `node`, with the current wall-clock time.
    Record { node: NodeId, entry: TimelineEntry },
    /// Send a message on the outbound link to `to`.
    Send { to: NodeId, body: MessageBody },
    /// Send a message with a gossip section on the outbound link to `to`.
    Gossip { to: NodeId, kind: GossipKind },
    /// Send a PONG with the news to all nodes.
    BroadcastPong,
    /// Send a PONG to the other replicas of this node's master, which need the offset of this node for their rank.
    SendOffsetToSiblings,
    /// Request the vote of `to`; voters vote for a `forced` failover although the master is up.
    RequestVote { to: NodeId, forced: bool },
    /// Vote for `to` in `epoch`; the vote is saved before it is sent.
    Vote { to: NodeId, epoch: Epoch },
    /// Enter `epoch` and keep this node's own vote in it.
    VoteForMyself { epoch: Epoch },
    /// Close the outbound link to this node; it will be reopened.
    CloseLink(NodeId),
    /// Replace the outbound link to this node at once.
    Reconnect(NodeId),
    /// Remove this node and all references to it.
    RemoveNode(NodeId),
    /// Become a replica of this master and forget the marks of another shard.
    BecomeReplicaOf(NodeId),
    /// Announce slots that this node has taken over from another shard, under a new epoch.
    ClaimImportedSlots,
    /// Take the master's slots under `epoch`.
    TakeOver { epoch: Epoch },
    /// The topology may have changed and must be published at the end of the step.
    Publish,
    /// `nodes.conf` is outdated and must be written, possibly with a delay.
    Save,
    /// The topology may have changed, and `nodes.conf` is outdated.
    ConfigChanged,
    /// `nodes.conf` must be durable before the packets of this step leave.
    SaveBeforeSending,
    /// `nodes.conf` must be durable before any further packet leaves, because every header carries the new claim.
    SaveBeforeClaiming,
    /// Write a slot change into the replication stream after the topology is published.
    TellReplicas { slot: Slot, change: SlotChange },
    /// Answer an operator command.
    Reply { token: u64, result: Result<OperatorReply, OperatorError> },
    /// End the pause of writes once the new slot owners are published.
    ResumeWrites,
    /// Writes stay paused; cancels [`Effect::ResumeWrites`].
    KeepWritesPaused,
    /// Take the master's slots under a new epoch without an election.
    TakeOverUnelected,
}

impl Effect {
    pub(crate) fn log(event: impl Into<ClusterEvent>) -> Self {
        Self::Log(event.into())
    }
}
