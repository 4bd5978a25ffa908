//! A sentinel votes at most once per term, even if it restarts.

use super::SentinelObservation;
use crate::invariant::{Invariant, SetOnce};

#[derive(Debug, Default)]
pub(super) struct OneVote {
    votes: SetOnce<(String, u64), u64>,
}

impl Invariant<SentinelObservation<'_>> for OneVote {
    fn check(&mut self, seen: &SentinelObservation<'_>) -> Result<(), String> {
        let SentinelObservation::VoteGiven { voter, term, vote } = seen else { return Ok(()) };
        if *vote == 0 {
            return Ok(());
        }
        let settled = self.votes.record(((*voter).to_owned(), *term), vote);
        settled.map_err(|first| format!("{voter} voted for {first:016x} and {vote:016x} in epoch {term}"))
    }
}
