//! The guard that a holder has, and the task that keeps it: it drives [`Life`] with the clock and the server.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use crate::Error;
use crate::claim::{Claim, Running};
use crate::life::{Action, Failure, Input, Life, Loss, Outcome};

type Answer = oneshot::Sender<Result<(), Failure>>;

enum Request {
    Enter(Answer),
    Leave(Answer),
    /// The guard was dropped.
    Abandon(Running),
    Extended(Outcome),
    Released(Outcome),
}

#[derive(Debug, Clone, Copy)]
struct Status {
    valid_until: Instant,
    renewals: u64,
    loss: Option<Loss>,
}

/// A lock, read or write lock, or permit that is held. Dropping it releases in the background, also when a panic
/// unwinds; [`Guard::release`] waits until that is done and says how it went.
///
/// While it lives, a task renews the lease (unless [`Options::watchdog`](crate::Options::watchdog) says otherwise).
/// When that fails for so long that the lease is over, or the server no longer has the lock, it is lost for good:
/// [`Guard::lost`] comes back and [`Guard::is_held`] is false. The lease counts from before the request for it was
/// sent, less a hundredth and two milliseconds, so a holder stops believing before the server gives the lock away.
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
    requests: mpsc::UnboundedSender<Request>,
    status: watch::Receiver<Status>,
    claim: Arc<Claim>,
    token: u64,
    left: bool,
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
    /// Begins to keep a lock that was just acquired.
    pub(crate) fn keep(claim: Arc<Claim>, token: u64, life: Life) -> Self {
        let (requests, receiver) = mpsc::unbounded_channel();
        let status = Status { valid_until: life.valid_until(), renewals: 0, loss: None };
        let (publish, status) = watch::channel(status);
        let driver = Driver {
            claim: claim.clone(),
            requests: requests.clone(),
            publish,
            waiting: Vec::new(),
            asked: Vec::new(),
            leaver: None,
            running: None,
        };
        let runtime = claim.nodes[0].background.runtime.clone();
        runtime.spawn(driver.run(life, receiver));
        Self { requests, status, claim, token, left: false }
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.claim.names.lock
    }

    /// The fencing token: larger than that of every earlier acquisition of this name. A resource that remembers the
    /// largest it has seen, and refuses smaller ones, is safe from a holder that was paused and does not know yet that
    /// its lease is over. See the crate's documentation for what this rests on.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The owner as which it is held: the field of the hash, as Redisson has it (`uuid:number`).
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.claim.owner
    }

    /// Whether the lease still stands, by this machine's clock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// For how long it is still held if it is not renewed. Ask before each step that must not be done by two.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        let status = *self.status.borrow();
        if status.loss.is_some() {
            return Duration::ZERO;
        }
        status.valid_until.saturating_duration_since(Instant::now())
    }

    /// How often the lease has been renewed.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.status.borrow().renewals
    }

    /// Comes back when it is lost, and says why. Does not come back otherwise.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static {
        let mut status = self.status.clone();
        async move {
            let lost = status.wait_for(|status| status.loss.is_some()).await.map(|status| status.loss);
            match lost {
                Ok(Some(loss)) => loss,
                // Released: there is nothing to lose any more.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }

    /// Holds it once more, as the same owner: it is released when all guards are. The count is kept on the server as
    /// Redisson does. For a function that takes the lock and is called by one that has it.
    ///
    /// # Errors
    /// If it is no longer held.
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
        // If the task is gone and does not receive this, there is no answer either.
        let _ = self.requests.send(Request::Enter(answer));
        let entered = Guard {
            requests: self.requests.clone(),
            status: self.status.clone(),
            claim: self.claim.clone(),
            token: self.token,
            left: false,
        };
        // If this is given up meanwhile, the guard that entered leaves again.
        said(&answered.await)?;
        Ok(entered)
    }

    /// Releases, and waits until the server has done it.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was lost before, [`Error::NotHeld`] if the server no longer had it: then others may have
    /// held it at the same time.
    pub async fn release(mut self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.left = true;
        let _ = self.requests.send(Request::Leave(answer));
        said(&answered.await)
    }
}

fn said(answer: &Result<Result<(), Failure>, oneshot::error::RecvError>) -> Result<(), Error> {
    match answer {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Failure::Lost(loss))) => Err(Error::Lost(*loss)),
        // The runtime is being shut down, and no task keeps the lease.
        Ok(Err(Failure::NotHeld)) | Err(_) => Err(Error::NotHeld),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.left {
            let running = self.claim.nodes[0].background.begin();
            // If no task receives this, the runtime is gone, and the lease ends by itself.
            let _ = self.requests.send(Request::Abandon(running));
        }
    }
}

struct Driver {
    claim: Arc<Claim>,
    /// For the outcomes of requests on the guards' behalf.
    requests: mpsc::UnboundedSender<Request>,
    publish: watch::Sender<Status>,
    /// The callers that wait for the next extension, and those that wait for the one under way.
    waiting: Vec<Answer>,
    asked: Vec<Answer>,
    leaver: Option<Answer>,
    running: Option<Running>,
}

impl Driver {
    async fn run(mut self, mut life: Life, mut receiver: mpsc::UnboundedReceiver<Request>) {
        let mut actions = Vec::new();
        while !life.is_over() {
            let input = tokio::select! {
                request = receiver.recv() => match request {
                    Some(request) => self.input(request, &life),
                    None => return,
                },
                () = until(life.next_deadline()) => Input::Due,
            };
            life.handle(Instant::now(), input, &mut actions);
            for action in actions.drain(..) {
                self.act(action);
            }
            self.publish.send_if_modified(|status| {
                let (valid_until, renewals) = (life.valid_until(), life.renewals());
                let changed = status.renewals != renewals;
                (status.valid_until, status.renewals) = (valid_until, renewals);
                changed
            });
        }
    }

    fn input(&mut self, request: Request, life: &Life) -> Input {
        match request {
            Request::Extended(outcome) => Input::Extended(outcome),
            Request::Released(outcome) => Input::Released(outcome),
            Request::Enter(answer) => {
                self.waiting.push(answer);
                Input::Enter
            }
            Request::Leave(answer) => {
                if life.count() == 1 {
                    self.leaver = Some(answer);
                } else {
                    self.waiting.push(answer);
                }
                Input::Leave
            }
            Request::Abandon(running) => {
                self.running = Some(running);
                Input::Leave
            }
        }
    }

    fn act(&mut self, action: Action) {
        let (claim, requests) = (self.claim.clone(), self.requests.clone());
        match action {
            Action::Extend(count) => {
                self.asked.append(&mut self.waiting);
                tokio::spawn(async move {
                    // An error means that the guard's task has ended and needs no outcome.
                    let _ = requests.send(Request::Extended(claim.extend(count).await));
                });
            }
            Action::Release => {
                tokio::spawn(async move {
                    let _ = requests.send(Request::Released(claim.release().await));
                });
            }
            Action::Lose(loss) => self.publish.send_modify(|status| status.loss = Some(loss)),
            Action::AnswerExtension(answer) => {
                if answer.is_err() {
                    self.asked.append(&mut self.waiting);
                }
                answer_all(self.asked.drain(..), answer);
            }
            Action::AnswerRelease(answer) => {
                answer_all(
                    self.asked.drain(..).chain(self.waiting.drain(..)).chain(self.leaver.take()),
                    answer,
                );
                self.running = None;
            }
        }
    }
}

fn answer_all(who: impl Iterator<Item = Answer>, answer: Result<(), Failure>) {
    for asker in who {
        // A caller that no longer waits needs no answer.
        let _ = asker.send(answer);
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
