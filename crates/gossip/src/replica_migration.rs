//! Replica migration: a replica of a well-provided master moves to one that has lost its last.
//!
//! A master that serves slots, once had a replica (or took over from one that had) and now has none that
//! works is an *orphan*. After five seconds, in which a failover may still bring its own replicas back,
//! one replica of the masters with most working replicas goes there: the one with the smallest id, so
//! that only one goes, if its own master keeps more than `cluster-migration-barrier` without it, and only
//! while the cluster serves. Rules and delay are Redis's (`cluster-allow-replica-migration`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::event::Event;
use crate::machine::Gossip;
use crate::node::{Node, Role};

/// How long a master must be an orphan (Redis: `CLUSTER_SLAVE_MIGRATION_DELAY`).
const DELAY: Duration = Duration::from_secs(5);
/// How often orphans are looked for (Redis: its 100 ms cron).
const PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Orphans {
    /// Masters that are meant to have replicas (Redis: the flag `MIGRATE_TO`).
    provided: BTreeSet<NodeId>,
    /// Those of them that have no working replica, and since when.
    since: BTreeMap<NodeId, Instant>,
    look_at: Instant,
}

impl Orphans {
    /// The masters among `nodes`, as a file tells of them, that have replicas.
    pub(crate) fn of(nodes: &BTreeMap<NodeId, Node>) -> Self {
        Self { provided: nodes.values().filter_map(Node::master).collect(), ..Self::default() }
    }
}

impl Gossip {
    /// `id` was `before` and has another role now: updates the masters that are meant to have replicas.
    pub(crate) fn note_role_change(&mut self, id: NodeId, before: Role) {
        let after = self.nodes[&id].role;
        if let Role::Replica(Some(master)) = before {
            self.note_replica_gone(master);
        }
        match after {
            // Promoted: in the place of one that had replicas.
            Role::Master if before != Role::Master => {
                self.orphans.provided.insert(id);
            }
            Role::Master => {}
            Role::Replica(master) => {
                self.orphans.provided.remove(&id);
                self.orphans.provided.extend(master);
            }
        }
    }

    /// `master` lost a replica to another master or for good. One whose last replica was taken away on
    /// purpose wants none.
    pub(crate) fn note_replica_gone(&mut self, master: NodeId) {
        if !self.nodes.values().any(|node| node.master() == Some(master)) {
            self.orphans.provided.remove(&master);
        }
    }

    pub(crate) fn note_node_gone(&mut self, id: NodeId, role: Role) {
        self.orphans.provided.remove(&id);
        self.orphans.since.remove(&id);
        if let Role::Replica(Some(master)) = role {
            self.note_replica_gone(master);
        }
    }

    /// Moves to an orphan, if there is one and it is for us to go.
    pub(crate) fn step_replica_migration(&mut self) {
        let Some(master) = self.myself().master() else {
            self.orphans.since.clear();
            return;
        };
        if self.now < self.orphans.look_at || !self.config.allow_replica_migration {
            return;
        }
        self.orphans.look_at = self.now + PERIOD;
        let working = self.working_replicas();
        self.watch_orphans(&working);
        if let Some(orphan) = self.orphan_for_us(master, &working) {
            self.log(Event::Migrating { to: orphan });
            self.become_replica_of(orphan);
        }
    }

    /// The replicas that are not failed, by their masters, each master's in the order of the ids.
    fn working_replicas(&self) -> BTreeMap<NodeId, Vec<NodeId>> {
        let mut working: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for node in self.nodes.values().filter(|node| !node.has_failed()) {
            if let Some(master) = node.master() {
                working.entry(master).or_default().push(node.id);
            }
        }
        working
    }

    fn watch_orphans(&mut self, working: &BTreeMap<NodeId, Vec<NodeId>>) {
        let now = self.now;
        let (nodes, slots) = (&self.nodes, &self.slots);
        let is_orphan = |id: &NodeId| {
            let well = nodes.get(id).is_some_and(|node| node.is_master() && !node.has_failed());
            well && slots.count(*id) > 0 && !working.contains_key(id)
        };
        self.orphans.since.retain(|id, _| is_orphan(id) && self.orphans.provided.contains(id));
        for id in self.orphans.provided.iter().filter(|id| is_orphan(id)) {
            self.orphans.since.entry(*id).or_insert(now);
        }
    }

    /// The orphan that this node, a replica of `master`, is to go to.
    fn orphan_for_us(&self, master: NodeId, working: &BTreeMap<NodeId, Vec<NodeId>>) -> Option<NodeId> {
        let (&orphan, &since) = self.orphans.since.first_key_value()?;
        let siblings = working.get(&master)?;
        let most = working.values().map(Vec::len).max()?;
        let richest = working.values().filter(|replicas| replicas.len() == most);
        let first = richest.filter_map(|replicas| replicas.first()).min()?;
        let staying = siblings.iter().filter(|id| self.nodes[id].is_well()).count();
        let ready = self.now >= since + DELAY && self.service.serving;
        let spare = most >= 2 && staying > self.config.migration_barrier;
        (ready && spare && *first == self.me && !self.myself().no_failover).then_some(orphan)
    }

    /// When the next orphan has been one for long enough. An older one is left to the other replicas; we hear of it.
    pub(crate) fn orphan_deadline(&self) -> Option<Instant> {
        self.orphans.since.values().map(|since| *since + DELAY).filter(|at| *at > self.now).min()
    }
}
