//! Errors of acquiring and releasing locks.

use std::time::Duration;

use redis::RedisError;

pub use crate::lease::LossReason;

/// Why a lock could not be acquired or released. The variants are ordered by blame: the caller, other owners, the
/// servers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The server's address is malformed, or its scheme is unknown.
    #[error("not an address of servers: {0}")]
    Address(String),
    /// The lock's name has an unbalanced brace, so that in a cluster the keys of the lock would be in different slots.
    #[error("braces in a name must be a hash tag: {0}")]
    Name(String),
    /// The server replied that this owner does not hold the lock.
    #[error("not held")]
    NotHeld,
    /// The lock was lost before the call. Contains the reason.
    #[error("lost: {0}")]
    Lost(LossReason),
    /// Other owners held the lock during the whole wait, which lasted this long.
    #[error("not free within {0:?}")]
    TimedOut(Duration),
    /// Fewer servers (masters of a Redlock, or replicas) than required have confirmed.
    #[error("{available} of {required} servers that are needed")]
    NotEnoughNodes {
        /// Number of servers that confirmed.
        available: usize,
        /// Number of servers that must confirm.
        required: usize,
    },
    /// The server could not be reached, or replied with an error.
    #[error("{0}")]
    Connection(#[from] RedisError),
}
