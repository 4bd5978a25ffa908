//! The target side of a slot migration.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use driver::Driver;
use slot_routing::Topology;

use crate::message::{EstablishMessage, MigrationMessage};
use crate::{ACK_PERIOD, RESUME_TIMEOUT, owns_slots};

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
    Received(MigrationMessage),
    /// Data other than a message has been applied, which shows that the source is alive.
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
    SlotsClaimed,
    /// The slots cannot be claimed, for this reason.
    ClaimFailed(String),
    /// The external conditions of the migration may have changed.
    ConditionsChanged(ImportConditions),
    /// The replicas have received all imported data, or the wait for them timed out. The conditions are checked again.
    ReplicasCaughtUp(ImportConditions),
    /// The migration cannot continue, for this reason.
    Failed(String),
    /// The time of [`ImportStateMachine::next_deadline`] has come.
    Deadline,
}

/// External conditions that a migration depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportConditions {
    /// Whether this node is a master.
    pub is_master: bool,
    /// Whether the source, or another node of its shard, owns all of the slots; false on a replica.
    pub source_owns_slots: bool,
    /// Whether a FLUSHALL or FLUSHDB ran here since the migration began.
    pub was_flushed: bool,
}

impl ImportConditions {
    /// Reads the conditions from a topology. `was_flushed` says that a FLUSHALL or FLUSHDB ran here since the migration
    /// began.
    #[must_use]
    pub fn new(topology: &Topology, is_replica: bool, job: &EstablishMessage, was_flushed: bool) -> Self {
        let source_serves = !is_replica && owns_slots(topology, job.source, &job.slots());
        Self { is_master: !is_replica, source_owns_slots: source_serves, was_flushed }
    }

    /// Returns why the migration cannot continue, or `None` if it can.
    #[must_use]
    pub fn failure_reason(self) -> Option<&'static str> {
        match self {
            Self { is_master: false, .. } => Some("A failover occurred during slot import"),
            Self { source_owns_slots: false, .. } => Some("Slots are no longer owned by source node."),
            Self { was_flushed: true, .. } => Some("Data was flushed"),
            _ => None,
        }
    }
}

/// An action for the target's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImportAction {
    Send(MigrationMessage),
    /// Wait until the replicas have received all imported data, because the source deletes its keys once the slots are
    /// claimed.
    AwaitReplicas,
    /// Claim ownership of the slots under a new epoch.
    ClaimSlots,
    /// The migration has ended. After success the imported keys become visible; after a failure they are deleted.
    End(Result<(), String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImportState {
    AwaitingFirstAck,
    Receiving,
    CatchingUp {
        deadline: Instant,
    },
    AwaitingPaused,
    GrantRequested {
        requested_at: Instant,
    },
    /// The slots must be claimed before this time, because the source may accept writes afterwards.
    Granted {
        claim_deadline: Instant,
    },
    Claiming,
    Ended,
}

/// State machine of a migration's target.
#[derive(Debug)]
pub(crate) struct ImportStateMachine {
    timeout: Duration,
    state: ImportState,
    last_received_at: Instant,
    next_ack_at: Instant,
    is_resumable: bool,
    /// After a broken link, the time at which the migration fails unless it is resumed; `None` while the link is up.
    resume_deadline: Option<Instant>,
}

impl ImportStateMachine {
    /// Starts a migration announced by a source. The migration fails after `timeout` without input. It also fails when
    /// the link breaks, unless it can be resumed.
    #[must_use]
    pub(crate) fn new(now: Instant, timeout: Duration, resumable: bool) -> Self {
        let (state, next_ack) = (ImportState::AwaitingFirstAck, now + ACK_PERIOD);
        Self {
            timeout,
            state,
            last_received_at: now,
            next_ack_at: next_ack,
            is_resumable: resumable,
            resume_deadline: None,
        }
    }

    /// Returns the name of the current state in Valkey.
    #[must_use]
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            ImportState::AwaitingFirstAck => "waiting-for-ack",
            ImportState::Receiving => "receiving-snapshot",
            ImportState::CatchingUp { .. } | ImportState::AwaitingPaused => "waiting-for-paused",
            ImportState::GrantRequested { .. } => "failover-requested",
            ImportState::Granted { .. } | ImportState::Claiming => "failover-granted",
            ImportState::Ended => "success",
        }
    }

    /// Sends the last request again after a reconnect, because the source may not have received it.
    fn on_resumed(&mut self, now: Instant, out: &mut Vec<ImportAction>) {
        (self.resume_deadline, self.last_received_at, self.next_ack_at) = (None, now, now + ACK_PERIOD);
        match self.state {
            ImportState::AwaitingPaused => out.push(ImportAction::Send(MigrationMessage::RequestPause)),
            ImportState::GrantRequested { .. } => {
                out.push(ImportAction::Send(MigrationMessage::RequestFailover));
            }
            ImportState::AwaitingFirstAck
            | ImportState::Receiving
            | ImportState::CatchingUp { .. }
            | ImportState::Granted { .. }
            | ImportState::Claiming
            | ImportState::Ended => {}
        }
    }

    fn fail_disconnected(&mut self, out: &mut Vec<ImportAction>) {
        self.fail(
            "Connection lost to source. Check CLUSTER GETSLOTMIGRATIONS on the source node for more information.",
            out,
        );
    }

    fn on_message(&mut self, now: Instant, message: MigrationMessage, out: &mut Vec<ImportAction>) {
        self.last_received_at = now;
        match (message, self.state) {
            (MigrationMessage::Ack, ImportState::AwaitingFirstAck) => self.state = ImportState::Receiving,
            (MigrationMessage::Ack, _) | (_, ImportState::Granted { .. } | ImportState::Claiming) => {}
            (MigrationMessage::SnapshotEof, ImportState::Receiving) => {
                self.state = ImportState::CatchingUp { deadline: now + CATCH_UP_TIMEOUT };
            }
            (MigrationMessage::Paused, ImportState::AwaitingPaused) => {
                self.transition(
                    ImportState::GrantRequested { requested_at: now },
                    ImportAction::Send(MigrationMessage::RequestFailover),
                    out,
                );
            }
            (MigrationMessage::FailoverGranted, ImportState::GrantRequested { requested_at: at })
                if now < at + GRANT_TIMEOUT =>
            {
                self.transition(
                    ImportState::Granted { claim_deadline: at + CLAIM_TIMEOUT },
                    ImportAction::AwaitReplicas,
                    out,
                );
            }
            (message, _) => self.fail(format!("Source node sent {} out of order", message.wire_name()), out),
        }
    }

    fn on_replicas_caught_up(
        &mut self,
        now: Instant,
        conditions: ImportConditions,
        out: &mut Vec<ImportAction>,
    ) {
        let ImportState::Granted { claim_deadline: before } = self.state else { return };
        match conditions.failure_reason() {
            Some(why) => self.fail(why, out),
            None if now >= before => self.fail("The slots were granted too long ago", out),
            None => self.transition(ImportState::Claiming, ImportAction::ClaimSlots, out),
        }
    }

    /// Requests the pause. Clients' writes wait from this request on, so little data should remain to be applied.
    fn on_caught_up(&mut self, out: &mut Vec<ImportAction>) {
        if matches!(self.state, ImportState::CatchingUp { .. }) {
            self.transition(
                ImportState::AwaitingPaused,
                ImportAction::Send(MigrationMessage::RequestPause),
                out,
            );
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<ImportAction>) {
        if matches!(self.state, ImportState::GrantRequested { requested_at } if now >= requested_at + GRANT_TIMEOUT)
        {
            return self.fail("The source node did not grant the slots in time", out);
        }
        if now >= self.last_received_at + self.timeout {
            return self.fail("Timed out after too long with no interaction", out);
        }
        if self.resume_deadline.is_some_and(|until| now >= until) {
            return self.fail_disconnected(out);
        }
        if matches!(self.state, ImportState::CatchingUp { deadline } if now >= deadline) {
            self.on_caught_up(out);
        }
        if self.resume_deadline.is_none() && now >= self.next_ack_at {
            self.next_ack_at = now + ACK_PERIOD;
            out.push(ImportAction::Send(MigrationMessage::Ack));
        }
    }

    fn transition(&mut self, state: ImportState, action: ImportAction, out: &mut Vec<ImportAction>) {
        self.state = state;
        out.push(action);
    }

    fn fail(&mut self, reason: impl Into<String>, out: &mut Vec<ImportAction>) {
        self.end(Err(reason.into()), out);
    }

    fn end(&mut self, outcome: Result<(), String>, out: &mut Vec<ImportAction>) {
        self.transition(ImportState::Ended, ImportAction::End(outcome), out);
    }
}

impl Driver for ImportStateMachine {
    type Event = ImportEvent;
    type Actions = Vec<ImportAction>;

    /// Processes an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, event: ImportEvent, out: &mut Vec<ImportAction>) {
        if self.state == ImportState::Ended {
            return;
        }
        match event {
            ImportEvent::Received(message) => self.on_message(now, message, out),
            ImportEvent::DataApplied => self.last_received_at = now,
            ImportEvent::CaughtUp => self.on_caught_up(out),
            ImportEvent::SlotsClaimed => self.end(Ok(()), out),
            ImportEvent::ClaimFailed(why) => self.fail(why, out),
            ImportEvent::ReplicasCaughtUp(around) => self.on_replicas_caught_up(now, around, out),
            // Once the slots are granted, only the result of the claim matters.
            _ if matches!(self.state, ImportState::Granted { .. } | ImportState::Claiming) => {}
            ImportEvent::ConditionsChanged(around) => {
                if let Some(why) = around.failure_reason() {
                    self.fail(why, out);
                }
            }
            ImportEvent::Closed if self.is_resumable => {
                self.resume_deadline = Some(self.resume_deadline.unwrap_or(now + RESUME_TIMEOUT));
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
        let link =
            (self.last_received_at + self.timeout).min(self.resume_deadline.unwrap_or(self.next_ack_at));
        match self.state {
            // In these states the driver reports the result of the claim, so there is no deadline.
            ImportState::Granted { .. } | ImportState::Claiming | ImportState::Ended => None,
            ImportState::GrantRequested { requested_at: at } => Some(link.min(at + GRANT_TIMEOUT)),
            ImportState::CatchingUp { deadline: until } => Some(link.min(until)),
            ImportState::AwaitingFirstAck | ImportState::Receiving | ImportState::AwaitingPaused => {
                Some(link)
            }
        }
    }
}
