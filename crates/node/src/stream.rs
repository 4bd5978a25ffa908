//! The node's stream of changes: one log that all threads write to, how far those have it that a reply waits for, and how
//! a master's stream stands in the data.
//!
//! The log is [`shared_log`]; replies to writes can wait for its [`commit_point`]. What is read from a master goes to the
//! log as it came, and [`applied`] is how much of it the data has, with the [`imports`] that it told.

pub(crate) mod applied;
pub(crate) mod commit_point;
pub(crate) mod imports;
mod shared_log;

use replication::ReplId;

pub(crate) use shared_log::{LogHandle, SharedLog};

/// A new name for a history.
pub(crate) fn random_id() -> ReplId {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).expect("a system without random numbers cannot name a history");
    ReplId::from_random(bytes)
}
