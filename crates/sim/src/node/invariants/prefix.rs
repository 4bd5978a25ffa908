//! The files load, and their data equals a replayed prefix of the history.

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Prefix;

impl Invariant<Seen> for Prefix {
    fn check(&mut self, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Started { loaded: Ok(loaded), .. } => match &loaded.expected {
                None => Err(format!("{} is beyond the end of the history", loaded.reached)),
                Some(expected) if *expected != loaded.digest => {
                    let reached = loaded.reached;
                    Err(format!("at {reached} the data is {}, and should be {expected}", loaded.digest))
                }
                Some(_) => Ok(()),
            },
            Seen::Started { loaded: Err(error), .. } => Err(format!("it does not start: {error}")),
            _ => Ok(()),
        }
    }
}
