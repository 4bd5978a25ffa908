//! The bytes that are to be sent to a client.
//!
//! Bytes leave in the order in which they were written. Replies may be held until the log is committed up to an offset
//! (by a commit point); what is written behind them waits behind them. A hold is a [`Mark`] and an offset: the bytes from
//! that place on may leave once the offset is committed. Held bytes count as waiting like others.

use std::collections::VecDeque;

use resp::ByteQueue;
use slot_routing::ReplOffset;

/// A place among all that is ever sent to a client: it stays where it is while what lies before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

/// Bytes that wait to be sent, in order.
#[derive(Debug, Default)]
pub struct Output {
    queue: ByteQueue,
    /// How many bytes have been sent.
    sent: u64,
    /// `None` where nothing is held, as nearly always.
    holds: Option<Box<Holds>>,
}

/// The held parts of the output; never empty, marks rise.
#[derive(Debug)]
struct Holds(VecDeque<Hold>);

#[derive(Debug, Clone, Copy)]
struct Hold {
    from: Mark,
    until: ReplOffset,
}

impl Output {
    /// How many bytes wait, held or not.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// [`ByteQueue::memory`]
    pub fn memory(&self) -> usize {
        self.queue.memory()
    }

    /// [`ByteQueue::charged`]
    pub fn charged(&self) -> usize {
        self.queue.charged()
    }

    /// [`ByteQueue::buffer_limit`]
    pub fn buffer_limit(&self, limit: usize) -> usize {
        self.queue.buffer_limit(limit)
    }

    /// Where replies are appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.queue.buffer()
    }

    /// Where whole messages are appended.
    pub fn queue(&mut self) -> &mut ByteQueue {
        &mut self.queue
    }

    /// Gives back what was taken out of [`Output::buffer`], with more behind it, or puts other bytes where none wait.
    pub fn put_buffer(&mut self, bytes: Vec<u8>) {
        self.queue.put_buffer(bytes);
    }

    /// Where the next reply begins.
    pub fn mark(&self) -> Mark {
        Mark(self.sent + self.queue.len() as u64)
    }

    /// How many of the waiting bytes lie before the mark.
    fn before(&self, mark: Mark) -> usize {
        (mark.0.saturating_sub(self.sent) as usize).min(self.queue.len())
    }

    /// A copy of the bytes that were appended since the mark and still wait to be sent.
    pub fn since(&self, mark: Mark) -> Vec<u8> {
        self.queue.copy_from(self.before(mark))
    }

    /// Takes back the bytes that were appended since the mark, as far as they still wait.
    pub fn take_back(&mut self, mark: Mark) {
        let before = self.before(mark);
        self.queue.truncate(before);
    }

    /// Bytes that may be sent now, up to the first hold; none only if there is nothing that may be.
    pub fn sendable(&self) -> &[u8] {
        let first = self.queue.first();
        let end = self.holds.as_ref().map_or(first.len(), |holds| self.before(holds.0[0].from));
        &first[..end.min(first.len())]
    }

    /// Holds what was written from `from` on, and all that follows, until the log is committed up to `until`.
    pub fn hold(&mut self, from: Mark, until: ReplOffset) {
        if from == self.mark() {
            // Nothing was answered (CLIENT REPLY OFF).
            return;
        }
        let holds = &mut self.holds.get_or_insert_with(|| Box::new(Holds(VecDeque::new()))).0;
        if holds.back().is_none_or(|last| last.until < until) {
            holds.push_back(Hold { from, until });
        }
    }

    /// Which offset must be committed before more may be sent.
    pub fn held_until(&self) -> Option<ReplOffset> {
        self.holds.as_ref().map(|holds| holds.0[0].until)
    }

    /// Which offset must be committed before all may be sent.
    pub fn held_to_the_end(&self) -> Option<ReplOffset> {
        self.holds.as_ref().and_then(|holds| holds.0.back()).map(|last| last.until)
    }

    /// The log is committed up to `committed`.
    pub fn release(&mut self, committed: ReplOffset) {
        let Some(holds) = &mut self.holds else { return };
        while holds.0.front().is_some_and(|hold| hold.until <= committed) {
            holds.0.pop_front();
        }
        if holds.0.is_empty() {
            self.holds = None;
        }
    }

    /// Takes everything that waits.
    pub fn take(&mut self) -> Vec<u8> {
        debug_assert!(self.holds.is_none(), "whoever takes it would not know what is held");
        let mut waiting = Vec::with_capacity(self.len());
        self.sent += self.queue.len() as u64;
        self.queue.take_into(&mut waiting);
        waiting
    }

    /// Takes note that `len` bytes of [`Output::sendable`] have been sent.
    pub fn consume(&mut self, len: usize) {
        self.sent += len as u64;
        self.queue.consume(len);
    }
}

#[cfg(test)]
mod tests;
