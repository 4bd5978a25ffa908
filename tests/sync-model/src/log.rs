//! Replication logs of a few entries.

/// A log entry, which is identified by its epoch and a value that no other entry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Entry {
    /// The epoch of the master that appended the entry.
    pub(crate) epoch: u8,
    /// The written value; zero in the first entry of a new master.
    pub(crate) value: u8,
}

/// A log. Two logs of equal length may have different entries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Log(Vec<Entry>);

impl Log {
    /// The number of entries in the log.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends an entry at the end.
    pub(crate) fn push(&mut self, entry: Entry) {
        self.0.push(entry);
    }

    /// Whether `other` starts with this log.
    pub(crate) fn is_prefix_of(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Appends the entries of `source` beyond this log's length, even if the earlier entries differ.
    pub(crate) fn append_by_length(&mut self, source: &Self) {
        self.0.extend(source.0.iter().skip(self.0.len()));
    }

    /// The values among the first `len` entries, one bit each.
    pub(crate) fn value_bits(&self, len: usize) -> u8 {
        let values = self.0.iter().take(len).filter(|entry| entry.value > 0);
        values.fold(0, |bits, entry| bits | 1 << (entry.value - 1))
    }
}
