//! Log events about nodes that fail and recover.

use std::fmt;

use slot_routing::NodeId;

use super::{ClusterEvent, LogLevel};

/// The rule by which a node became suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspicionCause {
    /// No message arrived within the node timeout.
    Silence,
    /// The link to the node broke and its host refuses connections, so the process has ended.
    Refused,
    /// A node with another id answers at the address, and the suspected node has no link to this node.
    Replaced,
}

impl fmt::Display for SuspicionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silence => "silence",
            Self::Refused => "refused",
            Self::Replaced => "replaced",
        })
    }
}

/// A node was suspected, failed or recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureEvent {
    /// This node suspects another node, which becomes PFAIL.
    Suspected {
        /// The node that is now PFAIL.
        id: NodeId,
        /// The rule by which the node became suspected.
        cause: SuspicionCause,
    },
    /// A suspected node answered before a majority agreed on its failure, so it is no longer PFAIL.
    SuspicionEnded(NodeId),
    /// A master reported that a node is failing.
    ReportedBy {
        /// The node that is failing according to the report.
        id: NodeId,
        /// The master whose message contained the report.
        reporter: NodeId,
    },
    /// A master withdrew its failure report.
    ReportWithdrawn {
        /// The node that the master considers healthy again.
        id: NodeId,
        /// The master that had previously reported the node as failing.
        reporter: NodeId,
    },
    /// A majority of the masters, including this node's own view, agrees that the node is down.
    FailAgreed(NodeId),
    /// Another node announced that a node is FAIL.
    FailReceived {
        /// The node that is FAIL.
        id: NodeId,
        /// The node that sent the FAIL message.
        sender: NodeId,
    },
    /// The FAIL flag of a node was cleared.
    FailEnded {
        /// The node that is healthy again.
        id: NodeId,
        /// The rule by which the flag was cleared.
        reason: FailClearReason,
    },
    /// A starting master compares its data with that of its replicas before it serves.
    ComparingOffsets {
        /// Replication offset of the data loaded from disk; 0 if none was found.
        loaded_offset: u64,
    },
    /// This master started with less data than a replica and declared itself FAIL, so that the replica takes over.
    SteppedDown {
        /// The replica with the largest offset.
        replica: NodeId,
        /// The replication offset of the replica, which exceeds this node's.
        offset: u64,
    },
    /// No replica took over within `empty-master-timeout`, so this master serves the data that it has.
    NoReplicaTookOver,
}

/// Why a FAIL flag was cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailClearReason {
    /// The node owns no slots and is reachable again.
    NoSlots {
        /// Whether the node is a replica, as opposed to a master without slots.
        is_replica: bool,
    },
    /// The node is reachable again, and no other node took its slots in the meantime.
    NotReplaced,
}

impl FailureEvent {
    /// Returns the log level of the event. Suspicions and FAIL flags have a higher level than single reports.
    pub(super) fn level(&self) -> LogLevel {
        match self {
            Self::SuspicionEnded(_) => LogLevel::Debug,
            Self::ReportedBy { .. } | Self::ReportWithdrawn { .. } => LogLevel::Verbose,
            Self::Suspected { .. }
            | Self::FailAgreed(_)
            | Self::FailReceived { .. }
            | Self::FailEnded { .. }
            | Self::ComparingOffsets { .. } => LogLevel::Notice,
            Self::SteppedDown { .. } | Self::NoReplicaTookOver => LogLevel::Warning,
        }
    }
}

impl From<FailureEvent> for ClusterEvent {
    fn from(event: FailureEvent) -> Self {
        Self::Failure(event)
    }
}

impl fmt::Display for FailureEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspected { id, cause: SuspicionCause::Silence } => {
                write!(f, "*** NODE {id} possibly failing: silent for the node timeout")
            }
            Self::Suspected { id, cause: SuspicionCause::Refused } => {
                write!(f, "*** NODE {id} possibly failing: its link broke and connections are refused")
            }
            Self::Suspected { id, cause: SuspicionCause::Replaced } => {
                write!(f, "*** NODE {id} possibly failing: another node answers at its address")
            }
            Self::SuspicionEnded(id) => write!(f, "Node {id} answers again"),
            Self::ReportedBy { id, reporter } => {
                write!(f, "Node {reporter} reported node {id} as not reachable.")
            }
            Self::ReportWithdrawn { id, reporter } => {
                write!(f, "Node {reporter} reported node {id} is back online.")
            }
            Self::FailAgreed(id) => write!(f, "Marking node {id} as failing (quorum reached)."),
            Self::FailReceived { id, sender: from } => {
                write!(f, "FAIL message received from {from} about {id}")
            }
            Self::FailEnded { id, reason: why } => write_fail_end(f, *id, *why),
            Self::ComparingOffsets { loaded_offset: found } => {
                write!(f, "Started with data up to offset {found}: comparing with my replicas before serving")
            }
            Self::SteppedDown { replica, offset } => write!(
                f,
                "Replica {replica} has data up to offset {offset}, more than I do: announcing my failure so that it \
                 takes over"
            ),
            Self::NoReplicaTookOver => {
                f.write_str("No replica took over within empty-master-timeout: serving my own data")
            }
        }
    }
}

fn write_fail_end(f: &mut fmt::Formatter<'_>, id: NodeId, reason: FailClearReason) -> fmt::Result {
    match reason {
        FailClearReason::NoSlots { is_replica: replica } => {
            let what = if replica { "replica" } else { "primary without slots" };
            write!(f, "Clear FAIL state for node {id}: {what} is reachable again.")
        }
        FailClearReason::NotReplaced => write!(
            f,
            "Clear FAIL state for node {id}: is reachable again and nobody is serving its slots after some time."
        ),
    }
}
