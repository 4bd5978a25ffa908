//! A lock on the majority of several independent masters (antirez's Redlock).
//!
//! On each it is a plain `SET key owner NX PX lease`. All are asked at once, each with a short timeout; it is held if
//! a majority granted it and time is left of the lease once what the asking took and the allowance for drifting clocks
//! are subtracted. Otherwise it is released everywhere and tried again after a pause drawn by chance. Renewals need the
//! majority as well.
//!
//! Fencing: each server gives a token, and the largest counts; a majority is told of it before the lock counts as held.
//! Every later majority has a server in common with that one, so its token is larger.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{Claim, Kind};
use crate::names::Names;
use crate::script::{PLAIN_EXTEND, PLAIN_LOCK, PLAIN_RELEASE};
use crate::wakeups::Wake;
use crate::{Error, Guard, Locks, Options, Server};

/// Of each server, unless said otherwise: far below any lease.
const TIMEOUT: Duration = Duration::from_millis(200);

static PLAIN: Kind = Kind {
    acquire: &PLAIN_LOCK,
    extend: &PLAIN_EXTEND,
    release: &PLAIN_RELEASE,
    companions: &[],
    queues: false,
    wake: Wake::One,
};

/// Locks on the majority of several masters that know nothing of each other. Survives the loss of a minority without
/// any failover.
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
    /// Masters at these addresses; no request to one takes longer than 200 milliseconds.
    ///
    /// # Errors
    /// If an address has no known form, or there is none. Servers need not be there yet.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(addresses: &[&str]) -> Result<Self, Error> {
        let servers: Result<Vec<Server>, Error> = addresses.iter().map(|address| address.parse()).collect();
        Self::on(&servers?, TIMEOUT).await
    }

    /// The same; no request to a server takes longer than `timeout`.
    ///
    /// # Errors
    /// If the `redis` crate does not take an address, or there is none.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn on(servers: &[Server], timeout: Duration) -> Result<Self, Error> {
        if servers.is_empty() {
            return Err(Error::NotEnoughNodes { had: 0, wanted: 1 });
        }
        let mut all = Vec::new();
        for server in servers {
            all.push(Locks::on(server, timeout).await?);
        }
        Ok(Self { servers: Arc::new(all), options: Options::default() })
    }

    /// The same servers, with these options.
    #[must_use]
    pub fn with(&self, options: Options) -> Self {
        Self { options, ..self.clone() }
    }

    /// Waits until a majority has granted it, for as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if others held it, [`Error::NotEnoughNodes`] if no majority of the servers answers.
    pub async fn acquire(&self, name: &str) -> Result<Guard, Error> {
        crate::acquire::acquire(self.claim(name)?, &self.options, self.options.wait).await
    }

    /// Asks once.
    ///
    /// # Errors
    /// [`Error::NotEnoughNodes`] if no majority of the servers answers.
    pub async fn try_acquire(&self, name: &str) -> Result<Option<Guard>, Error> {
        match crate::acquire::acquire(self.claim(name)?, &self.options, Duration::ZERO).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::TimedOut(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until all guards that were dropped so far are released.
    pub async fn all_released(&self) {
        self.servers[0].all_released().await;
    }

    fn claim(&self, name: &str) -> Result<Claim, Error> {
        Ok(Claim {
            nodes: self.servers.iter().map(|server| server.node().clone()).collect(),
            quorum: self.servers.len() / 2 + 1,
            kind: &PLAIN,
            names: Names::new(name)?,
            owner: self.servers[0].next_owner(),
            lease: self.options.lease,
            replicas: self.options.replicas,
            limit: None,
        })
    }
}
