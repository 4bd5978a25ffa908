//! Every wait ends: once the disk works, replies that wait for it go out; a client that waits for a key gets its reply
//! as soon as there is something, or its time is over.

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
