//! No node is elected without a majority of the masters with slots that it knows. Voters that have
//! ceased to be masters do not count.

use std::collections::{BTreeMap, BTreeSet};

use slot_routing::{Epoch, NodeId};

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Majority {
    /// The voters by candidate and epoch.
    votes: BTreeMap<(NodeId, Epoch), BTreeSet<NodeId>>,
}

impl Invariant<Seen<'_>> for Majority {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Voted { voter, epoch, candidate } => {
                self.votes.entry((*candidate, *epoch)).or_default().insert(*voter);
                Ok(())
            }
            Seen::Won { winner, epoch, voters, .. } => {
                let given = self.votes.entry((*winner, *epoch)).or_default();
                let votes = given.iter().filter(|voter| voters.contains(voter)).count();
                if votes > voters.len() / 2 {
                    return Ok(());
                }
                Err(format!("{winner} was elected in epoch {epoch} by {votes} of {}", voters.len()))
            }
            _ => Ok(()),
        }
    }
}
