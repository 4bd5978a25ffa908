//! The cluster bus as a pure machine: membership, failure detection, votes, epochs, slot claims.
//!
//! [`Gossip`] is one node's view of the cluster and everything it does about it. A driver feeds it
//! packets, link events, the operator's commands and the time ([`Input`]), and carries out what it
//! answers ([`Action`]). It reads no clock, opens no socket and draws its chances from a generator that
//! it is given, so a simulator can drive a thousand of them with one seed.
//!
//! The rules are those of Redis Cluster (its specification, and what Redis 7 does), on its bus, so that
//! nodes of both can form one cluster. What differs, and why it is safe:
//!
//! * A node whose link broke and whose reconnects are refused is suspect after
//!   [`Config::connect_refused_timeout`], not after the node timeout. Agreement still takes a majority.
//! * A suspicion is gossiped at once, not with the next ping.
//! * Silence is judged to the millisecond, and small clusters ping more often.
//! * A replica stands for election after tens of milliseconds; equal offsets are ranked by id, so two
//!   replicas do not ask at the same moment. Votes are given by the same rules.
//! * A process that stood still (SIGSTOP, a sleeping host) does not take its own silence for that of
//!   others, and does not serve before it has heard from them again.
#![forbid(unsafe_code)]

mod claims;
mod commands;
mod config;
mod contract;
mod driving;
mod election;
mod event;
mod failure;
mod forget;
mod handshake;
mod links;
mod machine;
mod manual_failover;
mod node;
mod nodes;
mod nodes_conf;
mod operator;
mod receiving;
mod replica_migration;
mod report;
mod resignation;
mod role;
mod sending;
mod service;
mod slot_moves;
mod slot_states;
mod slots;
mod stats;
#[cfg(test)]
mod tests;
mod timeline;
mod votes;
pub mod wire;

pub use commands::{Command, CommandError, FailoverMode, Reply, SET_SLOT_TIMEOUT, SlotChange};
pub use config::{Announce, Config};
pub use contract::{Action, Confirm, Copies, Input, LinkId, Replication, Source};
pub use driving::{Decided, Driving, News};
pub use event::{
    Denial, ElectionEvent, Event, FailEnd, FailureEvent, Hindrance, Level, ManualFailoverEvent, Reset,
};
pub use machine::Gossip;
pub use node::{Address, Cause, Condition, Contact, Handshake, Link, Node, Role};
pub use nodes_conf::ConfError;
pub use report::LinkReport;
pub use slot_states::{parse_slot_states, slot_states};
pub use stats::{Stats, Traffic};
pub use timeline::{Ballot, Candidate, FailoverRecord, Suspicion, Timeline, Unfit};
