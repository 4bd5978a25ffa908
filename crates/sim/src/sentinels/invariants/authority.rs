//! Nothing is promoted without a majority's votes, and not by itself without the quorum's suspicion.
//!
//! A majority of those whom the leader counted when it was elected: a sentinel that lost its disk comes
//! back as a new one, who may be met in the middle of a failover.

use std::collections::{BTreeMap, BTreeSet};

use super::Seen;
use crate::invariant::Invariant;
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct Authority {
    /// Who voted for whom, by term.
    votes: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// How many sentinels a leader counted when it was elected.
    electorates: BTreeMap<(u64, u64), usize>,
    /// Sentinels that have seen the master objectively down since they last followed a switch.
    down: BTreeMap<String, u64>,
}

impl Invariant<Seen<'_>> for Authority {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Ballot { voter, term, vote } => {
                self.votes.entry((*term, *vote)).or_default().insert((*voter).to_owned());
                Ok(())
            }
            Seen::Step { sentinel } => {
                let Some(status) = sentinel.status(MASTER) else { return Ok(()) };
                if let Some(epoch) = status.failover_epoch {
                    let leader = (epoch, sentinel.my_id().peer().number());
                    self.electorates.entry(leader).or_insert(status.sentinels);
                }
                if status.objectively_down {
                    self.down.insert(sentinel.my_id().to_string(), status.config_epoch);
                }
                Ok(())
            }
            Seen::Given { .. } => Ok(()),
            Seen::Promotion { leader, .. } => {
                let status = leader.status(MASTER).ok_or("a promotion without a master")?;
                let epoch = status.failover_epoch.ok_or("a promotion without a failover")?;
                let id = leader.my_id();
                let votes = self.votes.get(&(epoch, id.peer().number())).map_or(0, BTreeSet::len);
                let all =
                    self.electorates.get(&(epoch, id.peer().number())).copied().unwrap_or(status.sentinels);
                if votes <= all / 2 {
                    return Err(format!("{id} promotes in epoch {epoch} with {votes} of {all} votes"));
                }
                let suspected = self.down.get(id.as_str()) == Some(&status.config_epoch);
                if suspected || status.by_operator {
                    return Ok(());
                }
                Err(format!("{id} promotes in epoch {epoch} and has not seen the master objectively down"))
            }
        }
    }
}
