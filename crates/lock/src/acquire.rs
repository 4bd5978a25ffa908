//! Acquires a lock, waiting if necessary.
//!
//! A waiter retries when a message announces the release of the lock, when the holder's lease ends, or after some time.
//! If servers are unreachable, requests to them are also retried until the wait is over. A warning is logged once,
//! because the wait may be endless. An acquisition that fails, or is dropped while waiting, releases the lock, because
//! the server may have granted the lock although its reply was lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::claim::{AcquireAttempt, LockClaim};
use crate::lease::{HeldLease, RequestOutcome, lease_end};
use crate::link::is_transient;
use crate::{Error, Guard, LossReason, Options};

/// Delay between attempts in milliseconds, for Redlock and for unreachable servers. The delay is random, so that
/// colliding owners do not collide again.
const RETRY_DELAY_MS: std::ops::Range<u64> = 20..200;

/// How long a failing acquisition waits for its cleanup on the server. After that time the cleanup continues in the
/// background.
const CLEANUP_TIMEOUT: Duration = Duration::from_millis(100);

/// An acquisition in progress. If it is dropped before it has succeeded or failed, the lock is released in the
/// background.
struct PendingAcquisition {
    claim: Arc<LockClaim>,
    is_settled: bool,
}

impl Drop for PendingAcquisition {
    fn drop(&mut self) {
        if !self.is_settled {
            self.claim.clone().release_in_background();
        }
    }
}

/// Acquires the lock within `wait`. If `wait` is zero, makes one attempt.
pub(crate) async fn acquire(claim: LockClaim, options: &Options, timeout: Duration) -> Result<Guard, Error> {
    let mut pending = PendingAcquisition { claim: Arc::new(claim), is_settled: false };
    let result = acquire_until(&mut pending, options, timeout).await;
    let claim = &pending.claim;
    let needs_cleanup = match &result {
        Ok(_) => false,
        // The last reply was that another owner holds the lock, so at most a queue entry is left on the server.
        Err(Error::TimedOut(_)) => claim.kind.has_queue && !timeout.is_zero(),
        Err(_) => true,
    };
    let settled = !needs_cleanup
        || matches!(
            tokio::time::timeout(CLEANUP_TIMEOUT, claim.release()).await,
            Ok(RequestOutcome::Done | RequestOutcome::NotHeld)
        );
    pending.is_settled = settled;
    result
}

async fn acquire_until(
    pending_acquisition: &mut PendingAcquisition,
    options: &Options,
    timeout: Duration,
) -> Result<Guard, Error> {
    let began = Instant::now();
    // `None` means that there is no deadline.
    let deadline = began.checked_add(timeout);
    let queue_timeout = if timeout.is_zero() { Duration::ZERO } else { options.queue_timeout };
    let mut subscription = None;
    let mut attempts = 0;
    let mut warned = false;
    loop {
        if attempts > 0 && pending_acquisition.claim.servers.len() > 1 {
            pending_acquisition.claim = Arc::new(pending_acquisition.claim.with_new_owner(attempts));
        }
        attempts += 1;
        let claim = &pending_acquisition.claim;
        let sent = Instant::now();
        let mut pause = Duration::from_millis(random_in_range(RETRY_DELAY_MS));
        let error = match claim.acquire(queue_timeout).await {
            AcquireAttempt::Acquired(token) if Instant::now() < lease_end(sent, claim.lease) => {
                let life = HeldLease::new(sent, claim.lease, options.watchdog);
                return Ok(Guard::start(claim.clone(), token, life));
            }
            // The lease has ended before the reply arrived.
            AcquireAttempt::Acquired(_) => {
                claim.release().await;
                Error::Lost(LossReason::Expired)
            }
            AcquireAttempt::Busy(left) => {
                if claim.servers.len() == 1 {
                    pause = left.max(Duration::from_millis(1)).min(options.recheck_interval());
                }
                Error::TimedOut(timeout)
            }
            AcquireAttempt::TooFewServers { available: had, required: wanted } => {
                Error::NotEnoughNodes { available: had, required: wanted }
            }
            AcquireAttempt::Failed(error) if !is_transient(&error) => return Err(Error::Connection(error)),
            AcquireAttempt::Failed(error) => Error::Connection(error),
        };
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(error);
        }
        if !warned && matches!(error, Error::Connection(_) | Error::NotEnoughNodes { .. }) {
            tracing::warn!("{}: {error}; retrying until the lock is acquired", claim.names.lock);
            warned = true;
        }
        let until = deadline.map_or(now + pause, |deadline| deadline.min(now + pause));
        match (&mut subscription, &error, claim.servers.as_slice()) {
            (None, Error::TimedOut(_), [node]) => {
                // If the lock was released before the subscription, the next attempt finds it free.
                subscription = Some(node.wakeups.subscribe(&claim.names.channel, claim.kind.wake_mode));
                continue;
            }
            (Some(subscription), Error::TimedOut(_), _) => {
                // The result is ignored: the loop retries after a message as well as after the timeout.
                let _ = tokio::time::timeout_at(until.into(), subscription.wait_for_wakeup()).await;
            }
            _ => tokio::time::sleep_until(until.into()).await,
        }
    }
}

fn random_in_range(range: std::ops::Range<u64>) -> u64 {
    // If the random source fails, the delay has no jitter, which is harmless.
    range.start + getrandom::u64().unwrap_or(0) % (range.end - range.start)
}
