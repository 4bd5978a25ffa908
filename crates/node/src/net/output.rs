//! What is to be sent to a client.

/// A kept buffer larger than this is given back once it is empty.
const KEEP_BUFFER: usize = 16 * 1024;

/// Bytes that wait to be sent, in order.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// How many of them have been sent.
    sent: usize,
    /// How many were sent before them.
    gone: u64,
}

/// A place among all that is ever sent to a client: it stays where it is while what lies before it is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u64);

impl Output {
    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// How many bytes of [`Output::buffer`] wait no longer.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where replies are appended.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Where the next reply begins.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.gone + self.bytes.len() as u64)
    }

    /// What was appended since, as far as it waits.
    pub(crate) fn since(&self, mark: Mark) -> &[u8] {
        &self.bytes[self.place_of(mark)..]
    }

    /// Takes back what was appended since. Nothing of it has been sent.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        let place = self.place_of(mark);
        self.bytes.truncate(place);
    }

    fn place_of(&self, mark: Mark) -> usize {
        (mark.0.saturating_sub(self.gone) as usize).min(self.bytes.len())
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
        self.gone += self.bytes.len() as u64;
        self.bytes.clear();
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was answered before is sent while a command waits; its own reply still begins where it does.
    #[test]
    fn a_mark_stays_while_what_lies_before_it_is_sent() {
        let mut output = Output::default();
        output.buffer().extend_from_slice(b"earlier");
        let mark = output.mark();
        output.consume(3);
        output.buffer().extend_from_slice(b"reply");
        assert_eq!((output.since(mark), output.sendable()), (&b"reply"[..], &b"lierreply"[..]));
        output.take_back(mark);
        output.consume(4);
        output.buffer().extend_from_slice(b"another");
        assert_eq!(output.since(mark), b"another");
        output.take_back(mark);
        assert!(output.is_empty());
    }
}
