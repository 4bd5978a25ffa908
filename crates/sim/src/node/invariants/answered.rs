//! Every request has exactly one reply, whether it was executed in the foreground or in the background.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct AnsweredInvariant;

impl Invariant<NodeObservation> for AnsweredInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        let NodeObservation::PipelineAnswered(answered) = observation else { return Ok(()) };
        if answered.reply_count == answered.request_count { Ok(()) } else { Err(format!("{answered:?}")) }
    }
}
