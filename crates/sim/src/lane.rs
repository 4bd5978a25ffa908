//! One direction of a connection: what is sent arrives in order, each thing at its time.

use std::collections::VecDeque;

use clock::Instant;

#[derive(Debug, Clone)]
pub(crate) struct Lane<T> {
    items: VecDeque<(Instant, T)>,
    /// An event that will look at the first item is on its way.
    planned: bool,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), planned: false }
    }
}

impl<T> Lane<T> {
    /// Puts an item behind the others; says when to look, if nobody will yet.
    pub(crate) fn push(&mut self, at: Instant, item: T) -> Option<Instant> {
        let at = self.items.back().map_or(at, |(last, _)| at.max(*last));
        self.items.push_back((at, item));
        (!std::mem::replace(&mut self.planned, true)).then_some(at)
    }

    /// When the first item arrives; without one, nobody looks any more until the next is pushed.
    pub(crate) fn first(&mut self) -> Option<Instant> {
        let first = self.items.front().map(|(at, _)| *at);
        self.planned = first.is_some();
        first
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front().map(|(_, item)| item)
    }
}
