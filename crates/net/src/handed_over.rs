//! A connection that leaves its worker for good: a replica's, or that of a node whose slots move here.

use crate::transport::Socket;

/// A connection's socket and what belongs to it.
#[derive(Debug)]
pub struct HandedOver {
    /// In no event loop.
    pub socket: Socket,
    /// Where the client connects from.
    pub address: String,
    /// Bytes that were read and not run.
    pub input: Vec<u8>,
    /// Replies that its peer does not have yet.
    pub unsent: Vec<u8>,
}
