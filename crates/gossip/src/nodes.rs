//! The table of known nodes with its indexes.
//!
//! In a cluster of a thousand nodes, a node processes hundreds of messages per second. Each one needs the next timer,
//! the number of reachable masters and a choice of nodes to gossip about, so these must not require a scan of all
//! nodes. All mutable access to a node records its id, and after each step [`Gossip::note_changes`] updates the indexes
//! for these nodes only: timers, counters and sets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use clock::Instant;
use slot_routing::NodeId;

use crate::machine::Gossip;
use crate::node::Node;

/// All known nodes by id, including this node and those in handshake.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    by_id: BTreeMap<NodeId, Node>,
    /// Nodes that may have changed since the last index update.
    touched: Vec<NodeId>,
    /// The next deadline of each node.
    timers: BTreeSet<(Instant, NodeId)>,
    /// Nodes from which gossip entries are picked at random, in no particular order.
    told: Vec<NodeId>,
    /// PFAIL nodes, which every message reports.
    suspects: BTreeSet<NodeId>,
    /// FAIL masters with slots.
    failed_voters: BTreeSet<NodeId>,
    /// Number of replicas per master that could take over.
    heirs: BTreeMap<NodeId, usize>,
    /// Whether any index except the timers has changed since the last check.
    changed: bool,
    /// Numbers of other masters with slots that are reachable, and that confirm that this node may serve.
    reached: usize,
    vouching: usize,
}

/// The values of a node that the indexes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    due: Option<Instant>,
    told: bool,
    suspected: bool,
    /// Since when the node, if it is a master with slots, is FAIL.
    failed_voter: Option<Instant>,
    heir_of: Option<NodeId>,
    reached: bool,
    vouches: bool,
}

/// The indexed values of a node, and its position in `told`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counted {
    standing: Standing,
    place: usize,
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
        Self { by_id, touched, ..Self::default() }
    }
}

impl Nodes {
    pub(crate) fn get_mut(&mut self, id: &NodeId) -> Option<&mut Node> {
        let node = self.by_id.get_mut(id)?;
        if self.touched.last() != Some(id) {
            self.touched.push(*id);
        }
        Some(node)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.touch_all();
        self.by_id.values_mut()
    }

    /// Inserts a node, replacing one with the same id.
    pub(crate) fn insert(&mut self, id: NodeId, mut node: Node) {
        self.remove(&id);
        node.counted = Counted::default();
        self.touched.push(id);
        self.by_id.insert(id, node);
    }

    pub(crate) fn remove(&mut self, id: &NodeId) -> Option<Node> {
        self.count(*id, Standing::default());
        self.by_id.remove(id)
    }

    /// Marks all nodes as changed, after a change that affects every node.
    pub(crate) fn touch_all(&mut self) {
        self.touched.clear();
        self.touched.extend(self.by_id.keys());
        self.changed = true;
    }

    /// Updates the indexes from the node's previous values to `now`.
    fn count(&mut self, id: NodeId, now: Standing) {
        let Some(node) = self.by_id.get_mut(&id) else { return };
        let Counted { standing: before, place } = node.counted;
        node.counted.standing = now;
        if before == now {
            return;
        }
        self.changed |= Standing { due: now.due, ..before } != now;
        if before.due != now.due {
            before.due.map(|at| self.timers.remove(&(at, id)));
            self.timers.extend(now.due.map(|at| (at, id)));
        }
        if now.told && !before.told {
            node.counted.place = self.told.len();
            self.told.push(id);
        } else if before.told && !now.told {
            self.told.swap_remove(place);
            let moved = self.told.get(place).and_then(|moved| self.by_id.get_mut(moved));
            if let Some(moved) = moved {
                moved.counted.place = place;
            }
        }
        keep(&mut self.suspects, id, now.suspected);
        keep(&mut self.failed_voters, id, now.failed_voter.is_some());
        if before.heir_of != now.heir_of {
            if let Some(master) = before.heir_of
                && let Some(heirs) = self.heirs.get_mut(&master)
            {
                *heirs -= 1;
                if *heirs == 0 {
                    self.heirs.remove(&master);
                }
            }
            if let Some(master) = now.heir_of {
                *self.heirs.entry(master).or_default() += 1;
            }
        }
        self.reached = self.reached + usize::from(now.reached) - usize::from(before.reached);
        self.vouching = self.vouching + usize::from(now.vouches) - usize::from(before.vouches);
    }

    /// The nodes with a due deadline, sorted by id.
    pub(crate) fn due(&self, now: Instant) -> Vec<NodeId> {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let mut due: Vec<NodeId> = due.map(|(_, id)| *id).collect();
        due.sort_unstable();
        due
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Nodes from which gossip entries are picked at random.
    pub(crate) fn told(&self) -> &[NodeId] {
        &self.told
    }

    /// The position of `id` in [`Nodes::told`].
    pub(crate) fn place_in_told(&self, id: NodeId) -> Option<usize> {
        let counted = self.by_id.get(&id)?.counted;
        counted.standing.told.then_some(counted.place)
    }

    pub(crate) fn suspects(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.suspects.iter().copied()
    }

    pub(crate) fn failed_voters(&self) -> impl Iterator<Item = &Node> {
        self.failed_voters.iter().map(|id| &self.by_id[id])
    }

    /// Whether a replica could take over from `master`.
    pub(crate) fn has_heir(&self, master: NodeId) -> bool {
        self.heirs.contains_key(&master)
    }

    /// Number of other masters with slots that are reachable.
    pub(crate) fn reached(&self) -> usize {
        self.reached
    }

    /// Number of other masters with slots that confirm that this node may serve.
    pub(crate) fn vouching(&self) -> usize {
        self.vouching
    }
}

fn keep(set: &mut BTreeSet<NodeId>, id: NodeId, wanted: bool) {
    if wanted {
        set.insert(id);
    } else if !set.is_empty() {
        set.remove(&id);
    }
}

impl Gossip {
    /// Updates the indexes for all changed nodes.
    pub(crate) fn note_changes(&mut self) {
        let mut touched = std::mem::take(&mut self.nodes.touched);
        touched.extend(self.slots.take_changed_owners());
        if touched.len() > 1 {
            touched.sort_unstable();
            touched.dedup();
        }
        for id in touched.drain(..) {
            if let Some(node) = self.nodes.get(&id) {
                let standing = self.standing(node);
                self.nodes.count(id, standing);
            }
        }
        // Reuses the allocation.
        self.nodes.touched = touched;
        if std::mem::take(&mut self.nodes.changed) {
            self.note_replacements();
        }
    }

    /// The nodes whose `deadline` has passed, sorted by id.
    pub(crate) fn due_nodes(&mut self, deadline: impl Fn(&Self, &Node) -> Option<Instant>) -> Vec<NodeId> {
        self.note_changes();
        let mut due = self.nodes.due(self.now);
        due.retain(|id| deadline(self, &self.nodes[id]).is_some_and(|at| at <= self.now));
        due
    }

    /// Checks that the incrementally updated indexes equal freshly computed ones.
    #[cfg(test)]
    pub(crate) fn assert_counted(&self) {
        let all = self.nodes.values().map(|node| (node.id, self.standing(node), node.counted.standing));
        all.for_each(|(id, now, counted)| assert_eq!(now, counted, "{id}"));
        let count =
            |of: fn(&Standing) -> bool| self.nodes.values().filter(|node| of(&node.counted.standing)).count();
        let nodes = &self.nodes;
        let sums = [nodes.timers.len(), nodes.told.len(), nodes.suspects.len(), nodes.failed_voters.len()];
        let counted = [
            count(|standing| standing.due.is_some()),
            count(|standing| standing.told),
            count(|standing| standing.suspected),
            count(|standing| standing.failed_voter.is_some()),
        ];
        assert_eq!(sums, counted);
        assert_eq!(nodes.reached, count(|standing| standing.reached));
        assert_eq!(nodes.vouching, count(|standing| standing.vouches));
        assert_eq!(nodes.heirs.values().sum::<usize>(), count(|standing| standing.heir_of.is_some()));
        let place = |id: &NodeId| nodes.place_in_told(*id).map(|place| nodes.told[place]);
        assert!(nodes.told.iter().all(|id| place(id) == Some(*id)));
    }

    fn standing(&self, node: &Node) -> Standing {
        let heir_of = node.master().filter(|_| !node.has_failed() && !node.no_failover);
        if node.id == self.me {
            return Standing { heir_of, ..Standing::default() };
        }
        let owner = self.slots.count(node.id) > 0;
        let timers = [
            self.link_deadline(node),
            self.ping_deadline(node),
            self.doubt_deadline(node),
            self.handshake_deadline(node),
        ];
        let is_member = node.handshake.is_none();
        // An entry without an address does not help others to reach the node. A failed node is reported all the same,
        // because its address is unknown when another node has taken it.
        let nameable = is_member && (node.address.ip.is_some() || node.has_failed());
        Standing {
            due: timers.into_iter().flatten().min(),
            told: nameable && !node.is_suspected() && (node.link.is_up() || owner),
            suspected: is_member && node.is_suspected(),
            failed_voter: node.failed_since().filter(|_| owner),
            heir_of,
            // After a start no node is suspected yet. Counting nodes that have not been heard as reachable would let a
            // restarted master in a minority serve until the node timeout.
            reached: owner && node.is_well() && node.contact.heard.is_some(),
            vouches: owner && node.contact.vouches,
        }
    }
}
