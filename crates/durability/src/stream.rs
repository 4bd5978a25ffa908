//! The node's stream of changes: one log that all threads write to, how far those have it that a reply waits for, and how
//! a master's stream stands in the data.
//!
//! The log is [`shared_log`]; replies to writes can wait for its [`commit_point`]. What is read from a master goes to the
//! log as it came, and [`applied`] is how much of it the data has, with the [`imports`] that it told.

pub mod applied;
pub mod commit_point;
pub mod imports;
mod shared_log;

use replication::ReplId;

pub use shared_log::{LogHandle, SharedLog};

/// A new name for a history.
pub fn random_id() -> ReplId {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("a system without random numbers cannot name a history");
    ReplId::from_random(bytes)
}
