//! What the server remembers of one client.

use std::sync::Arc;

use resp::Protocol;
use slot_routing::ReplOffset;

/// Where commands come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    #[default]
    Client,
    /// The stream of this node's master: runs whatever a client would be refused, sees expired keys
    /// (the master says when they go), and is not appended to the log as its own effect.
    Master,
}

/// One client's state.
#[derive(Debug)]
pub struct Session {
    pub id: u64,
    pub origin: Origin,
    pub db: u16,
    pub protocol: Protocol,
    /// Logged in, or no password is set.
    pub authenticated: bool,
    /// The client said ASKING: the next command may use a slot that is being imported.
    pub asking: bool,
    /// The client said READONLY: it takes reads from a replica.
    pub readonly: bool,
    /// The connection is to be closed after the replies so far.
    pub closing: bool,
    /// Where this client's last write ends in the replication stream (WAIT).
    pub last_write: ReplOffset,
    /// CLIENT SETNAME, SETINFO.
    pub name: Arc<[u8]>,
    pub lib_name: Arc<[u8]>,
    pub lib_version: Arc<[u8]>,
}

impl Session {
    #[must_use]
    pub fn new(id: u64, origin: Origin, authenticated: bool) -> Self {
        let empty: Arc<[u8]> = Arc::from([]);
        Self {
            id,
            origin,
            db: 0,
            protocol: Protocol::default(),
            authenticated,
            asking: false,
            readonly: false,
            closing: false,
            last_write: ReplOffset(0),
            name: empty.clone(),
            lib_name: empty.clone(),
            lib_version: empty,
        }
    }
}
