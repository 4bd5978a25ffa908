//! Drives the target side of a slot migration: combines [`ImportStateMachine`] with the link to the source and the
//! count of applied bytes. The node and the simulator run this same driver.
//!
//! The process owns the connection, the engine and the cluster. It performs each [`ImportDriverAction`] in sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | accepts ESTABLISH, empties and hides the slots, calls [`ImportDriver::new`] | replies `+OK` |
//! | 2 | reads from the link; [`ImportDriverEvent::Received`] | splits the bytes into commands |
//! | 3 | [`ImportDriverAction::ApplyCommands`]: executes the commands; [`ImportDriverEvent::CommandsApplied`] | handles the migration messages among the commands |
//! | 4 | [`ImportDriverAction::AwaitReplicas`]: [`ImportDriverEvent::ReplicasCaughtUp`] | checks that the grant is recent |
//! | 5 | [`ImportDriverAction::ClaimSlots`]: claims the slots; [`ImportDriverEvent::ClaimResult`] | ends the job |
//!
//! The process reads from the link, and accepts a new link, only while [`ImportDriver::can_read`] is true. No action waits
//! for the disk: the cluster persists the claim.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use driver::Driver;
use resp::{Args, Batch, ParseLimits, Parser};
use slot_routing::SlotSet;

use crate::import::{ImportAction, ImportConditions, ImportEvent, ImportStateMachine};
use crate::logged_command::KeysInSlots;
use crate::{
    ControlCommand, EstablishMessage, FinishMessage, LoggedCommandDecoder, LoggedCommandKind,
    MigrationMessage, SyncSlotsCommand,
};

/// The maximum number of commands passed to the process at once.
const MAX_COMMANDS_PER_BATCH: usize = 1024;
/// The target acknowledges after this many applied bytes, so that the source can discard them.
const ACK_INTERVAL_BYTES: u64 = 256 * 1024;

/// Commands to execute, in the order in which the source sent them.
#[derive(Debug)]
pub struct SourceCommands {
    /// The commands in wire form, one after another.
    pub bytes: Vec<u8>,
    /// The position of each command within `bytes`. The process skips migration messages among the commands, because
    /// the driver handles them.
    pub batch: Batch,
}

/// An event that the process reports to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportDriverEvent {
    /// The source sent these bytes.
    Received {
        /// The received bytes, which may end within a command.
        bytes: Vec<u8>,
        /// Whether more bytes may already be waiting on the connection.
        has_more: bool,
    },
    /// The commands of [`ImportDriverAction::ApplyCommands`] were executed. `Err` contains the first error reply.
    CommandsApplied(Result<(), String>),
    /// The source resumes the migration on a new link, which replaces the old one. The bytes are those received after
    /// RESUME.
    Resumed(Vec<u8>),
    /// The link closed, or no more bytes can be sent over it.
    Closed,
    /// The external conditions. Reported at the start and after every change of the topology.
    ConditionsChanged(ImportConditions),
    /// The replicas have received all imported data, or the wait for them timed out.
    ReplicasCaughtUp(ImportConditions),
    /// The claim was processed. On success this node owns the slots; `Err` says why it cannot claim them.
    ClaimResult(Result<(), String>),
    /// An operator wants to cancel the migration.
    Cancel,
    /// The time of [`Driver::next_deadline`] has come.
    Deadline,
}

/// An action that the process must perform.
#[derive(Debug)]
pub enum ImportDriverAction {
    /// Send these bytes to the source.
    Send(Vec<u8>),
    /// Execute these commands with the permissions of the source, then report [`ImportDriverEvent::CommandsApplied`].
    ApplyCommands(SourceCommands),
    /// Wait until the replicas have received all imported data, then report the conditions.
    AwaitReplicas,
    /// Claim the slots under a new epoch, then report the result.
    ClaimSlots,
    /// The migration has ended: close the link, delete the imported keys if the migration failed, and make the slots
    /// visible.
    End(Result<(), String>),
}

/// The state of the link to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceLink {
    Up,
    Down,
    Ended,
}

/// The commands that the process is executing.
#[derive(Debug)]
struct PendingCommands {
    /// The length of the commands in wire form, in bytes.
    byte_count: u64,
    /// The events for the migration messages among the commands.
    messages: Vec<ImportEvent>,
    /// The protocol error in the bytes that follow these commands.
    error: Option<String>,
}

/// Drives the target side of a slot migration.
#[derive(Debug)]
pub struct ImportDriver {
    job: EstablishMessage,
    slots: SlotSet,
    slot_finder: LoggedCommandDecoder,
    state_machine: ImportStateMachine,
    link: SourceLink,
    parser: Parser,
    /// Received bytes that have not been executed yet.
    unapplied_bytes: Vec<u8>,
    has_more: bool,
    pending_commands: Option<PendingCommands>,
    /// The number of bytes applied since the start of the migration.
    applied_bytes: u64,
    acknowledged_bytes: u64,
}

type Actions = Vec<ImportDriverAction>;

impl ImportDriver {
    /// Starts a migration announced by a source. The migration fails after `timeout` without input. `received` contains
    /// the bytes that followed ESTABLISH on the link.
    #[must_use]
    pub fn new(
        now: Instant,
        job: EstablishMessage,
        timeout: Duration,
        slot_finder: LoggedCommandDecoder,
        received: Vec<u8>,
    ) -> (Self, Actions) {
        let mut driver = Self {
            slots: job.slots(),
            slot_finder,
            state_machine: ImportStateMachine::new(now, timeout, job.is_resumable),
            job,
            link: SourceLink::Up,
            parser: Parser::new(),
            unapplied_bytes: Vec::new(),
            has_more: true,
            pending_commands: None,
            applied_bytes: 0,
            acknowledged_bytes: 0,
        };
        let mut out = vec![ImportDriverAction::Send(b"+OK\r\n".to_vec())];
        driver.on_received(now, received, true, &mut out);
        (driver, out)
    }

    /// The name of the current state in Valkey; `None` after the end of the migration.
    #[must_use]
    pub fn state_name(&self) -> Option<&'static str> {
        (self.link != SourceLink::Ended).then(|| self.state_machine.state_name())
    }

    /// Whether all received bytes have been executed. Only then may the process read from the link or replace it.
    #[must_use]
    pub fn can_read(&self) -> bool {
        self.pending_commands.is_none()
    }

    /// The announcement of the migration, with its name and slots.
    #[must_use]
    pub fn job(&self) -> &EstablishMessage {
        &self.job
    }

    /// Passes an event to the state machine and translates its actions.
    fn feed_state_machine(&mut self, now: Instant, event: ImportEvent, out: &mut Actions) {
        let mut actions = Vec::new();
        self.state_machine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                ImportAction::Send(MigrationMessage::Ack) if self.job.is_resumable => self.acknowledge(out),
                ImportAction::Send(message) => self.send(&SyncSlotsCommand::Message(message), out),
                ImportAction::AwaitReplicas => out.push(ImportDriverAction::AwaitReplicas),
                ImportAction::ClaimSlots => out.push(ImportDriverAction::ClaimSlots),
                ImportAction::End(outcome) => {
                    // Tell the source that the migration has ended, because it would reconnect otherwise.
                    if outcome.is_err() && self.job.is_resumable {
                        self.send(&SyncSlotsCommand::Finish(FinishMessage::failed(self.job.name)), out);
                    }
                    self.link = SourceLink::Ended;
                    out.push(ImportDriverAction::End(outcome));
                }
            }
        }
    }

    fn acknowledge(&mut self, out: &mut Actions) {
        self.acknowledged_bytes = self.applied_bytes;
        self.send(&SyncSlotsCommand::AppliedBytes(self.applied_bytes), out);
    }

    fn send(&mut self, command: &SyncSlotsCommand, out: &mut Actions) {
        if self.link == SourceLink::Up {
            out.push(ImportDriverAction::Send(command.to_resp()));
        }
    }

    fn on_received(&mut self, now: Instant, bytes: Vec<u8>, has_more: bool, out: &mut Actions) {
        self.has_more = has_more;
        if self.unapplied_bytes.is_empty() {
            self.unapplied_bytes = bytes;
        } else {
            self.unapplied_bytes.extend_from_slice(&bytes);
        }
        self.apply_next_commands(now, out);
    }

    /// Passes the next complete commands to the process, or records that all received bytes have been executed.
    fn apply_next_commands(&mut self, now: Instant, out: &mut Actions) {
        let limits = ParseLimits {
            max_bulk_len: i64::from(u32::MAX),
            max_requests: MAX_COMMANDS_PER_BATCH,
            allows_inline: false,
            ..ParseLimits::default()
        };
        let mut batch = Batch::default();
        let parsed = self.parser.parse(&mut self.unapplied_bytes, &mut batch, &limits);
        let (len, error) = (parsed.consumed_bytes as u64, parsed.error.map(|error| error.to_string()));
        if batch.is_empty() {
            self.unapplied_bytes.drain(..parsed.consumed_bytes);
            self.applied_bytes += len;
            return match error {
                Some(error) => self.feed_state_machine(now, ImportEvent::Failed(error), out),
                None => self.on_all_applied(now, out),
            };
        }
        let rest = self.unapplied_bytes.split_off(parsed.consumed_bytes);
        let bytes = std::mem::replace(&mut self.unapplied_bytes, rest);
        let mut messages = Vec::new();
        for args in batch.requests(0..batch.len(), &bytes) {
            match self.check_command(args) {
                Ok(message) => messages.extend(message),
                Err(why) => return self.feed_state_machine(now, ImportEvent::Failed(why), out),
            }
        }
        self.pending_commands = Some(PendingCommands { byte_count: len, messages, error });
        out.push(ImportDriverAction::ApplyCommands(SourceCommands { bytes, batch }));
    }

    /// Checks whether the source may send this command. Returns the event for a migration message, and an error if the
    /// command is not allowed.
    fn check_command(&self, args: Args<'_>) -> Result<Option<ImportEvent>, String> {
        let name = args.get(0).unwrap_or_default();
        match ControlCommand::decode(args) {
            Ok(Some(ControlCommand::SyncSlots(SyncSlotsCommand::Finish(_)))) => {
                return Ok(Some(ImportEvent::EndedByPeer));
            }
            Ok(Some(ControlCommand::SyncSlots(SyncSlotsCommand::Message(message)))) => {
                return Ok(Some(ImportEvent::Received(message)));
            }
            Ok(_) => {}
            Err(error) => return Err(format!("The source sent a {error}")),
        }
        let (kind, keys) = self.slot_finder.decode(args, &self.slots);
        let is_allowed = match kind {
            LoggedCommandKind::SelectDb
            | LoggedCommandKind::BeginTransaction
            | LoggedCommandKind::EndTransaction
            | LoggedCommandKind::KeepAlive => true,
            // The node ignores unknown subcommands of CLUSTER.
            LoggedCommandKind::ChangesUnnamedKeys | LoggedCommandKind::Other => {
                keys == KeysInSlots::All || name.eq_ignore_ascii_case(b"cluster")
            }
        };
        if is_allowed {
            return Ok(None);
        }
        let name = String::from_utf8_lossy(name);
        Err(format!("The source sent a command that is not about the slots: {}", name.escape_debug()))
    }

    fn on_applied(&mut self, now: Instant, result: Result<(), String>, out: &mut Actions) {
        let Some(pending) = self.pending_commands.take() else { return };
        if let Err(why) = result {
            let why = format!("A command of the source failed: {why}");
            return self.feed_state_machine(now, ImportEvent::Failed(why), out);
        }
        self.applied_bytes += pending.byte_count;
        for message in pending.messages {
            self.feed_state_machine(now, message, out);
        }
        match pending.error {
            Some(error) => self.feed_state_machine(now, ImportEvent::Failed(error), out),
            None if self.link != SourceLink::Ended => self.apply_next_commands(now, out),
            None => {}
        }
    }

    fn on_all_applied(&mut self, now: Instant, out: &mut Actions) {
        if self.job.is_resumable && self.applied_bytes - self.acknowledged_bytes >= ACK_INTERVAL_BYTES {
            self.acknowledge(out);
        }
        if !self.has_more {
            self.feed_state_machine(now, ImportEvent::CaughtUp, out);
        }
    }

    fn on_resumed(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Actions) {
        (self.link, self.parser, self.unapplied_bytes) = (SourceLink::Up, Parser::new(), Vec::new());
        self.acknowledged_bytes = self.applied_bytes;
        out.push(ImportDriverAction::Send(format!(":{}\r\n", self.applied_bytes).into_bytes()));
        self.feed_state_machine(now, ImportEvent::Resumed, out);
        self.on_received(now, bytes, true, out);
    }
}

impl Driver for ImportDriver {
    type Event = ImportDriverEvent;
    type Actions = Actions;

    fn handle(&mut self, now: Instant, event: ImportDriverEvent, out: &mut Actions) {
        if self.link == SourceLink::Ended {
            return;
        }
        match event {
            ImportDriverEvent::Received { bytes, has_more: more } => {
                self.feed_state_machine(now, ImportEvent::DataApplied, out);
                self.on_received(now, bytes, more, out);
            }
            ImportDriverEvent::CommandsApplied(result) => self.on_applied(now, result, out),
            ImportDriverEvent::Resumed(bytes) => self.on_resumed(now, bytes, out),
            ImportDriverEvent::Closed => {
                self.link = SourceLink::Down;
                self.feed_state_machine(now, ImportEvent::Closed, out);
            }
            ImportDriverEvent::ConditionsChanged(conditions) => {
                self.feed_state_machine(now, ImportEvent::ConditionsChanged(conditions), out);
            }
            ImportDriverEvent::ReplicasCaughtUp(conditions) => {
                self.feed_state_machine(now, ImportEvent::ReplicasCaughtUp(conditions), out);
            }
            ImportDriverEvent::ClaimResult(Ok(())) => {
                self.feed_state_machine(now, ImportEvent::SlotsClaimed, out);
            }
            ImportDriverEvent::ClaimResult(Err(why)) => {
                self.feed_state_machine(now, ImportEvent::ClaimFailed(why), out);
            }
            ImportDriverEvent::Cancel => self.feed_state_machine(now, ImportEvent::Cancel, out),
            ImportDriverEvent::Deadline => self.feed_state_machine(now, ImportEvent::Deadline, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.state_machine.next_deadline()
    }
}
