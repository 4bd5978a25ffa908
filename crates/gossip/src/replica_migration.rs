//! Replica migration: a replica of a master with several replicas moves to a master that has none left.
//!
//! An orphan is a master with slots that once had a replica (or took over from a master that had one) and now has no
//! working replica. After five seconds, during which a failover may still restore its own replicas, one replica moves
//! to it. Only the replica with the smallest id among the masters with the most working replicas moves, only if its
//! master keeps at least `cluster-migration-barrier` replicas, and only while the cluster state is `ok`. Rules and
//! delay are those of Redis (`cluster-allow-replica-migration`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::node::{Node, Role};

/// How long a master must be an orphan (Redis: `CLUSTER_SLAVE_MIGRATION_DELAY`).
const DELAY: Duration = Duration::from_secs(5);
/// Interval of the search for orphans (as in Redis, the interval of its cron).
const PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Orphans {
    /// Masters that should have replicas (Redis: flag `MIGRATE_TO`).
    should_have_replicas: BTreeSet<NodeId>,
    /// Masters of `should_have_replicas` without a working replica, with the time when this began.
    since: BTreeMap<NodeId, Instant>,
    next_check: Instant,
}

impl Orphans {
    /// Finds the masters with replicas in `nodes`, as restored from `nodes.conf`.
    pub(crate) fn of(nodes: &BTreeMap<NodeId, Node>) -> Self {
        Self { should_have_replicas: nodes.values().filter_map(Node::master).collect(), ..Self::default() }
    }
}

impl Gossip {
    /// Updates the set of masters that should have replicas when the role of `id` changes from `before`.
    pub(crate) fn on_role_change(&mut self, id: NodeId, before: Role) {
        let after = self.state.nodes[&id].role;
        if let Role::Replica(Some(master)) = before {
            self.on_replica_left(master);
        }
        match after {
            // A promoted replica inherits the claim to replicas from its master.
            Role::Master if before != Role::Master => {
                self.orphans.should_have_replicas.insert(id);
            }
            Role::Master => {}
            Role::Replica(master) => {
                self.orphans.should_have_replicas.remove(&id);
                self.orphans.should_have_replicas.extend(master);
            }
        }
    }

    /// Handles a replica leaving `master`. A master whose last replica was removed on purpose is not an orphan.
    pub(crate) fn on_replica_left(&mut self, master: NodeId) {
        if !self.state.nodes.values().any(|node| node.master() == Some(master)) {
            self.orphans.should_have_replicas.remove(&master);
        }
    }

    pub(crate) fn on_node_removed(&mut self, id: NodeId, role: Role) {
        self.orphans.should_have_replicas.remove(&id);
        self.orphans.since.remove(&id);
        if let Role::Replica(Some(master)) = role {
            self.on_replica_left(master);
        }
    }

    /// Moves this replica to an orphan if it is the one to move.
    pub(crate) fn step_replica_migration(&mut self) {
        let Some(master) = self.myself().master() else {
            self.orphans.since.clear();
            return;
        };
        if self.state.now < self.orphans.next_check || !self.state.config.allow_replica_migration {
            return;
        }
        self.orphans.next_check = self.state.now + PERIOD;
        let working = self.working_replicas();
        self.watch_orphans(&working);
        if let Some(orphan) = self.orphan_to_adopt(master, &working) {
            self.log(ClusterEvent::Migrating { to: orphan });
            self.become_replica_of(orphan);
        }
    }

    /// The replicas that are not FAIL, grouped by master and sorted by id.
    fn working_replicas(&self) -> BTreeMap<NodeId, Vec<NodeId>> {
        let mut working: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for node in self.state.nodes.values().filter(|node| !node.has_failed()) {
            if let Some(master) = node.master() {
                working.entry(master).or_default().push(node.id);
            }
        }
        working
    }

    fn watch_orphans(&mut self, working: &BTreeMap<NodeId, Vec<NodeId>>) {
        let now = self.state.now;
        let (nodes, slots) = (&self.state.nodes, &self.state.slots);
        let is_orphan = |id: &NodeId| {
            let well = nodes.get(id).is_some_and(|node| node.is_master() && !node.has_failed());
            well && slots.count(*id) > 0 && !working.contains_key(id)
        };
        self.orphans.since.retain(|id, _| is_orphan(id) && self.orphans.should_have_replicas.contains(id));
        for id in self.orphans.should_have_replicas.iter().filter(|id| is_orphan(id)) {
            self.orphans.since.entry(*id).or_insert(now);
        }
    }

    /// The orphan that this node, a replica of `master`, should move to.
    fn orphan_to_adopt(&self, master: NodeId, working: &BTreeMap<NodeId, Vec<NodeId>>) -> Option<NodeId> {
        let (&orphan, &since) = self.orphans.since.first_key_value()?;
        let siblings = working.get(&master)?;
        let most = working.values().map(Vec::len).max()?;
        let richest = working.values().filter(|replicas| replicas.len() == most);
        let first = richest.filter_map(|replicas| replicas.first()).min()?;
        let staying = siblings.iter().filter(|id| self.state.nodes[id].is_healthy()).count();
        let ready = self.state.now >= since + DELAY && self.state.serving;
        let spare = most >= 2 && staying > self.state.config.migration_barrier;
        (ready && spare && *first == self.state.me && !self.myself().no_failover).then_some(orphan)
    }

    /// When the next orphan has waited long enough. Orphans past their deadline were left to other replicas.
    pub(crate) fn orphan_deadline(&self) -> Option<Instant> {
        self.orphans.since.values().map(|since| *since + DELAY).filter(|at| *at > self.state.now).min()
    }
}
