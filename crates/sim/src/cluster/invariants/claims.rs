//! Two nodes that can communicate do not both serve a slot for long, whatever caused the conflict.
//!
//! A node can take an epoch without an election (TAKEOVER, CLUSTER SETSLOT). Until that node communicates with the
//! others, its epoch may be outdated or equal to another node's. Equal epochs must then be resolved as a collision,
//! outdated epochs by an UPDATE.

use std::time::Duration;

use slot_routing::Ownership;

use crate::InvariantName;
use crate::cluster::{ClusterWorld, NODE_TIMEOUT};

/// After a partition, a stale link is dropped after the node timeout and the new link starts with a PING. In addition,
/// some packets may be lost.
const MAX_CONFLICT_TIME: Duration = Duration::from_millis(3 * NODE_TIMEOUT.as_millis() as u64);

impl ClusterWorld {
    pub(in crate::cluster) fn check_claims(&mut self) {
        for place in 0..self.sample_slots.len() {
            let slot = self.sample_slots[place];
            let serves = |host: &usize| {
                let topology = self.hosts[*host].topology.as_ref();
                let ownership = topology.map(|topology| topology.ownership(slot));
                matches!(ownership, Some(Ownership::Local | Ownership::Migrating))
                    && self.simulation.is_running(*host)
            };
            let owners: Vec<usize> = (0..self.hosts.len()).filter(serves).collect();
            let pairs = owners.iter().flat_map(|one| owners.iter().map(move |other| (*one, *other)));
            let conflicting_owners: Vec<_> =
                pairs.filter(|&(one, other)| one < other && self.can_exchange_claims(one, other)).collect();
            self.conflicting_owners.retain(|&(rivalled, one, other), _| {
                rivalled != slot || conflicting_owners.contains(&(one, other))
            });
            for (one, other) in conflicting_owners {
                let since = *self.conflicting_owners.entry((slot, one, other)).or_insert(self.simulation.now);
                if self.simulation.now.since(since) > MAX_CONFLICT_TIME {
                    let epochs = [one, other].map(|host| self.gossip(host).myself().config_epoch);
                    self.simulation.record_violation(
                        InvariantName::Claims,
                        &format!(
                            "hosts {one} and {other} can talk and both serve slot {slot}, under {epochs:?}"
                        ),
                    );
                }
            }
        }
    }

    /// Returns whether two hosts can communicate and know each other as members.
    fn can_exchange_claims(&self, first_host: usize, second_host: usize) -> bool {
        let knows = |one: usize, other: usize| {
            let node = self.gossip(one).node(self.gossip(other).id());
            node.is_some_and(|node| node.handshake.is_none())
        };
        !self.simulation.contact_duration(first_host, second_host).is_zero()
            && knows(first_host, second_host)
            && knows(second_host, first_host)
    }
}
