//! Drives the target side of a slot migration: combines the [`Import`] state machine with the link to the source and
//! the count of applied bytes. The node and the simulator run this same driver.
//!
//! The process owns the connection, the engine and the cluster. It performs each [`ImportDriverAction`] in sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | accepts ESTABLISH, empties and hides the slots, calls [`ImportDriver::new`] | replies `+OK` |
//! | 2 | reads from the link; [`ImportDriverEvent::Received`] | splits the bytes into commands |
//! | 3 | [`ImportDriverAction::Apply`]: executes the commands; [`ImportDriverEvent::Applied`] | handles the migration messages among the commands |
//! | 4 | [`ImportDriverAction::AwaitReplicas`]: [`ImportDriverEvent::ReplicasCaughtUp`] | checks that the grant is recent |
//! | 5 | [`ImportDriverAction::Claim`]: claims the slots; [`ImportDriverEvent::Claimed`] | ends the job |
//!
//! The process reads from the link, and accepts a new link, only while [`ImportDriver::reads`] is true. No action waits
//! for the disk: the cluster persists the claim.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use driver::Driver;
use resp::{Args, Batch, ParseLimits, Parser};
use slot_routing::SlotSet;

use crate::import::{Import, ImportAction, ImportConditions, ImportEvent};
use crate::{ControlCommand, Establish, Finish, Message, SlotsOfCommand, SyncSlots};

/// The maximum number of commands passed to the process at once.
const MAX_COMMANDS: usize = 1024;
/// Commands that the source may send although they have no keys.
const JOB_COMMANDS: [&str; 5] = ["cluster", "select", "multi", "exec", "ping"];
/// The target acknowledges after this many applied bytes, so that the source can discard them.
const ACK_BYTES: u64 = 256 * 1024;

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
        more: bool,
    },
    /// The commands of [`ImportDriverAction::Apply`] were executed. `Err` contains the first error reply.
    Applied(Result<(), String>),
    /// The source resumes the migration on a new link, which replaces the old one. The bytes are those received after
    /// RESUME.
    Resumed(Vec<u8>),
    /// The link closed, or no more bytes can be sent over it.
    Closed,
    /// The external conditions. Reported at the start and after every change of the topology.
    Conditions(ImportConditions),
    /// The replicas have received all imported data, or the wait for them timed out.
    ReplicasCaughtUp(ImportConditions),
    /// The claim was processed. On success this node owns the slots; `Err` says why it cannot claim them.
    Claimed(Result<(), String>),
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
    /// Execute these commands with the permissions of the source, then report [`ImportDriverEvent::Applied`].
    Apply(SourceCommands),
    /// Wait until the replicas have received all imported data, then report the conditions.
    AwaitReplicas,
    /// Claim the slots under a new epoch, then report the result.
    Claim,
    /// The migration has ended: close the link, delete the imported keys if the migration failed, and make the slots
    /// visible.
    End(Result<(), String>),
}

/// The state of the link to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceLink {
    Up,
    Down,
    Over,
}

/// The commands that the process is executing.
#[derive(Debug)]
struct PendingCommands {
    /// The length of the commands in wire form, in bytes.
    len: u64,
    /// The events for the migration messages among the commands.
    messages: Vec<ImportEvent>,
    /// The protocol error in the bytes that follow these commands.
    error: Option<String>,
}

/// Drives the target side of a slot migration.
#[derive(Debug)]
pub struct ImportDriver {
    job: Establish,
    slots: SlotSet,
    commands: SlotsOfCommand,
    machine: Import,
    link: SourceLink,
    parser: Parser,
    /// Received bytes that have not been executed yet.
    received: Vec<u8>,
    more: bool,
    pending: Option<PendingCommands>,
    /// The number of bytes applied since the start of the migration.
    applied: u64,
    acknowledged: u64,
}

type Actions = Vec<ImportDriverAction>;

impl ImportDriver {
    /// Starts a migration announced by a source. The migration fails after `timeout` without input. `received` contains
    /// the bytes that followed ESTABLISH on the link.
    #[must_use]
    pub fn new(
        now: Instant,
        job: Establish,
        timeout: Duration,
        commands: SlotsOfCommand,
        received: Vec<u8>,
    ) -> (Self, Actions) {
        let mut driver = Self {
            slots: job.slots(),
            commands,
            machine: Import::new(now, timeout, job.resumable),
            job,
            link: SourceLink::Up,
            parser: Parser::new(),
            received: Vec::new(),
            more: true,
            pending: None,
            applied: 0,
            acknowledged: 0,
        };
        let mut out = vec![ImportDriverAction::Send(b"+OK\r\n".to_vec())];
        driver.on_received(now, received, true, &mut out);
        (driver, out)
    }

    /// The name of the current state in Valkey; `None` after the end of the migration.
    #[must_use]
    pub fn state_name(&self) -> Option<&'static str> {
        (self.link != SourceLink::Over).then(|| self.machine.state_name())
    }

    /// Whether all received bytes have been executed. Only then may the process read from the link or replace it.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.pending.is_none()
    }

    /// The announcement of the migration, with its name and slots.
    #[must_use]
    pub fn job(&self) -> &Establish {
        &self.job
    }

    /// Passes an event to the state machine and translates its actions.
    fn feed(&mut self, now: Instant, event: ImportEvent, out: &mut Actions) {
        let mut actions = Vec::new();
        self.machine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                ImportAction::Send(Message::Ack) if self.job.resumable => self.acknowledge(out),
                ImportAction::Send(message) => self.send(&SyncSlots::Message(message), out),
                ImportAction::AwaitReplicas => out.push(ImportDriverAction::AwaitReplicas),
                ImportAction::Claim => out.push(ImportDriverAction::Claim),
                ImportAction::End(outcome) => {
                    // Tell the source that the migration has ended, because it would reconnect otherwise.
                    if outcome.is_err() && self.job.resumable {
                        self.send(&SyncSlots::Finish(Finish::failed(self.job.name)), out);
                    }
                    self.link = SourceLink::Over;
                    out.push(ImportDriverAction::End(outcome));
                }
            }
        }
    }

    fn acknowledge(&mut self, out: &mut Actions) {
        self.acknowledged = self.applied;
        self.send(&SyncSlots::Applied(self.applied), out);
    }

    fn send(&mut self, command: &SyncSlots, out: &mut Actions) {
        if self.link == SourceLink::Up {
            out.push(ImportDriverAction::Send(command.encoded()));
        }
    }

    fn on_received(&mut self, now: Instant, bytes: Vec<u8>, more: bool, out: &mut Actions) {
        self.more = more;
        if self.received.is_empty() {
            self.received = bytes;
        } else {
            self.received.extend_from_slice(&bytes);
        }
        self.apply_next(now, out);
    }

    /// Passes the next complete commands to the process, or records that all received bytes have been executed.
    fn apply_next(&mut self, now: Instant, out: &mut Actions) {
        let limits = ParseLimits {
            max_bulk_len: i64::from(u32::MAX),
            requests: MAX_COMMANDS,
            allows_inline: false,
            ..ParseLimits::default()
        };
        let mut batch = Batch::default();
        let parsed = self.parser.parse(&mut self.received, &mut batch, &limits);
        let (len, error) = (parsed.consumed as u64, parsed.error.map(|error| error.to_string()));
        if batch.is_empty() {
            self.received.drain(..parsed.consumed);
            self.applied += len;
            return match error {
                Some(error) => self.feed(now, ImportEvent::Failed(error), out),
                None => self.on_all_applied(now, out),
            };
        }
        let rest = self.received.split_off(parsed.consumed);
        let bytes = std::mem::replace(&mut self.received, rest);
        let mut messages = Vec::new();
        for args in batch.requests(0..batch.len(), &bytes) {
            match self.check(args) {
                Ok(message) => messages.extend(message),
                Err(why) => return self.feed(now, ImportEvent::Failed(why), out),
            }
        }
        self.pending = Some(PendingCommands { len, messages, error });
        out.push(ImportDriverAction::Apply(SourceCommands { bytes, batch }));
    }

    /// Checks whether the source may send this command. Returns the event for a migration message, and an error if the
    /// command is not allowed.
    fn check(&self, args: Args<'_>) -> Result<Option<ImportEvent>, String> {
        let name = args.get(0).unwrap_or_default();
        match ControlCommand::decode(args) {
            Ok(Some(ControlCommand::SyncSlots(SyncSlots::Finish(_)))) => {
                return Ok(Some(ImportEvent::EndedByPeer));
            }
            Ok(Some(ControlCommand::SyncSlots(SyncSlots::Message(message)))) => {
                return Ok(Some(ImportEvent::Received(message)));
            }
            Ok(_) => {}
            Err(error) => return Err(format!("The source sent a {error}")),
        }
        let is_of_job = JOB_COMMANDS.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
        if is_of_job || self.commands.touch_only(args, &self.slots) {
            return Ok(None);
        }
        let name = String::from_utf8_lossy(name);
        Err(format!("The source sent a command that is not about the slots: {}", name.escape_debug()))
    }

    fn on_applied(&mut self, now: Instant, result: Result<(), String>, out: &mut Actions) {
        let Some(pending) = self.pending.take() else { return };
        if let Err(why) = result {
            let why = format!("A command of the source failed: {why}");
            return self.feed(now, ImportEvent::Failed(why), out);
        }
        self.applied += pending.len;
        for message in pending.messages {
            self.feed(now, message, out);
        }
        match pending.error {
            Some(error) => self.feed(now, ImportEvent::Failed(error), out),
            None if self.link != SourceLink::Over => self.apply_next(now, out),
            None => {}
        }
    }

    fn on_all_applied(&mut self, now: Instant, out: &mut Actions) {
        if self.job.resumable && self.applied - self.acknowledged >= ACK_BYTES {
            self.acknowledge(out);
        }
        if !self.more {
            self.feed(now, ImportEvent::CaughtUp, out);
        }
    }

    fn on_resumed(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Actions) {
        (self.link, self.parser, self.received) = (SourceLink::Up, Parser::new(), Vec::new());
        self.acknowledged = self.applied;
        out.push(ImportDriverAction::Send(format!(":{}\r\n", self.applied).into_bytes()));
        self.feed(now, ImportEvent::Resumed, out);
        self.on_received(now, bytes, true, out);
    }
}

impl Driver for ImportDriver {
    type Event = ImportDriverEvent;
    type Actions = Actions;

    fn handle(&mut self, now: Instant, event: ImportDriverEvent, out: &mut Actions) {
        if self.link == SourceLink::Over {
            return;
        }
        match event {
            ImportDriverEvent::Received { bytes, more } => {
                self.feed(now, ImportEvent::DataApplied, out);
                self.on_received(now, bytes, more, out);
            }
            ImportDriverEvent::Applied(result) => self.on_applied(now, result, out),
            ImportDriverEvent::Resumed(bytes) => self.on_resumed(now, bytes, out),
            ImportDriverEvent::Closed => {
                self.link = SourceLink::Down;
                self.feed(now, ImportEvent::Closed, out);
            }
            ImportDriverEvent::Conditions(conditions) => {
                self.feed(now, ImportEvent::Conditions(conditions), out);
            }
            ImportDriverEvent::ReplicasCaughtUp(conditions) => {
                self.feed(now, ImportEvent::ReplicasCaughtUp(conditions), out);
            }
            ImportDriverEvent::Claimed(Ok(())) => self.feed(now, ImportEvent::Claimed, out),
            ImportDriverEvent::Claimed(Err(why)) => self.feed(now, ImportEvent::NotClaimed(why), out),
            ImportDriverEvent::Cancel => self.feed(now, ImportEvent::Cancel, out),
            ImportDriverEvent::Deadline => self.feed(now, ImportEvent::Deadline, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.machine.next_deadline()
    }
}
