//! Semaphores, which limit the number of concurrent holders.

use crate::claim::LockKind;
use crate::script::{PERMIT, PERMIT_EXTEND, PERMIT_RELEASE};
use crate::wakeups::WakeMode;
use crate::{Error, Guard, Locks, Options};

static PERMIT_LOCK_KIND: LockKind = LockKind {
    acquire: &PERMIT,
    extend: &PERMIT_EXTEND,
    release: &PERMIT_RELEASE,
    companion_keys: &[],
    has_queue: false,
    wake_mode: WakeMode::One,
};

/// A semaphore with a limited number of permits. Each permit has a lease, so a crashed holder's permit becomes free
/// when the lease ends. The limit is passed with each request; all clients should use the same one.
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

    /// Returns a semaphore with the same name and limit, and these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { locks: self.locks.with(options), ..self.clone() }
    }

    /// Acquires a permit, and waits as long as the options say.
    ///
    /// # Errors
    /// As for [`Lock::acquire`](crate::Lock::acquire).
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.locks.acquire(self.locks.create_claim(&PERMIT_LOCK_KIND, &self.name, Some(self.limit))?).await
    }

    /// Acquires a permit. `None` if no permit is free.
    ///
    /// # Errors
    /// The servers did not give a definite reply.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.locks
            .try_acquire(self.locks.create_claim(&PERMIT_LOCK_KIND, &self.name, Some(self.limit))?)
            .await
    }
}
