//! The guard of a held lock, and the task that renews the lock. The task drives [`HeldLease`] with the clock and the
//! server's replies.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use crate::Error;
use crate::claim::{BackgroundTask, LockClaim};
use crate::lease::{HeldLease, LeaseAction, LeaseEvent, LossReason, RequestError, RequestOutcome};

type GuardReply = oneshot::Sender<Result<(), RequestError>>;

enum GuardRequest {
    Enter(GuardReply),
    Leave(GuardReply),
    /// The guard was dropped without [`Guard::release`].
    Abandon(BackgroundTask),
    ExtensionEnded(RequestOutcome),
    ReleaseEnded(RequestOutcome),
}

#[derive(Debug, Clone, Copy)]
struct LeaseStatus {
    valid_until: Instant,
    renewal_count: u64,
    loss: Option<LossReason>,
}

/// A held lock, read or write lock, or permit. Dropping the guard releases it in the background, also during a panic.
/// [`Guard::release`] waits for the release and returns its result.
///
/// While the guard lives, a task renews the lease (see [`Options::watchdog`](crate::Options::watchdog)). If renewal
/// fails until the lease has ended, or the server no longer has the lock, the lock is lost for good: [`Guard::lost`]
/// returns and [`Guard::is_held`] is false. The lease is counted from before its request was sent, minus one percent
/// and two milliseconds. Therefore a holder stops relying on the lock before the server can grant it to another owner.
///
/// ```no_run
/// # async fn example(locks: redoubt_lock::Locks) -> Result<(), redoubt_lock::Error> {
/// let guard = locks.lock("report").acquire().await?;
/// tokio::select! {
///     () = write_report() => guard.release().await?,
///     loss = guard.lost() => eprintln!("stopped half way: {loss}"),
/// }
/// # Ok(())
/// # }
/// # async fn write_report() {}
/// ```
pub struct Guard {
    requests: mpsc::UnboundedSender<GuardRequest>,
    status: watch::Receiver<LeaseStatus>,
    claim: Arc<LockClaim>,
    token: u64,
    has_left: bool,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("token", &self.token)
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Starts the task that renews a newly acquired lock.
    pub(crate) fn start(claim: Arc<LockClaim>, token: u64, lease: HeldLease) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let status = LeaseStatus { valid_until: lease.valid_until(), renewal_count: 0, loss: None };
        let (publish, status) = watch::channel(status);
        let driver = GuardDriver {
            claim: claim.clone(),
            requests: requests.clone(),
            status_sender: publish,
            waiting_for_next_extension: Vec::new(),
            waiting_for_extension: Vec::new(),
            release_reply: None,
            background_task: None,
        };
        let runtime = claim.servers[0].background_tasks.runtime.clone();
        runtime.spawn(driver.run(lease, receiver));
        Self { requests, status, claim, token, has_left: false }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.claim.names.lock
    }

    /// Returns the fencing token, which is larger than the tokens of all earlier acquisitions of the lock. A resource
    /// that stores the largest token it has seen, and rejects smaller ones, is safe from paused holders that do not
    /// know yet that their lease has ended. See the crate documentation for the assumptions.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the name of the owner in Redisson's format (`uuid:number`). On the server it is a field of the lock's
    /// hash.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.claim.owner
    }

    /// Returns whether the lease is still valid according to this machine's clock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// Returns how long the lease remains valid without renewal. Check it before each step that must be exclusive.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        let status = *self.status.borrow();
        if status.loss.is_some() {
            return Duration::ZERO;
        }
        status.valid_until.saturating_duration_since(Instant::now())
    }

    /// Returns how often the lease has been renewed so far.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.status.borrow().renewal_count
    }

    /// Waits until the lock is lost, and returns the reason. Never returns if the lock is released.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static {
        let mut status = self.status.clone();
        async move {
            let lost = status.wait_for(|status| status.loss.is_some()).await.map(|status| status.loss);
            match lost {
                Ok(Some(loss)) => loss,
                // The lock has been released, so it can no longer be lost.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Acquires the lock once more for the same owner, for instance in a function whose caller already holds it. It is
    /// released when all its guards are. The count is kept on the server, as Redisson does.
    ///
    /// # Errors
    /// The lock is no longer held.
    ///
    /// ```no_run
    /// # async fn example(locks: redoubt_lock::Locks) -> Result<(), redoubt_lock::Error> {
    /// let outer = locks.lock("orders").acquire().await?;
    /// let inner = outer.reenter().await?;
    /// drop(outer); // still held
    /// inner.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reenter(&self) -> Result<Guard, Error> {
        let (answer, answered) = oneshot::channel();
        // If sending fails, the task has ended, and the answer channel is closed as well.
        let _ = self.requests.send(GuardRequest::Enter(answer));
        let entered = Guard {
            requests: self.requests.clone(),
            status: self.status.clone(),
            claim: self.claim.clone(),
            token: self.token,
            has_left: false,
        };
        // If this future is dropped while it waits, the new guard is dropped as well, so it is no longer counted.
        to_result(&answered.await)?;
        Ok(entered)
    }

    /// Releases the lock and waits until the server has confirmed.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before, [`Error::NotHeld`] if the server no longer had it. In both cases
    /// another owner may have held the lock at the same time.
    pub async fn release(mut self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.has_left = true;
        let _ = self.requests.send(GuardRequest::Leave(answer));
        to_result(&answered.await)
    }
}

fn to_result(answer: &Result<Result<(), RequestError>, oneshot::error::RecvError>) -> Result<(), Error> {
    match answer {
        Ok(Ok(())) => Ok(()),
        Ok(Err(RequestError::Lost(loss))) => Err(Error::Lost(*loss)),
        // The channel is closed if the runtime is shutting down. In this case no task renews the lease.
        Ok(Err(RequestError::NotHeld)) | Err(_) => Err(Error::NotHeld),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.has_left {
            let running = self.claim.servers[0].background_tasks.begin_task();
            // If sending fails, the runtime is gone and the lease expires by itself.
            let _ = self.requests.send(GuardRequest::Abandon(running));
        }
    }
}

struct GuardDriver {
    claim: Arc<LockClaim>,
    /// Sends the result of a server request to the task that runs this driver.
    requests: mpsc::UnboundedSender<GuardRequest>,
    status_sender: watch::Sender<LeaseStatus>,
    /// Callers that wait for the next extension to be sent and answered.
    waiting_for_next_extension: Vec<GuardReply>,
    waiting_for_extension: Vec<GuardReply>,
    release_reply: Option<GuardReply>,
    background_task: Option<BackgroundTask>,
}

impl GuardDriver {
    async fn run(mut self, mut lease: HeldLease, mut receiver: mpsc::UnboundedReceiver<GuardRequest>) {
        let mut actions = Vec::new();
        while !lease.is_released() {
            let input = tokio::select! {
                request = receiver.recv() => match request {
                    Some(request) => self.convert_to_lease_event(request, &lease),
                    None => return,
                },
                () = sleep_until_deadline(lease.next_deadline()) => LeaseEvent::Deadline,
            };
            lease.handle(Instant::now(), input, &mut actions);
            for action in actions.drain(..) {
                self.execute(action);
            }
            self.status_sender.send_if_modified(|status| {
                let (valid_until, renewals) = (lease.valid_until(), lease.renewal_count());
                let changed = status.renewal_count != renewals;
                (status.valid_until, status.renewal_count) = (valid_until, renewals);
                changed
            });
        }
    }

    fn convert_to_lease_event(&mut self, request: GuardRequest, lease: &HeldLease) -> LeaseEvent {
        match request {
            GuardRequest::ExtensionEnded(outcome) => LeaseEvent::ExtensionEnded(outcome),
            GuardRequest::ReleaseEnded(outcome) => LeaseEvent::ReleaseEnded(outcome),
            GuardRequest::Enter(answer) => {
                self.waiting_for_next_extension.push(answer);
                LeaseEvent::GuardCreated
            }
            GuardRequest::Leave(answer) => {
                if lease.guard_count() == 1 {
                    self.release_reply = Some(answer);
                } else {
                    self.waiting_for_next_extension.push(answer);
                }
                LeaseEvent::GuardDropped
            }
            GuardRequest::Abandon(running) => {
                self.background_task = Some(running);
                LeaseEvent::GuardDropped
            }
        }
    }

    fn execute(&mut self, action: LeaseAction) {
        let (claim, requests) = (self.claim.clone(), self.requests.clone());
        match action {
            LeaseAction::Extend(count) => {
                self.waiting_for_extension.append(&mut self.waiting_for_next_extension);
                tokio::spawn(async move {
                    // If sending fails, the task of the guard has ended and does not need the result.
                    let _ = requests.send(GuardRequest::ExtensionEnded(claim.extend(count).await));
                });
            }
            LeaseAction::Release => {
                tokio::spawn(async move {
                    let _ = requests.send(GuardRequest::ReleaseEnded(claim.release().await));
                });
            }
            LeaseAction::ReportLoss(loss) => {
                self.status_sender.send_modify(|status| status.loss = Some(loss));
            }
            LeaseAction::AnswerExtension(answer) => {
                if answer.is_err() {
                    self.waiting_for_extension.append(&mut self.waiting_for_next_extension);
                }
                reply_to_all(self.waiting_for_extension.drain(..), answer);
            }
            LeaseAction::AnswerRelease(answer) => {
                reply_to_all(
                    self.waiting_for_extension
                        .drain(..)
                        .chain(self.waiting_for_next_extension.drain(..))
                        .chain(self.release_reply.take()),
                    answer,
                );
                self.background_task = None;
            }
        }
    }
}

fn reply_to_all(waiters: impl Iterator<Item = GuardReply>, answer: Result<(), RequestError>) {
    for asker in waiters {
        // If sending fails, the caller has stopped waiting.
        let _ = asker.send(answer);
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
