//! Clients read the data that was written: their replies equal those of a reference node, which replays the log and has
//! no files and snapshots.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct ServedInvariant;

impl Invariant<NodeObservation> for ServedInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        match observation {
            NodeObservation::CommandServed { command: asked, reply: got, expected } if got != expected => {
                let (got, expected) = (got.escape_debug(), expected.escape_debug());
                Err(format!("{asked} is answered {got}, and should be {expected}"))
            }
            _ => Ok(()),
        }
    }
}
