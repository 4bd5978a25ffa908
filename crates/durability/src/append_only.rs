//! The append-only file (`appendonly yes`): a log of every change since a base.
//!
//! The state machine in the crate `append-only` decides what to do; this module drives it. A [`writer`] thread asks it
//! for file operations and performs them in the [`folder`]. A rewrite ([`rewriting`]) takes a snapshot like a save,
//! writes it as a new base and hands it over. At startup the files are loaded in order ([`loading`]).
//!
//! Under `appendfsync always`, replies to writes wait for the commit point, which then is the synced offset.

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

/// Interval at which waiting threads check whether the writer still runs.
const LOOK: Duration = Duration::from_millis(100);

/// The append-only file, shared by all threads.
#[derive(Debug)]
pub struct AppendOnly {
    engine: Arc<Engine>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    commit_point: Arc<CommitPoint>,
    /// Publishes how far the log is synced.
    on_disk: watch::Sender<OnDisk>,
    on: AtomicBool,
    /// Lock order: after the log, if both are needed.
    state: Mutex<State>,
    moved: Condvar,
    /// Delay before each round of the writer, in microseconds (DEBUG AOF-FLUSH-SLEEP).
    pub flush_sleep: AtomicU64,
    /// Wakes the writer, to ask the state machine again.
    asked: Notify,
}

/// Tells the writer to stop once the log is synced up to `until`, or after the next failure.
#[derive(Debug, Clone, Copy)]
struct Stopping {
    until: ReplOffset,
    failures: u64,
}

/// How a shutdown treats an append-only file that does not contain all data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Abort the shutdown.
    IsKept,
    /// Shut down anyway (SHUTDOWN FORCE).
    IsLeft,
}

/// Where to start following the log.
#[derive(Debug)]
enum StartAt {
    /// At the snapshot of the next rewrite, because the existing files hold older data.
    Cut,
    /// After the base, which is the only file. `db` is the database selected by the master's stream.
    Base { db: u16 },
    /// At the end of the last increment.
    Increment(Open),
}

#[derive(Debug, Default)]
struct State {
    /// `None` while the file is disabled.
    machine: Option<Machine>,
    /// Keeps the log from being trimmed past what the machine needs.
    anchor: Anchor,
    rewrites: Rewrites,
    /// Cancels the running rewrite.
    called_off: Arc<AtomicBool>,
    /// A finished base that waits to be installed.
    ready: Option<(RewriteId, tempfile::NamedTempFile)>,
    /// The result of a rewrite, for the thread that runs it.
    ended: Option<(RewriteId, Result<Vec<String>, NotTaken>)>,
    /// Whether the writer thread runs, and whether it is to stop.
    running: bool,
    stopping: Option<Stopping>,
    /// Size of the base, and of all files before the current increment.
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

    /// Whether the append-only file is enabled.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Applies the current configuration.
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

    /// Passes the log's end and an event to the state machine, and wakes the writer.
    fn tell(&self, input: Input) {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        self.follow(&mut log, &mut state);
        self.handle(&mut state, input);
        keep(&mut log, &mut state);
        drop((state, log));
        self.asked.notify_one();
    }

    /// Tells the state machine the log's end, or that the log can no longer be followed.
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

    /// Publishes how far the log is synced.
    fn publish_synced(&self, state: &State) {
        let on_disk = match &state.machine {
            Some(machine) => machine.synced().map_or(OnDisk::Nothing, OnDisk::Upto),
            None => OnDisk::NoFile,
        };
        self.on_disk.send_if_modified(|before| std::mem::replace(before, on_disk) != on_disk);
    }

    /// Logs a change of the write error, and updates the gate that rejects writes.
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

    /// Starts the writer thread.
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

    /// Disables the append-only file (`appendonly no`). Syncs what is written, and cancels a running rewrite.
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
        // Release clients that waited for the file.
        self.commit_point.require(false);
        self.commit_point.publish(end);
        self.engine.settings.set_gate(Gate::AOF_FAILED, false);
        self.log.look_again();
    }

    /// Cancels the running rewrite, if there is one.
    fn call_off(&self) {
        let mut state = self.state.lock();
        if state.rewrites.call_off() {
            tracing::info!("Background AOF rewrite cancelled");
            state.called_off.store(true, Ordering::Relaxed);
            state.ready = None;
        }
        self.moved.notify_all();
    }

    /// Whether the files, together with the unwritten part of the log, contain all data.
    fn is_whole(&self) -> bool {
        self.state.lock().machine.as_ref().is_none_or(|machine| machine.standing() == Standing::Whole)
    }

    /// Syncs the whole log to disk. Returns an error if that fails.
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

    /// The part of the log that is on disk.
    pub fn on_disk(&self) -> OnDisk {
        *self.on_disk.borrow()
    }
}

/// Keeps the log from being trimmed past what the state machine needs.
fn keep(log: &mut Log, state: &mut State) {
    if let Some(machine) = &state.machine {
        state.anchor.keep(machine, log);
    }
}
