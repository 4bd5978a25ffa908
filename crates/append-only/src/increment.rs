//! The current increment: how far it is written and synced, and what to write next.
//!
//! The file contains the bytes of the log, except for ranges in place of which it has other commands
//! ([`FileVersions`]). An annotation records the replication id and the offset at the beginning of the file, where the
//! replication id changes, and after each replaced range. So a restarted node knows its offset even after it was
//! killed.
//!
//! A failed write may leave a partial write, and a failed sync may leave pages that the kernel has dropped but reports
//! as clean next time. So after an error the increment is truncated to the last good length before anything else
//! happens, and the rest is written again.

use std::ops::Range;

use persistence::aof::ReplAnnotation;
use replication::{FileVersions, ReplId, ReplPosition};
use slot_routing::ReplOffset;

use crate::{FileOperation, LogEnd};

/// Maximum size of one write.
const MAX_WRITE_SIZE: u64 = 4 << 20;

/// A log position as recorded in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogMark {
    pub(crate) offset: ReplOffset,
    /// The replication id at this position; `None` if the file does not record it.
    repl_id: Option<ReplId>,
    /// Whether the position is a command boundary.
    is_command_boundary: bool,
}

/// A length of the file and the log position it corresponds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileExtent {
    pub(crate) bytes: u64,
    pub(crate) log_mark: LogMark,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Increment {
    /// Bytes with which the file begins, if this server created it.
    head: Vec<u8>,
    pub(crate) written_extent: FileExtent,
    pub(crate) synced_extent: FileExtent,
    /// Whether the file may have garbage after the written extent.
    pub(crate) may_be_torn: bool,
    /// Unix time of the last timestamp annotation, in seconds.
    last_timestamp: i64,
}

/// A pending write, and the extent of the file after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingWrite {
    head: Vec<u8>,
    from: ReplOffset,
    len: u64,
    extent_after: FileExtent,
    last_timestamp: i64,
}

impl Increment {
    /// Creates the state of an existing, fully synced file of `bytes` bytes that ends at this log offset.
    pub(crate) fn for_existing_file(bytes: u64, at: ReplOffset) -> Self {
        let extent =
            FileExtent { bytes, log_mark: LogMark { offset: at, repl_id: None, is_command_boundary: true } };
        Self {
            head: Vec::new(),
            written_extent: extent,
            synced_extent: extent,
            may_be_torn: false,
            last_timestamp: 0,
        }
    }

    /// Starts an empty file that continues the log at `position`. The timestamp, if any, comes first.
    pub(crate) fn new_at_position(position: ReplPosition, db: Option<u16>, timestamp: Option<i64>) -> Self {
        let mut head = timestamp.map(timestamp_annotation).unwrap_or_default();
        if let Some(db) = db {
            resp::encode_request(&mut head, [&b"SELECT"[..], db.to_string().as_bytes()]);
        }
        head.extend(position_annotation(position));
        let mark = LogMark { offset: position.offset, repl_id: Some(position.id), is_command_boundary: true };
        let extent = FileExtent { bytes: 0, log_mark: mark };
        Self {
            head,
            written_extent: extent,
            synced_extent: extent,
            may_be_torn: false,
            last_timestamp: timestamp.unwrap_or(0),
        }
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.synced_extent == self.written_extent
    }

    /// Returns the next write, or `None` if there is nothing to write. The write does not extend beyond `until`, which
    /// must be a command boundary.
    pub(crate) fn next_write(
        &self,
        log: &LogEnd,
        versions: &FileVersions,
        until: ReplOffset,
        writes_timestamps: bool,
    ) -> Option<PendingWrite> {
        let mut head = if self.written_extent.bytes == 0 { self.head.clone() } else { Vec::new() };
        let FileExtent { bytes, log_mark: mut mark } = self.written_extent;
        let (mut end, from, mut stamp) = (until, mark.offset, self.last_timestamp);
        let mut place = Vec::new();
        if mark.repl_id != Some(log.position.id) {
            match log.previous_history.filter(|second| Some(second.id) == mark.repl_id) {
                Some(second) if second.offset > mark.offset => end = end.min(second.offset),
                _ if mark.is_command_boundary => {
                    place = position_annotation(ReplPosition { id: log.position.id, offset: mark.offset });
                    mark.repl_id = Some(log.position.id);
                }
                _ => {}
            }
        }
        let mut version = Vec::new();
        if let Some(next) = versions.versions_from(from).next().filter(|next| next.to <= end) {
            let until = std::mem::replace(&mut end, next.from);
            if let Some(history) = mark.repl_id.filter(|_| end == from) {
                mark.offset = encode_file_versions(&mut version, versions, from..until, history);
            }
        }
        let len = end.0.saturating_sub(from.0).min(MAX_WRITE_SIZE);
        if writes_timestamps
            && mark.is_command_boundary
            && (len > 0 || !version.is_empty())
            && log.wall_clock.secs() != stamp
        {
            stamp = log.wall_clock.secs();
            head.extend(timestamp_annotation(stamp));
        }
        head.extend(place);
        head.extend(version);
        if head.is_empty() && len == 0 {
            return None;
        }
        mark.offset.0 += len;
        mark.is_command_boundary = mark.offset == end || (len == 0 && mark.is_command_boundary);
        let after = FileExtent { bytes: bytes + head.len() as u64 + len, log_mark: mark };
        Some(PendingWrite { head, from, len, extent_after: after, last_timestamp: stamp })
    }

    /// Records that a write is complete.
    pub(crate) fn record_write(&mut self, pending_write: &PendingWrite) {
        self.written_extent = pending_write.extent_after;
        self.last_timestamp = pending_write.last_timestamp;
    }

    /// Treats everything since the last successful sync as not written, because a sync failed.
    pub(crate) fn rewind_to_synced(&mut self) {
        self.written_extent = self.synced_extent;
        self.may_be_torn = true;
    }
}

impl PendingWrite {
    pub(crate) fn to_operation(&self) -> FileOperation {
        FileOperation::Write { head: self.head.clone(), from: self.from, len: self.len }
    }
}

/// Encodes the adjacent file versions at the beginning of `range`, and returns the log offset at which they end.
///
/// The commands of a file version differ in length from the log range that they replace. If the file is torn within
/// them, a loader that counts bytes would compute a wrong offset. So an annotation before them marks the position as
/// unknown, and one after them states it.
fn encode_file_versions(
    out: &mut Vec<u8>,
    versions: &FileVersions,
    range: Range<ReplOffset>,
    history: ReplId,
) -> ReplOffset {
    out.extend(position_annotation(ReplPosition { id: ReplId::NONE, offset: ReplOffset(0) }));
    let mut end = range.start;
    for version in versions.versions_from(range.start) {
        if version.from != end || version.to > range.end || out.len() as u64 > MAX_WRITE_SIZE {
            break;
        }
        out.extend_from_slice(&version.commands);
        end = version.to;
    }
    out.extend(position_annotation(ReplPosition { id: history, offset: end }));
    end
}

fn position_annotation(at: ReplPosition) -> Vec<u8> {
    ReplAnnotation { history: at.id.to_string(), offset: at.offset.0 }.to_string().into_bytes()
}

fn timestamp_annotation(seconds: i64) -> Vec<u8> {
    format!("#TS:{seconds}\r\n").into_bytes()
}
