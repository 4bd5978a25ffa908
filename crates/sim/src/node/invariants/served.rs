//! Clients read the data as it was written: a command that reads is answered as by a node that was given the history of
//! the log, and has never had a file, nor a snapshot.

use super::Seen;
use crate::invariant::Invariant;

#[derive(Debug)]
pub(super) struct Served;

impl Invariant<Seen> for Served {
    fn check(&mut self, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Served { asked, got, expected } if got != expected => {
                let (got, expected) = (got.escape_debug(), expected.escape_debug());
                Err(format!("{asked} is answered {got}, and should be {expected}"))
            }
            _ => Ok(()),
        }
    }
}
