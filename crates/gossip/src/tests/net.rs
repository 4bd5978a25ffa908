//! A network of machines in one process: latency of a millisecond, processes that die, freeze and come
//! back, partitions, one seed. Every packet goes through its bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clock::{Instant, Millis};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slot_routing::{ClientTransport, NodeId, ReplOffset, SLOT_COUNT, Slot, Topology};

use crate::{
    Action, Announce, Command, CommandError, Config, Confirm, Event, FailoverMode, Gossip, Input, LinkId,
    Node, Replication, Reply, SlotChange, Source, wire,
};

pub(super) const LATENCY: Duration = Duration::from_millis(1);
pub(super) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FIRST_PORT: u16 = 7000;
/// Wall clock at the origin: some day in 2026.
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
    /// The node whose data this one was told to copy.
    pub(super) copies: Option<NodeId>,
    pub(super) paused: bool,
    pub(super) offset: u64,
    /// Its master sends it nothing.
    pub(super) starved: bool,
    /// It was last told that its data is of another history than its master's.
    pub(super) foreign: bool,
    pub(super) log: Vec<(Instant, Event)>,
    pub(super) dropped: usize,
    /// How many keys it finds in a slot that it is to give away, once its replicas know.
    pub(super) keys_in_slot: u64,
    /// Our link, the other host, its name for the link.
    links: BTreeMap<LinkId, (usize, LinkId)>,
    backlog: Vec<Input>,
    pub(super) replies: BTreeMap<u64, Result<Reply, CommandError>>,
    next_in: u64,
}

#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) hosts: Vec<Host>,
    config: Config,
    queue: BTreeMap<(Instant, u64), (usize, Input)>,
    sequence: u64,
    /// Pairs of hosts between which nothing gets through.
    cut: BTreeSet<(usize, usize)>,
    /// Links of hosts that swallow what is sent over them; nobody is told.
    mute: BTreeSet<(usize, LinkId)>,
    /// By so much a message may be later than another; on one link they come in order all the same.
    pub(super) jitter: Duration,
    chance: ChaCha8Rng,
    /// When the last message on a link comes.
    last: BTreeMap<(usize, LinkId), Instant>,
    seed: u64,
}

pub(super) fn config(timeout_ms: u64) -> Config {
    Config { node_timeout: Duration::from_millis(timeout_ms), ..Config::default() }
}

impl Net {
    /// So many nodes that do not know each other.
    pub(super) fn new(hosts: usize, config: &Config, seed: u64) -> Self {
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
            net.feed(index, Input::Start);
        }
        net
    }

    /// `masters` masters with even shares of the slots, then the rest as their replicas in turn.
    pub(super) fn cluster(masters: usize, hosts: usize, config: &Config, seed: u64) -> Self {
        let mut net = Self::new(hosts, config, seed);
        for index in 0..masters {
            let first = SLOT_COUNT * index / masters;
            let last = SLOT_COUNT * (index + 1) / masters;
            let slots = (first..last).map(|n| Slot::new(n as u16).unwrap()).collect();
            net.command(index, Command::AddSlots(slots)).unwrap();
            net.command(index, Command::SetConfigEpoch(slot_routing::Epoch(index as u64 + 1))).unwrap();
        }
        for index in 1..hosts {
            net.meet(0, index);
        }
        net.until("everybody knows everybody", |net| {
            net.hosts.iter().all(|host| {
                host.gossip.nodes().filter(|node| node.handshake.is_none()).count() == net.hosts.len()
            })
        });
        for index in masters..hosts {
            let node = net.id(index % masters).to_string();
            net.until("replica can replicate", |net| {
                net.hosts[index].gossip.node(net.id(index % masters)).is_some()
            });
            net.command(index, Command::Replicate { node, holds_keys: false }).unwrap();
        }
        net.until("all serve", |net| net.all_agree());
        net
    }

    /// The operator changes a parameter of `index` while it runs.
    pub(super) fn configure(&mut self, index: usize, change: impl FnOnce(&mut Config)) {
        let mut config = self.hosts[index].gossip.config().clone();
        change(&mut config);
        self.feed(index, Input::Configure(Box::new(config)));
    }

    pub(super) fn meet(&mut self, one: usize, other: usize) {
        let port = FIRST_PORT + other as u16;
        self.command(one, Command::Meet { ip: LOCALHOST, port, bus_port: port + 10_000 }).unwrap();
    }

    pub(super) fn id(&self, index: usize) -> NodeId {
        self.hosts[index].gossip.id()
    }

    pub(super) fn index_of(&self, id: NodeId) -> usize {
        self.hosts.iter().position(|host| host.gossip.id() == id).expect("a host of this network")
    }

    /// Every node that runs serves, and they have the same view of owners, roles and conditions.
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

    /// The owner of slot 0 in the eyes of `index`.
    pub(super) fn owner_of(&self, index: usize, slot: u16) -> Option<usize> {
        self.hosts[index].gossip.slot_owner(Slot::new(slot).unwrap()).map(|id| self.index_of(id))
    }

    /// Returns a running node that takes writes for `slot`, if there is one.
    pub(super) fn writer_of(&self, slot: u16) -> Option<usize> {
        let slot = Slot::new(slot).unwrap();
        let takes = |host: &Host| {
            let topology = host.topology.as_ref();
            host.life == Life::Running
                && !host.paused
                && topology.is_some_and(|t| t.serving && t.ownership(slot) == slot_routing::Ownership::Mine)
        };
        self.hosts.iter().position(takes)
    }

    pub(super) fn command(&mut self, index: usize, command: Command) -> Result<Reply, CommandError> {
        let token = self.ask(index, command);
        // SETSLOT is answered when the replicas have it.
        self.until("a command is answered", |net| net.hosts[index].replies.contains_key(&token));
        self.hosts[index].replies.remove(&token).expect("it is there")
    }

    /// The same, without waiting: the answer will be in the host's `replies` under this number.
    pub(super) fn ask(&mut self, index: usize, command: Command) -> u64 {
        let token = self.sequence;
        self.feed(index, Input::Command { token, command });
        token
    }

    pub(super) fn failover(&mut self, index: usize, mode: FailoverMode) -> Result<Reply, CommandError> {
        self.command(index, Command::Failover(mode))
    }

    /// Like SIGKILL: the host closes its connections and refuses new ones; the disk stays.
    pub(super) fn kill(&mut self, index: usize) {
        self.hosts[index].life = Life::Dead;
        self.hosts[index].backlog.clear();
        for (_, (peer, theirs)) in std::mem::take(&mut self.hosts[index].links) {
            self.post(peer, Input::Closed { link: theirs });
            self.hosts[peer].links.remove(&theirs);
        }
        self.queue.retain(|_, (to, _)| *to != index);
    }

    /// The process is started again without its files: under a new name, with the same address.
    pub(super) fn restart_as_stranger(&mut self, index: usize) {
        assert_eq!(self.hosts[index].life, Life::Dead);
        let gossip = Gossip::new(self.config_of(index), self.rng(index + 2000));
        let log = std::mem::take(&mut self.hosts[index].log);
        self.hosts[index] = Host { log, ..Host::new(gossip) };
        self.feed(index, Input::Start);
    }

    pub(super) fn restart(&mut self, index: usize) {
        assert_eq!(self.hosts[index].life, Life::Dead);
        let (config, rng) = (self.config_of(index), self.rng(index + 1000));
        let disk = self.hosts[index].disk.clone();
        let gossip = Gossip::restore(config, rng, &disk).expect("what a node wrote, it reads");
        let (offset, log) = (self.hosts[index].offset, std::mem::take(&mut self.hosts[index].log));
        self.hosts[index] = Host { disk, offset, log, ..Host::new(gossip) };
        self.feed(index, Input::Start);
    }

    /// It has found its data up to `offset` on its disk.
    pub(super) fn restart_with(&mut self, index: usize, offset: u64) {
        self.hosts[index].offset = offset;
        assert_eq!(self.hosts[index].life, Life::Dead);
        let (config, rng) = (self.config_of(index), self.rng(index + 1000));
        let disk = self.hosts[index].disk.clone();
        let gossip = Gossip::restore(config, rng, &disk).expect("what a node wrote, it reads");
        self.hosts[index] = Host { disk, offset, ..Host::new(gossip) };
        self.feed(index, Input::Loaded { upto: ReplOffset(offset) });
        self.feed(index, Input::Start);
    }

    pub(super) fn freeze(&mut self, index: usize) {
        self.hosts[index].life = Life::Frozen;
    }

    pub(super) fn thaw(&mut self, index: usize) {
        self.hosts[index].life = Life::Running;
        self.feed(index, Input::Deadline);
        for input in std::mem::take(&mut self.hosts[index].backlog) {
            self.feed(index, input);
        }
    }

    /// The present link from `one` to `other` breaks, and both see it.
    pub(super) fn drop_link(&mut self, one: usize, other: usize) {
        let link = self.hosts[one].gossip.node(self.id(other)).and_then(|node| node.link.id());
        let link = link.expect("there is a link");
        if let Some((peer, theirs)) = self.hosts[one].links.remove(&link) {
            self.hosts[peer].links.remove(&theirs);
            self.post(peer, Input::Closed { link: theirs });
            self.post(one, Input::Closed { link });
        }
    }

    /// Nothing gets through between `one` and `other` any more; nobody is told.
    pub(super) fn cut(&mut self, one: &[usize], other: &[usize]) {
        for &a in one {
            for &b in other {
                self.cut.extend([(a, b), (b, a)]);
            }
        }
    }

    /// The present link from `one` to `other` swallows everything from now on.
    pub(super) fn mute(&mut self, one: usize, other: usize) {
        let link = self.hosts[one].gossip.node(self.id(other)).and_then(|node| node.link.id());
        self.mute.insert((one, link.expect("there is a link")));
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Runs until `done`; panics after a minute of virtual time. Returns how long it took.
    pub(super) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(
                self.now.since(start) < Duration::from_secs(60),
                "{what}: not within a minute\n{}",
                self.story()
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

    /// Everybody's log, for a failed test.
    pub(super) fn story(&self) -> String {
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

    pub(super) fn feed(&mut self, index: usize, input: Input) {
        self.sequence += 1;
        let wall = Millis(WALL + self.now.as_millis() as i64);
        let mut out = Vec::new();
        let host = &mut self.hosts[index];
        let facts = Input::Replication(host.replication(self.now));
        host.gossip.handle(self.now, wall, facts, &mut out);
        host.gossip.handle(self.now, wall, input, &mut out);
        host.gossip.assert_counted();
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
                self.feed(index, Input::Deadline);
            }
        }
    }

    fn post(&mut self, index: usize, input: Input) {
        self.post_in(LATENCY, index, input);
    }

    fn latency(&mut self) -> Duration {
        let most = self.jitter.as_micros() as u64;
        let added = if most == 0 { 0 } else { self.chance.random_range(0..most) };
        LATENCY + Duration::from_micros(added)
    }

    fn post_in(&mut self, time: Duration, index: usize, input: Input) {
        self.sequence += 1;
        self.queue.insert((self.now + time, self.sequence), (index, input));
    }

    /// The stream is in step with every node that runs; one that stands still keeps the sender waiting.
    fn tell_replicas(&mut self, index: usize, slot: Slot, change: &SlotChange, confirm: Option<Confirm>) {
        let me = self.id(index);
        let copies =
            |other: &usize| self.hosts[*other].copies == Some(me) && self.hosts[*other].life != Life::Dead;
        let replicas: Vec<usize> = (0..self.hosts.len()).filter(copies).collect();
        for replica in &replicas {
            self.post(*replica, Input::SlotChanged { slot, change: change.clone() });
        }
        if let Some(Confirm { token, timeout }) = confirm {
            let held = replicas.iter().all(|replica| self.hosts[*replica].life == Life::Running);
            let input = Input::ReplicasTold { token, held, keys_in_slot: self.hosts[index].keys_in_slot };
            self.post_in(if held { LATENCY * 2 } else { timeout }, index, input);
        }
    }

    fn carry_out(&mut self, index: usize, action: Action) {
        let now = self.now;
        match action {
            Action::Connect { link, port, .. } => self.connect(index, link, port),
            Action::Close { link } => {
                if let Some((peer, theirs)) = self.hosts[index].links.remove(&link) {
                    self.hosts[peer].links.remove(&theirs);
                    self.post(peer, Input::Closed { link: theirs });
                }
            }
            Action::Send { link, packet, .. } => {
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
                    self.post_in(at.since(self.now), peer, Input::Packet { link: theirs, packet });
                }
            }
            Action::Persist { text, sync } => {
                self.hosts[index].disk = text;
                if sync {
                    self.post(index, Input::Persisted);
                }
            }
            Action::Publish(topology) => self.hosts[index].topology = Some(*topology),
            Action::BecomeMaster => self.hosts[index].copies = None,
            Action::BecomeReplica { master, foreign, .. } => {
                (self.hosts[index].copies, self.hosts[index].foreign) = (Some(master), foreign);
                // One that has less lets nobody copy.
                let theirs = self.hosts.iter().find(|host| host.gossip.id() == master);
                let offset = theirs.map_or(0, |host| host.offset);
                self.hosts[index].offset = self.hosts[index].offset.max(offset);
            }
            Action::PauseWrites { .. } => {
                self.hosts[index].paused = true;
                let offset = ReplOffset(self.hosts[index].offset);
                self.post(index, Input::WritesPaused { offset });
            }
            Action::TellReplicas { slot, change, confirm } => {
                self.tell_replicas(index, slot, &change, confirm);
            }
            Action::ResumeWrites => {
                let host = &mut self.hosts[index];
                let published = host.topology.as_ref().map(|topology| topology.me().role);
                let role = host.gossip.topology().me().role;
                assert_eq!(published, Some(role), "writes go on before it is published who takes them");
                host.paused = false;
            }
            Action::DropSlots(slots) => self.hosts[index].dropped += slots.len(),
            Action::Reply { token, result } => {
                self.hosts[index].replies.insert(token, result);
            }
            Action::Log(event) => self.hosts[index].log.push((now, event)),
            Action::WatchOffset(_) | Action::AllowCopies(_) | Action::DropEverything | Action::Deliver(_) => {
            }
        }
    }

    fn connect(&mut self, index: usize, link: LinkId, bus_port: u16) {
        let peer = usize::from(bus_port - 10_000 - FIRST_PORT);
        if self.cut.contains(&(index, peer)) {
            return;
        }
        if self.hosts.get(peer).is_none_or(|host| host.life == Life::Dead) {
            self.post(index, Input::ConnectFailed { link, refused: true });
            return;
        }
        let theirs = LinkId::In(self.hosts[peer].next_in);
        self.hosts[peer].next_in += 1;
        self.hosts[peer].links.insert(theirs, (index, link));
        self.hosts[index].links.insert(link, (peer, theirs));
        self.post(peer, Input::Accepted { link: theirs, peer: LOCALHOST, local: LOCALHOST });
        self.post(index, Input::Connected { link });
    }

    fn rng(&self, index: usize) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed.wrapping_mul(10_007).wrapping_add(index as u64))
    }

    fn config_of(&self, index: usize) -> Config {
        let port = FIRST_PORT + index as u16;
        let announce = Announce { port, bus_port: port + 10_000, ..Announce::default() };
        Config { announce, ..self.config.clone() }
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

    /// A replica of this network is in sync up to its offset, whatever became of the master.
    fn replication(&self, now: Instant) -> Replication {
        let source =
            if self.copies.is_some() { Source::Streaming { last_heard: now } } else { Source::Never };
        let offset = if self.starved { 0 } else { self.offset };
        Replication { offset: ReplOffset(offset), source }
    }

    /// Loses the messages that arrived while it was frozen.
    pub(super) fn forget_backlog(&mut self) {
        self.backlog.clear();
    }

    pub(super) fn logged(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.log.iter().any(|(_, event)| wanted(event))
    }
}
