//! Read-write locks.

use crate::claim::LockKind;
use crate::script::{EXTEND, READ_EXTEND, READ_LOCK, READ_RELEASE, WRITE_LOCK, WRITE_RELEASE};
use crate::wakeups::WakeMode;
use crate::{Error, Guard, Locks, Options};

const READ_WRITE_KEYS: &[&str] = &["readers", "writers"];

static READ_LOCK_KIND: LockKind = LockKind {
    acquire: &READ_LOCK,
    extend: &READ_EXTEND,
    release: &READ_RELEASE,
    companion_keys: READ_WRITE_KEYS,
    has_queue: false,
    wake_mode: WakeMode::All,
};
static WRITE_LOCK_KIND: LockKind = LockKind {
    acquire: &WRITE_LOCK,
    extend: &EXTEND,
    release: &WRITE_RELEASE,
    companion_keys: READ_WRITE_KEYS,
    has_queue: true,
    wake_mode: WakeMode::All,
};

/// A lock for many readers or one writer. Each reader has its own lease, so a crashed reader delays writers by at most
/// its lease. While a writer waits, no new readers are admitted. Upgrading and downgrading are not supported: release
/// first.
///
/// ```no_run
/// # async fn example(locks: redoubt_lock::Locks) -> Result<(), redoubt_lock::Error> {
/// let prices = locks.read_write("prices");
/// let reading = prices.read().await?;
/// reading.release().await?;
/// let writing = prices.write().await?;
/// writing.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReadWriteLock {
    locks: Locks,
    name: String,
}

impl ReadWriteLock {
    pub(crate) fn new(locks: Locks, name: &str) -> Self {
        Self { locks, name: name.to_owned() }
    }

    /// Returns a lock with the same name and these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self.clone() }
    }

    /// Acquires the lock for reading, and waits as long as the options say.
    ///
    /// # Errors
    /// As for [`Lock::acquire`](crate::Lock::acquire).
    pub async fn read(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.locks.create_claim(&READ_LOCK_KIND, &self.name, None)?).await
    }

    /// Acquires the lock for reading if no writer holds it or waits.
    ///
    /// # Errors
    /// The servers did not give a definite reply.
    pub async fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.locks.create_claim(&READ_LOCK_KIND, &self.name, None)?).await
    }

    /// Acquires the lock for writing, and waits as long as the options say.
    ///
    /// # Errors
    /// As for [`Lock::acquire`](crate::Lock::acquire).
    pub async fn write(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.locks.create_claim(&WRITE_LOCK_KIND, &self.name, None)?).await
    }

    /// Acquires the lock for writing. `None` if another owner reads or writes.
    ///
    /// # Errors
    /// The servers did not give a definite reply.
    pub async fn try_write(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.locks.create_claim(&WRITE_LOCK_KIND, &self.name, None)?).await
    }
}
