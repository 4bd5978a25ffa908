//! The in-memory log, which the `raft` crate reads through its `Storage` trait.
//!
//! The log equals the journal once all records are written: every change goes through [`Store::record_change`], which
//! also adds the change to the next journal record.

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, StorageError};

use crate::Term;
use crate::journal::{GroupChange, LogEntry, SavedGroup};

#[derive(Debug)]
pub(crate) struct GroupStore {
    saved_group: SavedGroup,
    voters: Vec<u64>,
    /// Changes that will be part of the next journal record.
    pending_changes: Vec<GroupChange>,
}

impl GroupStore {
    pub(crate) fn new(saved_group: SavedGroup, voters: Vec<u64>) -> Self {
        Self { saved_group, voters, pending_changes: Vec::new() }
    }

    pub(crate) fn saved_group(&self) -> &SavedGroup {
        &self.saved_group
    }

    pub(crate) fn voters(&self) -> &[u64] {
        &self.voters
    }

    /// Applies a change and adds it to the next journal record. Panics on an invalid change, which only a bug can
    /// produce.
    pub(crate) fn record_change(&mut self, change: GroupChange) {
        self.pending_changes.push(change.clone());
        self.saved_group.apply(change).expect("the raft crate hands over a log without gaps");
    }

    pub(crate) fn take_pending_changes(&mut self) -> Vec<GroupChange> {
        std::mem::take(&mut self.pending_changes)
    }

    pub(crate) fn last_entry(&self) -> (Term, u64) {
        self.saved_group.entries.last().map_or(self.saved_group.snapshot, |entry| (entry.term, entry.index))
    }

    /// The term of the entry at `index`, or `None` if the log does not contain the entry.
    pub(crate) fn term_at(&self, index: u64) -> Option<Term> {
        let (term, snapshot) = self.saved_group.snapshot;
        if index == snapshot {
            return Some(term);
        }
        let place = index.checked_sub(snapshot + 1)?;
        self.saved_group.entries.get(usize::try_from(place).ok()?).map(|entry| entry.term)
    }

    pub(crate) fn conf_state(&self) -> ConfState {
        ConfState { voters: self.voters.clone(), ..ConfState::default() }
    }
}

pub(crate) fn to_raft_entry(entry: &LogEntry) -> Entry {
    Entry { term: entry.term.0, index: entry.index, data: entry.data.clone().into(), ..Entry::default() }
}

pub(crate) fn from_raft_entry(entry: &Entry) -> LogEntry {
    LogEntry { term: Term(entry.term), index: entry.index, data: entry.data.to_vec() }
}

impl raft::Storage for GroupStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard = HardState {
            term: self.saved_group.term.0,
            vote: self.saved_group.voted_for,
            commit: self.saved_group.commit_index,
            ..HardState::default()
        };
        Ok(RaftState::new(hard, self.conf_state()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let first = self.saved_group.snapshot.1 + 1;
        if low < first {
            return Err(Error::Store(StorageError::Compacted));
        }
        let end = first + self.saved_group.entries.len() as u64;
        assert!(high <= end, "entries up to {high} of a log that ends at {end}");
        let range = (low - first) as usize..(high - first) as usize;
        let mut entries = self.saved_group.entries[range].iter().map(to_raft_entry).collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_at(index) {
            Some(term) => Ok(term.0),
            None if index < self.saved_group.snapshot.1 => Err(Error::Store(StorageError::Compacted)),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.saved_group.snapshot.1 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_entry().1)
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        snapshot.set_data(self.saved_group.value.clone().into());
        let metadata = snapshot.mut_metadata();
        metadata.set_conf_state(self.conf_state());
        (metadata.term, metadata.index) = (self.saved_group.snapshot.0.0, self.saved_group.snapshot.1);
        Ok(snapshot)
    }
}
