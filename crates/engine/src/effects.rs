//! What commands changed, as the replication log takes it.

use resp::Args;
use slot_routing::ReplOffset;

/// The log that effects are appended to. The shell gives the engine one.
pub trait EffectLog: Send + Sync + std::fmt::Debug {
    /// Whether anybody reads. If not, nothing is encoded.
    fn wanted(&self) -> bool;

    /// Appends commands in wire form, run in database `db`; returns where they end. Called while the
    /// slots that they touch are locked, so the log's order is each slot's order.
    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset;
}

/// A log that nobody reads.
#[derive(Debug)]
pub struct NoLog;

impl EffectLog for NoLog {
    fn wanted(&self) -> bool {
        false
    }

    fn append(&self, _db: u16, _commands: &[u8]) -> ReplOffset {
        ReplOffset(0)
    }
}

/// The effects of one command, collected until it ends.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Commands in wire form.
    pub(crate) wire: Vec<u8>,
    pub(crate) count: usize,
    /// Whether anybody reads the log.
    pub(crate) wanted: bool,
    /// How many changes the command made; above zero it is appended as the client sent it, unless the
    /// handler said something else.
    pub(crate) changes: u64,
    /// The same, of all commands that have ended since [`Effects::clear`].
    pub(crate) total_changes: u64,
    /// There is something to append: not just which database it would be in.
    pub(crate) any: bool,
    /// The handler said what to append instead.
    pub(crate) rewritten: bool,
}

impl Effects {
    /// A command begins; `wanted` says whether anybody reads the log. Nothing is left from the one before.
    pub(crate) fn start(&mut self, wanted: bool) {
        debug_assert!(self.is_empty(), "whoever collects effects appends or clears them");
        self.wanted = wanted;
    }

    /// Whether nothing was changed and nothing is to be appended.
    pub(crate) fn is_empty(&self) -> bool {
        self.total_changes == 0 && self.count == 0
    }

    /// Forgets what was collected.
    pub(crate) fn clear(&mut self) {
        self.wire.clear();
        self.count = 0;
        self.total_changes = 0;
        self.any = false;
    }

    /// Adds a command.
    pub(crate) fn push<'a, I>(&mut self, args: I)
    where
        I: IntoIterator<Item = &'a [u8]>,
        I::IntoIter: ExactSizeIterator,
    {
        if self.wanted {
            resp::encode_request(&mut self.wire, args);
            self.count += 1;
            self.any = true;
        }
    }
}

impl Effects {
    /// A command is done: if it changed something and did not say what to log, it is logged as it was
    /// sent.
    pub(crate) fn end_command(&mut self, args: Args<'_>) {
        if self.changes > 0 && !self.rewritten {
            self.push(args.iter());
        }
        self.total_changes += self.changes;
        self.changes = 0;
        self.rewritten = false;
    }

    /// What follows happens in another database.
    pub(crate) fn select(&mut self, db: u16) {
        let any = self.any;
        self.push([&b"SELECT"[..], itoa::Buffer::new().format(db).as_bytes()]);
        self.any = any;
    }

    /// Appends what the commands did in database `db`. Several effects are wrapped in a transaction, so
    /// that no reader of the log sees half of them.
    pub(crate) fn append(&mut self, log: &dyn EffectLog, db: u16) -> ReplOffset {
        if self.count > 1 {
            let effects = std::mem::take(&mut self.wire);
            self.push([&b"MULTI"[..]]);
            self.wire.extend_from_slice(&effects);
            self.push([&b"EXEC"[..]]);
        }
        log.append(db, &self.wire)
    }
}
