//! Effects: the changes of commands in the form in which they are logged and replicated.

use resp::Args;
use slot_routing::ReplOffset;

/// The log to which effects are appended, provided by the shell.
pub trait EffectLog: Send + Sync + std::fmt::Debug {
    /// Returns whether the log has readers; otherwise nothing is encoded.
    fn has_readers(&self) -> bool;

    /// Appends encoded commands of database `db`; returns the end offset. Called with the affected slots locked, so the
    /// log order matches the execution order within each slot.
    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset;

    /// Returns the memory beyond the backlog that is kept only for lagging replicas or the AOF, in bytes.
    fn retained_bytes(&self) -> usize {
        0
    }

    /// Updates the unsent output shown for each replica in CLIENT LIST.
    fn update_unsent_output(&self) {}

    /// Returns the number of replicas that receive the log.
    fn replicas(&self) -> usize {
        0
    }
}

/// A log without readers.
#[derive(Debug)]
pub struct NoLog;

impl EffectLog for NoLog {
    fn has_readers(&self) -> bool {
        false
    }

    fn append(&self, _db: u16, _commands: &[u8]) -> ReplOffset {
        ReplOffset(0)
    }
}

/// Maximum capacity that an empty effect buffer keeps.
const MAX_KEPT_WIRE: usize = 1 << 20;

/// Effects not yet appended to the log: those of completed commands, followed by those of the running command. Their
/// slots stay locked until they are appended.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Encoded commands.
    wire: Vec<u8>,
    /// Length of the part that belongs to completed commands.
    completed_len: usize,
    /// Length of the effects of the last completed command, including those logged with it.
    last_len: usize,
    /// Number of effects of the running command.
    count: usize,
    /// Whether the log has readers.
    pub(crate) has_readers: bool,
    /// Number of changes of the running command; above zero it is logged as sent, unless the handler replaced it.
    pub(crate) changes: u64,
    /// Number of changes of all commands since [`Effects::begin`].
    total_changes: u64,
    /// Whether any queued effect changes data.
    changes_data: bool,
    /// Whether there are effects besides a SELECT.
    pub(crate) has_commands: bool,
    /// Whether the handler replaced the logged command.
    pub(crate) is_rewritten: bool,
}

impl Effects {
    /// Starts a command, or a group that is logged as one; `wanted` says whether the log has readers.
    pub(crate) fn begin(&mut self, wanted: bool) {
        debug_assert!(!self.has_begun(), "what a command did is sealed when it ends");
        self.has_readers = wanted;
    }

    /// Returns whether anything was changed or queued since [`Effects::begin`].
    pub(crate) fn has_begun(&self) -> bool {
        self.total_changes != 0 || self.count != 0
    }

    /// Returns the length of completed, not yet appended effects in bytes.
    pub(crate) fn completed_len(&self) -> usize {
        self.completed_len
    }

    /// Returns the bytes logged by commands completed since the last call.
    pub(crate) fn take_last_len(&mut self) -> usize {
        std::mem::take(&mut self.last_len)
    }

    /// Adds an effect.
    pub(crate) fn push<'a, I>(&mut self, args: I)
    where
        I: IntoIterator<Item = &'a [u8]>,
        I::IntoIter: ExactSizeIterator,
    {
        if self.has_readers {
            resp::encode_request(&mut self.wire, args);
            self.count += 1;
            self.has_commands = true;
        }
    }

    /// Adds the request itself; its original bytes are copied if they are already in canonical form.
    pub(crate) fn push_request(&mut self, args: Args<'_>) {
        if !self.has_readers {
            return;
        }
        match args.wire_bytes() {
            Some(wire) => {
                self.wire.extend_from_slice(wire);
                self.count += 1;
                self.has_commands = true;
            }
            None => self.push(args.iter()),
        }
    }

    /// Completes a command: if it changed something and the handler logged nothing else, logs the request as sent.
    #[inline]
    pub(crate) fn end_command(&mut self, args: Args<'_>) {
        if self.changes > 0 && !self.is_rewritten {
            self.push_request(args);
        }
        self.total_changes += self.changes;
        self.changes = 0;
        self.is_rewritten = false;
    }

    /// Adds a SELECT before effects in another database.
    pub(crate) fn add_select(&mut self, db: u16) {
        let any = self.has_commands;
        self.push([&b"SELECT"[..], itoa::Buffer::new().format(db).as_bytes()]);
        self.has_commands = any;
    }

    /// Completes a group of effects. Several effects are wrapped in MULTI and EXEC, so that readers of the log apply
    /// all or none. Returns the number of changes.
    #[inline]
    pub(crate) fn finish_group(&mut self) -> u64 {
        if self.count > 0 {
            self.wrap_in_multi();
        }
        self.finish_unwrapped()
    }

    fn wrap_in_multi(&mut self) {
        if !self.has_commands {
            self.wire.truncate(self.completed_len);
        } else if self.count > 1 {
            let effects = self.wire.split_off(self.completed_len);
            self.push([&b"MULTI"[..]]);
            self.wire.extend_from_slice(&effects);
            self.push([&b"EXEC"[..]]);
        }
    }

    /// Completes a group of effects that need not be atomic.
    #[inline]
    pub(crate) fn finish_unwrapped(&mut self) -> u64 {
        self.last_len = self.wire.len() - self.completed_len;
        self.completed_len = self.wire.len();
        self.count = 0;
        self.has_commands = false;
        self.changes_data |= self.total_changes > 0;
        std::mem::take(&mut self.total_changes)
    }

    /// Returns whether the queued effects change data, rather than only notify replicas (PUBLISH). Called before they
    /// are appended.
    pub(crate) fn changes_data(&self) -> bool {
        self.changes_data
    }

    /// Appends the queued effects, all of database `db`; returns the end offset if there were any.
    pub(crate) fn append(&mut self, log: &dyn EffectLog, db: u16) -> Option<ReplOffset> {
        if self.completed_len == 0 {
            return None;
        }
        let end = log.append(db, &self.wire[..self.completed_len]);
        self.wire.drain(..self.completed_len);
        if self.wire.is_empty() && self.wire.capacity() > MAX_KEPT_WIRE {
            self.wire = Vec::new();
        }
        self.completed_len = 0;
        self.changes_data = false;
        Some(end)
    }
}
