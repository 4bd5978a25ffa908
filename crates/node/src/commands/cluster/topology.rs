//! CLUSTER SLOTS and CLUSTER SHARDS: the topology for clients.

use std::collections::{BTreeMap, BTreeSet};

use resp::Writer;
use slot_routing::{ClientTransport, EndpointType, Member, NodeId, ReplOffset, Role, Slot, Topology};

/// Replies to CLUSTER SLOTS: for each range of slots its ends, the owner and the owner's replicas.
pub(super) fn write_slots(
    preferred: EndpointType,
    transport: ClientTransport,
    topology: &Topology,
    reply: &mut Writer<'_>,
) {
    let ranges = owned_ranges(topology);
    reply.array(ranges.len());
    for (first, last, owner) in ranges {
        // Clients cannot use a replica that has failed or has no data yet.
        let useful = |node: &&Member| !node.has_failed && node.offset > ReplOffset(0);
        let replicas: Vec<&Member> = topology.replicas_of(owner.id).filter(useful).collect();
        reply.array(3 + replicas.len());
        reply.integer(i64::from(first.number()));
        reply.integer(i64::from(last.number()));
        for node in std::iter::once(owner).chain(replicas) {
            write_slot_node(preferred, transport, node, reply);
        }
    }
}

fn owned_ranges(topology: &Topology) -> Vec<(Slot, Slot, &Member)> {
    let mut ranges: Vec<(Slot, Slot, &Member)> = Vec::new();
    for slot in Slot::all() {
        let Some(owner) = topology.owner(slot) else { continue };
        match ranges.last_mut() {
            Some((_, last, whose)) if whose.id == owner.id && last.number() + 1 == slot.number() => {
                *last = slot;
            }
            _ => ranges.push((slot, slot, owner)),
        }
    }
    ranges
}

/// Writes the preferred endpoint, port and id of a node, and its other endpoints.
fn write_slot_node(
    preferred: EndpointType,
    transport: ClientTransport,
    node: &Member,
    reply: &mut Writer<'_>,
) {
    reply.array(4);
    match preferred {
        // A null endpoint tells clients to use the address to which they are connected.
        EndpointType::Unknown => reply.null(),
        kind => reply.bulk(node.endpoint.host(kind, transport).as_bytes()),
    }
    reply.integer(i64::from(node.endpoint.client_port(transport)));
    reply.bulk(node.id.as_bytes());
    let (hostname, zone) = (&node.endpoint.hostname, &node.endpoint.zone);
    let ip = preferred != EndpointType::Ip;
    let name = preferred != EndpointType::Hostname && !hostname.is_empty();
    reply.map(usize::from(ip) + usize::from(name) + usize::from(!zone.is_empty()));
    if ip {
        write_field(reply, b"ip", &node.endpoint.client_ip(transport));
    }
    if name {
        write_field(reply, b"hostname", hostname);
    }
    if !zone.is_empty() {
        write_field(reply, b"availability-zone", zone);
    }
}

fn write_field(reply: &mut Writer<'_>, name: &[u8], value: &str) {
    reply.bulk(name);
    reply.bulk(value.as_bytes());
}

/// Replies to CLUSTER SHARDS: each shard with its slots and all of its nodes, including a failed former master.
pub(super) fn write_shards(
    preferred: EndpointType,
    transport: ClientTransport,
    topology: &Topology,
    reply: &mut Writer<'_>,
) {
    let mut shards: BTreeMap<NodeId, Shard<'_>> = BTreeMap::new();
    for node in topology.members() {
        shards.entry(node.shard).or_default().nodes.push(node);
    }
    for (first, last, owner) in owned_ranges(topology) {
        let shard = shards.entry(owner.shard).or_default();
        shard.slot_bounds.extend([i64::from(first.number()), i64::from(last.number())]);
        shard.slot_owners.insert(owner.id);
    }
    reply.array(shards.len());
    for (id, Shard { mut nodes, slot_bounds: bounds, slot_owners: owners }) in shards {
        nodes.sort_by_key(|node| (node.role != Role::Master, !owners.contains(&node.id), node.id));
        reply.map(3);
        reply.bulk(b"slots");
        reply.array(bounds.len());
        bounds.into_iter().for_each(|bound| reply.integer(bound));
        reply.bulk(b"nodes");
        reply.array(nodes.len());
        for node in nodes {
            write_shard_node(preferred, transport, node, reply);
        }
        reply.bulk(b"id");
        reply.bulk(id.as_bytes());
    }
}

/// A shard for CLUSTER SHARDS: all its nodes, the ends of its slot ranges, and the nodes that own slots.
#[derive(Default)]
struct Shard<'a> {
    nodes: Vec<&'a Member>,
    slot_bounds: Vec<i64>,
    slot_owners: BTreeSet<NodeId>,
}

fn write_shard_node(
    preferred: EndpointType,
    transport: ClientTransport,
    node: &Member,
    reply: &mut Writer<'_>,
) {
    let at = &node.endpoint;
    let replica = node.role != Role::Master;
    let (port, tls_port) = at.client_ports();
    let further = [port != 0, tls_port != 0, !at.hostname.is_empty(), !at.zone.is_empty()];
    reply.map(6 + further.iter().filter(|has| **has).count());
    reply.bulk(b"id");
    reply.bulk(node.id.as_bytes());
    if port != 0 {
        reply.bulk(b"port");
        reply.integer(i64::from(port));
    }
    if tls_port != 0 {
        reply.bulk(b"tls-port");
        reply.integer(i64::from(tls_port));
    }
    write_field(reply, b"ip", &at.client_ip(transport));
    write_field(reply, b"endpoint", &at.host(preferred, transport));
    if !at.hostname.is_empty() {
        write_field(reply, b"hostname", &at.hostname);
    }
    reply.bulk(b"role");
    reply.bulk(if replica { b"replica" } else { b"master" });
    reply.bulk(b"replication-offset");
    reply.integer(i64::try_from(node.offset.0).unwrap_or(i64::MAX));
    reply.bulk(b"health");
    let health: &[u8] = match (node.has_failed, replica && node.offset == ReplOffset(0)) {
        (true, _) => b"fail",
        (false, true) => b"loading",
        (false, false) => b"online",
    };
    reply.bulk(health);
    if !at.zone.is_empty() {
        write_field(reply, b"availability-zone", &at.zone);
    }
}

#[cfg(test)]
mod tests {
    use resp::Protocol;
    use slot_routing::{Endpoint, Epoch};

    use super::*;

    fn test_member(id_byte: u8, shard: u8, role: Role, has_failed: bool) -> Member {
        let id = |byte| NodeId::from_random([byte; 20]);
        let endpoint =
            Endpoint { ip: "10.0.0.1".to_owned(), port: 7000 + u16::from(id_byte), ..Endpoint::default() };
        Member {
            id: id(id_byte),
            shard: id(shard),
            endpoint,
            role,
            config_epoch: Epoch(1),
            offset: ReplOffset(9),
            has_failed,
            is_suspected: false,
        }
    }

    /// Regression test: a failed and replaced master used to appear as a second shard with the same id.
    #[test]
    fn shard_is_listed_once_with_its_failed_master() {
        let id = |byte| NodeId::from_random([byte; 20]);
        let members = vec![
            test_member(1, 8, Role::Master, true),
            test_member(2, 8, Role::Master, false),
            test_member(3, 8, Role::Replica(id(2)), false),
            test_member(4, 9, Role::Master, false),
        ];
        let mut topology = Topology::new(id(4), Epoch(1), true, members);
        let slot = |number| Slot::new(number).unwrap();
        topology.assign_range(slot(0), slot(99), id(2));
        topology.assign_range(slot(200), slot(299), id(2));
        topology.assign_range(slot(100), slot(199), id(4));
        let mut out = Vec::new();
        let mut reply = Writer::new(&mut out, Protocol::Resp2);
        write_shards(EndpointType::Ip, ClientTransport::default(), &topology, &mut reply);
        let text = String::from_utf8(out).unwrap();
        let words: Vec<&str> = text.split("\r\n").filter(|word| !word.starts_with(['$', '*'])).collect();
        let told: Vec<&str> = words
            .iter()
            .copied()
            .filter(|word| {
                word.starts_with(":7") || ["master", "replica", "fail", "online", "slots"].contains(word)
            })
            .collect();
        let first = [":7002", "master", "online", ":7001", "master", "fail", ":7003", "replica", "online"];
        let expected: Vec<&str> =
            ["slots"].into_iter().chain(first).chain(["slots", ":7004", "master", "online"]).collect();
        assert_eq!(told, expected);
        assert_eq!(words.iter().filter(|word| **word == id(8).as_str()).count(), 1);
        let bounds = words.iter().filter(|word| [":0", ":99", ":200", ":299"].contains(word)).count();
        assert_eq!(bounds, 4);
    }
}
