//! Simulates sentinels that monitor one master and its replicas. The sentinels and the servers'
//! replication ([`crate::data`]) are real; the servers' replies are simulated.
//!
//! Connections are streams like TCP: data arrives in order or the connection breaks, and a
//! partition holds bytes back until it heals. Raft messages may also be lost, duplicated and
//! reordered, because the protocol must tolerate that.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use clock::Instant;
use consensus::GroupChange;
use resp::{Protocol, parse_value};
use sentinel::{
    ClientId, JournalRecord, LinkId, Sentinel, SentinelAction, SentinelConfig, SentinelInput, SentinelOutput,
};

use self::disk::Disk;
use self::invariants::Seen;
use self::server::{Server, Told};
use self::stream::{Stream, ToClient};
use crate::data::{Data, Order};
use crate::stage::{Phases, Play, Stage, plan_tick, play};
use crate::{Chance, Outcome, Plan, Plant, Rule};

mod data;
mod disk;
mod faults;
mod handovers;
mod invariants;
mod server;
mod stream;

pub(crate) const MASTER: &str = "mymaster";

/// Replicas connect before sentinels start, so that the master reports them in its first INFO
/// reply.
const SERVERS_FIRST: Duration = Duration::from_secs(1);
/// Retry interval for bytes held back by the network.
const RETRANSMIT: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
enum Event {
    /// Demonstrates the injected bug: all sentinels die and lose their state.
    Forget,
    /// A sentinel starts for the first time.
    Start {
        host: usize,
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
    /// A server in a handover is polled.
    Handover {
        host: usize,
        life: u64,
    },
    /// A Raft message outside of its stream arrives.
    Stray {
        host: usize,
        request: Vec<Vec<u8>>,
    },
}

/// A sentinel process.
struct Watcher {
    sentinel: Option<Sentinel>,
    disk: Disk,
    /// Actions that wait for the disk, and those queued behind them.
    waiting: VecDeque<Traffic>,
    synced: u64,
    /// Votes not yet on the disk: (record, term, vote).
    ballots: Vec<(u64, u64, u64)>,
    links: BTreeMap<LinkId, u64>,
    /// The last INFO reply of each server.
    told: BTreeMap<usize, Told>,
}

/// A network action of a sentinel.
enum Traffic {
    Connect { link: LinkId, ip: String },
    Close(LinkId),
    Send { link: LinkId, after: u64, request: Vec<Vec<u8>> },
    Reply { client: ClientId, after: u64, reply: Vec<u8> },
}

impl Traffic {
    /// Returns the record that must be on the disk first.
    fn after(&self) -> u64 {
        match self {
            Self::Send { after, .. } | Self::Reply { after, .. } => *after,
            Self::Connect { .. } | Self::Close(_) => 0,
        }
    }
}

struct World {
    stage: Stage<Event>,
    /// The address of each host.
    ips: Vec<String>,
    /// The sentinels, which are the first hosts.
    watchers: Vec<Watcher>,
    /// The servers, which are the hosts after them.
    servers: Vec<Server>,
    streams: BTreeMap<u64, Stream>,
    opened: u64,
    invariants: Vec<invariants::Named>,
}

/// Runs one plan. With `traced`, the result includes the event trace.
pub(crate) fn run(plan: Plan, traced: bool) -> Outcome {
    play(World::new(plan, traced))
}

impl Play for World {
    const PHASES: Phases = Phases {
        settle: Duration::from_secs(7),
        faults: Duration::from_secs(12),
        fault_gap: (100, 1500),
        // The longest TILT (30 s) plus the slowest recovery.
        converge: Duration::from_secs(120),
        stable: 4,
    };
    const LIVENESS: Rule = Rule::Agreement;
    type Event = Event;

    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.stage
    }

    fn begin(&mut self) {
        for host in self.hosts_of(true) {
            self.stage.after(SERVERS_FIRST, Event::Start { host });
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start { host } => self.start(host),
            Event::Forget => self.hosts_of(true).into_iter().for_each(|host| self.crash(host, 1, 40)),
            Event::ConnectArrives { conn } => self.on_connect(conn),
            Event::ToServer { conn } => self.pump_to_server(conn),
            Event::ToClient { conn } => self.pump_to_client(conn),
            Event::Synced { host, life, number, voted } => self.on_synced(host, life, number, voted),
            Event::Handover { host, life } if self.stage.lives(host, life) => {
                if self.stage.runs(host) {
                    self.drive_handover(host);
                } else {
                    self.stage.after(RETRANSMIT, Event::Handover { host, life });
                }
            }
            Event::Handover { .. } => {}
            Event::Stray { host, request } => {
                if self.stage.runs(host) {
                    self.serve_watcher(host, ClientId(0), request);
                }
            }
        }
    }

    fn beat(&mut self) {
        self.replicate();
    }

    fn fault(&mut self) {
        self.go_wrong();
    }

    fn deadline(&mut self, host: usize) -> Option<Instant> {
        self.watchers.get(host)?.sentinel.as_ref().and_then(Sentinel::next_deadline)
    }

    fn on_deadline(&mut self, host: usize) {
        self.feed(host, SentinelInput::Deadline);
    }

    fn restart(&mut self, host: usize) {
        self.start_again(host);
    }

    fn go_on(&mut self, _host: usize) {}

    fn disagreement(&mut self) -> Option<String> {
        let sentinels = self.watchers.iter().filter_map(|watcher| watcher.sentinel.as_ref());
        let stores = self.stage.data.stores.iter().skip(self.watchers.len());
        let servers: Vec<(&Server, bool)> =
            self.servers.iter().zip(stores).map(|(server, store)| (server, store.is_in_sync())).collect();
        invariants::agreement::disagreement(sentinels, &servers)
    }
}

impl World {
    /// Creates sentinels that know only the master, and its replicas.
    fn new(plan: Plan, traced: bool) -> Self {
        let mut chance = Chance::new(plan.seed);
        let watchers = if plan.nodes >= 10 { 5 } else { 3 };
        let servers = plan.nodes.saturating_sub(watchers).max(2);
        let longest_latency = chance.pick(&[1, 3, 10, 30]);
        let data = Data::new(&mut chance, data::slots(), false);
        let mut world = Self {
            stage: Stage::new(plan, chance, data, longest_latency, traced),
            ips: Vec::new(),
            watchers: Vec::new(),
            servers: Vec::new(),
            streams: BTreeMap::new(),
            opened: 0,
            invariants: invariants::all(quorum(watchers)),
        };
        for number in 0..watchers {
            let watcher = Watcher::new(Disk::new(first_config(watchers, plan.plant).into_bytes()));
            world.watchers.push(watcher);
            world.add_host(format!("10.0.0.{}", number + 1));
        }
        for number in 0..servers {
            let ip = server_ip(number);
            let upstream = (number > 0).then(|| (server_ip(0), 6379));
            let server = Server::new(&ip, world.run_id(), upstream);
            world.servers.push(server);
            world.add_host(ip);
            if number > 0 {
                world.stage.order(watchers + number, Order::Follow { master: watchers, foreign: false });
            }
            world.stage.begin_data(watchers + number);
        }
        world
    }

    fn add_host(&mut self, ip: String) {
        self.stage.add_process(ip.clone());
        self.ips.push(ip);
    }

    fn run_id(&mut self) -> String {
        (0..5).map(|_| format!("{:08x}", self.stage.chance.number() as u32)).collect()
    }

    fn watcher(&mut self, host: usize) -> &mut Watcher {
        &mut self.watchers[host]
    }

    fn server(&mut self, host: usize) -> &mut Server {
        &mut self.servers[host - self.watchers.len()]
    }

    /// Starts a sentinel from its disk.
    fn start(&mut self, host: usize) {
        let seed = self.stage.chance.number();
        let now = self.stage.now + self.stage.processes[host].skew;
        let watcher = self.watcher(host);
        let config = SentinelConfig::parse(&watcher.disk.config).expect("a sentinel reads what it wrote");
        let groups = match watcher.disk.load() {
            Ok(groups) => groups,
            Err(error) => {
                self.stage.break_off(&format!("a journal that a crash left unreadable: {error}"));
                return;
            }
        };
        let mut out = SentinelOutput::default();
        let sentinel = Sentinel::new(now, config, groups, seed, &mut out);
        watcher.sentinel = Some(sentinel);
        watcher.waiting.clear();
        watcher.synced = 0;
        watcher.ballots.clear();
        watcher.links.clear();
        watcher.told.clear();
        self.carry_out(host, out);
        plan_tick(self, host);
    }

    /// Passes an input to a sentinel, checks its state and carries out its actions.
    fn feed(&mut self, host: usize, input: SentinelInput) {
        let now = self.stage.now + self.stage.processes[host].skew;
        let Some(mut sentinel) = self.watcher(host).sentinel.take() else { return };
        let mut out = SentinelOutput::default();
        sentinel.handle(now, input, &mut out);
        self.examine(host, &sentinel, &out);
        self.watcher(host).sentinel = Some(sentinel);
        self.carry_out(host, out);
        plan_tick(self, host);
    }

    fn examine(&mut self, host: usize, sentinel: &Sentinel, out: &SentinelOutput) {
        let id = sentinel.my_id().to_string();
        let mut seen = Vec::new();
        let status = sentinel.status(MASTER);
        let watched = status.as_ref().map(|status| status.watched.clone());
        seen.extend(status.map(|status| Seen::Step { sentinel, status }));
        for JournalRecord { record, .. } in &out.records {
            let ballots = record.changes.iter().filter_map(|change| match change {
                GroupChange::Ballot { term, vote, .. } => {
                    Some(Seen::Ballot { voter: &id, term: term.0, vote: *vote })
                }
                _ => None,
            });
            seen.extend(ballots);
        }
        for action in &out.actions {
            match action {
                SentinelAction::Log { text, .. } if text.contains("+selected-slave") => {
                    self.check_choice(host, watched.as_ref(), text);
                }
                SentinelAction::Send { link, request, .. }
                    if request.get(1).is_some_and(|word| word == b"NO") =>
                {
                    let conn = self.watcher(host).links.get(link).copied();
                    let server = conn.and_then(|conn| self.streams.get(&conn)).map(|stream| stream.server);
                    if let Some(server) = server {
                        assert_ne!(self.stage.plan.plant, Some(Plant::Panic), "planted");
                        self.stage.promotions += 1;
                        if self.stage.plan.plant == Some(Plant::ForgottenWrites) {
                            let soon = self.stage.chance.millis(0, 60);
                            self.stage.after(soon, Event::Forget);
                        }
                        seen.push(Seen::Promotion { leader: sentinel, server: self.ips[server].clone() });
                    }
                }
                _ => {}
            }
        }
        for seen in seen {
            tell(&mut self.invariants, &mut self.stage, &seen);
        }
    }

    fn carry_out(&mut self, host: usize, out: SentinelOutput) {
        for record in out.records {
            self.persist(host, record);
        }
        let plant = self.stage.plan.plant;
        for action in out.actions {
            let traffic = match action {
                SentinelAction::WriteConfig { text } => {
                    let forgets = plant == Some(Plant::ForgottenWrites);
                    self.watcher(host).disk.config = if forgets { without_epochs(&text) } else { text };
                    continue;
                }
                SentinelAction::Log { text, .. } => {
                    self.stage.note(|| format!("sentinel {host}: {text}"));
                    continue;
                }
                // There are no subscribers, host names or scripts.
                SentinelAction::Publish { .. }
                | SentinelAction::Resolve { .. }
                | SentinelAction::RunScript { .. }
                | SentinelAction::KillScript(_)
                | SentinelAction::SetLogLevel(_)
                | SentinelAction::Crash => continue,
                SentinelAction::Connect { link, addr, .. } => Traffic::Connect { link, ip: addr.host },
                SentinelAction::Close(link) => Traffic::Close(link),
                SentinelAction::Send { link, after, request } => Traffic::Send { link, after, request },
                SentinelAction::Reply { client, after, reply, .. } => Traffic::Reply { client, after, reply },
            };
            self.watcher(host).waiting.push_back(traffic);
        }
        self.release(host);
    }

    /// Appends to the journal, which takes a moment.
    fn persist(&mut self, host: usize, JournalRecord { number, record }: JournalRecord) {
        let (life, plant) = (self.stage.processes[host].life, self.stage.plan.plant);
        let vote = |change: &GroupChange| matches!(change, GroupChange::Ballot { vote, .. } if *vote != 0);
        let voted = record.changes.iter().any(vote);
        let ballots = record.changes.iter().filter_map(|change| match change {
            GroupChange::Ballot { term, vote, .. } => Some((number, term.0, *vote)),
            _ => None,
        });
        self.watcher(host).ballots.extend(ballots);
        self.watcher(host).disk.append(record, plant);
        let time = self.stage.chance.millis(0, 4);
        self.stage.after(time, Event::Synced { host, life, number, voted });
    }

    /// Performs the actions that no longer wait for the disk, in order.
    fn release(&mut self, host: usize) {
        loop {
            let watcher = self.watcher(host);
            let synced = watcher.synced;
            match watcher.waiting.pop_front_if(|traffic| traffic.after() <= synced) {
                Some(Traffic::Connect { link, ip }) => self.connect(host, link, &ip),
                Some(Traffic::Close(link)) => self.close_link(host, link),
                Some(Traffic::Send { link, request, .. }) => self.send(host, link, request),
                Some(Traffic::Reply { client, reply, .. }) => {
                    self.push_to_client(client.0, ToClient::Bytes(reply));
                }
                None => return,
            }
        }
    }

    fn on_synced(&mut self, host: usize, life: u64, number: u64, voted: bool) {
        if !self.stage.lives(host, life) {
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
            tell(&mut self.invariants, &mut self.stage, &seen);
        }
        self.release(host);
        // Crashing right after a vote and restarting before the election ends is the worst case.
        if voted && !self.stage.healed && self.stage.chance.percent(3) {
            self.crash(host, 1, 40);
        }
    }

    /// Handles a request to a sentinel.
    fn serve_watcher(&mut self, host: usize, client: ClientId, args: Vec<Vec<u8>>) {
        match args.first().map(Vec::as_slice) {
            Some(b"SENTINEL" | b"PUBLISH" | b"ROLE") => {
                self.feed(host, SentinelInput::Command { client, protocol: Protocol::Resp2, args });
            }
            word => {
                let reply = if word == Some(b"PING") { b"+PONG\r\n".to_vec() } else { b"+OK\r\n".to_vec() };
                self.watcher(host).waiting.push_back(Traffic::Reply { client, after: 0, reply });
                self.release(host);
            }
        }
    }

    fn find(&self, ip: &str) -> Option<usize> {
        self.ips.iter().position(|other| other == ip)
    }
}

/// Passes an event to the invariants.
fn tell(invariants: &mut [invariants::Named], stage: &mut Stage<Event>, seen: &Seen<'_>) {
    for (rule, invariant) in invariants {
        if let Err(violation) = invariant.check(seen) {
            stage.violate(*rule, &violation);
        }
    }
}

impl Watcher {
    fn new(disk: Disk) -> Self {
        Self {
            sentinel: None,
            disk,
            waiting: VecDeque::new(),
            synced: 0,
            ballots: Vec::new(),
            links: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }
}

fn server_ip(number: usize) -> String {
    format!("10.0.1.{}", number + 1)
}

/// Returns the quorum for a number of sentinels.
fn quorum(watchers: usize) -> usize {
    watchers / 2 + 1
}

/// The injected bug: a configuration with the sentinel ids but without epochs.
fn without_epochs(config: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(config);
    let lines = text.lines().filter(|line| !line.contains("-epoch "));
    lines.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()
}

fn first_config(watchers: usize, plant: Option<Plant>) -> String {
    let quorum = if plant == Some(Plant::IgnoredQuorum) { 1 } else { quorum(watchers) };
    format!(
        "sentinel monitor {MASTER} {} 6379 {quorum}\n\
         sentinel down-after-milliseconds {MASTER} 1000\n\
         sentinel failover-timeout {MASTER} 10000\n",
        server_ip(0)
    )
}
