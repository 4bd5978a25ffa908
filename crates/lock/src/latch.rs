//! Count-down latches.

use std::time::{Duration, Instant};

use redis::FromRedisValue;

use crate::link::is_transient;
use crate::names::LockNames;
use crate::script::{LATCH_COUNT, LATCH_REMAINING, LATCH_SET, ScriptCall};
use crate::wakeups::WakeMode;
use crate::{Error, Locks};

/// A waiter reads the count at least this often, in case it misses a message.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// A count-down latch: waiters block until its count reaches zero. A latch has no lease and exists until it is counted
/// down. Requests are retried for as long as [`Options::wait`](crate::Options::wait) says.
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

    /// Creates the latch with this count. Returns `false` if the latch already exists. This can also happen if this
    /// call created the latch but the reply to its first request was lost.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn set(&self, count: u32) -> Result<bool, Error> {
        if count == 0 {
            return Ok(false);
        }
        let names = LockNames::new(&self.name)?;
        let call = ScriptCall {
            script: &LATCH_SET,
            keys: vec![names.lock.clone(), names.derived_key("counted")],
            arguments: vec![count.to_string()],
        };
        Ok(self.call_until_reply::<u8>(&call, deadline_after(self.locks.options().wait)).await? == 1)
    }

    /// Counts down by one and returns the remaining count. A retried request counts only once.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn count_down(&self) -> Result<u32, Error> {
        let event = self.locks.next_owner();
        self.run_count_script(&event, self.locks.options().wait).await
    }

    /// Waits until the count is zero or the latch does not exist.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `wait`.
    pub async fn wait(&self, wait: Duration) -> Result<(), Error> {
        let channel = LockNames::new(&self.name)?.channel;
        let mut woken = self.locks.node().wakeups.subscribe(&channel, WakeMode::All);
        let deadline = deadline_after(wait);
        loop {
            if self.remaining_count(deadline).await? == 0 {
                return Ok(());
            }
            let recheck = Instant::now() + RECHECK_INTERVAL;
            let until = deadline.map_or(recheck, |deadline| deadline.min(recheck));
            // The result is ignored, because the count is read both after a message and after the timeout.
            let _ = tokio::time::timeout_at(until.into(), woken.wait_for_wakeup()).await;
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return if self.remaining_count(deadline).await? == 0 {
                    Ok(())
                } else {
                    Err(Error::TimedOut(wait))
                };
            }
        }
    }

    async fn run_count_script(&self, operation: &str, wait: Duration) -> Result<u32, Error> {
        let names = LockNames::new(&self.name)?;
        let sharded = u8::from(self.locks.node().is_cluster).to_string();
        let call = ScriptCall {
            script: &LATCH_COUNT,
            keys: vec![names.lock.clone(), names.derived_key("counted")],
            arguments: vec![operation.to_owned(), names.channel, sharded],
        };
        self.call_until_reply(&call, deadline_after(wait)).await
    }

    async fn remaining_count(&self, deadline: Option<Instant>) -> Result<u32, Error> {
        let call = ScriptCall {
            script: &LATCH_REMAINING,
            keys: vec![LockNames::new(&self.name)?.lock],
            arguments: vec![],
        };
        self.call_until_reply(&call, deadline).await
    }

    /// Repeats a request until the server replies or the deadline has passed.
    async fn call_until_reply<T: FromRedisValue>(
        &self,
        call: &ScriptCall,
        deadline: Option<Instant>,
    ) -> Result<T, Error> {
        loop {
            match self.locks.node().link.run_script(call).await {
                Ok(reply) => return Ok(redis::from_redis_value(reply).map_err(redis::RedisError::from)?),
                Err(error) => {
                    let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                    if over || !is_transient(&error) {
                        return Err(Error::Connection(error));
                    }
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Returns the end of a wait; `None` if it has no deadline.
fn deadline_after(wait: Duration) -> Option<Instant> {
    Instant::now().checked_add(wait)
}
