//! A cluster state for unit tests of the state machine's components.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::{Epoch, NodeId, SLOT_COUNT, Slot};

use crate::config::ClusterConfig;
use crate::contract::LinkId;
use crate::node::{Address, LinkState, Node, NodeHealth, Role};
use crate::nodes_conf::SavedConfig;
use crate::state::ClusterState;
use crate::wire::{Header, MessageFlags, NodeFlags};

/// The id of node `index`; ids are in the order of the indexes.
pub(crate) fn id(index: u8) -> NodeId {
    NodeId::from_random([index; 20])
}

/// A cluster state with masters that share the slots equally, and replicas. This node is node 0. All nodes are healthy
/// and linked, and a message from each node has just arrived.
#[derive(Debug)]
pub(crate) struct TestCluster {
    pub(crate) state: ClusterState,
}

impl TestCluster {
    /// Creates masters 0 to `masters - 1` with epochs from 1 on. `replicas` contains pairs of a replica and its master.
    pub(crate) fn new(masters: u8, replicas: &[(u8, u8)]) -> Self {
        let now = Instant::ORIGIN + Duration::from_secs(1000);
        let mut saved = SavedConfig { current_epoch: Epoch(masters.into()), ..SavedConfig::empty(id(0)) };
        let mut nodes = BTreeMap::new();
        for index in 0..masters {
            let node = Node { config_epoch: Epoch(u64::from(index) + 1), ..linked_node(index, now) };
            nodes.insert(id(index), node);
            let share = |index: u8| usize::from(index) * SLOT_COUNT / usize::from(masters);
            for slot in share(index)..share(index + 1) {
                saved.slots.assign(Slot::new(slot as u16).unwrap(), id(index));
            }
        }
        for (index, master) in replicas {
            let role = Role::Replica(Some(id(*master)));
            nodes.insert(id(*index), Node { role, shard: id(*master), ..linked_node(*index, now) });
        }
        if let Some(me) = nodes.get_mut(&id(0)) {
            me.link = LinkState::Down { retry_at: now };
        }
        saved.nodes = nodes;
        let mut state = saved.into_state(ClusterConfig::default());
        state.begin_step(now, Millis(1_000_000_000));
        state.update_indexes();
        Self { state }
    }

    pub(crate) fn node(&mut self, index: u8) -> &mut Node {
        self.state.nodes.get_mut(&id(index)).expect("a node of this cluster")
    }

    /// Makes this node a replica of `master`. Its slots become unassigned.
    pub(crate) fn become_replica_of(&mut self, master: u8) {
        self.state.slots.release_all(id(0));
        let node = self.node(0);
        (node.role, node.shard) = (Role::Replica(Some(id(master))), id(master));
        self.state.update_indexes();
    }

    /// Marks a node as FAIL.
    pub(crate) fn mark_failed(&mut self, index: u8) {
        let since = self.state.now();
        self.node(index).health = NodeHealth::Failed { since };
        self.state.update_indexes();
    }

    /// Removes a node and returns its role.
    pub(crate) fn remove(&mut self, index: u8) -> Role {
        self.state.slots.release_all(id(index));
        self.state.nodes.remove(&id(index)).expect("a node of this cluster").role
    }

    pub(crate) fn advance_time(&mut self, duration: Duration) {
        let (now, wall) = (self.state.now() + duration, self.state.wall_time());
        self.state.begin_step(now, wall);
    }

    /// Returns a header as node `index` would send it.
    pub(crate) fn header_of(&self, index: u8) -> Header {
        let node = self.state.node(id(index)).expect("a node of this cluster");
        let claimant = node.master().unwrap_or(node.id);
        Header {
            sender: node.id,
            flags: if node.is_master() { NodeFlags::MASTER } else { NodeFlags::REPLICA },
            message_flags: MessageFlags::default(),
            is_serving: true,
            ip: None,
            port: node.address.port,
            secondary_port: 0,
            bus_port: node.address.bus_port,
            current_epoch: self.state.current_epoch(),
            config_epoch: self.state.claimed_epoch(node),
            offset: node.offset,
            slots: self.state.slots.slots_of(claimant),
            replica_of: node.master(),
        }
    }
}

fn linked_node(index: u8, now: Instant) -> Node {
    let port = 7000 + u16::from(index);
    let ip = Some(std::net::Ipv4Addr::LOCALHOST.into());
    let address = Address { ip, port, secondary_port: 0, bus_port: port + 10_000 };
    let mut node = Node::new(id(index), address, now);
    node.link = LinkState::Up { id: LinkId::Outbound(index.into()), since: now };
    node.contact_times.last_message_at = Some(now);
    node
}
