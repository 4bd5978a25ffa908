//! The cluster topology as an immutable value; every change publishes a new one.
//!
//! The `gossip` crate produces the topology. Nothing in this module depends on how the nodes agreed on it, so another
//! cluster protocol could produce it as well.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ids::{Epoch, NodeId, ReplOffset};
use crate::route::Ownership;
use crate::slot::{SLOT_COUNT, Slot};
use crate::slot_set::SlotSet;

/// The addresses and ports of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// The IP address as text; empty while it is unknown.
    pub ip: String,
    /// The announced hostname; empty if there is none.
    pub hostname: String,
    /// The plaintext client port; 0 if the node has none.
    pub port: u16,
    /// The TLS client port; 0 if the node has none.
    pub tls_port: u16,
    /// The cluster bus port.
    pub bus_port: u16,
    /// The addresses announced to clients, where they differ from those for other nodes.
    pub client_endpoint: ClientEndpoint,
    /// The node's `availability-zone`; empty if unset.
    pub zone: String,
}

/// The address that a node announces to clients only (`cluster-announce-client-*`), for example when clients connect
/// through NAT and other nodes do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientEndpoint {
    /// Address for clients that connect over IPv4; `None` if clients get the same address as nodes.
    pub ipv4: Option<Ipv4Addr>,
    /// Address for clients that connect over IPv6; `None` if clients get the same address as nodes.
    pub ipv6: Option<Ipv6Addr>,
    /// Client port announced in place of the plaintext port; 0 means unset.
    pub port: u16,
    /// Client port announced in place of the TLS port; 0 means unset.
    pub tls_port: u16,
}

/// The kind of connection that a client uses. Redirections contain an address at which the other node accepts the same
/// kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientTransport {
    /// Whether the connection uses TLS.
    pub tls: bool,
    /// Whether the connection uses IPv6.
    pub ipv6: bool,
}

/// How redirections and CLUSTER SLOTS name a node (`cluster-preferred-endpoint-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum EndpointType {
    /// Nodes are named by IP address.
    #[default]
    Ip,
    /// Nodes are named by their announced hostname.
    Hostname,
    /// Nodes are named by an empty string: the client keeps the current host and changes only the port.
    Unknown,
}

impl Endpoint {
    /// Returns the host in MOVED and ASK replies; `?` if hostnames are preferred and the node announces none.
    #[must_use]
    pub fn host(&self, endpoint_type: EndpointType, transport: ClientTransport) -> Cow<'_, str> {
        match endpoint_type {
            EndpointType::Ip => self.client_ip(transport),
            EndpointType::Hostname if self.hostname.is_empty() => "?".into(),
            EndpointType::Hostname => self.hostname.as_str().into(),
            EndpointType::Unknown => "".into(),
        }
    }

    /// Returns the IP address to give to a client that uses this transport.
    #[must_use]
    pub fn client_ip(&self, transport: ClientTransport) -> Cow<'_, str> {
        let ClientEndpoint { ipv4, ipv6, .. } = self.client_endpoint;
        let own = if transport.ipv6 { ipv6.map(|ip| ip.to_string()) } else { ipv4.map(|ip| ip.to_string()) };
        own.map_or(self.ip.as_str().into(), Cow::Owned)
    }

    /// Returns the port for connections between nodes. Falls back to the other port if the node has only a plaintext or
    /// only a TLS port.
    #[must_use]
    pub fn node_port(&self, uses_tls: bool) -> u16 {
        choose_port(self.port, self.tls_port, uses_tls)
    }

    /// Returns the port to give to a client that uses this transport.
    #[must_use]
    pub fn client_port(&self, transport: ClientTransport) -> u16 {
        let (port, tls_port) = self.client_ports();
        choose_port(port, tls_port, transport.tls)
    }

    /// Returns the plaintext and the TLS client port; a missing port is 0.
    #[must_use]
    pub fn client_ports(&self) -> (u16, u16) {
        let ClientEndpoint { port, tls_port, .. } = self.client_endpoint;
        let instead = |announced, port| if announced == 0 || port == 0 { port } else { announced };
        (instead(port, self.port), instead(tls_port, self.tls_port))
    }
}

/// Returns the port for clients with or without TLS, or the other port if that one is 0.
fn choose_port(port: u16, tls_port: u16, uses_tls: bool) -> u16 {
    let is_plain = if uses_tls { tls_port == 0 } else { port != 0 };
    if is_plain { port } else { tls_port }
}

/// The replication role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The node serves the slots of its shard, if the shard has any.
    Master,
    /// The node replicates this master.
    Replica(NodeId),
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The 40-character node id.
    pub id: NodeId,
    /// The shard id, shared by a master and its replicas.
    pub shard: NodeId,
    /// Addresses and ports.
    pub endpoint: Endpoint,
    /// Whether the node is a master or a replica; a replica names its master.
    pub role: Role,
    /// The epoch under which the node claims its slots. A replica has the epoch of its master.
    pub config_epoch: Epoch,
    /// The replication offset of the node: the end of the stream that a master has written or a replica has applied.
    pub offset: ReplOffset,
    /// Whether the node is flagged FAIL: a majority of the masters agrees that it is down.
    pub has_failed: bool,
    /// Whether the member is flagged PFAIL: this node suspects that it is down.
    pub is_suspected: bool,
}

impl Member {
    /// Returns whether both the IP address and a client port are known.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        !self.endpoint.ip.is_empty() && self.endpoint.client_ports() != (0, 0)
    }
}

/// The members of the cluster and the owner of each slot, as this node sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The id of this node.
    pub myself: NodeId,
    /// The highest epoch that this node has seen.
    pub current_epoch: Epoch,
    /// Whether the cluster state is `ok`: slot coverage is sufficient and a majority of the masters is reachable.
    pub is_serving: bool,
    members: Vec<Member>,
    /// Indices in `members` of this node and of its master, if it has one.
    my_index: u16,
    my_master_index: Option<u16>,
    /// Index in `members` of each slot's owner, or [`UNASSIGNED_INDEX`].
    owners: Box<[u16]>,
    migrating: BTreeMap<Slot, NodeId>,
    importing: BTreeMap<Slot, NodeId>,
}

const UNASSIGNED_INDEX: u16 = u16::MAX;

impl Topology {
    /// Creates a topology without slot assignments.
    ///
    /// # Panics
    /// `members` does not contain `myself`.
    #[must_use]
    pub fn new(myself: NodeId, current_epoch: Epoch, is_serving: bool, mut members: Vec<Member>) -> Self {
        members.sort_by_key(|member| member.id);
        assert!(members.len() < usize::from(UNASSIGNED_INDEX), "more members than a cluster can name");
        let index_of = |id| members.iter().position(|member| member.id == id).map(|index| index as u16);
        let my_index = index_of(myself).expect("a node belongs to its own topology");
        let my_master_index = match members[usize::from(my_index)].role {
            Role::Replica(master) => index_of(master),
            Role::Master => None,
        };
        Self {
            my_index,
            my_master_index,
            myself,
            current_epoch,
            is_serving,
            members,
            owners: vec![UNASSIGNED_INDEX; SLOT_COUNT].into_boxed_slice(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
        }
    }

    /// Assigns `slots` to `owner`.
    ///
    /// # Panics
    /// `owner` is not a member.
    pub fn assign(&mut self, slots: impl IntoIterator<Item = Slot>, owner: NodeId) {
        let index = self.index_of(owner).expect("only a member can own a slot") as u16;
        for slot in slots {
            self.owners[slot.index()] = index;
        }
    }

    /// Assigns the slots from `first` to `last`, both inclusive, to `owner`.
    ///
    /// # Panics
    /// `owner` is not a member.
    pub fn assign_range(&mut self, first: Slot, last: Slot, owner: NodeId) {
        let index = self.index_of(owner).expect("only a member can own a slot") as u16;
        self.owners[first.index()..=last.index()].fill(index);
    }

    /// Marks a slot of this shard as migrating to `target`.
    pub fn mark_migrating(&mut self, slot: Slot, target: NodeId) {
        self.migrating.insert(slot, target);
    }

    /// Marks a slot as being imported by this shard from `source`.
    pub fn mark_importing(&mut self, slot: Slot, source: NodeId) {
        self.importing.insert(slot, source);
    }

    /// Returns all members, including this node, sorted by id.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Looks up a member by id.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.index_of(id).map(|index| &self.members[index])
    }

    /// Returns the entry of this node.
    #[must_use]
    pub fn my_member(&self) -> &Member {
        &self.members[usize::from(self.my_index)]
    }

    /// Returns the owner of `slot`, or `None` if it is unassigned.
    #[must_use]
    pub fn owner(&self, slot: Slot) -> Option<&Member> {
        self.members.get(usize::from(self.owners[slot.index()]))
    }

    /// Returns the slots that this shard is migrating away, with the target nodes.
    #[must_use]
    pub fn migrating(&self) -> &BTreeMap<Slot, NodeId> {
        &self.migrating
    }

    /// Returns the slots that this shard is importing, with the source nodes.
    #[must_use]
    pub fn importing(&self) -> &BTreeMap<Slot, NodeId> {
        &self.importing
    }

    /// Returns the replicas of `master`, sorted by id.
    pub fn replicas_of(&self, master: NodeId) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.role == Role::Replica(master))
    }

    /// Returns this node's relation to `slot`, with migrations and imports taken into account.
    #[must_use]
    pub fn ownership(&self, slot: Slot) -> Ownership {
        let (leaves, comes) = (self.migrating.contains_key(&slot), self.importing.contains_key(&slot));
        let replica = matches!(self.my_member().role, Role::Replica(_));
        match self.stable_ownership(self.owners[slot.index()]) {
            Ownership::Local if leaves => Ownership::Migrating,
            Ownership::MasterOwned if leaves => Ownership::MasterMigrating,
            Ownership::Remote | Ownership::Unassigned if comes && replica => Ownership::MasterImporting,
            Ownership::Remote | Ownership::Unassigned if comes => Ownership::Importing,
            settled => settled,
        }
    }

    /// Returns this node's relation to the slots of the member with this index, ignoring migrations and imports.
    fn stable_ownership(&self, owner_index: u16) -> Ownership {
        match owner_index {
            UNASSIGNED_INDEX => Ownership::Unassigned,
            owner if owner == self.my_index => Ownership::Local,
            owner if Some(owner) == self.my_master_index => Ownership::MasterOwned,
            _ => Ownership::Remote,
        }
    }

    /// Returns [`Topology::ownership`] for every slot, indexed by slot number.
    #[must_use]
    pub fn ownerships(&self) -> Vec<Ownership> {
        // Only the few migrating and importing slots need a map lookup.
        let mut all: Vec<Ownership> = self.owners.iter().map(|owner| self.stable_ownership(*owner)).collect();
        for slot in self.migrating.keys().chain(self.importing.keys()) {
            all[slot.index()] = self.ownership(*slot);
        }
        all
    }

    /// Returns the slots whose [`Ownership`] differs from that in `before`.
    #[must_use]
    pub fn ownership_changes_since(&self, old_topology: &Self) -> Vec<Slot> {
        let own_state =
            |topology: &Self| (topology.my_index, topology.my_master_index, topology.my_member().role);
        // Fast path: most new topologies change only node attributes.
        if own_state(self) == own_state(old_topology)
            && self.owners == old_topology.owners
            && (&self.migrating, &self.importing) == (&old_topology.migrating, &old_topology.importing)
        {
            return Vec::new();
        }
        let (were, are) = (old_topology.ownerships(), self.ownerships());
        Slot::all().filter(|slot| were[slot.index()] != are[slot.index()]).collect()
    }

    /// Returns the slots that the nodes of this shard own.
    #[must_use]
    pub fn slots_of_my_shard(&self) -> SlotSet {
        let shard = self.my_member().shard;
        let of_shard: Vec<bool> = self.members.iter().map(|member| member.shard == shard).collect();
        let is_ours = |slot: &Slot| of_shard.get(usize::from(self.owners[slot.index()])) == Some(&true);
        Slot::all().filter(is_ours).collect()
    }

    fn index_of(&self, id: NodeId) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn redirections_use_the_announced_client_address() {
        let client_endpoint =
            ClientEndpoint { ipv4: Some([10, 0, 0, 1].into()), ipv6: None, port: 7000, tls_port: 7443 };
        let at = |port, tls_port| Endpoint {
            ip: "192.168.0.1".to_owned(),
            port,
            tls_port,
            client_endpoint,
            ..Endpoint::default()
        };
        // Columns: (plaintext port, TLS port) of the node, (client uses TLS, client uses IPv6), expected address
        let table = [
            ((6379, 6443), (false, false), ("10.0.0.1", 7000)),
            ((6379, 6443), (true, false), ("10.0.0.1", 7443)),
            ((6379, 6443), (true, true), ("192.168.0.1", 7443)),
            // The announced TLS port is ignored if the node has no TLS port.
            ((6379, 0), (true, false), ("10.0.0.1", 7000)),
            ((0, 6443), (false, true), ("192.168.0.1", 7443)),
        ];
        for ((port, tls_port), (tls, ipv6), (ip, wanted)) in table {
            let (endpoint, via) = (at(port, tls_port), ClientTransport { tls, ipv6 });
            let given = (endpoint.client_ip(via), endpoint.client_port(via));
            assert_eq!(given, (ip.into(), wanted), "{port} {tls_port} {via:?}");
            assert_eq!(
                endpoint.node_port(tls),
                if tls && tls_port != 0 || port == 0 { tls_port } else { port }
            );
        }
    }

    pub(crate) fn member(byte: u8, role: Role) -> Member {
        let id = NodeId::from_random([byte; 20]);
        Member {
            id,
            shard: id,
            endpoint: Endpoint::default(),
            role,
            config_epoch: Epoch(1),
            offset: ReplOffset(0),
            has_failed: false,
            is_suspected: false,
        }
    }

    #[test]
    fn changes_since_reports_only_slots_with_other_ownership() {
        let slot = |number| Slot::new(number).unwrap();
        let (one, two) = (member(1, Role::Master), member(2, Role::Master));
        let of = |members: &[&Member], epoch| {
            let members = members.iter().map(|member| (*member).clone()).collect();
            let mut topology = Topology::new(one.id, Epoch(epoch), true, members);
            topology.assign_range(slot(0), slot(99), one.id);
            topology.assign_range(slot(100), slot(199), two.id);
            topology
        };
        let before = of(&[&one, &two], 3);
        assert_eq!(of(&[&one, &two], 4).ownership_changes_since(&before), []);
        let mut after = before.clone();
        after.assign([slot(7)], two.id);
        after.mark_importing(slot(150), two.id);
        assert_eq!(after.ownership_changes_since(&before), [slot(7), slot(150)]);
        assert_eq!((before.slots_of_my_shard().len(), after.slots_of_my_shard().len()), (100, 99));
        // All member indices change, but this node's relation to every slot remains unchanged.
        assert_eq!(of(&[&member(0, Role::Master), &one, &two], 4).ownership_changes_since(&before), []);
    }

    #[test]
    fn ownership_depends_on_owner_role_and_migrations() {
        let id = |byte| NodeId::from_random([byte; 20]);
        let slot = |number| Slot::new(number).unwrap();
        let members = vec![member(1, Role::Master), member(2, Role::Master), member(3, Role::Replica(id(2)))];
        let mut master = Topology::new(id(1), Epoch(3), true, members.clone());
        let mut replica = Topology::new(id(3), Epoch(3), true, members);
        for topology in [&mut master, &mut replica] {
            topology.assign([slot(0), slot(1)], id(1));
            topology.assign([slot(2), slot(3)], id(2));
        }
        master.mark_migrating(slot(1), id(2));
        master.mark_importing(slot(3), id(2));
        replica.mark_importing(slot(1), id(1));
        replica.mark_migrating(slot(3), id(1));
        let seen = |topology: &Topology| [0, 1, 2, 3, 4].map(|n| topology.ownership(slot(n)));
        use Ownership::{
            Importing, Local, MasterImporting, MasterMigrating, MasterOwned, Migrating, Remote, Unassigned,
        };
        assert_eq!(seen(&master), [Local, Migrating, Remote, Importing, Unassigned]);
        for topology in [&master, &replica] {
            let each: Vec<Ownership> = Slot::all().map(|slot| topology.ownership(slot)).collect();
            assert_eq!(topology.ownerships(), each);
        }
        assert_eq!(seen(&replica), [Remote, MasterImporting, MasterOwned, MasterMigrating, Unassigned]);
        assert_eq!(master.replicas_of(id(2)).map(|m| m.id).collect::<Vec<_>>(), [id(3)]);
    }
}
