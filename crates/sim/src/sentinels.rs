//! Simulates sentinels that monitor one master and its replicas. The sentinels and the servers' replication
//! ([`crate::data`]) are real. The replies of the servers are simulated.
//!
//! Connections are streams like TCP: data arrives in order or the connection breaks, and a partition delays the data
//! until it heals. Raft messages may also be lost, duplicated and reordered, because the protocol must tolerate that.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use driver::Driver;
use resp::{Protocol, parse_value};
use sentinel::{
    ClientCommand, ClientId, FileWrite, HELLO_CHANNEL, LinkId, SavedJournal, Sentinel, SentinelAction,
    SentinelConfig, SentinelInput,
};

use self::disk::Disk;
use self::invariants::SentinelObservation;
use self::server::{ReplicaInfo, Server};
use self::stream::{SentinelConnection, ToClient};
use crate::data::{DataSimulation, RoleChange};
use crate::simulation::{RunPhases, SimulatedSystem, Simulation, run_simulation, schedule_tick};
use crate::{InjectedBug, InvariantName, RandomSource, RunPlan, RunResult};

mod data;
mod disk;
mod faults;
mod handovers;
mod invariants;
mod server;
mod stream;

pub(crate) const MASTER: &str = "mymaster";

/// When the sentinels start. The replicas connect to the master before, so that the master's first INFO reply lists
/// them.
const SENTINEL_START_DELAY: Duration = Duration::from_secs(1);
/// Interval at which data that a partition delays is sent again.
const RETRANSMIT_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone)]
enum SentinelSimEvent {
    /// All sentinels crash and lose their state, which makes an injected bug visible.
    LoseAllState,
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
    /// A write to a sentinel's disk ends.
    WriteEnds {
        host: usize,
        incarnation: u64,
        fails: bool,
    },
    /// A sentinel crashes while it writes to its disk.
    CrashInWrite {
        host: usize,
        incarnation: u64,
    },
    /// A handover in progress at a server is continued.
    Handover {
        host: usize,
        incarnation: u64,
    },
    /// A Raft message arrives outside of the order of its connection.
    StrayMessage {
        host: usize,
        request: Vec<Vec<u8>>,
    },
}

/// The state of a sentinel process.
struct SentinelProcess {
    sentinel: Option<Sentinel>,
    disk: Disk,
    links: BTreeMap<LinkId, u64>,
    /// The last INFO reply of each replica, by host.
    last_info: BTreeMap<usize, ReplicaInfo>,
}

struct SentinelWorld {
    simulation: Simulation<SentinelSimEvent>,
    /// The IP address of each host: first the sentinels, then the servers.
    ips: Vec<String>,
    /// The sentinel processes. They have the lowest host numbers.
    sentinels: Vec<SentinelProcess>,
    /// The servers, whose host numbers follow those of the sentinels.
    servers: Vec<Server>,
    streams: BTreeMap<u64, SentinelConnection>,
    last_connection: u64,
    invariants: Vec<invariants::NamedInvariant>,
}

/// Runs one plan. With `traced`, the result includes the event trace.
pub(crate) fn run(plan: RunPlan, traced: bool) -> RunResult {
    run_simulation(SentinelWorld::new(plan, traced))
}

impl SimulatedSystem for SentinelWorld {
    const PHASES: RunPhases = RunPhases {
        settle_time: Duration::from_secs(7),
        fault_time: Duration::from_secs(12),
        fault_interval_millis: (100, 1500),
        // The longest TILT (30 s) plus the slowest recovery.
        max_convergence_time: Duration::from_secs(120),
        required_agreements: 4,
    };
    const LIVENESS_INVARIANT: InvariantName = InvariantName::Agreement;
    type Event = SentinelSimEvent;

    fn simulation(&mut self) -> &mut Simulation<SentinelSimEvent> {
        &mut self.simulation
    }

    fn start_processes(&mut self) {
        for host in self.hosts_of(true) {
            self.simulation.schedule_after(SENTINEL_START_DELAY, SentinelSimEvent::Start { host });
        }
    }

    fn handle_event(&mut self, event: SentinelSimEvent) {
        match event {
            SentinelSimEvent::Start { host } => self.start(host),
            SentinelSimEvent::LoseAllState => {
                self.hosts_of(true).into_iter().for_each(|host| self.crash(host, 1, 40));
            }
            SentinelSimEvent::ConnectArrives { conn } => self.on_connect(conn),
            SentinelSimEvent::ToServer { conn } => self.pump_to_server(conn),
            SentinelSimEvent::ToClient { conn } => self.pump_to_client(conn),
            SentinelSimEvent::WriteEnds { host, incarnation, fails } => {
                self.end_write(host, incarnation, fails);
            }
            SentinelSimEvent::CrashInWrite { host, incarnation } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    self.crash(host, 1, 40);
                }
            }
            SentinelSimEvent::Handover { host, incarnation }
                if self.simulation.is_incarnation(host, incarnation) =>
            {
                if self.simulation.is_running(host) {
                    self.drive_handover(host);
                } else {
                    self.simulation.schedule_after(
                        RETRANSMIT_INTERVAL,
                        SentinelSimEvent::Handover { host, incarnation },
                    );
                }
            }
            SentinelSimEvent::Handover { .. } => {}
            SentinelSimEvent::StrayMessage { host, request } => {
                if self.simulation.is_running(host) {
                    self.serve_sentinel(host, None, request);
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

    fn next_deadline(&mut self, host: usize) -> Option<Instant> {
        self.sentinels.get(host)?.sentinel.as_ref().and_then(Driver::next_deadline)
    }

    fn on_deadline(&mut self, host: usize) {
        self.handle_input(host, SentinelInput::Deadline);
    }

    fn restart_process(&mut self, host: usize) {
        self.restart(host);
    }

    fn continue_process(&mut self, _host: usize) {}

    fn find_disagreement(&mut self) -> Option<String> {
        let sentinels = self.sentinels.iter().filter_map(|sentinel| sentinel.sentinel.as_ref());
        let stores = self.simulation.data.process_states.iter().skip(self.sentinels.len());
        let servers: Vec<(&Server, bool)> =
            self.servers.iter().zip(stores).map(|(server, store)| (server, store.is_in_sync())).collect();
        invariants::agreement::disagreement(sentinels, &servers)
    }
}

impl SentinelWorld {
    /// Creates the servers and the sentinels, which know only the master.
    fn new(plan: RunPlan, traced: bool) -> Self {
        let mut random = RandomSource::new(plan.seed);
        let sentinels = if plan.nodes >= 10 { 5 } else { 3 };
        let servers = plan.nodes.saturating_sub(sentinels).max(2);
        let data = DataSimulation::new(&mut random, data::written_slots(), false);
        let mut world = Self {
            simulation: Simulation::new(plan, random, data, traced),
            ips: Vec::new(),
            sentinels: Vec::new(),
            servers: Vec::new(),
            streams: BTreeMap::new(),
            last_connection: 0,
            invariants: invariants::event_invariants(quorum(sentinels)),
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
                    RoleChange::BecomeReplica { master: sentinels, has_foreign_data: false },
                );
            }
            world.simulation.start_process_data(sentinels + number);
        }
        world
    }

    fn add_host(&mut self, ip: String) {
        self.simulation.add_process(ip.clone());
        self.ips.push(ip);
    }

    fn run_id(&mut self) -> String {
        (0..5).map(|_| format!("{:08x}", self.simulation.random.random_number() as u32)).collect()
    }

    fn sentinel(&mut self, host: usize) -> &mut SentinelProcess {
        &mut self.sentinels[host]
    }

    fn server(&mut self, host: usize) -> &mut Server {
        &mut self.servers[host - self.sentinels.len()]
    }

    /// Starts a sentinel with the files on its disk.
    fn start(&mut self, host: usize) {
        let seed = self.simulation.random.random_number();
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        let injected_bug = self.simulation.plan.injected_bug;
        let process = self.sentinel(host);
        let config = SentinelConfig::parse(&process.disk.config).expect("a sentinel reads what it wrote");
        let groups = match process.disk.load() {
            Ok(groups) => groups,
            Err(error) => {
                self.simulation.abort_run(&format!("a journal that a crash left unreadable: {error}"));
                return;
            }
        };
        let journal = SavedJournal { groups, bytes: process.disk.journal_bytes() };
        let mut out = Vec::new();
        let mut sentinel = Sentinel::new(now, config, journal, seed, &mut out);
        // A process saves its run id before anything else.
        let first = out.iter().position(|action| matches!(action, SentinelAction::Write(_)));
        if let Some(SentinelAction::Write(write)) = first.map(|at| out.remove(at)) {
            process.disk.begin(write, injected_bug);
            let journal_bytes = process.disk.finish();
            sentinel.handle(now, SentinelInput::Written { journal_bytes }, &mut out);
        }
        let restart = SentinelObservation::Start { sentinel: &sentinel.my_id().to_string() };
        check_invariants(&mut self.invariants, &mut self.simulation, &restart);
        let process = self.sentinel(host);
        process.sentinel = Some(sentinel);
        process.links.clear();
        process.last_info.clear();
        self.perform(host, out);
        schedule_tick(self, host);
    }

    /// Passes an input to a sentinel, checks the invariants and performs the resulting actions.
    fn handle_input(&mut self, host: usize, input: SentinelInput) {
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        let Some(mut sentinel) = self.sentinel(host).sentinel.take() else { return };
        let mut out = Vec::new();
        sentinel.handle(now, input, &mut out);
        self.check_output(host, &sentinel, &out);
        self.sentinel(host).sentinel = Some(sentinel);
        self.perform(host, out);
        schedule_tick(self, host);
    }

    fn check_output(&mut self, host: usize, sentinel: &Sentinel, actions: &[SentinelAction]) {
        let id = sentinel.my_id().to_string();
        let mut seen = Vec::new();
        let status = sentinel.status(MASTER);
        let watched = status.as_ref().map(|status| status.monitored_addr.clone());
        seen.extend(status.map(|status| SentinelObservation::Step { sentinel, status }));
        for action in actions {
            match action {
                SentinelAction::Write(write) => {
                    let ballots = disk::ballots(write).into_iter();
                    seen.extend(ballots.map(|(term, vote)| SentinelObservation::Ballot {
                        voter: &id,
                        term,
                        vote,
                    }));
                }
                SentinelAction::Send { request, .. }
                    if request.get(1).is_some_and(|channel| channel == HELLO_CHANNEL.as_bytes())
                        && !self.sentinel(host).disk.config_is_lost =>
                {
                    let config_epoch = announced_epoch(&id, request);
                    seen.extend(config_epoch.map(|config_epoch| SentinelObservation::Announcement {
                        sentinel: &id,
                        config_epoch,
                    }));
                }
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
                        self.simulation.promotion_count += 1;
                        if self.simulation.plan.injected_bug == Some(InjectedBug::LostDiskWrites) {
                            let soon = self.simulation.random.random_millis(0, 60);
                            self.simulation.schedule_after(soon, SentinelSimEvent::LoseAllState);
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

    fn perform(&mut self, host: usize, actions: Vec<SentinelAction>) {
        for action in actions {
            match action {
                SentinelAction::Write(write) => self.begin_write(host, write),
                SentinelAction::Connect { link, addr, .. } => self.connect(host, link, &addr.host),
                SentinelAction::Close(link) => self.close_link(host, link),
                SentinelAction::Send { link, request } => self.send(host, link, request),
                SentinelAction::Reply { client, reply } => {
                    self.push_to_client(client.0, ToClient::Bytes(reply));
                }
                SentinelAction::CloseClient(client) => self.push_to_client(client.0, ToClient::Closed),
                SentinelAction::Log { text, .. } => {
                    self.simulation.trace(|| format!("sentinel {host}: {text}"));
                }
                // The simulation has no subscribers, hostnames and scripts.
                SentinelAction::Publish { .. }
                | SentinelAction::Resolve { .. }
                | SentinelAction::RunScript { .. }
                | SentinelAction::KillScript(_)
                | SentinelAction::SetLogLevel(_)
                | SentinelAction::Crash => {}
            }
        }
    }

    /// Begins a write to a sentinel's disk. It takes some time, and may fail or be interrupted by a crash.
    fn begin_write(&mut self, host: usize, write: FileWrite) {
        let (incarnation, injected_bug) =
            (self.simulation.processes[host].incarnation, self.simulation.plan.injected_bug);
        self.sentinel(host).disk.begin(write, injected_bug);
        let fails = !self.simulation.is_healed && self.simulation.random.random_bool(3);
        let is_slow = !self.simulation.is_healed && self.simulation.random.random_bool(3);
        let time = if is_slow {
            self.simulation.random.random_millis(0, 300)
        } else {
            self.simulation.draw_sync_time()
        };
        self.simulation.schedule_after(time, SentinelSimEvent::WriteEnds { host, incarnation, fails });
        if is_slow && self.simulation.random.random_bool(30) {
            self.simulation.schedule_after(time / 2, SentinelSimEvent::CrashInWrite { host, incarnation });
        }
    }

    fn end_write(&mut self, host: usize, incarnation: u64, fails: bool) {
        if !self.simulation.is_incarnation(host, incarnation) {
            return;
        }
        if let Some(until) = self.simulation.frozen_until(host) {
            return self
                .simulation
                .schedule_at(until, SentinelSimEvent::WriteEnds { host, incarnation, fails });
        }
        if fails {
            self.sentinels[host].disk.fail(&mut self.simulation.random);
            self.simulation.trace(|| format!("a write of sentinel {host} fails"));
            return self.handle_input(host, SentinelInput::WriteFailed);
        }
        let sentinel = self.sentinel(host);
        let given = sentinel.disk.pending_ballots();
        let journal_bytes = sentinel.disk.finish();
        let voter =
            sentinel.sentinel.as_ref().map(|sentinel| sentinel.my_id().to_string()).unwrap_or_default();
        let voted = given.iter().any(|(_, vote)| *vote != 0);
        for (term, vote) in given {
            let seen = SentinelObservation::VoteGiven { voter: &voter, term, vote };
            check_invariants(&mut self.invariants, &mut self.simulation, &seen);
        }
        self.handle_input(host, SentinelInput::Written { journal_bytes });
        // Crashing right after a vote and restarting before the election ends is the worst case.
        if voted && !self.simulation.is_healed && self.simulation.random.random_bool(3) {
            self.crash(host, 1, 40);
        }
    }

    /// Handles a request that a sentinel receives.
    fn serve_sentinel(&mut self, host: usize, client: Option<ClientId>, args: Vec<Vec<u8>>) {
        match args.first().map(Vec::as_slice) {
            Some(b"SENTINEL" | b"PUBLISH" | b"ROLE") => {
                let protocol = Protocol::Resp2;
                let command =
                    SentinelInput::Command(ClientCommand { client, protocol, args, rejected_script: None });
                self.handle_input(host, command);
            }
            word => {
                let reply = if word == Some(b"PING") { b"+PONG\r\n".to_vec() } else { b"+OK\r\n".to_vec() };
                let mut out = Vec::new();
                if let (Some(client), Some(sentinel)) = (client, &mut self.sentinel(host).sentinel) {
                    sentinel.send_reply(client, reply, &mut out);
                }
                self.perform(host, out);
            }
        }
    }

    fn find_host(&self, ip: &str) -> Option<usize> {
        self.ips.iter().position(|other| other == ip)
    }
}

/// Returns the configuration epoch that a sentinel announces in its own hello message.
fn announced_epoch(id: &str, request: &[Vec<u8>]) -> Option<u64> {
    let hello = std::str::from_utf8(request.get(2)?).ok()?;
    let fields: Vec<&str> = hello.split(',').collect();
    let is_own = fields.get(2) == Some(&id);
    fields.last().filter(|_| is_own)?.parse().ok()
}

/// Passes an observation to all invariants.
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
        Self { sentinel: None, disk, links: BTreeMap::new(), last_info: BTreeMap::new() }
    }
}

fn server_ip(number: usize) -> String {
    format!("10.0.1.{}", number + 1)
}

/// Returns the quorum for a run with this number of sentinels.
fn quorum(sentinels: usize) -> usize {
    sentinels / 2 + 1
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
