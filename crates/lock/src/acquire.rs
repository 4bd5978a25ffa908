//! Waiting until something is had.
//!
//! Ask; if another owner has it, ask again once a message says that it was released, its lease ends, or some time has
//! passed, whichever comes first. Servers that cannot be reached are asked again, too, until the wait is over; that is
//! said once, since it may wait for ever. An acquisition that gives up, or is dropped while it waits, takes back the
//! lock that it may have got without knowing it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::claim::{Attempt, Claim};
use crate::life::{Life, Outcome, end_of};
use crate::link::may_pass;
use crate::{Error, Guard, Loss, Options};

/// Between attempts of a Redlock, and while servers cannot be reached; drawn by chance, so that owners that collided do
/// not do so again.
const RETRY: std::ops::Range<u64> = 20..200;

/// For how long an acquisition that gives up waits for a place in a queue, or half of an acquisition, to be taken back;
/// beyond that it goes on in the background.
const TAKE_BACK: Duration = Duration::from_millis(100);

/// An acquisition in progress. Released in the background unless that is settled: this future was dropped.
struct Pending {
    claim: Arc<Claim>,
    settled: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.settled {
            self.claim.clone().release_in_background();
        }
    }
}

/// Acquires within `wait`; without waiting if that is zero.
pub(crate) async fn acquire(claim: Claim, options: &Options, wait: Duration) -> Result<Guard, Error> {
    let mut pending = Pending { claim: Arc::new(claim), settled: false };
    let result = attempt_until(&mut pending, options, wait).await;
    let claim = &pending.claim;
    let left_behind = match &result {
        Ok(_) => false,
        // The last answer was that another owner has it.
        Err(Error::TimedOut(_)) => claim.kind.queues && !wait.is_zero(),
        Err(_) => true,
    };
    let settled = !left_behind
        || matches!(
            tokio::time::timeout(TAKE_BACK, claim.release()).await,
            Ok(Outcome::Done | Outcome::NotHeld)
        );
    pending.settled = settled;
    result
}

async fn attempt_until(pending: &mut Pending, options: &Options, wait: Duration) -> Result<Guard, Error> {
    let began = Instant::now();
    // None: no end.
    let deadline = began.checked_add(wait);
    let timeout = if wait.is_zero() { Duration::ZERO } else { options.queue_timeout };
    let mut subscription = None;
    let mut attempts = 0;
    let mut told = false;
    loop {
        if attempts > 0 && pending.claim.nodes.len() > 1 {
            pending.claim = Arc::new(pending.claim.as_another(attempts));
        }
        attempts += 1;
        let claim = &pending.claim;
        let sent = Instant::now();
        let mut pause = Duration::from_millis(getrandom_in(RETRY));
        let error = match claim.acquire(timeout).await {
            Attempt::Taken(token) if Instant::now() < end_of(sent, claim.lease) => {
                let life = Life::new(sent, claim.lease, options.watchdog);
                return Ok(Guard::keep(claim.clone(), token, life));
            }
            // Took longer than it is worth.
            Attempt::Taken(_) => {
                claim.release().await;
                Error::Lost(Loss::Expired)
            }
            Attempt::Busy(left) => {
                if claim.nodes.len() == 1 {
                    pause = left.max(Duration::from_millis(1)).min(options.recheck());
                }
                Error::TimedOut(wait)
            }
            Attempt::TooFew { had, wanted } => Error::NotEnoughNodes { had, wanted },
            Attempt::Failed(error) if !may_pass(&error) => return Err(Error::Connection(error)),
            Attempt::Failed(error) => Error::Connection(error),
        };
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(error);
        }
        if !told && matches!(error, Error::Connection(_) | Error::NotEnoughNodes { .. }) {
            tracing::warn!("{}: {error}; asking again until it can be had", claim.names.lock);
            told = true;
        }
        let until = deadline.map_or(now + pause, |deadline| deadline.min(now + pause));
        match (&mut subscription, &error, claim.nodes.as_slice()) {
            (None, Error::TimedOut(_), [node]) => {
                // A release that came before the subscription is found by asking once more.
                subscription = Some(node.wakeups.subscribe(&claim.names.channel, claim.kind.wake));
                continue;
            }
            (Some(subscription), Error::TimedOut(_), _) => {
                // Either is reason to ask again.
                let _ = tokio::time::timeout_at(until.into(), subscription.woken()).await;
            }
            _ => tokio::time::sleep_until(until.into()).await,
        }
    }
}

fn getrandom_in(range: std::ops::Range<u64>) -> u64 {
    // Without randomness there is no jitter, and nothing else is lost.
    range.start + getrandom::u64().unwrap_or(0) % (range.end - range.start)
}
