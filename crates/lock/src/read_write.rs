//! Many readers or one writer.

use crate::claim::Kind;
use crate::script::{EXTEND, READ_EXTEND, READ_LOCK, READ_RELEASE, WRITE_LOCK, WRITE_RELEASE};
use crate::wakeups::Wake;
use crate::{Error, Guard, Locks, Options};

const COMPANIONS: &[&str] = &["readers", "writers"];

static READ: Kind = Kind {
    acquire: &READ_LOCK,
    extend: &READ_EXTEND,
    release: &READ_RELEASE,
    companions: COMPANIONS,
    queues: false,
    wake: Wake::All,
};
static WRITE: Kind = Kind {
    acquire: &WRITE_LOCK,
    extend: &EXTEND,
    release: &WRITE_RELEASE,
    companions: COMPANIONS,
    queues: true,
    wake: Wake::All,
};

/// A lock for many readers or one writer. Each reader has a lease of its own, so one that dies holds up a writer for
/// its own lease at most. While a writer waits, no new reader is let in. A reader does not become a writer, nor the
/// other way round: release first.
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

    /// The same lock, with these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self.clone() }
    }

    /// Waits until it may read.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn read(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.locks.claim(&READ, &self.name, None)?).await
    }

    /// Reads if no writer holds it or waits.
    ///
    /// # Errors
    /// If the servers cannot say.
    pub async fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.locks.claim(&READ, &self.name, None)?).await
    }

    /// Waits until no other owner reads or writes.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn write(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.locks.claim(&WRITE, &self.name, None)?).await
    }

    /// Writes if no other owner reads or writes.
    ///
    /// # Errors
    /// If the servers cannot say.
    pub async fn try_write(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.locks.claim(&WRITE, &self.name, None)?).await
    }
}
