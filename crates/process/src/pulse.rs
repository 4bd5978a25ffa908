//! The beat at which a server looks after itself.
//!
//! All that has to look around now and then (the housekeeping's cron, save points, rewrites, the watch over replicas)
//! does it at the same beats, ten a second, so the control thread is woken once for all of them. A server that had no
//! requests lately is at rest: it beats once a second, and at once when something comes. So an idle node among dozens
//! costs next to nothing.
//!
//! A thread that takes something in says so ([`Pulse::stir`]): one load, unless the server is at rest. A call that
//! crosses with the beginning of a rest can be missed; then the beat is a second late, once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// The time between two beats.
pub const PERIOD: Duration = Duration::from_millis(100);
/// The same while the server is at rest.
const AT_REST: Duration = Duration::from_secs(1);

/// One server's beat.
#[derive(Debug, Default)]
pub struct Pulse {
    at_rest: AtomicBool,
    stirred: Notify,
    beats: Notify,
    /// Threads that sleep while the server is at rest.
    sleepers: (Mutex<()>, Condvar),
}

impl Pulse {
    /// Something has come that there may be work after.
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

    /// Has the calling thread sleep while the server is at rest, a second at most.
    pub fn sleep_at_rest(&self) {
        let mut sleepers = self.sleepers.0.lock();
        if self.is_at_rest() {
            self.sleepers.1.wait_for(&mut sleepers, AT_REST);
        }
    }

    /// Whether nothing has come for long.
    pub fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Relaxed)
    }

    /// Returns at the next beat. A task that does not wait when it comes waits for the one after it.
    pub async fn beat(&self) {
        self.beats.notified().await;
    }

    /// Waits for the time of the next beat, the last of which was at `last`, and wakes the tasks that wait for it.
    pub async fn next(&self, last: Instant) {
        sleep_until(last + PERIOD).await;
        self.beats.notify_waiters();
    }

    /// The same while there is nothing to do: `is_quiet` is asked once every thread that takes something in would stir.
    pub async fn next_at_rest(&self, last: Instant, is_quiet: impl FnOnce() -> bool) {
        self.at_rest.store(true, Ordering::SeqCst);
        if is_quiet() {
            // A word of an earlier rest may still be there: a beat too many.
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
