//! At most one replica is elected in an epoch, whichever master failed.

use std::collections::BTreeMap;

use slot_routing::{Epoch, NodeId};

use super::{Invariant, Seen};

#[derive(Debug, Default)]
pub(super) struct OnePromotion {
    winners: BTreeMap<Epoch, NodeId>,
}

impl Invariant for OnePromotion {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Won { winner, epoch } = seen else { return Ok(()) };
        let first = *self.winners.entry(*epoch).or_insert(*winner);
        if first == *winner {
            return Ok(());
        }
        Err(format!("{first} and {winner} were both elected in epoch {epoch}"))
    }
}
