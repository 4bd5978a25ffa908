//! What the parts of the machine decide, for the coordinator to carry out.
//!
//! A part changes only its own fields and returns effects. The coordinator applies them in order, so the order of log
//! lines and messages is that of the decisions.

use slot_routing::NodeId;

use crate::contract::ClusterAction;
use crate::event::ClusterEvent;
use crate::timeline::TimelineEntry;
use crate::wire::MessageBody;

/// The message types that carry a gossip section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GossipKind {
    Ping,
    Pong,
    Meet,
}

/// A decision of one part that concerns the others, the peers or the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Write to the log.
    Log(ClusterEvent),
    /// Pass an action to the driver.
    Act(ClusterAction),
    /// Add an entry to the failover timeline of `node`.
    Record { node: NodeId, entry: TimelineEntry },
    /// Send a message on the outbound link to `to`.
    Send { to: NodeId, body: MessageBody },
    /// Send a message with a gossip section on the outbound link to `to`.
    Gossip { to: NodeId, kind: GossipKind },
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
