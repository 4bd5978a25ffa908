//! Every request has exactly one reply, wherever it was executed.

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Answered;

impl Invariant<Seen> for Answered {
    fn check(&mut self, seen: &Seen) -> Result<(), String> {
        let Seen::Answered(answered) = seen else { return Ok(()) };
        if answered.replies == answered.requests { Ok(()) } else { Err(format!("{answered:?}")) }
    }
}
