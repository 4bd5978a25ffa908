//! The bytes of a job that were sent and may not have come: another link goes on with them where one broke.

use std::collections::VecDeque;

/// The bytes that a source has sent on the links of a job, from the first byte that the target may not have applied.
#[derive(Debug, Default)]
pub struct Window {
    /// The number of the first byte that is kept.
    first: u64,
    bytes: VecDeque<u8>,
}

impl Window {
    /// With this much sent and not applied, no more is sent.
    pub const SIZE: usize = 4 * 1024 * 1024;

    /// These are sent.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Whether more may be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.bytes.len() < Self::SIZE
    }

    /// The target has applied so many bytes from the beginning of the job. `false`: it was not sent as many, or has
    /// said before that it had more.
    #[must_use]
    pub fn applied(&mut self, count: u64) -> bool {
        let Some(more) = count.checked_sub(self.first).and_then(|more| usize::try_from(more).ok()) else {
            return false;
        };
        if more > self.bytes.len() {
            return false;
        }
        self.bytes.drain(..more);
        self.first = count;
        true
    }

    /// The bytes that another link begins with.
    pub fn rest(&mut self) -> &[u8] {
        self.bytes.make_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_link_begins_behind_what_was_applied() {
        let mut window = Window::default();
        window.push(b"abcdef");
        assert!(window.applied(2));
        assert_eq!(window.rest(), b"cdef");
        window.push(b"gh");
        assert!(window.applied(2) && window.applied(7));
        assert_eq!(window.rest(), b"h");
        assert!(!window.applied(6), "it had said seven");
        assert!(!window.applied(9), "eight were sent");
        assert!(window.applied(8) && window.rest().is_empty());
    }

    #[test]
    fn a_target_that_applies_nothing_is_sent_little() {
        let mut window = Window::default();
        window.push(&vec![b'x'; Window::SIZE - 1]);
        assert!(window.is_open());
        window.push(b"y");
        assert!(!window.is_open());
        assert!(window.applied(1) && window.is_open());
    }
}
