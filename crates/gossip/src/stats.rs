//! Counters of bus messages and bytes.

use crate::wire::{MessageBody, MessageKind};

/// Bus traffic since the start or the last reset, counted by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkTraffic {
    /// Bytes sent over all links, including closed ones.
    pub bytes_sent: u64,
    /// Bytes received over all links, including closed ones.
    pub bytes_received: u64,
    /// Bytes sent in PUBLISH messages, which are part of `bytes_sent`.
    pub published_bytes_sent: u64,
    /// Bytes received in PUBLISH messages, which are part of `bytes_received`.
    pub published_bytes_received: u64,
    /// Number of links closed because the peer did not read fast enough (`cluster-link-sendbuf-limit`).
    pub overflowed_links: u64,
}

/// Number of messages of each type since the start or the last reset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageStats {
    sent_counts: [u64; MessageKind::ALL.len()],
    received_counts: [u64; MessageKind::ALL.len()],
}

impl MessageStats {
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn count_sent(&mut self, body: &MessageBody) {
        if let Some(kind) = body.kind() {
            self.sent_counts[kind as usize] += 1;
        }
    }

    pub(crate) fn count_received(&mut self, body: &MessageBody) {
        if let Some(kind) = body.kind() {
            self.received_counts[kind as usize] += 1;
        }
    }

    /// Number of messages of the given type that were sent since the last reset.
    #[must_use]
    pub fn sent_count(&self, kind: MessageKind) -> u64 {
        self.sent_counts[kind as usize]
    }

    /// Number of messages of the given type that were received since the last reset.
    #[must_use]
    pub fn received_count(&self, kind: MessageKind) -> u64 {
        self.received_counts[kind as usize]
    }
}
