//! The life of a lock: held, lost, being released, released; as a machine without clock or connection.
//!
//! [`Life::handle`] takes an input and returns the actions; [`Life::next_deadline`] says when to come back with
//! [`Input::Due`]. The shell (`guard.rs`) sends the requests and brings their outcomes.
//!
//! Invariants:
//! - A holder believes in its lease for a shorter time than the server does: the lease counts from before the request
//!   was sent, less an allowance for clocks that run at different speeds ([`drift`]).
//! - What was lost stays lost: a late success gives nothing back, since others may have held in between.
//! - At most one extension is under way. A release does not wait for it: both check the owner, so an extension that
//!   arrives behind the release finds nothing to extend.
//!
//! The allowance is that of Redlock's description (a hundredth of the time and two milliseconds).

use std::time::{Duration, Instant};

/// Why something is no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// Its lease ran out before it could be renewed: the server could not be reached, or this process stood still.
    #[error("its lease ran out")]
    Expired,
    /// The server no longer has it: it was deleted, or a failover forgot it.
    #[error("the server no longer has it")]
    Gone,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done as asked.
    Done,
    /// The server does not have this owner.
    NotHeld,
    /// It is not known whether it was done.
    Unknown,
}

/// An input of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// A deadline passed.
    Due,
    /// An extension ended.
    Extended(Outcome),
    /// A release ended.
    Released(Outcome),
    /// One more holder of the same owner.
    Enter,
    /// One fewer; the last one releases.
    Leave,
}

/// An action for the shell to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Renew the lease, with so many holders. Holders that entered or left before wait for its outcome.
    Extend(u32),
    /// Release, and tell the holder that left last the outcome.
    Release,
    /// Tell the holders: it is lost.
    Lose(Loss),
    /// Answer the holders that waited for the extension that just ended.
    AnswerExtension(Result<(), Failure>),
    /// Answer the holder that waits for the release. This is the last action.
    AnswerRelease(Result<(), Failure>),
}

/// A refusal, with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    NotHeld,
    Lost(Loss),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held,
    Lost(Loss),
    /// Once the outcome of an attempt was unknown, "not held" may be its effect.
    Releasing {
        loss: Option<Loss>,
        unknown_before: bool,
    },
    Released,
}

/// How much shorter a holder's own count of a lease is.
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// When a lease that was asked for at `sent` must be taken to be over.
pub(crate) fn end_of(sent: Instant, lease: Duration) -> Instant {
    sent + lease.saturating_sub(drift(lease))
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    lease: Duration,
    renews: bool,
    state: State,
    valid_until: Instant,
    /// When to send the next request, unless one is under way.
    next_request: Instant,
    /// When the extension that is under way was sent.
    extending_since: Option<Instant>,
    /// Whether a holder entered or left since the last extension was sent.
    changed: bool,
    releasing: bool,
    count: u32,
    renewals: u64,
}

impl Life {
    /// The life of a lock that was acquired for `lease` by a request sent at `sent`.
    pub(crate) fn new(sent: Instant, lease: Duration, renews: bool) -> Self {
        Self {
            lease,
            renews,
            state: State::Held,
            valid_until: end_of(sent, lease),
            next_request: sent + lease / 3,
            extending_since: None,
            changed: false,
            releasing: false,
            count: 1,
            renewals: 0,
        }
    }

    /// Until when it is held if nothing else happens.
    pub(crate) fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// How often the lease has been renewed.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals
    }

    /// How many hold it as the same owner.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Released
    }

    /// When [`Input::Due`] is wanted.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Held if self.extending_since.is_none() && (self.renews || self.changed) => {
                Some(self.next_request.min(self.valid_until))
            }
            State::Held => Some(self.valid_until),
            State::Releasing { .. } if !self.releasing => Some(self.next_request),
            State::Releasing { .. } | State::Lost(_) | State::Released => None,
        }
    }

    /// Takes an input at `now`; appends the actions.
    pub(crate) fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        if self.state == State::Held && now >= self.valid_until {
            self.lose(Loss::Expired, out);
        }
        match input {
            Input::Due => {}
            Input::Extended(outcome) => self.on_extended(outcome, now, out),
            Input::Released(outcome) => self.on_released(outcome, now, out),
            Input::Enter => {
                self.count += 1;
                self.on_changed(now, out);
            }
            Input::Leave => self.on_left(now, out),
        }
        self.send_what_is_due(now, out);
    }

    fn lose(&mut self, loss: Loss, out: &mut Vec<Action>) {
        self.state = State::Lost(loss);
        out.push(Action::Lose(loss));
        if self.extending_since.is_some() || self.changed {
            out.push(Action::AnswerExtension(Err(Failure::Lost(loss))));
        }
        self.extending_since = None;
        self.changed = false;
    }

    fn on_extended(&mut self, outcome: Outcome, now: Instant, out: &mut Vec<Action>) {
        let (State::Held, Some(sent)) = (self.state, self.extending_since.take()) else { return };
        match outcome {
            Outcome::Done => {
                self.valid_until = end_of(sent, self.lease).max(self.valid_until);
                self.next_request = sent + self.lease / 3;
                self.renewals += 1;
                out.push(Action::AnswerExtension(Ok(())));
                if self.changed {
                    self.next_request = now;
                }
            }
            Outcome::NotHeld => {
                // The waiting holders get their answer with the loss.
                self.extending_since = Some(sent);
                self.lose(Loss::Gone, out);
            }
            Outcome::Unknown => {
                // The waiting holders go on waiting, for the next attempt.
                self.changed = true;
                self.next_request = now + self.pause();
            }
        }
    }

    /// Between attempts: a server that comes back, or a replica that takes over, is found soon.
    fn pause(&self) -> Duration {
        (self.lease / 30).clamp(Duration::from_millis(10), Duration::from_millis(500))
    }

    fn on_changed(&mut self, now: Instant, out: &mut Vec<Action>) {
        match self.state {
            State::Held => {
                self.changed = true;
                self.next_request = now;
            }
            State::Lost(loss) | State::Releasing { loss: Some(loss), .. } => {
                out.push(Action::AnswerExtension(Err(Failure::Lost(loss))));
            }
            State::Releasing { loss: None, .. } | State::Released => {
                out.push(Action::AnswerExtension(Err(Failure::NotHeld)));
            }
        }
    }

    fn on_left(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.count = self.count.saturating_sub(1);
        if self.count > 0 {
            return self.on_changed(now, out);
        }
        let loss = match self.state {
            State::Held => None,
            State::Lost(loss) => Some(loss),
            State::Releasing { .. } | State::Released => return,
        };
        self.state = State::Releasing { loss, unknown_before: false };
        self.next_request = now;
    }

    fn on_released(&mut self, outcome: Outcome, now: Instant, out: &mut Vec<Action>) {
        let State::Releasing { loss, unknown_before } = self.state else { return };
        self.releasing = false;
        let answer = match (loss, outcome) {
            (_, Outcome::Unknown) if now < self.valid_until => {
                self.state = State::Releasing { loss, unknown_before: true };
                self.next_request = now + self.pause();
                return;
            }
            (Some(loss), _) => Err(Failure::Lost(loss)),
            (None, Outcome::Unknown) => Err(Failure::Lost(Loss::Expired)),
            (None, Outcome::Done) => Ok(()),
            (None, Outcome::NotHeld) if unknown_before => Ok(()),
            (None, Outcome::NotHeld) => Err(Failure::NotHeld),
        };
        self.state = State::Released;
        out.push(Action::AnswerRelease(answer));
    }

    fn send_what_is_due(&mut self, now: Instant, out: &mut Vec<Action>) {
        match self.state {
            State::Held => {
                let wanted = self.renews || self.changed;
                if wanted && self.extending_since.is_none() && now >= self.next_request {
                    self.extending_since = Some(now);
                    self.changed = false;
                    out.push(Action::Extend(self.count));
                }
            }
            State::Releasing { .. } => {
                if !self.releasing && now >= self.next_request {
                    self.releasing = true;
                    out.push(Action::Release);
                }
            }
            State::Lost(_) | State::Released => {}
        }
    }
}

#[cfg(test)]
mod tests;
