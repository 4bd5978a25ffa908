//! The node's replication stream: the log that all threads append to, and the state of a master's stream.
//!
//! The log is [`shared_log`]. Replies to writes can wait for the log's [`commit_point`]. Bytes from a master are
//! appended to the log unchanged; [`applied`] tracks how many of them the data includes, and [`imports`] which slot
//! imports they announced. Slot migrations read the log with [`logged_command_decoder`].

pub mod applied;
pub mod commit_point;
pub mod imports;
mod logged_commands;
mod shared_log;

use std::sync::Arc;

use replication::ReplId;
use replication::wait::DiskProgress;
use tokio::sync::watch;

use applied::AppliedStream;
use commit_point::CommitPoint;
pub use logged_commands::logged_command_decoder;
pub use shared_log::{EngineLogHandle, SharedLog};

/// A node's log, and how far it was applied, committed and synced.
#[derive(Debug)]
pub struct StreamHandles {
    /// The log itself.
    pub log: Arc<SharedLog>,
    /// How much of a master's stream the data includes.
    pub applied: Arc<AppliedStream>,
    /// Up to where the log is safe enough for replies.
    pub commit_point: Arc<CommitPoint>,
    /// Receives how far the append-only file has synced the log.
    pub synced_log: watch::Sender<DiskProgress>,
}

/// Generates a new replication id from the system's random numbers.
pub fn random_repl_id() -> ReplId {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("the system must provide random numbers for a replication id");
    ReplId::from_random(bytes)
}
