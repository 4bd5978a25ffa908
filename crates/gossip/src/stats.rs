//! How many messages of each type came and went.

use crate::wire::{Body, MessageKind};

/// Messages by type since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    sent: [u64; MessageKind::ALL.len()],
    received: [u64; MessageKind::ALL.len()],
}

impl Stats {
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
