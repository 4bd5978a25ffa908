//! Ranges of the log for which the append-only file has other commands.
//!
//! A script can direct its writes to the replicas only, or to the append-only file only (`redis.set_repl`). Offsets
//! count the bytes that replicas get. The log therefore contains the replicas' commands, and next to it what the file
//! has in their place. Such a range is never empty: where replicas get nothing they get a PING, so that each version
//! has an offset of its own for which replies and WAITAOF can wait.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use slot_routing::ReplOffset;

/// A range of appended bytes, and the commands that the append-only file has in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRange {
    /// The range within the appended bytes, which is never empty.
    pub range: Range<usize>,
    /// The commands that the file has instead; may be empty.
    pub commands: Arc<[u8]>,
}

/// A range of the log, and the commands that the append-only file has in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileVersion {
    /// Offset of the first byte that the version replaces.
    pub from: ReplOffset,
    /// Offset behind the last byte that the version replaces.
    pub to: ReplOffset,
    /// The commands that the file has instead; may be empty.
    pub commands: Arc<[u8]>,
}

/// Versions that the append-only file has not synced yet, in order.
#[derive(Debug, Default)]
pub struct FileVersions {
    versions: VecDeque<FileVersion>,
    bytes: u64,
}

impl FileVersions {
    /// Adds a version that begins where the last one ends, or later.
    pub fn add(&mut self, version: FileVersion) {
        debug_assert!(version.from < version.to && self.end().is_none_or(|end| end <= version.from));
        self.bytes += version.commands.len() as u64;
        self.versions.push_back(version);
    }

    /// Adds the versions of ranges of bytes that are about to be appended at `end`.
    pub(super) fn add_ranges(&mut self, end: ReplOffset, ranges: &[StreamRange]) {
        for StreamRange { range, commands } in ranges {
            let at = |index: usize| ReplOffset(end.0 + index as u64);
            let (from, to) = (at(range.start), at(range.end));
            self.add(FileVersion { from, to, commands: commands.clone() });
        }
    }

    /// Returns the versions that begin at `from` or later.
    pub fn from(&self, from: ReplOffset) -> impl Iterator<Item = &FileVersion> {
        self.versions.range(self.versions.partition_point(|version| version.from < from)..)
    }

    /// Removes the versions that end at or before `at`.
    pub fn forget_before(&mut self, at: ReplOffset) {
        while let Some(first) = self.versions.front().filter(|first| first.to <= at) {
            self.bytes -= first.commands.len() as u64;
            self.versions.pop_front();
        }
    }

    /// Removes all versions, because the history was replaced.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns where the last version ends; `None` without versions.
    #[must_use]
    pub fn end(&self) -> Option<ReplOffset> {
        self.versions.back().map(|last| last.to)
    }

    /// Returns the size of the versions' commands in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether there is no version.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }
}
