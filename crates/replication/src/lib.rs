//! Redis replication: the replication log and the state machines of masters and replicas.
//!
//! - [`Log`] holds the replication stream, its ids and offsets, and the backlog. Each reader has a cursor.
//! - [`Replica`] follows a master: handshake, full or partial synchronisation, the stream, acknowledgements,
//!   reconnects. [`Following`] drives it together with the log.
//! - [`Master`] serves replicas: it starts snapshots, detects dead replicas and counts the good ones. [`Serving`]
//!   drives it together with the log.
//! - [`Incoming`] splits a received stream into commands to apply and bytes to log.
//! - [`wait::Waiters`] holds the clients blocked by WAIT and WAITAOF.
//! - [`Handover`] implements FAILOVER, [`Stop`] implements SHUTDOWN, and [`EmptyMaster`] a master that restarted
//!   without its data.
//! - [`Authority`] decides during role changes who may write to the data.
//!
//! The state machines do no I/O and read no clock. `handle` takes an event and appends actions for the caller to
//! perform. `next_deadline` returns the latest time of the next call with a `Deadline` event; an early call is
//! harmless.
//!
//! Source: the replication protocol as documented on redis.io and implemented by Redis 7 and Valkey.
#![forbid(unsafe_code)]

mod authority;
mod empty_master;
pub mod following;
pub mod handover;
mod id;
mod incoming;
mod log;
pub mod master;
mod psync;
pub mod replica;
pub mod serving;
pub mod stop;
pub mod wait;

#[cfg(test)]
mod pair_tests;

pub use authority::{Authority, Generation, Mode};
pub use empty_master::{EmptyMaster, Followers, Keeping, Name};
pub use following::Following;
pub use handover::Handover;
pub use id::{ParseReplIdError, ReplId};
pub use incoming::{Incoming, Piece, begin_of_transaction};
pub use log::{CursorId, FellOff, Log, Position, Refusal, StreamOver};
pub use master::Master;
pub use psync::{Capabilities, Contents, Profile, PsyncRequest, Replconf, ReplconfError, SnapshotForm};
pub use replica::Replica;
pub use serving::Serving;
pub use stop::Stop;
