//! Sentinels that watch one master and its replicas, all simulated but the sentinels themselves.
//!
//! Links between processes are streams: what is sent arrives in order or the link breaks, as with TCP.
//! A cut network holds bytes back until it heals. Raft messages may also be lost, doubled and overtaken,
//! because the protocol must bear it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::Instant;
use consensus::Change;
use resp::{Protocol, parse_value};
use sentinel::{Action, ClientId, Config, Input, LinkId, Sentinel};

use self::disk::Disk;
use self::invariants::{Invariant, Seen};
use self::server::{Effect, Server};
use self::stream::{Stream, ToClient};
use crate::trace::{START, Trace, micros};
use crate::{Chance, Outcome, Plan, Plant, caught};

mod disk;
mod faults;
mod invariants;
mod server;
mod stream;

pub(crate) const MASTER: &str = "mymaster";

/// Without faults, until everybody knows everybody.
const SETTLE: Duration = Duration::from_secs(6);
const FAULTS: Duration = Duration::from_secs(12);
/// After healing: the longest TILT (30 s), then the slowest repair.
const CONVERGE: Duration = Duration::from_secs(120);
const CHECK: Duration = Duration::from_millis(500);
/// So many checks in a row must find agreement.
const STABLE: usize = 4;
const REPLICATE: Duration = Duration::from_millis(50);
/// A held-back stream looks again after this long.
const RETRANSMIT: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
enum Event {
    Begin,
    Tick {
        host: usize,
        life: u64,
    },
    ConnectArrives {
        conn: u64,
    },
    ToServer {
        conn: u64,
    },
    ToClient {
        conn: u64,
    },
    Synced {
        host: usize,
        life: u64,
        number: u64,
        voted: bool,
    },
    /// A Raft message on its own way.
    Stray {
        host: usize,
        request: Vec<Vec<u8>>,
    },
    Replicate,
    Fault,
    Heal,
    Check,
    Restart {
        host: usize,
        life: u64,
    },
}

/// A process that may be a sentinel or a server.
struct Host {
    ip: String,
    up: bool,
    /// Stopped, as by SIGSTOP, until then.
    frozen: Option<Instant>,
    slow: Duration,
    /// Counts restarts.
    life: u64,
    kind: Kind,
}

enum Kind {
    Watcher(Box<Watcher>),
    Server(Server),
}

/// A sentinel's process.
struct Watcher {
    sentinel: Option<Sentinel>,
    disk: Disk,
    /// How far its clock has jumped ahead.
    skew: Duration,
    /// Actions that wait for the disk, and those behind them.
    waiting: VecDeque<Action>,
    synced: u64,
    /// Votes on their way to the disk, with the records that hold them: (record, term, vote).
    ballots: Vec<(u64, u64, u64)>,
    tick_at: Option<Instant>,
    links: BTreeMap<LinkId, u64>,
}

struct World {
    now: Instant,
    plan: Plan,
    chance: Chance,
    queue: BTreeMap<(Instant, u64), Event>,
    events: u64,
    hosts: Vec<Host>,
    streams: BTreeMap<u64, Stream>,
    opened: u64,
    /// From whom to whom nothing gets through.
    cuts: BTreeSet<(usize, usize)>,
    longest_latency: u64,
    disks_lost: usize,
    healed: bool,
    agreed: usize,
    disagreement: Option<String>,
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<String>,
    promotions: usize,
    trace: Trace,
}

/// Runs one plan; with `traced`, the outcome holds all that happened.
pub(crate) fn run(plan: Plan, traced: bool) -> Outcome {
    let mut world = World::new(plan, traced);
    world.at(START, Event::Begin);
    world.at(START + SETTLE, Event::Fault);
    world.at(START + SETTLE + FAULTS, Event::Heal);
    while let Some(((at, _), event)) = world.queue.pop_first() {
        world.now = at;
        if let Err(panic) = caught(|| world.happen(event)) {
            world.violate(&panic);
        }
        if at > START + SETTLE + FAULTS + CONVERGE {
            let why = world.disagreement.clone().unwrap_or_default();
            world.violate(&format!("no agreement {CONVERGE:?} after healing: {why}"));
        }
        if world.violation.is_some() || world.agreed >= STABLE {
            break;
        }
    }
    Outcome {
        violation: world.violation,
        digest: world.trace.digest,
        trace: world.trace.take_lines(),
        promotions: world.promotions,
    }
}

impl World {
    fn new(plan: Plan, traced: bool) -> Self {
        let mut chance = Chance::new(plan.seed);
        let watchers = if plan.nodes >= 10 { 5 } else { 3 };
        let servers = plan.nodes.saturating_sub(watchers).max(2);
        let longest_latency = chance.pick(&[1, 3, 10, 30]);
        let mut world = Self {
            now: START,
            plan,
            chance,
            queue: BTreeMap::new(),
            events: 0,
            hosts: Vec::new(),
            streams: BTreeMap::new(),
            opened: 0,
            cuts: BTreeSet::new(),
            longest_latency,
            disks_lost: 0,
            healed: false,
            agreed: 0,
            disagreement: None,
            invariants: invariants::all(),
            violation: None,
            promotions: 0,
            trace: Trace::new(traced),
        };
        for number in 0..watchers {
            let disk = Disk::new(first_config(watchers));
            let watcher = Watcher {
                sentinel: None,
                disk,
                skew: Duration::ZERO,
                waiting: VecDeque::new(),
                synced: 0,
                ballots: Vec::new(),
                tick_at: None,
                links: BTreeMap::new(),
            };
            world.add_host(format!("10.0.0.{}", number + 1), Kind::Watcher(Box::new(watcher)));
        }
        for number in 0..servers {
            let ip = server_ip(number);
            let upstream = (number > 0).then(|| (server_ip(0), 6379));
            let server = Server::new(&ip, world.run_id(), upstream);
            world.add_host(ip, Kind::Server(server));
        }
        world
    }

    fn add_host(&mut self, ip: String, kind: Kind) {
        let frozen = None;
        self.hosts.push(Host { ip, up: true, frozen, slow: Duration::ZERO, life: 0, kind });
    }

    fn run_id(&mut self) -> String {
        (0..5).map(|_| format!("{:08x}", self.chance.number() as u32)).collect()
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.trace.note(self.now, &text());
    }

    /// Something that must not happen did. The first of it is what counts.
    fn violate(&mut self, what: &str) {
        let at = micros(self.now);
        self.violation.get_or_insert_with(|| format!("at {at} us: {what}"));
    }

    fn begin(&mut self) {
        for host in 0..self.hosts.len() {
            if matches!(self.hosts[host].kind, Kind::Watcher(_)) {
                self.start(host);
            }
        }
        self.replicate();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin => self.begin(),
            Event::Tick { host, life } => self.on_tick(host, life),
            Event::ConnectArrives { conn } => self.on_connect(conn),
            Event::ToServer { conn } => self.pump_to_server(conn),
            Event::ToClient { conn } => self.pump_to_client(conn),
            Event::Synced { host, life, number, voted } => self.on_synced(host, life, number, voted),
            Event::Stray { host, request } => {
                if self.runs(host) {
                    self.serve_watcher(host, ClientId(0), request);
                }
            }
            Event::Replicate => self.replicate(),
            Event::Fault => self.fault(),
            Event::Heal => self.heal(),
            Event::Check => self.check_agreement(),
            Event::Restart { host, life } => {
                if self.hosts[host].life == life && !self.hosts[host].up {
                    self.restart(host);
                }
            }
        }
    }

    /// Whether a host takes in anything now.
    fn runs(&self, host: usize) -> bool {
        let host = &self.hosts[host];
        host.up && host.frozen.is_none_or(|until| until <= self.now)
    }

    fn latency(&mut self, from: usize, to: usize) -> Duration {
        let slow = self.hosts[from].slow + self.hosts[to].slow;
        self.chance.millis(0, self.longest_latency) + slow
    }

    fn watcher(&mut self, host: usize) -> &mut Watcher {
        match &mut self.hosts[host].kind {
            Kind::Watcher(watcher) => watcher,
            Kind::Server(_) => unreachable!("host {host} is a server"),
        }
    }

    fn server(&mut self, host: usize) -> &mut Server {
        match &mut self.hosts[host].kind {
            Kind::Server(server) => server,
            Kind::Watcher(_) => unreachable!("host {host} is a sentinel"),
        }
    }

    /// Starts a sentinel's process from what its disk holds.
    fn start(&mut self, host: usize) {
        let seed = self.chance.number();
        let (now, watcher) = (self.now, self.watcher(host));
        let config = Config::parse(&watcher.disk.config).expect("a sentinel reads what it wrote");
        let groups = match watcher.disk.load() {
            Ok(groups) => groups,
            Err(error) => {
                self.violate(&format!("a journal that a crash left unreadable: {error}"));
                return;
            }
        };
        let mut out = Vec::new();
        let sentinel = Sentinel::new(now + watcher.skew, config, groups, seed, &mut out);
        watcher.sentinel = Some(sentinel);
        watcher.waiting.clear();
        watcher.synced = 0;
        watcher.ballots.clear();
        watcher.tick_at = None;
        watcher.links.clear();
        self.carry_out(host, out);
        self.plan_tick(host);
    }

    fn plan_tick(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let now = self.now;
        let watcher = self.watcher(host);
        let Some(due) = watcher.sentinel.as_ref().and_then(Sentinel::next_deadline) else { return };
        let due = (due - watcher.skew).max(now);
        if watcher.tick_at.is_none_or(|at| due < at || at < now) {
            watcher.tick_at = Some(due);
            self.at(due, Event::Tick { host, life });
        }
    }

    fn on_tick(&mut self, host: usize, life: u64) {
        if self.hosts[host].life != life || !self.hosts[host].up {
            return;
        }
        if let Some(until) = self.hosts[host].frozen.filter(|&until| until > self.now) {
            self.at(until, Event::Tick { host, life });
            return;
        }
        let now = self.now;
        let watcher = self.watcher(host);
        if watcher.tick_at.is_some_and(|at| at > now) {
            return;
        }
        watcher.tick_at = None;
        let due = watcher.sentinel.as_ref().and_then(Sentinel::next_deadline);
        if due.is_some_and(|due| due - watcher.skew <= now) {
            self.feed(host, Input::Deadline);
        } else {
            self.plan_tick(host);
        }
    }

    /// Gives a sentinel an input, looks at what it makes of it, and carries that out.
    fn feed(&mut self, host: usize, input: Input) {
        let now = self.now;
        let watcher = self.watcher(host);
        let Some(mut sentinel) = watcher.sentinel.take() else { return };
        let mut out = Vec::new();
        sentinel.handle(now + watcher.skew, input, &mut out);
        self.examine(host, &sentinel, &out);
        self.watcher(host).sentinel = Some(sentinel);
        self.carry_out(host, out);
        self.plan_tick(host);
    }

    fn examine(&mut self, host: usize, sentinel: &Sentinel, out: &[Action]) {
        let id = sentinel.my_id().to_string();
        let mut seen = vec![Seen::Step { sentinel }];
        for action in out {
            match action {
                Action::Persist { record, .. } => {
                    let ballots = record.changes.iter().filter_map(|change| match change {
                        Change::Ballot { term, vote, .. } => {
                            Some(Seen::Ballot { voter: &id, term: term.0, vote: *vote })
                        }
                        _ => None,
                    });
                    seen.extend(ballots);
                }
                Action::Send { link, request, .. } if request.get(1).is_some_and(|word| word == b"NO") => {
                    let conn = self.watcher(host).links.get(link).copied();
                    let server = conn.and_then(|conn| self.streams.get(&conn)).map(|stream| stream.server);
                    if let Some(server) = server {
                        assert_ne!(self.plan.plant, Some(Plant::Panic), "planted");
                        self.promotions += 1;
                        seen.push(Seen::Promotion {
                            leader: sentinel,
                            server: self.hosts[server].ip.clone(),
                        });
                    }
                }
                _ => {}
            }
        }
        let invariants = &mut self.invariants;
        let check = |seen: &Seen<'_>| invariants.iter_mut().find_map(|invariant| invariant.check(seen).err());
        if let Some(violation) = seen.iter().find_map(check) {
            self.violate(&violation);
        }
    }

    fn carry_out(&mut self, host: usize, out: Vec<Action>) {
        let (life, plant) = (self.hosts[host].life, self.plan.plant);
        for action in out {
            match action {
                Action::Persist { number, record } => {
                    let vote = |change: &Change| matches!(change, Change::Ballot { vote, .. } if *vote != 0);
                    let voted = record.changes.iter().any(vote);
                    let ballots = record.changes.iter().filter_map(|change| match change {
                        Change::Ballot { term, vote, .. } => Some((number, term.0, *vote)),
                        _ => None,
                    });
                    self.watcher(host).ballots.extend(ballots);
                    self.watcher(host).disk.append(record, plant);
                    let at = self.now + self.chance.millis(0, 4);
                    self.at(at, Event::Synced { host, life, number, voted });
                }
                Action::WriteConfig { text } => self.watcher(host).disk.config = text,
                Action::Log { text, .. } => self.note(|| format!("sentinel {host}: {text}")),
                Action::Publish { .. } | Action::Resolve { .. } | Action::KillScript(_) | Action::Crash => {}
                Action::RunScript { .. } => {}
                action => self.watcher(host).waiting.push_back(action),
            }
        }
        self.release(host);
    }

    /// Does what no longer waits for the disk, in order.
    fn release(&mut self, host: usize) {
        loop {
            let watcher = self.watcher(host);
            let after = match watcher.waiting.front() {
                Some(Action::Send { after, .. } | Action::Reply { after, .. }) => *after,
                Some(_) => 0,
                None => return,
            };
            if after > watcher.synced {
                return;
            }
            match self.watcher(host).waiting.pop_front() {
                Some(Action::Connect { link, addr, .. }) => self.connect(host, link, &addr.host),
                Some(Action::Close(link)) => self.close_link(host, link),
                Some(Action::Send { link, request, .. }) => self.send(host, link, request),
                Some(Action::Reply { client, reply, .. }) => {
                    self.push_to_client(client.0, ToClient::Bytes(reply));
                }
                _ => {}
            }
        }
    }

    fn on_synced(&mut self, host: usize, life: u64, number: u64, voted: bool) {
        if self.hosts[host].life != life || !self.hosts[host].up {
            return;
        }
        let watcher = self.watcher(host);
        watcher.disk.sync();
        watcher.synced = watcher.synced.max(number);
        let given: Vec<_> = watcher.ballots.extract_if(.., |(record, ..)| *record <= number).collect();
        let voter =
            watcher.sentinel.as_ref().map(|sentinel| sentinel.my_id().to_string()).unwrap_or_default();
        for (_, term, vote) in given {
            let seen = Seen::Given { voter: &voter, term, vote };
            let found = self.invariants.iter_mut().find_map(|invariant| invariant.check(&seen).err());
            found.iter().for_each(|violation| self.violate(violation));
        }
        self.release(host);
        // The worst moment to die, and to be back before the election is over.
        if voted && !self.healed && self.chance.percent(3) {
            self.crash(host, 1, 40);
        }
    }

    /// A request that a sentinel received.
    fn serve_watcher(&mut self, host: usize, client: ClientId, args: Vec<Vec<u8>>) {
        match args.first().map(Vec::as_slice) {
            Some(b"SENTINEL" | b"PUBLISH" | b"ROLE") => {
                self.feed(host, Input::Command { client, protocol: Protocol::Resp2, args });
            }
            word => {
                let reply = if word == Some(b"PING") { b"+PONG\r\n".to_vec() } else { b"+OK\r\n".to_vec() };
                self.watcher(host).waiting.push_back(Action::Reply { client, after: 0, reply });
                self.release(host);
            }
        }
    }

    fn serve_server(&mut self, host: usize, conn: u64, request: &[Vec<u8>]) {
        let Some(stream) = self.streams.get_mut(&conn) else { return };
        let exec = request.first().is_some_and(|word| word.eq_ignore_ascii_case(b"EXEC"));
        if let Some(queued) = stream.multi.as_mut().filter(|_| !exec) {
            queued.push(request.to_vec());
            self.push_to_client(conn, ToClient::Bytes(b"+QUEUED\r\n".to_vec()));
            return;
        }
        let queued = stream.multi.take().unwrap_or_default();
        if exec {
            let mut reply = format!("*{}\r\n", queued.len()).into_bytes();
            for request in queued {
                reply.extend(self.execute(host, conn, &request));
            }
            self.push_to_client(conn, ToClient::Bytes(reply));
        } else {
            let reply = self.execute(host, conn, request);
            self.push_to_client(conn, ToClient::Bytes(reply));
        }
    }

    fn execute(&mut self, host: usize, conn: u64, request: &[Vec<u8>]) -> Vec<u8> {
        let now = self.now;
        let replicas = self.replicas_of(host);
        let (reply, effect) = self.server(host).answer(now, request, &replicas);
        match effect {
            Effect::None | Effect::Exec => {}
            Effect::Multi => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.multi = Some(Vec::new());
                }
            }
            Effect::Subscribe => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.subscribed = true;
                }
            }
            Effect::Publish(payload) => self.publish(host, &payload),
            Effect::Kill { subscribed } => {
                let conns = self.conns(|stream| stream.server == host && stream.subscribed == subscribed);
                for other in conns.into_iter().filter(|&other| other != conn) {
                    self.push_to_client(other, ToClient::Closed);
                }
            }
            Effect::Follow(upstream) => {
                self.note(|| format!("server {host} follows {upstream:?}"));
                self.server(host).follow(now, upstream);
            }
            Effect::HandOver(ip, port) => self.hand_over(host, &ip, port),
        }
        reply
    }

    fn hand_over(&mut self, host: usize, ip: &str, port: u16) {
        let Some(to) = self.find(ip) else { return };
        if !self.server(to).link_up || !self.runs(to) {
            return;
        }
        let now = self.now;
        self.note(|| format!("server {host} hands over to {to}"));
        self.server(to).follow(now, None);
        self.server(host).follow(now, Some((ip.to_owned(), port)));
    }

    fn publish(&mut self, host: usize, payload: &[u8]) {
        let mut message = Vec::new();
        let mut writer = resp::Writer::new(&mut message, Protocol::Resp2);
        writer.array(3);
        writer.bulk(b"message");
        writer.bulk(sentinel::HELLO_CHANNEL.as_bytes());
        writer.bulk(payload);
        for conn in self.conns(|stream| stream.server == host && stream.subscribed) {
            self.push_to_client(conn, ToClient::Bytes(message.clone()));
        }
    }

    fn find(&self, ip: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.ip == ip)
    }

    fn replicas_of(&self, host: usize) -> Vec<(String, u64)> {
        let ip = &self.hosts[host].ip;
        let connected = |other: &Host| match &other.kind {
            Kind::Server(server)
                if server.link_up && server.upstream.as_ref().is_some_and(|(at, _)| at == ip) =>
            {
                Some((other.ip.clone(), server.offset))
            }
            _ => None,
        };
        self.hosts.iter().filter_map(connected).collect()
    }

    /// Masters take writes, replicas that reach their master have them.
    fn replicate(&mut self) {
        for host in 0..self.hosts.len() {
            let Kind::Server(server) = &self.hosts[host].kind else { continue };
            let upstream = server.upstream.clone();
            if !self.runs(host) {
                continue;
            }
            let Some((ip, _)) = upstream else {
                self.server(host).offset += 5;
                continue;
            };
            let master = self.find(&ip).filter(|&master| {
                self.runs(master)
                    && !self.cuts.contains(&(host, master))
                    && !self.cuts.contains(&(master, host))
            });
            let offset = master.map(|master| self.server(master).offset);
            let now = self.now;
            let server = self.server(host);
            if let Some(offset) = offset {
                server.link_up = true;
                server.offset = offset;
            } else if server.link_up {
                server.link_up = false;
                server.link_lost = now;
            }
        }
        let next = self.now + REPLICATE;
        self.at(next, Event::Replicate);
    }

    fn check_agreement(&mut self) {
        let watchers = self.hosts.iter().filter_map(|host| match &host.kind {
            Kind::Watcher(watcher) => watcher.sentinel.as_ref(),
            Kind::Server(_) => None,
        });
        let servers: Vec<&Server> = self
            .hosts
            .iter()
            .filter_map(|host| match &host.kind {
                Kind::Server(server) => Some(server),
                Kind::Watcher(_) => None,
            })
            .collect();
        self.disagreement = invariants::agreement::disagreement(watchers, &servers);
        self.agreed = if self.disagreement.is_none() { self.agreed + 1 } else { 0 };
        let next = self.now + CHECK;
        self.at(next, Event::Check);
    }
}

fn server_ip(number: usize) -> String {
    format!("10.0.1.{}", number + 1)
}

fn first_config(watchers: usize) -> String {
    let quorum = watchers / 2 + 1;
    format!(
        "sentinel monitor {MASTER} {} 6379 {quorum}\n\
         sentinel down-after-milliseconds {MASTER} 1000\n\
         sentinel failover-timeout {MASTER} 10000\n",
        server_ip(0)
    )
}

#[cfg(test)]
mod tests;
