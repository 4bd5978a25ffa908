//! State that this server shares with the sentinels that monitor it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

use crate::clients::Client;

/// Channel on which sentinels announce themselves to each other through their masters.
const HELLO_CHANNEL: &[u8] = b"__sentinel__:hello";
/// Prefix of the client names that sentinels use.
const SENTINEL_NAME_PREFIX: &[u8] = b"sentinel-";

/// State about the sentinels that monitor this server.
#[derive(Debug, Default)]
pub struct SentinelState {
    /// Whether a hello message has arrived since startup.
    pub hello_seen: AtomicBool,
    /// Whether PINGs of sentinels are answered with an error, so that the sentinels fail over from this node; set with
    /// [`NodeFlags::EMPTY_MASTER`](crate::NodeFlags::EMPTY_MASTER).
    pub rejects_sentinel_pings: AtomicBool,
    /// The last hello message, until the server process takes it.
    pub last_hello: ArcSwapOption<Vec<u8>>,
}

impl SentinelState {
    /// Returns whether a ping of this client gets an error.
    #[inline]
    #[must_use]
    pub fn rejects_ping_of(&self, client: &Client) -> bool {
        self.rejects_sentinel_pings.load(Ordering::Relaxed) && Self::is_sentinel(client)
    }

    /// Returns whether the client is a sentinel by its name.
    #[must_use]
    pub fn is_sentinel(client: &Client) -> bool {
        client.names.lock().name.starts_with(SENTINEL_NAME_PREFIX)
    }

    /// Stores a published message if it is a sentinel's hello message.
    pub fn store_hello(&self, channel: &[u8], message: &[u8]) {
        if channel != HELLO_CHANNEL {
            return;
        }
        self.hello_seen.store(true, Ordering::Relaxed);
        self.last_hello.store(Some(Arc::new(message.to_vec())));
    }
}
