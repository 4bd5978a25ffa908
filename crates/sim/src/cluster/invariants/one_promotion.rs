//! At most one replica is elected per epoch, whichever master failed (with the exception in
//! `takeovers`).

use slot_routing::{Epoch, NodeId};

use super::Seen;
use crate::invariant::{Invariant, Once};

#[derive(Debug, Default)]
pub(super) struct OnePromotion {
    winners: Once<Epoch, NodeId>,
}

impl Invariant<Seen<'_>> for OnePromotion {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Won { winner, epoch, agreed: true, .. } = seen else { return Ok(()) };
        let settled = self.winners.record(*epoch, winner);
        settled.map_err(|first| format!("{first} and {winner} were both elected in epoch {epoch}"))
    }
}
