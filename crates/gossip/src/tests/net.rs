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

pub(super) const LATENCY: Duration = Duration::from_millis(1);
pub(super) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FIRST_PORT: u16 = 7000;
/// Wall-clock time at the start: a day in 2026.
const WALL: i64 = 1_790_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    Frozen,
    Dead,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) gossip: Gossip,
    pub(super) life: Life,
    pub(super) disk: String,
    pub(super) topology: Option<Topology>,
    /// The master that this host replicates from.
    pub(super) copies: Option<NodeId>,
    pub(super) paused: bool,
    pub(super) offset: u64,
    /// Whether the host receives no replication data from its master although its bus links work.
    pub(super) starved: bool,
    /// The `foreign` flag of the last [`ClusterAction::BecomeReplica`] of this host.
    pub(super) foreign: bool,
    pub(super) log: Vec<(Instant, ClusterEvent)>,
    pub(super) dropped: usize,
    /// Number of keys that the host reports for the slot when its replicas have acknowledged a SETSLOT.
    pub(super) keys_in_slot: u64,
    /// For each link of this host, the host at the other end and that host's id for the link.
    links: BTreeMap<LinkId, (usize, LinkId)>,
    backlog: Vec<ClusterInput>,
    pub(super) replies: BTreeMap<u64, Result<OperatorReply, OperatorError>>,
    next_in: u64,
}

#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) hosts: Vec<Host>,
    config: ClusterConfig,
    queue: BTreeMap<(Instant, u64), (usize, ClusterInput)>,
    sequence: u64,
    /// Pairs of hosts that cannot reach each other.
    cut: BTreeSet<(usize, usize)>,
    /// Links on which packets are dropped without closing the link.
    mute: BTreeSet<(usize, LinkId)>,
    /// Maximum additional latency of a message. Messages on one link stay in order.
    pub(super) jitter: Duration,
    chance: ChaCha8Rng,
    /// Arrival time of the last message on each link.
    last: BTreeMap<(usize, LinkId), Instant>,
    seed: u64,
}

pub(super) fn config(timeout_ms: u64) -> ClusterConfig {
    ClusterConfig { node_timeout: Duration::from_millis(timeout_ms), ..ClusterConfig::default() }
}

impl Net {
    /// Starts nodes that do not know each other.
    pub(super) fn new(hosts: usize, config: &ClusterConfig, seed: u64) -> Self {
        let mut net = Self {
            now: Instant::ORIGIN,
            hosts: Vec::new(),
            config: config.clone(),
            queue: BTreeMap::new(),
            sequence: 0,
            cut: BTreeSet::new(),
            mute: BTreeSet::new(),
            jitter: Duration::ZERO,
            chance: ChaCha8Rng::seed_from_u64(seed),
            last: BTreeMap::new(),
            seed,
        };
        for index in 0..hosts {
            let gossip = Gossip::new(net.config_of(index), net.rng(index));
            net.hosts.push(Host::new(gossip));
            net.feed(index, ClusterInput::Start);
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
            net.command(index, OperatorCommand::AddSlots(slots)).unwrap();
            net.command(index, OperatorCommand::SetConfigEpoch(slot_routing::Epoch(index as u64 + 1)))
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
            net.command(index, OperatorCommand::Replicate { node, holds_keys: false }).unwrap();
        }
        net.run_until("all serve", |net| net.all_agree());
        net
    }

    /// Changes the configuration of a running node.
    pub(super) fn configure(&mut self, index: usize, change: impl FnOnce(&mut ClusterConfig)) {
        let mut config = self.hosts[index].gossip.config().clone();
        change(&mut config);
        self.feed(index, ClusterInput::Configure(Box::new(config)));
    }

    pub(super) fn meet(&mut self, one: usize, other: usize) {
        let port = FIRST_PORT + other as u16;
        self.command(one, OperatorCommand::Meet { ip: LOCALHOST, port, bus_port: port + 10_000 }).unwrap();
    }

    pub(super) fn id(&self, index: usize) -> NodeId {
        self.hosts[index].gossip.id()
    }

    pub(super) fn index_of(&self, id: NodeId) -> usize {
        self.hosts.iter().position(|host| host.gossip.id() == id).expect("a host of this network")
    }

    /// Whether all running nodes serve and agree on slot owners, roles and health.
    pub(super) fn all_agree(&self) -> bool {
        let running: Vec<&Host> = self.hosts.iter().filter(|host| host.life == Life::Running).collect();
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
    pub(super) fn writer_of(&self, slot: u16) -> Option<usize> {
        let slot = Slot::new(slot).unwrap();
        let takes = |host: &Host| {
            let topology = host.topology.as_ref();
            host.life == Life::Running
                && !host.paused
                && topology.is_some_and(|t| t.serving && t.ownership(slot) == slot_routing::Ownership::Local)
        };
        self.hosts.iter().position(takes)
    }

    pub(super) fn command(
        &mut self,
        index: usize,
        command: OperatorCommand,
    ) -> Result<OperatorReply, OperatorError> {
        let token = self.ask(index, command);
        // SETSLOT is answered after the replicas have acknowledged it.
        self.run_until("a command is answered", |net| net.hosts[index].replies.contains_key(&token));
        self.hosts[index].replies.remove(&token).expect("it is there")
    }

    /// Sends a command without waiting for the reply. The host's `replies` will contain the reply under the returned
    /// token.
    pub(super) fn ask(&mut self, index: usize, command: OperatorCommand) -> u64 {
        let token = self.sequence;
        self.feed(index, ClusterInput::Command { token, command });
        token
    }

    pub(super) fn failover(
        &mut self,
        index: usize,
        mode: FailoverMode,
    ) -> Result<OperatorReply, OperatorError> {
        self.command(index, OperatorCommand::Failover(mode))
    }

    /// Kills the process as SIGKILL does: connections close, new ones are refused, and the files remain.
    pub(super) fn kill(&mut self, index: usize) {
        self.hosts[index].life = Life::Dead;
        self.hosts[index].backlog.clear();
        for (_, (peer, theirs)) in std::mem::take(&mut self.hosts[index].links) {
            self.post(peer, ClusterInput::Closed { link: theirs });
            self.hosts[peer].links.remove(&theirs);
        }
        self.queue.retain(|_, (to, _)| *to != index);
    }

    /// Restarts the process without its files, so that it has a new id at the same address.
    pub(super) fn restart_as_stranger(&mut self, index: usize) {
        assert_eq!(self.hosts[index].life, Life::Dead);
        let gossip = Gossip::new(self.config_of(index), self.rng(index + 2000));
        let log = std::mem::take(&mut self.hosts[index].log);
        self.hosts[index] = Host { log, ..Host::new(gossip) };
        self.feed(index, ClusterInput::Start);
    }

    pub(super) fn restart(&mut self, index: usize) {
        assert_eq!(self.hosts[index].life, Life::Dead);
        let (config, rng) = (self.config_of(index), self.rng(index + 1000));
        let disk = self.hosts[index].disk.clone();
        let gossip = Gossip::restore(config, rng, &disk).expect("what a node wrote, it reads");
        let (offset, log) = (self.hosts[index].offset, std::mem::take(&mut self.hosts[index].log));
        self.hosts[index] = Host { disk, offset, log, ..Host::new(gossip) };
        self.feed(index, ClusterInput::Start);
    }

    /// Restarts the process with data up to `offset` on disk.
    pub(super) fn restart_with(&mut self, index: usize, offset: u64) {
        self.hosts[index].offset = offset;
        assert_eq!(self.hosts[index].life, Life::Dead);
        let (config, rng) = (self.config_of(index), self.rng(index + 1000));
        let disk = self.hosts[index].disk.clone();
        let gossip = Gossip::restore(config, rng, &disk).expect("what a node wrote, it reads");
        self.hosts[index] = Host { disk, offset, ..Host::new(gossip) };
        self.feed(index, ClusterInput::Loaded { upto: ReplOffset(offset) });
        self.feed(index, ClusterInput::Start);
    }

    pub(super) fn freeze(&mut self, index: usize) {
        self.hosts[index].life = Life::Frozen;
    }

    pub(super) fn thaw(&mut self, index: usize) {
        self.hosts[index].life = Life::Running;
        self.feed(index, ClusterInput::Deadline);
        for input in std::mem::take(&mut self.hosts[index].backlog) {
            self.feed(index, input);
        }
    }

    /// Closes the outbound link of `one` to `other` on both sides.
    pub(super) fn drop_link(&mut self, one: usize, other: usize) {
        let link = self.hosts[one].gossip.node(self.id(other)).and_then(|node| node.link.id());
        let link = link.expect("there is a link");
        if let Some((peer, theirs)) = self.hosts[one].links.remove(&link) {
            self.hosts[peer].links.remove(&theirs);
            self.post(peer, ClusterInput::Closed { link: theirs });
            self.post(one, ClusterInput::Closed { link });
        }
    }

    /// Silently drops all packets between the hosts of `one` and those of `other`.
    pub(super) fn cut(&mut self, one: &[usize], other: &[usize]) {
        for &a in one {
            for &b in other {
                self.cut.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Silently drops all further packets on the outbound link of `one` to `other`.
    pub(super) fn mute(&mut self, one: usize, other: usize) {
        let link = self.hosts[one].gossip.node(self.id(other)).and_then(|node| node.link.id());
        self.mute.insert((one, link.expect("there is a link")));
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Runs until `done` returns true and returns the elapsed virtual time. Panics after a minute.
    pub(super) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(
                self.now.since(start) < Duration::from_secs(60),
                "{what}: not within a minute\n{}",
                self.merged_logs()
            );
            self.step();
        }
        self.now.since(start)
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
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
                host.life,
                host.gossip.nodes_text(ClientTransport::default())
            );
        }
        text
    }

    pub(super) fn feed(&mut self, index: usize, input: ClusterInput) {
        self.sequence += 1;
        let wall = Millis(WALL + self.now.as_millis() as i64);
        let mut out = Vec::new();
        let host = &mut self.hosts[index];
        let facts = ClusterInput::Replication(host.replication(self.now));
        host.gossip.handle(self.now, wall, facts, &mut out);
        host.gossip.handle(self.now, wall, input, &mut out);
        host.gossip.assert_indexes_consistent();
        for action in out {
            self.carry_out(index, action);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter(|host| host.life == Life::Running);
        let timers = timers.filter_map(|host| host.gossip.next_deadline());
        timers.chain(self.queue.keys().map(|(at, _)| *at)).min()
    }

    fn step(&mut self) {
        let at = self.next_event().expect("a network with peers never falls silent");
        self.now = self.now.max(at);
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (index, input) = entry.remove();
            match self.hosts[index].life {
                Life::Running => self.feed(index, input),
                Life::Frozen => self.hosts[index].backlog.push(input),
                Life::Dead => {}
            }
        }
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            if host.life == Life::Running && host.gossip.next_deadline().is_some_and(|at| at <= self.now) {
                self.feed(index, ClusterInput::Deadline);
            }
        }
    }

    fn post(&mut self, index: usize, input: ClusterInput) {
        self.post_in(LATENCY, index, input);
    }

    fn latency(&mut self) -> Duration {
        let most = self.jitter.as_micros() as u64;
        let added = if most == 0 { 0 } else { self.chance.random_range(0..most) };
        LATENCY + Duration::from_micros(added)
    }

    fn post_in(&mut self, time: Duration, index: usize, input: ClusterInput) {
        self.sequence += 1;
        self.queue.insert((self.now + time, self.sequence), (index, input));
    }

    /// Writes a slot change to the replication stream. Running replicas receive it at once; a paused replica delays the
    /// acknowledgement until the timeout.
    fn tell_replicas(
        &mut self,
        index: usize,
        slot: Slot,
        change: &SlotChange,
        confirm: Option<ReplicaConfirmation>,
    ) {
        let me = self.id(index);
        let copies =
            |other: &usize| self.hosts[*other].copies == Some(me) && self.hosts[*other].life != Life::Dead;
        let replicas: Vec<usize> = (0..self.hosts.len()).filter(copies).collect();
        for replica in &replicas {
            self.post(*replica, ClusterInput::SlotChanged { slot, change: change.clone() });
        }
        if let Some(ReplicaConfirmation { token, timeout }) = confirm {
            let held = replicas.iter().all(|replica| self.hosts[*replica].life == Life::Running);
            let input = ClusterInput::ReplicasAcknowledged {
                token,
                held,
                keys_in_slot: self.hosts[index].keys_in_slot,
            };
            self.post_in(if held { LATENCY * 2 } else { timeout }, index, input);
        }
    }

    fn carry_out(&mut self, index: usize, action: ClusterAction) {
        let now = self.now;
        match action {
            ClusterAction::Connect { link, port, .. } => self.connect(index, link, port),
            ClusterAction::Close { link } => {
                if let Some((peer, theirs)) = self.hosts[index].links.remove(&link) {
                    self.hosts[peer].links.remove(&theirs);
                    self.post(peer, ClusterInput::Closed { link: theirs });
                }
            }
            ClusterAction::Send { link, packet, .. } => {
                let bytes = packet.encode();
                if let Some(&(peer, theirs)) = self.hosts[index].links.get(&link)
                    && !self.cut.contains(&(index, peer))
                    && !self.mute.contains(&(index, link))
                {
                    let packet = Box::new(wire::decode(&bytes).expect("what encodes, decodes"));
                    assert_eq!(wire::frame_len(&bytes), Ok(Some(bytes.len())));
                    let (link, latency) = ((peer, theirs), self.latency());
                    let at = self.last.get(&link).map_or(self.now, |last| *last).max(self.now + latency);
                    self.last.insert(link, at);
                    self.post_in(at.since(self.now), peer, ClusterInput::Packet { link: theirs, packet });
                }
            }
            ClusterAction::Persist { text, sync } => {
                self.hosts[index].disk = text;
                if sync {
                    self.post(index, ClusterInput::Persisted);
                }
            }
            ClusterAction::Publish(topology) => self.hosts[index].topology = Some(*topology),
            ClusterAction::BecomeMaster => self.hosts[index].copies = None,
            ClusterAction::BecomeReplica { master, foreign, .. } => {
                (self.hosts[index].copies, self.hosts[index].foreign) = (Some(master), foreign);
                // A master with less data does not accept replicas, so replicas never lose data in these tests.
                let theirs = self.hosts.iter().find(|host| host.gossip.id() == master);
                let offset = theirs.map_or(0, |host| host.offset);
                self.hosts[index].offset = self.hosts[index].offset.max(offset);
            }
            ClusterAction::PauseWrites { .. } => {
                self.hosts[index].paused = true;
                let offset = ReplOffset(self.hosts[index].offset);
                self.post(index, ClusterInput::WritesPaused { offset });
            }
            ClusterAction::TellReplicas { slot, change, confirm } => {
                self.tell_replicas(index, slot, &change, confirm);
            }
            ClusterAction::ResumeWrites => self.resume_writes(index),
            ClusterAction::DropSlots(slots) => self.hosts[index].dropped += slots.len(),
            ClusterAction::Reply { token, result } => {
                self.hosts[index].replies.insert(token, result);
            }
            ClusterAction::Log(event) => self.hosts[index].log.push((now, event)),
            ClusterAction::WatchOffset(_)
            | ClusterAction::AllowReplicas(_)
            | ClusterAction::DropEverything
            | ClusterAction::Deliver(_) => {}
        }
    }

    fn resume_writes(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let published = host.topology.as_ref().map(|topology| topology.my_member().role);
        let role = host.gossip.topology().my_member().role;
        assert_eq!(published, Some(role), "writes resume before the new owners are published");
        host.paused = false;
    }

    fn connect(&mut self, index: usize, link: LinkId, bus_port: u16) {
        let peer = usize::from(bus_port - 10_000 - FIRST_PORT);
        if self.cut.contains(&(index, peer)) {
            return;
        }
        if self.hosts.get(peer).is_none_or(|host| host.life == Life::Dead) {
            self.post(index, ClusterInput::ConnectFailed { link, refused: true });
            return;
        }
        let theirs = LinkId::In(self.hosts[peer].next_in);
        self.hosts[peer].next_in += 1;
        self.hosts[peer].links.insert(theirs, (index, link));
        self.hosts[index].links.insert(link, (peer, theirs));
        self.post(peer, ClusterInput::Accepted { link: theirs, peer: LOCALHOST, local: LOCALHOST });
        self.post(index, ClusterInput::Connected { link });
    }

    fn rng(&self, index: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed.wrapping_mul(10_007).wrapping_add(index as u64))
    }

    fn config_of(&self, index: usize) -> ClusterConfig {
        let port = FIRST_PORT + index as u16;
        let announce = AnnouncedAddress { port, bus_port: port + 10_000, ..AnnouncedAddress::default() };
        ClusterConfig { announce, ..self.config.clone() }
    }
}

impl Host {
    fn new(gossip: Gossip) -> Self {
        Self {
            gossip,
            life: Life::Running,
            disk: String::new(),
            topology: None,
            copies: None,
            paused: false,
            offset: 0,
            starved: false,
            foreign: false,
            log: Vec::new(),
            dropped: 0,
            keys_in_slot: 0,
            links: BTreeMap::new(),
            backlog: Vec::new(),
            replies: BTreeMap::new(),
            next_in: 0,
        }
    }

    /// A replica is always in sync up to its offset, whatever the state of its master.
    fn replication(&self, now: Instant) -> ReplicationStatus {
        let source = if self.copies.is_some() {
            ReplicationSource::Streaming { last_heard: now }
        } else {
            ReplicationSource::Never
        };
        let offset = if self.starved { 0 } else { self.offset };
        ReplicationStatus { offset: ReplOffset(offset), source }
    }

    /// Drops the messages that arrived during a pause.
    pub(super) fn forget_backlog(&mut self) {
        self.backlog.clear();
    }

    pub(super) fn logged(&self, wanted: impl Fn(&ClusterEvent) -> bool) -> bool {
        self.log.iter().any(|(_, event)| wanted(event))
    }
}
