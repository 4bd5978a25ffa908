//! No node is elected without the votes of a majority of the masters with slots that it knows. Voters that were
//! masters when they voted, and are none any more, do not count.
//!
//! A vote counts for the epoch that was asked under, and its voter may have seen a newer one meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use slot_routing::{Epoch, NodeId};

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Majority {
    /// By candidate, the nodes that voted for it, each with the epoch of its last vote.
    votes: BTreeMap<NodeId, BTreeMap<NodeId, Epoch>>,
}

impl Invariant<Seen<'_>> for Majority {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        match seen {
            Seen::Voted { voter, epoch, candidate } => {
                self.votes.entry(*candidate).or_default().insert(*voter, *epoch);
                Ok(())
            }
            Seen::Won { winner, epoch, voters, .. } => {
                let given = self.votes.entry(*winner).or_default().iter();
                let given: BTreeSet<&NodeId> = given
                    .filter(|(voter, under)| *under >= epoch && voters.contains(voter))
                    .map(|(voter, _)| voter)
                    .collect();
                let votes = given.len();
                if votes > voters.len() / 2 {
                    return Ok(());
                }
                Err(format!("{winner} was elected in epoch {epoch} by {votes} of {}", voters.len()))
            }
            _ => Ok(()),
        }
    }
}
