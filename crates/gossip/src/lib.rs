//! The Redis Cluster bus protocol as a sans-IO state machine: membership, failure detection, elections, epochs and slot
//! ownership.
//!
//! [`Gossip`] is one node's view of the cluster. A driver feeds it packets, link events, operator commands and the time
//! ([`ClusterInput`]) and executes the [`ClusterAction`]s that it returns. The machine reads no clock, opens no socket
//! and takes its randomness from a generator passed in by the caller, so a simulator can run a thousand machines from
//! one seed.
//!
//! The rules and the wire format are those of Redis Cluster (the specification and the behaviour of Redis 7), so Redis,
//! Valkey and Redoubt nodes can form one cluster. The differences, all of which are compatible:
//!
//! * A node whose link broke and that refuses reconnects is suspected after [`ClusterConfig::connect_refused_timeout`]
//!   instead of the node timeout. FAIL still takes a majority.
//! * A suspicion is gossiped at once instead of with the next PING.
//! * Timeouts have millisecond resolution, and small clusters ping more often.
//! * A replica starts an election after tens of milliseconds. Replicas with equal offsets are ranked by id, so two
//!   replicas do not start at the same moment. The voting rules are unchanged.
//! * A process that was paused (SIGSTOP, a suspended host) does not count the pause as silence of the other nodes, and
//!   does not serve before it has heard from them again.
#![forbid(unsafe_code)]

mod announcements;
mod claims;
mod commands;
mod config;
mod contract;
mod deadlines;
mod driver;
mod effect;
mod election;
mod event;
mod failure_detector;
mod forget_list;
mod given_away;
mod links;
mod machine;
mod manual_failover;
mod membership;
mod messages;
mod node;
mod node_index;
mod nodes;
mod nodes_conf;
mod outbox;
mod outdated_claim;
mod random;
mod ranking;
mod replica_migration;
mod replication_target;
mod report;
mod self_fail;
mod serving;
mod set_slot;
mod slot_commands;
mod slot_marks;
mod slot_moves;
mod slot_states;
mod slots;
mod state;
mod stats;
#[cfg(test)]
mod test_state;
#[cfg(test)]
mod tests;
mod timeline;
mod view;
mod votes;
pub mod wire;

pub use crate::driver::{ClusterDriver, ClusterDriverEvent, StepInputs, StepOutput};
pub use commands::{
    FailoverMode, OperatorCommand, OperatorError, OperatorReply, SET_SLOT_TIMEOUT, SlotChange,
};
pub use config::{AnnouncedAddress, ClusterConfig};
pub use contract::{
    ClusterAction, ClusterInput, LinkId, ReplicaAdmission, ReplicaConfirmation, ReplicationSource,
    ReplicationStatus,
};
pub use event::{
    CannotFailoverReason, ClusterEvent, ElectionEvent, ElectionResetReason, FailClearReason, FailureEvent,
    LogLevel, ManualFailoverEvent, SuspicionCause, VoteDenial,
};
pub use links::LinkReport;
pub use machine::Gossip;
pub use node::{Address, ContactTimes, Handshake, LinkState, Node, NodeHealth, Role};
pub use nodes_conf::NodesConfError;
pub use slot_states::{format_slot_states, parse_slot_states};
pub use state::ClusterState;
pub use stats::{LinkTraffic, MessageStats};
pub use timeline::{
    ElectionAttempt, FailoverRecord, FailoverTimeline, IneligibilityReason, RankedReplica, Suspicion,
};
pub use view::ClusterView;
