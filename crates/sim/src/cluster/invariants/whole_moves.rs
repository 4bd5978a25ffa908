//! A node that claims atomically migrated slots has every write that their previous owner acknowledged, even if one of
//! the two nodes was frozen.
//!
//! Sources that died or were replaced during the migration are exempt.

use crate::InvariantName;
use crate::cluster::ClusterWorld;
use crate::cluster::whole_moves::SOURCE_SIDE;

impl ClusterWorld {
    /// Checks a migration when its target claims the slots.
    pub(in crate::cluster) fn check_moved(&mut self, number: u64) {
        let Some(one) = self.atomic_migrations.get(&number) else { return };
        let [source, target] = one.hosts;
        let is_owner = self.simulation.is_incarnation(source, one.incarnations[SOURCE_SIDE]) && {
            let gossip = self.gossip(source);
            gossip.myself().is_master() && self.simulation.data.process_states[source].upstream().is_none()
        };
        if is_owner
            && let Some((key, [there, here])) =
                self.simulation.find_differing_key_group(source, target, &one.keys)
        {
            self.simulation.record_violation(
                InvariantName::WholeMoves,
                &format!("host {target} claims slot {key} and holds {here:?}, and host {source} acknowledged {there:?}"),
            );
        }
    }
}
