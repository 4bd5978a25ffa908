//! Rewrites of the append-only file: a new base replaces all earlier files.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use append_only::{AofDriverEvent, FileExecutor, RewriteId, RewriteRunningError, StartPosition};
use config::keys;
use engine::NodeFlags;
use persistence::Dialect;
use persistence::aof::Manifest;
use process::adaptive_tick::AdaptiveTick;
use process::time;
use replication::WriteMode;

use super::directory::{AofDirectory, configured_directory};
use super::{AppendOnlyFile, RewriteMessage, UnfinishedAofPolicy, WRITER_POLL_INTERVAL};
use crate::Durability;
use crate::new_file::NewFile;
use crate::pace::YieldPace;
use crate::snapshot::{RdbOptions, WriteProgress, take_snapshot, write_commands, write_rdb};

/// Why a rewrite could not start.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// Another rewrite is running, so the new one did not start.
    #[error("{0}")]
    Running(#[from] RewriteRunningError),
    /// The rewrite could not start, or writing or installing its base failed.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

/// A running rewrite, with the flag that cancels it.
#[derive(Debug, Clone)]
struct RunningRewrite {
    id: RewriteId,
    is_cancelled: Arc<AtomicBool>,
}

impl AppendOnlyFile {
    /// Enables the append-only file. The next rewrite writes its first base.
    ///
    /// # Errors
    /// The directory cannot be used, or the writer thread cannot be started.
    pub(crate) fn enable_without_base(self: &Arc<Self>) -> anyhow::Result<()> {
        // Otherwise the base of an earlier rewrite would be added to the new manifest.
        self.cancel_rewrite();
        // Existing files stay valid until the new base is installed, so they are kept.
        let folder = configured_directory(&self.config)?;
        let name = folder.disk.path().display().to_string();
        let in_folder = || format!("Can't open or create append-only dir {name}");
        // Creating a file shows whether the directory is writable. The file is removed at once.
        folder.create_temporary_base().with_context(in_folder)?;
        let manifest = folder.find_manifest()?.unwrap_or_default();
        Ok(self.start(FileExecutor::new(folder), manifest, StartPosition::NextSnapshot)?)
    }

    /// Returns whether the current data may become a base.
    fn has_valid_data(&self) -> bool {
        if self.engine.settings.node_flags().contains(NodeFlags::LOADING) {
            return false;
        }
        // After a failed full resync, a replica's data is incomplete and must not become a base.
        let log = self.log.lock();
        log.authority().mode() != WriteMode::Replica || log.is_open()
    }

    /// Returns whether the first base is being written. A shutdown now would leave no file with the current data.
    pub fn is_writing_first_base(&self) -> bool {
        self.state.lock().driver.is_writing_first_base()
    }

    /// Returns whether an automatic rewrite is due.
    fn is_rewrite_due(&self) -> bool {
        if !self.is_enabled() || !self.has_valid_data() {
            return false;
        }
        let percentage = self.config.get(keys::AUTO_AOF_REWRITE_PERCENTAGE);
        let min_size = self.config.get(keys::AUTO_AOF_REWRITE_MIN_SIZE);
        self.state.lock().driver.is_rewrite_due(time::monotonic_now(), percentage, min_size)
    }

    fn begin_rewrite(&self) -> Result<RunningRewrite, RewriteRunningError> {
        let mut state = self.state.lock();
        let id = state.driver.begin_rewrite(time::monotonic_now())?;
        state.is_rewrite_cancelled = Arc::default();
        Ok(RunningRewrite { id, is_cancelled: state.is_rewrite_cancelled.clone() })
    }

    /// Waits until no rewrite is running.
    pub(super) fn wait_for_rewrite(&self) {
        self.state_changed.wait_while(&mut self.state.lock(), |state| state.driver.rewrites().is_running());
    }

    /// Passes the base to the writer and waits for the end of the rewrite. The writer installs the base once the next
    /// increment file exists.
    fn install_base(
        &self,
        file: tempfile::NamedTempFile,
        is_rdb: bool,
        rewrite: &RunningRewrite,
    ) -> anyhow::Result<()> {
        self.state.lock().rewrite_message = None;
        self.send_event(AofDriverEvent::BaseWritten { rewrite: rewrite.id, base: file, is_rdb });
        loop {
            let mut state = self.state.lock();
            match state.rewrite_message.take() {
                Some(RewriteMessage::DeleteHistory(names)) => {
                    drop(state);
                    self.delete_history(&names)?;
                }
                Some(RewriteMessage::Ended(ended, outcome)) if ended == rewrite.id => return Ok(outcome?),
                Some(RewriteMessage::Ended(..)) | None => {
                    let is_wanted = state.is_writer_running && state.driver.rewrites().is_current(rewrite.id);
                    anyhow::ensure!(is_wanted, "the append-only file was disabled meanwhile");
                    self.state_changed.wait_for(&mut state, WRITER_POLL_INTERVAL);
                }
            }
        }
    }

    /// Deletes obsolete files that were kept so far, after `aof-disable-auto-gc` was switched off.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn delete_kept_history(&self) -> anyhow::Result<()> {
        let history = self.state.lock().driver.obsolete_files();
        if history.is_empty() {
            return Ok(());
        }
        self.delete_history(&history)?;
        let mut state = self.state.lock();
        while state.is_writer_running && state.driver.is_updating_manifest() {
            self.state_changed.wait_for(&mut state, WRITER_POLL_INTERVAL);
        }
        Ok(())
    }

    /// Deletes obsolete files unless the configuration keeps them, and tells the driver, which removes them from the
    /// manifest.
    fn delete_history(&self, history: &[String]) -> anyhow::Result<()> {
        let is_deleted = !self.config.get(keys::AOF_DISABLE_AUTO_GC) && {
            for name in history {
                tracing::info!("Removing the history file {name} in the background");
            }
            configured_directory(&self.config)?.delete_files(history)
        };
        self.send_event(match is_deleted {
            true => AofDriverEvent::HistoryDeleted,
            false => AofDriverEvent::HistoryKept,
        });
        Ok(())
    }

    /// Installs a base while the append-only file is disabled.
    fn install_base_while_disabled(
        &self,
        folder: &AofDirectory,
        file: tempfile::NamedTempFile,
        is_rdb: bool,
        rewrite: &RunningRewrite,
    ) -> anyhow::Result<()> {
        // The state stays locked until the manifest is written, so that the file is not enabled in between.
        let state = self.state.lock();
        anyhow::ensure!(state.driver.rewrites().is_current(rewrite.id), "the rewrite was cancelled");
        let mut manifest: Manifest = folder.read_manifest()?.unwrap_or_default();
        let base = manifest.reserve_base(folder.file_name_prefix(), is_rdb);
        manifest.replace_base(base.clone(), "");
        folder.install_base(file, &base.name, &manifest.to_text())?;
        drop(state);
        folder.delete_history(manifest)?;
        Ok(())
    }
}

/// Starts a rewrite whenever an automatic one is due. Never returns.
pub async fn run_automatic_rewrites(durability: Arc<Durability>, tick: Arc<AdaptiveTick>) {
    loop {
        tick.wait_for_tick().await;
        durability
            .append_only
            .handle_event(&mut durability.append_only.log.lock(), AofDriverEvent::LogChanged);
        if durability.append_only.is_rewrite_due()
            && let Err(error) = rewrite_in_background(&durability)
        {
            tracing::warn!("Can't rewrite append only file in background: {error}");
        }
    }
}

/// Enables the append-only file with the current data as its base (CONFIG SET appendonly yes). When this returns, the
/// rewrite is running, unless this is a replica without data.
///
/// # Errors
/// The directory cannot be used, or a thread cannot be started. In either case the file stays disabled.
pub fn enable(durability: &Arc<Durability>) -> anyhow::Result<()> {
    let shared = &durability.append_only;
    shared.enable_without_base()?;
    if shared.has_valid_data()
        && let Err(error) = rewrite_in_background(durability)
    {
        shared.disable();
        return Err(error.into());
    }
    Ok(())
}

/// Starts a rewrite (BGREWRITEAOF). While the append-only file is disabled, the rewrite creates a base that is used if
/// the file is enabled at the next start.
///
/// # Errors
/// The rewrite could not start.
pub fn rewrite_in_background(durability: &Arc<Durability>) -> Result<(), RewriteError> {
    let rewrite = durability.append_only.begin_rewrite()?;
    tracing::info!("Background append only file rewriting started");
    let (work, running) = (durability.clone(), rewrite.clone());
    let spawned = std::thread::Builder::new().name("aof-rewrite".to_owned()).spawn(move || {
        match run_rewrite(&work, &running) {
            Ok(()) => {
                tracing::info!("Background AOF rewrite terminated with success");
                tracing::info!("Background AOF rewrite finished successfully");
            }
            Err(error) => tracing::warn!("Background AOF rewrite failed: {error:#}"),
        };
    });
    spawned.map(drop).map_err(|error| {
        durability.append_only.send_event(AofDriverEvent::RewriteFailed(rewrite.id));
        RewriteError::Failed(error.into())
    })
}

/// Runs a rewrite on the calling thread and waits until it has ended.
pub(crate) fn rewrite_now(durability: &Durability) -> Result<(), RewriteError> {
    let rewrite = durability.append_only.begin_rewrite()?;
    Ok(run_rewrite(durability, &rewrite)?)
}

/// Syncs all data to disk at shutdown, when no more writes arrive. If the files are incomplete, a rewrite runs first.
/// Returns an error if the sync or the rewrite fails.
pub(crate) fn sync_all_data(
    durability: &Durability,
    unfinished_aof: UnfinishedAofPolicy,
) -> Result<(), String> {
    let shared = &durability.append_only;
    while shared.is_enabled() && !shared.is_complete() {
        match unfinished_aof {
            UnfinishedAofPolicy::Ignore => {
                if shared.is_writing_first_base() {
                    tracing::warn!("Writing initial AOF. Exit anyway.");
                }
                shared.cancel_rewrite();
                break;
            }
            UnfinishedAofPolicy::AbortShutdown if shared.is_writing_first_base() => {
                return Err("Writing initial AOF, can't exit.".to_owned());
            }
            UnfinishedAofPolicy::AbortShutdown => {}
        }
        match rewrite_now(durability) {
            Ok(()) => {}
            Err(RewriteError::Running(_)) => shared.wait_for_rewrite(),
            Err(error) => return Err(error.to_string()),
        }
    }
    shared.sync_log()
}

fn run_rewrite(durability: &Durability, rewrite: &RunningRewrite) -> anyhow::Result<()> {
    let outcome = write_base(durability, rewrite);
    if outcome.is_err() {
        // This event has no effect if the driver already knows about the failure.
        durability.append_only.send_event(AofDriverEvent::RewriteFailed(rewrite.id));
    }
    outcome
}

fn write_base(durability: &Durability, rewrite: &RunningRewrite) -> anyhow::Result<()> {
    let shared = &durability.append_only;
    let on = shared.is_enabled();
    let (state, position) = take_snapshot(durability, |log| {
        shared.log.open(log);
        let stream_db = durability.applied_stream.selected_db_in_log(log);
        if stream_db.is_none() {
            log.reset_selected_db();
        }
        if on {
            shared.handle_event(log, AofDriverEvent::SnapshotTaken { rewrite: rewrite.id, db: stream_db });
            shared.writer_wakeup.notify_one();
        }
        let position = log.position();
        // The base includes keys of slots that are being imported, so the increment must repeat that the import is
        // running.
        durability.applied_stream.imports.repeat_running_imports_in_log(log);
        (position, stream_db.unwrap_or(0))
    })?;
    let pace = YieldPace::yielding(durability.engine.keyspace.used_bytes());
    let folder = configured_directory(&durability.config)?;
    let sync_incrementally = durability.config.get(keys::AOF_REWRITE_INCREMENTAL_FSYNC);
    let cancelled = &*rewrite.is_cancelled;
    let is_cancelled = || cancelled.load(Ordering::Relaxed);
    let mut out = NewFile::new(folder.create_temporary_base()?, sync_incrementally, &is_cancelled);
    let rdb = durability.config.get(keys::AOF_USE_RDB_PREAMBLE);
    let progress = WriteProgress { written_keys: None, is_cancelled: &is_cancelled };
    if rdb {
        let form = RdbOptions {
            dialect: Dialect::Redoubt,
            position: Some(position),
            is_aof_base: true,
            slot_states: String::new(),
        };
        write_rdb(durability, state, &form, progress, pace, &mut out)?;
    } else {
        if durability.config.get(keys::AOF_TIMESTAMP_ENABLED) {
            write!(out, "#TS:{}\r\n", time::now().secs())?;
        }
        write_commands(durability, state, progress, pace, &mut out)?;
    }
    out.file.as_file().sync_all()?;
    if on {
        shared.install_base(out.file, rdb, rewrite)
    } else {
        shared.install_base_while_disabled(&folder, out.file, rdb, rewrite)?;
        shared.send_event(AofDriverEvent::BaseInstalled(rewrite.id));
        Ok(())
    }
}
