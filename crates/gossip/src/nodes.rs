//! The table of known nodes with its indexes.
//!
//! In a cluster of a thousand nodes, a node processes hundreds of messages per second. Each message needs the next
//! timer, the number of reachable masters and a choice of nodes to gossip about, so these must not require a scan of
//! all nodes. All mutable access to a node records the node's id, and [`Nodes::update_indexes`] updates the timers,
//! counters and sets for the recorded nodes only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use clock::Instant;
use slot_routing::NodeId;

use crate::node::Node;
use crate::node_index::{IndexEntry, IndexedState};

/// Maximum number of known nodes, including those in handshake: ten times the size that the protocol is designed for.
/// It limits the memory that a hostile peer can use up.
pub(crate) const MAX_NODES: usize = 10_000;

/// All known nodes by id, including this node and those in handshake.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes {
    by_id: BTreeMap<NodeId, Node>,
    /// Nodes that may have changed since the last index update.
    changed_nodes: Vec<NodeId>,
    /// The next deadline of each node.
    timers: BTreeSet<(Instant, NodeId)>,
    /// Nodes from which gossip entries are picked at random, in no particular order.
    gossip_candidates: Vec<NodeId>,
    /// PFAIL nodes. Every message reports all of them.
    suspects: BTreeSet<NodeId>,
    /// FAIL masters with slots, sorted by id.
    failed_voters: BTreeSet<NodeId>,
    /// Number of replicas per master that could take over.
    eligible_replica_counts: BTreeMap<NodeId, usize>,
    /// Whether any index other than `timers` has changed since the last check.
    has_changed: bool,
    /// Number of other masters with slots that are reachable.
    reachable_voter_count: usize,
    confirming_voter_count: usize,
}

impl Deref for Nodes {
    type Target = BTreeMap<NodeId, Node>;

    fn deref(&self) -> &Self::Target {
        &self.by_id
    }
}

impl From<BTreeMap<NodeId, Node>> for Nodes {
    fn from(by_id: BTreeMap<NodeId, Node>) -> Self {
        let touched = by_id.keys().copied().collect();
        Self { by_id, changed_nodes: touched, ..Self::default() }
    }
}

impl Nodes {
    pub(crate) fn get_mut(&mut self, id: &NodeId) -> Option<&mut Node> {
        let node = self.by_id.get_mut(id)?;
        if self.changed_nodes.last() != Some(id) {
            self.changed_nodes.push(*id);
        }
        Some(node)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.mark_all_changed();
        self.by_id.values_mut()
    }

    /// Inserts a node, replacing one with the same id.
    pub(crate) fn insert(&mut self, id: NodeId, mut node: Node) {
        self.remove(&id);
        node.index_entry = IndexEntry::default();
        self.changed_nodes.push(id);
        self.by_id.insert(id, node);
    }

    pub(crate) fn remove(&mut self, id: &NodeId) -> Option<Node> {
        self.update_entry(*id, IndexedState::default());
        self.by_id.remove(id)
    }

    /// Marks all nodes as changed. Called after a change that affects every node.
    pub(crate) fn mark_all_changed(&mut self) {
        self.changed_nodes.clear();
        self.changed_nodes.extend(self.by_id.keys());
        self.has_changed = true;
    }

    /// Marks these nodes as changed because of a change outside of the table.
    pub(crate) fn mark_changed(&mut self, ids: impl Iterator<Item = NodeId>) {
        self.changed_nodes.extend(ids);
    }

    /// Updates the indexes for all changed nodes.
    pub(crate) fn update_indexes(&mut self, state_of: impl Fn(&Node) -> IndexedState) {
        let mut touched = std::mem::take(&mut self.changed_nodes);
        if touched.len() > 1 {
            touched.sort_unstable();
            touched.dedup();
        }
        for id in touched.drain(..) {
            if let Some(state) = self.by_id.get(&id).map(&state_of) {
                self.update_entry(id, state);
            }
        }
        // Put the vector back to reuse its allocation.
        self.changed_nodes = touched;
    }

    /// Returns whether any index other than the timers has changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Replaces the node's previous values in the indexes by the current ones.
    fn update_entry(&mut self, id: NodeId, current_state: IndexedState) {
        let Some(node) = self.by_id.get_mut(&id) else { return };
        let IndexEntry { state: before, gossip_index: place } = node.index_entry;
        node.index_entry.state = current_state;
        if before == current_state {
            return;
        }
        self.has_changed |=
            IndexedState { next_deadline: current_state.next_deadline, ..before } != current_state;
        if before.next_deadline != current_state.next_deadline {
            before.next_deadline.map(|at| self.timers.remove(&(at, id)));
            self.timers.extend(current_state.next_deadline.map(|at| (at, id)));
        }
        if current_state.is_gossip_candidate && !before.is_gossip_candidate {
            node.index_entry.gossip_index = self.gossip_candidates.len();
            self.gossip_candidates.push(id);
        } else if before.is_gossip_candidate && !current_state.is_gossip_candidate {
            self.gossip_candidates.swap_remove(place);
            let moved = self.gossip_candidates.get(place).and_then(|moved| self.by_id.get_mut(moved));
            if let Some(moved) = moved {
                moved.index_entry.gossip_index = place;
            }
        }
        set_membership(&mut self.suspects, id, current_state.is_suspected);
        set_membership(&mut self.failed_voters, id, current_state.failed_voter_since.is_some());
        if before.eligible_replica_of != current_state.eligible_replica_of {
            if let Some(master) = before.eligible_replica_of
                && let Some(eligible_replicas) = self.eligible_replica_counts.get_mut(&master)
            {
                *eligible_replicas -= 1;
                if *eligible_replicas == 0 {
                    self.eligible_replica_counts.remove(&master);
                }
            }
            if let Some(master) = current_state.eligible_replica_of {
                *self.eligible_replica_counts.entry(master).or_default() += 1;
            }
        }
        self.reachable_voter_count = self.reachable_voter_count + usize::from(current_state.is_reachable)
            - usize::from(before.is_reachable);
        self.confirming_voter_count = self.confirming_voter_count
            + usize::from(current_state.confirms_serving)
            - usize::from(before.confirms_serving);
    }

    /// The nodes with a due deadline, sorted by id.
    pub(crate) fn due_nodes(&self, now: Instant) -> Vec<NodeId> {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let mut due: Vec<NodeId> = due.map(|(_, id)| *id).collect();
        due.sort_unstable();
        due
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Nodes from which gossip entries are picked at random.
    pub(crate) fn gossip_candidates(&self) -> &[NodeId] {
        &self.gossip_candidates
    }

    /// The position of `id` in [`Nodes::gossip_candidates`]; `None` if `id` is not a candidate.
    pub(crate) fn gossip_index(&self, id: NodeId) -> Option<usize> {
        let indexed = self.by_id.get(&id)?.index_entry;
        indexed.state.is_gossip_candidate.then_some(indexed.gossip_index)
    }

    pub(crate) fn suspects(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.suspects.iter().copied()
    }

    pub(crate) fn failed_voters(&self) -> impl Iterator<Item = &Node> {
        self.failed_voters.iter().map(|id| &self.by_id[id])
    }

    /// Whether any replica could take over from `master`.
    pub(crate) fn has_eligible_replica(&self, master: NodeId) -> bool {
        self.eligible_replica_counts.contains_key(&master)
    }

    /// Number of other masters with slots that are reachable in this node's view.
    pub(crate) fn reachable_voter_count(&self) -> usize {
        self.reachable_voter_count
    }

    /// Number of other masters with slots that confirm that this node may serve.
    pub(crate) fn confirming_voter_count(&self) -> usize {
        self.confirming_voter_count
    }
}

impl Nodes {
    /// Checks that the incrementally updated indexes equal indexes computed from scratch.
    #[cfg(test)]
    pub(crate) fn assert_consistent(&self, state_of: impl Fn(&Node) -> IndexedState) {
        let all = self.by_id.values().map(|node| (node.id, state_of(node), node.index_entry.state));
        all.for_each(|(id, now, indexed)| assert_eq!(now, indexed, "{id}"));
        let count = |of: fn(&IndexedState) -> bool| {
            self.by_id.values().filter(|node| of(&node.index_entry.state)).count()
        };
        let sums =
            [self.timers.len(), self.gossip_candidates.len(), self.suspects.len(), self.failed_voters.len()];
        let indexed = [
            count(|state| state.next_deadline.is_some()),
            count(|state| state.is_gossip_candidate),
            count(|state| state.is_suspected),
            count(|state| state.failed_voter_since.is_some()),
        ];
        assert_eq!(sums, indexed);
        assert_eq!(self.reachable_voter_count, count(|state| state.is_reachable));
        assert_eq!(self.confirming_voter_count, count(|state| state.confirms_serving));
        assert_eq!(
            self.eligible_replica_counts.values().sum::<usize>(),
            count(|state| state.eligible_replica_of.is_some())
        );
        let index = |id: &NodeId| self.gossip_index(*id).map(|place| self.gossip_candidates[place]);
        assert!(self.gossip_candidates.iter().all(|id| index(id) == Some(*id)));
    }
}

fn set_membership(set: &mut BTreeSet<NodeId>, id: NodeId, is_member: bool) {
    if is_member {
        set.insert(id);
    } else if !set.is_empty() {
        set.remove(&id);
    }
}
