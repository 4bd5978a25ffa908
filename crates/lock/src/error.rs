//! Errors of acquiring and releasing locks.

use std::time::Duration;

use redis::RedisError;

pub use crate::lease::LossReason;

/// Why a lock could not be acquired or released. The variants are ordered by blame: the caller, other owners, the
/// servers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The address is malformed, or its scheme is unknown.
    #[error("not an address of servers: {0}")]
    Address(String),
    /// The name has an unbalanced brace, so that in a cluster the keys of the lock would not all be in one slot.
    #[error("braces in a name must be a hash tag: {0}")]
    Name(String),
    /// The server replied that it does not have the lock for this owner.
    #[error("not held")]
    NotHeld,
    /// The lock was lost before the call, for this reason.
    #[error("lost: {0}")]
    Lost(LossReason),
    /// Other owners held the lock for the whole wait.
    #[error("not free within {0:?}")]
    TimedOut(Duration),
    /// Fewer servers (masters of a Redlock, or replicas) than required have confirmed.
    #[error("{had} of {wanted} servers that are needed")]
    NotEnoughNodes {
        /// Number of servers that confirmed.
        had: usize,
        /// Number of servers that must confirm.
        wanted: usize,
    },
    /// The server could not be reached, or replied with an error.
    #[error("{0}")]
    Connection(#[from] RedisError),
}
