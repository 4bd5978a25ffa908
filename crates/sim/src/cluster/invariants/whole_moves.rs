//! A node that claims atomically migrated slots has all writes acknowledged by their previous
//! owner, even if either node was frozen.
//!
//! Sources that were replaced or died since are exempt.

use crate::Rule;
use crate::cluster::World;
use crate::cluster::whole_moves::SOURCE;

impl World {
    /// Checks a migration whose slots are being claimed.
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
