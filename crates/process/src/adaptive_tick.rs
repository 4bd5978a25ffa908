//! The tick that drives a server's periodic work.
//!
//! All periodic work (the cron of the housekeeping, save points, rewrites, checks of replicas) runs on the same ticks,
//! ten per second, so that the control thread wakes only once for all of it. Without requests the server is idle and
//! ticks once per second, or at once when input arrives. This keeps idle nodes cheap on hosts with dozens of them.
//!
//! Threads that receive input call [`Pulse::stir`], which costs one load unless the server is idle. A call that races
//! with the start of an idle period can be missed; that tick is then late by up to a second, once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// Time between ticks while the server is busy.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Time between ticks while the server is idle.
const AT_REST: Duration = Duration::from_secs(1);

/// The tick of one server.
#[derive(Debug, Default)]
pub struct Pulse {
    at_rest: AtomicBool,
    stirred: Notify,
    beats: Notify,
    /// Threads that sleep while the server is idle.
    sleepers: (Mutex<()>, Condvar),
}

impl Pulse {
    /// Reports input, which may mean work for periodic tasks.
    #[inline]
    pub fn stir(&self) {
        if self.at_rest.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.at_rest.swap(false, Ordering::AcqRel) {
            self.stirred.notify_one();
            drop(self.sleepers.0.lock());
            self.sleepers.1.notify_all();
        }
    }

    /// Blocks the calling thread while the server is idle, for at most a second.
    pub fn sleep_at_rest(&self) {
        let mut sleepers = self.sleepers.0.lock();
        if self.is_at_rest() {
            self.sleepers.1.wait_for(&mut sleepers, AT_REST);
        }
    }

    /// Whether the server is idle.
    pub fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Relaxed)
    }

    /// Waits for the next tick. A tick is missed by tasks that are not waiting when it fires.
    pub async fn beat(&self) {
        self.beats.notified().await;
    }

    /// Sleeps until one period after `last`, then wakes the waiting tasks.
    pub async fn next(&self, last: Instant) {
        sleep_until(last + PERIOD).await;
        self.beats.notify_waiters();
    }

    /// Like [`Self::next`] for an idle server. `is_quiet` is called after the idle flag is set, so input that arrives
    /// later is noticed.
    pub async fn next_at_rest(&self, last: Instant, is_quiet: impl FnOnce() -> bool) {
        self.at_rest.store(true, Ordering::SeqCst);
        if is_quiet() {
            // A notification from an earlier idle period may be left over. It only causes one extra tick.
            let _ = timeout(AT_REST, self.stirred.notified()).await;
            self.at_rest.store(false, Ordering::Relaxed);
            self.beats.notify_waiters();
        } else {
            self.at_rest.store(false, Ordering::Relaxed);
            self.next(last).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_server_at_rest_beats_seldom_and_at_once_when_something_comes() {
        let (pulse, begun) = (Arc::new(Pulse::default()), Instant::now());
        let waits = tokio::spawn({
            let pulse = pulse.clone();
            async move { pulse.beat().await }
        });
        let client = pulse.clone();
        let asks = tokio::spawn(async move {
            while !client.is_at_rest() {
                tokio::task::yield_now().await;
            }
            client.stir();
        });
        pulse.next_at_rest(begun, || true).await;
        assert!(begun.elapsed() < AT_REST && !pulse.is_at_rest());
        asks.await.unwrap();
        waits.await.unwrap();

        let begun = Instant::now();
        pulse.next_at_rest(begun, || true).await;
        assert!(begun.elapsed() >= AT_REST, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_comes_before_the_rest_begins_keeps_it_from_beginning() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        pulse.next_at_rest(begun, || false).await;
        assert!((PERIOD..AT_REST).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert!(!pulse.is_at_rest());
    }
}
