//! The current increment: how far it is written and synced, and what to write next.
//!
//! The file contains the bytes of the log. An annotation records replication id and offset where the file begins and
//! where the replication id changes, so a restarted node knows its offset even after it was killed.
//!
//! A failed write may leave a partial write, and a failed sync may leave pages that the kernel has dropped but reports
//! as clean next time. So after an error the increment is truncated to the last good length before anything else
//! happens, and the rest is written again.

use persistence::aof::ReplAnnotation;
use replication::{Position, ReplId};
use slot_routing::ReplOffset;

use crate::{LogEnd, Operation};

/// Maximum size of one write.
const PIECE: u64 = 4 << 20;

/// A log position as recorded in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at: ReplOffset,
    /// The replication id at this position; `None` if the file does not record it.
    history: Option<ReplId>,
    /// Whether this is a command boundary.
    whole: bool,
}

/// A length of the file and the log position it corresponds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) mark: Mark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Increment {
    /// Bytes to begin the file with, if this server created it.
    head: Vec<u8>,
    pub(crate) written: Extent,
    pub(crate) synced: Extent,
    /// Whether there may be garbage after `written`.
    pub(crate) torn: bool,
    /// Unix time of the last timestamp annotation, in seconds.
    stamp: i64,
}

/// A pending write, and the extent of the file after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    head: Vec<u8>,
    from: ReplOffset,
    len: u64,
    after: Extent,
    stamp: i64,
}

impl Increment {
    /// Continues a fully synced file of `bytes` bytes that ends at log offset `at`.
    pub(crate) fn resumed(bytes: u64, at: ReplOffset) -> Self {
        let extent = Extent { bytes, mark: Mark { at, history: None, whole: true } };
        Self { head: Vec::new(), written: extent, synced: extent, torn: false, stamp: 0 }
    }

    /// Starts an empty file that continues the log at `at`. The timestamp, if any, comes first.
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

    /// The next write, if there is anything to write: log bytes up to `until`, which is a command boundary.
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

    /// Records a completed write.
    pub(crate) fn note_written(&mut self, write: &Write) {
        self.written = write.after;
        self.stamp = write.stamp;
    }

    /// After a failed sync nothing since the last successful sync is known to be on disk.
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
