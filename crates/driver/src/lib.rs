//! The contract between a pure state machine, or a driver that combines several, and the process that runs it: a
//! server, the simulator or a test.
#![forbid(unsafe_code)]

use std::convert::Infallible;

use clock::Instant;

/// A state machine without clock, sockets, disks and threads.
///
/// The process calls the methods in this order:
///
/// 1. [`Driver::handle`] with the current time and one event: received bytes, the result of an earlier action, an
///    operator's command, or the deadline.
/// 2. The process performs the actions in their order. An action that takes time does not delay the following ones; its
///    result is reported as an event. The type of the actions says which of them wait for the disk: none in a
///    `Vec<Action>`, those in [`PersistedActions::after_persist`] in a [`PersistedActions`].
/// 3. [`Driver::next_deadline`]: the process waits for the next event, at most until the deadline, and continues with
///    1.
///
/// A driver never reads a clock: equal events at equal times give equal actions, so a seed of the simulator reproduces
/// a run. An early deadline event is harmless. After the action that ends a driver, the driver ignores all events.
pub trait Driver {
    /// An event that the process reports, such as received bytes or the deadline.
    type Event;
    /// The actions that the process performs: `Vec<Action>`, or [`PersistedActions`] if some actions promise something
    /// that must survive a crash.
    type Actions: Default;

    /// Handles an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, event: Self::Event, out: &mut Self::Actions);

    /// Returns when to report the deadline if no other event occurs before; `None` if the driver waits for no time.
    fn next_deadline(&self) -> Option<Instant>;
}

/// The actions of a driver that persists its state: those to perform at once, and those that wait for the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistedActions<A, D = Infallible> {
    /// Actions to perform in order at once, including those that persist the state.
    pub immediate: Vec<A>,
    /// Actions to perform in order, such as sending a vote or an acknowledgement, once everything persisted before is
    /// on disk.
    pub after_persist: Vec<D>,
}

impl<A, D> Default for PersistedActions<A, D> {
    fn default() -> Self {
        Self { immediate: Vec::new(), after_persist: Vec::new() }
    }
}
