//! The increment that is written to: how long it is, what of it is on the disk, and what comes next.
//!
//! The bytes are those of the log. Where the file begins, and where the history takes another name, an annotation says
//! the place in it: so a restarted node knows how far it is, also one that was killed.
//!
//! An error may leave anything behind what was whole: half of a write, or pages that the system could not bring to the
//! disk, has forgotten, and would call written the next time. So after an error the increment is cut back, to what was
//! written or to what was synced, before anything else is done with it. What was cut off is written again.

use persistence::aof::ReplAnnotation;
use replication::{Position, ReplId};
use slot_routing::ReplOffset;

use crate::{LogEnd, Operation};

/// At most so much is written at once.
const PIECE: u64 = 4 << 20;

/// A place in the log, as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at: ReplOffset,
    /// The name of the history there; `None` if the file does not say it.
    history: Option<ReplId>,
    /// Whether a command ends there.
    whole: bool,
}

/// How far the file is: its bytes, and what of the log they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) mark: Mark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Increment {
    /// The bytes that it begins with, if this server began it.
    head: Vec<u8>,
    pub(crate) written: Extent,
    pub(crate) synced: Extent,
    /// Whether there may be something behind `written`.
    pub(crate) torn: bool,
    /// The second of the last annotation of time.
    stamp: i64,
}

/// A write, and how far the file is with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    head: Vec<u8>,
    from: ReplOffset,
    len: u64,
    after: Extent,
    stamp: i64,
}

impl Increment {
    /// Goes on with a file of so many bytes, all of them on the disk, which ends at `at`.
    pub(crate) fn resumed(bytes: u64, at: ReplOffset) -> Self {
        let extent = Extent { bytes, mark: Mark { at, history: None, whole: true } };
        Self { head: Vec::new(), written: extent, synced: extent, torn: false, stamp: 0 }
    }

    /// An empty file for what follows `at`. It says the time first, if it says it at all.
    pub(crate) fn begun(at: Position, db: Option<u16>, stamp: Option<i64>) -> Self {
        let mut head = stamp.map(stamp_of).unwrap_or_default();
        if let Some(db) = db {
            resp::encode_request(&mut head, [&b"SELECT"[..], db.to_string().as_bytes()]);
        }
        head.extend(place_of(at));
        let mark = Mark { at: at.offset, history: Some(at.id), whole: true };
        let extent = Extent { bytes: 0, mark };
        Self { head, written: extent, synced: extent, torn: false, stamp: stamp.unwrap_or(0) }
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced == self.written
    }

    /// The next write, if there is something: of the log up to `until`, a place between two commands.
    pub(crate) fn next_write(&self, log: &LogEnd, until: ReplOffset, stamps: bool) -> Option<Write> {
        let mut head = if self.written.bytes == 0 { self.head.clone() } else { Vec::new() };
        let Extent { bytes, mut mark } = self.written;
        let (mut end, from, mut stamp) = (until, mark.at, self.stamp);
        let mut place = Vec::new();
        if mark.history != Some(log.end.id) {
            match log.second.filter(|second| Some(second.id) == mark.history) {
                Some(second) if second.offset > mark.at => end = end.min(second.offset),
                _ if mark.whole => {
                    place = place_of(Position { id: log.end.id, offset: mark.at });
                    mark.history = Some(log.end.id);
                }
                _ => {}
            }
        }
        let len = end.0.saturating_sub(from.0).min(PIECE);
        if stamps && mark.whole && len > 0 && log.wall.secs() != stamp {
            stamp = log.wall.secs();
            head.extend(stamp_of(stamp));
        }
        head.extend(place);
        if head.is_empty() && len == 0 {
            return None;
        }
        mark.at.0 += len;
        mark.whole = mark.at == end || (len == 0 && mark.whole);
        let after = Extent { bytes: bytes + head.len() as u64 + len, mark };
        Some(Write { head, from, len, after, stamp })
    }

    /// All of a write is there.
    pub(crate) fn note_written(&mut self, write: &Write) {
        self.written = write.after;
        self.stamp = write.stamp;
    }

    /// A sync has failed: nothing is known of what came since the last.
    pub(crate) fn forget_unsynced(&mut self) {
        self.written = self.synced;
        self.torn = true;
    }
}

impl Write {
    pub(crate) fn operation(&self) -> Operation {
        Operation::Write { head: self.head.clone(), from: self.from, len: self.len }
    }
}

fn place_of(at: Position) -> Vec<u8> {
    ReplAnnotation { history: at.id.to_string(), offset: at.offset.0 }.to_string().into_bytes()
}

fn stamp_of(seconds: i64) -> Vec<u8> {
    format!("#TS:{seconds}\r\n").into_bytes()
}
