//! The files can be loaded, and their data equals a replayed prefix of the history.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Prefix;

impl Invariant<NodeObservation> for Prefix {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        match seen {
            NodeObservation::Started { loaded: Ok(loaded), .. } => match &loaded.expected {
                None => Err(format!("{} is beyond the end of the history", loaded.claimed_offset)),
                Some(expected) if *expected != loaded.digest => {
                    let reached = loaded.claimed_offset;
                    Err(format!("at {reached} the data is {}, and should be {expected}", loaded.digest))
                }
                Some(_) => Ok(()),
            },
            NodeObservation::Started { loaded: Err(error), .. } => Err(format!("it does not start: {error}")),
            _ => Ok(()),
        }
    }
}
