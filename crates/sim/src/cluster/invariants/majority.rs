//! A node is elected only with the votes of a majority of the masters with slots that it knows. Voters that are no
//! longer masters do not count.

use std::collections::{BTreeMap, BTreeSet};

use slot_routing::{Epoch, NodeId};

use super::ClusterObservation;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct MajorityInvariant {
    /// The voters of each candidate in each epoch.
    votes: BTreeMap<(NodeId, Epoch), BTreeSet<NodeId>>,
}

impl Invariant<ClusterObservation<'_>> for MajorityInvariant {
    fn check(&mut self, observation: &ClusterObservation<'_>) -> Result<(), String> {
        match observation {
            ClusterObservation::VoteSent { voter, epoch, candidate } => {
                self.votes.entry((*candidate, *epoch)).or_default().insert(*voter);
                Ok(())
            }
            ClusterObservation::ElectionWon { winner, epoch, voters, .. } => {
                let assigned_slots = self.votes.entry((*winner, *epoch)).or_default();
                let votes = assigned_slots.iter().filter(|voter| voters.contains(voter)).count();
                if votes > voters.len() / 2 {
                    return Ok(());
                }
                Err(format!("{winner} was elected in epoch {epoch} by {votes} of {}", voters.len()))
            }
            _ => Ok(()),
        }
    }
}
