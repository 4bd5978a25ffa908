//! The sentinel state machine: its inputs, actions and main loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::config::LogLevel;
use clock::Instant;
use consensus::{Record, Saved};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use resp::{Protocol, Value};

use crate::addr::{Addr, RunId};
use crate::agenda::Agenda;
use crate::config::Config;
use crate::event::Level;
use crate::hello::{HELLO_CHANNEL, Hello};
use crate::link::{LinkId, LinkKind, Links, Owner, Pending};
use crate::master::Master;
use crate::script::{JobId, Outcome, Scripts};
use crate::settings::Timing;
use crate::shared::{Cx, Shared};

/// Processing intervals of a master: with a problem, and while a failure is urgent. A healthy master is processed only
/// when something is due.
pub(crate) const CALM: Duration = Duration::from_millis(100);
pub(crate) const URGENT: Duration = Duration::from_millis(10);
/// Work that is due within this time is done together with due work, which reduces the number of wakeups.
pub(crate) const SLACK: Duration = Duration::from_millis(50);
/// Maximum delay before a changed configuration is written. Votes and switches do not depend on it, because they are in
/// the journal.
const WRITE_DELAY: Duration = Duration::from_millis(100);

/// The id of a client connection, chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// An event reported by the caller.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The time returned by [`Sentinel::next_deadline`] has come.
    Deadline,
    /// A link was established.
    Connected {
        /// The id of the link.
        link: LinkId,
        /// The local IP address.
        local_ip: String,
    },
    /// A link could not be established.
    ConnectFailed {
        /// The id of the link.
        link: LinkId,
        /// Whether the host refused the connection (ECONNREFUSED).
        refused: bool,
    },
    /// An established link broke.
    Disconnected {
        /// The id of the link.
        link: LinkId,
    },
    /// A reply on a command link, or a message on a hello link.
    Reply {
        /// The id of the link.
        link: LinkId,
        /// The parsed reply or message.
        value: Value,
    },
    /// A client command: SENTINEL, PUBLISH, ROLE, or INFO for the sentinel section.
    Command {
        /// The client connection.
        client: ClientId,
        /// The protocol version for the reply.
        protocol: Protocol,
        /// The command with its arguments.
        args: Vec<Vec<u8>>,
    },
    /// A hostname was resolved.
    Resolved {
        /// The hostname.
        host: String,
        /// The IP address.
        ip: String,
    },
    /// A script ended.
    ScriptDone {
        /// The id of the script run.
        job: JobId,
        /// How the script ended.
        outcome: Outcome,
    },
}

/// The output of a step: journal records to write and actions to execute. Actions that depend on a record name its
/// number, so no order between the two lists is needed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// Records to append to the journal in this order and to sync.
    pub records: Vec<JournalRecord>,
    /// Actions to execute in this order.
    pub actions: Vec<Action>,
}

impl Output {
    pub(crate) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// A journal record that actions can wait for.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalRecord {
    /// The number by which actions refer to the record.
    pub number: u64,
    /// The content of the record.
    pub record: Record,
}

/// An action for the caller. `after` is the number of the [`JournalRecord`] that must be durable first; zero means
/// none.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Open a link.
    Connect {
        /// The id of the new link.
        link: LinkId,
        /// The address to connect to.
        addr: Addr,
        /// The purpose of the link.
        kind: LinkKind,
    },
    /// Close a link.
    Close(LinkId),
    /// Send a request on a link.
    Send {
        /// The id of the link.
        link: LinkId,
        /// The record that must be durable first.
        after: u64,
        /// The command with its arguments.
        request: Vec<Vec<u8>>,
    },
    /// Atomically replace the configuration file.
    WriteConfig {
        /// The new content of the file.
        text: Vec<u8>,
    },
    /// Reply to a client.
    Reply {
        /// The client connection.
        client: ClientId,
        /// The record that must be durable first.
        after: u64,
        /// Whether the reply confirms that the configuration was saved, so that it must be replaced by an error if
        /// writing failed.
        is_kept: bool,
        /// The encoded reply.
        reply: Vec<u8>,
    },
    /// Publish a message to subscribed clients.
    Publish {
        /// The channel name.
        channel: String,
        /// The message.
        payload: String,
    },
    /// Write a line to the log.
    Log {
        /// The log level.
        level: Level,
        /// The text of the line.
        text: String,
    },
    /// Resolve a hostname.
    Resolve {
        /// The hostname.
        host: String,
    },
    /// Run a script.
    RunScript {
        /// The id of the script run.
        job: JobId,
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// Change the minimum level of log messages.
    SetLogLevel(LogLevel),
    /// Kill a script that exceeded its time limit.
    KillScript(JobId),
    /// Exit at once (SENTINEL SIMULATE-FAILURE).
    Crash,
}

/// The state of a monitored master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The address that clients are sent to.
    pub addr: Addr,
    /// The address that is monitored. For a leader this is the old master until the failover ends.
    pub watched: Addr,
    /// The epoch of the last known failover.
    pub config_epoch: u64,
    /// The highest epoch seen.
    pub epoch: u64,
    /// The known replicas.
    pub replicas: Vec<Addr>,
    /// Number of known sentinels, including this one.
    pub sentinels: usize,
    /// Whether this sentinel considers the master down.
    pub subjectively_down: bool,
    /// Whether the quorum considers the master down.
    pub objectively_down: bool,
    /// The epoch of a failover that this sentinel leads.
    pub failover_epoch: Option<u64>,
    /// Whether an operator requested the failover.
    pub by_operator: bool,
}

/// The state machine of one sentinel.
pub struct Sentinel {
    pub(crate) masters: BTreeMap<String, Master>,
    pub(crate) shared: Shared,
    config: Config,
    /// When the next rounds run.
    next_tick: Instant,
    last_seen: Instant,
}

impl std::fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinel").field("me", &self.shared.me).finish_non_exhaustive()
    }
}

impl Sentinel {
    /// Restores a sentinel from its configuration file and journal. The first actions write the file back, including
    /// the run id of a new sentinel.
    #[must_use]
    pub fn new(
        now: Instant,
        config: Config,
        mut journal: BTreeMap<String, Saved>,
        seed: u64,
        out: &mut Output,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let fresh = RunId::from_random(rng.random());
        let newest = journal.values().map(|saved| saved.term.0).max().unwrap_or(0);
        let shared = Shared {
            me: config.myid.clone().unwrap_or(fresh),
            global: config.global.clone(),
            epoch: config.current_epoch.max(newest),
            links: Links::default(),
            links_changed: false,
            agenda: Agenda::default(),
            timing: Timing::default(),
            tilt: None,
            tilts: 0,
            scripts: Scripts::default(),
            recorder: crate::flight::Recorder::default(),
            unwritten: Some(now),
            records: 0,
            resolved: BTreeMap::new(),
            crash_after_election: false,
            crash_after_promotion: false,
            rng,
        };
        let masters = BTreeMap::new();
        let mut sentinel = Self { masters, shared, config, next_tick: now, last_seen: now };
        let me = sentinel.shared.me.to_string();
        let known = std::mem::take(&mut sentinel.config.masters);
        let mut cx = Cx { now, shared: &mut sentinel.shared, out };
        cx.log(Level::Notice, format!("Sentinel ID is {me}"));
        for known in known {
            let saved = journal.remove(&known.name).unwrap_or_default();
            let master = Master::new(&mut cx, &known, saved);
            cx.resolve(&known.addr.host);
            sentinel.masters.insert(known.name, master);
        }
        sentinel.write_config(out);
        sentinel
    }

    /// This sentinel's run id.
    #[must_use]
    pub fn my_id(&self) -> &RunId {
        &self.shared.me
    }

    /// The port for clients and other sentinels.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.shared.global.port
    }

    /// The persistent state of all groups, for compacting the journal.
    pub fn journal(&self) -> impl Iterator<Item = (&str, &Saved)> {
        self.masters.iter().map(|(name, master)| (name.as_str(), master.group.saved()))
    }

    /// When to feed [`Input::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shared.agenda.alarms.first().into_iter().chain([self.next_tick]).min()
    }

    /// Processes one event and appends the resulting records and actions.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Output) {
        self.watch_the_clock(now, out);
        let cx = Cx { now, shared: &mut self.shared, out };
        match input {
            Input::Deadline => self.on_deadline(now, out),
            Input::Connected { link, local_ip } => self.on_connected(now, link, local_ip, out),
            Input::ConnectFailed { link, refused } => {
                if let Some(state) = cx.shared.links.find(link) {
                    state.on_down(now, refused);
                }
            }
            Input::Disconnected { link } => self.on_disconnected(now, link, out),
            Input::Reply { link, value } => self.on_reply(now, link, &value, out),
            Input::Command { client, protocol, args } => self.on_command(now, client, protocol, &args, out),
            Input::Resolved { host, ip } => {
                if host != ip {
                    cx.shared.resolved.insert(host, ip);
                    self.look_at_all();
                }
            }
            Input::ScriptDone { job, outcome } => {
                let Shared { scripts, timing, .. } = cx.shared;
                scripts.on_done(now, timing, job, outcome);
            }
        }
        self.drop_unused_links(out);
        if self.shared.unwritten == Some(Instant::ORIGIN) {
            self.write_config(out);
        }
    }

    /// Detects that the clock jumped or the process was paused. Observations are unreliable then, so the sentinel
    /// enters TILT mode and draws no conclusions for a while.
    fn watch_the_clock(&mut self, now: Instant, out: &mut Output) {
        let step = now.since(self.last_seen);
        self.last_seen = now;
        let mut cx = Cx { now, shared: &mut self.shared, out };
        if step > cx.shared.timing.tilt_trigger {
            cx.shared.tilts += u64::from(cx.shared.tilt.is_none());
            cx.shared.tilt = Some(now);
            cx.event(Level::Warning, "+tilt", "#tilt mode entered".into(), None);
        } else if cx.shared.tilt.is_some_and(|since| now.since(since) > cx.shared.timing.tilt_period) {
            cx.shared.tilt = None;
            cx.event(Level::Warning, "-tilt", "#tilt mode exited".into(), None);
            // Applies this before any decision that is based on observations from before.
            for master in self.masters.values_mut() {
                master.judge(&mut cx);
                cx.shared.agenda.soon(&master.name);
            }
        }
    }

    /// Schedules a round for every master, after a change that affects all of them.
    pub(crate) fn look_at_all(&mut self) {
        for name in self.masters.keys() {
            self.shared.agenda.soon(name);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Output) {
        let mut cx = Cx { now, shared: &mut self.shared, out };
        let mut due = cx.shared.agenda.alarms.take_until(now);
        if now >= self.next_tick {
            due.extend(cx.shared.agenda.rounds.take_until(now + SLACK));
            // Random jitter keeps sentinels that were started together from ticking in step.
            self.next_tick = now + CALM - Duration::from_micros(cx.shared.rng.random_range(0..20_000));
        }
        for name in due {
            if let Some(master) = self.masters.get_mut(&*name) {
                master.look(&mut cx);
            }
        }
        let Shared { scripts, timing, .. } = cx.shared;
        scripts.tick(now, timing, cx.out);
        if cx.shared.unwritten.is_some_and(|since| now.since(since) >= WRITE_DELAY) {
            self.write_config(out);
        }
    }

    fn on_connected(&mut self, now: Instant, link: LinkId, local_ip: String, out: &mut Output) {
        let mut cx = Cx { now, shared: &mut self.shared, out };
        let Some(state) = cx.shared.links.find(link) else { return };
        state.on_up(now, local_ip);
        let (kind, owner) = (state.kind, state.owner);
        let (user, pass) = (state.user.clone(), state.pass.clone());
        if !pass.is_empty() {
            let words = [b"AUTH".to_vec(), user.into_bytes(), pass.into_bytes()];
            let words = words.into_iter().filter(|word| !word.is_empty()).collect();
            cx.send_after(0, link, Pending::Auth, words);
        }
        let suffix = if kind == LinkKind::Command { "cmd" } else { "pubsub" };
        let name = format!("sentinel-{}-{suffix}", &cx.shared.me.as_str()[..8]);
        cx.send(link, Pending::Plain, &["CLIENT", "SETNAME", &name]);
        match (kind, owner) {
            (LinkKind::Hello, _) => {
                cx.send(link, Pending::Plain, &["SUBSCRIBE", HELLO_CHANNEL]);
            }
            (LinkKind::Command, Owner::Data) => {
                cx.ping(link);
                for master in self.masters.values_mut() {
                    master.ask_info_over(&mut cx, link);
                }
            }
            (LinkKind::Command, Owner::Sentinel) => {
                cx.ping(link);
                cx.send(link, Pending::Probe, &["SENTINEL", "RAFT"]);
            }
        }
    }

    fn on_disconnected(&mut self, now: Instant, link: LinkId, out: &mut Output) {
        let mut cx = Cx { now, shared: &mut self.shared, out };
        let Some(state) = cx.shared.links.find(link) else { return };
        state.on_down(now, false);
        // The first reconnect is immediate, because a refusal tells a dead process from a slow one.
        cx.connect(link);
        for master in self.masters.values().filter(|master| master.links().any(|held| held == link)) {
            cx.shared.agenda.alarms.set_sooner(&master.name, now + URGENT);
        }
    }

    fn on_reply(&mut self, now: Instant, link: LinkId, value: &Value, out: &mut Output) {
        let mut cx = Cx { now, shared: &mut self.shared, out };
        let Some(state) = cx.shared.links.find(link) else { return };
        if state.kind == LinkKind::Hello {
            state.heard = now;
            if let Some(hello) = published(value).and_then(Hello::parse) {
                state.note_claim(now, &hello);
                self.on_hello(now, &hello, out);
            } else {
                cx.heed_refusal(link, value);
            }
            return;
        }
        let Some(pending) = state.pending.pop_front() else { return };
        if let Pending::Ping = pending {
            state.on_pong(now, value);
        }
        if !cx.heed_refusal(link, value) {
            return;
        }
        match pending {
            Pending::Plain | Pending::Auth | Pending::Ping => {}
            Pending::Probe => {
                if let Some(state) = cx.shared.links.find(link) {
                    state.native = Some(!matches!(value, Value::Error(_)));
                }
                for master in self.masters.values_mut() {
                    if master.peers.values().any(|peer| peer.link == Some(link)) {
                        master.update_members(&mut cx);
                    }
                }
            }
            Pending::Info(name) => {
                if let (Some(master), Some(text)) = (self.masters.get_mut(&name), value.as_bytes()) {
                    master.on_info(&mut cx, link, text);
                }
            }
            Pending::Role(name) => {
                if let Some(master) = self.masters.get_mut(&name) {
                    master.on_role(&mut cx, link, value);
                }
            }
            Pending::Ask(name, addr, run_id) => {
                if let Some(master) = self.masters.get_mut(&name) {
                    master.on_answer(&mut cx, &addr, &run_id, value);
                }
            }
            Pending::Order(name, order) => {
                if let Some(master) = self.masters.get_mut(&name) {
                    master.on_order_answered(&mut cx, link, &order, value);
                }
            }
        }
    }

    /// Handles a hello message from any source.
    pub(crate) fn on_hello(&mut self, now: Instant, hello: &Hello, out: &mut Output) {
        let mut cx = Cx { now, shared: &mut self.shared, out };
        if let Some(master) = self.masters.get_mut(&hello.master) {
            master.on_hello(&mut cx, hello);
        }
    }

    fn drop_unused_links(&mut self, out: &mut Output) {
        if !std::mem::take(&mut self.shared.links_changed) {
            return;
        }
        let used: BTreeSet<LinkId> = self.masters.values().flat_map(Master::links).collect();
        out.actions.extend(self.shared.links.keep(&used).into_iter().map(Action::Close));
    }

    /// Stores these `user` lines, split into the words after `user`, in the configuration file.
    pub fn keep_users(&mut self, users: Vec<Vec<Vec<u8>>>, out: &mut Output) {
        self.config.users = users;
        self.write_config(out);
    }

    /// Writes the configuration file now.
    pub(crate) fn write_config(&mut self, out: &mut Output) {
        self.shared.unwritten = None;
        self.config.myid = Some(self.shared.me.clone());
        self.config.current_epoch = self.shared.epoch;
        self.config.global = self.shared.global.clone();
        self.config.masters = self.masters.values().map(Master::known).collect();
        out.push(Action::WriteConfig { text: self.config.rewritten() });
    }

    /// The state of a master, for the simulator and tests.
    #[must_use]
    pub fn status(&self, master: &str) -> Option<Status> {
        let master = self.masters.get(master)?;
        let failover = master.failover.as_ref();
        Some(Status {
            addr: master.current_addr().clone(),
            watched: master.myself.addr.clone(),
            config_epoch: master.config_epoch,
            epoch: self.shared.epoch,
            replicas: master.replicas.keys().cloned().collect(),
            sentinels: master.sentinels(),
            subjectively_down: master.myself.sdown.is_some(),
            objectively_down: master.odown.is_some(),
            failover_epoch: failover.map(|failover| failover.epoch).filter(|&epoch| epoch > 0),
            by_operator: failover.is_some_and(|failover| failover.cause != crate::failover::Cause::Down),
        })
    }

    /// Number of links. Sentinels that share many masters need far fewer than masters times sentinels.
    #[must_use]
    pub fn link_count(&self) -> usize {
        self.shared.links.len()
    }
}

/// The payload of a message on the hello channel.
fn published(value: &Value) -> Option<&[u8]> {
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

impl Cx<'_> {
    pub(crate) fn ping(&mut self, link: LinkId) {
        if !self.send(link, Pending::Ping, &["PING"]) {
            return;
        }
        let now = self.now;
        if let Some(state) = self.shared.links.find(link) {
            state.last_ping = Some(now);
            state.waiting.get_or_insert(now);
        }
    }

    /// Requests the resolution of a hostname.
    pub(crate) fn resolve(&mut self, host: &str) {
        if self.shared.global.resolve_hostnames && !crate::addr::is_ip(host) {
            self.out.push(Action::Resolve { host: host.to_owned() });
        }
    }
}
