//! The target of a job.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use slot_routing::{Slot, SlotSet};

use crate::message::Message;
use crate::{ACK_PERIOD, RESUME_WITHIN};

/// The slots are claimed only if they were granted within this after they were asked for. The source holds writes for
/// longer than that, counted from when the request came there.
pub const GRANT_WITHIN: Duration = Duration::from_secs(2);

/// And they are claimed only within this after they were asked for, whatever held the target up meanwhile: well before the
/// source goes on with them.
pub const CLAIM_WITHIN: Duration = Duration::from_secs(4);

/// A target that is still behind after this asks for the pause all the same: the source says whether too much is left.
pub const CATCH_UP_WITHIN: Duration = Duration::from_secs(5);

/// Whether the source may send a command of this name about keys in these slots: it is about the slots of the job, or about
/// the job itself.
#[must_use]
pub fn is_of_job(name: &[u8], about: &[Slot], job: &SlotSet) -> bool {
    const ABOUT_THE_JOB: [&str; 5] = ["cluster", "select", "multi", "exec", "ping"];
    ABOUT_THE_JOB.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()))
        || !about.is_empty() && about.iter().all(|slot| job.contains(*slot))
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The source said this. What it sent before was applied.
    Heard(Message),
    /// Anything else came, and was applied.
    Fed,
    /// Nothing more has come by now: all of it was applied.
    CaughtUp,
    /// The link has ended.
    Closed,
    /// The source goes on with another link.
    Resumed,
    /// The source says that the job has ended there.
    EndedThere,
    /// An operator ends it.
    Cancel,
    /// The slots are this node's.
    Claimed,
    /// They cannot be claimed, for this reason.
    NotClaimed(String),
    /// The things that the node sees around it.
    Around(Around),
    /// The replicas have what came, or do not come to it.
    ReplicasHave(Around),
    /// The job cannot go on, for this reason.
    Broken(String),
    /// The time of [`Import::next_deadline`] has come.
    Deadline,
}

/// The things around a job that can end it from without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Around {
    /// This node is a master.
    pub is_master: bool,
    /// The source serves all of the slots.
    pub source_serves: bool,
    /// All keys of a database were deleted here since the job began.
    pub flushed: bool,
}

impl Around {
    /// Why the job cannot go on.
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

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Say this to the source.
    Send(Message),
    /// Wait for the replicas to have what came: the source deletes it once the slots are claimed.
    AwaitReplicas,
    /// Claim the slots.
    Claim,
    /// It is over. Success: what came is shown. Failure, with its reason: that is deleted.
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
    /// The slots are not claimed after `before`: the source may take writes again.
    Granted {
        before: Instant,
    },
    Claiming,
    Over,
}

/// The machine of a job's target.
#[derive(Debug)]
pub struct Import {
    timeout: Duration,
    state: State,
    heard: Instant,
    next_ack: Instant,
    resumable: bool,
    /// There is no link; the job ends then.
    down: Option<Instant>,
}

impl Import {
    /// A job that a source has named. Silence of `timeout` ends it, and so does the end of its link if it is not one that
    /// goes on with another (`resumable`).
    #[must_use]
    pub fn new(now: Instant, timeout: Duration, resumable: bool) -> Self {
        let (state, next_ack) = (State::AwaitingAck, now + ACK_PERIOD);
        Self { timeout, state, heard: now, next_ack, resumable, down: None }
    }

    /// The state by the name that Valkey gives it.
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

    /// When something is to be done if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let link = (self.heard + self.timeout).min(self.down.unwrap_or(self.next_ack));
        match self.state {
            // The driver tells the outcome.
            State::Granted { .. } | State::Claiming | State::Over => None,
            State::Requested { at } => Some(link.min(at + GRANT_WITHIN)),
            State::CatchingUp { until } => Some(link.min(until)),
            State::AwaitingAck | State::Receiving | State::AwaitingPaused => Some(link),
        }
    }

    /// Takes what happened; says what is to be done.
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
            // Whether the claim holds is known when its outcome is.
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

    /// The last message may not have come: it is said once more.
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

    /// The writers wait from the pause on: it is asked for when little is left to be applied in it.
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
