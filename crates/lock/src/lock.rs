//! Exclusive locks, granted in any order or first come, first served.

use crate::claim::{LockClaim, LockKind};
use crate::script::{EXTEND, FAIR_LOCK, FAIR_RELEASE, LOCK, RELEASE};
use crate::wakeups::WakeMode;
use crate::{Error, Guard, Locks, Options};

static UNORDERED_LOCK_KIND: LockKind = LockKind {
    acquire: &LOCK,
    extend: &EXTEND,
    release: &RELEASE,
    companion_keys: &[],
    has_queue: false,
    wake_mode: WakeMode::One,
};
static FAIR_LOCK_KIND: LockKind = LockKind {
    acquire: &FAIR_LOCK,
    extend: &EXTEND,
    release: &FAIR_RELEASE,
    companion_keys: &["queue", "waiters"],
    has_queue: true,
    wake_mode: WakeMode::All,
};

/// A lock that one owner holds at a time. It is stored like Redisson's `RLock` (a hash of owner to count, the lease as
/// its expiry, a message on release), so Redisson clients and this crate exclude each other on the same key.
///
/// Each acquisition is a separate owner: two tasks exclude each other even with clones of one `Lock`. To acquire it
/// again as the same owner, see [`Guard::reenter`].
///
/// A fair lock ([`Locks::fair_lock`]) is granted in order of arrival. A waiter that has died is skipped after
/// [`Options::queue_timeout`]. Owners that use [`Locks::lock`] with the same name are excluded as well, but do not
/// queue.
///
/// ```no_run
/// use std::time::Duration;
/// use redoubt_lock::{Error, Options};
///
/// # async fn example(locks: redoubt_lock::Locks) -> Result<(), Error> {
/// let lock = locks.lock("orders").with(Options::default().wait(Duration::from_secs(3)));
/// match lock.acquire().await {
///     Ok(guard) => guard.release().await?,
///     Err(Error::TimedOut(_)) => println!("somebody else has it"),
///     Err(error) => return Err(error),
/// }
/// if let Some(guard) = lock.try_acquire().await? {
///     // Dropping it releases, in the background.
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Lock {
    locks: Locks,
    name: String,
    is_fair: bool,
}

impl Lock {
    pub(crate) fn new(locks: Locks, name: &str, is_fair: bool) -> Self {
        Self { locks, name: name.to_owned(), is_fair }
    }

    /// Returns a lock with the same name and these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self.clone() }
    }

    /// Acquires the lock, and waits as long as [`Options::wait`] says.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if other owners held the lock during the whole wait. Other errors say why the servers did
    /// not grant it.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.create_claim()?).await
    }

    /// Acquires the lock if no other owner holds it.
    ///
    /// # Errors
    /// The servers did not give a definite reply.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.create_claim()?).await
    }

    fn create_claim(&self) -> Result<LockClaim, Error> {
        self.locks.create_claim(
            if self.is_fair { &FAIR_LOCK_KIND } else { &UNORDERED_LOCK_KIND },
            &self.name,
            None,
        )
    }

    /// Returns the sort key for acquiring several locks in a fixed order; see [`MultiLock`](crate::MultiLock).
    pub(crate) fn sort_key(&self) -> (&str, &str) {
        (&self.locks.node().address, &self.name)
    }

    pub(crate) fn options(&self) -> &Options {
        self.locks.options()
    }
}
