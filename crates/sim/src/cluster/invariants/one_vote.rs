//! A node votes for one candidate per epoch, also across restarts. It may repeat that vote.

use std::collections::BTreeMap;

use slot_routing::{Epoch, NodeId};

use super::ClusterObservation;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct OneVote {
    votes: BTreeMap<(NodeId, Epoch), NodeId>,
}

impl Invariant<ClusterObservation<'_>> for OneVote {
    fn check(&mut self, seen: &ClusterObservation<'_>) -> Result<(), String> {
        let ClusterObservation::Voted { voter, epoch, candidate } = seen else { return Ok(()) };
        match self.votes.insert((*voter, *epoch), *candidate) {
            Some(first) if first != *candidate => {
                Err(format!("{voter} voted for {first} and {candidate} in epoch {epoch}"))
            }
            _ => Ok(()),
        }
    }
}
