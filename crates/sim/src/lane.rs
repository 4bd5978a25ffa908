//! One direction of a connection: what is sent arrives in order, each thing at its time.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;

#[derive(Debug, Clone)]
pub(crate) struct Lane<T> {
    items: VecDeque<(Instant, T)>,
    /// An event that will look at the first item is on its way.
    planned: bool,
}

/// The outcome of a look at a lane.
#[derive(Debug, Clone)]
pub(crate) enum Next<T> {
    Item(T),
    /// Look again then.
    At(Instant),
    Nothing,
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

    /// Whether nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes the next item that has arrived by now; or, if its receiver takes nothing in, says when to look again:
    /// after `held`. With nothing on its way, no look is due until the next is pushed.
    pub(crate) fn next(&mut self, now: Instant, held: Option<Duration>) -> Next<T> {
        let first = self.items.front().map(|(at, _)| *at);
        self.planned = first.is_some();
        match (first, held) {
            (None, _) => Next::Nothing,
            (Some(at), Some(pause)) => Next::At(at.max(now + pause)),
            (Some(at), None) if at > now => Next::At(at),
            (Some(_), None) => self.items.pop_front().map_or(Next::Nothing, |(_, item)| Next::Item(item)),
        }
    }
}
