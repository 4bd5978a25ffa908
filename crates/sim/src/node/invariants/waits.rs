//! Every wait ends: once the disk works, delayed replies are sent, and a blocked client is served as soon as an element
//! is available or its timeout has passed.

use super::NodeObservation;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Waits;

impl Invariant<NodeObservation> for Waits {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        match seen {
            NodeObservation::DiskRecovered { waiting: 1.. } => {
                Err("replies wait though the disk works".to_owned())
            }
            NodeObservation::Waits(stuck) => {
                Err(format!("{} waits though {}", stuck.words.join(" "), stuck.reason))
            }
            _ => Ok(()),
        }
    }
}
