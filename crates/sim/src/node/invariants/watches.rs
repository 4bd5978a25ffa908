//! A transaction is executed if and only if the watched key is unchanged.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Watches;

impl Invariant<NodeObservation> for Watches {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        let NodeObservation::Executed(executed) = seen else { return Ok(()) };
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
