//! Watching masters, agreeing that one is down, electing a leader, switching to a replica.
//!
//! [`Sentinel`] is one sentinel as a pure machine. It is told what arrived, what broke and what time it
//! is ([`Input`]) and says what to connect, send, write and announce ([`Action`]). It speaks the client
//! protocol, the configuration file, the events and the sentinel-to-sentinel commands of Redis, so it
//! can watch Redis, Valkey and Redoubt masters, and work beside Redis's own sentinels.
//!
//! How a failure becomes a switch:
//!
//! 1. `health`: the master is silent for `down-after-milliseconds`, answers wrongly, or its port
//!    refuses connections after the link broke: subjectively down.
//! 2. `ask`: other sentinels are asked; with `quorum` of them it is objectively down.
//! 3. The master's consensus group (crate `consensus`) wakes and elects a leader; the term is the epoch.
//! 4. `failover`: the leader selects a replica, has a majority agree on it, promotes it, and has a
//!    majority agree that this is done: that committed entry *is* the switch.
//! 5. `switch`: a sentinel that learns of it, by the log or by a hello message, follows if its epoch is newer.
//!
//! Invariants: at most one replica is promoted per epoch; no sentinel votes twice in an epoch,
//! also over restarts; nothing is promoted without a majority of the known sentinels and the quorum.
//!
//! From: the Redis documentation, "High availability with Redis Sentinel", and the behaviour of
//! redis-sentinel 7.0.
#![forbid(unsafe_code)]

mod addr;
mod agenda;
mod ask;
mod command;
mod config;
mod epoch;
mod event;
mod failover;
mod flight;
mod foreign;
mod health;
mod hello;
mod info;
mod instance;
mod lineage;
mod link;
mod machine;
mod master;
mod orders;
mod periodic;
mod plan;
mod record;
mod refusal;
mod repair;
mod script;
mod select;
mod settings;
mod shared;
mod switch;

pub use addr::{Addr, RunId};
pub use command::subcommands;
pub use config::{Config, ConfigError, KnownMaster};
pub use event::Level;
pub use hello::HELLO_CHANNEL;
pub use link::{LinkId, LinkKind};
pub use machine::{Action, ClientId, Input, JournalRecord, Output, Sentinel, Status};
pub use script::{JobId, Outcome};
pub use settings::{Global, MasterSettings};

#[cfg(test)]
mod tests;
