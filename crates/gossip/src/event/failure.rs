//! Nodes that fail and come back.

use std::fmt;

use slot_routing::NodeId;

use super::{Event, Level};
use crate::node::Cause;

/// A node fails, or no longer does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureEvent {
    /// This node suspects another.
    Suspected {
        /// The suspect.
        id: NodeId,
        /// Why.
        cause: Cause,
    },
    /// A suspect answered.
    SuspicionEnded(NodeId),
    /// A master reports a node as failing.
    ReportedBy {
        /// The suspect.
        id: NodeId,
        /// The master.
        reporter: NodeId,
    },
    /// A master takes its report back.
    ReportWithdrawn {
        /// The suspect.
        id: NodeId,
        /// The master.
        reporter: NodeId,
    },
    /// With this node's view a majority of the masters holds the node for failed.
    FailAgreed(NodeId),
    /// Another node says that a node failed.
    FailHeard {
        /// The failed node.
        id: NodeId,
        /// The node that says so.
        from: NodeId,
    },
    /// A failed node counts as well again.
    FailEnded {
        /// The node.
        id: NodeId,
        /// Why.
        why: FailEnd,
    },
    /// A master that starts asks its replicas how far they are, before it serves.
    Comparing {
        /// How far the data reaches that was found on disk.
        found: u64,
    },
    /// This master started with less data than a replica has, and wants that one in its place.
    Resigned {
        /// The replica with most.
        replica: NodeId,
        /// How far it is.
        offset: u64,
    },
    /// This master has waited long enough for a replica with more data, and serves what it has.
    NobodyTookOver,
}

/// Why a FAIL was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailEnd {
    /// It serves nothing, and is reachable again.
    NoSlots {
        /// Whether it is a replica.
        replica: bool,
    },
    /// Nobody replaced it for long enough, and it is reachable again.
    NotReplaced,
}

impl FailureEvent {
    /// How loud the log should tell it.
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
