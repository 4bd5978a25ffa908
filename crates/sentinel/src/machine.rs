//! One sentinel: what comes in, what goes out.

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

/// How often a master is looked at with which something is wrong, and while every moment counts. One at
/// rest is looked at when something is due.
pub(crate) const CALM: Duration = Duration::from_millis(100);
pub(crate) const URGENT: Duration = Duration::from_millis(10);
/// Tasks that are due this much later are done now, so that few looks do much.
pub(crate) const SLACK: Duration = Duration::from_millis(50);
/// How long a changed configuration may wait for its place on disk. Votes and switches do not wait for
/// it: they are in the journal.
const WRITE_DELAY: Duration = Duration::from_millis(100);

/// A connection of a client, named by the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// An event that a sentinel is told of.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The time that [`Sentinel::next_deadline`] named has come.
    Deadline,
    /// A link stands; `local_ip` is our end of it.
    Connected {
        /// The link.
        link: LinkId,
        /// The address of our end.
        local_ip: String,
    },
    /// A link could not be made. `refused`: the host is there, and nobody listens.
    ConnectFailed {
        /// The link.
        link: LinkId,
        /// Whether the host answered that nobody listens there.
        refused: bool,
    },
    /// A link that stood broke.
    Disconnected {
        /// The link.
        link: LinkId,
    },
    /// A reply, or on a hello link a message.
    Reply {
        /// The link.
        link: LinkId,
        /// The reply or message.
        value: Value,
    },
    /// A client's command: SENTINEL, PUBLISH, ROLE, or INFO for the sentinel's own section.
    Command {
        /// The client.
        client: ClientId,
        /// The protocol in which it wants its reply.
        protocol: Protocol,
        /// The command's words.
        args: Vec<Vec<u8>>,
    },
    /// The address of a host that was asked for.
    Resolved {
        /// The name that was asked for.
        host: String,
        /// Its address.
        ip: String,
    },
    /// A script has ended.
    ScriptDone {
        /// The run.
        job: JobId,
        /// How it ended.
        outcome: Outcome,
    },
}

/// The outcome of a step: what the disk is to have, and what is to be done. Actions that wait for the disk name a record,
/// so the two lists need no order between them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// To be appended to the journal, in this order, and synced.
    pub records: Vec<JournalRecord>,
    /// To be done, in this order.
    pub actions: Vec<Action>,
}

impl Output {
    pub(crate) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// A record that later actions may wait for.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalRecord {
    /// The number by which they name it.
    pub number: u64,
    /// The record.
    pub record: Record,
}

/// An action that a sentinel wants done. `after` is the number of the [`JournalRecord`] that must be on disk before; zero
/// waits for nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Open a link.
    Connect {
        /// The link's number.
        link: LinkId,
        /// Where to.
        addr: Addr,
        /// Its purpose.
        kind: LinkKind,
    },
    /// Close a link.
    Close(LinkId),
    /// Send a request over a link.
    Send {
        /// The link.
        link: LinkId,
        /// The record that must be on disk before.
        after: u64,
        /// The request's words.
        request: Vec<Vec<u8>>,
    },
    /// Put this text in the configuration file's place, in one step.
    WriteConfig {
        /// The whole text.
        text: Vec<u8>,
    },
    /// Answer a client.
    Reply {
        /// The client.
        client: ClientId,
        /// The record that must be on disk before.
        after: u64,
        /// It says that the configuration was kept: true only if that could be written.
        is_kept: bool,
        /// The reply's bytes.
        reply: Vec<u8>,
    },
    /// To the clients that subscribe to this channel.
    Publish {
        /// The channel.
        channel: String,
        /// The message.
        payload: String,
    },
    /// Write a line to the log.
    Log {
        /// How important it is.
        level: Level,
        /// The line.
        text: String,
    },
    /// Find out a host's address.
    Resolve {
        /// The host's name.
        host: String,
    },
    /// Start a script.
    RunScript {
        /// The run's number.
        job: JobId,
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// Keep only messages of this level and above in the log.
    SetLogLevel(LogLevel),
    /// Kill a script that runs too long.
    KillScript(JobId),
    /// A simulated crash: stop at once.
    Crash,
}

/// How a watched master stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The address that clients are sent to.
    pub addr: Addr,
    /// The address that is watched, and held for down or not: a leader's is the old master's until its
    /// failover has ended.
    pub watched: Addr,
    /// The epoch of the last failover that was heard of.
    pub config_epoch: u64,
    /// The newest epoch heard of.
    pub epoch: u64,
    /// The known replicas.
    pub replicas: Vec<Addr>,
    /// How many sentinels are known, this one included.
    pub sentinels: usize,
    /// Whether this sentinel holds it for down.
    pub subjectively_down: bool,
    /// Whether enough sentinels do.
    pub objectively_down: bool,
    /// The epoch in which this sentinel leads a failover.
    pub failover_epoch: Option<u64>,
    /// Whether an operator asked for it.
    pub by_operator: bool,
}

/// A sentinel.
pub struct Sentinel {
    pub(crate) masters: BTreeMap<String, Master>,
    pub(crate) shared: Shared,
    config: Config,
    /// When rounds are taken next.
    next_tick: Instant,
    last_seen: Instant,
}

impl std::fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinel").field("me", &self.shared.me).finish_non_exhaustive()
    }
}

impl Sentinel {
    /// A sentinel as its configuration file and its journal describe it. The first actions write the
    /// file back, with the identity that a new sentinel takes.
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

    /// This sentinel's identity.
    #[must_use]
    pub fn my_id(&self) -> &RunId {
        &self.shared.me
    }

    /// The port that clients and other sentinels use.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.shared.global.port
    }

    /// Returns the records of the journal, as they will be once every one is written, to write it anew.
    pub fn journal(&self) -> impl Iterator<Item = (&str, &Saved)> {
        self.masters.iter().map(|(name, master)| (name.as_str(), master.group.saved()))
    }

    /// When [`Input::Deadline`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shared.agenda.alarms.first().into_iter().chain([self.next_tick]).min()
    }

    /// Takes in what happened; appends what is to be done.
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

    /// A step of time so long that this process cannot have run makes every judgement doubtful: for a
    /// while, nothing is concluded from what is seen (TILT).
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
            // Before anything is done by what was thought of them when it began.
            for master in self.masters.values_mut() {
                master.judge(&mut cx);
                cx.shared.agenda.soon(&master.name);
            }
        }
    }

    /// Has every master looked at in the next tick: what any of them goes by has changed.
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
            // Sentinels that were started together do not stay in step.
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
        // The first attempt at once: whether it is refused decides between dead and slow.
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

    /// A greeting, from whatever way it came.
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

    /// Puts these lines of users, each the words after `user`, into the configuration file.
    pub fn keep_users(&mut self, users: Vec<Vec<Vec<u8>>>, out: &mut Output) {
        self.config.users = users;
        self.write_config(out);
    }

    /// Puts all that is known into the configuration file, now.
    pub(crate) fn write_config(&mut self, out: &mut Output) {
        self.shared.unwritten = None;
        self.config.myid = Some(self.shared.me.clone());
        self.config.current_epoch = self.shared.epoch;
        self.config.global = self.shared.global.clone();
        self.config.masters = self.masters.values().map(Master::known).collect();
        out.push(Action::WriteConfig { text: self.config.rewritten() });
    }

    /// Returns the state of a master, for observers (the simulator, tests).
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

    /// How many links there are; with sentinels that watch many masters together, far fewer than masters
    /// times sentinels.
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

    /// Asks for a host's address, if it is a name.
    pub(crate) fn resolve(&mut self, host: &str) {
        if self.shared.global.resolve_hostnames && !crate::addr::is_ip(host) {
            self.out.push(Action::Resolve { host: host.to_owned() });
        }
    }
}
