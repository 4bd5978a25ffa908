//! The append-only file (`appendonly yes`): every change since a base, on disk.
//!
//! A pure machine decides what is done when (the crate `append-only`). Here is what carries it: a [`writer`] of its own
//! thread asks it for one operation after the other and does it in the [`folder`]; a rewrite ([`rewriting`]) cuts a
//! snapshot as a save does, tells the machine, writes the snapshot as the next base and hands it over. At the start the
//! files are [`loading`] in their order.
//!
//! Under `appendfsync always` replies to writes wait for the log's commit point, which is then what is synced.

mod folder;
mod info;
mod loading;
mod rewriting;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use append_only::{Anchor, AppendOnly as Machine, Effect, Input, LogEnd, NotTaken, Policy};
use append_only::{RewriteId, Rewrites, Settings, Standing};
use config::{AppendFsync, Config, keys};
use engine::{Engine, Gate};
use parking_lot::{Condvar, Mutex};
use persistence::aof::Manifest;
use process::time;
use replication::Log;
use replication::wait::OnDisk;
use slot_routing::ReplOffset;
use tokio::sync::{Notify, watch};

use crate::stream::SharedLog;
use crate::stream::commit_point::CommitPoint;
use folder::{Folder, Open};
use writer::Writer;

pub(crate) use loading::load;
pub use loading::reload;
pub use rewriting::{RewriteError, rewrite_in_background, switch_on, watch};
pub(crate) use rewriting::{finish, rewrite_now};

/// How long a thread waits for the writer at a time before looking again whether it is still there.
const LOOK: Duration = Duration::from_millis(100);

/// The append-only file, as all threads share it.
#[derive(Debug)]
pub struct AppendOnly {
    engine: Arc<Engine>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    commit_point: Arc<CommitPoint>,
    /// Hears what of the log is on the disk.
    on_disk: watch::Sender<OnDisk>,
    on: AtomicBool,
    /// Locked with the log or without it, never before it.
    state: Mutex<State>,
    moved: Condvar,
    /// Microseconds that each round of the writer waits before it (DEBUG AOF-FLUSH-SLEEP).
    pub flush_sleep: AtomicU64,
    /// The writer is to ask the machine again.
    asked: Notify,
}

/// The writer is to stop when the log is on the disk up to `until`, or with the next failure.
#[derive(Debug, Clone, Copy)]
struct Stopping {
    until: ReplOffset,
    failures: u64,
}

/// An append-only file that is not all of the data when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// The server does not stop without it.
    IsKept,
    /// The server stops all the same (SHUTDOWN FORCE).
    IsLeft,
}

/// From where on the log is followed.
#[derive(Debug)]
enum StartAt {
    /// From the next rewrite's cut on: what the files have is no beginning of it.
    Cut,
    /// Behind the base, which is all that there is; `db` is what a master's stream has selected there.
    Base { db: u16 },
    /// In the last increment, which goes on.
    Increment(Open),
}

#[derive(Debug, Default)]
struct State {
    /// `None` while it is off.
    machine: Option<Machine>,
    /// Has the log keep what the machine needs of it.
    anchor: Anchor,
    rewrites: Rewrites,
    /// Set to tell the rewrite under way that it is called off.
    called_off: Arc<AtomicBool>,
    /// A base that is written, until it is put in place.
    ready: Option<(RewriteId, tempfile::NamedTempFile)>,
    /// How a rewrite ended, for the thread that made it.
    ended: Option<(RewriteId, Result<Vec<String>, NotTaken>)>,
    /// Whether the thread of the writer runs, and when it is to stop.
    running: bool,
    stopping: Option<Stopping>,
    /// Bytes of the base, and of all files before the increment that is written to.
    base_size: u64,
    size_before: u64,
}

impl AppendOnly {
    pub(super) fn new(
        engine: Arc<Engine>,
        config: Arc<Config>,
        log: Arc<SharedLog>,
        (commit_point, on_disk): (Arc<CommitPoint>, watch::Sender<OnDisk>),
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            config,
            log,
            commit_point,
            on_disk,
            on: AtomicBool::new(false),
            state: Mutex::default(),
            moved: Condvar::new(),
            flush_sleep: AtomicU64::new(0),
            asked: Notify::new(),
        })
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// The configuration may have changed.
    pub fn configure(&self) {
        self.tell(Input::Configured(self.settings()));
    }

    fn settings(&self) -> Settings {
        let policy = match self.config.get(keys::APPENDFSYNC) {
            AppendFsync::Always => Policy::Always,
            AppendFsync::Never => Policy::Never,
            AppendFsync::EverySecond => Policy::EverySecond,
        };
        Settings {
            policy,
            spares_disk: self.config.get(keys::NO_APPENDFSYNC_ON_REWRITE),
            stamps: self.config.get(keys::AOF_TIMESTAMP_ENABLED),
            name: self.config.get(keys::APPENDFILENAME).to_string(),
        }
    }

    /// Tells the machine how long the log is, and something else; has the writer ask it again.
    fn tell(&self, input: Input) {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        self.follow(&mut log, &mut state);
        self.handle(&mut state, input);
        keep(&mut log, &mut state);
        drop((state, log));
        self.asked.notify_one();
    }

    /// Tells the machine how long the log is, or that it cannot be followed any more.
    fn follow(&self, log: &mut Log, state: &mut State) {
        let mut effects = Vec::new();
        if let Some(machine) = &mut state.machine {
            state.anchor.follow(machine, log, time::now(), &mut effects);
        }
        self.carry_out(state, effects);
    }

    fn handle(&self, state: &mut State, input: Input) {
        let mut effects = Vec::new();
        if let Some(machine) = &mut state.machine {
            machine.handle(input, &mut effects);
        }
        self.carry_out(state, effects);
    }

    fn carry_out(&self, state: &mut State, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish(offset) => self.commit_point.publish(offset),
                Effect::Hold(holds) => self.commit_point.require(holds),
                Effect::Failing(error) => self.report(error),
                Effect::Rewritten { rewrite, outcome } => state.ended = Some((rewrite, outcome)),
                Effect::BaseNeeded => state.rewrites.scheduled = true,
            }
        }
        self.publish_synced(state);
    }

    /// Tells those who want to know it what of the log is on the disk.
    fn publish_synced(&self, state: &State) {
        let on_disk = match &state.machine {
            Some(machine) => machine.synced().map_or(OnDisk::Nothing, OnDisk::Upto),
            None => OnDisk::NoFile,
        };
        self.on_disk.send_if_modified(|before| std::mem::replace(before, on_disk) != on_disk);
    }

    /// Takes note of whether the file can be written.
    fn report(&self, error: Option<String>) {
        match &error {
            Some(error) => tracing::error!("Error writing to the AOF file: {error}"),
            None => tracing::warn!("AOF write error looks solved. The server can write again."),
        }
        let failed = error.is_some();
        self.engine.settings.aof_error.store(Arc::new(error.unwrap_or_default()));
        self.engine.settings.set_gate(Gate::AOF_FAILED, failed);
        self.log.look_again();
    }

    /// Follows the log from now on.
    fn start(self: &Arc<Self>, folder: Folder, manifest: Manifest, from: StartAt) -> io::Result<()> {
        self.log.keep_open(true);
        let sizes = folder.sizes(&manifest);
        let settings = self.settings();
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        let now = time::instant();
        let (machine, file, bytes) = match from {
            StartAt::Cut => (Machine::fresh(settings, manifest, now), None, 0),
            StartAt::Base { db } => (
                Machine::resumed_behind_base(settings, manifest, LogEnd::of(&log, time::now()), db, now),
                None,
                0,
            ),
            StartAt::Increment(Open { file, bytes }) => (
                Machine::resumed(settings, manifest, bytes, LogEnd::of(&log, time::now()), now),
                Some(file),
                bytes,
            ),
        };
        state.machine = Some(machine);
        (state.base_size, state.size_before) = (sizes.base, sizes.all.saturating_sub(bytes));
        state.rewrites.size_after = sizes.all;
        (state.running, state.stopping, state.ended) = (true, None, None);
        self.follow(&mut log, &mut state);
        keep(&mut log, &mut state);
        drop((state, log));
        self.on.store(true, Ordering::Release);
        let writer = Writer::new(self.clone(), folder, file);
        let shared = self.clone();
        let work = move || {
            writer.run();
            shared.state.lock().running = false;
            shared.moved.notify_all();
        };
        let spawned = std::thread::Builder::new().name("aof".to_owned()).spawn(work);
        spawned.map(drop).inspect_err(|_| self.state.lock().running = false)
    }

    /// Stops following the log (`appendonly no`). Bytes already written are brought to the disk. A rewrite that is
    /// under way is called off.
    pub fn stop(&self) {
        self.call_off();
        self.tell(Input::Asked);
        let mut state = self.state.lock();
        let stopping =
            |machine: &Machine| Stopping { until: machine.log_end(), failures: machine.failures() };
        state.stopping = state.machine.as_ref().map(stopping);
        self.asked.notify_one();
        self.moved.wait_while(&mut state, |state| state.running);
        state.machine = None;
        self.publish_synced(&state);
        let mut anchor = std::mem::take(&mut state.anchor);
        drop(state);
        self.on.store(false, Ordering::Release);
        let mut log = self.log.lock();
        anchor.leave(&mut log);
        let end = log.position().offset;
        drop(log);
        self.log.keep_open(false);
        // Clients that waited for the file wait no longer.
        self.commit_point.require(false);
        self.commit_point.publish(end);
        self.engine.settings.set_gate(Gate::AOF_FAILED, false);
        self.log.look_again();
    }

    /// Calls a rewrite off that is under way.
    fn call_off(&self) {
        let mut state = self.state.lock();
        if state.rewrites.call_off() {
            tracing::info!("Background AOF rewrite called off");
            state.called_off.store(true, Ordering::Relaxed);
            state.ready = None;
        }
        self.moved.notify_all();
    }

    /// Whether its files, and what is to be written yet, are all of the data.
    fn is_whole(&self) -> bool {
        self.state.lock().machine.as_ref().is_none_or(|machine| machine.standing() == Standing::Whole)
    }

    /// Brings all that is in the log to the disk. An error says that this is not possible.
    fn flush(&self) -> Result<(), String> {
        let before = self.state.lock().machine.as_ref().map_or(0, Machine::failures);
        self.tell(Input::Asked);
        let mut state = self.state.lock();
        let end = state.machine.as_ref().map(Machine::log_end).unwrap_or_default();
        while state.running {
            let Some(machine) = &state.machine else { break };
            match machine.error() {
                Some(error) if machine.failures() > before => return Err(error.to_owned()),
                _ if machine.has_synced(end) => break,
                _ => {}
            }
            self.moved.wait_for(&mut state, LOOK);
        }
        Ok(())
    }

    /// The part of this node's log that is on its disk.
    pub fn on_disk(&self) -> OnDisk {
        *self.on_disk.borrow()
    }
}

/// Has the log keep what the machine needs of it.
fn keep(log: &mut Log, state: &mut State) {
    if let Some(machine) = &state.machine {
        state.anchor.keep(machine, log);
    }
}
