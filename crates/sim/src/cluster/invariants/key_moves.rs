//! A key that MIGRATE deleted at its source exists at the target.
//!
//! A target that has since died or become a replica is exempt, because it may have lost the key.

use crate::InvariantName;
use crate::cluster::ClusterWorld;

impl ClusterWorld {
    /// Checks that the target has a key that the source has just deleted.
    pub(in crate::cluster) fn check_moved_key(&mut self, number: u64, name: &[u8]) {
        let Some(it) = self.slot_migration_of(number) else { return };
        let slot = it.slot.number();
        if !self.simulation.data.process_states[it.to].key_names(it.slot).iter().any(|there| there == name) {
            let name = String::from_utf8_lossy(name);
            let what = format!("host {} has given {name} away, and host {} does not have it", it.from, it.to);
            self.simulation.record_violation(InvariantName::KeyMoves, &what);
        }
        self.simulation.drop_unacknowledged_write(it.from, slot);
    }
}
