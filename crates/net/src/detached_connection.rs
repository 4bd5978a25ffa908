//! A connection that leaves its worker permanently, to become a replication or slot migration link.

use crate::transport::Socket;

/// The socket of a detached connection together with its unprocessed bytes.
#[derive(Debug)]
pub struct DetachedConnection {
    /// The socket. It is registered with no event loop, so any thread can register it with its own.
    pub socket: Socket,
    /// The peer's IP address, or `unixsocket`.
    pub address: String,
    /// Bytes that were read but not executed. They come before any byte still in the socket.
    pub unprocessed_input: Vec<u8>,
    /// Replies that must be sent before anything else.
    pub unsent_replies: Vec<u8>,
}
