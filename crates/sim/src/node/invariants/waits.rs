//! Every wait ends: once the disk works, delayed replies are sent, and a blocked client is served
//! as soon as an element is available or its timeout passes.

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Waits;

impl Invariant<Seen> for Waits {
    fn check(&mut self, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Rested { waiting: 1.. } => Err("replies wait though the disk works".to_owned()),
            Seen::Waits(stuck) => Err(format!("{} waits though {}", stuck.words.join(" "), stuck.why)),
            _ => Ok(()),
        }
    }
}
