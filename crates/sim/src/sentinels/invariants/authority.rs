//! Nothing is promoted without a majority's votes, and not by itself without the quorum's suspicion.

use std::collections::{BTreeMap, BTreeSet};

use super::{Invariant, Seen};
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct Authority {
    /// Who voted for whom, by term.
    votes: BTreeMap<(u64, u64), BTreeSet<String>>,
    /// Sentinels that have seen the master objectively down since they last followed a switch.
    down: BTreeMap<String, u64>,
}

impl Invariant for Authority {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Ballot { voter, term, vote } => {
                self.votes.entry((*term, *vote)).or_default().insert((*voter).to_owned());
                Ok(())
            }
            Seen::Step { sentinel } => {
                if let Some(status) = sentinel.status(MASTER).filter(|status| status.objectively_down) {
                    self.down.insert(sentinel.my_id().to_string(), status.config_epoch);
                }
                Ok(())
            }
            Seen::Promotion { leader, .. } => {
                let status = leader.status(MASTER).ok_or("a promotion without a master")?;
                let epoch = status.failover_epoch.ok_or("a promotion without a failover")?;
                let id = leader.my_id();
                let votes = self.votes.get(&(epoch, id.peer().number())).map_or(0, BTreeSet::len);
                if votes <= status.sentinels / 2 {
                    return Err(format!(
                        "{id} promotes in epoch {epoch} with {votes} of {} votes",
                        status.sentinels
                    ));
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
