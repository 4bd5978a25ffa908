//! The commit point: the log offset up to which every required component has stored the changes, so that replies to
//! writes may be sent.
//!
//! A component (for instance the append-only file under `always`) activates the commit point by
//! [`CommitPoint::set_required`] and reports its progress by [`CommitPoint::publish`]. Connections hold replies to
//! writes until the commit point reaches them (`net::output::Output::hold_from`); each connection is woken when its
//! offset is reached. While no component requires the commit point, a batch of commands costs one call of
//! [`CommitPoint::is_required`] and one of [`CommitPoint::history`].
//!
//! Offsets of different histories must not be compared: a master that becomes a replica may lose its last writes, and
//! the offsets of its new history say nothing about them. The commit point therefore numbers the histories of this
//! process. A client whose write belongs to a history that has ended gets no reply; its connection is closed, since
//! nobody knows whether the write remains.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slot_routing::ReplOffset;

/// Numbers the histories of this process. The transition between two histories has a number of its own, because writes
/// during it may or may not be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryNumber(u64);

impl HistoryNumber {
    /// Returns whether this history has not ended by `now`, so that a batch that began in it also ended in it.
    #[must_use]
    pub fn is_unbroken_until(self, now: Self) -> bool {
        self == now && self.0.is_multiple_of(2)
    }
}

/// An offset together with its history, because offsets of different histories must not be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryOffset {
    /// The history to which the offset belongs.
    pub history: HistoryNumber,
    /// The offset in the replication log.
    pub offset: ReplOffset,
}

/// Error of a wait whose history ended before the offset was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node has become a replica since the write")]
pub struct HistoryEnded;

/// The commit point of the log, and the connections waiting for it.
#[derive(Debug, Default)]
pub struct CommitPoint {
    is_required: AtomicBool,
    /// The number of the current history. The history and the offset change only while the waiters are locked, so that
    /// no connection starts to wait for an offset that was just passed.
    history: AtomicU64,
    /// The committed offset of the current history.
    offset: AtomicU64,
    /// The waiters for offsets of the current history, keyed by offset and client id.
    waiters: Mutex<BTreeMap<(ReplOffset, u64), Waker>>,
}

impl CommitPoint {
    /// Sets whether replies to writes must wait.
    pub fn set_required(&self, required: bool) {
        self.is_required.store(required, Ordering::Release);
    }

    /// Publishes that the log is committed up to `at`. The committed offset only increases within one history. Does
    /// nothing if the history of `at` has ended.
    pub fn publish(&self, at: HistoryOffset) {
        let mut waiting = self.waiters.lock();
        if at.history != self.history() {
            return;
        }
        self.offset.store(at.offset.0, Ordering::Release);
        let still_waiting = waiting.split_off(&(ReplOffset(at.offset.0 + 1), 0));
        let reached = std::mem::replace(&mut *waiting, still_waiting);
        drop(waiting);
        for waker in reached.into_values() {
            waker.wake();
        }
    }

    /// Begins to end the current history, before this node becomes a replica. The caller calls
    /// [`CommitPoint::begin_history`] once no new batch can write.
    pub fn end_history(&self) {
        self.change_history(|number| number | 1);
    }

    /// Begins a new history, in which nothing is committed yet.
    pub fn begin_history(&self) {
        self.change_history(|number| (number | 1) + 1);
    }

    fn change_history(&self, next_number: impl FnOnce(u64) -> u64) {
        let mut waiting = self.waiters.lock();
        self.offset.store(0, Ordering::Release);
        self.history.store(next_number(self.history().0), Ordering::Release);
        let ended = std::mem::take(&mut *waiting);
        drop(waiting);
        for waker in ended.into_values() {
            waker.wake();
        }
    }

    /// Returns whether replies to writes must wait for the commit point.
    #[inline]
    pub fn is_required(&self) -> bool {
        self.is_required.load(Ordering::Acquire)
    }

    /// Returns the number of the current history.
    #[inline]
    pub fn history(&self) -> HistoryNumber {
        HistoryNumber(self.history.load(Ordering::Acquire))
    }

    /// Returns the committed offset of the current history.
    pub fn offset(&self) -> ReplOffset {
        ReplOffset(self.offset.load(Ordering::Acquire))
    }

    /// Returns `Ready` with the committed offset once the log is committed up to `until`, or with an error once that
    /// history has ended. Otherwise registers the task of `client` to be woken.
    pub fn poll_reached(
        &self,
        until: HistoryOffset,
        client: u64,
        context: &Context<'_>,
    ) -> Poll<Result<ReplOffset, HistoryEnded>> {
        let mut waiting = self.waiters.lock();
        if until.history != self.history() {
            return Poll::Ready(Err(HistoryEnded));
        }
        let committed = self.offset();
        if committed >= until.offset {
            return Poll::Ready(Ok(committed));
        }
        waiting.insert((until.offset, client), context.waker().clone());
        Poll::Pending
    }

    /// Removes a client that no longer waits.
    pub fn remove_waiter(&self, client: u64) {
        self.waiters.lock().retain(|(_, waiting), _| *waiting != client);
    }

    /// Returns whether any client waits for a commit.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.lock().is_empty()
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
    fn waiters_are_woken_once_when_their_offset_is_committed() {
        let point = CommitPoint::default();
        let woken: Vec<Arc<WakeCounter>> = (0..4).map(|_| Arc::default()).collect();
        let counts = || woken.iter().map(|counter| counter.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let at = |offset| HistoryOffset { history: HistoryNumber(0), offset: ReplOffset(offset) };
        point.publish(at(5));
        let wait = |client: usize, until: u64| {
            let waker = woken[client].clone().into();
            point.poll_reached(at(until), client as u64, &Context::from_waker(&waker))
        };
        assert!(wait(0, 5).is_ready());
        for (client, until) in [(1, 6), (2, 7), (3, 7), (3, 8)] {
            assert!(wait(client, until).is_pending());
            assert!(wait(client, until).is_pending(), "asking twice is waiting once");
        }
        assert_eq!(counts(), [0, 0, 0, 0]);
        point.publish(at(6));
        assert_eq!(counts(), [0, 1, 0, 0]);
        point.remove_waiter(3);
        point.publish(at(100));
        assert_eq!((counts(), point.offset()), (vec![0, 1, 1, 0], ReplOffset(100)));
        assert!(!point.has_waiters());
    }

    /// Offsets of a new history must not release a reply held in an old one, even if they are larger.
    #[test]
    fn waiters_of_an_ended_history_are_woken_with_an_error() {
        let point = CommitPoint::default();
        let counter = Arc::<WakeCounter>::default();
        let waker = counter.clone().into();
        let context = Context::from_waker(&waker);
        let old = HistoryOffset { history: point.history(), offset: ReplOffset(500) };
        point.publish(HistoryOffset { offset: ReplOffset(400), ..old });
        assert!(point.poll_reached(old, 1, &context).is_pending());
        point.end_history();
        assert_eq!((counter.0.load(Ordering::Relaxed), point.has_waiters()), (1, false));
        point.begin_history();
        // The component that wrote the old history reports late.
        point.publish(old);
        assert_eq!(point.offset(), ReplOffset(0));
        point.publish(HistoryOffset { history: point.history(), offset: ReplOffset(10_000) });
        assert_eq!(point.poll_reached(old, 1, &context), Poll::Ready(Err(HistoryEnded)));
        let new = HistoryOffset { history: point.history(), offset: ReplOffset(9_000) };
        assert_eq!(point.poll_reached(new, 1, &context), Poll::Ready(Ok(ReplOffset(10_000))));
    }

    #[test]
    fn batch_is_committed_only_if_its_history_is_unbroken() {
        let point = CommitPoint::default();
        let before = point.history();
        assert!(before.is_unbroken_until(point.history()));
        point.end_history();
        let meanwhile = point.history();
        assert!(!before.is_unbroken_until(meanwhile) && !meanwhile.is_unbroken_until(meanwhile));
        point.begin_history();
        let after = point.history();
        assert!(
            !before.is_unbroken_until(after)
                && !meanwhile.is_unbroken_until(after)
                && after.is_unbroken_until(after)
        );
        // Several histories begin in a row, as when a replica changes its master.
        point.begin_history();
        assert!(
            !after.is_unbroken_until(point.history()) && point.history().is_unbroken_until(point.history())
        );
    }
}
