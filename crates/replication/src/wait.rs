//! Waiting for copies of the log: the clients of WAIT and WAITAOF, a server that stops, a move of slots.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

/// The copies of the log that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// In the memory of so many replicas (WAIT).
    Acknowledged {
        /// By so many.
        by: usize,
    },
    /// On the disk (WAITAOF).
    Synced {
        /// On this node's.
        here: bool,
        /// On that of so many replicas.
        at: usize,
    },
}

impl Wanted {
    /// Whether this node's disk is waited for.
    #[must_use]
    pub fn is_for_disk(self) -> bool {
        matches!(self, Self::Synced { here: true, .. })
    }
}

/// The part of the log that is on this node's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDisk {
    /// There is no append-only file.
    #[default]
    NoFile,
    /// Nothing: the first base of the file is not there.
    Nothing,
    /// All before this offset.
    Upto(ReplOffset),
}

impl OnDisk {
    /// Up to where it is, if anything is.
    #[must_use]
    pub fn upto(self) -> Option<ReplOffset> {
        match self {
            Self::NoFile | Self::Nothing => None,
            Self::Upto(offset) => Some(offset),
        }
    }
}

/// How far the log has come.
#[derive(Debug, Default)]
pub struct Reach {
    /// On this node's disk.
    pub here: OnDisk,
    /// Up to where each replica has acknowledged it, in any order.
    pub acknowledged: Vec<ReplOffset>,
    /// Up to where it is on the disk of each replica that has an append-only file.
    pub synced: Vec<ReplOffset>,
}

/// The copies there are of the log before an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// It is on this node's disk.
    pub here: bool,
    /// So many replicas have it, in their memory or on their disk, as is wanted.
    pub replicas: usize,
}

/// This node's disk is waited for, and there is no append-only file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoFile;

impl Reach {
    /// Counts the copies of the log before `offset`.
    ///
    /// # Errors
    /// One is wanted that there cannot be.
    pub fn copies(&self, offset: ReplOffset, wanted: Wanted) -> Result<Copies, NoFile> {
        let replicas = match wanted {
            Wanted::Acknowledged { .. } => &self.acknowledged,
            Wanted::Synced { .. } if wanted.is_for_disk() && self.here == OnDisk::NoFile => {
                return Err(NoFile);
            }
            Wanted::Synced { .. } => &self.synced,
        };
        let has_it = |upto: &ReplOffset| *upto >= offset;
        let replicas = replicas.iter().filter(|upto| has_it(upto)).count();
        Ok(Copies { here: self.here.upto().is_some_and(|upto| has_it(&upto)), replicas })
    }

    /// No copy goes further.
    fn furthest(&self) -> ReplOffset {
        self.acknowledged.iter().copied().chain(self.here.upto()).max().unwrap_or_default()
    }
}

impl Copies {
    /// Whether these are enough.
    #[must_use]
    pub fn suffice(self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Acknowledged { by } => self.replicas >= by,
            Wanted::Synced { here, at } => self.replicas >= at && (self.here || !here),
        }
    }
}

/// Those who wait, by the offset that they wait for. `T` names one.
#[derive(Debug)]
pub struct Waiters<T> {
    waiting: BTreeMap<(ReplOffset, T), Wanted>,
    /// How many of them wait for this node's disk.
    for_disk: usize,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), for_disk: 0 }
    }
}

impl<T: Ord + Clone> Waiters<T> {
    /// `token` waits, since the copies of the log before `offset` do not suffice.
    pub fn add(&mut self, token: T, offset: ReplOffset, wanted: Wanted) {
        self.waiting.insert((offset, token), wanted);
        self.for_disk += usize::from(wanted.is_for_disk());
    }

    /// `token` waits no longer: its time is up, or its client is gone.
    pub fn remove(&mut self, token: T, offset: ReplOffset) {
        let removed = self.waiting.remove(&(offset, token));
        self.for_disk -= usize::from(removed.is_some_and(Wanted::is_for_disk));
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether somebody waits for this node's disk.
    #[must_use]
    pub fn mind_disk(&self) -> bool {
        self.for_disk > 0
    }

    /// Takes out those whose wait is over, each with the copies there are.
    pub fn release(&mut self, reach: &Reach) -> Vec<(T, Result<Copies, NoFile>)> {
        let furthest = reach.furthest();
        let all_can_end = self.for_disk > 0 && reach.here == OnDisk::NoFile;
        let mut released = Vec::new();
        for ((offset, token), wanted) in &self.waiting {
            if *offset > furthest && !all_can_end {
                // No copy has come this far, nor to any later offset.
                break;
            }
            let copies = reach.copies(*offset, *wanted);
            if copies.is_err() || copies.is_ok_and(|copies| copies.suffice(*wanted)) {
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

    fn reach(here: Option<u64>, acknowledged: &[u64], synced: &[u64]) -> Reach {
        let offsets = |of: &[u64]| of.iter().map(|offset| ReplOffset(*offset)).collect();
        Reach {
            here: here.map_or(OnDisk::NoFile, |upto| OnDisk::Upto(ReplOffset(upto))),
            acknowledged: offsets(acknowledged),
            synced: offsets(synced),
        }
    }

    /// Returns those whose wait is over, with the replicas that have what they wait for.
    fn released(
        waiters: &mut Waiters<&'static str>,
        reach: &Reach,
    ) -> Vec<(&'static str, Result<usize, NoFile>)> {
        let released = waiters.release(reach).into_iter();
        released.map(|(token, copies)| (token, copies.map(|copies| copies.replicas))).collect()
    }

    #[test]
    fn each_waits_for_its_own_offset_and_number() {
        let mut waiters = Waiters::default();
        for (token, offset, by) in [("one", 10, 1), ("two", 10, 2), ("late", 30, 1), ("gone", 10, 1)] {
            waiters.add(token, ReplOffset(offset), Wanted::Acknowledged { by });
        }
        waiters.remove("gone", ReplOffset(10));
        let mut released = |acknowledged| released(&mut waiters, &reach(None, acknowledged, &[40, 40]));
        assert_eq!(released(&[]), []);
        assert_eq!(released(&[9, 5]), []);
        assert_eq!(released(&[10, 5]), [("one", Ok(1))]);
        assert_eq!(released(&[29, 10]), [("two", Ok(2))]);
        assert_eq!(released(&[40, 40]), [("late", Ok(2))]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_disk_is_waited_for_until_it_has_it_or_there_is_none() {
        let mut waiters = Waiters::default();
        for (token, offset, here, at) in
            [("here", 10, true, 0), ("there", 10, false, 2), ("both", 20, true, 1), ("late", 50, true, 0)]
        {
            waiters.add(token, ReplOffset(offset), Wanted::Synced { here, at });
        }
        let begun = Reach { here: OnDisk::Nothing, ..reach(None, &[60, 60], &[]) };
        assert_eq!(released(&mut waiters, &begun), []);
        // A copy in memory alone does not count.
        assert_eq!(released(&mut waiters, &reach(Some(9), &[60, 60], &[10, 9])), []);
        assert_eq!(released(&mut waiters, &reach(Some(19), &[60, 60], &[20])), [("here", Ok(1))]);
        assert_eq!(released(&mut waiters, &reach(Some(20), &[60], &[20])), [("both", Ok(1))]);
        assert!(waiters.mind_disk());
        assert_eq!(released(&mut waiters, &reach(None, &[20], &[20])), [("late", Err(NoFile))]);
        assert!(!waiters.mind_disk());
        assert_eq!(released(&mut waiters, &reach(None, &[30, 30], &[30, 10])), [("there", Ok(2))]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn copies_are_counted_where_they_are_wanted() {
        let reach = reach(Some(30), &[40, 30, 20], &[30, 10]);
        let count = |offset, wanted| {
            reach.copies(ReplOffset(offset), wanted).map(|copies| (copies.here, copies.replicas))
        };
        for (offset, wanted, counted) in [
            (30, Wanted::Acknowledged { by: 1 }, (true, 2)),
            (31, Wanted::Acknowledged { by: 1 }, (false, 1)),
            (30, Wanted::Synced { here: false, at: 1 }, (true, 1)),
            (10, Wanted::Synced { here: true, at: 2 }, (true, 2)),
        ] {
            assert_eq!(count(offset, wanted), Ok(counted), "{wanted:?} of {offset}");
        }
    }
}
