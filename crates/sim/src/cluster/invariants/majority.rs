//! No node is elected without the votes of a majority of the masters with slots that it knows. Voters that were
//! masters when they voted, and are none any more, do not count.

use std::collections::{BTreeMap, BTreeSet};

use slot_routing::{Epoch, NodeId};

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Majority {
    /// By candidate and epoch, the nodes that voted for it.
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
