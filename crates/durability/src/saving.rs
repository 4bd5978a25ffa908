//! The data on disk: SAVE and BGSAVE, save points, the file at the start and at the end.
//!
//! A save cuts a snapshot, writes it beside the file in place, syncs it and renames it over that, so that a full disk
//! or a crash leaves the old file. Nothing is forked and no command waits but the one that asked. One save runs at a
//! time. A file that a crash left half written is removed at the next start; a process that writes a file holds a lock
//! on it, so that of two servers in one folder neither removes a file that the other writes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clock::Instant;
use config::keys;
use engine::Gate;
use keyspace::kept_bytes;
use loading::{LeftOut, LoadError, Loaded, position_of};
use parking_lot::{Condvar, Mutex};
use persistence::{Dialect, SavedFile};
use process::adaptive_tick::AdaptiveTick;
use slot_routing::{ReplOffset, Role};

use crate::disk::SystemDisk;
use crate::loading::{Loading, add_file, replace_by_file};
use crate::new_file::NewFile;
use crate::pace::Pace;
use crate::saves::{Due, Ended, Facts, Saves};
use crate::snapshot::{Form, Progress, cut, write_rdb};
use crate::{Durability, append_only};

/// A save that takes long says how far it is this often.
const TELL_PERIOD: Duration = Duration::from_secs(5);

/// Why a save is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SaveKind {
    Background,
    /// A caller waits for it.
    Waited,
    /// The last before the server stops: a change after its cut is lost.
    Last,
}

/// Whether a save is still wanted.
#[derive(Debug, Clone)]
struct Wish {
    cancelled: Arc<AtomicBool>,
    /// How often all data had been deleted when it began. A save in the background is not finished after that.
    flushes: Option<u64>,
}

impl Wish {
    fn is_called_off(&self, durability: &Durability) -> bool {
        let flushes = durability.engine.settings.flushes.load(Ordering::Relaxed);
        self.cancelled.load(Ordering::Relaxed) || self.flushes.is_some_and(|began| began != flushes)
    }
}

/// Full synchronisations that are being sent: to users a save.
#[derive(Debug, Default)]
struct Transfers {
    /// Since when there has been one, and how many there are.
    under_way: Mutex<Option<(Instant, usize)>>,
    written: AtomicU64,
    wanted: AtomicU64,
}

/// Shows a full synchronisation as a save for as long as it lives.
#[derive(Debug)]
pub struct ShownTransfer<'a>(&'a Saving);

impl ShownTransfer<'_> {
    /// Counts the keys.
    pub fn written(&self) -> &AtomicU64 {
        &self.0.transfers.written
    }
}

impl Drop for ShownTransfer<'_> {
    fn drop(&mut self) {
        // In the order in which INFO locks them.
        let mut standing = self.0.standing.lock();
        let mut under_way = self.0.transfers.under_way.lock();
        match *under_way {
            Some((since, 1)) => {
                standing.saves.transferred(process::time::instant().since(since));
                *under_way = None;
            }
            Some((since, count)) => *under_way = Some((since, count - 1)),
            None => {}
        }
    }
}

/// How saving stands.
#[derive(Debug)]
struct Standing {
    saves: Saves,
    /// Of the save that is under way.
    wish: Option<Wish>,
    loaded: Loaded,
    /// The most that was kept for the last background save at once.
    last_kept: usize,
}

impl Standing {
    /// Whether a save is under way that nobody wants any more.
    fn is_called_off(&self, durability: &Durability) -> bool {
        self.wish.as_ref().is_some_and(|wish| wish.is_called_off(durability))
    }
}

/// The state of saving on one server.
#[derive(Debug)]
pub struct Saving {
    standing: Mutex<Standing>,
    /// A save has ended.
    ended: Condvar,
    /// Keys written by the save under way, and keys that it will write.
    progress: (AtomicU64, AtomicU64),
    transfers: Transfers,
    /// The most that was kept at once for snapshots since the save under way began.
    kept_peak: AtomicUsize,
    /// How many snapshots were cut, and how many microseconds the last cut took with all slots held.
    cuts: (AtomicU64, AtomicU64),
    /// Keys that full synchronisations brought and that had to be left to a save.
    synchronised: AtomicU64,
    pub(crate) loading: Loading,
}

/// Why a save did not happen.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// Another is under way.
    #[error("Background save already in progress")]
    Running,
    /// The file cannot be written or read.
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl Saving {
    pub(crate) fn new() -> Self {
        let standing = Standing {
            saves: Saves::new(process::time::now().secs()),
            wish: None,
            loaded: Loaded::default(),
            last_kept: 0,
        };
        Self {
            standing: Mutex::new(standing),
            ended: Condvar::new(),
            progress: (AtomicU64::new(0), AtomicU64::new(0)),
            transfers: Transfers::default(),
            kept_peak: AtomicUsize::new(0),
            cuts: (AtomicU64::new(0), AtomicU64::new(0)),
            synchronised: AtomicU64::new(0),
            loading: Loading::default(),
        }
    }

    /// When the last save succeeded, or the server started, in seconds of the wall clock.
    pub fn last_save(&self) -> i64 {
        self.standing.lock().saves.last_save()
    }

    /// Counts saves and cuts from nought (CONFIG RESETSTAT).
    pub fn reset_counts(&self) {
        self.standing.lock().saves.reset_count();
        self.cuts.0.store(0, Ordering::Relaxed);
        self.cuts.1.store(0, Ordering::Relaxed);
    }

    pub(crate) fn count_cut(&self, micros: u64) {
        self.cuts.0.fetch_add(1, Ordering::Relaxed);
        self.cuts.1.store(micros, Ordering::Relaxed);
    }

    /// How many snapshots were cut, and how long the last cut took in microseconds: what INFO calls a fork.
    pub fn cuts(&self) -> (u64, u64) {
        (self.cuts.0.load(Ordering::Relaxed), self.cuts.1.load(Ordering::Relaxed))
    }

    /// A full synchronisation of so many keys is being sent.
    pub fn show_transfer(&self, keys: u64) -> ShownTransfer<'_> {
        let mut under_way = self.transfers.under_way.lock();
        let (since, count) = under_way.unwrap_or((process::time::instant(), 0));
        if count == 0 {
            self.transfers.written.store(0, Ordering::Relaxed);
            self.transfers.wanted.store(0, Ordering::Relaxed);
        }
        self.transfers.wanted.fetch_add(keys, Ordering::Relaxed);
        *under_way = Some((since, count + 1));
        ShownTransfer(self)
    }

    /// A save of so many keys begins.
    fn note_wanted(&self, keys: usize) {
        let (written, wanted) = &self.progress;
        written.store(0, Ordering::Relaxed);
        wanted.store(keys as u64, Ordering::Relaxed);
    }

    /// Calls a background save off. Says whether there was one.
    pub fn cancel(&self) -> bool {
        let standing = self.standing.lock();
        let is_background = standing.saves.running().is_some_and(|running| running.background);
        let wish = standing.wish.as_ref().filter(|_| is_background);
        wish.inspect(|wish| wish.cancelled.store(true, Ordering::Relaxed)).is_some()
    }
}

/// Saves in the background. Says whether it has begun.
///
/// # Errors
/// One is under way already, or the thread cannot be started.
pub fn save_in_background(durability: &Arc<Durability>) -> Result<(), SaveError> {
    let wish = begin(durability, SaveKind::Background)?;
    // INFO says at once how many keys there are, which the cut counts once more.
    durability.saving.note_wanted(durability.engine.keyspace.sizes().iter().map(|size| size.keys).sum());
    tracing::info!("Background saving started");
    let saver = durability.clone();
    let work = move || match carry_out(&saver, &wish, SaveKind::Background) {
        Ok(()) => tracing::info!("Background saving terminated with success"),
        Err(error) => tracing::warn!("Background saving error: {error:#}"),
    };
    std::thread::Builder::new().name("bgsave".to_owned()).spawn(work).map(drop).map_err(|error| {
        let mut standing = durability.saving.standing.lock();
        standing.saves.take_back();
        standing.wish = None;
        durability.saving.ended.notify_all();
        SaveError::Failed(error.into())
    })
}

/// Saves and returns when it is done. Blocks the calling thread.
///
/// # Errors
/// A save is under way already, or this one failed.
pub fn save(durability: &Durability) -> Result<(), SaveError> {
    save_as(durability, SaveKind::Waited)
}

fn save_as(durability: &Durability, kind: SaveKind) -> Result<(), SaveError> {
    let wish = begin(durability, kind)?;
    carry_out(durability, &wish, kind)?;
    Ok(())
}

fn begin(durability: &Durability, kind: SaveKind) -> Result<Wish, SaveError> {
    let mut standing = durability.saving.standing.lock();
    // One that is called off ends in a moment, and hinders no other.
    durability.saving.ended.wait_while(&mut standing, |standing| standing.is_called_off(durability));
    let background = kind == SaveKind::Background;
    if !standing.saves.begin(process::time::instant(), background) {
        return Err(SaveError::Running);
    }
    let flushes = background.then(|| durability.engine.settings.flushes.load(Ordering::Relaxed));
    let wish = Wish { cancelled: Arc::default(), flushes };
    standing.wish = Some(wish.clone());
    Ok(wish)
}

fn carry_out(durability: &Durability, wish: &Wish, kind: SaveKind) -> anyhow::Result<()> {
    let outcome = write_file(durability, wish, kind);
    let mut standing = durability.saving.standing.lock();
    if kind == SaveKind::Background {
        standing.last_kept = durability.saving.kept_peak.load(Ordering::Relaxed);
    }
    let how = match &outcome {
        Ok(changes) => Ended::Saved { changes: *changes },
        Err(_) if wish.is_called_off(durability) => Ended::CalledOff,
        Err(_) => Ended::Failed,
    };
    let secs = process::time::now().secs();
    standing.saves.end(process::time::instant(), secs, how);
    standing.wish = None;
    drop(standing);
    durability.saving.ended.notify_all();
    update_gate(durability);
    outcome.map(|_| ())
}

/// Writes the file; returns the counter of changes at the cut.
fn write_file(durability: &Durability, wish: &Wish, kind: SaveKind) -> anyhow::Result<u64> {
    let (mut state, (position, stream_db, changes, imported)) = cut(durability, |log| {
        // The next effect names its database, so a replica that resumes from the file need not know it.
        let stream_db = durability.applied.db_in(log);
        if stream_db.is_none() {
            log.forget_db();
        }
        // Data that differs from the history belongs to none. The file has nothing of slots that are being imported,
        // which the history has.
        let is_whole = durability.applied.missing() == 0 && durability.applied.imports.is_empty();
        let in_history = log.is_open() && is_whole;
        let position = in_history.then(|| log.position());
        if kind == SaveKind::Last {
            log.seal();
        }
        (position, stream_db.unwrap_or(0), changes(durability), durability.applied.imports.slots())
    })?;
    state.leave_out(&imported);
    // Not before the cut: no other thread works for as long as that lasts.
    let used = durability.engine.keyspace.used_bytes();
    let pace = if kind == SaveKind::Background { Pace::behind_commands(used) } else { Pace::full() };
    let (written, _) = &durability.saving.progress;
    durability.saving.note_wanted(state.keys());
    durability.saving.kept_peak.store(0, Ordering::Relaxed);
    let saved = saved_file(durability);
    let file = saved.begin()?;
    let by_steps = durability.config.get(keys::RDB_SAVE_INCREMENTAL_FSYNC);
    let is_called_off = || wish.is_called_off(durability);
    let mut out = NewFile::new(file, by_steps, &is_called_off);
    write_rdb(
        durability,
        state,
        &Form {
            dialect: Dialect::Own,
            position: position.map(|at| (at, stream_db)),
            aof_base: false,
            slot_states: String::new(),
        },
        Progress { written: Some(written), is_called_off: &is_called_off },
        pace,
        &mut out,
    )?;
    anyhow::ensure!(!is_called_off(), "called off");
    saved.put(out.file)?;
    tracing::info!("DB saved on disk");
    Ok(changes)
}

/// Keeps the file that a full synchronisation came in, now that it is the data: as Redis does, this node can begin
/// again with it. A file that cannot be kept leaves everything to be saved.
pub fn keep_synchronised(durability: &Durability, file: tempfile::NamedTempFile, keys: u64) {
    // Whatever was cut before is of a history that this node has left.
    durability.saving.cancel();
    let mut standing = durability.saving.standing.lock();
    durability.saving.ended.wait_while(&mut standing, |standing| standing.saves.running().is_some());
    let persistent = !durability.config.get(keys::SAVE).is_empty() || durability.append_only.is_on();
    if !persistent && durability.config.get(keys::RDB_DEL_SYNC_FILES) {
        // Nor is anything left of an older one, which this node would begin with.
        let _ = std::fs::remove_file(&*durability.config.get(keys::DBFILENAME));
        return;
    }
    match saved_file(durability).put(file) {
        Ok(()) => {
            standing.saves.kept(changes(durability));
        }
        Err(error) => {
            tracing::warn!("What came from the master is not on disk yet: {error}");
            durability.saving.synchronised.fetch_add(keys, Ordering::Relaxed);
        }
    }
    drop(standing);
    update_gate(durability);
}

/// Data has come from a master over its connection, and is in no file: there is so much to be saved.
pub fn note_synchronised(durability: &Durability, keys: u64) {
    durability.saving.cancel();
    let mut standing = durability.saving.standing.lock();
    durability.saving.ended.wait_while(&mut standing, |standing| standing.saves.running().is_some());
    durability.saving.synchronised.fetch_add(keys, Ordering::Relaxed);
}

/// The file that is loaded at the start.
fn saved_file(durability: &Durability) -> SavedFile<SystemDisk> {
    SavedFile::new(SystemDisk::new(".".into()), &durability.config.get(keys::DBFILENAME))
}

/// A file that may be [kept](keep_synchronised) once it is whole.
///
/// # Errors
/// As the system says.
pub fn new_file(durability: &Durability) -> std::io::Result<tempfile::NamedTempFile> {
    saved_file(durability).begin()
}

/// Removes what a server that was killed left half written in this folder.
pub fn remove_leftovers(durability: &Durability) {
    for name in saved_file(durability).remove_leftovers() {
        tracing::warn!("Removed {name}, the unfinished file of a save that was cut short.");
    }
}

/// How many changes this run has made.
fn changes(durability: &Durability) -> u64 {
    let commands: u64 =
        durability.engine.worker_stats().iter().map(|worker| worker.changes.load(Ordering::Relaxed)).sum();
    commands + durability.saving.synchronised.load(Ordering::Relaxed)
}

/// Writes stop when the last save failed, if saves are configured and the configuration says so.
pub fn update_gate(durability: &Durability) {
    let failed = !durability.saving.standing.lock().saves.last_ok();
    let stop = failed
        && durability.config.get(keys::STOP_WRITES_ON_BGSAVE_ERROR)
        && !durability.config.get(keys::SAVE).is_empty();
    durability.engine.settings.set_gate(Gate::MISCONF, stop);
    durability.log.look_again();
}

/// Starts a background save whenever a save point is reached. Never returns.
pub async fn watch(durability: Arc<Durability>, tick: Arc<AdaptiveTick>) {
    let mut reported = process::time::instant();
    let flushes = durability.engine.settings.flushes.load(Ordering::Relaxed);
    durability.saving.standing.lock().saves.start(flushes);
    loop {
        tick.wait_for_tick().await;
        if durability.saving.standing.lock().saves.running().is_some() {
            durability.saving.kept_peak.fetch_max(kept_bytes(), Ordering::Relaxed);
            if process::time::instant().since(reported) >= TELL_PERIOD {
                reported = process::time::instant();
                let (written, wanted) = &durability.saving.progress;
                let (written, wanted) = (written.load(Ordering::Relaxed), wanted.load(Ordering::Relaxed));
                tracing::info!("Saving: {written} of {wanted} keys");
            }
        } else {
            reported = process::time::instant();
        }
        let due = due(&durability);
        if let Some(Due::Point(point)) = due {
            tracing::info!("{} changes in {} seconds. Saving...", point.changes, point.after.as_secs());
        }
        if due.is_some()
            && let Err(error) = save_in_background(&durability)
        {
            tracing::warn!("Can't save in background: {error}");
        }
    }
}

fn due(durability: &Durability) -> Option<Due> {
    let settings = &durability.engine.settings;
    let facts = Facts {
        points: &durability.config.get(keys::SAVE),
        loads: settings.gate().intersects(Gate::LOADING.union(Gate::ASYNC_LOADING)),
        changes: changes(durability),
        flushes: settings.flushes.load(Ordering::Relaxed),
    };
    let (now, secs) = (process::time::instant(), process::time::now().secs());
    durability.saving.standing.lock().saves.look(now, secs, facts)
}

/// Loads the file that the configuration names, if it is there. Clients are answered LOADING until the caller says
/// otherwise, never after an error.
///
/// Returns how far in its history the loaded data reaches: zero if there was none, `None` if the files do not say.
///
/// # Errors
/// A file is there and cannot be used, or an append-only file not be begun. The server should not start.
pub async fn load_at_start(durability: &Arc<Durability>) -> anyhow::Result<Option<ReplOffset>> {
    let appends = durability.config.get(keys::APPENDONLY);
    let reached = || Some(durability.log.lock()).filter(|log| log.is_open()).map(|log| log.position().offset);
    if appends && load_append_only(durability).await? {
        return Ok(reached());
    }
    let found = if load_file(durability).await? { reached() } else { Some(ReplOffset(0)) };
    if appends {
        // The append-only file begins with what the last save left, or with nothing. It is there before any client is
        // served: a write that is acknowledged under `always` is in it.
        durability.append_only.await_base()?;
        let first = durability.clone();
        tokio::task::spawn_blocking(move || append_only::rewrite_now(&first)).await??;
    }
    Ok(found)
}

/// Says whether there was an append-only file.
async fn load_append_only(durability: &Arc<Durability>) -> anyhow::Result<bool> {
    let began = process::time::instant();
    let loader = durability.clone();
    let loaded = tokio::task::spawn_blocking(move || append_only::load(&loader)).await?;
    let Some(loaded) =
        loaded.map_err(|error| anyhow::anyhow!("Fatal error loading the AOF: {error} Exiting."))?
    else {
        return Ok(false);
    };
    let took = process::time::instant().since(began);
    tracing::info!("DB loaded from append only file: {:.3} seconds", took.as_secs_f64());
    durability.saving.standing.lock().loaded = loaded;
    Ok(true)
}

/// Says whether there was a file.
async fn load_file(durability: &Arc<Durability>) -> anyhow::Result<bool> {
    let name = durability.config.get(keys::DBFILENAME);
    if !Path::new(&*name).exists() {
        return Ok(false);
    }
    let began = process::time::instant();
    let loader = durability.clone();
    let as_replica = will_be_replica(durability);
    let load = move || replace_by_file(&loader, Path::new(&*name), !as_replica);
    let loaded = tokio::task::spawn_blocking(load).await?;
    let loaded = loaded.map_err(|error| {
        tracing::warn!("Short read or OOM loading DB. Unrecoverable error, aborting now.");
        anyhow::anyhow!("Fatal error loading the DB: {error}. Check the file, or move it away. Exiting.")
    })?;
    let Loaded { keys, expired, empty, .. } = &loaded;
    let skipped = if *empty > 0 { format!(", empty keys skipped: {empty}") } else { String::new() };
    tracing::info!("Done loading RDB, keys loaded: {keys}, keys expired: {expired}{skipped}.");
    let took = process::time::instant().since(began);
    tracing::info!("DB loaded from disk: {:.3} seconds", took.as_secs_f64());
    if let Some(position) = position_of(&loaded) {
        // Until it is known what this node is to be, it goes on in the history that the file belongs to.
        durability.log.adopt(position);
        durability.applied.select(loaded.stream_db.unwrap_or(0));
    }
    durability.saving.standing.lock().loaded = loaded;
    Ok(true)
}

/// Takes the keys that the load at the start left out, for the log; a second call gets none.
pub fn take_left_out(durability: &Durability) -> LeftOut {
    std::mem::take(&mut durability.saving.standing.lock().loaded.left_out)
}

/// Whether the configuration, or the cluster as this node last knew it, makes it a replica.
fn will_be_replica(durability: &Durability) -> bool {
    let of_cluster = durability.engine.topology.as_ref().is_some_and(|topology| {
        let topology = topology.load();
        topology.member(topology.myself).is_some_and(|me| matches!(me.role, Role::Replica(_)))
    });
    of_cluster || durability.config.get(keys::REPLICAOF).is_some()
}

/// How DEBUG RELOAD goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reload {
    /// The data is saved first.
    pub save: bool,
    /// The contents of the file are added to the data.
    pub keeps: bool,
}

/// DEBUG RELOAD: saves, and loads what was saved. The history goes on; `on_loaded` is called before anything is written.
///
/// # Errors
/// The save failed, or its file cannot be loaded.
pub fn reload(
    durability: &Durability,
    how: Reload,
    drop_expired: bool,
    on_loaded: impl FnOnce(&LeftOut),
) -> Result<(), SaveError> {
    if how.save {
        save(durability)?;
    }
    let name = durability.config.get(keys::DBFILENAME);
    let load = if how.keeps { add_file } else { replace_by_file };
    let loaded = load(durability, Path::new(&*name), drop_expired);
    if let Ok(loaded) = &loaded {
        on_loaded(&loaded.left_out);
    }
    durability.engine.settings.set_gate(Gate::LOADING, false);
    loaded.map(|_| ()).map_err(|error: LoadError| SaveError::Failed(error.into()))
}

/// Whether the data is saved when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// Save if save points are configured.
    AsConfigured,
    /// Save, whatever is configured.
    Save,
    /// Do not, whatever is configured.
    NoSave,
}

/// Saves at the end, if that is wanted. An error says that the server should not stop.
///
/// # Errors
/// The data, or the end of the append-only file, is not on the disk.
pub fn finish(
    durability: &Durability,
    at_end: AtEnd,
    unfinished: append_only::Unfinished,
) -> Result<(), SaveError> {
    let wanted = match at_end {
        AtEnd::AsConfigured => !durability.config.get(keys::SAVE).is_empty(),
        AtEnd::Save => true,
        AtEnd::NoSave => false,
    };
    loop {
        // A save in the background must not finish after the last one, nor one that a client waits for.
        durability.saving.cancel();
        let mut standing = durability.saving.standing.lock();
        durability.saving.ended.wait_while(&mut standing, |standing| standing.saves.running().is_some());
        drop(standing);
        if durability.config.get(keys::APPENDONLY) {
            tracing::info!("Calling fsync() on the AOF file.");
        }
        append_only::finish(durability, unfinished)
            .map_err(|error| SaveError::Failed(anyhow::anyhow!("{error}")))?;
        // Half of a file is no data to save, nor is what is to be replaced by a replica's.
        let not_data = Gate::LOADING.union(Gate::EMPTY_MASTER);
        if !wanted || durability.engine.settings.gate().intersects(not_data) {
            return Ok(());
        }
        tracing::info!("Saving the final RDB snapshot before exiting.");
        match save_as(durability, SaveKind::Last) {
            // A save point or a client was faster.
            Err(SaveError::Running) => {}
            outcome => return outcome,
        }
    }
}

/// The lines of INFO's section Persistence.
pub fn info(durability: &Durability, text: &mut String) {
    use std::fmt::Write;
    let standing = durability.saving.standing.lock();
    let gate = durability.engine.settings.gate();
    let (loading, beside) = (gate.contains(Gate::LOADING), gate.contains(Gate::ASYNC_LOADING));
    let saves = &standing.saves;
    let running = saves.running().filter(|running| running.background);
    let running = running.filter(|_| !standing.is_called_off(durability));
    let transfers = &durability.saving.transfers;
    let transfer =
        (*transfers.under_way.lock()).map(|(since, _)| (since, &transfers.written, &transfers.wanted));
    let (written, wanted) = &durability.saving.progress;
    let running = running.map(|running| (running.since, written, wanted)).or(transfer);
    let current = running.map(|(since, ..)| process::time::instant().since(since).as_secs() as i64);
    let (written, wanted) = running.map_or((written, wanted), |(_, written, wanted)| (written, wanted));
    let progress = |counter: &AtomicU64| if running.is_some() { counter.load(Ordering::Relaxed) } else { 0 };
    let (written, wanted) = (progress(written), progress(wanted));
    let percent = if wanted == 0 { 0.0 } else { written as f64 / wanted as f64 * 100.0 };
    let took = saves.last_took().map_or(-1, |took| took.as_secs() as i64);
    let kept = if running.is_some() { kept_bytes() } else { 0 };
    let kept_peak =
        if running.is_some() { durability.saving.kept_peak.load(Ordering::Relaxed).max(kept) } else { 0 };
    let lines: [(&str, String); 18] = [
        ("loading", u8::from(loading).to_string()),
        ("async_loading", u8::from(beside).to_string()),
        ("current_cow_peak", kept_peak.to_string()),
        ("current_cow_size", kept.to_string()),
        ("current_cow_size_age", "0".to_owned()),
        ("current_fork_perc", format!("{percent:.2}")),
        ("current_save_keys_processed", written.to_string()),
        ("current_save_keys_total", wanted.to_string()),
        ("rdb_changes_since_last_save", saves.unsaved(changes(durability)).to_string()),
        ("rdb_bgsave_in_progress", u8::from(running.is_some()).to_string()),
        ("rdb_last_save_time", saves.last_save().to_string()),
        ("rdb_last_bgsave_status", if saves.last_ok() { "ok" } else { "err" }.to_owned()),
        ("rdb_last_bgsave_time_sec", took.to_string()),
        ("rdb_current_bgsave_time_sec", current.unwrap_or(-1).to_string()),
        ("rdb_saves", saves.count().to_string()),
        ("rdb_last_cow_size", standing.last_kept.to_string()),
        ("rdb_last_load_keys_expired", standing.loaded.expired.to_string()),
        ("rdb_last_load_keys_loaded", standing.loaded.keys.to_string()),
    ];
    for (name, value) in lines {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name}:{value}\r\n");
    }
    drop(standing);
    durability.append_only.info(text);
    if loading || beside {
        durability.saving.loading.info(text);
    }
}
