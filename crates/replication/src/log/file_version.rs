//! Ranges of the log in whose place the append-only file has other commands.
//!
//! A script can direct its writes to the replicas only, or to the append-only file only (`redis.set_repl`). Offsets
//! count the bytes that replicas receive. The log therefore contains the replicas' commands, and separately the
//! commands that the file has in place of a range. A range is never empty: where replicas would receive nothing, they
//! receive a PING, so that each version has an offset of its own for which replies and WAITAOF can wait.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use slot_routing::ReplOffset;

/// A range of bytes about to be appended, and the commands that the append-only file has in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRange {
    /// The range, relative to the start of the appended bytes. Never empty.
    pub range: Range<usize>,
    /// The commands in the append-only file; may be empty.
    pub commands: Arc<[u8]>,
}

/// A range of the log, and the commands that the append-only file has in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileVersion {
    /// Log offset of the first replaced byte.
    pub from: ReplOffset,
    /// Log offset after the last replaced byte.
    pub to: ReplOffset,
    /// The commands in the append-only file; may be empty.
    pub commands: Arc<[u8]>,
}

/// Versions that the append-only file has not synced yet, in order.
#[derive(Debug, Default)]
pub struct FileVersions {
    versions: VecDeque<FileVersion>,
    command_bytes: u64,
}

impl FileVersions {
    /// Adds a version that begins at or after the end of the last one.
    pub fn add(&mut self, version: FileVersion) {
        debug_assert!(version.from < version.to && self.end_offset().is_none_or(|end| end <= version.from));
        self.command_bytes += version.commands.len() as u64;
        self.versions.push_back(version);
    }

    /// Records the file's versions of the byte ranges that are about to be appended at `end`.
    pub(super) fn add_ranges(&mut self, end: ReplOffset, ranges: &[StreamRange]) {
        for StreamRange { range, commands } in ranges {
            let at = |index: usize| ReplOffset(end.0 + index as u64);
            let (from, to) = (at(range.start), at(range.end));
            self.add(FileVersion { from, to, commands: commands.clone() });
        }
    }

    /// Returns the versions whose ranges begin at `offset` or later.
    pub fn versions_from(&self, offset: ReplOffset) -> impl Iterator<Item = &FileVersion> {
        self.versions.range(self.versions.partition_point(|version| version.from < offset)..)
    }

    /// Removes the versions whose ranges end at or before `offset`.
    pub fn forget_before(&mut self, offset: ReplOffset) {
        while let Some(first) = self.versions.front().filter(|first| first.to <= offset) {
            self.command_bytes -= first.commands.len() as u64;
            self.versions.pop_front();
        }
    }

    /// Removes all versions, because the history was replaced.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the offset at which the last version ends; `None` without versions.
    #[must_use]
    pub fn end_offset(&self) -> Option<ReplOffset> {
        self.versions.back().map(|last| last.to)
    }

    /// Returns the size of the versions' commands in bytes.
    #[must_use]
    pub fn command_bytes(&self) -> u64 {
        self.command_bytes
    }

    /// Returns whether no version is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }
}
