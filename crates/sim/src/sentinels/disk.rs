//! A sentinel's disk with its configuration file and journal in their real formats.
//!
//! A crash may lose the unsynced end of the journal, and a failed append leaves a part of its bytes. The configuration
//! file and a compacted journal are replaced as a whole, so a crash leaves the old or the new file.

use std::collections::BTreeMap;

use consensus::{GroupChange, GroupRecord, SavedGroup, journal};
use sentinel::FileWrite;

use crate::{InjectedBug, RandomSource};

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) config: Vec<u8>,
    journal: Vec<u8>,
    synced: usize,
    /// Whether the last write of the configuration failed, so that a restart may read an older one.
    pub(super) config_is_lost: bool,
    /// The write in progress, and what an injected bug makes of it; `None` in the second place if the bug loses the
    /// write.
    pending: Option<(FileWrite, Option<FileWrite>)>,
}

impl Disk {
    pub(super) fn new(config: Vec<u8>) -> Self {
        let journal = journal::encode_header();
        let synced = journal.len();
        Self { config, journal, synced, config_is_lost: false, pending: None }
    }

    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal.len() as u64
    }

    /// Begins a write. It is durable once [`Disk::finish`] is called.
    pub(super) fn begin(&mut self, write: FileWrite, injected_bug: Option<InjectedBug>) {
        let written = match injected_bug {
            Some(InjectedBug::UnsavedVotes) => Some(without_votes(write.clone())),
            Some(InjectedBug::LostDiskWrites) => without_epochs(&write),
            _ => Some(write.clone()),
        };
        match &written {
            Some(FileWrite::AppendJournal(records)) => self.journal.extend(journal::encode_frame(records)),
            Some(FileWrite::ReplaceJournal(_) | FileWrite::Config(_)) | None => {}
        }
        self.pending = Some((write, written));
    }

    /// The terms and votes in the write in progress.
    pub(super) fn pending_ballots(&self) -> Vec<(u64, u64)> {
        self.pending.as_ref().map(|(write, _)| ballots(write)).unwrap_or_default()
    }

    /// Completes the write in progress. Returns the size of the journal in bytes.
    pub(super) fn finish(&mut self) -> u64 {
        match self.pending.take().and_then(|(_, written)| written) {
            Some(FileWrite::AppendJournal(_)) => self.synced = self.journal.len(),
            Some(FileWrite::ReplaceJournal(groups)) => {
                let groups = groups.iter().map(|(name, saved)| (name.as_str(), saved));
                self.journal = journal::encode_journal(groups);
                self.synced = self.journal.len();
            }
            Some(FileWrite::Config(text)) => (self.config, self.config_is_lost) = (text, false),
            None => {}
        }
        self.journal_bytes()
    }

    /// Makes the write in progress fail. A failed append leaves a part of its bytes, a failed replacement the old or
    /// the new file.
    pub(super) fn fail(&mut self, random: &mut RandomSource) {
        match &self.pending {
            Some((FileWrite::AppendJournal(_), _)) => self.tear(random),
            Some((FileWrite::ReplaceJournal(_), _)) if random.random_bool(50) => _ = self.finish(),
            Some((FileWrite::Config(_), _)) => {
                if random.random_bool(50) {
                    self.finish();
                }
                self.config_is_lost = true;
            }
            _ => {}
        }
        self.pending = None;
    }

    /// Cuts the power. Some of the unsynced bytes survive.
    pub(super) fn crash(&mut self, random: &mut RandomSource) {
        match &self.pending {
            Some((FileWrite::ReplaceJournal(_) | FileWrite::Config(_), _)) if random.random_bool(50) => {
                self.finish();
            }
            _ => self.tear(random),
        }
        self.pending = None;
    }

    fn tear(&mut self, random: &mut RandomSource) {
        let unsynced = self.journal.len() - self.synced;
        self.journal.truncate(self.synced + random.random_below(unsynced + 1));
    }

    /// Reads the journal after a restart. An incomplete record at the end is truncated.
    pub(super) fn load(&mut self) -> Result<BTreeMap<String, SavedGroup>, String> {
        let read = journal::read_journal(&self.journal).map_err(|error| error.to_string())?;
        self.journal.truncate(read.intact_bytes);
        self.synced = self.journal.len();
        Ok(read.groups)
    }
}

/// The terms and votes in a write.
pub(super) fn ballots(write: &FileWrite) -> Vec<(u64, u64)> {
    let of_change = |change: &GroupChange| match change {
        GroupChange::Ballot { term, vote, .. } => Some((term.0, *vote)),
        _ => None,
    };
    match write {
        FileWrite::AppendJournal(records) => {
            records.iter().flat_map(|record| &record.changes).filter_map(of_change).collect()
        }
        FileWrite::ReplaceJournal(groups) => {
            groups.values().map(|saved| (saved.term.0, saved.voted_for)).collect()
        }
        FileWrite::Config(_) => Vec::new(),
    }
}

/// Implements an injected bug: votes are not saved.
fn without_votes(write: FileWrite) -> FileWrite {
    match write {
        FileWrite::AppendJournal(mut records) => {
            for change in records.iter_mut().flat_map(|GroupRecord { changes, .. }| changes) {
                if let GroupChange::Ballot { vote, .. } = change {
                    *vote = 0;
                }
            }
            FileWrite::AppendJournal(records)
        }
        FileWrite::ReplaceJournal(mut groups) => {
            groups.values_mut().for_each(|saved| saved.voted_for = 0);
            FileWrite::ReplaceJournal(groups)
        }
        config @ FileWrite::Config(_) => config,
    }
}

/// Implements an injected bug: the journal is not written, and the configuration file has the sentinels' run ids but no
/// epochs.
fn without_epochs(write: &FileWrite) -> Option<FileWrite> {
    let FileWrite::Config(text) = write else { return None };
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter(|line| !line.contains("-epoch "));
    Some(FileWrite::Config(lines.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()))
}
