//! Several locks that are acquired together.

use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};

use crate::{Error, Guard, Lock, LossReason};

/// Several locks held together, on the same or on different servers. All owners acquire the locks in the same order, so
/// owners that want the same locks do not deadlock. If one lock cannot be acquired, the others are released.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(locks: redoubt_lock::Locks) -> Result<(), redoubt_lock::Error> {
/// let accounts = redoubt_lock::MultiLock::new([locks.lock("account:1"), locks.lock("account:2")]);
/// let guard = accounts.acquire(Duration::from_secs(5)).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock {
    locks: Vec<Lock>,
}

impl MultiLock {
    /// Combines these locks. Duplicates are dropped. Each lock keeps its own options, except for
    /// [`Options::wait`](crate::Options::wait).
    #[must_use]
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let mut locks: Vec<Lock> = locks.into_iter().collect();
        locks.sort_by(|one, other| one.sort_key().cmp(&other.sort_key()));
        locks.dedup_by(|one, other| one.sort_key() == other.sort_key());
        Self { locks }
    }

    /// Acquires all locks, waiting at most `wait` in total.
    ///
    /// # Errors
    /// The error of the first lock that cannot be acquired. In this case no lock is held afterwards.
    pub async fn acquire(&self, wait: Duration) -> Result<MultiGuard, Error> {
        let began = Instant::now();
        let mut guards = Vec::new();
        for lock in &self.locks {
            let left = wait.saturating_sub(began.elapsed());
            match lock.with(lock.options().clone().wait(left)).acquire().await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    // Errors are ignored, because a lock that was lost in the meantime needs no release.
                    let _ = MultiGuard { guards }.release().await;
                    return Err(if matches!(error, Error::TimedOut(_)) {
                        Error::TimedOut(wait)
                    } else {
                        error
                    });
                }
            }
        }
        // The first locks may have been lost during the wait for the last one.
        let guard = MultiGuard { guards };
        if guard.is_held() {
            return Ok(guard);
        }
        guard.release().await.and(Err(Error::Lost(LossReason::Expired)))
    }
}

/// Several held locks. Dropping the guard releases them in the background.
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// Returns the guards in order of acquisition, for instance for their fencing tokens.
    #[must_use]
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Returns whether all locks are still held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Waits until one of the locks is lost, and returns why.
    pub async fn lost(&self) -> LossReason {
        if self.guards.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.guards.iter().map(|guard| Box::pin(guard.lost()))).await.0
    }

    /// Releases all locks, even if some of them have been lost.
    ///
    /// # Errors
    /// The error of the first lock that was no longer held.
    pub async fn release(self) -> Result<(), Error> {
        join_all(self.guards.into_iter().map(Guard::release)).await.into_iter().collect()
    }
}
