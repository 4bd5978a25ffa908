//! Redis Sentinel as a sans-IO state machine: monitoring, agreement on failures, leader election and failover.
//!
//! [`Sentinel`] is one sentinel process without its sockets and files. The caller reports received data, broken
//! connections, finished writes and the time ([`SentinelInput`]). The machine returns what to connect, send, write and
//! publish ([`SentinelAction`]). `writes` orders the writes and holds back what depends on them, so the server and the
//! simulator only perform actions. The client protocol, the configuration file, the events and the commands between
//! sentinels are those of Redis Sentinel. A Redoubt sentinel can therefore monitor Redis, Valkey and Redoubt servers
//! and run beside Redis sentinels.
//!
//! From failure to failover (modules of `master`):
//!
//! 1. `failure_detector`: the master is silent for `down-after-milliseconds`, gives invalid replies, or its port
//!    refuses connections after the link broke: it is subjectively down.
//! 2. `queries`: the other sentinels are asked. If `quorum` of them agree, the master is objectively down.
//! 3. `consensus_member`: the master's consensus group (crate `consensus`) becomes active and elects a leader, whose
//!    term is the epoch.
//! 4. `failover`: the leader selects a replica, commits the choice, promotes the replica, and commits that the
//!    promotion is complete. This second commit is the switch.
//! 5. `switch`: a sentinel that learns about the switch, from the group's log or a hello message, follows it if its
//!    epoch is newer.
//!
//! Invariants: at most one replica is promoted per epoch; no sentinel votes twice in an epoch, even across restarts;
//! nothing is promoted without a majority of the known sentinels and the quorum.
//!
//! Sources: the Redis documentation, "High availability with Redis Sentinel", and the behaviour of redis-sentinel 7.0.
#![forbid(unsafe_code)]

mod addr;
mod command;
mod config;
mod event;
mod failover_log;
mod hello;
mod info;
mod link;
mod machine;
mod master;
mod refusal;
mod scheduler;
mod script;
mod settings;
mod shared;
mod writes;

pub use addr::{Addr, RunId};
pub use command::subcommands;
pub use config::{KnownMaster, SentinelConfig, SentinelConfigError};
pub use event::EventLevel;
pub use hello::HELLO_CHANNEL;
pub use link::{LinkId, LinkKind};
pub use machine::{
    ClientCommand, ClientId, FileWrite, MasterStatus, RejectedScript, SavedJournal, Sentinel, SentinelAction,
    SentinelInput,
};
pub use script::{JobId, ScriptOutcome};
pub use settings::{GlobalSettings, MasterSettings};

#[cfg(test)]
mod tests;
