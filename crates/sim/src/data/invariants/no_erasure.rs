//! A replica does not drop its master's writes when that master restarts without data.
//!
//! The memory and the files of the master are gone, so the writes survive only at replicas that acknowledged them.

use std::collections::{BTreeMap, BTreeSet};

use replication::ReplId;
use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoErasure {
    /// Masters that have acknowledged a write in their current incarnation.
    written: BTreeSet<usize>,
    /// The number of restarts of each process.
    incarnations: BTreeMap<usize, usize>,
    /// For each replica, the master to which it last acknowledged data, and the incarnation of that master.
    copies: BTreeMap<usize, (usize, usize)>,
    /// The latest replication id of each process.
    histories: BTreeMap<usize, ReplId>,
    /// Masters that restarted empty and have not been replicas since, each with the history that it lost. A snapshot of
    /// that history may still be in flight.
    returned_empty: BTreeMap<usize, ReplId>,
    /// Replicas that an operator removed. They are exempt from the invariant.
    forgotten: BTreeSet<usize>,
}

impl Invariant<DataObservation<'_>> for NoErasure {
    fn check(&mut self, seen: &DataObservation<'_>) -> Result<(), String> {
        let host = seen.host;
        match seen.change {
            DataChange::Acknowledged { .. } => {
                self.written.insert(host);
            }
            DataChange::AcknowledgedByReplica { replica, offset }
                if offset > ReplOffset(0) && self.written.contains(&host) =>
            {
                self.copies.insert(replica, (host, self.incarnation(host)));
            }
            DataChange::Restarted { .. } => {
                *self.incarnations.entry(host).or_default() += 1;
                self.copies.remove(&host);
                self.written.remove(&host);
                let lost = self.histories.remove(&host).unwrap_or(ReplId::NONE);
                if seen.store.offset() == ReplOffset(0) {
                    self.returned_empty.insert(host, lost);
                } else {
                    self.returned_empty.remove(&host);
                }
                return Ok(());
            }
            DataChange::Demoted => {
                self.returned_empty.remove(&host);
            }
            DataChange::Forgotten { master: None } => {
                self.forgotten.insert(host);
            }
            DataChange::Forgotten { master: by } if self.copies.get(&host).map(|copy| copy.0) == by => {
                self.copies.remove(&host);
            }
            DataChange::Promoted { .. } => {
                self.copies.remove(&host);
            }
            DataChange::Replaced => self.check_replaced(seen)?,
            DataChange::AcknowledgedByReplica { .. }
            | DataChange::Consistent
            | DataChange::Synced { .. }
            | DataChange::Copied { .. }
            | DataChange::Applied
            | DataChange::Dropped { .. }
            | DataChange::Forgotten { .. } => {}
        }
        if !seen.store.is_loading() {
            self.histories.insert(host, seen.store.history());
        }
        Ok(())
    }
}

impl NoErasure {
    /// Checks a snapshot that starts to replace the data of a replica.
    fn check_replaced(&mut self, seen: &DataObservation<'_>) -> Result<(), String> {
        let host = seen.host;
        // The log is closed but has not restarted, so its offset still tells how much data the replica had.
        let had_data = seen.store.offset() > ReplOffset(0);
        let copied = self.copies.remove(&host).filter(|_| had_data && !self.forgotten.contains(&host));
        // Data from the current incarnation of the master is not lost, because the master continues that history.
        let of_before = |(master, incarnation): (usize, usize)| {
            (incarnation < self.incarnation(master)).then_some(master)
        };
        let master = seen.store.upstream().filter(|master| copied.and_then(of_before) == Some(*master));
        let emptied = |master: &usize| {
            let lost = self.returned_empty.get(master);
            lost.is_some_and(|lost| seen.store.loading_history() != Some(*lost))
        };
        match master.filter(emptied) {
            Some(master) => {
                Err(format!("host {host} gives up what it has of host {master}, which lost all that it had"))
            }
            None => Ok(()),
        }
    }

    fn incarnation(&self, host: usize) -> usize {
        self.incarnations.get(&host).copied().unwrap_or_default()
    }
}
