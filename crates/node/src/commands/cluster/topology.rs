//! CLUSTER SLOTS and CLUSTER SHARDS: the topology as clients read it.

use resp::Writer;
use slot_routing::{EndpointKind, Member, NodeId, ReplOffset, Role, SLOT_COUNT, Slot, Topology};

/// CLUSTER SLOTS: for each run of slots with one owner its ends, the owner and the owner's replicas.
pub(super) fn slots(preferred: EndpointKind, tls: bool, topology: &Topology, reply: &mut Writer<'_>) {
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
            slot_node(preferred, tls, node, reply);
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
fn slot_node(preferred: EndpointKind, tls: bool, node: &Member, reply: &mut Writer<'_>) {
    reply.array(4);
    endpoint(preferred, node, reply);
    reply.integer(i64::from(node.endpoint.port_for(tls)));
    reply.bulk(node.id.as_bytes());
    let hostname = &node.endpoint.hostname;
    let ip = preferred != EndpointKind::Ip;
    let name = preferred != EndpointKind::Hostname && !hostname.is_empty();
    reply.map(usize::from(ip) + usize::from(name));
    if ip {
        reply.bulk(b"ip");
        reply.bulk(node.endpoint.ip.as_bytes());
    }
    if name {
        reply.bulk(b"hostname");
        reply.bulk(hostname.as_bytes());
    }
}

fn endpoint(preferred: EndpointKind, node: &Member, reply: &mut Writer<'_>) {
    match preferred {
        EndpointKind::Ip => reply.bulk(node.endpoint.ip.as_bytes()),
        EndpointKind::Hostname if node.endpoint.hostname.is_empty() => reply.bulk(b"?"),
        EndpointKind::Hostname => reply.bulk(node.endpoint.hostname.as_bytes()),
        // "Where you reached me."
        EndpointKind::Unknown => reply.null(),
    }
}

/// CLUSTER SHARDS: each master with its slots and its replicas.
pub(super) fn shards(preferred: EndpointKind, topology: &Topology, reply: &mut Writer<'_>) {
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
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(mine.len());
        mine.into_iter().for_each(|bound| reply.integer(bound));
        let nodes: Vec<&Member> = std::iter::once(head).chain(topology.replicas_of(head.id)).collect();
        reply.bulk(b"nodes");
        reply.array(nodes.len());
        for node in nodes {
            shard_node(preferred, node, reply);
        }
    }
}

fn shard_node(preferred: EndpointKind, node: &Member, reply: &mut Writer<'_>) {
    let at = &node.endpoint;
    let replica = node.role != Role::Master;
    let ports = usize::from(at.port != 0) + usize::from(at.tls_port != 0);
    let fields = 6 + ports + usize::from(!at.hostname.is_empty());
    reply.map(fields);
    reply.bulk(b"id");
    reply.bulk(node.id.as_bytes());
    if at.port != 0 {
        reply.bulk(b"port");
        reply.integer(i64::from(at.port));
    }
    if at.tls_port != 0 {
        reply.bulk(b"tls-port");
        reply.integer(i64::from(at.tls_port));
    }
    reply.bulk(b"ip");
    reply.bulk(at.ip.as_bytes());
    reply.bulk(b"endpoint");
    endpoint(preferred, node, reply);
    if !at.hostname.is_empty() {
        reply.bulk(b"hostname");
        reply.bulk(at.hostname.as_bytes());
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
}
