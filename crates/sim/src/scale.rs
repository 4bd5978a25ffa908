//! Measures large clusters in which some masters die: bus traffic per node, and the time until all nodes know the new
//! owners of the slots.
//!
//! The nodes start with full knowledge of each other (`nodes.conf`). Half of them are masters with one replica each.
//! Every packet is encoded to bytes. Disks need no time and there are no writes, so the measured times are those of the
//! bus, with a latency of one millisecond and no processing time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clock::{Instant, Millis};
use gossip::{
    AnnouncedAddress, ClusterAction, ClusterConfig, ClusterInput, Gossip, LinkId, ReplicationSource,
    ReplicationStatus, wire,
};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use slot_routing::{NodeId, ReplOffset, SLOT_COUNT, Slot};

const NETWORK_LATENCY: Duration = Duration::from_millis(1);
const FIRST_PORT: usize = 2000;
const BUS_PORT_OFFSET: usize = 30_000;
/// How long the nodes establish links and exchange gossip before the measurement.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// Time limit for a run; a longer run counts as failed.
const MAX_RUN_TIME: Duration = Duration::from_secs(60);

/// The results of a run with a large cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterMeasurements {
    /// Bytes that each node sends per second in a settled cluster.
    pub bytes_per_second: u64,
    /// Messages that each node sends per second in a settled cluster.
    pub messages_per_second: u64,
    /// The time from the deaths until other nodes serve all slots of the dead masters.
    pub replacement_time: Duration,
    /// The time from the deaths until every running node knows the new owners of the slots.
    pub agreement_time: Duration,
}

/// Runs a cluster of `nodes` nodes. After a settling time, `killed_masters` masters die at once.
///
/// # Errors
/// The replicas did not take over within a minute; the error says what was missing.
pub fn scale(
    nodes: usize,
    killed_masters: usize,
    node_timeout: Duration,
    seed: u64,
) -> Result<ClusterMeasurements, String> {
    let mut world = ScaleWorld::new(nodes, node_timeout, seed);
    world.run(SETTLE_TIME);
    world.sent_bytes_and_messages = (0, 0);
    // Even in clusters of more than a hundred nodes, each node pings every other one within this time.
    let measured = node_timeout / 2;
    world.run(measured);
    let per_second =
        |sum: u64| sum * 1000 / nodes as u64 / u64::try_from(measured.as_millis()).unwrap_or(1).max(1);
    let (bytes, messages) =
        (per_second(world.sent_bytes_and_messages.0), per_second(world.sent_bytes_and_messages.1));
    let died = world.now;
    (0..killed_masters).for_each(|master| world.kill(master));
    let mut replaced = None;
    while world.now.since(died) < MAX_RUN_TIME {
        world.run(Duration::from_millis(5));
        if replaced.is_none() && (0..killed_masters).all(|master| world.is_replaced(master)) {
            replaced = Some(world.now.since(died));
        }
        if let Some(replaced) = replaced
            && world.all_nodes_know_new_owners(killed_masters)
        {
            return Ok(ClusterMeasurements {
                bytes_per_second: bytes,
                messages_per_second: messages,
                replacement_time: replaced,
                agreement_time: world.now.since(died),
            });
        }
    }
    Err(format!("of {killed_masters} masters not all were replaced: {replaced:?}"))
}

struct ScaleHost {
    gossip: Gossip,
    is_dead: bool,
    is_replica: bool,
    /// For each link id of this host, the peer's host and the peer's link id.
    links: BTreeMap<LinkId, (usize, LinkId)>,
    last_link_id: u64,
    /// The time of the scheduled deadline of this host, if one is scheduled.
    deadline: Option<Instant>,
}

struct ScaleWorld {
    now: Instant,
    hosts: Vec<ScaleHost>,
    queue: BinaryHeap<ScheduledInput>,
    /// The number of events scheduled so far, which orders simultaneous events.
    event_count: u64,
    /// The numbers of bytes and of messages sent since the last measurement.
    sent_bytes_and_messages: (u64, u64),
}

/// An input or deadline of a host that is scheduled for a certain time. A deadline that has been rescheduled is
/// skipped.
struct ScheduledInput {
    at: Instant,
    sequence: u64,
    host: usize,
    input: Option<ClusterInput>,
}

impl ScheduledInput {
    /// Reverses the order, so that the max-heap returns the earliest event first.
    fn priority(&self) -> Reverse<(Instant, u64)> {
        Reverse((self.at, self.sequence))
    }
}

impl PartialEq for ScheduledInput {
    fn eq(&self, other: &Self) -> bool {
        self.priority() == other.priority()
    }
}

impl Eq for ScheduledInput {}

impl PartialOrd for ScheduledInput {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledInput {
    fn cmp(&self, other: &Self) -> Ordering {
        self.priority().cmp(&other.priority())
    }
}

fn id_of(index: usize) -> NodeId {
    let mut bytes = [7; 20];
    bytes[..8].copy_from_slice(&(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    NodeId::from_random(bytes)
}

/// Returns the first slot of a master and the slot after its last one.
fn slot_bounds_of_master(master: usize, masters: usize) -> (usize, usize) {
    (SLOT_COUNT * master / masters, SLOT_COUNT * (master + 1) / masters)
}

fn nodes_conf(my_index: usize, nodes: usize) -> String {
    let masters = nodes / 2;
    let mut text = String::new();
    for index in 0..nodes {
        let (port, mine) = (FIRST_PORT + index, if index == my_index { "myself," } else { "" });
        let _ = write!(text, "{} 127.0.0.1:{port}@{} {mine}", id_of(index), port + BUS_PORT_OFFSET);
        let _ = if index < masters {
            let (first, end) = slot_bounds_of_master(index, masters);
            writeln!(text, "master - 0 0 {} connected {first}-{}", index + 1, end - 1)
        } else {
            let master = (index - masters) % masters;
            writeln!(text, "slave {} 0 0 {} connected", id_of(master), master + 1)
        };
    }
    let _ = writeln!(text, "vars currentEpoch {masters} lastVoteEpoch 0");
    text
}

impl ScaleWorld {
    fn new(nodes: usize, node_timeout: Duration, seed: u64) -> Self {
        let hosts = (0..nodes).map(|index| ScaleHost::new(index, nodes, node_timeout, seed)).collect();
        let mut world = Self {
            now: Instant::ORIGIN,
            hosts,
            queue: BinaryHeap::new(),
            event_count: 0,
            sent_bytes_and_messages: (0, 0),
        };
        (0..nodes).for_each(|index| world.handle_input(index, ClusterInput::NodeStarted));
        world
    }

    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.queue.peek().is_some_and(|next| next.at <= end) {
            let Some(ScheduledInput { at, host, input, .. }) = self.queue.pop() else { break };
            self.now = self.now.max(at);
            let ScaleHost { is_dead, deadline, .. } = self.hosts[host];
            match input {
                _ if is_dead => {}
                Some(input) => self.handle_input(host, input),
                None if deadline == Some(at) => self.handle_input(host, ClusterInput::Deadline),
                None => {}
            }
        }
        self.now = end;
    }

    fn handle_input(&mut self, index: usize, input: ClusterInput) {
        let now = self.now;
        let wall = Millis(1_790_000_000_000 + i64::try_from(now.as_millis()).unwrap_or(0));
        let host = &mut self.hosts[index];
        let mut out = Vec::new();
        if input == ClusterInput::Deadline {
            // The replica reports its offset so often that its data always counts as recent.
            let source = if host.is_replica {
                ReplicationSource::Streaming { last_heard_at: now }
            } else {
                ReplicationSource::NeverSynchronized
            };
            let facts = ClusterInput::ReplicationChanged(ReplicationStatus { offset: ReplOffset(0), source });
            host.gossip.handle(now, wall, facts, &mut out);
        }
        host.gossip.handle(now, wall, input, &mut out);
        for action in out {
            self.perform_action(index, action);
        }
        let host = &mut self.hosts[index];
        let next = host.gossip.next_deadline();
        if next != host.deadline {
            host.deadline = next.map(|at| at.max(now));
            if let Some(at) = host.deadline {
                self.schedule(at, index, None);
            }
        }
    }

    fn schedule(&mut self, at: Instant, host: usize, input: Option<ClusterInput>) {
        self.event_count += 1;
        self.queue.push(ScheduledInput { at, sequence: self.event_count, host, input });
    }

    fn schedule_input(&mut self, index: usize, input: ClusterInput) {
        self.schedule(self.now + NETWORK_LATENCY, index, Some(input));
    }

    fn perform_action(&mut self, index: usize, action: ClusterAction) {
        match action {
            ClusterAction::Connect { link, port, .. } => {
                self.connect(index, link, usize::from(port) - BUS_PORT_OFFSET - FIRST_PORT);
            }
            ClusterAction::Close { link } => {
                if let Some((peer, theirs)) = self.hosts[index].links.remove(&link) {
                    self.hosts[peer].links.remove(&theirs);
                    self.schedule_input(peer, ClusterInput::Closed { link: theirs });
                }
            }
            ClusterAction::Send { link, packet, .. } => {
                if let Some(&(peer, theirs)) = self.hosts[index].links.get(&link) {
                    let bytes = packet.encode();
                    self.sent_bytes_and_messages.0 += bytes.len() as u64;
                    self.sent_bytes_and_messages.1 += 1;
                    let packet = Box::new(wire::decode(&bytes).expect("what encodes, decodes"));
                    self.schedule_input(peer, ClusterInput::Packet { link: theirs, packet });
                }
            }
            ClusterAction::Persist { must_sync: true, .. } => {
                self.schedule_input(index, ClusterInput::Persisted);
            }
            ClusterAction::BecomeMaster => self.hosts[index].is_replica = false,
            ClusterAction::BecomeReplica { .. } => self.hosts[index].is_replica = true,
            _ => {}
        }
    }

    fn connect(&mut self, index: usize, link: LinkId, peer: usize) {
        if self.hosts[peer].is_dead {
            return self.schedule_input(index, ClusterInput::ConnectFailed { link, is_refused: true });
        }
        let theirs = LinkId::Inbound(self.hosts[peer].last_link_id);
        self.hosts[peer].last_link_id += 1;
        self.hosts[peer].links.insert(theirs, (index, link));
        self.hosts[index].links.insert(link, (peer, theirs));
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.schedule_input(
            peer,
            ClusterInput::LinkAccepted { link: theirs, peer_ip: localhost, local_ip: localhost },
        );
        self.schedule_input(index, ClusterInput::Connected { link });
    }

    fn kill(&mut self, index: usize) {
        self.hosts[index].is_dead = true;
        for (_, (peer, theirs)) in std::mem::take(&mut self.hosts[index].links) {
            self.hosts[peer].links.remove(&theirs);
            self.schedule_input(peer, ClusterInput::Closed { link: theirs });
        }
    }

    fn replica_of(&self, master: usize) -> usize {
        master + self.hosts.len() / 2
    }

    /// Returns whether `witness` considers the replica of `master` to be the owner of its slots.
    fn sees_successor(&self, witness: usize, master: usize) -> bool {
        let first = slot_bounds_of_master(master, self.hosts.len() / 2).0;
        let slot = u16::try_from(first).ok().and_then(Slot::new);
        let owner = slot.and_then(|slot| self.hosts[witness].gossip.slot_owner(slot));
        owner == Some(id_of(self.replica_of(master)))
    }

    fn is_replaced(&self, master: usize) -> bool {
        let successor = self.replica_of(master);
        self.sees_successor(successor, master) && self.hosts[successor].gossip.is_serving()
    }

    fn all_nodes_know_new_owners(&self, killed_masters: usize) -> bool {
        let running = (0..self.hosts.len()).filter(|index| !self.hosts[*index].is_dead);
        running
            .into_iter()
            .all(|witness| (0..killed_masters).all(|master| self.sees_successor(witness, master)))
    }
}

impl ScaleHost {
    fn new(index: usize, nodes: usize, node_timeout: Duration, seed: u64) -> Self {
        let port = u16::try_from(FIRST_PORT + index).expect("thousands of nodes at most");
        let bus_port = port + u16::try_from(BUS_PORT_OFFSET).expect("a port");
        let announce = AnnouncedAddress { port, bus_port, ..AnnouncedAddress::default() };
        let config = ClusterConfig { announced_address: announce, node_timeout, ..ClusterConfig::default() };
        let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(10_007).wrapping_add(index as u64));
        let gossip = Gossip::restore(config, rng, &nodes_conf(index, nodes)).expect("written above");
        let (links, replicates) = (BTreeMap::new(), false);
        Self { gossip, is_dead: false, is_replica: replicates, links, last_link_id: 0, deadline: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_half_of_the_masters_are_replaced_within_half_a_second() {
        let figures = scale(60, 14, Duration::from_secs(2), 1).unwrap();
        assert!(figures.agreement_time < Duration::from_millis(500), "{figures:?}");
        // Half of the masters are dead, so no election can get a majority.
        assert!(scale(12, 3, Duration::from_secs(2), 1).is_err());
    }
}
