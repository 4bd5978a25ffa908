//! Log events about nodes that fail and recover.

use std::fmt;

use slot_routing::NodeId;

use super::{Event, Level};
use crate::node::Cause;

/// A change in failure detection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureEvent {
    /// This node suspects another node.
    Suspected {
        /// The suspected node.
        id: NodeId,
        /// Why the node is suspected.
        cause: Cause,
    },
    /// A suspected node answered.
    SuspicionEnded(NodeId),
    /// A master reported that a node is failing.
    ReportedBy {
        /// The reported node.
        id: NodeId,
        /// The reporting master.
        reporter: NodeId,
    },
    /// A master withdrew its failure report.
    ReportWithdrawn {
        /// The reported node.
        id: NodeId,
        /// The reporting master.
        reporter: NodeId,
    },
    /// A majority of the masters, including this node's own view, agrees that the node is down.
    FailAgreed(NodeId),
    /// Another node announced that a node is FAIL.
    FailHeard {
        /// The failed node.
        id: NodeId,
        /// The sender of the FAIL message.
        from: NodeId,
    },
    /// The FAIL flag of a node was cleared.
    FailEnded {
        /// The recovered node.
        id: NodeId,
        /// Why the flag was cleared.
        why: FailEnd,
    },
    /// A starting master compares its data with its replicas' before it serves.
    Comparing {
        /// Replication offset of the data loaded from disk.
        found: u64,
    },
    /// This master started with less data than a replica and declared itself FAIL so that the replica takes over.
    Resigned {
        /// The replica with the largest offset.
        replica: NodeId,
        /// The offset of that replica.
        offset: u64,
    },
    /// No replica took over within `empty-master-timeout`, so this master serves its own data.
    NobodyTookOver,
}

/// Why a FAIL flag was cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailEnd {
    /// The node owns no slots and is reachable again.
    NoSlots {
        /// Whether the node is a replica.
        replica: bool,
    },
    /// The node is reachable again, and no other node took its slots in the meantime.
    NotReplaced,
}

impl FailureEvent {
    /// The level to log this event with.
    pub(super) fn level(&self) -> Level {
        match self {
            Self::SuspicionEnded(_) => Level::Debug,
            Self::ReportedBy { .. } | Self::ReportWithdrawn { .. } => Level::Verbose,
            Self::Suspected { .. }
            | Self::FailAgreed(_)
            | Self::FailHeard { .. }
            | Self::FailEnded { .. }
            | Self::Comparing { .. } => Level::Notice,
            Self::Resigned { .. } | Self::NobodyTookOver => Level::Warning,
        }
    }
}

impl From<FailureEvent> for Event {
    fn from(event: FailureEvent) -> Self {
        Self::Failure(event)
    }
}

impl fmt::Display for FailureEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspected { id, cause: Cause::Silence } => {
                write!(f, "*** NODE {id} possibly failing: silent for the node timeout")
            }
            Self::Suspected { id, cause: Cause::Refused } => {
                write!(f, "*** NODE {id} possibly failing: its link broke and connections are refused")
            }
            Self::Suspected { id, cause: Cause::Replaced } => {
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
            Self::FailHeard { id, from } => write!(f, "FAIL message received from {from} about {id}"),
            Self::FailEnded { id, why } => write_fail_end(f, *id, *why),
            Self::Comparing { found } => write!(
                f,
                "Started with data up to offset {found}: asking my replicas how far they are before I serve"
            ),
            Self::Resigned { replica, offset } => write!(
                f,
                "Replica {replica} has data up to offset {offset}, more than I do: telling all that I have failed, so \
                 that it takes over"
            ),
            Self::NobodyTookOver => f.write_str(
                "No replica has taken over within empty-master-timeout: serving the data that I have",
            ),
        }
    }
}

fn write_fail_end(f: &mut fmt::Formatter<'_>, id: NodeId, why: FailEnd) -> fmt::Result {
    match why {
        FailEnd::NoSlots { replica } => {
            let what = if replica { "replica" } else { "primary without slots" };
            write!(f, "Clear FAIL state for node {id}: {what} is reachable again.")
        }
        FailEnd::NotReplaced => write!(
            f,
            "Clear FAIL state for node {id}: is reachable again and nobody is serving its slots after some time."
        ),
    }
}
