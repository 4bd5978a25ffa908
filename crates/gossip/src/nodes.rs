//! The nodes that this one knows, and what is worked out of them.
//!
//! In a cluster of a thousand a node works off hundreds of messages a second, and whenever it does it wants to know which
//! timer is due, how many masters are in reach and whom to gossip about. None of that may take a walk over all nodes. So
//! a node can be changed only through methods that note which one it is, and after each step [`Gossip::note_changes`]
//! brings up to date what depends on those alone: the timers, the counts, the sets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use clock::Instant;
use slot_routing::NodeId;

use crate::machine::Gossip;
use crate::node::Node;

/// All nodes by their ids, this one and those in handshake among them.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    by_id: BTreeMap<NodeId, Node>,
    /// Those that may have changed since what follows was worked out.
    touched: Vec<NodeId>,
    /// When something is due about which node.
    timers: BTreeSet<(Instant, NodeId)>,
    /// Those that messages tell of by chance, in no order.
    told: Vec<NodeId>,
    /// Those that every message tells of.
    suspects: BTreeSet<NodeId>,
    /// Masters with slots that are FAIL.
    failed_voters: BTreeSet<NodeId>,
    /// How many replicas could take the place of each master.
    heirs: BTreeMap<NodeId, usize>,
    /// Whether anything of this has changed since that was last asked.
    changed: bool,
    /// How many masters with slots are in reach, and how many vouch for this node; this one is not counted.
    reached: usize,
    vouching: usize,
}

/// How a node stands, as far as something is worked out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    due: Option<Instant>,
    told: bool,
    suspected: bool,
    /// Since when a master with slots is FAIL.
    failed_voter: Option<Instant>,
    heir_of: Option<NodeId>,
    reached: bool,
    vouches: bool,
}

/// The standing of a node that was counted, and its place among those that are told of by chance.
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

    /// A node of a new id.
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

    /// Something that all nodes' standing depends on has changed.
    pub(crate) fn touch_all(&mut self) {
        self.touched.clear();
        self.touched.extend(self.by_id.keys());
        self.changed = true;
    }

    /// How `id` stands now.
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

    /// The nodes about which something is due, in the order of their ids.
    pub(crate) fn due(&self, now: Instant) -> Vec<NodeId> {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let mut due: Vec<NodeId> = due.map(|(_, id)| *id).collect();
        due.sort_unstable();
        due
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Those that messages tell of by chance.
    pub(crate) fn told(&self) -> &[NodeId] {
        &self.told
    }

    /// The place of `id` among those that are told of by chance.
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

    /// Whether there is a replica that could take the place of `master`.
    pub(crate) fn has_heir(&self, master: NodeId) -> bool {
        self.heirs.contains_key(&master)
    }

    /// How many other masters with slots are in reach.
    pub(crate) fn reached(&self) -> usize {
        self.reached
    }

    /// How many other masters with slots vouch for this node.
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
    /// Works out again what depends on the nodes that have changed.
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
        // Its memory goes on being used.
        self.nodes.touched = touched;
        if std::mem::take(&mut self.nodes.changed) {
            self.note_replacements();
        }
    }

    /// The nodes whose `deadline` is over, in the order of their ids.
    pub(crate) fn due_nodes(&mut self, deadline: impl Fn(&Self, &Node) -> Option<Instant>) -> Vec<NodeId> {
        self.note_changes();
        let mut due = self.nodes.due(self.now);
        due.retain(|id| deadline(self, &self.nodes[id]).is_some_and(|at| at <= self.now));
        due
    }

    /// That nothing escapes what is noted: all nodes stand as was worked out when they last changed.
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
        // Gossip about a node without an address helps nobody to reach it. That it is down must be heard all the same:
        // its address is gone because another node answers there.
        let nameable = is_member && (node.address.ip.is_some() || node.has_failed());
        Standing {
            due: timers.into_iter().flatten().min(),
            told: nameable && !node.is_suspected() && (node.link.is_up() || owner),
            suspected: is_member && node.is_suspected(),
            failed_voter: node.failed_since().filter(|_| owner),
            heir_of,
            // After a start no node is suspected yet: one that has not been heard since does not count as reached, or
            // a master that comes back into a minority would serve until the node timeout.
            reached: owner && node.is_well() && node.contact.heard.is_some(),
            vouches: owner && node.contact.vouches,
        }
    }
}
