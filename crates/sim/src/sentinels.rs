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
use self::invariants::SentinelObservation;
use self::server::{ReplicaInfo, Server};
use self::stream::{SentinelConnection, ToClient};
use crate::data::{Data, RoleChange};
use crate::simulation::{Phases, SimulatedSystem, Simulation, run_simulation, schedule_tick};
use crate::{InjectedBug, InvariantName, Plan, RandomSource, RunResult};

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
/// Interval at which bytes held back by the network are retried.
const RETRANSMIT: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
enum SentinelSimEvent {
    /// All sentinels die and lose their state, to demonstrate an injected bug.
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
        incarnation: u64,
        number: u64,
        voted: bool,
    },
    /// A server in a handover is polled.
    Handover {
        host: usize,
        incarnation: u64,
    },
    /// A Raft message arrives outside of its stream's order.
    Stray {
        host: usize,
        request: Vec<Vec<u8>>,
    },
}

/// The state of a sentinel process.
struct SentinelProcess {
    sentinel: Option<Sentinel>,
    disk: Disk,
    /// Actions that wait for the disk, and those queued behind them.
    waiting_actions: VecDeque<NetworkAction>,
    synced_records: u64,
    /// Votes that are not on disk yet, as record number, term and vote.
    ballots: Vec<(u64, u64, u64)>,
    links: BTreeMap<LinkId, u64>,
    /// The last INFO reply of each replica, by host.
    last_info: BTreeMap<usize, ReplicaInfo>,
}

/// An action of a sentinel on the network.
enum NetworkAction {
    Connect { link: LinkId, ip: String },
    Close(LinkId),
    Send { link: LinkId, required_record: u64, request: Vec<Vec<u8>> },
    Reply { client: ClientId, required_record: u64, reply: Vec<u8> },
}

impl NetworkAction {
    /// Returns the number of the record that must be on disk before the action.
    fn required_record(&self) -> u64 {
        match self {
            Self::Send { required_record: after, .. } | Self::Reply { required_record: after, .. } => *after,
            Self::Connect { .. } | Self::Close(_) => 0,
        }
    }
}

struct SentinelWorld {
    simulation: Simulation<SentinelSimEvent>,
    /// The IP address of each host.
    ips: Vec<String>,
    /// The sentinels, which are the first hosts.
    sentinels: Vec<SentinelProcess>,
    /// The servers, whose hosts follow those of the sentinels.
    servers: Vec<Server>,
    streams: BTreeMap<u64, SentinelConnection>,
    opened: u64,
    invariants: Vec<invariants::NamedInvariant>,
}

/// Runs one plan. With `traced`, the result includes the event trace.
pub(crate) fn run(plan: Plan, traced: bool) -> RunResult {
    run_simulation(SentinelWorld::new(plan, traced))
}

impl SimulatedSystem for SentinelWorld {
    const PHASES: Phases = Phases {
        settle: Duration::from_secs(7),
        faults: Duration::from_secs(12),
        fault_interval_millis: (100, 1500),
        // The phase covers the longest TILT (30 s) plus the slowest recovery.
        converge: Duration::from_secs(120),
        stable: 4,
    };
    const LIVENESS: InvariantName = InvariantName::Agreement;
    type Event = SentinelSimEvent;

    fn simulation(&mut self) -> &mut Simulation<SentinelSimEvent> {
        &mut self.simulation
    }

    fn begin(&mut self) {
        for host in self.hosts_of(true) {
            self.simulation.schedule_after(SERVERS_FIRST, SentinelSimEvent::Start { host });
        }
    }

    fn handle_event(&mut self, event: SentinelSimEvent) {
        match event {
            SentinelSimEvent::Start { host } => self.start(host),
            SentinelSimEvent::Forget => {
                self.hosts_of(true).into_iter().for_each(|host| self.crash(host, 1, 40));
            }
            SentinelSimEvent::ConnectArrives { conn } => self.on_connect(conn),
            SentinelSimEvent::ToServer { conn } => self.pump_to_server(conn),
            SentinelSimEvent::ToClient { conn } => self.pump_to_client(conn),
            SentinelSimEvent::Synced { host, incarnation, number, voted } => {
                self.on_synced(host, incarnation, number, voted);
            }
            SentinelSimEvent::Handover { host, incarnation }
                if self.simulation.is_incarnation(host, incarnation) =>
            {
                if self.simulation.is_running(host) {
                    self.drive_handover(host);
                } else {
                    self.simulation
                        .schedule_after(RETRANSMIT, SentinelSimEvent::Handover { host, incarnation });
                }
            }
            SentinelSimEvent::Handover { .. } => {}
            SentinelSimEvent::Stray { host, request } => {
                if self.simulation.is_running(host) {
                    self.serve_watcher(host, ClientId(0), request);
                }
            }
        }
    }

    fn write_data(&mut self) {
        self.replicate();
    }

    fn inject_fault(&mut self) {
        self.inject_random_fault();
    }

    fn deadline(&mut self, host: usize) -> Option<Instant> {
        self.sentinels.get(host)?.sentinel.as_ref().and_then(Sentinel::next_deadline)
    }

    fn on_deadline(&mut self, host: usize) {
        self.handle_input(host, SentinelInput::Deadline);
    }

    fn restart(&mut self, host: usize) {
        self.restart(host);
    }

    fn continue_process(&mut self, _host: usize) {}

    fn disagreement(&mut self) -> Option<String> {
        let sentinels = self.sentinels.iter().filter_map(|sentinel| sentinel.sentinel.as_ref());
        let stores = self.simulation.data.stores.iter().skip(self.sentinels.len());
        let servers: Vec<(&Server, bool)> =
            self.servers.iter().zip(stores).map(|(server, store)| (server, store.is_in_sync())).collect();
        invariants::agreement::disagreement(sentinels, &servers)
    }
}

impl SentinelWorld {
    /// Creates sentinels that know only the master, and its replicas.
    fn new(plan: Plan, traced: bool) -> Self {
        let mut random = RandomSource::new(plan.seed);
        let sentinels = if plan.nodes >= 10 { 5 } else { 3 };
        let servers = plan.nodes.saturating_sub(sentinels).max(2);
        let longest_latency = random.pick(&[1, 3, 10, 30]);
        let data = Data::new(&mut random, data::slots(), false);
        let mut world = Self {
            simulation: Simulation::new(plan, random, data, longest_latency, traced),
            ips: Vec::new(),
            sentinels: Vec::new(),
            servers: Vec::new(),
            streams: BTreeMap::new(),
            opened: 0,
            invariants: invariants::all(quorum(sentinels)),
        };
        for number in 0..sentinels {
            let sentinel =
                SentinelProcess::new(Disk::new(first_config(sentinels, plan.injected_bug).into_bytes()));
            world.sentinels.push(sentinel);
            world.add_host(format!("10.0.0.{}", number + 1));
        }
        for number in 0..servers {
            let ip = server_ip(number);
            let upstream = (number > 0).then(|| (server_ip(0), 6379));
            let server = Server::new(&ip, world.run_id(), upstream);
            world.servers.push(server);
            world.add_host(ip);
            if number > 0 {
                world.simulation.queue_role_change(
                    sentinels + number,
                    RoleChange::BecomeReplica { master: sentinels, foreign: false },
                );
            }
            world.simulation.begin_data(sentinels + number);
        }
        world
    }

    fn add_host(&mut self, ip: String) {
        self.simulation.add_process(ip.clone());
        self.ips.push(ip);
    }

    fn run_id(&mut self) -> String {
        (0..5).map(|_| format!("{:08x}", self.simulation.random.number() as u32)).collect()
    }

    fn sentinel(&mut self, host: usize) -> &mut SentinelProcess {
        &mut self.sentinels[host]
    }

    fn server(&mut self, host: usize) -> &mut Server {
        &mut self.servers[host - self.sentinels.len()]
    }

    /// Starts a sentinel from its disk.
    fn start(&mut self, host: usize) {
        let seed = self.simulation.random.number();
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        let process = self.sentinel(host);
        let config = SentinelConfig::parse(&process.disk.config).expect("a sentinel reads what it wrote");
        let groups = match process.disk.load() {
            Ok(groups) => groups,
            Err(error) => {
                self.simulation.abort_run(&format!("a journal that a crash left unreadable: {error}"));
                return;
            }
        };
        let mut out = SentinelOutput::default();
        let sentinel = Sentinel::new(now, config, groups, seed, &mut out);
        process.sentinel = Some(sentinel);
        process.waiting_actions.clear();
        process.synced_records = 0;
        process.ballots.clear();
        process.links.clear();
        process.last_info.clear();
        self.perform(host, out);
        schedule_tick(self, host);
    }

    /// Passes an input to a sentinel, checks its state and carries out its actions.
    fn handle_input(&mut self, host: usize, input: SentinelInput) {
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        let Some(mut sentinel) = self.sentinel(host).sentinel.take() else { return };
        let mut out = SentinelOutput::default();
        sentinel.handle(now, input, &mut out);
        self.check_output(host, &sentinel, &out);
        self.sentinel(host).sentinel = Some(sentinel);
        self.perform(host, out);
        schedule_tick(self, host);
    }

    fn check_output(&mut self, host: usize, sentinel: &Sentinel, out: &SentinelOutput) {
        let id = sentinel.my_id().to_string();
        let mut seen = Vec::new();
        let status = sentinel.status(MASTER);
        let watched = status.as_ref().map(|status| status.watched.clone());
        seen.extend(status.map(|status| SentinelObservation::Step { sentinel, status }));
        for JournalRecord { record, .. } in &out.records {
            let ballots = record.changes.iter().filter_map(|change| match change {
                GroupChange::Ballot { term, vote, .. } => {
                    Some(SentinelObservation::Ballot { voter: &id, term: term.0, vote: *vote })
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
                    let conn = self.sentinel(host).links.get(link).copied();
                    let server = conn.and_then(|conn| self.streams.get(&conn)).map(|stream| stream.server);
                    if let Some(server) = server {
                        assert_ne!(
                            self.simulation.plan.injected_bug,
                            Some(InjectedBug::Panic),
                            "injected panic"
                        );
                        self.simulation.promotions += 1;
                        if self.simulation.plan.injected_bug == Some(InjectedBug::LostDiskWrites) {
                            let soon = self.simulation.random.millis(0, 60);
                            self.simulation.schedule_after(soon, SentinelSimEvent::Forget);
                        }
                        seen.push(SentinelObservation::Promotion {
                            leader: sentinel,
                            server: self.ips[server].clone(),
                        });
                    }
                }
                _ => {}
            }
        }
        for seen in seen {
            check_invariants(&mut self.invariants, &mut self.simulation, &seen);
        }
    }

    fn perform(&mut self, host: usize, out: SentinelOutput) {
        for record in out.records {
            self.persist(host, record);
        }
        let injected_bug = self.simulation.plan.injected_bug;
        for action in out.actions {
            let traffic = match action {
                SentinelAction::WriteConfig { text } => {
                    let forgets = injected_bug == Some(InjectedBug::LostDiskWrites);
                    self.sentinel(host).disk.config = if forgets { without_epochs(&text) } else { text };
                    continue;
                }
                SentinelAction::Log { text, .. } => {
                    self.simulation.trace(|| format!("sentinel {host}: {text}"));
                    continue;
                }
                // No client is subscribed, and neither host names nor scripts are used.
                SentinelAction::Publish { .. }
                | SentinelAction::Resolve { .. }
                | SentinelAction::RunScript { .. }
                | SentinelAction::KillScript(_)
                | SentinelAction::SetLogLevel(_)
                | SentinelAction::Crash => continue,
                SentinelAction::Connect { link, addr, .. } => NetworkAction::Connect { link, ip: addr.host },
                SentinelAction::Close(link) => NetworkAction::Close(link),
                SentinelAction::Send { link, after, request } => {
                    NetworkAction::Send { link, required_record: after, request }
                }
                SentinelAction::Reply { client, after, reply, .. } => {
                    NetworkAction::Reply { client, required_record: after, reply }
                }
            };
            self.sentinel(host).waiting_actions.push_back(traffic);
        }
        self.release(host);
    }

    /// Appends a record to the journal, whose sync takes a moment.
    fn persist(&mut self, host: usize, JournalRecord { number, record }: JournalRecord) {
        let (incarnation, injected_bug) =
            (self.simulation.processes[host].incarnation, self.simulation.plan.injected_bug);
        let vote = |change: &GroupChange| matches!(change, GroupChange::Ballot { vote, .. } if *vote != 0);
        let voted = record.changes.iter().any(vote);
        let ballots = record.changes.iter().filter_map(|change| match change {
            GroupChange::Ballot { term, vote, .. } => Some((number, term.0, *vote)),
            _ => None,
        });
        self.sentinel(host).ballots.extend(ballots);
        self.sentinel(host).disk.append(record, injected_bug);
        let time = self.simulation.random.millis(0, 4);
        self.simulation.schedule_after(time, SentinelSimEvent::Synced { host, incarnation, number, voted });
    }

    /// Performs the actions that no longer wait for the disk, in order.
    fn release(&mut self, host: usize) {
        loop {
            let sentinel = self.sentinel(host);
            let synced = sentinel.synced_records;
            match sentinel.waiting_actions.pop_front_if(|traffic| traffic.required_record() <= synced) {
                Some(NetworkAction::Connect { link, ip }) => self.connect(host, link, &ip),
                Some(NetworkAction::Close(link)) => self.close_link(host, link),
                Some(NetworkAction::Send { link, request, .. }) => self.send(host, link, request),
                Some(NetworkAction::Reply { client, reply, .. }) => {
                    self.push_to_client(client.0, ToClient::Bytes(reply));
                }
                None => return,
            }
        }
    }

    fn on_synced(&mut self, host: usize, incarnation: u64, number: u64, voted: bool) {
        if !self.simulation.is_incarnation(host, incarnation) {
            return;
        }
        let sentinel = self.sentinel(host);
        sentinel.disk.sync();
        sentinel.synced_records = sentinel.synced_records.max(number);
        let given: Vec<_> = sentinel.ballots.extract_if(.., |(record, ..)| *record <= number).collect();
        let voter =
            sentinel.sentinel.as_ref().map(|sentinel| sentinel.my_id().to_string()).unwrap_or_default();
        for (_, term, vote) in given {
            let seen = SentinelObservation::VoteGiven { voter: &voter, term, vote };
            check_invariants(&mut self.invariants, &mut self.simulation, &seen);
        }
        self.release(host);
        // Crashing right after a vote and restarting before the election ends is the worst case.
        if voted && !self.simulation.healed && self.simulation.random.percent(3) {
            self.crash(host, 1, 40);
        }
    }

    /// Handles a request that another sentinel sent.
    fn serve_watcher(&mut self, host: usize, client: ClientId, args: Vec<Vec<u8>>) {
        match args.first().map(Vec::as_slice) {
            Some(b"SENTINEL" | b"PUBLISH" | b"ROLE") => {
                self.handle_input(host, SentinelInput::Command { client, protocol: Protocol::Resp2, args });
            }
            word => {
                let reply = if word == Some(b"PING") { b"+PONG\r\n".to_vec() } else { b"+OK\r\n".to_vec() };
                self.sentinel(host).waiting_actions.push_back(NetworkAction::Reply {
                    client,
                    required_record: 0,
                    reply,
                });
                self.release(host);
            }
        }
    }

    fn find(&self, ip: &str) -> Option<usize> {
        self.ips.iter().position(|other| other == ip)
    }
}

/// Passes an event to the invariants.
fn check_invariants(
    invariants: &mut [invariants::NamedInvariant],
    simulation: &mut Simulation<SentinelSimEvent>,
    seen: &SentinelObservation<'_>,
) {
    for (rule, invariant) in invariants {
        if let Err(violation) = invariant.check(seen) {
            simulation.record_violation(*rule, &violation);
        }
    }
}

impl SentinelProcess {
    fn new(disk: Disk) -> Self {
        Self {
            sentinel: None,
            disk,
            waiting_actions: VecDeque::new(),
            synced_records: 0,
            ballots: Vec::new(),
            links: BTreeMap::new(),
            last_info: BTreeMap::new(),
        }
    }
}

fn server_ip(number: usize) -> String {
    format!("10.0.1.{}", number + 1)
}

/// Returns the quorum that a run with this number of sentinels uses.
fn quorum(sentinels: usize) -> usize {
    sentinels / 2 + 1
}

/// Implements an injected bug: returns a configuration with the sentinel ids but without epochs.
fn without_epochs(config: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(config);
    let lines = text.lines().filter(|line| !line.contains("-epoch "));
    lines.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()
}

fn first_config(sentinels: usize, injected_bug: Option<InjectedBug>) -> String {
    let quorum = if injected_bug == Some(InjectedBug::IgnoredQuorum) { 1 } else { quorum(sentinels) };
    format!(
        "sentinel monitor {MASTER} {} 6379 {quorum}\n\
         sentinel down-after-milliseconds {MASTER} 1000\n\
         sentinel failover-timeout {MASTER} 10000\n",
        server_ip(0)
    )
}
