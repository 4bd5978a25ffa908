//! The append-only file (`appendonly yes`): a log of every change since a base.
//!
//! The state machine in the crate `append-only` decides what to do; this module drives it. A [`writer`] thread asks it
//! for file operations and performs them in the [`directory`]. A rewrite ([`rewriting`]) takes a snapshot like a save,
//! writes it as a new base and hands it over. At startup the files are loaded in order ([`loading`]).
//!
//! Under `appendfsync always`, replies to writes wait for the commit point, which then is the synced offset.

mod directory;
mod info;
mod loading;
mod rewriting;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use append_only::{
    AofEffect, AofEvent, AppendOnly as Machine, BaseRejected, FsyncPolicy, LogEnd, RetainedCursor,
};
use append_only::{AofSettings, AofState, RewriteId, Rewrites};
use config::{AppendFsync, Config, keys};
use engine::{Engine, NodeFlags};
use parking_lot::{Condvar, Mutex};
use persistence::aof::Manifest;
use process::time;
use replication::Log;
use replication::wait::OnDisk;
use slot_routing::ReplOffset;
use tokio::sync::{Notify, watch};

use crate::stream::SharedLog;
use crate::stream::commit_point::CommitPoint;
use directory::{AofDirectory, OpenIncrement};
use writer::Writer;

pub(crate) use loading::load;
pub use loading::reload;
pub use rewriting::{RewriteError, enable, rewrite_in_background, run_automatic_rewrites};
pub(crate) use rewriting::{rewrite_now, sync_all_data};

/// Interval at which waiting threads check whether the writer still runs.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

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
    state: Mutex<SharedState>,
    changed: Condvar,
    /// Delay before each round of the writer, in microseconds (DEBUG AOF-FLUSH-SLEEP).
    pub flush_sleep: AtomicU64,
    /// Wakes the writer, to ask the state machine again.
    wake_writer: Notify,
}

/// Tells the writer to stop once the log is synced up to `until`, or after the next failure.
#[derive(Debug, Clone, Copy)]
struct StopCondition {
    until: ReplOffset,
    failures: u64,
}

/// How a shutdown treats an append-only file that does not contain all data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnfinishedAof {
    /// Abort the shutdown.
    AbortShutdown,
    /// Shut down anyway (SHUTDOWN FORCE).
    Ignore,
}

/// Where to start following the log.
#[derive(Debug)]
enum StartPosition {
    /// At the snapshot of the next rewrite, because the existing files hold older data.
    NextSnapshot,
    /// After the base, which is the only file. `db` is the database selected by the master's stream.
    Base { db: u16 },
    /// At the end of the last increment.
    Increment(OpenIncrement),
}

#[derive(Debug, Default)]
struct SharedState {
    /// `None` while the file is disabled.
    machine: Option<Machine>,
    /// Keeps the log from being trimmed past what the machine needs.
    cursor: RetainedCursor,
    rewrites: Rewrites,
    /// Cancels the running rewrite.
    cancelled: Arc<AtomicBool>,
    /// A finished base that waits to be installed.
    finished_base: Option<(RewriteId, tempfile::NamedTempFile)>,
    /// The result of a rewrite, for the thread that runs it.
    rewrite_result: Option<(RewriteId, Result<Vec<String>, BaseRejected>)>,
    /// Whether the writer thread runs, and whether it is to stop.
    running: bool,
    stop_condition: Option<StopCondition>,
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
            changed: Condvar::new(),
            flush_sleep: AtomicU64::new(0),
            wake_writer: Notify::new(),
        })
    }

    /// Whether the append-only file is enabled.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Applies the current configuration.
    pub fn configure(&self) {
        self.send_event(AofEvent::Configured(self.settings()));
    }

    fn settings(&self) -> AofSettings {
        let policy = match self.config.get(keys::APPENDFSYNC) {
            AppendFsync::Always => FsyncPolicy::Always,
            AppendFsync::Never => FsyncPolicy::Never,
            AppendFsync::EverySecond => FsyncPolicy::EverySecond,
        };
        AofSettings {
            policy,
            no_fsync_on_rewrite: self.config.get(keys::NO_APPENDFSYNC_ON_REWRITE),
            timestamps: self.config.get(keys::AOF_TIMESTAMP_ENABLED),
            name: self.config.get(keys::APPENDFILENAME).to_string(),
        }
    }

    /// Passes the log's end and an event to the state machine, and wakes the writer.
    fn send_event(&self, input: AofEvent) {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        self.report_log(&mut log, &mut state);
        self.handle(&mut state, input);
        retain_log(&mut log, &mut state);
        drop((state, log));
        self.wake_writer.notify_one();
    }

    /// Tells the state machine the log's end, or that the log can no longer be followed.
    fn report_log(&self, log: &mut Log, state: &mut SharedState) {
        let mut effects = Vec::new();
        if let Some(machine) = &mut state.machine {
            state.cursor.report_log(machine, log, time::now(), &mut effects);
        }
        self.apply_effects(state, effects);
    }

    fn handle(&self, state: &mut SharedState, input: AofEvent) {
        let mut effects = Vec::new();
        if let Some(machine) = &mut state.machine {
            machine.handle(input, &mut effects);
        }
        self.apply_effects(state, effects);
    }

    fn apply_effects(&self, state: &mut SharedState, effects: Vec<AofEffect>) {
        for effect in effects {
            match effect {
                AofEffect::PublishCommitPoint(offset) => self.commit_point.publish(offset),
                AofEffect::HoldReplies(holds) => self.commit_point.set_required(holds),
                AofEffect::WriteErrorChanged(error) => self.update_write_error(error),
                AofEffect::RewriteEnded { rewrite, outcome } => {
                    state.rewrite_result = Some((rewrite, outcome));
                }
                AofEffect::BaseNeeded => state.rewrites.scheduled = true,
            }
        }
        self.publish_synced(state);
    }

    /// Publishes how far the log is synced.
    fn publish_synced(&self, state: &SharedState) {
        let on_disk = match &state.machine {
            Some(machine) => machine.synced().map_or(OnDisk::NotYet, OnDisk::UpTo),
            None => OnDisk::AppendOnlyOff,
        };
        self.on_disk.send_if_modified(|before| std::mem::replace(before, on_disk) != on_disk);
    }

    /// Logs a change of the write error, and updates the gate that rejects writes.
    fn update_write_error(&self, error: Option<String>) {
        match &error {
            Some(error) => tracing::error!("Error writing to the AOF file: {error}"),
            None => tracing::warn!("AOF write error looks solved. The server can write again."),
        }
        let failed = error.is_some();
        self.engine.settings.aof_error.store(Arc::new(error.unwrap_or_default()));
        self.engine.settings.set_node_flag(NodeFlags::AOF_FAILED, failed);
        self.log.wake_readers();
    }

    /// Starts the writer thread.
    fn start(
        self: &Arc<Self>,
        folder: AofDirectory,
        manifest: Manifest,
        from: StartPosition,
    ) -> io::Result<()> {
        self.log.keep_open(true);
        let sizes = folder.sizes(&manifest);
        let settings = self.settings();
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        let now = time::instant();
        let (machine, file, bytes) = match from {
            StartPosition::NextSnapshot => (Machine::without_base(settings, manifest, now), None, 0),
            StartPosition::Base { db } => {
                (Machine::after_base(settings, manifest, LogEnd::of(&log, time::now()), db, now), None, 0)
            }
            StartPosition::Increment(OpenIncrement { file, bytes }) => (
                Machine::continue_increment(settings, manifest, bytes, LogEnd::of(&log, time::now()), now),
                Some(file),
                bytes,
            ),
        };
        state.machine = Some(machine);
        (state.base_size, state.size_before) = (sizes.base, sizes.all.saturating_sub(bytes));
        state.rewrites.size_after = sizes.all;
        (state.running, state.stop_condition, state.rewrite_result) = (true, None, None);
        self.report_log(&mut log, &mut state);
        retain_log(&mut log, &mut state);
        drop((state, log));
        self.on.store(true, Ordering::Release);
        let writer = Writer::new(self.clone(), folder, file);
        let shared = self.clone();
        let work = move || {
            writer.run();
            shared.state.lock().running = false;
            shared.changed.notify_all();
        };
        let spawned = std::thread::Builder::new().name("aof".to_owned()).spawn(work);
        spawned.map(drop).inspect_err(|_| self.state.lock().running = false)
    }

    /// Disables the append-only file (`appendonly no`). Syncs what is written, and cancels a running rewrite.
    pub fn disable(&self) {
        self.cancel_rewrite();
        self.send_event(AofEvent::SyncRequested);
        let mut state = self.state.lock();
        let stopping =
            |machine: &Machine| StopCondition { until: machine.log_end(), failures: machine.failures() };
        state.stop_condition = state.machine.as_ref().map(stopping);
        self.wake_writer.notify_one();
        self.changed.wait_while(&mut state, |state| state.running);
        state.machine = None;
        self.publish_synced(&state);
        let mut cursor = std::mem::take(&mut state.cursor);
        drop(state);
        self.on.store(false, Ordering::Release);
        let mut log = self.log.lock();
        cursor.release(&mut log);
        let end = log.position().offset;
        drop(log);
        self.log.keep_open(false);
        // Release clients that waited for the file.
        self.commit_point.set_required(false);
        self.commit_point.publish(end);
        self.engine.settings.set_node_flag(NodeFlags::AOF_FAILED, false);
        self.log.wake_readers();
    }

    /// Cancels the running rewrite, if there is one.
    fn cancel_rewrite(&self) {
        let mut state = self.state.lock();
        if state.rewrites.cancel() {
            tracing::info!("Background AOF rewrite cancelled");
            state.cancelled.store(true, Ordering::Relaxed);
            state.finished_base = None;
        }
        self.changed.notify_all();
    }

    /// Whether the files, together with the unwritten part of the log, contain all data.
    fn is_complete(&self) -> bool {
        self.state.lock().machine.as_ref().is_none_or(|machine| machine.state() == AofState::Complete)
    }

    /// Syncs the whole log to disk. Returns an error if that fails.
    fn flush(&self) -> Result<(), String> {
        let before = self.state.lock().machine.as_ref().map_or(0, Machine::failures);
        self.send_event(AofEvent::SyncRequested);
        let mut state = self.state.lock();
        let end = state.machine.as_ref().map(Machine::log_end).unwrap_or_default();
        while state.running {
            let Some(machine) = &state.machine else { break };
            match machine.error() {
                Some(error) if machine.failures() > before => return Err(error.to_owned()),
                _ if machine.has_synced(end) => break,
                _ => {}
            }
            self.changed.wait_for(&mut state, POLL_INTERVAL);
        }
        Ok(())
    }

    /// The part of the log that is on disk.
    pub fn on_disk(&self) -> OnDisk {
        *self.on_disk.borrow()
    }
}

/// Keeps the log from being trimmed past what the state machine needs.
fn retain_log(log: &mut Log, state: &mut SharedState) {
    if let Some(machine) = &state.machine {
        state.cursor.retain(machine, log);
    }
}
