//! The lock itself, in any order or first come, first served.

use crate::claim::{Claim, Kind};
use crate::script::{EXTEND, FAIR_LOCK, FAIR_RELEASE, LOCK, RELEASE};
use crate::wakeups::Wake;
use crate::{Error, Guard, Locks, Options};

static UNORDERED: Kind = Kind {
    acquire: &LOCK,
    extend: &EXTEND,
    release: &RELEASE,
    companions: &[],
    queues: false,
    wake: Wake::One,
};
static FAIR: Kind = Kind {
    acquire: &FAIR_LOCK,
    extend: &EXTEND,
    release: &FAIR_RELEASE,
    companions: &["queue", "waiters"],
    queues: true,
    wake: Wake::All,
};

/// A lock that one owner holds at a time. On the server it is what Redisson's `RLock` is (a hash of owner to count, the
/// lease as its time, a message on release), so a Redisson client and this one exclude each other on one key.
///
/// Each acquisition is an owner of its own: two tasks exclude each other, also with clones of one `Lock`. To take it
/// again as the same owner, see [`Guard::reenter`].
///
/// A fair lock ([`Locks::fair_lock`]) is given to its waiters in the order in which they came. One that no longer asks,
/// because it died, is skipped after [`Options::queue_timeout`]. An owner that takes the same name by [`Locks::lock`]
/// instead is excluded as ever, and stands in no queue.
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
    fair: bool,
}

impl Lock {
    pub(crate) fn new(locks: Locks, name: &str, fair: bool) -> Self {
        Self { locks, name: name.to_owned(), fair }
    }

    /// The same lock, with these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self.clone() }
    }

    /// Waits until it is held, for as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if others held it all the time; otherwise what kept the servers from granting it.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.claim()?).await
    }

    /// Takes it if no other owner holds it.
    ///
    /// # Errors
    /// If the servers cannot say.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.claim()?).await
    }

    fn claim(&self) -> Result<Claim, Error> {
        self.locks.claim(if self.fair { &FAIR } else { &UNORDERED }, &self.name, None)
    }

    /// By what several locks are put in order; see [`MultiLock`](crate::MultiLock).
    pub(crate) fn place(&self) -> (&str, &str) {
        (&self.locks.node().address, &self.name)
    }

    pub(crate) fn options(&self) -> &Options {
        self.locks.options()
    }
}
