//! A replica does not drop its master's writes when that master restarts without data.
//!
//! The memory and the files of the master are gone, so the writes survive only at replicas that acknowledged them.

use std::collections::{BTreeMap, BTreeSet};

use replication::ReplId;
use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoErasureInvariant {
    /// Masters that have acknowledged a write in their current incarnation.
    masters_with_writes: BTreeSet<usize>,
    /// The number of restarts of each process.
    restart_counts: BTreeMap<usize, usize>,
    /// For each replica, the master to which it last acknowledged data, and the incarnation of that master.
    copied_masters: BTreeMap<usize, (usize, usize)>,
    /// The latest replication id of each process.
    histories: BTreeMap<usize, ReplId>,
    /// Masters that restarted empty and have not been replicas since, each with the history that it lost. A snapshot of
    /// that history may still be in flight.
    masters_returned_empty: BTreeMap<usize, ReplId>,
    /// Replicas that an operator removed. They are exempt from the invariant.
    forgotten_replicas: BTreeSet<usize>,
}

impl Invariant<DataObservation<'_>> for NoErasureInvariant {
    fn check(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let host = observation.host;
        match observation.change {
            DataChange::WriteAcknowledged { .. } => {
                self.masters_with_writes.insert(host);
            }
            DataChange::AcknowledgedByReplica { replica, offset }
                if offset > ReplOffset(0) && self.masters_with_writes.contains(&host) =>
            {
                self.copied_masters.insert(replica, (host, self.incarnation(host)));
            }
            DataChange::Restarted { .. } => {
                *self.restart_counts.entry(host).or_default() += 1;
                self.copied_masters.remove(&host);
                self.masters_with_writes.remove(&host);
                let lost = self.histories.remove(&host).unwrap_or(ReplId::NONE);
                if observation.process_state.offset() == ReplOffset(0) {
                    self.masters_returned_empty.insert(host, lost);
                } else {
                    self.masters_returned_empty.remove(&host);
                }
                return Ok(());
            }
            DataChange::Demoted => {
                self.masters_returned_empty.remove(&host);
            }
            DataChange::ReplicaForgotten { master: None } => {
                self.forgotten_replicas.insert(host);
            }
            DataChange::ReplicaForgotten { master: by }
                if self.copied_masters.get(&host).map(|copy| copy.0) == by =>
            {
                self.copied_masters.remove(&host);
            }
            DataChange::Promoted { .. } => {
                self.copied_masters.remove(&host);
            }
            DataChange::DataReplaced => self.check_replaced(observation)?,
            DataChange::AcknowledgedByReplica { .. }
            | DataChange::ConsistentState
            | DataChange::FileSynced { .. }
            | DataChange::CopiesCounted { .. }
            | DataChange::CommandApplied
            | DataChange::KeyDropped { .. }
            | DataChange::ReplicaForgotten { .. } => {}
        }
        if !observation.process_state.is_loading() {
            self.histories.insert(host, observation.process_state.history());
        }
        Ok(())
    }
}

impl NoErasureInvariant {
    /// Checks a snapshot that starts to replace the data of a replica.
    fn check_replaced(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let host = observation.host;
        // The log is closed but has not restarted, so its offset still tells how much data the replica had.
        let had_data = observation.process_state.offset() > ReplOffset(0);
        let copied = self
            .copied_masters
            .remove(&host)
            .filter(|_| had_data && !self.forgotten_replicas.contains(&host));
        // Data from the current incarnation of the master is not lost, because the master continues that history.
        let of_before = |(master, incarnation): (usize, usize)| {
            (incarnation < self.incarnation(master)).then_some(master)
        };
        let master =
            observation.process_state.upstream().filter(|master| copied.and_then(of_before) == Some(*master));
        let emptied = |master: &usize| {
            let lost = self.masters_returned_empty.get(master);
            lost.is_some_and(|lost| observation.process_state.loading_history() != Some(*lost))
        };
        match master.filter(emptied) {
            Some(master) => {
                Err(format!("host {host} gives up what it has of host {master}, which lost all that it had"))
            }
            None => Ok(()),
        }
    }

    fn incarnation(&self, host: usize) -> usize {
        self.restart_counts.get(&host).copied().unwrap_or_default()
    }
}
