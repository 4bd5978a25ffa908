//! RDB saves: SAVE and BGSAVE, save points, loading at startup and saving at shutdown.
//!
//! A save takes a snapshot, writes it to a temporary file, syncs that file and renames it over the old file, so that a
//! full disk or a crash leaves the old file intact. Nothing is forked, and only a caller of SAVE waits. One save runs
//! at a time. Temporary files left by a crash are removed at the next start. A process locks the temporary file it
//! writes, so servers that share a directory do not remove each other's files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clock::Instant;
use config::keys;
use engine::NodeFlags;
use keyspace::snapshot_only_bytes;
use parking_lot::{Condvar, Mutex};
use persistence::{Dialect, SnapshotFile};
use process::adaptive_tick::AdaptiveTick;
use slot_routing::{ReplOffset, Role};
use snapshot_io::{LoadError, LoadResult, SkippedKeyDeletions, replication_position};

use crate::disk::SystemDisk;
use crate::loading::{LoadProgress, add_file, replace_data_from_file};
use crate::new_file::NewFile;
use crate::pace::YieldPace;
use crate::saves::{SaveConditions, SaveReason, SaveResult, SaveTracker};
use crate::snapshot::{RdbOptions, WriteProgress, take_snapshot, write_rdb};
use crate::{Durability, append_only};

/// Interval of progress messages in the log.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// What a save is for, which decides how fast it runs and whether it can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SaveKind {
    Background,
    /// A SAVE command, which blocks its caller until the save ends.
    Foreground,
    /// The save at shutdown. Changes made after this save would be lost.
    Shutdown,
}

/// How a running save is cancelled.
#[derive(Debug, Clone)]
struct SaveCancellation {
    is_cancelled: Arc<AtomicBool>,
    /// How often all data had been deleted when the save began. A background save is cancelled when this number
    /// changes; `None` for other saves, which are not cancelled by deletions.
    flush_count: Option<u64>,
}

impl SaveCancellation {
    fn is_cancelled(&self, durability: &Durability) -> bool {
        let flushes = durability.engine.settings.dataset.flushall_count.load(Ordering::Relaxed);
        self.is_cancelled.load(Ordering::Relaxed) || self.flush_count.is_some_and(|began| began != flushes)
    }
}

/// The full resyncs that are being sent. INFO shows them as a save.
#[derive(Debug, Default)]
struct ResyncTransfers {
    /// When the current period with transfers began, and how many transfers are running.
    running_transfers: Mutex<Option<(Instant, usize)>>,
    written_keys: AtomicU64,
    total_keys: AtomicU64,
}

/// While this guard exists, INFO shows a full resync as a save.
#[derive(Debug)]
pub struct TransferGuard<'a>(&'a RdbSaves);

impl TransferGuard<'_> {
    /// Returns the counter of sent keys, which the transfer must increase.
    pub fn written_keys(&self) -> &AtomicU64 {
        &self.0.transfers.written_keys
    }
}

impl Drop for TransferGuard<'_> {
    fn drop(&mut self) {
        // The locks are taken in the same order as in INFO.
        let mut state = self.0.state.lock();
        let mut under_way = self.0.transfers.running_transfers.lock();
        match *under_way {
            Some((since, 1)) => {
                state.saves.record_transfer(process::time::monotonic_now().since(since));
                *under_way = None;
            }
            Some((since, count)) => *under_way = Some((since, count - 1)),
            None => {}
        }
    }
}

/// The results of saves and of the initial load.
#[derive(Debug)]
struct RdbSavesState {
    saves: SaveTracker,
    /// How to cancel the running save; `None` if none is running.
    cancellation: Option<SaveCancellation>,
    load_result: LoadResult,
    /// The peak of overwritten values kept in memory during the last background save, in bytes.
    last_peak_kept_bytes: usize,
}

impl RdbSavesState {
    /// Returns whether the running save has been cancelled and is about to end.
    fn is_cancelled(&self, durability: &Durability) -> bool {
        self.cancellation.as_ref().is_some_and(|cancellation| cancellation.is_cancelled(durability))
    }
}

/// The RDB saves of a server: the running save, past results, and the counters in INFO.
#[derive(Debug)]
pub struct RdbSaves {
    state: Mutex<RdbSavesState>,
    /// Notified when a save ends.
    save_ended: Condvar,
    /// The number of keys that the running save has written, and the number that it will write.
    written_and_total_keys: (AtomicU64, AtomicU64),
    transfers: ResyncTransfers,
    /// The peak of overwritten values kept in memory since the running save began, in bytes.
    peak_kept_bytes: AtomicUsize,
    /// The number of snapshots taken, and for how many microseconds the last one locked all slots.
    snapshot_count_and_micros: (AtomicU64, AtomicU64),
    /// The number of keys received by full resyncs that no file contains yet.
    resynced_keys: AtomicU64,
    pub(crate) load_progress: LoadProgress,
}

/// Why data was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Another save is running, so this one did not start.
    #[error("Background save already in progress")]
    Running,
    /// The file cannot be written or loaded.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl RdbSaves {
    pub(crate) fn new() -> Self {
        let state = RdbSavesState {
            saves: SaveTracker::new(process::time::now().secs()),
            cancellation: None,
            load_result: LoadResult::default(),
            last_peak_kept_bytes: 0,
        };
        Self {
            state: Mutex::new(state),
            save_ended: Condvar::new(),
            written_and_total_keys: (AtomicU64::new(0), AtomicU64::new(0)),
            transfers: ResyncTransfers::default(),
            peak_kept_bytes: AtomicUsize::new(0),
            snapshot_count_and_micros: (AtomicU64::new(0), AtomicU64::new(0)),
            resynced_keys: AtomicU64::new(0),
            load_progress: LoadProgress::default(),
        }
    }

    /// Returns the Unix time in seconds of the last successful save, or of the start if there was none.
    pub fn last_save_secs(&self) -> i64 {
        self.state.lock().saves.last_save_secs()
    }

    /// Resets the numbers of saves and snapshots (CONFIG RESETSTAT).
    pub fn reset_counts(&self) {
        self.state.lock().saves.reset_completed_count();
        self.snapshot_count_and_micros.0.store(0, Ordering::Relaxed);
        self.snapshot_count_and_micros.1.store(0, Ordering::Relaxed);
    }

    pub(crate) fn count_snapshot(&self, micros: u64) {
        self.snapshot_count_and_micros.0.fetch_add(1, Ordering::Relaxed);
        self.snapshot_count_and_micros.1.store(micros, Ordering::Relaxed);
    }

    /// Returns the number of snapshots taken, and the duration of the last one in microseconds. INFO shows them as
    /// forks.
    pub fn snapshot_count_and_micros(&self) -> (u64, u64) {
        (
            self.snapshot_count_and_micros.0.load(Ordering::Relaxed),
            self.snapshot_count_and_micros.1.load(Ordering::Relaxed),
        )
    }

    /// Shows a full resync of `keys` keys as a save, until the guard is dropped.
    pub fn show_transfer_as_save(&self, keys: u64) -> TransferGuard<'_> {
        let mut under_way = self.transfers.running_transfers.lock();
        let (since, count) = under_way.unwrap_or((process::time::monotonic_now(), 0));
        if count == 0 {
            self.transfers.written_keys.store(0, Ordering::Relaxed);
            self.transfers.total_keys.store(0, Ordering::Relaxed);
        }
        self.transfers.total_keys.fetch_add(keys, Ordering::Relaxed);
        *under_way = Some((since, count + 1));
        TransferGuard(self)
    }

    /// Resets the progress counters for a save of `keys` keys.
    fn begin_progress(&self, keys: usize) {
        let (written, wanted) = &self.written_and_total_keys;
        written.store(0, Ordering::Relaxed);
        wanted.store(keys as u64, Ordering::Relaxed);
    }

    /// Cancels the background save. Returns `false` if none was running.
    pub fn cancel(&self) -> bool {
        let state = self.state.lock();
        let is_background = state.saves.running_save().is_some_and(|running| running.is_background);
        let cancellation = state.cancellation.as_ref().filter(|_| is_background);
        cancellation
            .inspect(|cancellation| cancellation.is_cancelled.store(true, Ordering::Relaxed))
            .is_some()
    }
}

/// Starts a save on a background thread.
///
/// # Errors
/// A save is already running, or the thread cannot be started.
pub fn save_in_background(durability: &Arc<Durability>) -> Result<(), SaveError> {
    let cancellation = start_save(durability, SaveKind::Background)?;
    // INFO shows this number of keys until the snapshot has determined the exact number.
    durability
        .rdb_saves
        .begin_progress(durability.engine.keyspace.sizes().iter().map(|size| size.keys).sum());
    tracing::info!("Background saving started");
    let saver = durability.clone();
    let work = move || match run_save(&saver, &cancellation, SaveKind::Background) {
        Ok(()) => tracing::info!("Background saving terminated with success"),
        Err(error) => tracing::warn!("Background saving error: {error:#}"),
    };
    std::thread::Builder::new().name("bgsave".to_owned()).spawn(work).map(drop).map_err(|error| {
        let mut state = durability.rdb_saves.state.lock();
        state.saves.abort_start();
        state.cancellation = None;
        durability.rdb_saves.save_ended.notify_all();
        SaveError::Failed(error.into())
    })
}

/// Saves on the calling thread, which is blocked until the save is done.
///
/// # Errors
/// A save is already running, or this one failed.
pub fn save(durability: &Durability) -> Result<(), SaveError> {
    run_save_of_kind(durability, SaveKind::Foreground)
}

fn run_save_of_kind(durability: &Durability, kind: SaveKind) -> Result<(), SaveError> {
    let cancellation = start_save(durability, kind)?;
    run_save(durability, &cancellation, kind)?;
    Ok(())
}

fn start_save(durability: &Durability, kind: SaveKind) -> Result<SaveCancellation, SaveError> {
    let mut state = durability.rdb_saves.state.lock();
    // A cancelled save ends soon, so wait for it instead of failing.
    durability.rdb_saves.save_ended.wait_while(&mut state, |state| state.is_cancelled(durability));
    let background = kind == SaveKind::Background;
    if !state.saves.start_save(process::time::monotonic_now(), background) {
        return Err(SaveError::Running);
    }
    let flushes =
        background.then(|| durability.engine.settings.dataset.flushall_count.load(Ordering::Relaxed));
    let cancellation = SaveCancellation { is_cancelled: Arc::default(), flush_count: flushes };
    state.cancellation = Some(cancellation.clone());
    Ok(cancellation)
}

fn run_save(durability: &Durability, cancellation: &SaveCancellation, kind: SaveKind) -> anyhow::Result<()> {
    let outcome = write_file(durability, cancellation, kind);
    let mut state = durability.rdb_saves.state.lock();
    if kind == SaveKind::Background {
        state.last_peak_kept_bytes = durability.rdb_saves.peak_kept_bytes.load(Ordering::Relaxed);
    }
    let how = match &outcome {
        Ok(changes) => SaveResult::Saved { changes: *changes },
        Err(_) if cancellation.is_cancelled(durability) => SaveResult::Cancelled,
        Err(_) => SaveResult::Failed,
    };
    let secs = process::time::now().secs();
    state.saves.finish_save(process::time::monotonic_now(), secs, how);
    state.cancellation = None;
    drop(state);
    durability.rdb_saves.save_ended.notify_all();
    update_write_gate(durability);
    outcome.map(|_| ())
}

/// Writes the file. Returns the number of changes that it contains.
fn write_file(
    durability: &Durability,
    cancellation: &SaveCancellation,
    kind: SaveKind,
) -> anyhow::Result<u64> {
    let (mut state, (position, stream_db, changes, imported)) = take_snapshot(durability, |log| {
        // If the log contains no master's stream, its next entry names the database. A replica that resumes from this
        // file then need not know it.
        let stream_db = durability.applied_stream.selected_db_in_log(log);
        if stream_db.is_none() {
            log.reset_selected_db();
        }
        // Data that deviates from the replication history must not claim a position in it. The file lacks the slots
        // that are being imported, while the history includes them.
        let is_whole =
            durability.applied_stream.missing_changes() == 0 && durability.applied_stream.imports.is_empty();
        let in_history = log.is_open() && is_whole;
        let position = in_history.then(|| log.position());
        if kind == SaveKind::Shutdown {
            log.seal();
        }
        (
            position,
            stream_db.unwrap_or(0),
            count_changes(durability),
            durability.applied_stream.imports.imported_slots(),
        )
    })?;
    state.exclude_slots(&imported);
    // The size is computed after the snapshot, because no other thread runs while the snapshot is taken.
    let used = durability.engine.keyspace.used_bytes();
    let pace = if kind == SaveKind::Background { YieldPace::yielding(used) } else { YieldPace::unlimited() };
    let (written, _) = &durability.rdb_saves.written_and_total_keys;
    durability.rdb_saves.begin_progress(state.key_count());
    durability.rdb_saves.peak_kept_bytes.store(0, Ordering::Relaxed);
    let saved = rdb_file(durability);
    let file = saved.create_temp_file()?;
    let sync_incrementally = durability.config.get(keys::RDB_SAVE_INCREMENTAL_FSYNC);
    let is_cancelled = || cancellation.is_cancelled(durability);
    let mut out = NewFile::new(file, sync_incrementally, &is_cancelled);
    write_rdb(
        durability,
        state,
        &RdbOptions {
            dialect: Dialect::Redoubt,
            position: position.map(|at| (at, stream_db)),
            is_aof_base: false,
            slot_states: String::new(),
        },
        WriteProgress { written_keys: Some(written), is_cancelled: &is_cancelled },
        pace,
        &mut out,
    )?;
    anyhow::ensure!(!is_cancelled(), "cancelled");
    saved.commit(out.file)?;
    tracing::info!("DB saved on disk");
    Ok(changes)
}

/// Makes the file of a full resync the RDB file of this node after it has been loaded, so that this node can start from
/// it, as in Redis. If the file cannot be stored, all data counts as unsaved.
pub fn adopt_resync_file(durability: &Durability, file: tempfile::NamedTempFile, keys: u64) {
    // A running save belongs to a history that this node has left.
    durability.rdb_saves.cancel();
    let mut state = durability.rdb_saves.state.lock();
    durability.rdb_saves.save_ended.wait_while(&mut state, |state| state.saves.running_save().is_some());
    let persistent = !durability.config.get(keys::SAVE).is_empty() || durability.append_only.is_enabled();
    if !persistent && durability.config.get(keys::RDB_DEL_SYNC_FILES) {
        // The older file must be removed as well, as this node would start from it.
        let _ = std::fs::remove_file(&*durability.config.get(keys::DBFILENAME));
        return;
    }
    match rdb_file(durability).commit(file) {
        Ok(()) => {
            state.saves.record_saved(count_changes(durability));
        }
        Err(error) => {
            tracing::warn!("Cannot keep the snapshot received from the master on disk: {error}");
            durability.rdb_saves.resynced_keys.fetch_add(keys, Ordering::Relaxed);
        }
    }
    drop(state);
    update_write_gate(durability);
}

/// Records that a full resync brought `keys` keys that are not in any file.
pub fn record_resync(durability: &Durability, keys: u64) {
    durability.rdb_saves.cancel();
    let mut state = durability.rdb_saves.state.lock();
    durability.rdb_saves.save_ended.wait_while(&mut state, |state| state.saves.running_save().is_some());
    durability.rdb_saves.resynced_keys.fetch_add(keys, Ordering::Relaxed);
}

/// Returns the RDB file that is loaded at startup.
fn rdb_file(durability: &Durability) -> SnapshotFile<SystemDisk> {
    SnapshotFile::new(SystemDisk::new(".".into()), &durability.config.get(keys::DBFILENAME))
}

/// Creates a temporary file for the snapshot of a full resync. It may become the RDB file of this node later.
///
/// # Errors
/// The file cannot be created.
pub fn create_temporary_file(durability: &Durability) -> std::io::Result<tempfile::NamedTempFile> {
    rdb_file(durability).create_temp_file()
}

/// Removes temporary files that crashed or killed servers have left.
pub fn remove_temporary_files(durability: &Durability) {
    for name in rdb_file(durability).remove_abandoned_temp_files() {
        tracing::warn!("Removed {name}, the temporary file of an unfinished save.");
    }
}

/// Returns the number of changes since the start.
fn count_changes(durability: &Durability) -> u64 {
    let commands: u64 = durability
        .engine
        .diagnostics
        .worker_stats()
        .iter()
        .map(|worker| worker.change_count.load(Ordering::Relaxed))
        .sum();
    commands + durability.rdb_saves.resynced_keys.load(Ordering::Relaxed)
}

/// Makes the engine reject writes after a failed save, or accept them again (`stop-writes-on-bgsave-error`).
pub fn update_write_gate(durability: &Durability) {
    let failed = !durability.rdb_saves.state.lock().saves.was_last_successful();
    let stop = failed
        && durability.config.get(keys::STOP_WRITES_ON_BGSAVE_ERROR)
        && !durability.config.get(keys::SAVE).is_empty();
    durability.engine.settings.set_node_flag(NodeFlags::MISCONF, stop);
    durability.log.wake_readers();
}

/// Starts a background save whenever one is due. Never returns.
pub async fn run_save_points(durability: Arc<Durability>, tick: Arc<AdaptiveTick>) {
    let mut reported = process::time::monotonic_now();
    let flushes = durability.engine.settings.dataset.flushall_count.load(Ordering::Relaxed);
    durability.rdb_saves.state.lock().saves.ignore_flushes(flushes);
    loop {
        tick.wait_for_tick().await;
        if durability.rdb_saves.state.lock().saves.running_save().is_some() {
            durability.rdb_saves.peak_kept_bytes.fetch_max(snapshot_only_bytes(), Ordering::Relaxed);
            if process::time::monotonic_now().since(reported) >= PROGRESS_INTERVAL {
                reported = process::time::monotonic_now();
                let (written, wanted) = &durability.rdb_saves.written_and_total_keys;
                let (written, wanted) = (written.load(Ordering::Relaxed), wanted.load(Ordering::Relaxed));
                tracing::info!("Saving: {written} of {wanted} keys");
            }
        } else {
            reported = process::time::monotonic_now();
        }
        let due = due_save_reason(&durability);
        if let Some(SaveReason::SavePointReached(point)) = due {
            tracing::info!("{} changes in {} seconds. Saving...", point.changes, point.interval.as_secs());
        }
        if due.is_some()
            && let Err(error) = save_in_background(&durability)
        {
            tracing::warn!("Can't save in background: {error}");
        }
    }
}

fn due_save_reason(durability: &Durability) -> Option<SaveReason> {
    let settings = &durability.engine.settings;
    let conditions = SaveConditions {
        save_points: &durability.config.get(keys::SAVE),
        is_loading: settings.node_flags().intersects(NodeFlags::LOADING.union(NodeFlags::ASYNC_LOADING)),
        change_count: count_changes(durability),
        flush_count: settings.dataset.flushall_count.load(Ordering::Relaxed),
    };
    let (now, secs) = (process::time::monotonic_now(), process::time::now().secs());
    durability.rdb_saves.state.lock().saves.due_save_reason(now, secs, conditions)
}

/// Loads the configured file, if it exists. Clients get LOADING until the caller resets that state, which the caller
/// must not do after an error.
///
/// Returns the replication offset of the loaded data: zero if there was no file, `None` if the files do not record an
/// offset.
///
/// # Errors
/// A file exists but cannot be used, or the append-only file cannot be started. In either case the server should not
/// start.
pub async fn load_at_start(durability: &Arc<Durability>) -> anyhow::Result<Option<ReplOffset>> {
    let appends = durability.config.get(keys::APPENDONLY);
    let reached = || Some(durability.log.lock()).filter(|log| log.is_open()).map(|log| log.position().offset);
    if appends && load_append_only(durability).await? {
        return Ok(reached());
    }
    let found = if load_rdb_file(durability).await? { reached() } else { Some(ReplOffset(0)) };
    if appends {
        // The append-only file starts with the data of the last RDB file, or empty. Its base must exist before any
        // client is served, because writes acknowledged under `always` must be in the append-only file.
        durability.append_only.enable_without_base()?;
        let first = durability.clone();
        tokio::task::spawn_blocking(move || append_only::rewrite_now(&first)).await??;
    }
    Ok(found)
}

/// Loads the append-only file. Returns `false` if there is none.
async fn load_append_only(durability: &Arc<Durability>) -> anyhow::Result<bool> {
    let began = process::time::monotonic_now();
    let loader = durability.clone();
    let loaded = tokio::task::spawn_blocking(move || append_only::load(&loader)).await?;
    let Some(loaded) =
        loaded.map_err(|error| anyhow::anyhow!("Fatal error loading the AOF: {error} Exiting."))?
    else {
        return Ok(false);
    };
    let took = process::time::monotonic_now().since(began);
    tracing::info!("DB loaded from append only file: {:.3} seconds", took.as_secs_f64());
    durability.rdb_saves.state.lock().load_result = loaded;
    Ok(true)
}

/// Loads the RDB file. Returns `false` if there is none.
async fn load_rdb_file(durability: &Arc<Durability>) -> anyhow::Result<bool> {
    let name = durability.config.get(keys::DBFILENAME);
    if !Path::new(&*name).exists() {
        return Ok(false);
    }
    let began = process::time::monotonic_now();
    let loader = durability.clone();
    let as_replica = will_be_replica(durability);
    let load = move || replace_data_from_file(&loader, Path::new(&*name), !as_replica);
    let loaded = tokio::task::spawn_blocking(load).await?;
    let loaded = loaded.map_err(|error| {
        tracing::warn!("Short read or OOM loading DB. Unrecoverable error, aborting now.");
        anyhow::anyhow!("Fatal error loading the DB: {error}. Check the file, or move it away. Exiting.")
    })?;
    let LoadResult { keys, expired_keys: expired, empty_keys: empty, .. } = &loaded;
    let skipped = if *empty > 0 { format!(", empty keys skipped: {empty}") } else { String::new() };
    tracing::info!("Done loading RDB, keys loaded: {keys}, keys expired: {expired}{skipped}.");
    let took = process::time::monotonic_now().since(began);
    tracing::info!("DB loaded from disk: {:.3} seconds", took.as_secs_f64());
    if let Some(position) = replication_position(&loaded) {
        // Continue the history recorded in the file until the node's role is known.
        durability.log.adopt_position(position);
        durability.applied_stream.select_db(loaded.stream_db.unwrap_or(0));
    }
    durability.rdb_saves.state.lock().load_result = loaded;
    Ok(true)
}

/// Takes the keys that the initial load skipped, to log their deletion. A second call returns no keys.
pub fn take_skipped_keys(durability: &Durability) -> SkippedKeyDeletions {
    std::mem::take(&mut durability.rdb_saves.state.lock().load_result.skipped_keys)
}

/// Returns whether this node will be a replica, according to the configuration or the last known cluster state.
fn will_be_replica(durability: &Durability) -> bool {
    let of_cluster = durability.engine.topology.as_ref().is_some_and(|topology| {
        let topology = topology.load();
        topology.member(topology.myself).is_some_and(|me| matches!(me.role, Role::Replica(_)))
    });
    of_cluster || durability.config.get(keys::REPLICAOF).is_some()
}

/// Options of DEBUG RELOAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReloadOptions {
    /// Save the data before it is reloaded; otherwise reload the existing file.
    pub saves_first: bool,
    /// Add the file's keys to the data instead of replacing it.
    pub merges: bool,
}

/// Saves the data and loads the file (DEBUG RELOAD). The replication history continues. `on_loaded` is called before
/// any new write.
///
/// # Errors
/// The save failed, or its file cannot be loaded.
pub fn reload(
    durability: &Durability,
    options: ReloadOptions,
    drops_expired_keys: bool,
    on_loaded: impl FnOnce(&SkippedKeyDeletions),
) -> Result<(), SaveError> {
    if options.saves_first {
        save(durability)?;
    }
    let name = durability.config.get(keys::DBFILENAME);
    let load = if options.merges { add_file } else { replace_data_from_file };
    let loaded = load(durability, Path::new(&*name), drops_expired_keys);
    if let Ok(loaded) = &loaded {
        on_loaded(&loaded.skipped_keys);
    }
    durability.engine.settings.set_node_flag(NodeFlags::LOADING, false);
    loaded.map(|_| ()).map_err(|error: LoadError| SaveError::Failed(error.into()))
}

/// Whether a shutdown writes the RDB file, depending on the option of SHUTDOWN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownSave {
    /// Save if save points are configured (no option).
    AsConfigured,
    /// Save even without save points (SAVE).
    Save,
    /// Do not save (NOSAVE).
    NoSave,
}

/// Saves at shutdown, if required. If this fails, the server should not stop.
///
/// # Errors
/// The data, or the end of the append-only file, could not be written to disk.
pub fn save_at_shutdown(
    durability: &Durability,
    shutdown_save: ShutdownSave,
    unfinished_aof: append_only::UnfinishedAofPolicy,
) -> Result<(), SaveError> {
    let wanted = match shutdown_save {
        ShutdownSave::AsConfigured => !durability.config.get(keys::SAVE).is_empty(),
        ShutdownSave::Save => true,
        ShutdownSave::NoSave => false,
    };
    loop {
        // A save that finishes later would replace the final file by older data.
        durability.rdb_saves.cancel();
        let mut state = durability.rdb_saves.state.lock();
        durability.rdb_saves.save_ended.wait_while(&mut state, |state| state.saves.running_save().is_some());
        drop(state);
        if durability.config.get(keys::APPENDONLY) {
            tracing::info!("Calling fsync() on the AOF file.");
        }
        append_only::sync_all_data(durability, unfinished_aof)
            .map_err(|error| SaveError::Failed(anyhow::anyhow!("{error}")))?;
        // Neither partially loaded data nor the data of a master that waits for a replica to replace it may be saved.
        let not_data = NodeFlags::LOADING.union(NodeFlags::EMPTY_MASTER);
        if !wanted || durability.engine.settings.node_flags().intersects(not_data) {
            return Ok(());
        }
        tracing::info!("Saving the final RDB snapshot before exiting.");
        match run_save_of_kind(durability, SaveKind::Shutdown) {
            // Another save, started by a save point or a client, is running. Try again.
            Err(SaveError::Running) => {}
            outcome => return outcome,
        }
    }
}

/// Appends the fields of INFO's Persistence section.
pub fn write_persistence_info(durability: &Durability, text: &mut String) {
    use std::fmt::Write;
    let state = durability.rdb_saves.state.lock();
    let gate = durability.engine.settings.node_flags();
    let (loading, beside) = (gate.contains(NodeFlags::LOADING), gate.contains(NodeFlags::ASYNC_LOADING));
    let saves = &state.saves;
    let running = saves.running_save().filter(|running| running.is_background);
    let running = running.filter(|_| !state.is_cancelled(durability));
    let transfers = &durability.rdb_saves.transfers;
    let transfer = (*transfers.running_transfers.lock())
        .map(|(since, _)| (since, &transfers.written_keys, &transfers.total_keys));
    let (written, wanted) = &durability.rdb_saves.written_and_total_keys;
    let running = running.map(|running| (running.started_at, written, wanted)).or(transfer);
    let current = running.map(|(since, ..)| process::time::monotonic_now().since(since).as_secs() as i64);
    let (written, wanted) = running.map_or((written, wanted), |(_, written, wanted)| (written, wanted));
    let progress = |counter: &AtomicU64| if running.is_some() { counter.load(Ordering::Relaxed) } else { 0 };
    let (written, wanted) = (progress(written), progress(wanted));
    let percent = if wanted == 0 { 0.0 } else { written as f64 / wanted as f64 * 100.0 };
    let took = saves.last_duration().map_or(-1, |took| took.as_secs() as i64);
    let kept = if running.is_some() { snapshot_only_bytes() } else { 0 };
    let peak_kept_bytes = if running.is_some() {
        durability.rdb_saves.peak_kept_bytes.load(Ordering::Relaxed).max(kept)
    } else {
        0
    };
    let lines: [(&str, String); 18] = [
        ("loading", u8::from(loading).to_string()),
        ("async_loading", u8::from(beside).to_string()),
        ("current_cow_peak", peak_kept_bytes.to_string()),
        ("current_cow_size", kept.to_string()),
        ("current_cow_size_age", "0".to_owned()),
        ("current_fork_perc", format!("{percent:.2}")),
        ("current_save_keys_processed", written.to_string()),
        ("current_save_keys_total", wanted.to_string()),
        ("rdb_changes_since_last_save", saves.count_unsaved(count_changes(durability)).to_string()),
        ("rdb_bgsave_in_progress", u8::from(running.is_some()).to_string()),
        ("rdb_last_save_time", saves.last_save_secs().to_string()),
        ("rdb_last_bgsave_status", if saves.was_last_successful() { "ok" } else { "err" }.to_owned()),
        ("rdb_last_bgsave_time_sec", took.to_string()),
        ("rdb_current_bgsave_time_sec", current.unwrap_or(-1).to_string()),
        ("rdb_saves", saves.completed_count().to_string()),
        ("rdb_last_cow_size", state.last_peak_kept_bytes.to_string()),
        ("rdb_last_load_keys_expired", state.load_result.expired_keys.to_string()),
        ("rdb_last_load_keys_loaded", state.load_result.keys.to_string()),
    ];
    for (name, value) in lines {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name}:{value}\r\n");
    }
    drop(state);
    durability.append_only.write_info(text);
    if loading || beside {
        durability.rdb_saves.load_progress.write_info(text);
    }
}

#[cfg(test)]
mod tests;
