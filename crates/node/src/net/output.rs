//! What is to be sent to a client.

/// A kept buffer larger than this is given back once it is empty.
const KEEP_BUFFER: usize = 16 * 1024;

/// Bytes that wait to be sent, in order.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// How many of them have been sent.
    sent: usize,
}

impl Output {
    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where replies are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What may be sent now.
    pub(crate) fn sendable(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Takes everything that waits.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let sent = std::mem::take(&mut self.sent);
        std::mem::take(&mut self.bytes).split_off(sent)
    }

    /// Takes note that `len` bytes have been sent.
    pub(crate) fn consume(&mut self, len: usize) {
        self.sent += len;
        if self.sent < self.bytes.len() {
            return;
        }
        self.sent = 0;
        self.bytes.clear();
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
    }
}
