//! The files can be loaded, and their data equals a replayed prefix of the history.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct PrefixInvariant;

impl Invariant<NodeObservation> for PrefixInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        match observation {
            NodeObservation::NodeStarted { loaded: Ok(loaded), .. } => match &loaded.expected_digest {
                None => Err(format!("{} is beyond the end of the history", loaded.claimed_offset)),
                Some(expected) if *expected != loaded.digest => {
                    let reached = loaded.claimed_offset;
                    Err(format!("at {reached} the data is {}, and should be {expected}", loaded.digest))
                }
                Some(_) => Ok(()),
            },
            NodeObservation::NodeStarted { loaded: Err(error), .. } => {
                Err(format!("it does not start: {error}"))
            }
            _ => Ok(()),
        }
    }
}
