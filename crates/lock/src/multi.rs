//! Several locks at once.

use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};

use crate::{Error, Guard, Lock, Loss};

/// Several locks that are held together, of one server or of different ones. They are acquired one after another in an
/// order that is the same for all owners, so two that want the same locks do not wait for each other in a circle; the
/// acquired ones are released if one cannot be had.
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
    /// These locks, each once. They keep their own options, except for how long to wait.
    #[must_use]
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Self {
        let mut locks: Vec<Lock> = locks.into_iter().collect();
        locks.sort_by(|one, other| one.place().cmp(&other.place()));
        locks.dedup_by(|one, other| one.place() == other.place());
        Self { locks }
    }

    /// Waits until all are held, for as long as `wait` in all.
    ///
    /// # Errors
    /// That of the first that cannot be had; then none is held.
    pub async fn acquire(&self, wait: Duration) -> Result<MultiGuard, Error> {
        let began = Instant::now();
        let mut guards = Vec::new();
        for lock in &self.locks {
            let left = wait.saturating_sub(began.elapsed());
            match lock.with(lock.options().clone().wait(left)).acquire().await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    // A guard that was lost meanwhile need not be released, so errors are ignored.
                    let _ = MultiGuard { guards }.release().await;
                    return Err(if matches!(error, Error::TimedOut(_)) {
                        Error::TimedOut(wait)
                    } else {
                        error
                    });
                }
            }
        }
        // The first ones may have been lost while the last one was waited for.
        let guard = MultiGuard { guards };
        if guard.is_held() {
            return Ok(guard);
        }
        guard.release().await.and(Err(Error::Lost(Loss::Expired)))
    }
}

/// Several locks that are held. Dropping it releases them in the background.
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// The guards, in the order in which they were acquired; for their tokens.
    #[must_use]
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether all are held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Comes back when the first of them is lost.
    pub async fn lost(&self) -> Loss {
        if self.guards.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.guards.iter().map(|guard| Box::pin(guard.lost()))).await.0
    }

    /// Releases all.
    ///
    /// # Errors
    /// The first, if some were no longer held; the others are released nonetheless.
    pub async fn release(self) -> Result<(), Error> {
        join_all(self.guards.into_iter().map(Guard::release)).await.into_iter().collect()
    }
}
