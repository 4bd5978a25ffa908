//! The commit point: the log offset that has reached every component that must have a change before its client gets the
//! reply.
//!
//! A component (for instance the append-only file under `always`) activates it by [`CommitPoint::set_required`] and reports
//! its progress by [`CommitPoint::publish`]. Connections hold replies to writes until then
//! (`net::output::Output::hold`), and each is woken when its offset is reached. While nothing requires it, a batch of
//! commands costs one call of [`CommitPoint::is_required`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slot_routing::ReplOffset;

/// The commit point of the log, and the connections waiting for it.
#[derive(Debug, Default)]
pub struct CommitPoint {
    required: AtomicBool,
    /// Only changes while `waiting` is locked, so that no connection starts to wait for an offset that was just passed.
    offset: AtomicU64,
    /// Keyed by offset and client id.
    waiting: Mutex<BTreeMap<(ReplOffset, u64), Waker>>,
}

impl CommitPoint {
    /// Sets whether replies to writes must wait.
    pub fn set_required(&self, required: bool) {
        self.required.store(required, Ordering::Release);
    }

    /// Publishes that the log is committed up to `offset`. Only increases within one replication history.
    pub fn publish(&self, offset: ReplOffset) {
        let mut waiting = self.waiting.lock();
        self.offset.store(offset.0, Ordering::Release);
        let still_waiting = waiting.split_off(&(ReplOffset(offset.0 + 1), 0));
        let reached = std::mem::replace(&mut *waiting, still_waiting);
        drop(waiting);
        for waker in reached.into_values() {
            waker.wake();
        }
    }

    /// Whether replies to writes must wait.
    #[inline]
    pub fn is_required(&self) -> bool {
        self.required.load(Ordering::Acquire)
    }

    /// The committed offset.
    pub fn offset(&self) -> ReplOffset {
        ReplOffset(self.offset.load(Ordering::Acquire))
    }

    /// Ready once the log is committed up to `until`. Otherwise registers the task of `client` to be woken.
    pub fn poll_reached(&self, until: ReplOffset, client: u64, context: &Context<'_>) -> Poll<()> {
        let mut waiting = self.waiting.lock();
        if self.offset() >= until {
            return Poll::Ready(());
        }
        waiting.insert((until, client), context.waker().clone());
        Poll::Pending
    }

    /// Removes a client that no longer waits.
    pub fn remove_waiter(&self, client: u64) {
        self.waiting.lock().retain(|(_, waiting), _| *waiting != client);
    }

    /// Whether any client waits.
    pub fn has_waiters(&self) -> bool {
        !self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn waiters_wake_once_when_their_offset_is_committed() {
        let point = CommitPoint::default();
        let woken: Vec<Arc<WakeCounter>> = (0..4).map(|_| Arc::default()).collect();
        let counts = || woken.iter().map(|counter| counter.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
        point.publish(ReplOffset(5));
        let wait = |client: usize, until: u64| {
            let waker = woken[client].clone().into();
            point.poll_reached(ReplOffset(until), client as u64, &Context::from_waker(&waker))
        };
        assert!(wait(0, 5).is_ready());
        for (client, until) in [(1, 6), (2, 7), (3, 7), (3, 8)] {
            assert!(wait(client, until).is_pending());
            assert!(wait(client, until).is_pending(), "asking twice is waiting once");
        }
        assert_eq!(counts(), [0, 0, 0, 0]);
        point.publish(ReplOffset(6));
        assert_eq!(counts(), [0, 1, 0, 0]);
        point.remove_waiter(3);
        point.publish(ReplOffset(100));
        assert_eq!((counts(), point.offset()), (vec![0, 1, 1, 0], ReplOffset(100)));
        assert!(!point.has_waiters());
    }
}
