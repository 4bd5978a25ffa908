//! No replica is promoted without the votes of a majority and, in automatic failovers, without the quorum: a sentinel
//! considers a master objectively down only if the quorum has considered it subjectively down.
//!
//! The majority is that of the sentinels that the leader knew at its election. A sentinel that lost its disk returns as
//! a new sentinel and may appear during a failover.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::{Addr, MasterStatus, RunId};

use super::SentinelObservation;
use crate::invariant::Invariant;
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct Authority {
    /// The voters of each candidate in each term.
    votes: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// The number of sentinels that each leader knew at its election, by term and leader.
    known_sentinels: BTreeMap<(u64, u64), usize>,
    /// Sentinels that have considered the master objectively down since their last configuration
    /// change.
    down_since_change: BTreeMap<String, u64>,
    quorum: usize,
    /// The sentinels that now consider a master objectively down, with its address.
    objectively_down: BTreeMap<String, Addr>,
    /// The sentinels that have ever considered an address down. Their reports may arrive much later.
    suspects: BTreeMap<Addr, BTreeSet<String>>,
}

impl Authority {
    pub(super) fn new(quorum: usize) -> Self {
        Self { quorum, ..Self::default() }
    }

    fn on_step(&mut self, id: &RunId, status: &MasterStatus) -> Result<(), String> {
        if let Some(epoch) = status.failover_epoch {
            self.known_sentinels.entry((epoch, id.peer().number())).or_insert(status.sentinels);
        }
        if status.subjectively_down {
            self.suspects.entry(status.monitored_addr.clone()).or_default().insert(id.to_string());
        }
        if !status.objectively_down {
            self.objectively_down.remove(id.as_str());
            return Ok(());
        }
        self.down_since_change.insert(id.to_string(), status.config_epoch);
        if self.objectively_down.insert(id.to_string(), status.monitored_addr.clone()).as_ref()
            == Some(&status.monitored_addr)
        {
            return Ok(());
        }
        let suspects = self.suspects.get(&status.monitored_addr).map_or(0, BTreeSet::len);
        if suspects >= self.quorum {
            return Ok(());
        }
        let (addr, quorum) = (&status.monitored_addr, self.quorum);
        Err(format!("{id} holds {addr} for objectively down, and {suspects} of {quorum} have suspected it"))
    }
}

impl Invariant<SentinelObservation<'_>> for Authority {
    fn check(&mut self, seen: &SentinelObservation<'_>) -> Result<(), String> {
        match seen {
            SentinelObservation::Ballot { voter, term, vote } => {
                self.votes.entry((*term, *vote)).or_default().insert((*voter).to_owned());
                Ok(())
            }
            SentinelObservation::Step { sentinel, status } => self.on_step(sentinel.my_id(), status),
            SentinelObservation::Start { .. }
            | SentinelObservation::Announcement { .. }
            | SentinelObservation::VoteGiven { .. } => Ok(()),
            SentinelObservation::Promotion { leader, .. } => {
                let status = leader.status(MASTER).ok_or("a promotion without a master")?;
                let epoch = status.failover_epoch.ok_or("a promotion without a failover")?;
                let id = leader.my_id();
                let votes = self.votes.get(&(epoch, id.peer().number())).map_or(0, BTreeSet::len);
                let all = self
                    .known_sentinels
                    .get(&(epoch, id.peer().number()))
                    .copied()
                    .unwrap_or(status.sentinels);
                if votes <= all / 2 {
                    return Err(format!("{id} promotes in epoch {epoch} with {votes} of {all} votes"));
                }
                let suspected = self.down_since_change.get(id.as_str()) == Some(&status.config_epoch);
                if suspected || status.by_operator {
                    return Ok(());
                }
                Err(format!("{id} promotes in epoch {epoch} and has not seen the master objectively down"))
            }
        }
    }
}
