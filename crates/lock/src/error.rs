//! The errors of acquiring and releasing.

use std::time::Duration;

use redis::RedisError;

pub use crate::life::Loss;

/// Why something was not acquired, or not released. Sorted by blame: the caller's, others', the servers'.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The address names no server, or in no form that is known.
    #[error("not an address of servers: {0}")]
    Address(String),
    /// In a cluster, all keys of a lock must lie in one slot, which a lone brace in the name prevents.
    #[error("braces in a name must be a hash tag: {0}")]
    Name(String),
    /// It is not held, and was not when the server was asked.
    #[error("not held")]
    NotHeld,
    /// It was held and is no longer.
    #[error("lost: {0}")]
    Lost(Loss),
    /// Others held it all the time.
    #[error("not free within {0:?}")]
    TimedOut(Duration),
    /// Fewer servers took part than are needed: masters of a Redlock, or replicas that confirm.
    #[error("{had} of {wanted} servers that are needed")]
    NotEnoughNodes {
        /// How many did.
        had: usize,
        /// How many must.
        wanted: usize,
    },
    /// The server could not be reached, or answered with an error.
    #[error("{0}")]
    Connection(#[from] RedisError),
}
