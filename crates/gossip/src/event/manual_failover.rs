//! Log events about manual failovers.

use std::fmt;

use slot_routing::NodeId;

use super::ClusterEvent;

/// A manual failover was requested, made progress or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManualFailoverEvent {
    /// A replica of this master requests a manual failover.
    RequestedByReplica {
        /// The replica that requested to take over.
        replica: NodeId,
    },
    /// This replica accepted the operator's request and starts a manual failover.
    Accepted,
    /// This replica starts a manual failover without waiting for its master (FORCE).
    Forced,
    /// This replica starts a failover because its master is shutting down.
    RequestedByMaster,
    /// This replica takes over without an election (TAKEOVER).
    Takeover,
    /// This replica has all data of its master and starts the election.
    Ready,
    /// A manual failover did not finish within `cluster-manual-failover-timeout`.
    TimedOut,
    /// The master paused its writes at this replication offset.
    MasterOffset(u64),
}

impl From<ManualFailoverEvent> for ClusterEvent {
    fn from(event: ManualFailoverEvent) -> Self {
        Self::ManualFailover(event)
    }
}

impl fmt::Display for ManualFailoverEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RequestedByReplica { replica: by } => {
                write!(f, "Manual failover requested by replica {by}.")
            }
            Self::Accepted => f.write_str("Manual failover user request accepted."),
            Self::Forced => f.write_str("Forced failover user request accepted."),
            Self::RequestedByMaster => f.write_str("Forced failover primary request accepted."),
            Self::Takeover => f.write_str("Taking over the primary (user request)."),
            Self::Ready => {
                f.write_str("All primary replication stream processed, manual failover can start.")
            }
            Self::TimedOut => f.write_str("Manual failover timed out."),
            Self::MasterOffset(offset) => {
                write!(f, "Received replication offset for paused primary manual failover: {offset}")
            }
        }
    }
}
