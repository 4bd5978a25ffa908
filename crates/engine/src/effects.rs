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
    /// The handler said what to append instead.
    pub(crate) rewritten: bool,
}

impl Effects {
    pub(crate) fn start(&mut self, wanted: bool) {
        self.wire.clear();
        self.count = 0;
        self.wanted = wanted;
        self.changes = 0;
        self.rewritten = false;
    }

    pub(crate) fn push<'a, I>(&mut self, args: I)
    where
        I: IntoIterator<Item = &'a [u8]>,
        I::IntoIter: ExactSizeIterator,
    {
        if self.wanted {
            resp::encode_request(&mut self.wire, args);
            self.count += 1;
        }
    }
}

impl Effects {
    /// Appends what the command did: what the handler said, or else the command as it was sent. Several
    /// effects are wrapped in a transaction, so that no reader of the log sees half of them.
    pub(crate) fn append(&mut self, log: &dyn EffectLog, db: u16, args: Args<'_>) -> ReplOffset {
        if !self.rewritten {
            self.push(args.iter());
        }
        if self.count > 1 {
            let effects = std::mem::take(&mut self.wire);
            self.push([&b"MULTI"[..]]);
            self.wire.extend_from_slice(&effects);
            self.push([&b"EXEC"[..]]);
        }
        log.append(db, &self.wire)
    }
}
