//! At most so many at a time.

use crate::claim::Kind;
use crate::script::{PERMIT, PERMIT_EXTEND, PERMIT_RELEASE};
use crate::wakeups::Wake;
use crate::{Error, Guard, Locks, Options};

static PERMITS: Kind = Kind {
    acquire: &PERMIT,
    extend: &PERMIT_EXTEND,
    release: &PERMIT_RELEASE,
    companions: &[],
    queues: false,
    wake: Wake::One,
};

/// Permits, of which at most a number are out. Each has a lease: what a crashed holder had is back when that is over.
/// The limit is the asker's: all should ask with the same.
///
/// ```no_run
/// # async fn example(locks: redoubt_lock::Locks) -> Result<(), redoubt_lock::Error> {
/// let printers = locks.semaphore("printers", 3);
/// let permit = printers.acquire().await?;
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore {
    locks: Locks,
    name: String,
    limit: u32,
}

impl Semaphore {
    pub(crate) fn new(locks: Locks, name: &str, limit: u32) -> Self {
        Self { locks, name: name.to_owned(), limit }
    }

    /// The same semaphore, with these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self.clone() }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.locks.claim(&PERMITS, &self.name, Some(self.limit))?).await
    }

    /// Takes a permit if there is one.
    ///
    /// # Errors
    /// If the servers cannot say.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.locks.try_acquire(self.locks.claim(&PERMITS, &self.name, Some(self.limit))?).await
    }
}
