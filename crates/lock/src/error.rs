//! Errors of acquiring and releasing locks.

use std::time::Duration;

use redis::RedisError;

pub use crate::lease::LossReason;

/// Why a lock could not be acquired or released. Ordered by blame: the caller, other owners, the servers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The address is malformed, or its scheme is unknown.
    #[error("not an address of servers: {0}")]
    Address(String),
    /// In a cluster all keys of a lock must be in one slot, which an unbalanced brace in the name prevents.
    #[error("braces in a name must be a hash tag: {0}")]
    Name(String),
    /// The lock was not held when the server was asked.
    #[error("not held")]
    NotHeld,
    /// The lock was held, but is no longer.
    #[error("lost: {0}")]
    Lost(LossReason),
    /// Other owners held the lock for the whole wait.
    #[error("not free within {0:?}")]
    TimedOut(Duration),
    /// Too few servers confirmed: masters of a Redlock, or replicas.
    #[error("{had} of {wanted} servers that are needed")]
    NotEnoughNodes {
        /// Number of servers that confirmed.
        had: usize,
        /// Required number.
        wanted: usize,
    },
    /// The server could not be reached, or replied with an error.
    #[error("{0}")]
    Connection(#[from] RedisError),
}
