//! Retains sent bytes that the target has not acknowledged, to send them again after a reconnect.

use std::collections::VecDeque;

/// A buffer of the bytes that a source has sent and the target may not have applied yet.
#[derive(Debug, Default)]
pub(crate) struct ResendWindow {
    /// Stream offset of the first retained byte.
    first_offset: u64,
    bytes: VecDeque<u8>,
}

impl ResendWindow {
    /// The source stops sending while this many bytes are unacknowledged.
    pub(crate) const MAX_WINDOW_BYTES: usize = 4 * 1024 * 1024;

    /// Appends bytes that are being sent.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Returns whether more bytes may be sent: the unacknowledged ones are below the limit.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        self.bytes.len() < Self::MAX_WINDOW_BYTES
    }

    /// Discards acknowledged bytes. `applied_bytes` is the number of bytes applied since the start of the migration.
    /// Returns `false` if `applied_bytes` is more than was sent, or less than was acknowledged before.
    #[must_use]
    pub(crate) fn acknowledge(&mut self, applied_bytes: u64) -> bool {
        let Some(more) =
            applied_bytes.checked_sub(self.first_offset).and_then(|more| usize::try_from(more).ok())
        else {
            return false;
        };
        if more > self.bytes.len() {
            return false;
        }
        self.bytes.drain(..more);
        self.first_offset = applied_bytes;
        true
    }

    /// The bytes to send again on a new link.
    pub(crate) fn unacknowledged(&mut self) -> &[u8] {
        self.bytes.make_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unacknowledged_bytes_are_resent() {
        let mut window = ResendWindow::default();
        window.push(b"abcdef");
        assert!(window.acknowledge(2));
        assert_eq!(window.unacknowledged(), b"cdef");
        window.push(b"gh");
        assert!(window.acknowledge(2) && window.acknowledge(7));
        assert_eq!(window.unacknowledged(), b"h");
        assert!(!window.acknowledge(6), "it had said seven");
        assert!(!window.acknowledge(9), "eight were sent");
        assert!(window.acknowledge(8) && window.unacknowledged().is_empty());
    }

    #[test]
    fn window_closes_without_acknowledgements() {
        let mut window = ResendWindow::default();
        window.push(&vec![b'x'; ResendWindow::MAX_WINDOW_BYTES - 1]);
        assert!(window.is_open());
        window.push(b"y");
        assert!(!window.is_open());
        assert!(window.acknowledge(1) && window.is_open());
    }
}
