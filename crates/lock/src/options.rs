//! Options for acquiring and holding locks.

use std::time::Duration;

/// A waiter retries at least this often, in case it misses a message.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Options for acquiring and holding locks of every kind. [`Locks::with`](crate::Locks::with) sets them for all locks,
/// the `with` of each kind for one.
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
    /// The server releases the lock after this time without renewal. This limits how long the lock of a crashed holder
    /// remains. Default: 30 seconds.
    pub lease: Duration,
    /// Whether the lease is renewed while a guard lives, whenever a third of the lease has passed. Default: true.
    pub watchdog: bool,
    /// How long `acquire` waits. Default: forever.
    pub wait: Duration,
    /// Number of replicas that must confirm each acquisition and renewal. Default: 0.
    pub replicas: usize,
    /// How long a waiter that has died keeps its position in the queue of a fair lock, and how long a waiting writer
    /// that has died blocks readers. Default: 5 seconds.
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
    /// Sets [`Options::lease`], the time without renewal after which the server releases the lock.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Sets [`Options::watchdog`], which renews the lease while a guard lives.
    #[must_use]
    pub fn watchdog(self, watchdog: bool) -> Self {
        Self { watchdog, ..self }
    }

    /// Sets [`Options::wait`], how long `acquire` waits.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Sets [`Options::replicas`], the number of replicas that must confirm.
    #[must_use]
    pub fn replicas(self, replicas: usize) -> Self {
        Self { replicas, ..self }
    }

    /// Sets [`Options::queue_timeout`], how long a waiter that has died keeps its position.
    #[must_use]
    pub fn queue_timeout(self, queue_timeout: Duration) -> Self {
        Self { queue_timeout, ..self }
    }

    /// Returns the maximum delay between two attempts of a waiter. It is short enough that the waiter's queue entry
    /// does not expire.
    pub(crate) fn recheck_interval(&self) -> Duration {
        RECHECK_INTERVAL.min(self.queue_timeout / 3)
    }
}
