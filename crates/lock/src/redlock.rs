//! A lock on a majority of independent masters (antirez's Redlock algorithm).
//!
//! On each master the lock is a plain `SET key owner NX PX lease`. All masters are queried concurrently with a short
//! timeout. The lock is held if a majority granted it and some of the lease remains after subtracting the elapsed time
//! and the clock drift allowance. Otherwise the lock is released on all masters and retried after a random delay. A
//! renewal needs a majority as well.
//!
//! Each master returns a fencing token. The largest token is used, and a majority records it before the lock counts as
//! held. Every later majority contains one of these masters, so a later acquisition gets a larger token.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{LockClaim, LockKind};
use crate::names::LockNames;
use crate::script::{PLAIN_EXTEND, PLAIN_LOCK, PLAIN_RELEASE};
use crate::wakeups::WakeMode;
use crate::{Error, Guard, Locks, Options, Server};

/// The default timeout of a request. It is much shorter than any lease.
const SERVER_TIMEOUT: Duration = Duration::from_millis(200);

static PLAIN_LOCK_KIND: LockKind = LockKind {
    acquire: &PLAIN_LOCK,
    extend: &PLAIN_EXTEND,
    release: &PLAIN_RELEASE,
    companion_keys: &[],
    has_queue: false,
    wake_mode: WakeMode::One,
};

/// Locks on a majority of independent masters. They survive the loss of a minority without a failover.
///
/// ```no_run
/// # async fn example() -> Result<(), redoubt_lock::Error> {
/// let redlock = redoubt_lock::Redlock::connect(&[
///     "redis://10.0.0.1:6379",
///     "redis://10.0.0.2:6379",
///     "redis://10.0.0.3:6379",
/// ])
/// .await?;
/// let guard = redlock.acquire("orders").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Redlock {
    servers: Arc<Vec<Locks>>,
    options: Options,
}

impl Redlock {
    /// Connects to the masters at these addresses, with a timeout of 200 milliseconds per request.
    ///
    /// # Errors
    /// An address is malformed, or the list is empty. Servers need not be reachable yet.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(addresses: &[&str]) -> Result<Self, Error> {
        let servers: Result<Vec<Server>, Error> = addresses.iter().map(|address| address.parse()).collect();
        Self::connect_to(&servers?, SERVER_TIMEOUT).await
    }

    /// Like [`Self::connect`], with a timeout for each request.
    ///
    /// # Errors
    /// The `redis` crate rejects an address, or the list is empty.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect_to(servers: &[Server], timeout: Duration) -> Result<Self, Error> {
        if servers.is_empty() {
            return Err(Error::NotEnoughNodes { available: 0, required: 1 });
        }
        let mut all = Vec::new();
        for server in servers {
            all.push(Locks::connect_to(server, timeout).await?);
        }
        Ok(Self { servers: Arc::new(all), options: Options::default() })
    }

    /// Returns a handle on the same masters with these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { options, ..self.clone() }
    }

    /// Acquires the lock, waiting as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if other owners held it, [`Error::NotEnoughNodes`] if no majority of the servers replies.
    pub async fn acquire(&self, name: &str) -> Result<Guard, Error> {
        crate::acquire::acquire(self.create_claim(name)?, &self.options, self.options.wait).await
    }

    /// Makes one attempt to acquire the lock.
    ///
    /// # Errors
    /// [`Error::NotEnoughNodes`] if no majority of the servers replies.
    pub async fn try_acquire(&self, name: &str) -> Result<Option<Guard>, Error> {
        match crate::acquire::acquire(self.create_claim(name)?, &self.options, Duration::ZERO).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::TimedOut(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until all guards dropped so far are released. Call it before the runtime ends.
    pub async fn wait_for_releases(&self) {
        self.servers[0].wait_for_releases().await;
    }

    fn create_claim(&self, name: &str) -> Result<LockClaim, Error> {
        Ok(LockClaim {
            servers: self.servers.iter().map(|server| server.node().clone()).collect(),
            quorum: self.servers.len() / 2 + 1,
            kind: &PLAIN_LOCK_KIND,
            names: LockNames::new(name)?,
            owner: self.servers[0].next_owner(),
            lease: self.options.lease,
            required_replicas: self.options.replicas,
            permit_limit: None,
        })
    }
}
