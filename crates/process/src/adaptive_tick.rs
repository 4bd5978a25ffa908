//! The tick that drives a server's periodic work.
//!
//! All periodic work (the housekeeping cron, save points, rewrites, checks of replicas) runs on the same ticks, ten per
//! second, so that the control thread wakes only once for all of it. A server without requests is idle and ticks once
//! per second, or at once when input arrives. This keeps idle nodes cheap on hosts with dozens of them.
//!
//! Threads that receive input call [`AdaptiveTick::notify_input`], which costs one load unless the server is idle. A
//! call that races with the start of an idle period can be missed; the next tick is then late by up to a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

/// Time between ticks while the server is busy.
pub const TICK_PERIOD: Duration = Duration::from_millis(100);
/// Time between ticks while the server is idle.
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// The tick of one server, which slows down while the server is idle.
#[derive(Debug, Default)]
pub struct AdaptiveTick {
    is_idle: AtomicBool,
    wake_notify: Notify,
    tick_notify: Notify,
    /// Wakes threads in [`AdaptiveTick::sleep_while_idle`].
    sleepers: (Mutex<()>, Condvar),
}

impl AdaptiveTick {
    /// Reports that a thread has received input, which may mean work for periodic tasks.
    #[inline]
    pub fn notify_input(&self) {
        if self.is_idle.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.is_idle.swap(false, Ordering::AcqRel) {
            self.wake_notify.notify_one();
            drop(self.sleepers.0.lock());
            self.sleepers.1.notify_all();
        }
    }

    /// Blocks the calling thread while the server is idle, for at most a second.
    pub fn sleep_while_idle(&self) {
        let mut sleepers = self.sleepers.0.lock();
        if self.is_idle() {
            self.sleepers.1.wait_for(&mut sleepers, IDLE_PERIOD);
        }
    }

    /// Returns whether the server is idle and ticks slowly.
    pub fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed)
    }

    /// Waits for the next tick. A task that is not waiting when the tick fires misses it.
    pub async fn wait_for_tick(&self) {
        self.tick_notify.notified().await;
    }

    /// Sleeps until one period after `last_tick`, then wakes the waiting tasks.
    pub async fn drive_tick(&self, last_tick: Instant) {
        sleep_until(last_tick + TICK_PERIOD).await;
        self.tick_notify.notify_waiters();
    }

    /// Like [`Self::drive_tick`] for an idle server. `is_quiet` is called after the idle flag is set, so input that
    /// arrives later is noticed.
    pub async fn drive_idle_tick(&self, last_tick: Instant, is_quiet: impl FnOnce() -> bool) {
        self.is_idle.store(true, Ordering::SeqCst);
        if is_quiet() {
            // A notification from an earlier idle period may be left over. Its only effect is one extra tick.
            let _ = timeout(IDLE_PERIOD, self.wake_notify.notified()).await;
            self.is_idle.store(false, Ordering::Relaxed);
            self.tick_notify.notify_waiters();
        } else {
            self.is_idle.store(false, Ordering::Relaxed);
            self.drive_tick(last_tick).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn idle_server_ticks_slowly_but_wakes_on_input() {
        let (tick, begun) = (Arc::new(AdaptiveTick::default()), Instant::now());
        let waits = tokio::spawn({
            let tick = tick.clone();
            async move { tick.wait_for_tick().await }
        });
        let client = tick.clone();
        let asks = tokio::spawn(async move {
            while !client.is_idle() {
                tokio::task::yield_now().await;
            }
            client.notify_input();
        });
        tick.drive_idle_tick(begun, || true).await;
        assert!(begun.elapsed() < IDLE_PERIOD && !tick.is_idle());
        asks.await.unwrap();
        waits.await.unwrap();

        let begun = Instant::now();
        tick.drive_idle_tick(begun, || true).await;
        assert!(begun.elapsed() >= IDLE_PERIOD, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn input_prevents_the_idle_period() {
        let (tick, begun) = (AdaptiveTick::default(), Instant::now());
        tick.drive_idle_tick(begun, || false).await;
        assert!((TICK_PERIOD..IDLE_PERIOD).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert!(!tick.is_idle());
    }
}
