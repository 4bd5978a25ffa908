//! A barrier for concurrent tests, so that one event (a kill) happens in the middle of all of them.
//!
//! Each test holds a [`KillBarrier`]. A test has arrived when it reaches its middle. A test that fails early drops its
//! barrier and is no longer counted, so it does not block the others.

use std::cell::RefCell;
use std::convert::Infallible;

use tokio::sync::{mpsc, watch};

/// The handle with which one test takes part in the barrier.
#[derive(Debug)]
pub(crate) struct KillBarrier {
    /// Dropped when the test arrives or ends. Nothing is ever sent: when no sender is left, all tests have arrived or
    /// ended.
    arrival_sender: RefCell<Option<mpsc::Sender<Infallible>>>,
    is_over: watch::Receiver<bool>,
}

impl KillBarrier {
    /// Marks this test as arrived, and waits until the event has happened.
    pub(crate) async fn wait_for_event(&self) {
        drop(self.arrival_sender.take());
        // An error means that the sender is gone, so the event is over.
        let _ = self.is_over.clone().wait_for(|over| *over).await;
    }

    /// Whether this test has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.arrival_sender.borrow().is_none()
    }
}

/// The event, a kill of the master, for which all tests pause in their middle.
#[derive(Debug)]
pub(crate) struct KillEvent {
    arrival_receiver: mpsc::Receiver<Infallible>,
    is_over: watch::Sender<bool>,
}

impl KillEvent {
    /// Creates an event and the handles for `count` tests.
    pub(crate) fn with_barriers(count: usize) -> (Self, Vec<KillBarrier>) {
        let (sender, coming) = mpsc::channel(1);
        let (over, told) = watch::channel(false);
        let middle =
            |sender| KillBarrier { arrival_sender: RefCell::new(Some(sender)), is_over: told.clone() };
        let middles = (0..count).map(|_| middle(sender.clone())).collect();
        (Self { arrival_receiver: coming, is_over: over }, middles)
    }

    /// Waits until all tests have reached their middle or ended.
    pub(crate) async fn wait_for_arrivals(&mut self) {
        let None = self.arrival_receiver.recv().await;
    }

    /// Reports the event as over, which lets all tests continue.
    pub(crate) fn finish(self) {
        self.is_over.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt;
    use futures_util::future::{join, join_all};

    use super::*;

    #[test]
    fn kill_waits_for_all_attempts_still_running() {
        let (mut event, mut middles) = KillEvent::with_barriers(3);
        assert_eq!(event.wait_for_arrivals().now_or_never(), None);
        let ended = middles.pop();
        drop(ended);
        let first = middles.pop().expect("the second");
        assert_eq!(first.wait_for_event().now_or_never(), None);
        assert!(first.has_arrived());
        assert_eq!(event.wait_for_arrivals().now_or_never(), None);
        assert_eq!(middles[0].wait_for_event().now_or_never(), None);
        assert_eq!(event.wait_for_arrivals().now_or_never(), Some(()));
    }

    #[test]
    fn waiters_continue_only_after_the_kill() {
        let (mut event, middles) = KillEvent::with_barriers(2);
        let happened = Cell::new(false);
        let stories = middles.into_iter().map(async |middle| {
            middle.wait_for_event().await;
            assert!(happened.get());
        });
        let happens = async {
            event.wait_for_arrivals().await;
            happened.set(true);
            event.finish();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(join(join_all(stories), happens));
    }
}
