//! A simulated network of state machines with one millisecond of latency, partitions, and nodes that die, pause and
//! restart. One seed determines a run. Every packet is encoded and decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clock::{Instant, Millis};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slot_routing::{ClientTransport, NodeId, ReplOffset, SLOT_COUNT, Slot, Topology};

use crate::{
    AnnouncedAddress, ClusterAction, ClusterConfig, ClusterEvent, ClusterInput, FailoverMode, Gossip, LinkId,
    Node, OperatorCommand, OperatorError, OperatorReply, ReplicaConfirmation, ReplicationSource,
    ReplicationStatus, SlotChange, wire,
};

pub(super) const NETWORK_LATENCY: Duration = Duration::from_millis(1);
pub(super) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FIRST_PORT: u16 = 7000;
/// Wall-clock time at the start: a day in 2026.
const START_WALL_TIME_MILLIS: i64 = 1_790_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostState {
    Running,
    Frozen,
    Dead,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) gossip: Gossip,
    pub(super) host_state: HostState,
    pub(super) nodes_conf: String,
    pub(super) topology: Option<Topology>,
    /// The master that this host replicates from.
    pub(super) replicated_master: Option<NodeId>,
    pub(super) are_writes_paused: bool,
    pub(super) offset: u64,
    /// Whether the host receives no replication data from its master although its bus links work.
    pub(super) lacks_replication_data: bool,
    /// The `is_data_foreign` flag of the last [`ClusterAction::BecomeReplica`] of this host.
    pub(super) is_data_foreign: bool,
    pub(super) log: Vec<(Instant, ClusterEvent)>,
    pub(super) deleted_slot_count: usize,
    /// Number of keys that the host reports for the slot when its replicas have acknowledged a SETSLOT.
    pub(super) keys_in_slot: u64,
    /// For each link of this host, the host at the other end and that host's id for the link.
    links: BTreeMap<LinkId, (usize, LinkId)>,
    backlog: Vec<ClusterInput>,
    pub(super) replies: BTreeMap<u64, Result<OperatorReply, OperatorError>>,
    next_inbound_link: u64,
}

#[derive(Debug)]
pub(super) struct SimulatedNetwork {
    pub(super) now: Instant,
    pub(super) hosts: Vec<Host>,
    config: ClusterConfig,
    queue: BTreeMap<(Instant, u64), (usize, ClusterInput)>,
    sequence: u64,
    /// Pairs of hosts that cannot reach each other.
    blocked_pairs: BTreeSet<(usize, usize)>,
    /// Links on which packets are dropped without closing the link.
    muted_links: BTreeSet<(usize, LinkId)>,
    /// Maximum additional latency of a message. Messages on one link stay in order.
    pub(super) jitter: Duration,
    rng: ChaCha8Rng,
    /// Arrival time of the last message on each link.
    last_arrivals: BTreeMap<(usize, LinkId), Instant>,
    seed: u64,
}

pub(super) fn config(timeout_ms: u64) -> ClusterConfig {
    ClusterConfig { node_timeout: Duration::from_millis(timeout_ms), ..ClusterConfig::default() }
}

impl SimulatedNetwork {
    /// Starts nodes that do not know each other.
    pub(super) fn new(hosts: usize, config: &ClusterConfig, seed: u64) -> Self {
        let mut net = Self {
            now: Instant::ORIGIN,
            hosts: Vec::new(),
            config: config.clone(),
            queue: BTreeMap::new(),
            sequence: 0,
            blocked_pairs: BTreeSet::new(),
            muted_links: BTreeSet::new(),
            jitter: Duration::ZERO,
            rng: ChaCha8Rng::seed_from_u64(seed),
            last_arrivals: BTreeMap::new(),
            seed,
        };
        for index in 0..hosts {
            let gossip = Gossip::new(net.config_of(index), net.host_rng(index));
            net.hosts.push(Host::new(gossip));
            net.feed(index, ClusterInput::NodeStarted);
        }
        net
    }

    /// Starts a cluster of `masters` masters with equal shares of the slots. The remaining nodes become replicas,
    /// distributed evenly over the masters.
    pub(super) fn cluster(masters: usize, hosts: usize, config: &ClusterConfig, seed: u64) -> Self {
        let mut net = Self::new(hosts, config, seed);
        for index in 0..masters {
            let first = SLOT_COUNT * index / masters;
            let last = SLOT_COUNT * (index + 1) / masters;
            let slots = (first..last).map(|n| Slot::new(n as u16).unwrap()).collect();
            net.run_command(index, OperatorCommand::AddSlots(slots)).unwrap();
            net.run_command(index, OperatorCommand::SetConfigEpoch(slot_routing::Epoch(index as u64 + 1)))
                .unwrap();
        }
        for index in 1..hosts {
            net.meet(0, index);
        }
        net.run_until("everybody knows everybody", |net| {
            net.hosts.iter().all(|host| {
                host.gossip.nodes().filter(|node| node.handshake.is_none()).count() == net.hosts.len()
            })
        });
        for index in masters..hosts {
            let node = net.id(index % masters).to_string();
            net.run_until("replica can replicate", |net| {
                net.hosts[index].gossip.node(net.id(index % masters)).is_some()
            });
            net.run_command(index, OperatorCommand::Replicate { node, holds_keys: false }).unwrap();
        }
        net.run_until("all serve", |net| net.all_hosts_agree());
        net
    }

    /// Changes the configuration of a running node.
    pub(super) fn configure(&mut self, index: usize, change: impl FnOnce(&mut ClusterConfig)) {
        let mut config = self.hosts[index].gossip.config().clone();
        change(&mut config);
        self.feed(index, ClusterInput::Configure(Box::new(config)));
    }

    pub(super) fn meet(&mut self, host: usize, other_host: usize) {
        let port = FIRST_PORT + other_host as u16;
        self.run_command(host, OperatorCommand::Meet { ip: LOCALHOST, port, bus_port: port + 10_000 })
            .unwrap();
    }

    pub(super) fn id(&self, index: usize) -> NodeId {
        self.hosts[index].gossip.id()
    }

    pub(super) fn index_of(&self, id: NodeId) -> usize {
        self.hosts.iter().position(|host| host.gossip.id() == id).expect("a host of this network")
    }

    /// Whether all running nodes serve and agree on slot owners, roles and health.
    pub(super) fn all_hosts_agree(&self) -> bool {
        let running: Vec<&Host> =
            self.hosts.iter().filter(|host| host.host_state == HostState::Running).collect();
        let view = |host: &Host| {
            let nodes = &host.gossip;
            let owners: Vec<_> = Slot::all().step_by(64).map(|slot| nodes.slot_owner(slot)).collect();
            let epoch = |node: &Node| node.is_master().then_some(node.config_epoch);
            let standing = |node: &Node| (node.id, node.role, epoch(node), node.has_failed(), node.shard);
            (owners, nodes.nodes().map(standing).collect::<Vec<_>>())
        };
        let first = view(running[0]);
        running.iter().all(|host| host.gossip.is_serving() && view(host) == first)
    }

    /// The owner of a slot in the view of host `index`.
    pub(super) fn owner_of(&self, index: usize, slot: u16) -> Option<usize> {
        self.hosts[index].gossip.slot_owner(Slot::new(slot).unwrap()).map(|id| self.index_of(id))
    }

    /// A running node that accepts writes to `slot`.
    pub(super) fn serving_master_of(&self, slot: u16) -> Option<usize> {
        let slot = Slot::new(slot).unwrap();
        let takes = |host: &Host| {
            let topology = host.topology.as_ref();
            host.host_state == HostState::Running
                && !host.are_writes_paused
                && topology
                    .is_some_and(|t| t.is_serving && t.ownership(slot) == slot_routing::Ownership::Local)
        };
        self.hosts.iter().position(takes)
    }

    pub(super) fn run_command(
        &mut self,
        index: usize,
        command: OperatorCommand,
    ) -> Result<OperatorReply, OperatorError> {
        let token = self.send_command(index, command);
        // SETSLOT is answered after the replicas have acknowledged it.
        self.run_until("a command is answered", |net| net.hosts[index].replies.contains_key(&token));
        self.hosts[index].replies.remove(&token).expect("it is there")
    }

    /// Sends a command without waiting for the reply. The host's `replies` will contain the reply under the returned
    /// token.
    pub(super) fn send_command(&mut self, index: usize, command: OperatorCommand) -> u64 {
        let token = self.sequence;
        self.feed(index, ClusterInput::Command { token, command });
        token
    }

    pub(super) fn failover(
        &mut self,
        index: usize,
        mode: FailoverMode,
    ) -> Result<OperatorReply, OperatorError> {
        self.run_command(index, OperatorCommand::Failover(mode))
    }

    /// Kills the process as SIGKILL does: connections close, new ones are refused, and the files remain.
    pub(super) fn kill(&mut self, index: usize) {
        self.hosts[index].host_state = HostState::Dead;
        self.hosts[index].backlog.clear();
        for (_, (peer, theirs)) in std::mem::take(&mut self.hosts[index].links) {
            self.enqueue(peer, ClusterInput::Closed { link: theirs });
            self.hosts[peer].links.remove(&theirs);
        }
        self.queue.retain(|_, (to, _)| *to != index);
    }

    /// Restarts the process without its files, so that it has a new id at the same address.
    pub(super) fn restart_with_new_id(&mut self, index: usize) {
        assert_eq!(self.hosts[index].host_state, HostState::Dead);
        let gossip = Gossip::new(self.config_of(index), self.host_rng(index + 2000));
        let log = std::mem::take(&mut self.hosts[index].log);
        self.hosts[index] = Host { log, ..Host::new(gossip) };
        self.feed(index, ClusterInput::NodeStarted);
    }

    pub(super) fn restart(&mut self, index: usize) {
        assert_eq!(self.hosts[index].host_state, HostState::Dead);
        let (config, rng) = (self.config_of(index), self.host_rng(index + 1000));
        let disk = self.hosts[index].nodes_conf.clone();
        let gossip = Gossip::restore(config, rng, &disk).expect("what a node wrote, it reads");
        let (offset, log) = (self.hosts[index].offset, std::mem::take(&mut self.hosts[index].log));
        self.hosts[index] = Host { nodes_conf: disk, offset, log, ..Host::new(gossip) };
        self.feed(index, ClusterInput::NodeStarted);
    }

    /// Restarts the process with data up to `offset` on disk.
    pub(super) fn restart_with_offset(&mut self, index: usize, offset: u64) {
        self.hosts[index].offset = offset;
        assert_eq!(self.hosts[index].host_state, HostState::Dead);
        let (config, rng) = (self.config_of(index), self.host_rng(index + 1000));
        let disk = self.hosts[index].nodes_conf.clone();
        let gossip = Gossip::restore(config, rng, &disk).expect("what a node wrote, it reads");
        self.hosts[index] = Host { nodes_conf: disk, offset, ..Host::new(gossip) };
        self.feed(index, ClusterInput::DatasetLoaded { offset: ReplOffset(offset) });
        self.feed(index, ClusterInput::NodeStarted);
    }

    pub(super) fn freeze(&mut self, index: usize) {
        self.hosts[index].host_state = HostState::Frozen;
    }

    pub(super) fn thaw(&mut self, index: usize) {
        self.hosts[index].host_state = HostState::Running;
        self.feed(index, ClusterInput::Deadline);
        for input in std::mem::take(&mut self.hosts[index].backlog) {
            self.feed(index, input);
        }
    }

    /// Closes the outbound link of `one` to `other` on both sides.
    pub(super) fn drop_link(&mut self, host: usize, other_host: usize) {
        let link = self.hosts[host].gossip.node(self.id(other_host)).and_then(|node| node.link.id());
        let link = link.expect("there is a link");
        if let Some((peer, theirs)) = self.hosts[host].links.remove(&link) {
            self.hosts[peer].links.remove(&theirs);
            self.enqueue(peer, ClusterInput::Closed { link: theirs });
            self.enqueue(host, ClusterInput::Closed { link });
        }
    }

    /// Silently drops all packets between the hosts of `one` and those of `other`.
    pub(super) fn block_links_between(&mut self, hosts: &[usize], other_hosts: &[usize]) {
        for &a in hosts {
            for &b in other_hosts {
                self.blocked_pairs.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Silently drops all further packets on the outbound link of `one` to `other`.
    pub(super) fn drop_packets_between(&mut self, host: usize, other_host: usize) {
        let link = self.hosts[host].gossip.node(self.id(other_host)).and_then(|node| node.link.id());
        self.muted_links.insert((host, link.expect("there is a link")));
    }

    pub(super) fn heal(&mut self) {
        self.blocked_pairs.clear();
    }

    /// Runs until `done` returns true and returns the elapsed virtual time. Panics after a minute.
    pub(super) fn run_until(&mut self, condition_name: &str, is_done: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !is_done(self) {
            assert!(
                self.now.since(start) < Duration::from_secs(60),
                "{condition_name}: not within a minute\n{}",
                self.merged_logs()
            );
            self.step();
        }
        self.now.since(start)
    }

    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.next_event().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Returns the merged logs of all hosts, for failure messages.
    pub(super) fn merged_logs(&self) -> String {
        use std::fmt::Write;
        let mut lines: Vec<_> = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            lines.extend(host.log.iter().map(|(at, event)| (*at, index, event)));
        }
        lines.sort_by_key(|(at, index, _)| (*at, *index));
        let mut text = String::new();
        for (at, index, event) in &lines[lines.len().saturating_sub(200)..] {
            let _ = writeln!(text, "{:>8} ms  node {index}: {event}", at.as_millis());
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let _ = writeln!(
                text,
                "view of node {index} ({:?}):\n{}",
                host.host_state,
                host.gossip.nodes_text(ClientTransport::default())
            );
        }
        text
    }

    pub(super) fn feed(&mut self, index: usize, input: ClusterInput) {
        self.sequence += 1;
        let wall = Millis(START_WALL_TIME_MILLIS + self.now.as_millis() as i64);
        let mut out = Vec::new();
        let host = &mut self.hosts[index];
        let facts = ClusterInput::ReplicationChanged(host.replication(self.now));
        host.gossip.handle(self.now, wall, facts, &mut out);
        host.gossip.handle(self.now, wall, input, &mut out);
        host.gossip.assert_indexes_consistent();
        for action in out {
            self.perform_action(index, action);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter(|host| host.host_state == HostState::Running);
        let timers = timers.filter_map(|host| host.gossip.next_deadline());
        timers.chain(self.queue.keys().map(|(at, _)| *at)).min()
    }

    fn step(&mut self) {
        let at = self.next_event().expect("a network with peers never falls silent");
        self.now = self.now.max(at);
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (index, input) = entry.remove();
            match self.hosts[index].host_state {
                HostState::Running => self.feed(index, input),
                HostState::Frozen => self.hosts[index].backlog.push(input),
                HostState::Dead => {}
            }
        }
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            if host.host_state == HostState::Running
                && host.gossip.next_deadline().is_some_and(|at| at <= self.now)
            {
                self.feed(index, ClusterInput::Deadline);
            }
        }
    }

    fn enqueue(&mut self, index: usize, input: ClusterInput) {
        self.enqueue_after(NETWORK_LATENCY, index, input);
    }

    fn draw_latency(&mut self) -> Duration {
        let most = self.jitter.as_micros() as u64;
        let added = if most == 0 { 0 } else { self.rng.random_range(0..most) };
        NETWORK_LATENCY + Duration::from_micros(added)
    }

    fn enqueue_after(&mut self, delay: Duration, index: usize, input: ClusterInput) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), (index, input));
    }

    /// Writes a slot change to the replication stream. Running replicas receive it at once; a paused replica delays the
    /// acknowledgement until the timeout.
    fn replicate_slot_change(
        &mut self,
        index: usize,
        slot: Slot,
        change: &SlotChange,
        confirmation: Option<ReplicaConfirmation>,
    ) {
        let me = self.id(index);
        let copies = |other: &usize| {
            self.hosts[*other].replicated_master == Some(me)
                && self.hosts[*other].host_state != HostState::Dead
        };
        let replicas: Vec<usize> = (0..self.hosts.len()).filter(copies).collect();
        for replica in &replicas {
            self.enqueue(*replica, ClusterInput::SlotChanged { slot, change: change.clone() });
        }
        if let Some(ReplicaConfirmation { token, timeout }) = confirmation {
            let held = replicas.iter().all(|replica| self.hosts[*replica].host_state == HostState::Running);
            let input = ClusterInput::ReplicasAcknowledged {
                token,
                is_acknowledged: held,
                keys_in_slot: self.hosts[index].keys_in_slot,
            };
            self.enqueue_after(if held { NETWORK_LATENCY * 2 } else { timeout }, index, input);
        }
    }

    fn perform_action(&mut self, index: usize, action: ClusterAction) {
        let now = self.now;
        match action {
            ClusterAction::Connect { link, port, .. } => self.connect(index, link, port),
            ClusterAction::Close { link } => {
                if let Some((peer, theirs)) = self.hosts[index].links.remove(&link) {
                    self.hosts[peer].links.remove(&theirs);
                    self.enqueue(peer, ClusterInput::Closed { link: theirs });
                }
            }
            ClusterAction::Send { link, packet, .. } => {
                let bytes = packet.encode();
                if let Some(&(peer, theirs)) = self.hosts[index].links.get(&link)
                    && !self.blocked_pairs.contains(&(index, peer))
                    && !self.muted_links.contains(&(index, link))
                {
                    let packet = Box::new(wire::decode(&bytes).expect("what encodes, decodes"));
                    assert_eq!(wire::packet_len(&bytes), Ok(Some(bytes.len())));
                    let (link, latency) = ((peer, theirs), self.draw_latency());
                    let at =
                        self.last_arrivals.get(&link).map_or(self.now, |last| *last).max(self.now + latency);
                    self.last_arrivals.insert(link, at);
                    let input = ClusterInput::Packet { link: theirs, packet };
                    self.enqueue_after(at.since(self.now), peer, input);
                }
            }
            ClusterAction::Persist { nodes_conf: text, must_sync: sync } => {
                self.hosts[index].nodes_conf = text;
                if sync {
                    self.enqueue(index, ClusterInput::Persisted);
                }
            }
            ClusterAction::Publish(topology) => self.hosts[index].topology = Some(*topology),
            ClusterAction::BecomeMaster => self.hosts[index].replicated_master = None,
            ClusterAction::BecomeReplica { master, is_data_foreign, .. } => {
                self.hosts[index].replicated_master = Some(master);
                self.hosts[index].is_data_foreign = is_data_foreign;
                // A master with less data does not accept replicas, so replicas never lose data in these tests.
                let theirs = self.hosts.iter().find(|host| host.gossip.id() == master);
                let offset = theirs.map_or(0, |host| host.offset);
                self.hosts[index].offset = self.hosts[index].offset.max(offset);
            }
            ClusterAction::PauseWrites { .. } => {
                self.hosts[index].are_writes_paused = true;
                let offset = ReplOffset(self.hosts[index].offset);
                self.enqueue(index, ClusterInput::WritesPaused { offset });
            }
            ClusterAction::ReplicateSlotChange { slot, change, confirmation: confirm } => {
                self.replicate_slot_change(index, slot, &change, confirm);
            }
            ClusterAction::ResumeWrites => self.resume_writes(index),
            ClusterAction::DeleteSlotKeys(slots) => self.hosts[index].deleted_slot_count += slots.len(),
            ClusterAction::Reply { token, result } => {
                self.hosts[index].replies.insert(token, result);
            }
            ClusterAction::Log(event) => self.hosts[index].log.push((now, event)),
            ClusterAction::WatchOffset(_)
            | ClusterAction::RestrictReplicas(_)
            | ClusterAction::DeleteDataset
            | ClusterAction::DeliverPublication(_) => {}
        }
    }

    fn resume_writes(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let published = host.topology.as_ref().map(|topology| topology.my_member().role);
        let role = host.gossip.topology().my_member().role;
        assert_eq!(published, Some(role), "writes resume before the new owners are published");
        host.are_writes_paused = false;
    }

    fn connect(&mut self, index: usize, link: LinkId, bus_port: u16) {
        let peer = usize::from(bus_port - 10_000 - FIRST_PORT);
        if self.blocked_pairs.contains(&(index, peer)) {
            return;
        }
        if self.hosts.get(peer).is_none_or(|host| host.host_state == HostState::Dead) {
            self.enqueue(index, ClusterInput::ConnectFailed { link, is_refused: true });
            return;
        }
        let theirs = LinkId::Inbound(self.hosts[peer].next_inbound_link);
        self.hosts[peer].next_inbound_link += 1;
        self.hosts[peer].links.insert(theirs, (index, link));
        self.hosts[index].links.insert(link, (peer, theirs));
        self.enqueue(
            peer,
            ClusterInput::LinkAccepted { link: theirs, peer_ip: LOCALHOST, local_ip: LOCALHOST },
        );
        self.enqueue(index, ClusterInput::Connected { link });
    }

    fn host_rng(&self, index: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed.wrapping_mul(10_007).wrapping_add(index as u64))
    }

    fn config_of(&self, index: usize) -> ClusterConfig {
        let port = FIRST_PORT + index as u16;
        let announce = AnnouncedAddress { port, bus_port: port + 10_000, ..AnnouncedAddress::default() };
        ClusterConfig { announced_address: announce, ..self.config.clone() }
    }
}

impl Host {
    fn new(gossip: Gossip) -> Self {
        Self {
            gossip,
            host_state: HostState::Running,
            nodes_conf: String::new(),
            topology: None,
            replicated_master: None,
            are_writes_paused: false,
            offset: 0,
            lacks_replication_data: false,
            is_data_foreign: false,
            log: Vec::new(),
            deleted_slot_count: 0,
            keys_in_slot: 0,
            links: BTreeMap::new(),
            backlog: Vec::new(),
            replies: BTreeMap::new(),
            next_inbound_link: 0,
        }
    }

    /// A replica is always in sync up to its offset, whatever the state of its master.
    fn replication(&self, now: Instant) -> ReplicationStatus {
        let source = if self.replicated_master.is_some() {
            ReplicationSource::Streaming { last_heard_at: now }
        } else {
            ReplicationSource::NeverSynchronized
        };
        let offset = if self.lacks_replication_data { 0 } else { self.offset };
        ReplicationStatus { offset: ReplOffset(offset), source }
    }

    /// Drops the messages that arrived during a pause.
    pub(super) fn clear_backlog(&mut self) {
        self.backlog.clear();
    }

    pub(super) fn has_logged(&self, predicate: impl Fn(&ClusterEvent) -> bool) -> bool {
        self.log.iter().any(|(_, event)| predicate(event))
    }
}
