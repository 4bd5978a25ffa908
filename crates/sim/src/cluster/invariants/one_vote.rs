//! A node votes for at most one candidate per epoch, even across restarts. It may repeat its vote for that candidate.

use std::collections::BTreeMap;

use slot_routing::{Epoch, NodeId};

use super::ClusterObservation;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct OneVoteInvariant {
    votes: BTreeMap<(NodeId, Epoch), NodeId>,
}

impl Invariant<ClusterObservation<'_>> for OneVoteInvariant {
    fn check(&mut self, observation: &ClusterObservation<'_>) -> Result<(), String> {
        let ClusterObservation::VoteSent { voter, epoch, candidate } = observation else { return Ok(()) };
        match self.votes.insert((*voter, *epoch), *candidate) {
            Some(first) if first != *candidate => {
                Err(format!("{voter} voted for {first} and {candidate} in epoch {epoch}"))
            }
            _ => Ok(()),
        }
    }
}
