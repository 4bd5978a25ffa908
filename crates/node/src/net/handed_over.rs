//! A connection that leaves its worker for good: a replica's, or that of a node whose slots move here.

use crate::net::transport::Socket;

/// A connection's socket and what belongs to it.
#[derive(Debug)]
pub(crate) struct HandedOver {
    pub(crate) socket: Socket,
    /// Where the client connects from.
    pub(crate) address: String,
    pub(crate) input: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
}
