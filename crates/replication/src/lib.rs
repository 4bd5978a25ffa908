//! Replication: one log with many cursors, on the wire and with the offsets and identifiers of PSYNC.
//!
//! [`Log`] is the stream of effects with its identifiers and the part of it that is still kept. Each of its readers has
//! a cursor. [`Replica`] is a machine that follows a master: handshake, full or partial synchronisation, the stream,
//! acknowledgements, reconnects. [`Master`] is a machine that serves any number of replicas: which get a snapshot and
//! when, which are alive, which are good. [`Following`] and [`Serving`] drive them, with the log. [`Incoming`] is the
//! stream on its way into the data and the log. [`wait::Waiters`] are the clients of WAIT and WAITAOF.
//! [`EmptyMaster`] is a master that came back without its data, [`Handover`] one that hands its place to a replica,
//! [`Stop`] one that is shut down.
//! [`Authority`] names the source whose changes the data and the log take, in every change of role.
//!
//! The machines do no I/O and read no clock. `handle` takes an input and appends actions; `next_deadline`
//! says when to call with [`replica::Input::Deadline`] or [`master::Input::Deadline`] at the latest; a
//! call that comes early does no harm.
//!
//! Source: the replication protocol as documented on redis.io and spoken by Redis 7 and Valkey.
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
