//! The messages that clients publish, on their way to the driver, which sends them to the other nodes.
//!
//! A publisher must not wait, and the waiting messages must be bounded: beyond [`MOST_WAITING`] bytes messages are lost
//! for the other nodes, as they are on a link that does not drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine::Bus;
use gossip::wire::Publication;
use tokio::sync::mpsc::UnboundedSender;

use super::Ask;

/// Bytes of messages that may wait for the driver; one message alone may be larger.
const MOST_WAITING: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Outbox {
    asks: UnboundedSender<Ask>,
    waiting: Arc<AtomicUsize>,
    /// Messages are being lost, and that has been said.
    losing: AtomicBool,
}

/// Counts the bytes of one message for as long as it waits.
#[derive(Debug)]
pub(super) struct Ticket {
    waiting: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Outbox {
    pub(super) fn new(asks: UnboundedSender<Ask>) -> Self {
        Self { asks, waiting: Arc::default(), losing: AtomicBool::new(false) }
    }
}

impl Bus for Outbox {
    fn longest(&self) -> usize {
        gossip::wire::MAX_PUBLICATION_BYTES
    }

    fn publish(&self, sharded: bool, channel: &[u8], message: &[u8]) {
        let bytes = channel.len() + message.len();
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let ticket = Ticket { waiting: self.waiting.clone(), bytes };
        if before > 0 && before + bytes > MOST_WAITING {
            if !self.losing.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "More is published than the cluster bus takes: messages to other nodes are lost"
                );
            }
            return;
        }
        if before == 0 {
            self.losing.store(false, Ordering::Relaxed);
        }
        let publication = Publication { sharded, channel: channel.to_vec(), message: message.to_vec() };
        // While the server stops, no driver receives it.
        let _ = self.asks.send(Ask::Publish { publication, ticket });
    }
}
