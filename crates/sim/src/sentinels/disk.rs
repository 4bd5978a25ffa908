//! A sentinel's disk: its configuration file and its journal, in their real formats.
//!
//! Bytes that are written but not synced may be lost in a crash, from any byte on.

use std::collections::BTreeMap;

use consensus::{Change, Record, Saved, journal};

use crate::{Chance, Plant};

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) config: Vec<u8>,
    journal: Vec<u8>,
    synced: usize,
}

impl Disk {
    pub(super) fn new(config: Vec<u8>) -> Self {
        let journal = journal::head();
        let synced = journal.len();
        Self { config, journal, synced }
    }

    /// Writes a frame; it is safe once [`Disk::sync`] has been called.
    pub(super) fn append(&mut self, mut record: Record, plant: Option<Plant>) {
        if plant == Some(Plant::ForgottenVotes) {
            for change in &mut record.changes {
                if let Change::Ballot { vote, .. } = change {
                    *vote = 0;
                }
            }
        }
        if plant == Some(Plant::ForgottenWrites) {
            return;
        }
        self.journal.extend(journal::frame(&[record]));
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.journal.len();
    }

    /// The machine loses power: of what was not synced, a part survives.
    pub(super) fn crash(&mut self, chance: &mut Chance) {
        let unsynced = self.journal.len() - self.synced;
        self.journal.truncate(self.synced + chance.below(unsynced + 1));
    }

    /// Reads the journal as a restarted process does; the torn end is cut off.
    pub(super) fn load(&mut self) -> Result<BTreeMap<String, Saved>, String> {
        let read = journal::read(&self.journal).map_err(|error| error.to_string())?;
        self.journal.truncate(read.intact);
        self.synced = self.journal.len();
        Ok(read.groups)
    }
}
