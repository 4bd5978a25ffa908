//! A transaction is executed if and only if the watched key is unchanged.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct WatchesInvariant;

impl Invariant<NodeObservation> for WatchesInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        let NodeObservation::TransactionExecuted(executed) = observation else { return Ok(()) };
        let key = &executed.key;
        match (executed.has_changed, executed.was_aborted) {
            (true, false) => Err(format!("{key} was watched and has changed, and the transaction ran")),
            (false, true) if executed.is_quiet => {
                Err(format!("{key} was watched, nothing was written, and nothing ran"))
            }
            _ => Ok(()),
        }
    }
}
