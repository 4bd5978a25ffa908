//! Redis replication: the replication log and the state machines of masters and replicas.
//!
//! - [`Log`] contains the replication stream, its ids and offsets, and the backlog. Each reader has a cursor.
//! - [`Replica`] follows a master: handshake, full or partial synchronisation, the stream, acknowledgements,
//!   reconnects. [`ReplicaDriver`] combines it with the log.
//! - [`Master`] serves replicas: it starts snapshots, detects dead replicas and counts the good ones. [`MasterDriver`]
//!   combines it with the log.
//! - [`IncomingStream`] splits a received stream into commands to apply and bytes to log.
//! - [`wait::Waiters`] tracks the clients blocked by WAIT and WAITAOF.
//! - [`Handover`] implements FAILOVER, [`ShutdownSequence`] implements SHUTDOWN, and [`EmptyMaster`] implements a
//!   master that restarted without its data.
//! - [`WriteAuthority`] decides during role changes who may write to the data.
//!
//! The state machines do no I/O and read no clock. `handle` takes an event and appends actions for the caller to
//! perform. `next_deadline` returns the latest time of the next call with a `Deadline` event; an early call is
//! harmless.
//!
//! Source: the replication protocol as documented on redis.io and implemented by Redis 7 and Valkey.
#![forbid(unsafe_code)]

mod empty_master;
pub mod handover;
mod id;
mod incoming_stream;
mod log;
pub mod master;
pub mod master_driver;
mod psync;
pub mod replica;
pub mod replica_driver;
pub mod shutdown;
pub mod wait;
mod write_authority;

#[cfg(test)]
mod pair_tests;

pub use empty_master::{EmptyMaster, HostPort, RecordedReplicas, ReplicaRecorder};
pub use handover::Handover;
pub use id::{ParseReplIdError, ReplId};
pub use incoming_stream::{IncomingStream, StreamBatch, last_multi_offset};
pub use log::{
    CursorId, CursorLostError, FileVersion, FileVersions, FullSyncReason, Log, ReplPosition, StreamRange,
    StreamSupersededError,
};
pub use master::Master;
pub use master_driver::MasterDriver;
pub use psync::{
    Capabilities, PeerProfile, PsyncRequest, ReplconfAction, ReplconfError, SnapshotContents, SnapshotFormat,
};
pub use replica::Replica;
pub use replica_driver::ReplicaDriver;
pub use shutdown::ShutdownSequence;
pub use write_authority::{StreamEpoch, WriteAuthority, WriteMode};
