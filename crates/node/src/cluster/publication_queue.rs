//! Published messages on their way to the driver, which sends them to the other nodes.
//!
//! Publishers must not wait, and the queue must be bounded. When [`MAX_QUEUED_BYTES`] bytes are queued, further
//! messages to other nodes are lost, as on a link that does not drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine::ClusterBus;
use gossip::wire::Publication;
use tokio::sync::mpsc::UnboundedSender;

use super::DriverRequest;

/// The maximum number of queued bytes. A single message may be larger.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct PublicationQueue {
    requests: UnboundedSender<DriverRequest>,
    queued_bytes: Arc<AtomicUsize>,
    /// Whether messages are currently being lost. Only the first loss is logged.
    is_losing_messages: AtomicBool,
}

/// The bytes of a queued message. They are subtracted from the total of the queue on drop.
#[derive(Debug)]
pub(super) struct QueuedBytes {
    queue_total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.queue_total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl PublicationQueue {
    pub(super) fn new(requests: UnboundedSender<DriverRequest>) -> Self {
        Self { requests, queued_bytes: Arc::default(), is_losing_messages: AtomicBool::new(false) }
    }
}

impl ClusterBus for PublicationQueue {
    fn max_message_len(&self) -> usize {
        gossip::wire::MAX_PUBLICATION_BYTES
    }

    fn publish(&self, is_sharded: bool, channel: &[u8], message: &[u8]) {
        let bytes = channel.len() + message.len();
        let before = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let ticket = QueuedBytes { queue_total: self.queued_bytes.clone(), bytes };
        if before > 0 && before + bytes > MAX_QUEUED_BYTES {
            if !self.is_losing_messages.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "More is published than the cluster bus takes: messages to other nodes are lost"
                );
            }
            return;
        }
        if before == 0 {
            self.is_losing_messages.store(false, Ordering::Relaxed);
        }
        let publication = Publication { is_sharded, channel: channel.to_vec(), message: message.to_vec() };
        // A send error means that the server is stopping.
        let _ = self.requests.send(DriverRequest::Publish { publication, queued_bytes: ticket });
    }
}
