//! The RDB file contains the last completed save, or a later save whose result is unknown.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct SavedInvariant;

impl Invariant<NodeObservation> for SavedInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        let NodeObservation::SaveFound { found_data: found, candidates: may_be, is_first_complete: done } =
            observation
        else {
            return Ok(());
        };
        match found {
            None if *done => Err("a save was done, and no file is there".to_owned()),
            Some(Err(error)) => Err(format!("the file of a save does not load: {error}")),
            Some(Ok(data)) if !may_be.contains(data) => {
                Err(format!("the file of a save has {data:?}, and should be one of {may_be:?}"))
            }
            _ => Ok(()),
        }
    }
}
