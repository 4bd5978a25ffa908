//! Every request has exactly one reply, whether it was executed in the foreground or in the background.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Answered;

impl Invariant<NodeObservation> for Answered {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        let NodeObservation::Answered(answered) = seen else { return Ok(()) };
        if answered.replies == answered.requests { Ok(()) } else { Err(format!("{answered:?}")) }
    }
}
