//! How something is acquired and kept.

use std::time::Duration;

/// A waiter asks again after this long, woken or not.
const RECHECK: Duration = Duration::from_secs(2);

/// How something is acquired and kept. The same for every kind; [`Locks::with`](crate::Locks::with) sets them for all,
/// and each kind's own `with` for one.
///
/// ```
/// use std::time::Duration;
///
/// let options = redoubt_lock::Options::default()
///     .lease(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .replicas(1);
/// assert!(options.lease < redoubt_lock::Options::default().lease);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// After this long without a renewal the server gives it away: 30 seconds. The lock of a crashed holder stays for
    /// so long at most.
    pub lease: Duration,
    /// Whether the lease is renewed, at a third of it, while a guard lives: yes.
    pub watchdog: bool,
    /// For how long `acquire` waits: without end.
    pub wait: Duration,
    /// An acquisition counts only once so many replicas have it, and so does each renewal: 0.
    pub replicas: usize,
    /// For how long a waiter that no longer asks keeps its place in a fair lock's queue, or a waiting writer keeps
    /// readers out: 5 seconds.
    pub queue_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            watchdog: true,
            wait: Duration::MAX,
            replicas: 0,
            queue_timeout: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// Sets [`Options::lease`].
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Sets [`Options::watchdog`].
    #[must_use]
    pub fn watchdog(self, watchdog: bool) -> Self {
        Self { watchdog, ..self }
    }

    /// Sets [`Options::wait`].
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Sets [`Options::replicas`].
    #[must_use]
    pub fn replicas(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }

    /// Sets [`Options::queue_timeout`].
    #[must_use]
    pub fn queue_timeout(self, queue_timeout: Duration) -> Self {
        Self { queue_timeout, ..self }
    }

    /// After how long a waiter asks again at the latest: often enough to keep its place.
    pub(crate) fn recheck(&self) -> Duration {
        RECHECK.min(self.queue_timeout / 3)
    }
}
