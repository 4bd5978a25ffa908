//! Waiting until so many events have happened.

use std::time::{Duration, Instant};

use redis::FromRedisValue;

use crate::link::may_pass;
use crate::names::Names;
use crate::script::{Call, LATCH_COUNT, LATCH_LEFT, LATCH_SET};
use crate::wakeups::Wake;
use crate::{Error, Locks};

/// A waiter looks again after this long, woken or not.
const RECHECK: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(50);

/// A count that goes down to zero, and the waiters for that. It has no lease: it stands until it is counted down.
/// Requests are repeated for as long as [`Options::wait`](crate::Options::wait) says.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(locks: redoubt_lock::Locks) -> Result<(), redoubt_lock::Error> {
/// let started = locks.latch("started");
/// started.set(2).await?;
/// started.count_down().await?;
/// started.count_down().await?;
/// started.wait(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Latch {
    locks: Locks,
    name: String,
}

impl Latch {
    pub(crate) fn new(locks: Locks, name: &str) -> Self {
        Self { locks, name: name.to_owned() }
    }

    /// Sets the count of a latch that does not stand. False if it does; also if it was this call that set it, and the
    /// server's first answer was lost.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn set(&self, count: u32) -> Result<bool, Error> {
        if count == 0 {
            return Ok(false);
        }
        let names = Names::new(&self.name)?;
        let call = Call {
            script: &LATCH_SET,
            keys: vec![names.lock.clone(), names.key("counted")],
            arguments: vec![count.to_string()],
        };
        Ok(self.ask::<u8>(&call, deadline_after(self.locks.options().wait)).await? == 1)
    }

    /// Counts down by one and returns the rest. However often the request must be repeated, it counts once.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn count_down(&self) -> Result<u32, Error> {
        let event = self.locks.next_owner();
        self.count(&event, self.locks.options().wait).await
    }

    /// Waits until the count is nothing, or there is no such latch.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if it is not by then.
    pub async fn wait(&self, wait: Duration) -> Result<(), Error> {
        let channel = Names::new(&self.name)?.channel;
        let mut woken = self.locks.node().wakeups.subscribe(&channel, Wake::All);
        let deadline = deadline_after(wait);
        loop {
            if self.left(deadline).await? == 0 {
                return Ok(());
            }
            let recheck = Instant::now() + RECHECK;
            let until = deadline.map_or(recheck, |deadline| deadline.min(recheck));
            // Either is reason to look again.
            let _ = tokio::time::timeout_at(until.into(), woken.woken()).await;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return if self.left(deadline).await? == 0 { Ok(()) } else { Err(Error::TimedOut(wait)) };
            }
        }
    }

    async fn count(&self, event: &str, wait: Duration) -> Result<u32, Error> {
        let names = Names::new(&self.name)?;
        let sharded = u8::from(self.locks.node().is_cluster).to_string();
        let call = Call {
            script: &LATCH_COUNT,
            keys: vec![names.lock.clone(), names.key("counted")],
            arguments: vec![event.to_owned(), names.channel, sharded],
        };
        self.ask(&call, deadline_after(wait)).await
    }

    async fn left(&self, deadline: Option<Instant>) -> Result<u32, Error> {
        let call = Call { script: &LATCH_LEFT, keys: vec![Names::new(&self.name)?.lock], arguments: vec![] };
        self.ask(&call, deadline).await
    }

    /// Asks until there is an answer.
    async fn ask<T: FromRedisValue>(&self, call: &Call, deadline: Option<Instant>) -> Result<T, Error> {
        loop {
            match self.locks.node().link.run(call).await {
                Ok(reply) => return Ok(redis::from_redis_value(reply).map_err(redis::RedisError::from)?),
                Err(error) => {
                    let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                    if over || !may_pass(&error) {
                        return Err(Error::Connection(error));
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// None: no end.
fn deadline_after(wait: Duration) -> Option<Instant> {
    Instant::now().checked_add(wait)
}
