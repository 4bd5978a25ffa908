//! An acknowledged write that reached a replica survives the promotion of that replica.
//!
//! A write has reached a replica once the replica has acknowledged it to the master, as counted by WAIT. Two kinds of
//! writes are exempt: those that a replica had only in memory before it restarted, and those replaced by a snapshot.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

use super::{DataChange, DataObservation};
use crate::data::KeyGroup;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct NoLossInvariant {
    /// For each master, the writes that it has acknowledged since its promotion, by their end in the log.
    acknowledged_writes: BTreeMap<usize, BTreeMap<ReplOffset, (KeyGroup, u64)>>,
    /// For each replica, the acknowledged writes that have reached it.
    replicated_writes: BTreeMap<usize, ReplicatedWrites>,
}

#[derive(Debug, Default)]
struct ReplicatedWrites {
    master: usize,
    end_offset: ReplOffset,
    writes: BTreeMap<KeyGroup, u64>,
}

impl NoLossInvariant {
    fn record_confirmed_writes(&mut self, master: usize, replica: usize, offset: ReplOffset) {
        let reached = self.replicated_writes.entry(replica).or_default();
        if reached.master != master {
            *reached = ReplicatedWrites { master, ..ReplicatedWrites::default() };
        }
        let from = reached.end_offset;
        if let Some(acknowledged) = self.acknowledged_writes.get(&master).filter(|_| offset > from) {
            let news =
                acknowledged.range((std::ops::Bound::Excluded(from), std::ops::Bound::Included(offset)));
            reached.writes.extend(news.map(|(_, write)| *write));
            reached.end_offset = offset;
        }
    }

    /// Forgets the writes that a process acknowledged or received before it restarted or changed its role. Writes of
    /// this process that reached replicas remain.
    fn forget_process(&mut self, host: usize) {
        self.acknowledged_writes.remove(&host);
        self.replicated_writes.remove(&host);
        let of_host = self.replicated_writes.values_mut().filter(|reached| reached.master == host);
        of_host.for_each(|reached| reached.end_offset = ReplOffset(0));
    }
}

impl Invariant<DataObservation<'_>> for NoLossInvariant {
    fn check(&mut self, observation: &DataObservation<'_>) -> Result<(), String> {
        let host = observation.host;
        match observation.change {
            DataChange::WriteAcknowledged {
                key_group: key, write_number: write, end_offset: end, ..
            } if observation.process_state.log.is_open() => {
                self.acknowledged_writes.entry(host).or_default().insert(end, (key, write));
                // A replica may have received the write before the client received the reply.
                let has_it =
                    |reached: &&mut ReplicatedWrites| reached.master == host && reached.end_offset >= end;
                for reached in self.replicated_writes.values_mut().filter(has_it) {
                    reached.writes.insert(key, write);
                }
            }
            DataChange::AcknowledgedByReplica { replica, offset } => {
                self.record_confirmed_writes(host, replica, offset);
            }
            DataChange::KeyDropped { key_group: key } => {
                for reached in self.replicated_writes.values_mut().filter(|reached| reached.master == host) {
                    reached.writes.remove(&key);
                }
                if let Some(acknowledged) = self.acknowledged_writes.get_mut(&host) {
                    acknowledged.retain(|_, (of, _)| *of != key);
                }
            }
            DataChange::Promoted { old_master: from } => {
                let reached =
                    self.replicated_writes.remove(&host).filter(|reached| Some(reached.master) == from);
                let holds =
                    |key: KeyGroup| observation.process_state.data_store.last_write_number(key).unwrap_or(0);
                let lost = reached.iter().flat_map(|reached| &reached.writes);
                if let Some((key, write)) = lost.clone().find(|(key, write)| holds(**key) < **write) {
                    let holds = holds(*key);
                    return Err(format!(
                        "host {host} is promoted and holds {holds} for key {key}, and had confirmed {write}"
                    ));
                }
                self.forget_process(host);
            }
            DataChange::Demoted | DataChange::Restarted { .. } => self.forget_process(host),
            DataChange::DataReplaced => {
                self.replicated_writes.remove(&host);
            }
            DataChange::WriteAcknowledged { .. }
            | DataChange::ConsistentState
            | DataChange::FileSynced { .. }
            | DataChange::CopiesCounted { .. }
            | DataChange::CommandApplied
            | DataChange::ReplicaForgotten { .. } => {}
        }
        Ok(())
    }
}
