//! How many messages of each type came and went.

use crate::wire::{Body, MessageKind};

/// The traffic over the links since the start, as the driver counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// All bytes that were sent.
    pub bytes_sent: u64,
    /// All bytes that came.
    pub bytes_received: u64,
    /// Those that were sent of what clients published.
    pub published_bytes_sent: u64,
    /// Those that came of it.
    pub published_bytes_received: u64,
    /// How many links were closed because their peers did not read (`cluster-link-sendbuf-limit`).
    pub overflown_links: u64,
}

/// Messages by type since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    sent: [u64; MessageKind::ALL.len()],
    received: [u64; MessageKind::ALL.len()],
}

impl Stats {
    /// Counts from zero on (CONFIG RESETSTAT).
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn count_sent(&mut self, body: &Body) {
        if let Some(kind) = body.kind() {
            self.sent[kind as usize] += 1;
        }
    }

    pub(crate) fn count_received(&mut self, body: &Body) {
        if let Some(kind) = body.kind() {
            self.received[kind as usize] += 1;
        }
    }

    /// How many of a type were sent.
    #[must_use]
    pub fn sent(&self, kind: MessageKind) -> u64 {
        self.sent[kind as usize]
    }

    /// How many of a type were received.
    #[must_use]
    pub fn received(&self, kind: MessageKind) -> u64 {
        self.received[kind as usize]
    }
}
