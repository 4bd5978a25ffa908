//! A node that claims slots which moved in one piece has all that their last owner acknowledged, however long each of them
//! stood still meanwhile.
//!
//! An owner that was replaced or has died since has handed over what it had to others, or lost it.

use crate::Rule;
use crate::cluster::World;
use crate::cluster::whole_moves::SOURCE;

impl World {
    /// Looks at a move whose slots are being claimed.
    pub(in crate::cluster) fn check_moved(&mut self, number: u64) {
        let Some(one) = self.whole_moves.get(&number) else { return };
        let [source, target] = one.hosts;
        let is_owner = self.stage.lives(source, one.lives[SOURCE]) && {
            let gossip = self.gossip(source);
            gossip.myself().is_master() && self.stage.data.stores[source].upstream().is_none()
        };
        if is_owner && let Some((key, [there, here])) = self.stage.differing_key(source, target, &one.keys) {
            self.stage.violate(
                Rule::WholeMoves,
                &format!("host {target} claims slot {key} and holds {here:?}, and host {source} acknowledged {there:?}"),
            );
        }
    }
}
