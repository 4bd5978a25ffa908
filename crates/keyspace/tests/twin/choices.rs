//! Turns bytes into decisions of a test. The bytes are generated from a seed without end, or chosen by a fuzzer.

use std::iter::Peekable;

pub(crate) struct RandomChoices(Peekable<Box<dyn Iterator<Item = u8>>>);

impl RandomChoices {
    pub(crate) fn new(bytes: impl Iterator<Item = u8> + 'static) -> Self {
        let bytes: Box<dyn Iterator<Item = u8>> = Box::new(bytes);
        Self(bytes.peekable())
    }

    /// Returns a number below `bound` (at most 2^32), using as few bytes as possible; zero if no bytes are left.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let (mut number, mut told) = (0, 1);
        while told < bound {
            number = number << 8 | u64::from(self.0.next().unwrap_or(0));
            told <<= 8;
        }
        number * bound / told
    }

    pub(crate) fn are_exhausted(&mut self) -> bool {
        self.0.peek().is_none()
    }
}
