//! The bytes that are to be sent to a client.
//!
//! Bytes leave in the order in which they were written. Replies may be held until the log is committed up to an offset
//! (by a commit point); what is written behind them waits behind them. A hold is a [`Mark`] and an offset: the bytes from
//! that place on may leave once the offset is committed. Held bytes count as waiting like others.

use std::collections::VecDeque;

use slot_routing::ReplOffset;

/// A kept buffer larger than this is given back once it is empty. The sent bytes that are kept in front of the waiting
/// ones are fewer than this, or fewer than those.
const KEEP_BUFFER: usize = 16 * 1024;

/// A place among all that is ever sent to a client: it stays where it is while what lies before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

/// Bytes that wait to be sent, in order.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// How many of them have been sent.
    sent: usize,
    /// How many were sent before these.
    before: u64,
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
        self.bytes.len() - self.sent
    }

    /// How many bytes of [`Output::buffer`] wait no longer.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where replies are appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        // The bytes that still wait move to the front, if they are fewer than were sent.
        if self.sent >= KEEP_BUFFER.max(self.len()) {
            self.before += self.sent as u64;
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        &mut self.bytes
    }

    /// Gives back what was taken out of [`Output::buffer`], with more behind it, or puts other bytes where none wait.
    pub fn put_buffer(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// Where the next reply begins.
    pub fn mark(&self) -> Mark {
        Mark(self.before + self.bytes.len() as u64)
    }

    /// Where that is in the buffer, or where what waits begins, if that is after it.
    fn place_of(&self, mark: Mark) -> usize {
        let place = mark.0.saturating_sub(self.before) as usize;
        place.clamp(self.sent, self.bytes.len())
    }

    /// The bytes that were appended since the mark and still wait to be sent.
    pub fn since(&self, mark: Mark) -> &[u8] {
        &self.bytes[self.place_of(mark)..]
    }

    /// Takes back the bytes that were appended since the mark, as far as they still wait.
    pub fn take_back(&mut self, mark: Mark) {
        let place = self.place_of(mark);
        self.bytes.truncate(place);
    }

    /// The bytes that may be sent now: up to the first hold.
    pub fn sendable(&self) -> &[u8] {
        let end = self.holds.as_ref().map_or(self.bytes.len(), |holds| self.place_of(holds.0[0].from));
        &self.bytes[self.sent..end]
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
        let waiting = self.bytes.split_off(self.sent);
        self.consume(0);
        waiting
    }

    /// Takes note that `len` bytes have been sent.
    pub fn consume(&mut self, len: usize) {
        self.sent += len;
        if self.sent < self.bytes.len() {
            return;
        }
        self.before += self.sent as u64;
        self.bytes.clear();
        self.sent = 0;
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests;
