//! The target side of a slot migration.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use driver::Driver;
use slot_routing::Topology;

use crate::message::{Establish, Message};
use crate::{ACK_PERIOD, RESUME_TIMEOUT, serves};

/// The grant must arrive within this time after the target requested it. The source pauses writes for longer, counted
/// from the arrival of the request.
pub(crate) const GRANT_TIMEOUT: Duration = Duration::from_secs(2);

/// The slots must be claimed within this time after the target requested the grant, which is well before the source
/// accepts writes again.
pub const CLAIM_TIMEOUT: Duration = Duration::from_secs(4);

/// After this time the target requests the pause even if it has not caught up; the source then decides whether too many
/// bytes remain.
pub(crate) const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// An event for the target's state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImportEvent {
    /// The source sent this message. All data that preceded the message has been applied.
    Received(Message),
    /// Data other than a message has been applied. It shows that the source is alive.
    DataApplied,
    /// Everything received so far has been applied.
    CaughtUp,
    /// The link to the source is closed.
    Closed,
    /// The source has resumed the migration on a new link.
    Resumed,
    /// The source reported the end of the migration.
    EndedByPeer,
    /// An operator wants to cancel the migration.
    Cancel,
    /// This node now owns the slots.
    Claimed,
    /// The slots cannot be claimed, for this reason.
    NotClaimed(String),
    /// The external conditions of the migration may have changed.
    Conditions(ImportConditions),
    /// The replicas have received all imported data, or the wait for them timed out. The conditions are checked again.
    ReplicasCaughtUp(ImportConditions),
    /// The migration cannot continue, for this reason.
    Failed(String),
    /// The time of [`Import::next_deadline`] has come.
    Deadline,
}

/// External conditions that a migration depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportConditions {
    /// Whether this node is a master.
    pub is_master: bool,
    /// Whether the source, or another node of its shard, owns all of the slots; false on a replica.
    pub source_serves: bool,
    /// Whether a FLUSHALL or FLUSHDB ran here since the migration began.
    pub flushed: bool,
}

impl ImportConditions {
    /// Reads the conditions from a topology. `was_flushed` says that a FLUSHALL or FLUSHDB ran here since the migration
    /// began.
    #[must_use]
    pub fn new(topology: &Topology, is_replica: bool, job: &Establish, flushed: bool) -> Self {
        let source_serves = !is_replica && serves(topology, job.source, &job.slots());
        Self { is_master: !is_replica, source_serves, flushed }
    }

    /// Returns why the migration cannot continue, or `None` if it can.
    #[must_use]
    pub fn failure_reason(self) -> Option<&'static str> {
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
pub(crate) enum ImportAction {
    Send(Message),
    /// Wait until the replicas have received all imported data, because the source deletes its copy once the slots are
    /// claimed.
    AwaitReplicas,
    /// Claim ownership of the slots under a new epoch.
    Claim,
    /// The migration has ended. After success the imported keys become visible; after a failure they are deleted.
    End(Result<(), String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImportState {
    AwaitingAck,
    Receiving,
    CatchingUp {
        until: Instant,
    },
    AwaitingPaused,
    Requested {
        at: Instant,
    },
    /// The slots must be claimed before this time, because the source may accept writes afterwards.
    Granted {
        before: Instant,
    },
    Claiming,
    Over,
}

/// State machine of a migration's target.
#[derive(Debug)]
pub(crate) struct Import {
    timeout: Duration,
    state: ImportState,
    last_received: Instant,
    next_ack: Instant,
    resumable: bool,
    /// After a broken link, the time at which the migration fails unless it is resumed; `None` while the link is up.
    disconnected: Option<Instant>,
}

impl Import {
    /// Starts a migration announced by a source. The migration fails after `timeout` without input. It also fails when
    /// the link breaks, unless it can be resumed.
    #[must_use]
    pub(crate) fn new(now: Instant, timeout: Duration, resumable: bool) -> Self {
        let (state, next_ack) = (ImportState::AwaitingAck, now + ACK_PERIOD);
        Self { timeout, state, last_received: now, next_ack, resumable, disconnected: None }
    }

    /// Returns the name of the current state in Valkey.
    #[must_use]
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            ImportState::AwaitingAck => "waiting-for-ack",
            ImportState::Receiving => "receiving-snapshot",
            ImportState::CatchingUp { .. } | ImportState::AwaitingPaused => "waiting-for-paused",
            ImportState::Requested { .. } => "failover-requested",
            ImportState::Granted { .. } | ImportState::Claiming => "failover-granted",
            ImportState::Over => "success",
        }
    }

    /// Sends the last request again after a reconnect, because the source may not have received it.
    fn on_resumed(&mut self, now: Instant, out: &mut Vec<ImportAction>) {
        (self.disconnected, self.last_received, self.next_ack) = (None, now, now + ACK_PERIOD);
        match self.state {
            ImportState::AwaitingPaused => out.push(ImportAction::Send(Message::RequestPause)),
            ImportState::Requested { .. } => out.push(ImportAction::Send(Message::RequestFailover)),
            ImportState::AwaitingAck
            | ImportState::Receiving
            | ImportState::CatchingUp { .. }
            | ImportState::Granted { .. }
            | ImportState::Claiming
            | ImportState::Over => {}
        }
    }

    fn fail_disconnected(&mut self, out: &mut Vec<ImportAction>) {
        self.fail(
            "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.",
            out,
        );
    }

    fn on_message(&mut self, now: Instant, message: Message, out: &mut Vec<ImportAction>) {
        self.last_received = now;
        match (message, self.state) {
            (Message::Ack, ImportState::AwaitingAck) => self.state = ImportState::Receiving,
            (Message::Ack, _) | (_, ImportState::Granted { .. } | ImportState::Claiming) => {}
            (Message::SnapshotEof, ImportState::Receiving) => {
                self.state = ImportState::CatchingUp { until: now + CATCH_UP_TIMEOUT };
            }
            (Message::Paused, ImportState::AwaitingPaused) => {
                self.transition(
                    ImportState::Requested { at: now },
                    ImportAction::Send(Message::RequestFailover),
                    out,
                );
            }
            (Message::FailoverGranted, ImportState::Requested { at }) if now < at + GRANT_TIMEOUT => {
                self.transition(
                    ImportState::Granted { before: at + CLAIM_TIMEOUT },
                    ImportAction::AwaitReplicas,
                    out,
                );
            }
            (message, _) => self.fail(format!("Source node sent {} out of order", message.word()), out),
        }
    }

    fn on_replicas_caught_up(&mut self, now: Instant, around: ImportConditions, out: &mut Vec<ImportAction>) {
        let ImportState::Granted { before } = self.state else { return };
        match around.failure_reason() {
            Some(why) => self.fail(why, out),
            None if now >= before => self.fail("The slots were granted too long ago", out),
            None => self.transition(ImportState::Claiming, ImportAction::Claim, out),
        }
    }

    /// Requests the pause. Clients' writes wait from this request on, so little data should remain to be applied.
    fn on_caught_up(&mut self, out: &mut Vec<ImportAction>) {
        if matches!(self.state, ImportState::CatchingUp { .. }) {
            self.transition(ImportState::AwaitingPaused, ImportAction::Send(Message::RequestPause), out);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<ImportAction>) {
        if matches!(self.state, ImportState::Requested { at } if now >= at + GRANT_TIMEOUT) {
            return self.fail("The source node did not grant the slots in time", out);
        }
        if now >= self.last_received + self.timeout {
            return self.fail("Timed out after too long with no interaction", out);
        }
        if self.disconnected.is_some_and(|until| now >= until) {
            return self.fail_disconnected(out);
        }
        if matches!(self.state, ImportState::CatchingUp { until } if now >= until) {
            self.on_caught_up(out);
        }
        if self.disconnected.is_none() && now >= self.next_ack {
            self.next_ack = now + ACK_PERIOD;
            out.push(ImportAction::Send(Message::Ack));
        }
    }

    fn transition(&mut self, state: ImportState, action: ImportAction, out: &mut Vec<ImportAction>) {
        self.state = state;
        out.push(action);
    }

    fn fail(&mut self, why: impl Into<String>, out: &mut Vec<ImportAction>) {
        self.end(Err(why.into()), out);
    }

    fn end(&mut self, outcome: Result<(), String>, out: &mut Vec<ImportAction>) {
        self.transition(ImportState::Over, ImportAction::End(outcome), out);
    }
}

impl Driver for Import {
    type Event = ImportEvent;
    type Actions = Vec<ImportAction>;

    /// Processes an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, input: ImportEvent, out: &mut Vec<ImportAction>) {
        if self.state == ImportState::Over {
            return;
        }
        match input {
            ImportEvent::Received(message) => self.on_message(now, message, out),
            ImportEvent::DataApplied => self.last_received = now,
            ImportEvent::CaughtUp => self.on_caught_up(out),
            ImportEvent::Claimed => self.end(Ok(()), out),
            ImportEvent::NotClaimed(why) => self.fail(why, out),
            ImportEvent::ReplicasCaughtUp(around) => self.on_replicas_caught_up(now, around, out),
            // Once the slots are granted, only the result of the claim matters.
            _ if matches!(self.state, ImportState::Granted { .. } | ImportState::Claiming) => {}
            ImportEvent::Conditions(around) => {
                if let Some(why) = around.failure_reason() {
                    self.fail(why, out);
                }
            }
            ImportEvent::Closed if self.resumable => {
                self.disconnected = Some(self.disconnected.unwrap_or(now + RESUME_TIMEOUT));
            }
            ImportEvent::Closed | ImportEvent::EndedByPeer => self.fail_disconnected(out),
            ImportEvent::Resumed => self.on_resumed(now, out),
            ImportEvent::Cancel => self.fail("Cancelled", out),
            ImportEvent::Failed(why) => self.fail(why, out),
            ImportEvent::Deadline => self.on_deadline(now, out),
        }
    }

    /// When to send [`ImportEvent::Deadline`] if no other event occurs first.
    fn next_deadline(&self) -> Option<Instant> {
        let link = (self.last_received + self.timeout).min(self.disconnected.unwrap_or(self.next_ack));
        match self.state {
            // In these states the driver reports the result of the claim, so there is no deadline.
            ImportState::Granted { .. } | ImportState::Claiming | ImportState::Over => None,
            ImportState::Requested { at } => Some(link.min(at + GRANT_TIMEOUT)),
            ImportState::CatchingUp { until } => Some(link.min(until)),
            ImportState::AwaitingAck | ImportState::Receiving | ImportState::AwaitingPaused => Some(link),
        }
    }
}
