//! One life of a node: from its start to its death.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use append_only::{
    Anchor, AppendOnly, Effect, Folder, Hands, LogEnd, Operation, Policy, RewriteId, Rewrites, Settings,
};
use clock::{Instant, Millis};
use config::EvictionPolicy;
use engine::{
    Background, Commands, EffectLog, Engine, Flow, Gate, Origin, Requests, Resumed, Session, Unblock, Worker,
};
use keyspace::Keyspace;
use loading::{Host, Loader, State, Told};
use replication::{Log, Position};
use slot_routing::ReplOffset;

use super::clients::{self, DATABASES, PLAIN};
use super::disk::{Opened, SimDisk};
use super::running::{Running, RunningClient, Stop, leave_background};
use super::waiting::WaitingClient;
use super::watching::Watcher;
use crate::Chance;

/// As the configuration calls it.
pub(super) const NAME: &str = "a";
/// Bytes that the log keeps beside those that are needed.
const BACKLOG: u64 = 1 << 14;

/// The log, and all bytes that it ever had.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) log: Log,
    pub(super) history: Vec<u8>,
}

/// The log as the engine has it.
#[derive(Debug, Clone)]
pub(super) struct SharedLog(Arc<Mutex<Logged>>);

impl SharedLog {
    pub(super) fn new(log: Log, history: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Logged { log, history })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Logged> {
        self.0.lock().expect("no run goes on after a panic")
    }

    pub(super) fn end(&self) -> u64 {
        self.lock().log.position().offset.0
    }
}

impl EffectLog for SharedLog {
    fn wanted(&self) -> bool {
        self.lock().log.is_open()
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        let mut logged = self.lock();
        let Logged { log, history } = &mut *logged;
        let before = log.position().offset;
        let after = log.append(db, commands);
        let len = (after.0 - before.0) as usize;
        log.peek(before, len, history).expect("it has just been appended");
        after
    }
}

/// The engine with its commands and a thread.
pub(super) struct Data {
    pub(super) engine: Engine,
    pub(super) commands: Commands,
    worker: Worker,
}

/// The host of a load.
pub(super) struct Quiet(pub(super) Millis);

impl Host for Quiet {
    fn now(&self) -> Millis {
        self.0
    }

    fn nanos(&self) -> fn() -> u64 {
        nanos
    }

    fn begin(&self, _total: u64) {}

    fn progress(&self, _read: u64, _keys: u64) {}

    fn used_memory(&self, _bytes: u64) {}

    fn key_read(&self) {}

    fn tell(&self, _told: Told<'_>) {}
}

/// No command is given up for taking too long.
pub(super) fn nanos() -> u64 {
    0
}

impl Data {
    pub(super) fn new(log: Box<dyn EffectLog>) -> Self {
        let commands = Commands::new(::commands::of_server());
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::of_slots(1, DATABASES, &clients::slots()), None, log);
        engine.settings.debug_command.set(config::Allowed::Yes);
        let worker = engine.worker(nanos);
        Self { engine, commands, worker }
    }

    pub(super) fn loader<'a>(&'a self, host: &'a dyn Host) -> Loader<'a> {
        let Self { engine, commands, .. } = self;
        Loader { engine, commands, threads: 1, verify_checksum: true, kept: 0, host }
    }

    /// Runs requests; returns the replies, and whether the last was whole. Nobody else's run before those that go to the
    /// background.
    pub(super) fn run(&mut self, session: &mut Session, wall: Millis, buffer: Vec<u8>) -> (Vec<u8>, bool) {
        let (mut running, is_whole) = Running::of(buffer);
        session.turn_ends = u64::MAX;
        while self.go_on(session, wall, &mut running) == Stop::Long {
            session.background = Background::Here;
        }
        leave_background(session);
        (running.replies, is_whole)
    }

    /// Runs what is left of requests.
    pub(super) fn go_on(&mut self, session: &mut Session, wall: Millis, running: &mut Running) -> Stop {
        while running.next < running.batch.len() {
            let Running { buffer, batch, next, replies, unanswered } = running;
            let requests = Requests { buffer, batch, from: *next };
            let dispatcher = self.commands.on(&self.engine);
            let (after, flow) = dispatcher.run(&mut self.worker, session, wall, requests, replies);
            *next = after;
            match flow {
                Flow::Node(_) | Flow::Paused => (*next, *unanswered) = (after + 1, *unanswered + 1),
                Flow::Blocked => break,
                Flow::Long | Flow::Held => return Stop::Long,
                Flow::TurnOver => return Stop::TurnOver,
                Flow::Done | Flow::Close => {}
            }
        }
        Stop::Ended
    }

    /// Runs one command for nobody.
    pub(super) fn ask(&mut self, db: u16, wall: Millis, words: &[impl AsRef<str>]) -> Vec<u8> {
        let mut session = Session::new(0, Origin::Client, true);
        session.db = db;
        self.call(&mut session, wall, words)
    }

    /// Runs one command of a client; returns its reply.
    pub(super) fn call(&mut self, session: &mut Session, wall: Millis, words: &[impl AsRef<str>]) -> Vec<u8> {
        let mut request = Vec::new();
        resp::encode_request(&mut request, words.iter().map(|word| word.as_ref().as_bytes()));
        self.run(session, wall, request).0
    }

    /// Ends the wait of a client whose reply is there or whose time is over; returns the reply.
    pub(super) fn end_wait(&mut self, session: &mut Session, wall: Millis, how: Unblock) -> Vec<u8> {
        let mut reply = Vec::new();
        let dispatcher = self.commands.on(&self.engine);
        match dispatcher.end_wait(&mut self.worker, session, wall, how, &mut reply) {
            Resumed::Replied => reply,
            Resumed::RunAgain(request) => {
                let mut again = Vec::new();
                resp::encode_request(&mut again, request.args().iter());
                self.run(session, wall, again).0
            }
        }
    }

    /// A digest of all data, and of the functions.
    pub(super) fn digest(&mut self, wall: Millis) -> String {
        let mut text = self.ask(0, wall, &["DEBUG", "DIGEST"]);
        text.extend(self.ask(0, wall, &["FUNCTION", "LIST"]));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The values of the keys that have what one SET wrote.
    pub(super) fn plain(&mut self) -> Vec<String> {
        let names: Vec<String> = (0..PLAIN).map(|number| format!("p{number}")).collect();
        let mut values = Vec::new();
        for db in 0..DATABASES {
            let words: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
            let reply = self.ask(db, Millis(0), &words);
            let text = String::from_utf8_lossy(&reply).into_owned();
            values.extend(
                text.split("\r\n").filter(|line| !line.starts_with(['*', '$', '_'])).map(str::to_owned),
            );
        }
        values.retain(|value| !value.is_empty());
        values
    }

    /// Memory is short for a moment: all that this policy lets go is evicted.
    pub(super) fn evict(&mut self, wall: Millis, policy: EvictionPolicy) {
        self.engine.settings.set_evicting(policy, 5, 10, true);
        self.engine.limit_memory(1);
        self.engine.make_room(&mut self.worker, wall);
        self.engine.limit_memory(0);
    }

    pub(super) fn expire(&mut self, wall: Millis) {
        self.engine.expire_cycle(&mut self.worker, wall, Duration::from_secs(1));
    }
}

/// A rewrite that is under way.
#[derive(Debug)]
pub(super) struct Rewrite {
    pub(super) id: RewriteId,
    /// Its base, once that is written.
    pub(super) base: Option<Opened>,
}

/// A node that runs.
pub(super) struct Life {
    pub(super) data: Data,
    pub(super) log: SharedLog,
    pub(super) clients: Vec<RunningClient>,
    pub(super) waiters: Vec<WaitingClient>,
    pub(super) watcher: Watcher,
    pub(super) machine: AppendOnly,
    pub(super) anchor: Anchor,
    pub(super) hands: Hands<SimDisk>,
    pub(super) rewrites: Rewrites,
    pub(super) rewrite: Option<Rewrite>,
    /// The operation that is being done.
    pub(super) operation: Option<(Operation, Vec<u8>)>,
    pub(super) holds: bool,
    pub(super) committed: u64,
    /// Where the writes end whose replies wait.
    pub(super) waiting: Vec<u64>,
}

/// The files that are on the disk at a start.
pub(super) enum Found {
    /// No append-only file.
    Nothing,
    /// Data that ends here.
    Data(Option<Position>),
}

pub(super) fn folder(disk: &SimDisk) -> Folder<SimDisk> {
    Folder::new(disk.folder("appendonlydir/"), NAME)
}

impl Life {
    /// Starts a node, and loads what there is. `history` is all that the log had before. An error says that it does not
    /// start.
    pub(super) fn start(
        disk: &SimDisk,
        history: &[u8],
        policy: Policy,
        (now, wall): (Instant, Millis),
        chance: &mut Chance,
    ) -> Result<(Self, Found), String> {
        let log = SharedLog::new(Log::new(chance.history(), BACKLOG), Vec::new());
        let data = Data::new(Box::new(log.clone()));
        let background = chance.pick(&[Background::Unavailable, Background::Elsewhere]);
        let folder = folder(disk);
        let settings =
            Settings { policy, stamps: chance.percent(50), name: NAME.to_owned(), ..Settings::default() };
        let manifest = folder.find().map_err(|error| error.to_string())?;
        let Some(manifest) = manifest else {
            log.lock().log.open(chance.history());
            let machine = AppendOnly::fresh(settings, append_only_manifest(), now);
            return Ok((
                Self::with(data, log, machine, Hands { folder, file: None }, wall, background),
                Found::Nothing,
            ));
        };
        let host = Quiet(wall);
        let loaded =
            data.loader(&host).run_files(&folder, &manifest, true).map_err(|error| error.to_string())?;
        if let Some(position) = loaded.position {
            let mut logged = log.lock();
            logged.log.adopt(position);
            let len = usize::try_from(position.offset.0).unwrap_or(usize::MAX).min(history.len());
            logged.history = history[..len].to_vec();
        }
        let last = folder.last_increment(&manifest).map_err(|error| error.to_string())?;
        let end = LogEnd::of(&log.lock().log, wall);
        let (machine, file) = match last {
            Some(open) => (AppendOnly::resumed(settings, manifest, open.bytes, end, now), Some(open.file)),
            None => (AppendOnly::resumed_behind_base(settings, manifest, end, loaded.db, now), None),
        };
        let life = Self::with(data, log, machine, Hands { folder, file }, wall, background);
        // Writes after the end of the file may be lost, so its history goes on under another name.
        life.log.lock().log.rename(chance.history());
        life.data.engine.settings.set_gate(Gate::LOADING, false);
        Ok((life, Found::Data(loaded.position)))
    }

    fn with(
        data: Data,
        log: SharedLog,
        mut machine: AppendOnly,
        hands: Hands<SimDisk>,
        wall: Millis,
        background: Background,
    ) -> Self {
        if background == Background::Elsewhere {
            // Whatever takes any time at all takes long.
            data.engine.long_commands.set_threshold(0);
            data.engine.settings.set_gate(Gate::BACKGROUND, true);
        }
        let mut effects = Vec::new();
        let mut anchor = Anchor::default();
        anchor.follow(&mut machine, &mut log.lock().log, wall, &mut effects);
        anchor.keep(&machine, &mut log.lock().log);
        let mut life = Self {
            data,
            log,
            clients: (1..3).map(|id| RunningClient::new(id, background)).collect(),
            waiters: (3..5).map(|id| WaitingClient::new(id, background)).collect(),
            watcher: Watcher::new(5, background),
            machine,
            anchor,
            hands,
            rewrites: Rewrites::default(),
            rewrite: None,
            operation: None,
            holds: false,
            committed: 0,
            waiting: Vec::new(),
        };
        for effect in effects {
            life.take(&effect);
        }
        life
    }

    /// Takes an effect that needs nobody else.
    pub(super) fn take(&mut self, effect: &Effect) {
        match effect {
            Effect::Publish(offset) => self.committed = offset.0,
            Effect::Hold(holds) => self.holds = *holds,
            Effect::Failing(error) => {
                self.data.engine.settings.set_gate(Gate::AOF_FAILED, error.is_some());
            }
            Effect::BaseNeeded => self.rewrites.scheduled = true,
            Effect::Rewritten { .. } => {}
        }
    }

    /// The state of all data, and where in its history that is.
    pub(super) fn cut(&self) -> (State, Position) {
        let at_cut = || {
            let mut logged = self.log.lock();
            logged.log.forget_db();
            logged.log.position()
        };
        loading::cut(&self.data.engine, nanos, at_cut).0.expect("few snapshots are under way")
    }

    /// Writes the base of a rewrite.
    pub(super) fn sync_base(&self, base: &Opened) -> io::Result<()> {
        persistence::Disk::sync_temporary(&self.hands.folder.disk, base)
    }
}

fn append_only_manifest() -> persistence::aof::Manifest {
    persistence::aof::Manifest::default()
}
