//! The life cycle of a held lock (held, lost, releasing, released) as a state machine without I/O.
//!
//! [`HeldLease::handle`] processes an event and appends actions; [`HeldLease::next_deadline`] says when to
//! send [`LeaseEvent::Deadline`]. The driver in `guard.rs` sends the requests and reports their outcomes.
//!
//! Invariants:
//! - A holder relies on its lease for a shorter time than the server: the lease counts from before the request was
//!   sent, minus an allowance for different clock speeds ([`clock_drift_allowance`]).
//! - A lost lock stays lost. A late success does not restore it, because another owner may have held it in between.
//! - At most one extension is pending. A release does not wait for it: both check the owner, so an extension that
//!   arrives after the release does nothing.
//!
//! The allowance is that of the Redlock specification (one percent and two milliseconds).

use std::time::{Duration, Instant};

/// Why a lock is no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// The lease ended before it could be renewed, because the server was unreachable or this process was paused.
    #[error("the lease expired")]
    Expired,
    /// The server no longer has the lock: it was deleted, or lost in a failover.
    #[error("the server no longer has it")]
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// The server has executed the request.
    Done,
    /// The server does not have the lock for this owner.
    NotHeld,
    /// There was no reply, so it is unknown whether the request was executed.
    Unknown,
}

/// An event that the driver reports to the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseEvent {
    /// The time returned by [`HeldLease::next_deadline`] has come.
    Deadline,
    /// The request to extend the lease has ended.
    ExtensionEnded(RequestOutcome),
    /// The request to release the lock has ended.
    ReleaseEnded(RequestOutcome),
    /// Another guard of the same owner was created.
    GuardCreated,
    /// A guard was dropped or released. The last one releases the lock.
    GuardDropped,
}

/// An action that the driver must carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Renew the lease with this number of guards. Guards that were created or dropped before wait for the outcome.
    Extend(u32),
    /// Release the lock. The outcome is for the last guard.
    Release,
    /// Report the loss of the lock to all guards.
    ReportLoss(LossReason),
    /// Answer the guards that have waited for the extension that ended now.
    AnswerExtension(Result<(), RequestError>),
    /// Answer the guard that waits for the release. This is the last action.
    AnswerRelease(Result<(), RequestError>),
}

/// Why the request of a guard failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestError {
    NotHeld,
    Lost(LossReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    Held,
    Lost(LossReason),
    /// The lock is being released. After an attempt with unknown outcome, the reply "not held" may mean that this
    /// attempt succeeded.
    Releasing {
        loss: Option<LossReason>,
        had_unknown_outcome: bool,
    },
    Released,
}

/// Returns by how much a holder shortens its lease, to allow for clocks that run at different speeds.
pub(crate) fn clock_drift_allowance(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Returns the time from which the holder must consider the lease as ended. The lease was requested at `sent`.
pub(crate) fn lease_end(sent_at: Instant, lease: Duration) -> Instant {
    sent_at + lease.saturating_sub(clock_drift_allowance(lease))
}

/// The state of a held lock, from its acquisition until it is released or lost.
#[derive(Debug, Clone)]
pub(crate) struct HeldLease {
    lease: Duration,
    renews: bool,
    state: LeaseState,
    valid_until: Instant,
    /// When to send the next request if none is pending.
    next_request_at: Instant,
    /// When the pending extension was sent; `None` if none is pending.
    extending_since: Option<Instant>,
    /// Whether the number of guards has changed since the last extension was sent.
    has_guard_count_changed: bool,
    is_release_pending: bool,
    guard_count: u32,
    renewal_count: u64,
}

impl HeldLease {
    /// Creates the state of a lock that was acquired for `lease` by a request sent at `sent`.
    pub(crate) fn new(sent_at: Instant, lease: Duration, renews: bool) -> Self {
        Self {
            lease,
            renews,
            state: LeaseState::Held,
            valid_until: lease_end(sent_at, lease),
            next_request_at: sent_at + lease / 3,
            extending_since: None,
            has_guard_count_changed: false,
            is_release_pending: false,
            guard_count: 1,
            renewal_count: 0,
        }
    }

    /// Returns when the lease ends if it is not renewed.
    pub(crate) fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// Returns how often the lease has been renewed so far.
    pub(crate) fn renewal_count(&self) -> u64 {
        self.renewal_count
    }

    /// Returns the number of guards of this owner.
    pub(crate) fn guard_count(&self) -> u32 {
        self.guard_count
    }

    /// Returns whether the lock has been released and no reply is pending.
    pub(crate) fn is_released(&self) -> bool {
        self.state == LeaseState::Released
    }

    /// Returns when to send [`LeaseEvent::Deadline`]; `None` if no request is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            LeaseState::Held
                if self.extending_since.is_none() && (self.renews || self.has_guard_count_changed) =>
            {
                Some(self.next_request_at.min(self.valid_until))
            }
            LeaseState::Held => Some(self.valid_until),
            LeaseState::Releasing { .. } if !self.is_release_pending => Some(self.next_request_at),
            LeaseState::Releasing { .. } | LeaseState::Lost(_) | LeaseState::Released => None,
        }
    }

    /// Processes an event at `now` and appends the resulting actions.
    pub(crate) fn handle(&mut self, now: Instant, input: LeaseEvent, out: &mut Vec<LeaseAction>) {
        if self.state == LeaseState::Held && now >= self.valid_until {
            self.report_loss(LossReason::Expired, out);
        }
        match input {
            LeaseEvent::Deadline => {}
            LeaseEvent::ExtensionEnded(outcome) => self.on_extended(outcome, now, out),
            LeaseEvent::ReleaseEnded(outcome) => self.on_released(outcome, now, out),
            LeaseEvent::GuardCreated => {
                self.guard_count += 1;
                self.on_guard_count_changed(now, out);
            }
            LeaseEvent::GuardDropped => self.on_guard_dropped(now, out),
        }
        self.send_due_requests(now, out);
    }

    fn report_loss(&mut self, loss: LossReason, out: &mut Vec<LeaseAction>) {
        self.state = LeaseState::Lost(loss);
        out.push(LeaseAction::ReportLoss(loss));
        if self.extending_since.is_some() || self.has_guard_count_changed {
            out.push(LeaseAction::AnswerExtension(Err(RequestError::Lost(loss))));
        }
        self.extending_since = None;
        self.has_guard_count_changed = false;
    }

    fn on_extended(&mut self, outcome: RequestOutcome, now: Instant, out: &mut Vec<LeaseAction>) {
        let (LeaseState::Held, Some(sent)) = (self.state, self.extending_since.take()) else { return };
        match outcome {
            RequestOutcome::Done => {
                self.valid_until = lease_end(sent, self.lease).max(self.valid_until);
                self.next_request_at = sent + self.lease / 3;
                self.renewal_count += 1;
                out.push(LeaseAction::AnswerExtension(Ok(())));
                if self.has_guard_count_changed {
                    self.next_request_at = now;
                }
            }
            RequestOutcome::NotHeld => {
                // The guards that wait for the extension are answered when the loss is reported.
                self.extending_since = Some(sent);
                self.report_loss(LossReason::Gone, out);
            }
            RequestOutcome::Unknown => {
                // The guards remain queued until the next attempt to extend the lease.
                self.has_guard_count_changed = true;
                self.next_request_at = now + self.retry_delay();
            }
        }
    }

    /// Returns the delay before a failed request is repeated. It is short, so that a recovered server or a promoted
    /// replica is found soon.
    fn retry_delay(&self) -> Duration {
        (self.lease / 30).clamp(Duration::from_millis(10), Duration::from_millis(500))
    }

    fn on_guard_count_changed(&mut self, now: Instant, out: &mut Vec<LeaseAction>) {
        match self.state {
            LeaseState::Held => {
                self.has_guard_count_changed = true;
                self.next_request_at = now;
            }
            LeaseState::Lost(loss) | LeaseState::Releasing { loss: Some(loss), .. } => {
                out.push(LeaseAction::AnswerExtension(Err(RequestError::Lost(loss))));
            }
            LeaseState::Releasing { loss: None, .. } | LeaseState::Released => {
                out.push(LeaseAction::AnswerExtension(Err(RequestError::NotHeld)));
            }
        }
    }

    fn on_guard_dropped(&mut self, now: Instant, out: &mut Vec<LeaseAction>) {
        self.guard_count = self.guard_count.saturating_sub(1);
        if self.guard_count > 0 {
            return self.on_guard_count_changed(now, out);
        }
        let loss = match self.state {
            LeaseState::Held => None,
            LeaseState::Lost(loss) => Some(loss),
            LeaseState::Releasing { .. } | LeaseState::Released => return,
        };
        self.state = LeaseState::Releasing { loss, had_unknown_outcome: false };
        self.next_request_at = now;
    }

    fn on_released(&mut self, outcome: RequestOutcome, now: Instant, out: &mut Vec<LeaseAction>) {
        let LeaseState::Releasing { loss, had_unknown_outcome: unknown_before } = self.state else { return };
        self.is_release_pending = false;
        let answer = match (loss, outcome) {
            (_, RequestOutcome::Unknown) if now < self.valid_until => {
                self.state = LeaseState::Releasing { loss, had_unknown_outcome: true };
                self.next_request_at = now + self.retry_delay();
                return;
            }
            (Some(loss), _) => Err(RequestError::Lost(loss)),
            (None, RequestOutcome::Unknown) => Err(RequestError::Lost(LossReason::Expired)),
            (None, RequestOutcome::Done) => Ok(()),
            (None, RequestOutcome::NotHeld) if unknown_before => Ok(()),
            (None, RequestOutcome::NotHeld) => Err(RequestError::NotHeld),
        };
        self.state = LeaseState::Released;
        out.push(LeaseAction::AnswerRelease(answer));
    }

    fn send_due_requests(&mut self, now: Instant, out: &mut Vec<LeaseAction>) {
        match self.state {
            LeaseState::Held => {
                let wanted = self.renews || self.has_guard_count_changed;
                if wanted && self.extending_since.is_none() && now >= self.next_request_at {
                    self.extending_since = Some(now);
                    self.has_guard_count_changed = false;
                    out.push(LeaseAction::Extend(self.guard_count));
                }
            }
            LeaseState::Releasing { .. } => {
                if !self.is_release_pending && now >= self.next_request_at {
                    self.is_release_pending = true;
                    out.push(LeaseAction::Release);
                }
            }
            LeaseState::Lost(_) | LeaseState::Released => {}
        }
    }
}

#[cfg(test)]
mod tests;
