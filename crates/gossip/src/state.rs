//! The cluster as this node sees it: the members, the slot owners and the epochs.
//!
//! All components of the state machine read this state; only the coordinator ([`Gossip`](crate::Gossip)) and the
//! components that own a part of the state change it.

use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::{Epoch, NodeId, ReplOffset, Slot};

use crate::commands::{OperatorError, parse_node_id};
use crate::config::ClusterConfig;
use crate::contract::ReplicationStatus;
use crate::deadlines;
use crate::node::{Address, Node, Role};
use crate::node_index::IndexedState;
use crate::nodes::Nodes;
use crate::slot_marks::SlotMarks;
use crate::slots::SlotTable;
use crate::wire::Header;

/// One node's view of the cluster, which all components of the state machine read.
#[derive(Debug, Clone)]
pub struct ClusterState {
    config: ClusterConfig,
    my_id: NodeId,
    pub(crate) nodes: Nodes,
    pub(crate) slots: SlotTable,
    pub(crate) marks: SlotMarks,
    current_epoch: Epoch,
    /// Whether this node's `cluster_state` is `ok`.
    is_serving: bool,
    replication: ReplicationStatus,
    now: Instant,
    wall_time: Millis,
}

impl ClusterState {
    /// Creates the state of a node that has just started. The time is set by the first step.
    pub(crate) fn new(
        config: ClusterConfig,
        me: NodeId,
        nodes: Nodes,
        slots: SlotTable,
        marks: SlotMarks,
        current_epoch: Epoch,
    ) -> Self {
        Self {
            config,
            my_id: me,
            nodes,
            slots,
            marks,
            current_epoch,
            is_serving: false,
            replication: ReplicationStatus::default(),
            now: Instant::ORIGIN,
            wall_time: Millis::default(),
        }
    }

    /// Sets the time of the step, and returns the time since the last step.
    pub(crate) fn begin_step(&mut self, now: Instant, wall_time: Millis) -> Duration {
        assert!(now >= self.now, "time went back");
        let before = std::mem::replace(&mut self.now, now);
        self.wall_time = wall_time;
        now.since(before)
    }

    /// Sets the configuration and returns the previous one.
    pub(crate) fn configure(&mut self, config: ClusterConfig) -> ClusterConfig {
        std::mem::replace(&mut self.config, config)
    }

    /// Sets the replication state and returns the previous one.
    pub(crate) fn set_replication(&mut self, status: ReplicationStatus) -> ReplicationStatus {
        std::mem::replace(&mut self.replication, status)
    }

    pub(crate) fn set_offset(&mut self, offset: ReplOffset) {
        self.replication.offset = offset;
    }

    #[cfg(test)]
    pub(crate) fn set_source(&mut self, source: crate::contract::ReplicationSource) {
        self.replication.source = source;
    }

    #[cfg(test)]
    pub(crate) fn config_mut(&mut self) -> &mut ClusterConfig {
        &mut self.config
    }

    pub(crate) fn set_serving(&mut self, serving: bool) {
        self.is_serving = serving;
    }

    /// Raises the current epoch to `epoch` if `epoch` is higher.
    pub(crate) fn raise_epoch(&mut self, epoch: Epoch) {
        self.current_epoch = self.current_epoch.max(epoch);
    }

    /// This node's own entry in the table of nodes.
    #[must_use]
    pub fn myself(&self) -> &Node {
        self.nodes.get(&self.my_id).expect("a node knows itself")
    }

    pub(crate) fn myself_mut(&mut self) -> &mut Node {
        self.nodes.get_mut(&self.my_id).expect("a node knows itself")
    }

    /// The entry of a node that must exist. Panics if the node is unknown.
    pub(crate) fn known_node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("the caller has looked it up")
    }

    /// Whether any node was PFAIL at the last update of the indexes.
    pub(crate) fn has_suspects(&self) -> bool {
        self.nodes.suspects().next().is_some()
    }

    /// This node's id, which only RESET HARD changes.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.my_id
    }

    /// All nodes, including those in handshake, sorted by id.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// All nodes except this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|node| node.id != self.my_id)
    }

    pub(crate) fn others_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        let me = self.my_id;
        self.nodes.values_mut().filter(move |node| node.id != me)
    }

    /// Looks up a node by id, including nodes in handshake.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// The owner of `slot` in this node's view; `None` if the slot is unassigned.
    #[must_use]
    pub fn slot_owner(&self, slot: Slot) -> Option<NodeId> {
        self.slots.owner(slot)
    }

    /// The highest epoch that this node has seen.
    #[must_use]
    pub fn current_epoch(&self) -> Epoch {
        self.current_epoch
    }

    /// Whether the cluster state is `ok` in this node's view.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// The configuration in effect.
    #[must_use]
    pub fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// The id of the shard that this node belongs to.
    #[must_use]
    pub fn shard(&self) -> NodeId {
        self.myself().shard
    }

    /// Whether `id` is a master with slots.
    #[must_use]
    pub fn is_voter(&self, id: NodeId) -> bool {
        self.slots.slot_count(id) > 0 && self.nodes.get(&id).is_some_and(Node::is_master)
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// The wall-clock time of the current step.
    pub(crate) fn wall_time(&self) -> Millis {
        self.wall_time
    }

    /// The replication state of this node.
    pub(crate) fn replication(&self) -> ReplicationStatus {
        self.replication
    }

    /// The replication offset of this node.
    pub(crate) fn offset(&self) -> ReplOffset {
        self.replication.offset
    }

    /// Number of masters with slots; only they vote.
    pub(crate) fn voter_count(&self) -> usize {
        self.slots.owner_count()
    }

    /// Number of votes that make a majority.
    pub(crate) fn quorum(&self) -> usize {
        self.voter_count() / 2 + 1
    }

    /// Whether `id` is another node whose handshake is complete.
    pub(crate) fn is_known_node(&self, id: NodeId) -> bool {
        id != self.my_id && self.nodes.get(&id).is_some_and(|node| node.handshake.is_none())
    }

    /// The nodes with an established outbound link, except those in handshake.
    pub(crate) fn linked_nodes(&self) -> Vec<NodeId> {
        let up = self.nodes.values().filter(|node| node.link.is_up() && node.handshake.is_none());
        up.map(|node| node.id).collect()
    }

    pub(crate) fn are_in_same_shard(&self, node: NodeId, other_node: NodeId) -> bool {
        let shard = |id| self.nodes.get(&id).map(|node| node.shard);
        shard(node).is_some() && shard(node) == shard(other_node)
    }

    /// The other nodes of this node's shard.
    pub(crate) fn shard_members(&self) -> Vec<NodeId> {
        let root = self.myself().master().unwrap_or(self.my_id);
        let ours = |node: &&Node| node.id == root || node.master() == Some(root);
        self.others().filter(ours).map(|node| node.id).collect()
    }

    /// The configuration epoch of the node or, if it is a replica, of its master.
    pub(crate) fn claimed_epoch(&self, node: &Node) -> Epoch {
        node.master().and_then(|id| self.nodes.get(&id)).unwrap_or(node).config_epoch
    }

    /// The highest epoch of all claims and of [`ClusterState::current_epoch`].
    pub(crate) fn highest_epoch(&self) -> Epoch {
        let claims = self.nodes.values().map(|node: &Node| node.config_epoch);
        claims.max().unwrap_or_default().max(self.current_epoch)
    }

    /// Converts `instant`, which must not be in the future, to wall-clock time.
    pub(crate) fn wall_time_at(&self, instant: Instant) -> Millis {
        let ago = i64::try_from(self.now.since(instant).as_millis()).unwrap_or(i64::MAX);
        Millis(self.wall_time.0.saturating_sub(ago))
    }

    /// The plaintext and the TLS client port of a node; a missing port is 0.
    pub(crate) fn client_ports(&self, address: &Address) -> (u16, u16) {
        if self.config.announced_address.tls_cluster {
            (address.secondary_port, address.port)
        } else {
            (address.port, address.secondary_port)
        }
    }

    /// Looks up a node by the id that the operator typed. Nodes in handshake are not found.
    pub(crate) fn find_node(&self, name: &str) -> Result<NodeId, OperatorError> {
        let known = |node: &&Node| node.handshake.is_none();
        parse_node_id(name)
            .and_then(|id| self.nodes.get(&id).filter(known))
            .map(|node| node.id)
            .ok_or_else(|| OperatorError::unknown_node(name))
    }

    pub(crate) fn find_master(
        &self,
        name: &str,
        unknown_error: fn(String) -> OperatorError,
    ) -> Result<NodeId, OperatorError> {
        let id = self.find_node(name).map_err(|_| unknown_error(name.to_owned()))?;
        if self.nodes[&id].is_master() { Ok(id) } else { Err(OperatorError::TargetNotMaster) }
    }

    /// Sets the role of a node. A replica then belongs to the shard of its master. Returns the previous role if it was
    /// different.
    pub(crate) fn set_role(&mut self, id: NodeId, role: Role) -> Option<Role> {
        let shard = match role {
            Role::Replica(Some(master)) => self.node(master).map(|master| master.shard),
            Role::Replica(None) | Role::Master => None,
        };
        let node = self.known_node_mut(id);
        node.shard = shard.unwrap_or(node.shard);
        let before = std::mem::replace(&mut node.role, role);
        (before != role).then_some(before)
    }

    /// Returns the role in a header. Until gossip has introduced the master of a replica, the replica's master counts
    /// as unknown.
    pub(crate) fn announced_role(&self, header: &Header) -> Role {
        match header.replica_of {
            None => Role::Master,
            Some(master) => Role::Replica(Some(master).filter(|id| self.nodes.contains_key(id))),
        }
    }

    /// Gives this node another id and resets all epochs.
    pub(crate) fn rename_myself(&mut self, id: NodeId) {
        if let Some(mut node) = self.nodes.remove(&self.my_id) {
            (node.id, node.shard, node.config_epoch) = (id, id, Epoch(0));
            self.nodes.insert(id, node);
        }
        self.my_id = id;
        self.current_epoch = Epoch(0);
    }

    /// Checks whether this node may become a replica of the node with the id that the operator typed. Returns that
    /// node's id.
    pub(crate) fn check_replicate(&self, name: &str, holds_keys: bool) -> Result<NodeId, OperatorError> {
        let target = self.find_node(name)?;
        if target == self.my_id {
            return Err(OperatorError::ReplicateMyself);
        }
        if !self.nodes[&target].is_master() {
            return Err(OperatorError::ReplicateReplica);
        }
        if self.myself().is_master() && (holds_keys || self.slots.slot_count(self.my_id) > 0) {
            return Err(OperatorError::ReplicateNotEmpty);
        }
        Ok(target)
    }

    /// Updates the indexes for all changed nodes.
    pub(crate) fn update_indexes(&mut self) {
        let Self { config, my_id: me, nodes, slots, .. } = self;
        nodes.mark_changed(slots.take_changed_owners());
        nodes.update_indexes(|node| indexed_state(node, *me, slots, config));
    }

    /// The nodes whose `deadline` has passed, sorted by id.
    pub(crate) fn due_nodes(
        &mut self,
        deadline: impl Fn(&Node, &ClusterConfig) -> Option<Instant>,
    ) -> Vec<NodeId> {
        self.update_indexes();
        let mut due = self.nodes.due_nodes(self.now);
        due.retain(|id| deadline(&self.nodes[id], &self.config).is_some_and(|at| at <= self.now));
        due
    }

    /// Checks that the incrementally updated indexes equal indexes computed from scratch.
    #[cfg(test)]
    pub(crate) fn assert_indexes_consistent(&self) {
        self.nodes.assert_consistent(|node| indexed_state(node, self.my_id, &self.slots, &self.config));
    }
}

/// Returns the values of `node` that the indexes of [`Nodes`] depend on.
fn indexed_state(node: &Node, my_id: NodeId, slots: &SlotTable, config: &ClusterConfig) -> IndexedState {
    let eligible_replica_of = node.master().filter(|_| !node.has_failed() && !node.disables_failover);
    if node.id == my_id {
        return IndexedState { eligible_replica_of, ..IndexedState::default() };
    }
    let owner = slots.slot_count(node.id) > 0;
    let is_member = node.handshake.is_none();
    // An entry without an address does not help others to reach the node. A failed node is reported nevertheless: it
    // has no address if another node has taken over its address.
    let nameable = is_member && (node.address.ip.is_some() || node.has_failed());
    IndexedState {
        next_deadline: deadlines::next_deadline(node, config),
        is_gossip_candidate: nameable && !node.is_suspected() && (node.link.is_up() || owner),
        is_suspected: is_member && node.is_suspected(),
        failed_voter_since: node.failed_since().filter(|_| owner),
        eligible_replica_of,
        // After a start no node is suspected yet, so nodes that have not sent a message must not count as reachable;
        // otherwise a restarted master in a minority would serve until the node timeout.
        is_reachable: owner && node.is_healthy() && node.contact_times.last_message_at.is_some(),
        confirms_serving: owner && node.contact_times.confirms_serving,
    }
}
