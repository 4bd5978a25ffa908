//! A sentinel votes once per term, also across restarts.

use super::Seen;
use crate::invariant::{Invariant, Once};

#[derive(Debug, Default)]
pub(super) struct OneVote {
    votes: Once<(String, u64), u64>,
}

impl Invariant<Seen<'_>> for OneVote {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Given { voter, term, vote } = seen else { return Ok(()) };
        if *vote == 0 {
            return Ok(());
        }
        let settled = self.votes.record(((*voter).to_owned(), *term), vote);
        settled.map_err(|first| format!("{voter} voted for {first:016x} and {vote:016x} in epoch {term}"))
    }
}
