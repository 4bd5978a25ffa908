//! Failovers that an operator asked for.

use std::fmt;

use slot_routing::NodeId;

use super::Event;

/// An operator's failover goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManualFailoverEvent {
    /// A replica of this master asks for a manual failover.
    Asked {
        /// The replica.
        by: NodeId,
    },
    /// This replica begins a manual failover.
    Accepted,
    /// It begins one without its master.
    Forced,
    /// It begins one since its master stops and wants it to.
    Yielded,
    /// It takes over without asking anybody.
    Takeover,
    /// It has all its master's data and stands for election.
    Ready,
    /// A manual failover took too long.
    TimedOut,
    /// The master's offset, up to which this replica must come.
    MasterOffset(u64),
}

impl From<ManualFailoverEvent> for Event {
    fn from(event: ManualFailoverEvent) -> Self {
        Self::ManualFailover(event)
    }
}

impl fmt::Display for ManualFailoverEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { by } => write!(f, "Manual failover requested by replica {by}."),
            Self::Accepted => f.write_str("Manual failover user request accepted."),
            Self::Forced => f.write_str("Forced failover user request accepted."),
            Self::Yielded => f.write_str("Forced failover primary request accepted."),
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
