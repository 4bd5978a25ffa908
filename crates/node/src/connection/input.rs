//! The input buffer of a connection.

use std::ops::{Deref, DerefMut};

/// A buffer that is consumed from the front. Consumed bytes are removed once they make up half of the buffer, so that
/// moving the rest costs no more than was consumed.
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    bytes: Vec<u8>,
    consumed_len: usize,
}

impl InputBuffer {
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed_len += count;
        if self.consumed_len * 2 < self.bytes.len() {
            return;
        }
        self.bytes.drain(..self.consumed_len);
        self.consumed_len = 0;
        if self.bytes.len() < self.bytes.capacity() / 4 {
            self.bytes.shrink_to_fit();
        }
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the buffer with spare capacity for at least `additional` bytes. The caller must only append to it.
    pub(super) fn buffer_with_capacity(&mut self, additional: usize) -> &mut Vec<u8> {
        self.bytes.reserve_exact(additional);
        &mut self.bytes
    }

    /// Takes all bytes that are not consumed, and leaves the buffer empty.
    pub(super) fn take_unconsumed(&mut self) -> Vec<u8> {
        let mut all = std::mem::take(self);
        all.bytes.drain(..all.consumed_len);
        all.bytes
    }

    /// Returns the allocated memory in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Deref for InputBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.consumed_len..]
    }
}

impl DerefMut for InputBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.consumed_len..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_input_is_independent_of_how_it_was_consumed() {
        let all: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let (mut input, mut read, mut done) = (InputBuffer::default(), 0, 0);
        for step in [1, 7, 300, 2000, 13, 900].into_iter().cycle() {
            let more = step.min(all.len() - read);
            input.extend(&all[read..read + more]);
            read += more;
            let used = (step / 2 + 1).min(input.len());
            input.consume(used);
            done += used;
            assert_eq!(&*input, &all[done..read]);
            if done == all.len() {
                break;
            }
        }
        assert!(input.is_empty() && input.take_unconsumed().is_empty());
    }
}
