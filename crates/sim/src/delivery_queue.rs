//! One direction of a connection: items arrive in order, each at its own time.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;

#[derive(Debug, Clone)]
pub(crate) struct DeliveryQueue<T> {
    items: VecDeque<(Instant, T)>,
    /// Whether an event is scheduled that delivers the first item.
    is_scheduled: bool,
}

/// The result of polling a queue.
#[derive(Debug, Clone)]
pub(crate) enum DeliveryPoll<T> {
    Item(T),
    /// The next item has not arrived yet, or the receiver is blocked; poll again at this time.
    RetryAt(Instant),
    Empty,
}

impl<T> Default for DeliveryQueue<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), is_scheduled: false }
    }
}

impl<T> DeliveryQueue<T> {
    /// Queues an item that arrives at `at`. Returns when to poll if no poll is scheduled yet.
    pub(crate) fn push(&mut self, at: Instant, item: T) -> Option<Instant> {
        let at = self.items.back().map_or(at, |(last, _)| at.max(*last));
        self.items.push_back((at, item));
        (!std::mem::replace(&mut self.is_scheduled, true)).then_some(at)
    }

    /// Returns whether no item is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the next item that has arrived. If the receiver is blocked, returns a poll time after `blocked_for`
    /// instead. An empty queue need not be polled until the next push.
    pub(crate) fn next(&mut self, now: Instant, blocked_for: Option<Duration>) -> DeliveryPoll<T> {
        let first = self.items.front().map(|(at, _)| *at);
        self.is_scheduled = first.is_some();
        match (first, blocked_for) {
            (None, _) => DeliveryPoll::Empty,
            (Some(at), Some(pause)) => DeliveryPoll::RetryAt(at.max(now + pause)),
            (Some(at), None) if at > now => DeliveryPoll::RetryAt(at),
            (Some(_), None) => {
                self.items.pop_front().map_or(DeliveryPoll::Empty, |(_, item)| DeliveryPoll::Item(item))
            }
        }
    }
}
