//! Clients read the data that was written: their replies equal those of a reference node, which replays the log and has
//! no files and snapshots.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Served;

impl Invariant<NodeObservation> for Served {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        match seen {
            NodeObservation::Served { command: asked, reply: got, expected } if got != expected => {
                let (got, expected) = (got.escape_debug(), expected.escape_debug());
                Err(format!("{asked} is answered {got}, and should be {expected}"))
            }
            _ => Ok(()),
        }
    }
}
