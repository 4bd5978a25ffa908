//! Every wait ends: once the disk works, delayed replies are sent, and a blocked client is served as soon as an element
//! is available or its timeout has passed.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct WaitsInvariant;

impl Invariant<NodeObservation> for WaitsInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        match observation {
            NodeObservation::DiskRecovered { delayed_reply_count: 1.. } => {
                Err("replies wait though the disk works".to_owned())
            }
            NodeObservation::ClientStuck(stuck) => {
                Err(format!("{} waits though {}", stuck.command.join(" "), stuck.reason))
            }
            _ => Ok(()),
        }
    }
}
