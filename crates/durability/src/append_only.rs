//! The append-only file (`appendonly yes`): a log of every change since a base.
//!
//! [`AofDriver`] decides what to do; this module gives it threads, locks and files. A [`writer`] thread performs the
//! driver's file operations in the [`directory`]. A rewrite ([`rewriting`]) takes a snapshot like a save, writes it as
//! a new base and hands the base to the writer. At startup the files are loaded in order ([`loading`]).
//!
//! Under `appendfsync always`, replies to writes wait for the commit point, which is then the synced offset.

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
    AofAction, AofDriver, AofDriverEvent, AofSettings, AofStart, BaseInstallError, FileExecutor, FsyncPolicy,
    RewriteId, StartPosition,
};
use config::{AppendFsync, Config, keys};
use engine::{Engine, NodeFlags};
use parking_lot::{Condvar, Mutex};
use persistence::aof::Manifest;
use process::time;
use replication::Log;
use replication::wait::DiskProgress;
use tokio::sync::{Notify, watch};

use crate::disk::SystemDisk;
use crate::stream::commit_point::{CommitPoint, HistoryNumber, HistoryOffset};
use crate::stream::{SharedLog, StreamHandles};
use writer::AofWriter;

pub(crate) use loading::load;
pub use loading::reload;
pub use rewriting::{RewriteError, enable, rewrite_in_background, run_automatic_rewrites};
pub(crate) use rewriting::{rewrite_now, sync_all_data};

/// Interval at which waiting threads check whether the writer still runs.
const WRITER_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The append-only file, shared by all threads.
#[derive(Debug)]
pub struct AppendOnlyFile {
    engine: Arc<Engine>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    commit_point: Arc<CommitPoint>,
    /// Publishes the offset up to which the log is synced.
    disk_progress: watch::Sender<DiskProgress>,
    is_enabled: AtomicBool,
    /// Must be locked after the log, if both locks are needed.
    state: Mutex<AppendOnlyFileState>,
    state_changed: Condvar,
    /// Delay before each round of writing, in microseconds (DEBUG AOF-FLUSH-SLEEP).
    pub flush_sleep_micros: AtomicU64,
    /// Wakes the writer, so that it asks the driver for its next step.
    writer_wakeup: Notify,
}

/// How a shutdown treats an append-only file that does not contain all data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnfinishedAofPolicy {
    /// Abort the shutdown, because data could be lost. This is the default.
    AbortShutdown,
    /// Shut down anyway (SHUTDOWN FORCE).
    Ignore,
}

/// A message from the driver to the thread that runs a rewrite.
#[derive(Debug)]
enum RewriteMessage {
    /// The new base is installed, so these files are obsolete.
    DeleteHistory(Vec<String>),
    Ended(RewriteId, Result<(), BaseInstallError>),
}

#[derive(Debug, Default)]
struct AppendOnlyFileState {
    driver: AofDriver<tempfile::NamedTempFile>,
    /// The log's history when the driver last received the end of the log.
    history: HistoryNumber,
    /// Cancels the running rewrite.
    is_rewrite_cancelled: Arc<AtomicBool>,
    rewrite_message: Option<RewriteMessage>,
    /// Whether the writer thread runs.
    is_writer_running: bool,
}

impl AppendOnlyFile {
    pub(super) fn new(engine: Arc<Engine>, config: Arc<Config>, stream: &StreamHandles) -> Arc<Self> {
        Arc::new(Self {
            engine,
            config,
            log: stream.log.clone(),
            commit_point: stream.commit_point.clone(),
            disk_progress: stream.synced_log.clone(),
            is_enabled: AtomicBool::new(false),
            state: Mutex::default(),
            state_changed: Condvar::new(),
            flush_sleep_micros: AtomicU64::new(0),
            writer_wakeup: Notify::new(),
        })
    }

    /// Returns whether the append-only file is enabled, which may differ from `appendonly` while it is being changed.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Acquire)
    }

    /// Passes the current configuration to the driver.
    pub fn configure(&self) {
        self.send_event(AofDriverEvent::Configured(self.settings()));
    }

    fn settings(&self) -> AofSettings {
        let policy = match self.config.get(keys::APPENDFSYNC) {
            AppendFsync::Always => FsyncPolicy::Always,
            AppendFsync::Never => FsyncPolicy::Never,
            AppendFsync::EverySecond => FsyncPolicy::EverySecond,
        };
        AofSettings {
            fsync_policy: policy,
            no_fsync_on_rewrite: self.config.get(keys::NO_APPENDFSYNC_ON_REWRITE),
            has_timestamps: self.config.get(keys::AOF_TIMESTAMP_ENABLED),
            name: self.config.get(keys::APPENDFILENAME).to_string(),
        }
    }

    /// Passes an event to the driver, performs the resulting actions and wakes the writer.
    fn send_event(&self, event: AofDriverEvent<tempfile::NamedTempFile>) {
        let mut log = self.log.lock();
        self.handle_event(&mut log, event);
        drop(log);
        self.writer_wakeup.notify_one();
    }

    /// Passes an event to the driver and performs the resulting actions.
    fn handle_event(&self, log: &mut Log, event: AofDriverEvent<tempfile::NamedTempFile>) {
        let mut state = self.state.lock();
        let mut actions = Vec::new();
        state.driver.handle(log, time::monotonic_now(), time::now(), event, &mut actions);
        self.perform_while_log_is_locked(&mut state, actions);
    }

    /// Performs the actions that the driver returned when it received the end of the log, which the caller has locked.
    fn perform_while_log_is_locked(&self, state: &mut AppendOnlyFileState, actions: Vec<AofAction>) {
        state.history = self.commit_point.history();
        self.perform_actions(state, actions);
    }

    fn perform_actions(&self, state: &mut AppendOnlyFileState, actions: Vec<AofAction>) {
        for action in actions {
            match action {
                AofAction::PublishCommitPoint(offset) => {
                    self.commit_point.publish(HistoryOffset { history: state.history, offset });
                }
                AofAction::HoldReplies(holds) => self.commit_point.set_required(holds),
                AofAction::WriteErrorChanged(error) => self.update_write_error(error),
                AofAction::SyncDelayed => {
                    tracing::warn!("Asynchronous AOF fsync is taking too long (disk is busy?)");
                }
                AofAction::DeleteHistory(names) => {
                    state.rewrite_message = Some(RewriteMessage::DeleteHistory(names));
                }
                AofAction::RewriteEnded { rewrite, outcome } => {
                    state.rewrite_message = Some(RewriteMessage::Ended(rewrite, outcome));
                }
            }
        }
        self.publish_synced(state);
        self.state_changed.notify_all();
    }

    /// Publishes the offset up to which the log is synced.
    fn publish_synced(&self, state: &AppendOnlyFileState) {
        let on_disk = match state.driver.status() {
            Some(status) => {
                status.synced_offset.map_or(DiskProgress::NothingSynced, DiskProgress::SyncedUpTo)
            }
            None => DiskProgress::Disabled,
        };
        self.disk_progress.send_if_modified(|before| std::mem::replace(before, on_disk) != on_disk);
    }

    /// Logs a change of the write error, and updates the gate that rejects writes.
    fn update_write_error(&self, error: Option<String>) {
        match &error {
            Some(error) => tracing::error!("Error writing to the AOF file: {error}"),
            None => tracing::warn!("AOF write error looks solved. The server can write again."),
        }
        let failed = error.is_some();
        self.engine.settings.dataset.aof_error.store(Arc::new(error.unwrap_or_default()));
        self.engine.settings.set_node_flag(NodeFlags::AOF_FAILED, failed);
        self.log.wake_readers();
    }

    /// Enables the file and starts the writer thread.
    fn start(
        self: &Arc<Self>,
        executor: FileExecutor<SystemDisk>,
        manifest: Manifest,
        position: StartPosition,
    ) -> io::Result<()> {
        self.log.set_kept_open(true);
        let sizes = executor.directory().sizes(&manifest);
        let start = AofStart { settings: self.settings(), manifest, start_position: position, sizes };
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        let mut actions = Vec::new();
        state.driver.start(start, &mut log, time::monotonic_now(), time::now(), &mut actions);
        (state.is_writer_running, state.rewrite_message) = (true, None);
        self.perform_while_log_is_locked(&mut state, actions);
        drop((state, log));
        self.is_enabled.store(true, Ordering::Release);
        let writer = AofWriter::new(self.clone(), executor);
        let shared = self.clone();
        let work = move || {
            writer.run();
            shared.state.lock().is_writer_running = false;
            shared.state_changed.notify_all();
        };
        let spawned = std::thread::Builder::new().name("aof".to_owned()).spawn(work);
        spawned.map(drop).inspect_err(|_| self.state.lock().is_writer_running = false)
    }

    /// Disables the append-only file (`appendonly no`). Syncs what is written, and cancels a running rewrite.
    pub fn disable(&self) {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        state.cancel_rewrite();
        let mut actions = Vec::new();
        state.driver.stop_writer(&mut log, time::monotonic_now(), time::now(), &mut actions);
        self.perform_while_log_is_locked(&mut state, actions);
        drop(log);
        self.writer_wakeup.notify_one();
        self.state_changed.wait_while(&mut state, |state| state.is_writer_running);
        drop(state);
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        state.driver.disable(&mut log);
        self.publish_synced(&state);
        let end = log.position().offset;
        drop((state, log));
        self.is_enabled.store(false, Ordering::Release);
        self.log.set_kept_open(false);
        // Release clients that wait for a sync of the file.
        self.commit_point.set_required(false);
        self.commit_point.publish(HistoryOffset { history: self.commit_point.history(), offset: end });
        self.engine.settings.set_node_flag(NodeFlags::AOF_FAILED, false);
        self.log.wake_readers();
    }

    /// Cancels the running rewrite, if there is one.
    fn cancel_rewrite(&self) {
        self.state.lock().cancel_rewrite();
        self.state_changed.notify_all();
    }

    /// Returns whether the files, together with the unwritten part of the log, contain all data.
    fn is_complete(&self) -> bool {
        self.state.lock().driver.is_complete()
    }

    /// Syncs the whole log to disk. Returns an error if that fails.
    fn sync_log(&self) -> Result<(), String> {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        let mut actions = Vec::new();
        let target = state.driver.request_sync(&mut log, time::monotonic_now(), time::now(), &mut actions);
        self.perform_while_log_is_locked(&mut state, actions);
        drop(log);
        self.writer_wakeup.notify_one();
        while state.is_writer_running {
            if let Some(result) = state.driver.sync_result(target) {
                return result;
            }
            self.state_changed.wait_for(&mut state, WRITER_POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the offset up to which the log is on disk.
    pub fn disk_progress(&self) -> DiskProgress {
        *self.disk_progress.borrow()
    }
}

impl AppendOnlyFileState {
    fn cancel_rewrite(&mut self) {
        if self.driver.cancel_rewrite() {
            tracing::info!("Background AOF rewrite cancelled");
            self.is_rewrite_cancelled.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
