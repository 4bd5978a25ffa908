//! Tracks clients and processes that wait until enough copies of the log exist: WAIT, WAITAOF, SHUTDOWN and slot
//! migration.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

/// The replicas and disks that must have stored the log before a waiter is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredCopies {
    /// Replicas must have acknowledged the log (WAIT).
    Acknowledged {
        /// The number of replicas that must have acknowledged the log.
        replica_count: usize,
    },
    /// The log must be synced to disk in append-only files (WAITAOF).
    Synced {
        /// Whether the file of this node must be synced as well.
        requires_local_file: bool,
        /// The number of replicas whose files must be synced.
        replica_count: usize,
    },
}

impl RequiredCopies {
    /// Returns whether the append-only file of this node is required.
    #[must_use]
    pub fn requires_local_disk(self) -> bool {
        matches!(self, Self::Synced { requires_local_file: true, .. })
    }
}

/// How much of the log is on disk in the append-only file of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskProgress {
    /// This node has no append-only file.
    #[default]
    Disabled,
    /// Nothing is on disk yet, because the file's first base has not been written.
    NothingSynced,
    /// Everything before this offset is on disk.
    SyncedUpTo(ReplOffset),
}

impl DiskProgress {
    /// Returns the offset up to which the log is on disk; `None` if nothing is.
    #[must_use]
    pub fn end_offset(self) -> Option<ReplOffset> {
        match self {
            Self::Disabled | Self::NothingSynced => None,
            Self::SyncedUpTo(offset) => Some(offset),
        }
    }
}

/// How far the log has been copied.
#[derive(Debug, Default)]
pub struct LogProgress {
    /// How much of the log is on the disk of this node.
    pub local_file: DiskProgress,
    /// The offsets that the replicas have acknowledged, in any order.
    pub acknowledged_offsets: Vec<ReplOffset>,
    /// The offsets up to which the replicas' append-only files are on disk, in any order.
    pub synced_offsets: Vec<ReplOffset>,
}

/// How many replicas have stored the log up to an offset, and whether the local disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyCount {
    /// Whether this node has the required log on disk.
    pub is_on_local_disk: bool,
    /// The number of replicas that have the required log in memory, or on disk if that was required.
    pub replica_count: usize,
}

/// The append-only file of this node is required but disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendOnlyOffError;

impl LogProgress {
    /// Counts the copies of the log before `offset`.
    ///
    /// # Errors
    /// The append-only file of this node is required but disabled.
    pub fn count_copies(
        &self,
        offset: ReplOffset,
        required: RequiredCopies,
    ) -> Result<CopyCount, AppendOnlyOffError> {
        let replicas = match required {
            RequiredCopies::Acknowledged { .. } => &self.acknowledged_offsets,
            RequiredCopies::Synced { .. }
                if required.requires_local_disk() && self.local_file == DiskProgress::Disabled =>
            {
                return Err(AppendOnlyOffError);
            }
            RequiredCopies::Synced { .. } => &self.synced_offsets,
        };
        let has_it = |upto: &ReplOffset| *upto >= offset;
        let replicas = replicas.iter().filter(|upto| has_it(upto)).count();
        Ok(CopyCount {
            is_on_local_disk: self.local_file.end_offset().is_some_and(|upto| has_it(&upto)),
            replica_count: replicas,
        })
    }

    /// Returns the largest offset that the local disk or any replica has reached, so that waiters for later offsets can
    /// be skipped.
    fn max_offset(&self) -> ReplOffset {
        self.acknowledged_offsets
            .iter()
            .copied()
            .chain(self.local_file.end_offset())
            .max()
            .unwrap_or_default()
    }
}

impl CopyCount {
    /// Returns whether there are at least the `required` copies.
    #[must_use]
    pub fn satisfies(self, required: RequiredCopies) -> bool {
        match required {
            RequiredCopies::Acknowledged { replica_count: by } => self.replica_count >= by,
            RequiredCopies::Synced { requires_local_file: here, replica_count: at } => {
                self.replica_count >= at && (self.is_on_local_disk || !here)
            }
        }
    }
}

/// Waiters ordered by the offset that they wait for. `T` identifies a waiter.
#[derive(Debug)]
pub struct Waiters<T> {
    waiters: BTreeMap<(ReplOffset, T), RequiredCopies>,
    /// The number of waiters that require the append-only file of this node.
    disk_waiters: usize,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { waiters: BTreeMap::new(), disk_waiters: 0 }
    }
}

impl<T: Ord + Clone> Waiters<T> {
    /// Adds a waiter that requires copies of the log up to `offset`.
    pub fn add(&mut self, token: T, offset: ReplOffset, required: RequiredCopies) {
        self.waiters.insert((offset, token), required);
        self.disk_waiters += usize::from(required.requires_local_disk());
    }

    /// Removes a waiter whose timeout expired or whose client has disconnected.
    pub fn remove(&mut self, token: T, offset: ReplOffset) {
        let removed = self.waiters.remove(&(offset, token));
        self.disk_waiters -= usize::from(removed.is_some_and(RequiredCopies::requires_local_disk));
    }

    /// Returns whether there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns whether a waiter requires the append-only file of this node.
    #[must_use]
    pub fn needs_disk(&self) -> bool {
        self.disk_waiters > 0
    }

    /// Removes and returns the waiters whose requirement is satisfied, each with the copies that exist.
    pub fn release(&mut self, progress: &LogProgress) -> Vec<(T, Result<CopyCount, AppendOnlyOffError>)> {
        let furthest = progress.max_offset();
        let all_can_end = self.disk_waiters > 0 && progress.local_file == DiskProgress::Disabled;
        let mut released = Vec::new();
        for ((offset, token), wanted) in &self.waiters {
            if *offset > furthest && !all_can_end {
                // No copy has reached this offset, so no copy has reached the later ones.
                break;
            }
            let copies = progress.count_copies(*offset, *wanted);
            if copies.is_err() || copies.is_ok_and(|copies| copies.satisfies(*wanted)) {
                released.push((*offset, token.clone(), copies));
            }
        }
        let over = |(offset, token, copies): (ReplOffset, T, _)| {
            self.remove(token.clone(), offset);
            (token, copies)
        };
        released.into_iter().map(over).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_progress(
        local_offset: Option<u64>,
        acknowledged_offsets: &[u64],
        synced_offsets: &[u64],
    ) -> LogProgress {
        let offsets = |of: &[u64]| of.iter().map(|offset| ReplOffset(*offset)).collect();
        LogProgress {
            local_file: local_offset
                .map_or(DiskProgress::Disabled, |upto| DiskProgress::SyncedUpTo(ReplOffset(upto))),
            acknowledged_offsets: offsets(acknowledged_offsets),
            synced_offsets: offsets(synced_offsets),
        }
    }

    /// Releases waiters and returns each one's reply, which is the number of replicas.
    fn release(
        waiters: &mut Waiters<&'static str>,
        log_progress: &LogProgress,
    ) -> Vec<(&'static str, Result<usize, AppendOnlyOffError>)> {
        let released = waiters.release(log_progress).into_iter();
        released.map(|(token, copies)| (token, copies.map(|copies| copies.replica_count))).collect()
    }

    #[test]
    fn each_waiter_has_its_own_offset_and_replica_count() {
        let mut waiters = Waiters::default();
        for (token, offset, by) in [("one", 10, 1), ("two", 10, 2), ("late", 30, 1), ("gone", 10, 1)] {
            waiters.add(token, ReplOffset(offset), RequiredCopies::Acknowledged { replica_count: by });
        }
        waiters.remove("gone", ReplOffset(10));
        let mut released = |acknowledged| release(&mut waiters, &log_progress(None, acknowledged, &[40, 40]));
        assert_eq!(released(&[]), []);
        assert_eq!(released(&[9, 5]), []);
        assert_eq!(released(&[10, 5]), [("one", Ok(1))]);
        assert_eq!(released(&[29, 10]), [("two", Ok(2))]);
        assert_eq!(released(&[40, 40]), [("late", Ok(2))]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn waitaof_ends_when_the_file_is_synced_or_switched_off() {
        let mut waiters = Waiters::default();
        for (token, offset, here, at) in
            [("here", 10, true, 0), ("there", 10, false, 2), ("both", 20, true, 1), ("late", 50, true, 0)]
        {
            waiters.add(
                token,
                ReplOffset(offset),
                RequiredCopies::Synced { requires_local_file: here, replica_count: at },
            );
        }
        let begun =
            LogProgress { local_file: DiskProgress::NothingSynced, ..log_progress(None, &[60, 60], &[]) };
        assert_eq!(release(&mut waiters, &begun), []);
        // A replica that has the writes only in memory does not count for a waiter that requires them on disk.
        assert_eq!(release(&mut waiters, &log_progress(Some(9), &[60, 60], &[10, 9])), []);
        assert_eq!(release(&mut waiters, &log_progress(Some(19), &[60, 60], &[20])), [("here", Ok(1))]);
        assert_eq!(release(&mut waiters, &log_progress(Some(20), &[60], &[20])), [("both", Ok(1))]);
        assert!(waiters.needs_disk());
        assert_eq!(
            release(&mut waiters, &log_progress(None, &[20], &[20])),
            [("late", Err(AppendOnlyOffError))]
        );
        assert!(!waiters.needs_disk());
        assert_eq!(release(&mut waiters, &log_progress(None, &[30, 30], &[30, 10])), [("there", Ok(2))]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn copies_in_memory_and_on_disk_are_counted_separately() {
        let reach = log_progress(Some(30), &[40, 30, 20], &[30, 10]);
        let count = |offset, wanted| {
            reach
                .count_copies(ReplOffset(offset), wanted)
                .map(|copies| (copies.is_on_local_disk, copies.replica_count))
        };
        for (offset, wanted, counted) in [
            (30, RequiredCopies::Acknowledged { replica_count: 1 }, (true, 2)),
            (31, RequiredCopies::Acknowledged { replica_count: 1 }, (false, 1)),
            (30, RequiredCopies::Synced { requires_local_file: false, replica_count: 1 }, (true, 1)),
            (10, RequiredCopies::Synced { requires_local_file: true, replica_count: 2 }, (true, 2)),
        ] {
            assert_eq!(count(offset, wanted), Ok(counted), "{wanted:?} of {offset}");
        }
    }
}
