//! The contract between a pure state machine, or a driver that combines several, and the process that runs it: a
//! server, the simulator or a test.
#![forbid(unsafe_code)]

use std::convert::Infallible;

use clock::Instant;

/// A state machine without clock, sockets, disks and threads.
///
/// The process calls the methods in this order:
///
/// 1. [`Driver::handle`] with the current time and one event: something that arrived, the result of an earlier action,
///    an operator's command, or the deadline.
/// 2. It performs the actions in their order. An action that takes time does not delay those after it; its result is an
///    event. The type of the actions says which of them wait for the disk: with a `Vec<Action>` none does, with
///    [`PersistedActions`] those in [`PersistedActions::after_persist`] do.
/// 3. [`Driver::next_deadline`]: it waits for the next event, at most until then, and continues with 1.
///
/// A driver never reads a clock: equal events at equal times give equal actions, so a seed of the simulator reproduces
/// a run. An early deadline event is harmless. After the action that ends a driver, it ignores all events.
pub trait Driver {
    /// An event that the process reports, such as received bytes or the deadline.
    type Event;
    /// What the process performs: `Vec<Action>`, or [`PersistedActions`] if some actions promise what must survive a
    /// crash.
    type Actions: Default;

    /// Handles an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, event: Self::Event, out: &mut Self::Actions);

    /// Returns when to report the deadline if no other event occurs before; `None` if there is nothing to wait for.
    fn next_deadline(&self) -> Option<Instant>;
}

/// The actions of a driver that persists its state, separated by what they may promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedActions<A, D = Infallible> {
    /// Actions to perform in order at once. Some of them persist the state.
    pub immediate: Vec<A>,
    /// Actions to perform in order once everything that was persisted before is on disk, such as a vote or an
    /// acknowledgement.
    pub after_persist: Vec<D>,
}

impl<A, D> Default for PersistedActions<A, D> {
    fn default() -> Self {
        Self { immediate: Vec::new(), after_persist: Vec::new() }
    }
}
