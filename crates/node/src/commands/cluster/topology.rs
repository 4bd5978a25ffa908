//! CLUSTER SLOTS and CLUSTER SHARDS: the topology as clients read it.

use resp::Writer;
use slot_routing::{EndpointKind, Member, NodeId, ReplOffset, Role, SLOT_COUNT, Slot, Topology, Via};

/// CLUSTER SLOTS: for each run of slots with one owner its ends, the owner and the owner's replicas.
pub(super) fn slots(preferred: EndpointKind, via: Via, topology: &Topology, reply: &mut Writer<'_>) {
    let ranges = owned_ranges(topology);
    reply.array(ranges.len());
    for (first, last, owner) in ranges {
        // A replica that failed, or that has nothing yet, is of no use to a client.
        let useful = |node: &&Member| !node.failed && node.offset > ReplOffset(0);
        let replicas: Vec<&Member> = topology.replicas_of(owner.id).filter(useful).collect();
        reply.array(3 + replicas.len());
        reply.integer(i64::from(first.number()));
        reply.integer(i64::from(last.number()));
        for node in std::iter::once(owner).chain(replicas) {
            slot_node(preferred, via, node, reply);
        }
    }
}

/// Runs of neighbouring slots with the same owner.
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

/// Address, port, id, and what is known of its address besides the preferred form.
fn slot_node(preferred: EndpointKind, via: Via, node: &Member, reply: &mut Writer<'_>) {
    reply.array(4);
    match preferred {
        // "Where you reached me."
        EndpointKind::Unknown => reply.null(),
        kind => reply.bulk(node.endpoint.host(kind, via).as_bytes()),
    }
    reply.integer(i64::from(node.endpoint.client_port(via)));
    reply.bulk(node.id.as_bytes());
    let (hostname, zone) = (&node.endpoint.hostname, &node.endpoint.zone);
    let ip = preferred != EndpointKind::Ip;
    let name = preferred != EndpointKind::Hostname && !hostname.is_empty();
    reply.map(usize::from(ip) + usize::from(name) + usize::from(!zone.is_empty()));
    if ip {
        field(reply, b"ip", &node.endpoint.ip_for(via));
    }
    if name {
        field(reply, b"hostname", hostname);
    }
    if !zone.is_empty() {
        field(reply, b"availability-zone", zone);
    }
}

fn field(reply: &mut Writer<'_>, name: &[u8], value: &str) {
    reply.bulk(name);
    reply.bulk(value.as_bytes());
}

/// CLUSTER SHARDS: each master with its slots and its replicas.
pub(super) fn shards(preferred: EndpointKind, via: Via, topology: &Topology, reply: &mut Writer<'_>) {
    let heads: Vec<&Member> = topology.members().iter().filter(|node| node.role == Role::Master).collect();
    let mut bounds: Vec<(NodeId, i64)> = Vec::new();
    for (first, last, owner) in owned_ranges(topology) {
        bounds.extend([(owner.id, i64::from(first.number())), (owner.id, i64::from(last.number()))]);
    }
    debug_assert!(bounds.len() <= 2 * SLOT_COUNT);
    reply.array(heads.len());
    for head in heads {
        let mine: Vec<i64> =
            bounds.iter().filter(|(id, _)| *id == head.id).map(|(_, bound)| *bound).collect();
        reply.map(3);
        reply.bulk(b"slots");
        reply.array(mine.len());
        mine.into_iter().for_each(|bound| reply.integer(bound));
        let nodes: Vec<&Member> = std::iter::once(head).chain(topology.replicas_of(head.id)).collect();
        reply.bulk(b"nodes");
        reply.array(nodes.len());
        for node in nodes {
            shard_node(preferred, via, node, reply);
        }
        reply.bulk(b"id");
        reply.bulk(head.shard.as_bytes());
    }
}

fn shard_node(preferred: EndpointKind, via: Via, node: &Member, reply: &mut Writer<'_>) {
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
    field(reply, b"ip", &at.ip_for(via));
    field(reply, b"endpoint", &at.host(preferred, via));
    if !at.hostname.is_empty() {
        field(reply, b"hostname", &at.hostname);
    }
    reply.bulk(b"role");
    reply.bulk(if replica { b"replica" } else { b"master" });
    reply.bulk(b"replication-offset");
    reply.integer(i64::try_from(node.offset.0).unwrap_or(i64::MAX));
    reply.bulk(b"health");
    let health: &[u8] = match (node.failed, replica && node.offset == ReplOffset(0)) {
        (true, _) => b"fail",
        (false, true) => b"loading",
        (false, false) => b"online",
    };
    reply.bulk(health);
    if !at.zone.is_empty() {
        field(reply, b"availability-zone", &at.zone);
    }
}
