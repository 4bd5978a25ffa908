//! Effects: the changes of commands, as the replication log takes them.

use resp::Args;
use slot_routing::ReplOffset;

/// The log that effects are appended to. The shell gives the engine one.
pub trait EffectLog: Send + Sync + std::fmt::Debug {
    /// Whether the log has readers. If not, nothing is encoded.
    fn wanted(&self) -> bool;

    /// Appends commands in wire form, run in database `db`; returns where they end. Called while the
    /// slots that they touch are locked, so the log's order is each slot's order.
    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset;

    /// Bytes of memory that it keeps only because a replica, or this node's own file, has not read them yet: what is
    /// kept beyond the backlog.
    fn bytes_for_readers(&self) -> usize {
        0
    }

    /// Shows in the replicas' clients how much of the log they have not been sent.
    fn publish_unsent(&self) {}

    /// How many replicas get what is appended.
    fn replicas(&self) -> usize {
        0
    }
}

/// A log without readers.
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

/// An empty buffer of effects that is larger is given back.
const KEEP_WIRE: usize = 1 << 20;

/// Effects on their way to the log: those of commands that have ended and are not appended yet, and behind them those
/// of the command that runs. The slots that they touch stay locked until they are appended.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Commands in wire form.
    wire: Vec<u8>,
    /// How much of that is of commands that have ended.
    ended: usize,
    /// How much of that is of the command that ended last, with what went with it.
    last: usize,
    /// How many effects the running command has had.
    count: usize,
    /// Whether the log has readers.
    pub(crate) wanted: bool,
    /// How many changes the command made; above zero it is appended as the client sent it, unless the
    /// handler said something else.
    pub(crate) changes: u64,
    /// The same, of all commands since [`Effects::start`].
    total_changes: u64,
    /// Some of what waits to be appended changes data.
    changes_data: bool,
    /// There is something to append: not just which database it would be in.
    pub(crate) any: bool,
    /// The handler said what to append instead.
    pub(crate) rewritten: bool,
}

impl Effects {
    /// Begins a command, or several that are one to the log; `wanted` says whether the log has readers.
    pub(crate) fn start(&mut self, wanted: bool) {
        debug_assert!(!self.has_begun(), "what a command did is sealed when it ends");
        self.wanted = wanted;
    }

    /// Whether something was changed, or is to be appended, since [`Effects::start`].
    pub(crate) fn has_begun(&self) -> bool {
        self.total_changes != 0 || self.count != 0
    }

    /// Bytes of commands that have ended, which wait to be appended.
    pub(crate) fn pending(&self) -> usize {
        self.ended
    }

    /// Takes how many bytes the command that ended last has logged, or one before it of which that was not asked.
    pub(crate) fn take_last(&mut self) -> usize {
        std::mem::take(&mut self.last)
    }

    /// Adds an effect.
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

    /// Adds the request itself, byte by byte as it came where that is how it would be written.
    pub(crate) fn push_request(&mut self, args: Args<'_>) {
        if !self.wanted {
            return;
        }
        match args.wire_bytes() {
            Some(wire) => {
                self.wire.extend_from_slice(wire);
                self.count += 1;
                self.any = true;
            }
            None => self.push(args.iter()),
        }
    }

    /// A command is done: if it changed something and did not say what to log, it is logged as it was
    /// sent.
    #[inline]
    pub(crate) fn end_command(&mut self, args: Args<'_>) {
        if self.changes > 0 && !self.rewritten {
            self.push_request(args);
        }
        self.total_changes += self.changes;
        self.changes = 0;
        self.rewritten = false;
    }

    /// Adds a SELECT: the effects that follow are of another database.
    pub(crate) fn select(&mut self, db: u16) {
        let any = self.any;
        self.push([&b"SELECT"[..], itoa::Buffer::new().format(db).as_bytes()]);
        self.any = any;
    }

    /// Ends the effects that began with [`Effects::start`]: they are whole, and wait to be appended. Several are
    /// wrapped in a transaction, so that no reader of the log sees half of them. Returns how many changes there were.
    #[inline]
    pub(crate) fn seal(&mut self) -> u64 {
        if self.count > 0 {
            self.wrap();
        }
        self.seal_each()
    }

    fn wrap(&mut self) {
        if !self.any {
            self.wire.truncate(self.ended);
        } else if self.count > 1 {
            let effects = self.wire.split_off(self.ended);
            self.push([&b"MULTI"[..]]);
            self.wire.extend_from_slice(&effects);
            self.push([&b"EXEC"[..]]);
        }
    }

    /// [`Effects::seal`] where each effect stands by itself.
    #[inline]
    pub(crate) fn seal_each(&mut self) -> u64 {
        self.last = self.wire.len() - self.ended;
        self.ended = self.wire.len();
        self.count = 0;
        self.any = false;
        self.changes_data |= self.total_changes > 0;
        std::mem::take(&mut self.total_changes)
    }

    /// Whether what waits to be appended changes data, and not only tells replicas something (PUBLISH). To be asked
    /// before it is appended.
    pub(crate) fn changes_data(&self) -> bool {
        self.changes_data
    }

    /// Appends what waits, all of it done in database `db`; returns where it ends, if anything waited.
    pub(crate) fn append(&mut self, log: &dyn EffectLog, db: u16) -> Option<ReplOffset> {
        if self.ended == 0 {
            return None;
        }
        let end = log.append(db, &self.wire[..self.ended]);
        self.wire.drain(..self.ended);
        if self.wire.is_empty() && self.wire.capacity() > KEEP_WIRE {
            self.wire = Vec::new();
        }
        self.ended = 0;
        self.changes_data = false;
        Some(end)
    }
}
