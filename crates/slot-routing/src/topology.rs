//! The cluster as the rest of a node sees it: one immutable value, published whole.
//!
//! Gossip fills it today. Nothing here says how it was agreed on, so another source may take the
//! same door.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::ids::{Epoch, NodeId, ReplOffset};
use crate::route::Ownership;
use crate::slot::{SLOT_COUNT, Slot};
use crate::slot_set::SlotSet;

/// Where a node is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// An IP address as text; empty if it is not known yet.
    pub ip: String,
    /// The name that the node announces, or empty.
    pub hostname: String,
    /// Port for clients.
    pub port: u16,
    /// Port for clients that speak TLS, or 0.
    pub tls_port: u16,
    /// Port of the cluster bus.
    pub bus_port: u16,
    /// Where clients reach it, as far as that is elsewhere.
    pub for_clients: ForClients,
    /// `availability-zone`, or empty.
    pub zone: String,
}

/// The address that a node announces to clients alone (`cluster-announce-client-*`): behind a translation of addresses
/// they reach it elsewhere than other nodes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForClients {
    /// For clients that come over IPv4.
    pub ipv4: Option<Ipv4Addr>,
    /// For clients that come over IPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// Instead of the port for clients, or 0.
    pub port: u16,
    /// Instead of the port for clients that speak TLS, or 0.
    pub tls_port: u16,
}

/// How a client has reached this node: so it will reach the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Via {
    /// It speaks TLS.
    pub tls: bool,
    /// It came over IPv6.
    pub ipv6: bool,
}

/// How redirections and CLUSTER SLOTS name a node (`cluster-preferred-endpoint-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum EndpointKind {
    /// Its address.
    #[default]
    Ip,
    /// The name that it announces.
    Hostname,
    /// Nothing: it is where the client has reached this node, at another port.
    Unknown,
}

impl Endpoint {
    /// The host that MOVED and ASK name; `?` where a name is preferred and there is none.
    #[must_use]
    pub fn host(&self, kind: EndpointKind, via: Via) -> Cow<'_, str> {
        match kind {
            EndpointKind::Ip => self.ip_for(via),
            EndpointKind::Hostname if self.hostname.is_empty() => "?".into(),
            EndpointKind::Hostname => self.hostname.as_str().into(),
            EndpointKind::Unknown => "".into(),
        }
    }

    /// The IP address for a client that came like this one.
    #[must_use]
    pub fn ip_for(&self, via: Via) -> Cow<'_, str> {
        let ForClients { ipv4, ipv6, .. } = self.for_clients;
        let own = if via.ipv6 { ipv6.map(|ip| ip.to_string()) } else { ipv4.map(|ip| ip.to_string()) };
        own.map_or(self.ip.as_str().into(), Cow::Owned)
    }

    /// The port for other nodes, which speak TLS or do not. A node may have only one of them.
    #[must_use]
    pub fn port_for(&self, tls: bool) -> u16 {
        one_of((self.port, self.tls_port), tls)
    }

    /// The port for a client that came like this one.
    #[must_use]
    pub fn client_port(&self, via: Via) -> u16 {
        one_of(self.client_ports(), via.tls)
    }

    /// The ports for clients, that for TLS second; 0 where there is none.
    #[must_use]
    pub fn client_ports(&self) -> (u16, u16) {
        let ForClients { port, tls_port, .. } = self.for_clients;
        let instead = |announced, port| if announced == 0 || port == 0 { port } else { announced };
        (instead(port, self.port), instead(tls_port, self.tls_port))
    }
}

fn one_of(ports: (u16, u16), tls: bool) -> u16 {
    match (tls, ports) {
        (true, (port, 0)) | (false, (port @ 1.., _)) => port,
        (_, (_, port)) => port,
    }
}

/// The role of a node in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves its shard's slots, if it has any.
    Master,
    /// A copy of this master.
    Replica(NodeId),
}

/// One node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub id: NodeId,
    /// The shard's id: the same for a master and its replicas.
    pub shard: NodeId,
    /// Where to reach it.
    pub endpoint: Endpoint,
    /// Its role in its shard.
    pub role: Role,
    /// The epoch of its claim to its slots; a replica has its master's.
    pub config_epoch: Epoch,
    /// The offset that it has produced (master) or processed (replica).
    pub offset: ReplOffset,
    /// Agreed to be down (FAIL).
    pub failed: bool,
    /// Suspected by this node alone (PFAIL).
    pub suspected: bool,
}

impl Member {
    /// Whether its address is known.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        !self.endpoint.ip.is_empty() && self.endpoint.client_ports() != (0, 0)
    }
}

/// The owner of each slot, its epoch and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// This node.
    pub myself: NodeId,
    /// The newest epoch heard of.
    pub current_epoch: Epoch,
    /// Whether this node may serve: enough slots covered, and a majority of masters in sight.
    pub serving: bool,
    members: Vec<Member>,
    /// The places of this node and of its master, if it has one, in `members`.
    my_place: u16,
    my_masters_place: Option<u16>,
    /// For each slot, the place of its owner in `members`, or [`NOBODY`].
    owners: Box<[u16]>,
    migrating: BTreeMap<Slot, NodeId>,
    importing: BTreeMap<Slot, NodeId>,
}

const NOBODY: u16 = u16::MAX;

impl Topology {
    /// A topology of these members, which own nothing yet. `myself` must be one of them.
    #[must_use]
    pub fn new(myself: NodeId, current_epoch: Epoch, serving: bool, mut members: Vec<Member>) -> Self {
        members.sort_by_key(|member| member.id);
        assert!(members.len() < usize::from(NOBODY), "more members than a cluster can name");
        let place = |id| members.iter().position(|member| member.id == id).map(|place| place as u16);
        let my_place = place(myself).expect("a node belongs to its own topology");
        let my_masters_place = match members[usize::from(my_place)].role {
            Role::Replica(master) => place(master),
            Role::Master => None,
        };
        Self {
            my_place,
            my_masters_place,
            myself,
            current_epoch,
            serving,
            members,
            owners: vec![NOBODY; SLOT_COUNT].into_boxed_slice(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
        }
    }

    /// Gives `slots` to `owner`, which must be a member.
    pub fn assign(&mut self, slots: impl IntoIterator<Item = Slot>, owner: NodeId) {
        let place = self.place(owner).expect("only a member can own a slot") as u16;
        for slot in slots {
            self.owners[slot.index()] = place;
        }
    }

    /// Gives the slots from `first` to `last` to `owner`, which must be a member.
    pub fn assign_run(&mut self, first: Slot, last: Slot, owner: NodeId) {
        let place = self.place(owner).expect("only a member can own a slot") as u16;
        self.owners[first.index()..=last.index()].fill(place);
    }

    /// Marks a slot of ours, or of our master's, as on its way to `target`.
    pub fn mark_migrating(&mut self, slot: Slot, target: NodeId) {
        self.migrating.insert(slot, target);
    }

    /// Marks a slot as on its way here, or to our master, from `source`.
    pub fn mark_importing(&mut self, slot: Slot, source: NodeId) {
        self.importing.insert(slot, source);
    }

    /// Every node, in the order of the ids.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The node with this id.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.place(id).map(|place| &self.members[place])
    }

    /// This node itself.
    #[must_use]
    pub fn me(&self) -> &Member {
        &self.members[usize::from(self.my_place)]
    }

    /// The member that serves `slot`.
    #[must_use]
    pub fn owner(&self, slot: Slot) -> Option<&Member> {
        self.members.get(usize::from(self.owners[slot.index()]))
    }

    /// The slots that leave this node, or its master, and where to.
    #[must_use]
    pub fn migrating(&self) -> &BTreeMap<Slot, NodeId> {
        &self.migrating
    }

    /// The slots that come to this node, or to its master, and from where.
    #[must_use]
    pub fn importing(&self) -> &BTreeMap<Slot, NodeId> {
        &self.importing
    }

    /// The replicas of `master`, in the order of the ids.
    pub fn replicas_of(&self, master: NodeId) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.role == Role::Replica(master))
    }

    /// The relation of this node to `slot`.
    #[must_use]
    pub fn ownership(&self, slot: Slot) -> Ownership {
        let (leaves, comes) = (self.migrating.contains_key(&slot), self.importing.contains_key(&slot));
        let replica = matches!(self.me().role, Role::Replica(_));
        match self.stable_ownership(self.owners[slot.index()]) {
            Ownership::Mine if leaves => Ownership::Migrating,
            Ownership::MyMasters if leaves => Ownership::MyMastersMigrating,
            Ownership::Elsewhere | Ownership::Unassigned if comes && replica => Ownership::MyMastersImporting,
            Ownership::Elsewhere | Ownership::Unassigned if comes => Ownership::Importing,
            settled => settled,
        }
    }

    /// The relation of this node to the slots of an owner, if they are not on the move.
    fn stable_ownership(&self, owner: u16) -> Ownership {
        match owner {
            NOBODY => Ownership::Unassigned,
            owner if owner == self.my_place => Ownership::Mine,
            owner if Some(owner) == self.my_masters_place => Ownership::MyMasters,
            _ => Ownership::Elsewhere,
        }
    }

    /// [`Topology::ownership`] of every slot, in their order.
    #[must_use]
    pub fn ownerships(&self) -> Vec<Ownership> {
        // Few slots are on the move; of the others the owner's place says it.
        let mut all: Vec<Ownership> = self.owners.iter().map(|owner| self.stable_ownership(*owner)).collect();
        for slot in self.migrating.keys().chain(self.importing.keys()) {
            all[slot.index()] = self.ownership(*slot);
        }
        all
    }

    /// The slots to which this node's relation is another here than in `before`.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<Slot> {
        let places = |topology: &Self| (topology.my_place, topology.my_masters_place, topology.me().role);
        // Nearly always: most of what is published is about the nodes.
        if places(self) == places(before)
            && self.owners == before.owners
            && (&self.migrating, &self.importing) == (&before.migrating, &before.importing)
        {
            return Vec::new();
        }
        let (were, are) = (before.ownerships(), self.ownerships());
        Slot::all().filter(|slot| were[slot.index()] != are[slot.index()]).collect()
    }

    /// The slots that this node's shard serves.
    #[must_use]
    pub fn slots_of_my_shard(&self) -> SlotSet {
        let shard = self.me().shard;
        let of_shard: Vec<bool> = self.members.iter().map(|member| member.shard == shard).collect();
        let is_ours = |slot: &Slot| of_shard.get(usize::from(self.owners[slot.index()])) == Some(&true);
        Slot::all().filter(is_ours).collect()
    }

    fn place(&self, id: NodeId) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn clients_are_sent_where_they_reach_a_node() {
        let for_clients =
            ForClients { ipv4: Some([10, 0, 0, 1].into()), ipv6: None, port: 7000, tls_port: 7443 };
        let at = |port, tls_port| Endpoint {
            ip: "192.168.0.1".to_owned(),
            port,
            tls_port,
            for_clients,
            ..Endpoint::default()
        };
        // Both of the node's ports, whether the client speaks TLS and comes over IPv6, where it is sent.
        let table = [
            ((6379, 6443), (false, false), ("10.0.0.1", 7000)),
            ((6379, 6443), (true, false), ("10.0.0.1", 7443)),
            ((6379, 6443), (true, true), ("192.168.0.1", 7443)),
            // No port for TLS is announced by a node that has none.
            ((6379, 0), (true, false), ("10.0.0.1", 7000)),
            ((0, 6443), (false, true), ("192.168.0.1", 7443)),
        ];
        for ((port, tls_port), (tls, ipv6), (ip, wanted)) in table {
            let (endpoint, via) = (at(port, tls_port), Via { tls, ipv6 });
            let told = (endpoint.ip_for(via), endpoint.client_port(via));
            assert_eq!(told, (ip.into(), wanted), "{port} {tls_port} {via:?}");
            assert_eq!(
                endpoint.port_for(tls),
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
            failed: false,
            suspected: false,
        }
    }

    #[test]
    fn what_is_published_changes_few_slots() {
        let slot = |number| Slot::new(number).unwrap();
        let (one, two) = (member(1, Role::Master), member(2, Role::Master));
        let of = |members: &[&Member], epoch| {
            let members = members.iter().map(|member| (*member).clone()).collect();
            let mut topology = Topology::new(one.id, Epoch(epoch), true, members);
            topology.assign_run(slot(0), slot(99), one.id);
            topology.assign_run(slot(100), slot(199), two.id);
            topology
        };
        let before = of(&[&one, &two], 3);
        assert_eq!(of(&[&one, &two], 4).changes_since(&before), []);
        let mut after = before.clone();
        after.assign([slot(7)], two.id);
        after.mark_importing(slot(150), two.id);
        assert_eq!(after.changes_since(&before), [slot(7), slot(150)]);
        assert_eq!((before.slots_of_my_shard().len(), after.slots_of_my_shard().len()), (100, 99));
        // The places of all members are others, and this node's relation to no slot is.
        assert_eq!(of(&[&member(0, Role::Master), &one, &two], 4).changes_since(&before), []);
    }

    #[test]
    fn ownership_follows_owner_role_and_moves() {
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
            Elsewhere, Importing, Migrating, Mine, MyMasters, MyMastersImporting, MyMastersMigrating,
            Unassigned,
        };
        assert_eq!(seen(&master), [Mine, Migrating, Elsewhere, Importing, Unassigned]);
        for topology in [&master, &replica] {
            let each: Vec<Ownership> = Slot::all().map(|slot| topology.ownership(slot)).collect();
            assert_eq!(topology.ownerships(), each);
        }
        assert_eq!(
            seen(&replica),
            [Elsewhere, MyMastersImporting, MyMasters, MyMastersMigrating, Unassigned]
        );
        assert_eq!(master.replicas_of(id(2)).map(|m| m.id).collect::<Vec<_>>(), [id(3)]);
    }
}
