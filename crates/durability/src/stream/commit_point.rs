//! The commit point: how far the log has reached every part that must have an effect before its client is answered.
//!
//! Such a part (a file that is synced with every write; later enough replicas) asks for it by [`CommitPoint::require`],
//! and says how far it has come by [`CommitPoint::publish`]. Connections hold their replies to writes until then
//! (`net::output::Output::hold`) and are woken, each when its own offset is reached. Where no
//! part requires it, a batch of commands costs one look at [`CommitPoint::is_required`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slot_routing::ReplOffset;

/// The commit point of the log, and the connections that wait for it.
#[derive(Debug, Default)]
pub struct CommitPoint {
    required: AtomicBool,
    /// Changes with `waiting` locked, so that no connection begins to wait for an offset that has just been passed.
    offset: AtomicU64,
    /// By the offset and the client's number.
    waiting: Mutex<BTreeMap<(ReplOffset, u64), Waker>>,
}

impl CommitPoint {
    /// Whether replies to writes wait from now on.
    pub fn require(&self, required: bool) {
        self.required.store(required, Ordering::Release);
    }

    /// The log is committed up to `offset`, which rises as long as the history is the same.
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

    /// Whether replies to writes wait at all.
    #[inline]
    pub fn is_required(&self) -> bool {
        self.required.load(Ordering::Acquire)
    }

    /// Up to where the log is committed.
    pub fn offset(&self) -> ReplOffset {
        ReplOffset(self.offset.load(Ordering::Acquire))
    }

    /// Ready when the log is committed up to `until`. Until then `client` waits, and its task is woken.
    pub fn poll_reached(&self, until: ReplOffset, client: u64, context: &Context<'_>) -> Poll<()> {
        let mut waiting = self.waiting.lock();
        if self.offset() >= until {
            return Poll::Ready(());
        }
        waiting.insert((until, client), context.waker().clone());
        Poll::Pending
    }

    /// `client` waits no longer.
    pub fn forget(&self, client: u64) {
        self.waiting.lock().retain(|(_, waiting), _| *waiting != client);
    }

    /// Whether anybody waits.
    pub fn is_awaited(&self) -> bool {
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
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_woken_once_when_its_offset_is_reached() {
        let point = CommitPoint::default();
        let woken: Vec<Arc<Counter>> = (0..4).map(|_| Arc::default()).collect();
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
        point.forget(3);
        point.publish(ReplOffset(100));
        assert_eq!((counts(), point.offset()), (vec![0, 1, 1, 0], ReplOffset(100)));
        assert!(!point.is_awaited());
    }
}
