//! A sentinel's disk with its configuration file and journal in their real formats.
//!
//! A crash may lose unsynced bytes from any position on.

use std::collections::BTreeMap;

use consensus::{GroupChange, GroupRecord, SavedGroup, journal};

use crate::{InjectedBug, RandomSource};

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) config: Vec<u8>,
    journal: Vec<u8>,
    synced: usize,
}

impl Disk {
    pub(super) fn new(config: Vec<u8>) -> Self {
        let journal = journal::encode_header();
        let synced = journal.len();
        Self { config, journal, synced }
    }

    /// Writes a journal record, which becomes durable with [`Disk::sync`].
    pub(super) fn append(&mut self, mut record: GroupRecord, injected_bug: Option<InjectedBug>) {
        if injected_bug == Some(InjectedBug::UnsavedVotes) {
            for change in &mut record.changes {
                if let GroupChange::Ballot { vote, .. } = change {
                    *vote = 0;
                }
            }
        }
        if injected_bug == Some(InjectedBug::LostDiskWrites) {
            return;
        }
        self.journal.extend(journal::encode_frame(&[record]));
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.journal.len();
    }

    /// Cuts the power; a part of the unsynced bytes survives.
    pub(super) fn crash(&mut self, random: &mut RandomSource) {
        let unsynced = self.journal.len() - self.synced;
        self.journal.truncate(self.synced + random.below(unsynced + 1));
    }

    /// Reads the journal as a restarted process does; a torn end is truncated.
    pub(super) fn load(&mut self) -> Result<BTreeMap<String, SavedGroup>, String> {
        let read = journal::read_journal(&self.journal).map_err(|error| error.to_string())?;
        self.journal.truncate(read.intact_bytes);
        self.synced = self.journal.len();
        Ok(read.groups)
    }
}
