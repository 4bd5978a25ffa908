//! Two nodes that can communicate do not both serve a slot for long, whatever caused the conflict.
//!
//! A node can take an epoch without an election (TAKEOVER, CLUSTER SETSLOT). That epoch may equal
//! another node's or be outdated until the two nodes communicate. Equal epochs must be resolved as
//! a collision, lower ones by an UPDATE.

use std::time::Duration;

use slot_routing::Ownership;

use crate::Rule;
use crate::cluster::{NODE_TIMEOUT, World};

/// A stale link after a partition is dropped after the node timeout and a new one starts with a
/// PING; some packets may also be lost.
const LIMIT: Duration = Duration::from_millis(3 * NODE_TIMEOUT.as_millis() as u64);

impl World {
    pub(in crate::cluster) fn check_claims(&mut self) {
        for place in 0..self.samples.len() {
            let slot = self.samples[place];
            let serves = |host: &usize| {
                let topology = self.hosts[*host].topology.as_ref();
                let ownership = topology.map(|topology| topology.ownership(slot));
                matches!(ownership, Some(Ownership::Mine | Ownership::Migrating)) && self.stage.runs(*host)
            };
            let owners: Vec<usize> = (0..self.hosts.len()).filter(serves).collect();
            let pairs = owners.iter().flat_map(|one| owners.iter().map(move |other| (*one, *other)));
            let rivals: Vec<_> =
                pairs.filter(|&(one, other)| one < other && self.can_know(one, other)).collect();
            self.rivals
                .retain(|&(rivalled, one, other), _| rivalled != slot || rivals.contains(&(one, other)));
            for (one, other) in rivals {
                let since = *self.rivals.entry((slot, one, other)).or_insert(self.stage.now);
                if self.stage.now.since(since) > LIMIT {
                    let epochs = [one, other].map(|host| self.gossip(host).myself().config_epoch);
                    self.stage.violate(
                        Rule::Claims,
                        &format!(
                            "hosts {one} and {other} can talk and both serve slot {slot}, under {epochs:?}"
                        ),
                    );
                }
            }
        }
    }

    /// Returns whether two hosts can communicate and would do so.
    fn can_know(&self, one: usize, other: usize) -> bool {
        let knows = |one: usize, other: usize| {
            let node = self.gossip(one).node(self.gossip(other).id());
            node.is_some_and(|node| node.handshake.is_none())
        };
        !self.stage.in_touch(one, other).is_zero() && knows(one, other) && knows(other, one)
    }
}
