//! The target side of a slot migration.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use slot_routing::{Slot, SlotSet};

use crate::message::Message;
use crate::{ACK_PERIOD, RESUME_WITHIN};

/// The grant must arrive within this time after the request. The source holds writes for longer, counted from the
/// arrival of the request.
pub const GRANT_WITHIN: Duration = Duration::from_secs(2);

/// The slots must be claimed within this time after the request, whatever delays the target: well before the source
/// accepts writes again.
pub const CLAIM_WITHIN: Duration = Duration::from_secs(4);

/// After this time the target requests the pause even if it is still behind; the source then decides whether too much
/// remains.
pub const CATCH_UP_WITHIN: Duration = Duration::from_secs(5);

/// Whether the source may send this command, with keys in these slots. The command must concern slots of the migration,
/// or the migration itself.
#[must_use]
pub fn is_of_job(name: &[u8], about: &[Slot], job: &SlotSet) -> bool {
    const ABOUT_THE_JOB: [&str; 5] = ["cluster", "select", "multi", "exec", "ping"];
    ABOUT_THE_JOB.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()))
        || !about.is_empty() && about.iter().all(|slot| job.contains(*slot))
}

/// An event for the target's state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The source sent this message. Everything it sent before has been applied.
    Heard(Message),
    /// Other data arrived and was applied.
    Fed,
    /// Everything received so far has been applied.
    CaughtUp,
    /// The link is closed.
    Closed,
    /// The source has resumed the migration on a new link.
    Resumed,
    /// The source reported the end of the migration.
    EndedThere,
    /// An operator cancels the migration.
    Cancel,
    /// This node now owns the slots.
    Claimed,
    /// The slots cannot be claimed, for this reason.
    NotClaimed(String),
    /// Current conditions for the migration.
    Around(Around),
    /// The replicas have received everything, or cannot be reached in time.
    ReplicasHave(Around),
    /// The migration cannot continue, for this reason.
    Broken(String),
    /// The time of [`Import::next_deadline`] has come.
    Deadline,
}

/// External conditions that a migration depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Around {
    /// Whether this node is a master.
    pub is_master: bool,
    /// Whether the source owns all of the slots.
    pub source_serves: bool,
    /// Whether a FLUSHALL or FLUSHDB ran here since the migration began.
    pub flushed: bool,
}

impl Around {
    /// Why the migration cannot continue, if so.
    #[must_use]
    pub fn hindrance(self) -> Option<&'static str> {
        match self {
            Self { is_master: false, .. } => Some("A failover occurred during slot import"),
            Self { source_serves: false, .. } => Some("Slots are no longer owned by source node."),
            Self { flushed: true, .. } => Some("Data was flushed"),
            _ => None,
        }
    }
}

/// An action for the target's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this message to the source.
    Send(Message),
    /// Wait until the replicas have received everything, because the source deletes its data once the slots are
    /// claimed.
    AwaitReplicas,
    /// Claim the slots under a new epoch.
    Claim,
    /// The migration has ended. After success the imported keys become visible; after a failure they are deleted.
    End(Result<(), String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitingAck,
    Receiving,
    CatchingUp {
        until: Instant,
    },
    AwaitingPaused,
    Requested {
        at: Instant,
    },
    /// The slots must be claimed before this time, as the source may accept writes afterwards.
    Granted {
        before: Instant,
    },
    Claiming,
    Over,
}

/// State machine of a migration's target.
#[derive(Debug)]
pub struct Import {
    timeout: Duration,
    state: State,
    heard: Instant,
    next_ack: Instant,
    resumable: bool,
    /// Set while there is no link: the time at which the migration fails.
    down: Option<Instant>,
}

impl Import {
    /// Starts a migration announced by a source. It fails after `timeout` without input, and when the link breaks
    /// unless it is `resumable`.
    #[must_use]
    pub fn new(now: Instant, timeout: Duration, resumable: bool) -> Self {
        let (state, next_ack) = (State::AwaitingAck, now + ACK_PERIOD);
        Self { timeout, state, heard: now, next_ack, resumable, down: None }
    }

    /// The name that Valkey has for this state.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::AwaitingAck => "waiting-for-ack",
            State::Receiving => "receiving-snapshot",
            State::CatchingUp { .. } | State::AwaitingPaused => "waiting-for-paused",
            State::Requested { .. } => "failover-requested",
            State::Granted { .. } | State::Claiming => "failover-granted",
            State::Over => "success",
        }
    }

    /// When to send [`Input::Deadline`] if no event occurs before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let link = (self.heard + self.timeout).min(self.down.unwrap_or(self.next_ack));
        match self.state {
            // The driver reports the result.
            State::Granted { .. } | State::Claiming | State::Over => None,
            State::Requested { at } => Some(link.min(at + GRANT_WITHIN)),
            State::CatchingUp { until } => Some(link.min(until)),
            State::AwaitingAck | State::Receiving | State::AwaitingPaused => Some(link),
        }
    }

    /// Processes an event and appends the resulting actions.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        if self.state == State::Over {
            return;
        }
        match input {
            Input::Heard(message) => self.on_heard(now, message, out),
            Input::Fed => self.heard = now,
            Input::CaughtUp => self.on_caught_up(out),
            Input::Claimed => self.end(Ok(()), out),
            Input::NotClaimed(why) => self.fail(why, out),
            Input::ReplicasHave(around) => self.on_replicas_have(now, around, out),
            // During a claim only its result matters.
            _ if matches!(self.state, State::Granted { .. } | State::Claiming) => {}
            Input::Around(around) => {
                if let Some(why) = around.hindrance() {
                    self.fail(why, out);
                }
            }
            Input::Closed if self.resumable => self.down = Some(self.down.unwrap_or(now + RESUME_WITHIN)),
            Input::Closed | Input::EndedThere => self.lost(out),
            Input::Resumed => self.on_resumed(now, out),
            Input::Cancel => self.fail("Cancelled", out),
            Input::Broken(why) => self.fail(why, out),
            Input::Deadline => self.on_deadline(now, out),
        }
    }

    /// Repeats the last request, which may have been lost.
    fn on_resumed(&mut self, now: Instant, out: &mut Vec<Action>) {
        (self.down, self.heard, self.next_ack) = (None, now, now + ACK_PERIOD);
        match self.state {
            State::AwaitingPaused => out.push(Action::Send(Message::RequestPause)),
            State::Requested { .. } => out.push(Action::Send(Message::RequestFailover)),
            State::AwaitingAck
            | State::Receiving
            | State::CatchingUp { .. }
            | State::Granted { .. }
            | State::Claiming
            | State::Over => {}
        }
    }

    fn lost(&mut self, out: &mut Vec<Action>) {
        self.fail(
            "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.",
            out,
        );
    }

    fn on_heard(&mut self, now: Instant, message: Message, out: &mut Vec<Action>) {
        self.heard = now;
        match (message, self.state) {
            (Message::Ack, State::AwaitingAck) => self.state = State::Receiving,
            (Message::Ack, _) | (_, State::Granted { .. } | State::Claiming) => {}
            (Message::SnapshotEof, State::Receiving) => {
                self.state = State::CatchingUp { until: now + CATCH_UP_WITHIN };
            }
            (Message::Paused, State::AwaitingPaused) => {
                self.enter(State::Requested { at: now }, Action::Send(Message::RequestFailover), out);
            }
            (Message::FailoverGranted, State::Requested { at }) if now < at + GRANT_WITHIN => {
                self.enter(State::Granted { before: at + CLAIM_WITHIN }, Action::AwaitReplicas, out);
            }
            (message, _) => self.fail(format!("Source node sent {} out of order", message.word()), out),
        }
    }

    fn on_replicas_have(&mut self, now: Instant, around: Around, out: &mut Vec<Action>) {
        let State::Granted { before } = self.state else { return };
        match around.hindrance() {
            Some(why) => self.fail(why, out),
            None if now >= before => self.fail("The slots were granted too long ago", out),
            None => self.enter(State::Claiming, Action::Claim, out),
        }
    }

    /// Requests the pause. Clients' writes wait from then on, so little should remain to be applied.
    fn on_caught_up(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::CatchingUp { .. }) {
            self.enter(State::AwaitingPaused, Action::Send(Message::RequestPause), out);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if matches!(self.state, State::Requested { at } if now >= at + GRANT_WITHIN) {
            return self.fail("The source node did not grant the slots in time", out);
        }
        if now >= self.heard + self.timeout {
            return self.fail("Timed out after too long with no interaction", out);
        }
        if self.down.is_some_and(|until| now >= until) {
            return self.lost(out);
        }
        if matches!(self.state, State::CatchingUp { until } if now >= until) {
            self.on_caught_up(out);
        }
        if self.down.is_none() && now >= self.next_ack {
            self.next_ack = now + ACK_PERIOD;
            out.push(Action::Send(Message::Ack));
        }
    }

    fn enter(&mut self, state: State, action: Action, out: &mut Vec<Action>) {
        self.state = state;
        out.push(action);
    }

    fn fail(&mut self, why: impl Into<String>, out: &mut Vec<Action>) {
        self.end(Err(why.into()), out);
    }

    fn end(&mut self, outcome: Result<(), String>, out: &mut Vec<Action>) {
        self.enter(State::Over, Action::End(outcome), out);
    }
}
