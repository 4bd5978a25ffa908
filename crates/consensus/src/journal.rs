//! The on-disk journal of all groups.
//!
//! One file holds the records of many groups, so that fifty votes need only one sync. Records are appended; when the
//! file has grown, it is replaced by a compacted one ([`encode_journal`]).
//!
//! ```text
//! file     "RDBTRAFT"   8 bytes
//!          version      u32, little endian: 1
//!          frame, frame, ...
//!
//! frame    length       u32, little endian: bytes of payload, at most 16 MiB
//!          payload crc  u32, little endian: CRC-32C of the payload
//!          header crc   u32, little endian: CRC-32C of the eight bytes before it
//!          payload      bincode 2 (standard: little endian, variable-length integers) of a list of
//!                       `Record { group: String, changes: Vec<Change> }`
//! ```
//!
//! **Crash recovery.** All records between two syncs form one frame, and nothing that depends on a frame leaves the
//! machine before the sync. Therefore:
//!
//! * A damaged frame without an intact frame after it is a torn write that was never synced. It is truncated at
//!   [`Journal::intact_bytes`] without loss.
//! * A damaged frame before an intact one was synced, so the disk lost data that other members may rely on, such as a
//!   vote. Reading fails with the offset.
//! * A file shorter than its header was torn at creation and counts as empty.

use std::collections::BTreeMap;

use crc_fast::{CrcAlgorithm, checksum};
use serde::{Deserialize, Serialize};

use crate::Term;

const JOURNAL_MAGIC: &[u8; 8] = b"RDBTRAFT";
const JOURNAL_VERSION: u32 = 1;
const FILE_HEADER_BYTES: usize = 12;
const FRAME_HEADER_BYTES: usize = 12;
/// Maximum length of a payload in bytes. Larger lengths are treated as damage, because a frame contains only a few
/// hundred bytes per group.
const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// An entry of a group's log. Entries with empty data mark the start of a leader's term.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// The term of the leader that created the entry.
    pub term: Term,
    /// The index in the log, starting at 1.
    pub index: u64,
    /// The value proposed by the leader; empty at the start of a term.
    pub data: Vec<u8>,
}

/// A change to the persistent state of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupChange {
    /// A new term, vote or commit index.
    Ballot {
        /// The term that the member has entered.
        term: Term,
        /// The member voted for in this term; 0 means none.
        vote: u64,
        /// Index of the last entry that a majority has stored, as far as known.
        commit: u64,
    },
    /// Consecutive entries. They replace the log from the index of the first entry on.
    Entries(Vec<LogEntry>),
    /// Replaces all entries up to `index` by `value`.
    Snapshot {
        /// The term of the last replaced entry.
        term: Term,
        /// The index of the last replaced entry.
        index: u64,
        /// The group's value after the last replaced entry.
        value: Vec<u8>,
    },
    /// The group was removed together with its state.
    Dropped,
}

/// The changes of one group that are persisted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// The name of the group, unique within the journal.
    pub group: String,
    /// The changes in the order in which they apply.
    pub changes: Vec<GroupChange>,
}

/// The persistent state of one member of a group, as it results from the journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SavedGroup {
    /// The last term that the member has entered.
    pub term: Term,
    /// The member voted for in this term; 0 means none.
    pub voted_for: u64,
    /// Index of the last entry that a majority has stored, as far as known.
    pub commit_index: u64,
    /// Term and index of the snapshot; zero if there is none.
    pub snapshot: (Term, u64),
    /// The value in the snapshot; empty if there is none.
    pub value: Vec<u8>,
    /// The log entries after the snapshot, without gaps.
    pub entries: Vec<LogEntry>,
}

impl SavedGroup {
    /// Applies a change.
    ///
    /// # Errors
    /// A description of how the change contradicts the previous state, such as a gap in the log.
    pub fn apply(&mut self, change: GroupChange) -> Result<(), &'static str> {
        match change {
            GroupChange::Ballot { term, vote, commit } => {
                (self.term, self.voted_for, self.commit_index) = (term, vote, commit);
            }
            GroupChange::Entries(entries) => {
                let Some(first) = entries.first().map(|entry| entry.index) else { return Ok(()) };
                let start = self.snapshot.1 + 1;
                if first < start || first > start + self.entries.len() as u64 {
                    return Err("log entries that do not follow the ones before");
                }
                if entries.iter().zip(first..).any(|(entry, index)| entry.index != index) {
                    return Err("log entries out of order");
                }
                self.entries.truncate((first - start) as usize);
                self.entries.extend(entries);
            }
            GroupChange::Snapshot { term, index, value } => {
                if index < self.snapshot.1 {
                    return Err("a snapshot older than the one before");
                }
                let covered = (index - self.snapshot.1) as usize;
                let continues =
                    covered == 0 || self.entries.get(covered - 1).is_some_and(|entry| entry.term == term);
                if continues {
                    self.entries.drain(..covered);
                } else {
                    self.entries.clear();
                }
                self.snapshot = (term, index);
                self.value = value;
                self.commit_index = self.commit_index.max(index);
            }
            GroupChange::Dropped => *self = Self::default(),
        }
        Ok(())
    }

    /// The changes that produce this state from the default state.
    #[must_use]
    pub fn changes(&self) -> Vec<GroupChange> {
        let mut changes = Vec::new();
        if self.snapshot.1 > 0 {
            let (term, index) = self.snapshot;
            changes.push(GroupChange::Snapshot { term, index, value: self.value.clone() });
        }
        if !self.entries.is_empty() {
            changes.push(GroupChange::Entries(self.entries.clone()));
        }
        changes.push(GroupChange::Ballot {
            term: self.term,
            vote: self.voted_for,
            commit: self.commit_index,
        });
        changes
    }

    fn check_consistency(&self) -> Result<(), &'static str> {
        let last = self.snapshot.1 + self.entries.len() as u64;
        let newest = self.entries.last().map_or(self.snapshot.0, |entry| entry.term);
        if self.commit_index > last {
            return Err("a commit index behind the log's end");
        }
        if newest > self.term {
            return Err("a log entry of a later term than the ballot");
        }
        Ok(())
    }
}

/// The groups read from a journal file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Journal {
    /// The state of each group, by the name of the group.
    pub groups: BTreeMap<String, SavedGroup>,
    /// Length of the valid part of the file; the rest is a torn write to truncate.
    pub intact_bytes: usize,
}

/// Why a journal file is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {reason}")]
pub struct JournalError {
    /// Position of the damage in the file, in bytes.
    pub offset: usize,
    /// A description of the damage for the log.
    pub reason: &'static str,
}

/// Returns the header that every journal file starts with.
#[must_use]
pub fn encode_header() -> Vec<u8> {
    let mut bytes = JOURNAL_MAGIC.to_vec();
    bytes.extend(JOURNAL_VERSION.to_le_bytes());
    bytes
}

/// Encodes records as one frame, to be written and synced in one go.
#[must_use]
pub fn encode_frame(records: &[GroupRecord]) -> Vec<u8> {
    let payload = bincode::serde::encode_to_vec(records, bincode::config::standard())
        .expect("plain data is always encodable");
    assert!(payload.len() <= MAX_PAYLOAD_BYTES, "a frame of {} bytes", payload.len());
    let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + payload.len());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(crc32c(&payload).to_le_bytes());
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// Encodes a complete journal file with the state of all groups.
#[must_use]
pub fn encode_journal<'a>(groups: impl IntoIterator<Item = (&'a str, &'a SavedGroup)>) -> Vec<u8> {
    let mut bytes = encode_header();
    for (group, saved) in groups {
        bytes.extend(encode_frame(&[GroupRecord { group: group.to_owned(), changes: saved.changes() }]));
    }
    bytes
}

/// Parses a journal file.
///
/// # Errors
/// Damage other than a torn write at the end, with its position.
pub fn read_journal(bytes: &[u8]) -> Result<Journal, JournalError> {
    if bytes.len() < FILE_HEADER_BYTES {
        return if encode_header().starts_with(bytes) {
            Ok(Journal::default())
        } else {
            Err(JournalError { offset: 0, reason: "not a journal" })
        };
    }
    if !bytes.starts_with(JOURNAL_MAGIC) {
        return Err(JournalError { offset: 0, reason: "not a journal" });
    }
    if bytes[8..FILE_HEADER_BYTES] != JOURNAL_VERSION.to_le_bytes() {
        return Err(JournalError { offset: 8, reason: "an unknown version" });
    }
    let mut journal = Journal { groups: BTreeMap::new(), intact_bytes: FILE_HEADER_BYTES };
    while journal.intact_bytes < bytes.len() {
        let offset = journal.intact_bytes;
        let Some(payload) = intact_frame(&bytes[offset..]) else {
            let behind = (offset + 1..bytes.len()).any(|at| intact_frame(&bytes[at..]).is_some());
            if behind {
                return Err(JournalError { offset, reason: "a damaged frame before intact ones" });
            }
            break;
        };
        apply_records(payload, &mut journal.groups).map_err(|reason| JournalError { offset, reason })?;
        journal.intact_bytes += FRAME_HEADER_BYTES + payload.len();
    }
    for saved in journal.groups.values() {
        saved.check_consistency().map_err(|reason| JournalError { offset: journal.intact_bytes, reason })?;
    }
    Ok(journal)
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the payload of the frame at the start of `bytes`, if the frame is complete and its checksums match.
fn intact_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_at_checked(FRAME_HEADER_BYTES)?;
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if number(8) != crc32c(&head[..8]) || number(0) as usize > MAX_PAYLOAD_BYTES {
        return None;
    }
    let payload = rest.get(..number(0) as usize)?;
    (number(4) == crc32c(payload)).then_some(payload)
}

fn apply_records(payload: &[u8], groups: &mut BTreeMap<String, SavedGroup>) -> Result<(), &'static str> {
    let config = bincode::config::standard().with_limit::<MAX_PAYLOAD_BYTES>();
    let (records, used): (Vec<GroupRecord>, usize) = bincode::serde::decode_from_slice(payload, config)
        .map_err(|_| "a frame that is not a list of records")?;
    if used != payload.len() {
        return Err("bytes behind a frame's records");
    }
    for record in records {
        if record.changes.last() == Some(&GroupChange::Dropped) {
            groups.remove(&record.group);
            continue;
        }
        let saved = groups.entry(record.group).or_default();
        for change in record.changes {
            saved.apply(change)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ballot_record(term: u64, vote: u64) -> GroupRecord {
        GroupRecord {
            group: "mymaster".into(),
            changes: vec![GroupChange::Ballot { term: Term(term), vote, commit: 0 }],
        }
    }

    fn entries_change(from: u64, terms: &[u64]) -> GroupChange {
        let entry = |(index, &term)| LogEntry { term: Term(term), index, data: vec![index as u8] };
        GroupChange::Entries((from..).zip(terms).map(entry).collect())
    }

    fn journal_with_three_frames() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = encode_header();
        let mut ends = vec![bytes.len()];
        for term in 1..=3 {
            bytes.extend(encode_frame(&[ballot_record(term, 7)]));
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn truncated_file_loads_up_to_its_last_complete_frame() {
        let (bytes, ends) = journal_with_three_frames();
        for length in 0..=bytes.len() {
            let journal = read_journal(&bytes[..length]).unwrap();
            let whole = ends.iter().filter(|&&end| end <= length).count().saturating_sub(1);
            let term = journal.groups.get("mymaster").map_or(0, |saved| saved.term.0);
            assert_eq!(term, whole as u64, "cut at {length}");
            assert!(length < FILE_HEADER_BYTES || journal.intact_bytes == ends[whole], "cut at {length}");
        }
    }

    #[test]
    fn bit_flip_counts_as_torn_write_only_in_the_last_frame() {
        let (bytes, ends) = journal_with_three_frames();
        for at in FILE_HEADER_BYTES..bytes.len() {
            let mut harmed = bytes.clone();
            harmed[at] ^= 0x10;
            let frame = ends.iter().filter(|&&end| end <= at).count() - 1;
            let result = read_journal(&harmed);
            if frame == 2 {
                assert_eq!(result.unwrap().intact_bytes, ends[2], "bit in byte {at}");
            } else {
                assert_eq!(result.unwrap_err().offset, ends[frame], "bit in byte {at}");
            }
        }
    }

    #[test]
    fn files_of_another_format_are_rejected() {
        let message = |bytes: &[u8]| read_journal(bytes).unwrap_err().to_string();
        assert_eq!(message(b"REDIS0011 and so on"), "byte 0: not a journal");
        assert_eq!(message(b"x"), "byte 0: not a journal");
        assert_eq!(message(b"RDBTRAFT\x02\0\0\0"), "byte 8: an unknown version");
    }

    #[test]
    fn changes_accumulate_to_the_saved_state() {
        let mut saved = SavedGroup::default();
        for change in [
            entries_change(1, &[1, 1, 2]),
            entries_change(3, &[3, 3]),
            GroupChange::Ballot { term: Term(3), vote: 9, commit: 3 },
            GroupChange::Snapshot { term: Term(1), index: 2, value: b"two".to_vec() },
        ] {
            saved.apply(change).unwrap();
        }
        assert_eq!(saved.snapshot, (Term(1), 2));
        assert_eq!(saved.value, b"two");
        let kept: Vec<(u64, u64)> = saved.entries.iter().map(|entry| (entry.index, entry.term.0)).collect();
        assert_eq!(kept, [(3, 3), (4, 3)]);
        let again = read_journal(&encode_journal([("m", &saved)])).unwrap();
        assert_eq!(again.groups["m"], saved);
        // A snapshot that does not continue the log replaces it.
        saved.apply(GroupChange::Snapshot { term: Term(5), index: 3, value: b"x".to_vec() }).unwrap();
        assert!(saved.entries.is_empty());
        assert!(saved.apply(entries_change(9, &[5])).is_err());
    }

    #[test]
    fn dropped_group_leaves_no_state() {
        let mut bytes = encode_header();
        bytes.extend(encode_frame(&[ballot_record(4, 1)]));
        bytes.extend(encode_frame(&[GroupRecord {
            group: "mymaster".into(),
            changes: vec![GroupChange::Dropped],
        }]));
        assert!(read_journal(&bytes).unwrap().groups.is_empty());
    }

    proptest! {
        #[test]
        fn decoding_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut file = encode_header();
            file.extend(&bytes);
            let _ = read_journal(&file);
            let _ = read_journal(&bytes);
        }
    }
}
