//! A client's output buffer.
//!
//! Bytes are sent in the order they were written. Replies can be held until the replication log is committed up to an
//! offset; bytes written after a held reply wait behind it. A hold consists of a [`OutputMark`] and an offset: bytes from the
//! mark on may be sent once the offset is committed. Held bytes count towards the output buffer limits.

use std::collections::VecDeque;

use resp::ByteQueue;
use slot_routing::ReplOffset;

/// A position in the client's whole output stream. It stays valid while earlier bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputMark(u64);

/// Pending output in order, with the positions that must wait for a commit.
#[derive(Debug, Default)]
pub struct Output {
    queue: ByteQueue,
    /// Total number of bytes sent so far.
    sent: u64,
    /// `None` if nothing is held, which is the usual case.
    holds: Option<Box<Holds>>,
}

/// The active holds, in order of their marks. Never empty.
#[derive(Debug)]
struct Holds(VecDeque<Hold>);

#[derive(Debug, Clone, Copy)]
struct Hold {
    from: OutputMark,
    until: ReplOffset,
}

impl Output {
    /// Number of pending bytes, including held ones.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no bytes are pending.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// See [`ByteQueue::memory`].
    pub fn memory(&self) -> usize {
        self.queue.memory()
    }

    /// See [`ByteQueue::charged_bytes`].
    pub fn charged_bytes(&self) -> usize {
        self.queue.charged_bytes()
    }

    /// See [`ByteQueue::buffer_limit`].
    pub fn buffer_limit(&self, limit: usize) -> usize {
        self.queue.buffer_limit(limit)
    }

    /// The buffer to append replies to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.queue.buffer()
    }

    /// The queue to append whole messages to.
    pub fn queue(&mut self) -> &mut ByteQueue {
        &mut self.queue
    }

    /// Puts back the buffer taken from [`Output::buffer`], possibly with more bytes appended. If nothing is pending,
    /// any buffer may be put in.
    pub fn restore_buffer(&mut self, bytes: Vec<u8>) {
        self.queue.restore_buffer(bytes);
    }

    /// The position where the next reply begins.
    pub fn mark(&self) -> OutputMark {
        OutputMark(self.sent + self.queue.len() as u64)
    }

    /// Number of pending bytes before the mark.
    fn bytes_before(&self, mark: OutputMark) -> usize {
        (mark.0.saturating_sub(self.sent) as usize).min(self.queue.len())
    }

    /// Copies the bytes written since the mark that have not been sent yet.
    pub fn copy_since(&self, mark: OutputMark) -> Vec<u8> {
        self.queue.copy_from(self.bytes_before(mark))
    }

    /// Removes the bytes written since the mark, except those already sent.
    pub fn discard_since(&mut self, mark: OutputMark) {
        let before = self.bytes_before(mark);
        self.queue.truncate(before);
    }

    /// The next bytes that may be sent, up to the first hold. Empty only if nothing may be sent.
    pub fn sendable(&self) -> &[u8] {
        let first = self.queue.first();
        let end = self.holds.as_ref().map_or(first.len(), |holds| self.bytes_before(holds.0[0].from));
        &first[..end.min(first.len())]
    }

    /// Holds all bytes from `from` on until the log is committed up to `until`.
    pub fn hold(&mut self, from: OutputMark, until: ReplOffset) {
        if from == self.mark() {
            // There was no reply (CLIENT REPLY OFF).
            return;
        }
        let holds = &mut self.holds.get_or_insert_with(|| Box::new(Holds(VecDeque::new()))).0;
        if holds.back().is_none_or(|last| last.until < until) {
            holds.push_back(Hold { from, until });
        }
    }

    /// The offset that must be committed before more bytes can be sent.
    pub fn held_until(&self) -> Option<ReplOffset> {
        self.holds.as_ref().map(|holds| holds.0[0].until)
    }

    /// The offset that must be committed before all pending bytes can be sent.
    pub fn held_to_end(&self) -> Option<ReplOffset> {
        self.holds.as_ref().and_then(|holds| holds.0.back()).map(|last| last.until)
    }

    /// Releases the holds up to the offset `committed`.
    pub fn release(&mut self, committed: ReplOffset) {
        let Some(holds) = &mut self.holds else { return };
        while holds.0.front().is_some_and(|hold| hold.until <= committed) {
            holds.0.pop_front();
        }
        if holds.0.is_empty() {
            self.holds = None;
        }
    }

    /// Takes all pending bytes. Nothing may be held.
    pub fn take(&mut self) -> Vec<u8> {
        debug_assert!(self.holds.is_none(), "the caller would lose the holds");
        let mut waiting = Vec::with_capacity(self.len());
        self.sent += self.queue.len() as u64;
        self.queue.drain_into(&mut waiting);
        waiting
    }

    /// Removes `len` bytes of [`Output::sendable`] after they have been sent.
    pub fn consume(&mut self, len: usize) {
        self.sent += len as u64;
        self.queue.consume(len);
    }
}

#[cfg(test)]
mod tests;
