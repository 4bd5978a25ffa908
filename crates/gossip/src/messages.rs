//! Composes headers, gossip sections and extensions.

use std::time::Duration;

use clock::Instant;
use slot_routing::{ClientEndpoint, NodeId, SlotSet};

use crate::forget_list::ForgetList;
use crate::node::SupportedExtensions;
use crate::random::Randomness;
use crate::state::ClusterState;
use crate::votes::GivenVotes;
use crate::wire::{Extension, GossipEntry, GossipSection, Header, MessageFlags, NodeFlags};

/// Minimum number of random gossip entries per PING. As in Redis, the target is a tenth of the nodes but at least
/// three.
const MIN_RANDOM_ENTRIES: usize = 3;
/// Maximum number of random gossip entries. Redis has no maximum, because it relies on these entries to spread
/// suspicions, so its traffic per node grows with the square of the cluster size. Here every message contains all
/// suspicions in addition, and new suspicions are sent to all nodes at once.
const MAX_RANDOM_ENTRIES: usize = 10;
/// Maximum number of gossip entries; the header counts them in 16 bits.
const MAX_GOSSIP_ENTRIES: usize = 1000;
/// Maximum number of forgotten nodes announced in one message.
const MAX_FORGOTTEN_NODES: usize = 100;

/// The receiver of a gossip section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GossipReceiver {
    /// The id of the receiving node; `None` if it is not a known node.
    pub(crate) id: Option<NodeId>,
    /// Whether the receiver wants to know how this node sees it.
    pub(crate) wants_own_health: bool,
}

/// Composes a header with this node's claim on `slots`. A replica's header carries the claim of its master.
pub(crate) fn compose_header(state: &ClusterState, slots: SlotSet, are_writes_paused: bool) -> Header {
    let me = state.myself();
    let role = if me.is_master() { NodeFlags::MASTER } else { NodeFlags::REPLICA };
    Header {
        sender: me.id,
        flags: role
            | NodeFlags::MYSELF
            | NodeFlags::EXTENSIONS
            | NodeFlags::flag_if(me.disables_failover, NodeFlags::NO_FAILOVER),
        message_flags: if are_writes_paused { MessageFlags::WRITES_PAUSED } else { MessageFlags::default() },
        is_serving: state.is_serving(),
        ip: state.config().announced_address.ip,
        port: me.address.port,
        secondary_port: me.address.secondary_port,
        bus_port: me.address.bus_port,
        current_epoch: state.current_epoch(),
        config_epoch: state.claimed_epoch(me),
        offset: state.offset(),
        slots,
        replica_of: me.master(),
    }
}

/// Picks random nodes and adds all suspected ones, because suspicions must spread at once. The receiver itself is
/// included if this node considers it failing or has voted for its replacement, so that the receiver learns about it,
/// and also if the receiver asks how this node sees it. The indexes of the nodes must be up to date.
pub(crate) fn compose_gossip_section(
    state: &ClusterState,
    votes: &GivenVotes,
    forget_list: &ForgetList,
    destination: GossipReceiver,
    random: &mut Randomness,
) -> GossipSection {
    let nodes = &state.nodes;
    let receiver = destination.id.and_then(|id| nodes.gossip_index(id));
    let is_suspect = |id: &NodeId| nodes.suspects().any(|suspect| suspect == *id);
    let is_doubted = |id: NodeId| state.node(id).is_some_and(|node| votes.considers_replaceable(state, node));
    let named = destination.id.filter(|id| receiver.is_some() || is_suspect(id));
    let named = named.filter(|id| destination.wants_own_health || is_doubted(*id));
    let by_chance = pick_gossip_candidates(state, receiver, random);
    let told = by_chance.iter().map(|place| nodes.gossip_candidates()[*place]);
    let suspects = nodes.suspects().filter(|id| Some(*id) != destination.id);
    let ids = told.chain(named).chain(suspects).take(MAX_GOSSIP_ENTRIES);
    let entries = ids
        .map(|id| {
            let entry = compose_gossip_entry(state, id);
            let doubted = Some(id) == destination.id && is_doubted(id);
            GossipEntry { flags: entry.flags | NodeFlags::flag_if(doubted, NodeFlags::PFAIL), ..entry }
        })
        .collect();
    let reads = destination
        .id
        .and_then(|id| state.node(id))
        .map_or(SupportedExtensions::None, |node| node.extensions);
    GossipSection { entries, extensions: compose_extensions(state, forget_list, reads) }
}

/// Picks random positions in the list of gossip candidates; all combinations are equally likely. Uses Floyd's
/// algorithm: for each of the last n positions, draw a position up to it, or use the position itself if the drawn one
/// is already in the set.
fn pick_gossip_candidates(
    state: &ClusterState,
    excluded_index: Option<usize>,
    random: &mut Randomness,
) -> Vec<usize> {
    let there = state.nodes.gossip_candidates().len() - usize::from(excluded_index.is_some());
    let wanted = (state.nodes.len() / 10).clamp(MIN_RANDOM_ENTRIES, MAX_RANDOM_ENTRIES).min(there);
    let mut places = Vec::with_capacity(wanted);
    for last in there - wanted..there {
        let drawn = random.random_below(last as u64 + 1) as usize;
        places.push(if places.contains(&drawn) { last } else { drawn });
    }
    // Skip the receiver's position, which was excluded from the draw.
    places
        .into_iter()
        .map(|place| place + usize::from(excluded_index.is_some_and(|out| place >= out)))
        .collect()
}

fn compose_gossip_entry(state: &ClusterState, id: NodeId) -> GossipEntry {
    let node = &state.nodes[&id];
    let secs = |time: Option<Instant>| {
        time.map_or(0, |time| u32::try_from(state.wall_time_at(time).secs()).unwrap_or(0))
    };
    GossipEntry {
        id,
        ping_sent: secs(node.contact_times.ping_sent_at),
        pong_received: secs(node.contact_times.pong_received_at),
        ip: node.address.ip,
        port: node.address.port,
        bus_port: node.address.bus_port,
        flags: node.flags(),
        secondary_port: node.address.secondary_port,
    }
}

fn compose_extensions(
    state: &ClusterState,
    forget_list: &ForgetList,
    supported_extensions: SupportedExtensions,
) -> Vec<Extension> {
    let me = state.myself();
    let mut extensions = Vec::new();
    if supported_extensions >= SupportedExtensions::Hostname && !me.hostname.is_empty() {
        extensions.push(Extension::Hostname(me.hostname.clone()));
    }
    if supported_extensions < SupportedExtensions::All {
        return extensions;
    }
    if !me.human_name.is_empty() {
        extensions.push(Extension::HumanName(me.human_name.clone()));
    }
    let ClientEndpoint { ipv4, ipv6, port, tls_port } = me.client_endpoint;
    extensions.extend(ipv4.map(Extension::ClientIpv4));
    extensions.extend(ipv6.map(Extension::ClientIpv6));
    extensions.extend((port != 0).then_some(Extension::ClientPort(port)));
    extensions.extend((tls_port != 0).then_some(Extension::ClientTlsPort(tls_port)));
    extensions.extend((!me.zone.is_empty()).then(|| Extension::Zone(me.zone.clone())));
    extensions.push(Extension::Shard(me.shard));
    // Round down, because receivers forward the remaining time; rounding up would keep the node forgotten forever.
    let seconds = |left: Duration| Duration::from_secs(left.as_secs());
    let entries = forget_list.entries(state.now()).map(|(id, left)| (id, seconds(left)));
    for (id, ttl) in entries.filter(|(_, ttl)| !ttl.is_zero()).take(MAX_FORGOTTEN_NODES) {
        extensions.push(Extension::Forgotten { id, ttl });
    }
    extensions
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::NodeHealth;
    use crate::test_state::{TestCluster, id};

    fn compose_section(
        cluster: &mut TestCluster,
        forget_list: &ForgetList,
        to: u8,
        wants_own_health: bool,
    ) -> GossipSection {
        cluster.state.update_indexes();
        let mut random = Randomness::new(ChaCha8Rng::seed_from_u64(1));
        let to = GossipReceiver { id: Some(id(to)), wants_own_health };
        compose_gossip_section(&cluster.state, &GivenVotes::default(), forget_list, to, &mut random)
    }

    #[test]
    fn replica_announces_the_claim_and_epoch_of_its_master() {
        let mut cluster = TestCluster::new(3, &[]);
        cluster.become_replica_of(2);
        let slots = cluster.state.slots.slots_of(id(2));
        let header = compose_header(&cluster.state, slots, false);
        assert_eq!((header.replica_of, header.config_epoch.0), (Some(id(2)), 3));
        assert!(
            compose_header(&cluster.state, SlotSet::new(), true)
                .message_flags
                .contains(MessageFlags::WRITES_PAUSED)
        );
    }

    #[test]
    fn gossip_contains_all_suspects_and_the_receiver_only_if_needed() {
        let mut cluster = TestCluster::new(9, &[]);
        let since = cluster.state.now();
        let cause = crate::SuspicionCause::Silence;
        for index in [6, 7, 8] {
            cluster.node(index).health = NodeHealth::Suspected { since, cause };
        }
        let forgotten = ForgetList::default();
        let names = |section: GossipSection| -> Vec<NodeId> {
            section.entries.into_iter().map(|entry| entry.id).collect()
        };
        let all = names(compose_section(&mut cluster, &forgotten, 1, false));
        assert!([6, 7, 8].iter().all(|index| all.contains(&id(*index))) && !all.contains(&id(1)));
        assert!(names(compose_section(&mut cluster, &forgotten, 1, true)).contains(&id(1)));
        assert!(names(compose_section(&mut cluster, &forgotten, 6, false)).contains(&id(6)));
    }

    #[test]
    fn extensions_are_sent_only_to_nodes_that_understand_them() {
        let mut cluster = TestCluster::new(3, &[]);
        cluster.node(0).hostname = "one.example.org".to_owned();
        let mut forgotten = ForgetList::default();
        forgotten.add(id(9), Duration::from_millis(2500), cluster.state.now());
        let mut kinds = Vec::new();
        for reads in [SupportedExtensions::None, SupportedExtensions::Hostname, SupportedExtensions::All] {
            cluster.node(1).extensions = reads;
            kinds.push(compose_section(&mut cluster, &forgotten, 1, false).extensions);
        }
        assert_eq!((kinds[0].len(), kinds[1].len()), (0, 1));
        let last = Extension::Forgotten { id: id(9), ttl: Duration::from_secs(2) };
        assert_eq!(kinds[2].last(), Some(&last), "rounded down");
    }
}
