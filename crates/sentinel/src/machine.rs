//! The sentinel state machine: its inputs, actions and main loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::config::LogLevel;
use clock::Instant;
use consensus::{GroupRecord, SavedGroup};
use driver::Driver;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use resp::{Protocol, Value};

use crate::addr::{Addr, RunId};
use crate::config::SentinelConfig;
use crate::event::EventLevel;
use crate::hello::{HELLO_CHANNEL, Hello};
use crate::link::{LinkId, LinkKind, LinkPeer, Links, PendingReply};
use crate::master::Master;
use crate::scheduler::Scheduler;
use crate::script::{JobId, ScriptOutcome, Scripts};
use crate::settings::Timing;
use crate::shared::{ConfigChange, Context, SharedState};
use crate::writes::{Condition, FileWrites, RETRY_DELAY, StepOutput};

/// How often a master with a problem is processed. A healthy master is processed only when something is due.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(100);
pub(crate) const URGENT_INTERVAL: Duration = Duration::from_millis(10);
/// Work that is due within this time is done together with work that is due now, which reduces the number of wakeups.
pub(crate) const TIMER_SLACK: Duration = Duration::from_millis(50);
/// The id of a client connection, chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// An event that the caller reports to the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum SentinelInput {
    /// The time returned by [`Driver::next_deadline`] has come.
    Deadline,
    /// A link requested with [`SentinelAction::Connect`] was established.
    Connected {
        /// The id from [`SentinelAction::Connect`].
        link: LinkId,
        /// The local IP address of the connection, which the sentinel announces if none is configured.
        local_ip: String,
    },
    /// A link requested with [`SentinelAction::Connect`] could not be established.
    ConnectFailed {
        /// The id from [`SentinelAction::Connect`].
        link: LinkId,
        /// Whether the host refused the connection (ECONNREFUSED).
        refused: bool,
    },
    /// An established link broke or was closed by the peer.
    Disconnected {
        /// The id of the link. The machine decides when to reconnect.
        link: LinkId,
    },
    /// A reply on a command link, or a message on a hello link.
    Reply {
        /// The link that received the data.
        link: LinkId,
        /// The reply or, on a hello link, the Pub/Sub message.
        value: Value,
    },
    /// A client sent a command.
    Command(ClientCommand),
    /// A client connection closed.
    ClientClosed {
        /// The client connection that closed.
        client: ClientId,
    },
    /// The users changed.
    UsersChanged {
        /// The new `user` lines for the configuration file, each split into the words after `user`.
        lines: Vec<Vec<Vec<u8>>>,
    },
    /// The write of the last [`SentinelAction::Write`] has succeeded, and its data is synced to disk.
    Written {
        /// The size of the journal in bytes after the write.
        journal_bytes: u64,
    },
    /// The write of the last [`SentinelAction::Write`] has failed. Some of its data may be in the file.
    WriteFailed,
    /// The resolver has found an address for a hostname.
    Resolved {
        /// The hostname from [`SentinelAction::Resolve`].
        host: String,
        /// The IP address of the host, which the sentinel connects to from now on.
        ip: String,
    },
    /// A script ended, was killed or could not be started.
    ScriptDone {
        /// The id from [`SentinelAction::RunScript`].
        job: JobId,
        /// The result, which decides whether the script is retried.
        outcome: ScriptOutcome,
    },
}

/// A client command: SENTINEL, PUBLISH, ROLE, or INFO for the sentinel section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCommand {
    /// The client connection that gets the reply; `None` if no reply is needed.
    pub client: Option<ClientId>,
    /// The protocol version of the reply.
    pub protocol: Protocol,
    /// The name of the command and its arguments.
    pub args: Vec<Vec<u8>>,
    /// The first option of SENTINEL SET whose script cannot be executed ([`Sentinel::scripts_to_set`]).
    pub rejected_script: Option<RejectedScript>,
}

/// An option of SENTINEL SET that is rejected because the process cannot execute its script. As in Redis, the options
/// before it are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedScript {
    /// The index of the option in the arguments.
    pub option_index: usize,
    /// The text of the error reply.
    pub error: String,
}

/// A write to a file, which is synced before [`SentinelInput::Written`]. Only one write is in progress at a time.
#[derive(Debug, Clone, PartialEq)]
pub enum FileWrite {
    /// Append these records to the journal as one frame.
    AppendJournal(Vec<GroupRecord>),
    /// Replace the journal by one with this content.
    ReplaceJournal(BTreeMap<String, SavedGroup>),
    /// Atomically replace the configuration file by this text.
    Config(Vec<u8>),
}

/// An action for the caller. No action waits for the disk: the machine returns a vote only after its record is synced.
#[derive(Debug, Clone, PartialEq)]
pub enum SentinelAction {
    /// Open a link, and report the result with [`SentinelInput::Connected`] or [`SentinelInput::ConnectFailed`].
    Connect {
        /// The id for all further inputs and actions about the link.
        link: LinkId,
        /// The address to connect to; the host may be a hostname.
        addr: Addr,
        /// Whether the link carries requests or hello messages.
        kind: LinkKind,
    },
    /// Close a link, or stop connecting it.
    Close(LinkId),
    /// Send a request on a link.
    Send {
        /// An established command or hello link.
        link: LinkId,
        /// The command with its arguments, not yet encoded.
        request: Vec<Vec<u8>>,
    },
    /// Write to a file and report the result with [`SentinelInput::Written`] or [`SentinelInput::WriteFailed`]. The
    /// write does not delay the actions after it.
    Write(FileWrite),
    /// Send the reply to a client command.
    Reply {
        /// The client connection that sent the command.
        client: ClientId,
        /// The reply, already encoded in the client's protocol version.
        reply: Vec<u8>,
    },
    /// Close a client connection after the replies that were returned earlier.
    CloseClient(ClientId),
    /// Publish an event or a hello message to subscribed clients.
    Publish {
        /// The name of the event, or [`HELLO_CHANNEL`].
        channel: String,
        /// The payload of the event.
        payload: String,
    },
    /// Write a line to the log.
    Log {
        /// The level, which the caller maps to the server's log levels.
        level: EventLevel,
        /// The text of the line, without a timestamp.
        text: String,
    },
    /// Resolve a hostname and report the result with [`SentinelInput::Resolved`].
    Resolve {
        /// The hostname to look up in DNS.
        host: String,
    },
    /// Run a script and report its end with [`SentinelInput::ScriptDone`].
    RunScript {
        /// The id under which the caller reports the end.
        job: JobId,
        /// The path of the program and its arguments.
        argv: Vec<String>,
    },
    /// Change the minimum level of log messages.
    SetLogLevel(LogLevel),
    /// Kill a script that exceeded its time limit.
    KillScript(JobId),
    /// Exit at once (SENTINEL SIMULATE-FAILURE).
    Crash,
}

/// The state of a monitored master in this sentinel's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterStatus {
    /// The address that clients get for this master.
    pub addr: Addr,
    /// The address of the monitored server. While this sentinel leads a failover, it is that of the old master.
    pub monitored_addr: Addr,
    /// The epoch of the last switch that this sentinel knows.
    pub config_epoch: u64,
    /// The highest epoch that this sentinel has seen for any master.
    pub epoch: u64,
    /// The known replicas, whether reachable or not.
    pub replicas: Vec<Addr>,
    /// Number of known sentinels, including this one.
    pub sentinels: usize,
    /// Whether this sentinel considers the master down.
    pub subjectively_down: bool,
    /// Whether the quorum considers the master down.
    pub objectively_down: bool,
    /// The epoch of the failover that this sentinel leads; `None` if it leads none.
    pub failover_epoch: Option<u64>,
    /// Whether an operator requested the failover.
    pub by_operator: bool,
}

/// The journal as it was read at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedJournal {
    /// The saved state of each consensus group, by master name.
    pub groups: BTreeMap<String, SavedGroup>,
    /// The size of the journal in bytes.
    pub bytes: u64,
}

/// The state machine of one sentinel.
///
/// The caller uses it as a [`Driver`] after [`Sentinel::new`]. Only one write is in progress at a time, and its result
/// is an event. An action that depends on a write, such as a vote or the reply to a changed setting, is returned by the
/// call that reports the write's success, so the caller never delays an action.
pub struct Sentinel {
    pub(crate) masters: BTreeMap<String, Master>,
    pub(crate) shared: SharedState,
    config: SentinelConfig,
    writes: FileWrites,
    /// When the next tick begins, at which all due rounds run.
    next_tick: Instant,
    last_seen: Instant,
}

impl std::fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinel").field("me", &self.shared.my_id).finish_non_exhaustive()
    }
}

impl Driver for Sentinel {
    type Event = SentinelInput;
    /// No action waits for the disk.
    type Actions = Vec<SentinelAction>;

    fn handle(&mut self, now: Instant, input: SentinelInput, out: &mut Vec<SentinelAction>) {
        let mut step = StepOutput::default();
        self.detect_clock_jump(now, &mut step);
        match input {
            SentinelInput::Written { journal_bytes } => {
                self.writes.on_written(journal_bytes, out);
                self.on_write_end(now);
            }
            SentinelInput::WriteFailed => {
                self.writes.on_failed(now, out);
                self.on_write_end(now);
            }
            input => self.process(now, input, &mut step),
        }
        self.drop_unused_links(&mut step);
        if self.shared.config_change == ConfigChange::Urgent {
            self.write_config(&mut step);
        }
        self.finish_step(now, step, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let alarm = self.shared.scheduler.alarms.first();
        alarm.into_iter().chain(self.writes.next_deadline()).chain([self.next_tick]).min()
    }
}

impl Sentinel {
    /// Restores a sentinel from its configuration file and journal. The first action writes the configuration file with
    /// the run id. A new run id must not be used before it is on disk.
    #[must_use]
    pub fn new(
        now: Instant,
        config: SentinelConfig,
        journal: SavedJournal,
        seed: u64,
        out: &mut Vec<SentinelAction>,
    ) -> Self {
        let SavedJournal { mut groups, bytes } = journal;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let fresh = RunId::from_random(rng.random());
        let newest = groups.values().map(|saved| saved.term.0).max().unwrap_or(0);
        let shared = SharedState {
            my_id: config.myid.clone().unwrap_or(fresh),
            global: config.global.clone(),
            epoch: config.current_epoch.max(newest),
            links: Links::default(),
            links_changed: false,
            scheduler: Scheduler::default(),
            timing: Timing::default(),
            tilt_since: None,
            tilt_count: 0,
            scripts: Scripts::default(),
            recorder: crate::failover_log::FailoverRecorder::default(),
            config_change: ConfigChange::None,
            has_unsaved_switch: false,
            journal_records: 0,
            durable_record: 0,
            resolved_ips: BTreeMap::new(),
            crash_after_election: false,
            crash_after_promotion: false,
            rng,
        };
        let masters = BTreeMap::new();
        let writes = FileWrites::new(bytes);
        let mut sentinel = Self { masters, shared, config, writes, next_tick: now, last_seen: now };
        let me = sentinel.shared.my_id.to_string();
        let known = std::mem::take(&mut sentinel.config.masters);
        let mut step = StepOutput::default();
        let mut cx = Context { now, shared: &mut sentinel.shared, out: &mut step };
        cx.log(EventLevel::Notice, format!("Sentinel ID is {me}"));
        for known in known {
            let saved = groups.remove(&known.name).unwrap_or_default();
            let master = Master::new(&mut cx, &known, saved);
            cx.resolve(&known.addr.host);
            sentinel.masters.insert(known.name, master);
        }
        sentinel.write_config(&mut step);
        let first = StepOutput { config: step.config.take(), ..StepOutput::default() };
        sentinel.finish_step(now, first, out);
        sentinel.finish_step(now, step, out);
        sentinel
    }

    /// This sentinel's run id, which survives restarts.
    #[must_use]
    pub fn my_id(&self) -> &RunId {
        &self.shared.my_id
    }

    /// The port for clients and other sentinels.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.shared.global.port
    }

    fn process(&mut self, now: Instant, input: SentinelInput, out: &mut StepOutput) {
        match input {
            SentinelInput::Deadline => self.on_deadline(now, out),
            SentinelInput::Connected { link, local_ip } => self.on_connected(now, link, local_ip, out),
            SentinelInput::ConnectFailed { link, refused } => {
                self.writes.forget_link(link);
                if let Some(state) = self.shared.links.find(link) {
                    state.on_down(now, refused);
                }
            }
            SentinelInput::Disconnected { link } => {
                self.writes.forget_link(link);
                self.on_disconnected(now, link, out);
            }
            SentinelInput::Reply { link, value } => self.on_reply(now, link, &value, out),
            SentinelInput::Command(command) => self.on_command(now, command, out),
            SentinelInput::ClientClosed { client } => self.writes.forget_client(client),
            SentinelInput::UsersChanged { lines } => {
                self.config.users = lines;
                self.write_config(out);
            }
            SentinelInput::Resolved { host, ip } => {
                if host != ip {
                    self.shared.resolved_ips.insert(host, ip);
                    self.schedule_all_rounds();
                }
            }
            SentinelInput::ScriptDone { job, outcome } => {
                let SharedState { scripts, timing, .. } = &mut self.shared;
                scripts.on_done(now, timing, job, outcome);
            }
            SentinelInput::Written { .. } | SentinelInput::WriteFailed => {}
        }
    }

    fn on_write_end(&mut self, now: Instant) {
        if self.shared.durable_record < self.writes.durable_record() {
            self.shared.durable_record = self.writes.durable_record();
            for master in self.masters.values().filter(|master| master.failover().is_some()) {
                self.shared.scheduler.alarms.set_sooner(master.name(), now);
            }
        }
        if self.writes.config_is_settled() {
            self.shared.has_unsaved_switch = false;
        }
        if self.writes.config_is_lost() && self.shared.config_change == ConfigChange::None {
            self.shared.config_change = ConfigChange::RetryAt(now + RETRY_DELAY);
        }
    }

    /// Holds back the actions that wait for a write, and begins the next write if none is in progress.
    fn finish_step(&mut self, now: Instant, step: StepOutput, out: &mut Vec<SentinelAction>) {
        self.writes.add_step(step, out);
        let Self { masters, writes, .. } = self;
        writes.begin_write(
            now,
            masters.iter().map(|(name, master)| (name.as_str(), master.saved_group())),
            out,
        );
    }

    /// Sends a client a reply of the process itself, after the earlier replies of the machine.
    pub fn send_reply(&mut self, client: ClientId, reply: Vec<u8>, out: &mut Vec<SentinelAction>) {
        self.writes.add_unconditional(SentinelAction::Reply { client, reply }, out);
    }

    /// Closes a client connection after the earlier replies.
    pub fn close_client(&mut self, client: ClientId, out: &mut Vec<SentinelAction>) {
        self.writes.add_unconditional(SentinelAction::CloseClient(client), out);
    }

    /// Detects that the clock jumped or that the process was paused. The sentinel then enters TILT mode, in which it
    /// draws no conclusions, because its observations are unreliable.
    fn detect_clock_jump(&mut self, now: Instant, out: &mut StepOutput) {
        let step = now.since(self.last_seen);
        self.last_seen = now;
        let mut cx = Context { now, shared: &mut self.shared, out };
        if step > cx.shared.timing.tilt_trigger {
            cx.shared.tilt_count += u64::from(cx.shared.tilt_since.is_none());
            cx.shared.tilt_since = Some(now);
            cx.publish_event(EventLevel::Warning, "+tilt", "#tilt mode entered".into(), None);
        } else if cx.shared.tilt_since.is_some_and(|since| now.since(since) > cx.shared.timing.tilt_period) {
            cx.shared.tilt_since = None;
            cx.publish_event(EventLevel::Warning, "-tilt", "#tilt mode exited".into(), None);
            // The reset precedes any decision that is based on observations from before TILT mode.
            for master in self.masters.values_mut() {
                master.update_health(&mut cx);
                cx.shared.scheduler.schedule_round(master.name());
            }
        }
    }

    /// Schedules a round for every master, after a change that affects all of them.
    pub(crate) fn schedule_all_rounds(&mut self) {
        for name in self.masters.keys() {
            self.shared.scheduler.schedule_round(name);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut StepOutput) {
        let mut cx = Context { now, shared: &mut self.shared, out };
        let mut due = cx.shared.scheduler.alarms.take_until(now);
        if now >= self.next_tick {
            due.extend(cx.shared.scheduler.rounds.take_until(now + TIMER_SLACK));
            // Random jitter keeps sentinels from ticking in step after a common start.
            self.next_tick =
                now + TICK_INTERVAL - Duration::from_micros(cx.shared.rng.random_range(0..20_000));
        }
        for name in due {
            if let Some(master) = self.masters.get_mut(&*name) {
                master.run_due_tasks(&mut cx);
            }
        }
        let SharedState { scripts, timing, .. } = cx.shared;
        scripts.start_due(now, timing, cx.out);
        if self.shared.config_change.is_due(now) {
            self.write_config(out);
        }
    }

    fn on_connected(&mut self, now: Instant, link: LinkId, local_ip: String, out: &mut StepOutput) {
        let mut cx = Context { now, shared: &mut self.shared, out };
        let Some(state) = cx.shared.links.find(link) else { return };
        state.on_up(now, local_ip);
        let (kind, peer) = (state.kind, state.peer);
        let (user, pass) = (state.user.clone(), state.pass.clone());
        if !pass.is_empty() {
            let words = [b"AUTH".to_vec(), user.into_bytes(), pass.into_bytes()];
            let words = words.into_iter().filter(|word| !word.is_empty()).collect();
            cx.send_after(Condition::Nothing, link, PendingReply::Auth, words);
        }
        let suffix = if kind == LinkKind::Command { "cmd" } else { "pubsub" };
        let name = format!("sentinel-{}-{suffix}", &cx.shared.my_id.as_str()[..8]);
        cx.send(link, PendingReply::Ignored, &["CLIENT", "SETNAME", &name]);
        match (kind, peer) {
            (LinkKind::Hello, _) => {
                cx.send(link, PendingReply::Ignored, &["SUBSCRIBE", HELLO_CHANNEL]);
            }
            (LinkKind::Command, LinkPeer::Server) => {
                cx.ping(link);
                for master in self.masters.values_mut() {
                    master.send_info_on(&mut cx, link);
                }
            }
            (LinkKind::Command, LinkPeer::Sentinel) => {
                cx.ping(link);
                cx.send(link, PendingReply::RaftProbe, &["SENTINEL", "RAFT"]);
            }
        }
    }

    fn on_disconnected(&mut self, now: Instant, link: LinkId, out: &mut StepOutput) {
        let mut cx = Context { now, shared: &mut self.shared, out };
        let Some(state) = cx.shared.links.find(link) else { return };
        state.on_down(now, false);
        // The first connection attempt is immediate, because a refusal distinguishes a dead process from a slow one.
        cx.connect(link);
        for master in self.masters.values().filter(|master| master.links().any(|held| held == link)) {
            cx.shared.scheduler.alarms.set_sooner(master.name(), now + URGENT_INTERVAL);
        }
    }

    fn on_reply(&mut self, now: Instant, link: LinkId, value: &Value, out: &mut StepOutput) {
        let mut cx = Context { now, shared: &mut self.shared, out };
        let Some(state) = cx.shared.links.find(link) else { return };
        if state.kind == LinkKind::Hello {
            state.last_message = now;
            if let Some(hello) = hello_payload(value).and_then(Hello::parse) {
                state.record_claim(now, &hello);
                self.on_hello(now, &hello, out);
            } else {
                cx.handle_access_error(link, value);
            }
            return;
        }
        let Some(pending) = state.pending.pop_front() else { return };
        if let PendingReply::Ping = pending {
            state.on_pong(now, value);
        }
        if !cx.handle_access_error(link, value) {
            return;
        }
        match pending {
            PendingReply::Ignored | PendingReply::Auth | PendingReply::Ping => {}
            PendingReply::RaftProbe => {
                if let Some(state) = cx.shared.links.find(link) {
                    state.supports_raft = Some(!matches!(value, Value::Error(_)));
                }
                for master in self.masters.values_mut() {
                    if master.sentinels().links().any(|one| one == link) {
                        master.update_members(&mut cx);
                    }
                }
            }
            PendingReply::Info(name) => {
                if let (Some(master), Some(text)) = (self.masters.get_mut(&name), value.as_bytes()) {
                    master.on_info(&mut cx, link, text);
                }
            }
            PendingReply::Role(name) => {
                if let Some(master) = self.masters.get_mut(&name) {
                    master.on_role(&mut cx, link, value);
                }
            }
            PendingReply::Query(name, addr, run_id) => {
                if let Some(master) = self.masters.get_mut(&name) {
                    master.on_query_reply(&mut cx, &addr, &run_id, value);
                }
            }
            PendingReply::Transaction(name, order) => {
                if let Some(master) = self.masters.get_mut(&name) {
                    master.on_transaction_reply(&mut cx, link, &order, value);
                }
            }
        }
    }

    /// Handles a hello message, whether it arrived on a hello link or by PUBLISH.
    pub(crate) fn on_hello(&mut self, now: Instant, hello: &Hello, out: &mut StepOutput) {
        let mut cx = Context { now, shared: &mut self.shared, out };
        if let Some(master) = self.masters.get_mut(&hello.master) {
            master.on_hello(&mut cx, hello);
        }
    }

    fn drop_unused_links(&mut self, out: &mut StepOutput) {
        if !std::mem::take(&mut self.shared.links_changed) {
            return;
        }
        let used: BTreeSet<LinkId> = self.masters.values().flat_map(Master::links).collect();
        let closed = self.shared.links.release_unused(&used);
        closed.into_iter().for_each(|link| out.push(SentinelAction::Close(link)));
    }

    /// Writes the configuration file in this step.
    pub(crate) fn write_config(&mut self, out: &mut StepOutput) {
        self.shared.config_change = ConfigChange::None;
        self.config.myid = Some(self.shared.my_id.clone());
        self.config.current_epoch = self.shared.epoch;
        self.config.global = self.shared.global.clone();
        self.config.masters = self.masters.values().map(Master::to_known_master).collect();
        out.config = Some(self.config.to_file_content());
    }

    /// The state of a monitored master, for the simulator and tests; `None` if the name is unknown.
    #[must_use]
    pub fn status(&self, master: &str) -> Option<MasterStatus> {
        let master = self.masters.get(master)?;
        let failover = master.failover();
        Some(MasterStatus {
            addr: master.current_addr().clone(),
            monitored_addr: master.servers().master().addr().clone(),
            config_epoch: master.config_epoch(),
            epoch: self.shared.epoch,
            replicas: master.servers().replica_addrs().cloned().collect(),
            sentinels: master.sentinels().total(),
            subjectively_down: master.servers().master().sdown().is_some(),
            objectively_down: master.odown().is_some(),
            failover_epoch: failover.and_then(|failover| failover.phase().epoch()),
            by_operator: failover
                .is_some_and(|failover| failover.cause() != crate::master::failovers::FailoverCause::Down),
        })
    }

    /// Number of links to servers and sentinels. Sentinels that share masters need one link per pair of sentinels.
    #[must_use]
    pub fn link_count(&self) -> usize {
        self.shared.links.len()
    }
}

/// The payload of a Pub/Sub message if it arrived on the hello channel.
fn hello_payload(value: &Value) -> Option<&[u8]> {
    match value.as_array()? {
        [kind, channel, payload]
            if kind.as_bytes() == Some(b"message")
                && channel.as_bytes() == Some(HELLO_CHANNEL.as_bytes()) =>
        {
            payload.as_bytes()
        }
        _ => None,
    }
}

impl Context<'_> {
    pub(crate) fn ping(&mut self, link: LinkId) {
        if !self.send(link, PendingReply::Ping, &["PING"]) {
            return;
        }
        let now = self.now;
        if let Some(state) = self.shared.links.find(link) {
            state.last_ping = Some(now);
            state.unanswered_since.get_or_insert(now);
        }
    }

    /// Requests the resolution of a hostname.
    pub(crate) fn resolve(&mut self, host: &str) {
        if self.shared.global.resolve_hostnames && !crate::addr::is_ip(host) {
            self.out.push(SentinelAction::Resolve { host: host.to_owned() });
        }
    }
}
