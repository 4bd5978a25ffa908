//! Replica migration: a replica of a master with several replicas moves to a master that has none left.
//!
//! An orphan is a master with slots that once had a replica (or took over from a master that had one) and now has no
//! working replica. After five seconds, during which a failover may still restore the orphan's own replicas, one
//! replica moves to the orphan. Only the replica with the smallest id among the masters with the most working replicas
//! moves, only if its master retains at least `cluster-migration-barrier` replicas, and only while the cluster state is
//! `ok`. Rules and delay are those of Redis (`cluster-allow-replica-migration`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::node::{Node, Role};
use crate::state::ClusterState;

/// How long a master must be an orphan before a replica moves to it (Redis: `CLUSTER_SLAVE_MIGRATION_DELAY`).
const MIGRATION_DELAY: Duration = Duration::from_secs(5);
/// Interval of the search for orphans (as in Redis, the interval of its cron).
const ORPHAN_CHECK_PERIOD: Duration = Duration::from_millis(100);

/// Tracks the masters without working replicas, and decides when this replica moves to one of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReplicaMigration {
    /// Masters that should have replicas (Redis: flag `MIGRATE_TO`).
    masters_expected_to_have_replicas: BTreeSet<NodeId>,
    /// Masters that are expected to have replicas but have no working one, each with the time at which it lost the last
    /// one.
    orphans: BTreeMap<NodeId, Instant>,
    next_check_at: Instant,
}

impl ReplicaMigration {
    /// Creates the tracker for the state restored from `nodes.conf`.
    pub(crate) fn new(state: &ClusterState) -> Self {
        Self {
            masters_expected_to_have_replicas: state.nodes().filter_map(Node::master).collect(),
            ..Self::default()
        }
    }

    /// Updates the set of masters that should have replicas after the role of `id` has changed from `old_role`.
    pub(crate) fn on_role_change(&mut self, state: &ClusterState, id: NodeId, old_role: Role) {
        let Some(after) = state.node(id).map(|node| node.role) else { return };
        self.on_replica_left(state, old_role);
        match after {
            // A promoted replica replaces its master in the set, because it should have replicas as well.
            Role::Master if old_role != Role::Master => {
                self.masters_expected_to_have_replicas.insert(id);
            }
            Role::Master => {}
            Role::Replica(master) => {
                self.masters_expected_to_have_replicas.remove(&id);
                self.masters_expected_to_have_replicas.extend(master);
            }
        }
    }

    /// Handles the departure of a node with `role` from its master. A master whose last replica was moved on purpose is
    /// not an orphan.
    fn on_replica_left(&mut self, state: &ClusterState, role: Role) {
        let Role::Replica(Some(master)) = role else { return };
        if !state.nodes().any(|node| node.master() == Some(master)) {
            self.masters_expected_to_have_replicas.remove(&master);
        }
    }

    /// Handles the removal of the node `id`, which had `role`.
    pub(crate) fn on_node_removed(&mut self, state: &ClusterState, id: NodeId, role: Role) {
        self.masters_expected_to_have_replicas.remove(&id);
        self.orphans.remove(&id);
        self.on_replica_left(state, role);
    }

    /// Returns the orphan that this replica must move to now, if any.
    pub(crate) fn step(&mut self, state: &ClusterState) -> Option<NodeId> {
        let Some(master) = state.myself().master() else {
            self.orphans.clear();
            return None;
        };
        if state.now() < self.next_check_at || !state.config().allow_replica_migration {
            return None;
        }
        self.next_check_at = state.now() + ORPHAN_CHECK_PERIOD;
        let working = working_replicas(state);
        self.find_orphans(state, &working);
        self.find_orphan_to_join(state, master, &working)
    }

    fn find_orphans(&mut self, state: &ClusterState, working_replicas: &BTreeMap<NodeId, Vec<NodeId>>) {
        let is_orphan = |id: &NodeId| {
            let well = state.node(*id).is_some_and(|node| !node.has_failed());
            well && state.is_voter(*id) && !working_replicas.contains_key(id)
        };
        self.orphans.retain(|id, _| is_orphan(id) && self.masters_expected_to_have_replicas.contains(id));
        for id in self.masters_expected_to_have_replicas.iter().filter(|id| is_orphan(id)) {
            self.orphans.entry(*id).or_insert(state.now());
        }
    }

    /// The orphan that this node, a replica of `master`, should move to.
    fn find_orphan_to_join(
        &self,
        state: &ClusterState,
        master: NodeId,
        working_replicas: &BTreeMap<NodeId, Vec<NodeId>>,
    ) -> Option<NodeId> {
        let (&orphan, &since) = self.orphans.first_key_value()?;
        let siblings = working_replicas.get(&master)?;
        let most = working_replicas.values().map(Vec::len).max()?;
        let richest = working_replicas.values().filter(|replicas| replicas.len() == most);
        let first = richest.filter_map(|replicas| replicas.first()).min()?;
        let staying = siblings.iter().filter(|id| state.node(**id).is_some_and(Node::is_healthy)).count();
        let ready = state.now() >= since + MIGRATION_DELAY && state.is_serving();
        let spare = most >= 2 && staying > state.config().migration_barrier;
        (ready && spare && *first == state.id() && !state.myself().disables_failover).then_some(orphan)
    }

    /// Returns when the next orphan has waited long enough. Skips orphans whose time has passed, because other replicas
    /// move to them.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.orphans.values().map(|since| *since + MIGRATION_DELAY).filter(|at| *at > now).min()
    }
}

/// The replicas that are not FAIL, grouped by master and sorted by id.
fn working_replicas(state: &ClusterState) -> BTreeMap<NodeId, Vec<NodeId>> {
    let mut working: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for node in state.nodes().filter(|node| !node.has_failed()) {
        if let Some(master) = node.master() {
            working.entry(master).or_default().push(node.id);
        }
    }
    working
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    /// A cluster in which this node (0) and node 4 are replicas of master 1, and node 5 is the only replica of master
    /// 2.
    fn cluster() -> (TestCluster, ReplicaMigration) {
        let mut cluster = TestCluster::new(4, &[(4, 1), (5, 2)]);
        cluster.become_replica_of(1);
        cluster.state.set_serving(true);
        let part = ReplicaMigration::new(&cluster.state);
        (cluster, part)
    }

    /// Lets the delay pass and returns the orphan to move to.
    fn step_after_delay(cluster: &mut TestCluster, migration: &mut ReplicaMigration) -> Option<NodeId> {
        assert_eq!(migration.step(&cluster.state), None);
        cluster.advance_time(MIGRATION_DELAY);
        migration.step(&cluster.state)
    }

    #[test]
    fn spare_replica_moves_to_an_orphan_after_the_delay() {
        let (mut cluster, mut part) = cluster();
        cluster.mark_failed(5);
        assert_eq!(part.step(&cluster.state), None);
        assert_eq!(part.next_deadline(cluster.state.now()), Some(cluster.state.now() + MIGRATION_DELAY));
        cluster.advance_time(MIGRATION_DELAY);
        assert_eq!(part.step(&cluster.state), Some(id(2)));
    }

    #[test]
    fn replica_stays_while_the_cluster_is_down_or_at_the_barrier() {
        let (mut cluster, mut part) = cluster();
        cluster.mark_failed(5);
        cluster.state.set_serving(false);
        assert_eq!(step_after_delay(&mut cluster, &mut part), None);
        cluster.state.set_serving(true);
        cluster.state.config_mut().migration_barrier = 2;
        assert_eq!(step_after_delay(&mut cluster, &mut part), None);
        cluster.state.config_mut().migration_barrier = 1;
        cluster.state.config_mut().allow_replica_migration = false;
        assert_eq!(step_after_delay(&mut cluster, &mut part), None);
    }

    #[test]
    fn orphan_whose_replica_recovers_gets_no_other_replica() {
        let (mut cluster, mut part) = cluster();
        cluster.mark_failed(5);
        assert_eq!(part.step(&cluster.state), None);
        cluster.node(5).health = crate::node::NodeHealth::Healthy;
        assert_eq!(step_after_delay(&mut cluster, &mut part), None);
        assert_eq!(part.next_deadline(cluster.state.now()), None);
    }

    #[test]
    fn master_whose_replicas_left_on_purpose_is_no_orphan() {
        let (mut cluster, mut part) = cluster();
        cluster.node(5).role = Role::Replica(Some(id(3)));
        part.on_role_change(&cluster.state, id(5), Role::Replica(Some(id(2))));
        assert_eq!(step_after_delay(&mut cluster, &mut part), None);
        // Master 3 has a replica now, so it becomes an orphan when that replica fails.
        cluster.mark_failed(5);
        cluster.advance_time(ORPHAN_CHECK_PERIOD);
        assert_eq!(step_after_delay(&mut cluster, &mut part), Some(id(3)));
    }

    #[test]
    fn removed_master_is_no_orphan() {
        let (mut cluster, mut part) = cluster();
        cluster.mark_failed(5);
        part.step(&cluster.state);
        let role = cluster.remove(2);
        part.on_node_removed(&cluster.state, id(2), role);
        assert_eq!(step_after_delay(&mut cluster, &mut part), None);
    }
}
