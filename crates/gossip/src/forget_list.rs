//! Nodes that the operator removed with CLUSTER FORGET. For a while, gossip does not add them again.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::nodes::MAX_NODES;

/// Maximum time for which a peer can make this node reject a forgotten id.
const MAX_TTL: Duration = Duration::from_secs(3600);

/// Forgotten nodes, each with the time from which it may rejoin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ForgetList(BTreeMap<NodeId, Instant>);

impl ForgetList {
    pub(crate) fn contains(&self, id: NodeId, now: Instant) -> bool {
        self.0.get(&id).is_some_and(|until| *until > now)
    }

    pub(crate) fn add(&mut self, id: NodeId, ttl: Duration, now: Instant) {
        self.0.retain(|_, until| *until > now);
        if self.0.len() < MAX_NODES {
            self.0.insert(id, now + ttl.min(MAX_TTL));
        }
    }

    /// The forgotten nodes, each with the remaining time until it may rejoin.
    pub(crate) fn entries(&self, now: Instant) -> impl Iterator<Item = (NodeId, Duration)> + '_ {
        self.0.iter().map(move |(&id, until)| (id, until.since(now)))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_node_may_rejoin_after_its_ttl_or_at_most_an_hour() {
        let (id, start) = (NodeId::from_random([1; 20]), Instant::ORIGIN);
        let mut list = ForgetList::default();
        list.add(id, Duration::from_secs(60), start);
        assert!(list.contains(id, start + Duration::from_secs(59)));
        assert!(!list.contains(id, start + Duration::from_secs(60)));
        list.add(id, Duration::from_secs(100_000), start);
        assert!(!list.contains(id, start + MAX_TTL));
    }
}
