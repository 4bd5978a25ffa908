//! A sentinel votes once per term, also over restarts.

use std::collections::BTreeMap;

use super::{Invariant, Seen};

#[derive(Debug, Default)]
pub(super) struct OneVote {
    votes: BTreeMap<(String, u64), u64>,
}

impl Invariant for OneVote {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Given { voter, term, vote } = seen else { return Ok(()) };
        if *vote == 0 {
            return Ok(());
        }
        let first = *self.votes.entry(((*voter).to_owned(), *term)).or_insert(*vote);
        if first == *vote {
            return Ok(());
        }
        Err(format!("{voter} voted for {first:016x} and {vote:016x} in epoch {term}"))
    }
}
