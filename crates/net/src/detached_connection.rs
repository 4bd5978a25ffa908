//! A connection that leaves its worker for good, to become a replication or slot migration link.

use crate::transport::Socket;

/// The socket of a detached connection together with its unprocessed bytes.
#[derive(Debug)]
pub struct DetachedConnection {
    /// Registered with no event loop.
    pub socket: Socket,
    /// The peer's address.
    pub address: String,
    /// Bytes that were read but not executed.
    pub input: Vec<u8>,
    /// Replies that have not been sent yet.
    pub unsent: Vec<u8>,
}
