//! A client's output buffer.
//!
//! Bytes are sent in the order they were written. Replies can be held until the replication log is committed up to an
//! offset; bytes written after a held reply wait behind it. A hold consists of an [`OutputMark`] and an offset: bytes
//! from the mark on may be sent once the offset is committed. Held bytes count towards the output buffer limits.

use std::collections::VecDeque;

use resp::ByteQueue;
use slot_routing::ReplOffset;

/// A position in the client's whole output stream. It stays valid while earlier bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputMark(u64);

/// The pending output of a client, in sending order, and the bytes of it that must wait for a commit.
#[derive(Debug, Default)]
pub struct Output {
    bytes: ByteQueue,
    /// Number of bytes sent since the connection was opened.
    sent_bytes: u64,
    /// The active holds; `None` in the usual case that no bytes are held.
    holds: Option<Box<OutputHolds>>,
}

/// The active holds, in order of their marks. Never empty.
#[derive(Debug)]
struct OutputHolds(VecDeque<OutputHold>);

#[derive(Debug, Clone, Copy)]
struct OutputHold {
    start: OutputMark,
    offset: ReplOffset,
}

impl Output {
    /// Number of pending bytes, including held ones.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no bytes are pending.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of memory used, see [`ByteQueue::memory_bytes`].
    pub fn memory_bytes(&self) -> usize {
        self.bytes.memory_bytes()
    }

    /// Bytes counted against the client's limits, see [`ByteQueue::charged_bytes`].
    pub fn charged_bytes(&self) -> usize {
        self.bytes.charged_bytes()
    }

    /// The length that the reply buffer may reach within `limit` bytes, see [`ByteQueue::buffer_limit`].
    pub fn buffer_limit(&self, limit: usize) -> usize {
        self.bytes.buffer_limit(limit)
    }

    /// The buffer to append replies to. Do not remove bytes from it.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.bytes.buffer()
    }

    /// The queue for whole messages, such as published messages, which are sent after all earlier replies.
    pub fn queue(&mut self) -> &mut ByteQueue {
        &mut self.bytes
    }

    /// Puts back the buffer taken from [`Output::buffer`], possibly with more bytes appended. If nothing is pending,
    /// any buffer may be put in.
    pub fn restore_buffer(&mut self, bytes: Vec<u8>) {
        self.bytes.restore_buffer(bytes);
    }

    /// The position where the next reply begins.
    pub fn mark(&self) -> OutputMark {
        OutputMark(self.sent_bytes + self.bytes.len() as u64)
    }

    /// Number of pending bytes before the mark.
    fn bytes_before(&self, mark: OutputMark) -> usize {
        (mark.0.saturating_sub(self.sent_bytes) as usize).min(self.bytes.len())
    }

    /// Copies the bytes written since the mark that have not been sent yet.
    pub fn copy_since(&self, mark: OutputMark) -> Vec<u8> {
        self.bytes.copy_pending(self.bytes_before(mark))
    }

    /// Removes the bytes written since the mark, except those already sent.
    pub fn discard_since(&mut self, mark: OutputMark) {
        let before = self.bytes_before(mark);
        self.bytes.truncate(before);
    }

    /// The next bytes that may be sent, up to the first hold. Empty only if nothing may be sent.
    pub fn sendable_bytes(&self) -> &[u8] {
        let first = self.bytes.next_bytes();
        let end = self.holds.as_ref().map_or(first.len(), |holds| self.bytes_before(holds.0[0].start));
        &first[..end.min(first.len())]
    }

    /// Holds all bytes from the mark `start` on until the log is committed up to `offset`.
    pub fn hold_from(&mut self, start: OutputMark, offset: ReplOffset) {
        if start == self.mark() {
            // CLIENT REPLY OFF suppressed the reply, so there is nothing to hold.
            return;
        }
        let holds = &mut self.holds.get_or_insert_with(|| Box::new(OutputHolds(VecDeque::new()))).0;
        if holds.back().is_none_or(|last| last.offset < offset) {
            holds.push_back(OutputHold { start, offset });
        }
    }

    /// The offset that must be committed before more bytes can be sent; `None` if nothing is held.
    pub fn first_held_offset(&self) -> Option<ReplOffset> {
        self.holds.as_ref().map(|holds| holds.0[0].offset)
    }

    /// The offset that must be committed before all pending bytes can be sent; `None` if nothing is held.
    pub fn last_held_offset(&self) -> Option<ReplOffset> {
        self.holds.as_ref().and_then(|holds| holds.0.back()).map(|last| last.offset)
    }

    /// Releases the holds whose offsets are at most `committed`.
    pub fn release_until(&mut self, committed: ReplOffset) {
        let Some(holds) = &mut self.holds else { return };
        while holds.0.front().is_some_and(|hold| hold.offset <= committed) {
            holds.0.pop_front();
        }
        if holds.0.is_empty() {
            self.holds = None;
        }
    }

    /// Takes all pending bytes. No byte may be held.
    pub fn take_pending(&mut self) -> Vec<u8> {
        debug_assert!(self.holds.is_none(), "the caller would lose the holds");
        let mut waiting = Vec::with_capacity(self.len());
        self.sent_bytes += self.bytes.len() as u64;
        self.bytes.drain_into(&mut waiting);
        waiting
    }

    /// Removes `len` bytes of [`Output::sendable_bytes`] after they have been sent.
    pub fn remove_sent(&mut self, len: usize) {
        self.sent_bytes += len as u64;
        self.bytes.consume(len);
    }
}

#[cfg(test)]
mod tests;
