//! Loads data into this process. The crate `loading` does the work; this module adds files, clocks and progress
//! reports.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use clock::{Instant, Millis};
use config::keys;
use migration::ControlCommand;
use process::time;
use resp::Args;
use snapshot_io::{LoadError, LoadEvent, LoadHost, LoadResult, Loader};

use super::snapshot::delay_key;
use crate::Durability;

/// Interval of progress messages in the log.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Counters for INFO and log messages while data is loaded.
#[derive(Debug, Default)]
pub(crate) struct LoadProgress {
    /// When the load began, as wall clock milliseconds.
    started_at: AtomicI64,
    total_bytes: AtomicU64,
    bytes_read: AtomicU64,
    /// Memory usage of the server that wrote the file, in bytes, as recorded in the file.
    used_memory: AtomicU64,
}

impl LoadProgress {
    fn start(&self, total: u64) {
        self.started_at.store(time::now().0, Ordering::Relaxed);
        self.total_bytes.store(total, Ordering::Relaxed);
        self.bytes_read.store(0, Ordering::Relaxed);
        self.used_memory.store(0, Ordering::Relaxed);
    }

    /// Returns the percentage done and the estimated remaining seconds.
    fn estimate_progress(&self) -> (f64, u64) {
        let (read, total) =
            (self.bytes_read.load(Ordering::Relaxed), self.total_bytes.load(Ordering::Relaxed));
        let took = (time::now().0 - self.started_at.load(Ordering::Relaxed)).max(0) as f64 / 1000.0;
        let done = if total == 0 { 0.0 } else { read as f64 / total as f64 };
        let left = if done == 0.0 { 1.0 } else { took / done * (1.0 - done) };
        (done * 100.0, left.ceil() as u64)
    }

    /// Appends INFO's fields about the running load.
    pub(crate) fn write_info(&self, text: &mut String) {
        use std::fmt::Write;
        let (percent, left) = self.estimate_progress();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "loading_start_time:{}\r\nloading_total_bytes:{}\r\nloading_rdb_used_mem:{}\r\n\
             loading_loaded_bytes:{}\r\nloading_loaded_perc:{percent:.2}\r\nloading_eta_seconds:{left}\r\n",
            self.started_at.load(Ordering::Relaxed) / 1000,
            self.total_bytes.load(Ordering::Relaxed),
            self.used_memory.load(Ordering::Relaxed),
            self.bytes_read.load(Ordering::Relaxed),
        );
    }
}

/// Connects a load to this process: clocks, progress reports and events.
struct ServerLoadHost<'a> {
    durability: &'a Durability,
    progress: &'a LoadProgress,
    /// The delay per key in microseconds (`key-load-delay`).
    key_delay_micros: i64,
    /// Time of the last progress message.
    last_report_at: Cell<Instant>,
    /// When reading the current file began.
    file_started_at: Cell<Instant>,
}

impl LoadHost for ServerLoadHost<'_> {
    fn now(&self) -> Millis {
        time::now()
    }

    fn nanos_clock(&self) -> fn() -> u64 {
        time::nanos
    }

    fn on_load_started(&self, total_bytes: u64) {
        self.progress.start(total_bytes);
        self.last_report_at.set(time::monotonic_now());
    }

    fn report_progress(&self, bytes_read: u64, keys: u64) {
        self.progress.bytes_read.store(bytes_read, Ordering::Relaxed);
        if time::monotonic_now().since(self.last_report_at.get()) >= PROGRESS_INTERVAL {
            self.last_report_at.set(time::monotonic_now());
            let (percent, left) = self.progress.estimate_progress();
            tracing::info!("Loading: {percent:.1} %, {keys} keys, about {left} seconds left");
        }
    }

    fn on_used_memory(&self, bytes: u64) {
        self.progress.used_memory.store(bytes, Ordering::Relaxed);
    }

    fn on_key_read(&self) {
        delay_key(self.key_delay_micros, 1);
    }

    fn on_unexecuted_command(&self, args: Args<'_>) {
        let Durability { applied_stream: applied, engine, .. } = self.durability;
        match ControlCommand::decode(args) {
            Ok(Some(ControlCommand::SyncSlots(command))) => applied.imports.apply_command(engine, &command),
            Ok(_) => {}
            Err(error) => tracing::warn!("Ignored a command of the append-only file: {error}"),
        }
    }

    fn report_event(&self, event: LoadEvent<'_>) {
        match event {
            LoadEvent::FileStarted => self.file_started_at.set(time::monotonic_now()),
            LoadEvent::RdbBase => tracing::info!("Reading RDB base file on AOF loading..."),
            LoadEvent::FileLoaded { name, is_base } => {
                let took = time::monotonic_now().since(self.file_started_at.get()).as_secs_f64();
                let kind = if is_base { "base" } else { "incr" };
                tracing::info!("DB loaded from {kind} file {name}: {took:.3} seconds");
            }
            LoadEvent::EmptyKey(key) => {
                tracing::info!("rdbLoadObject skipping empty key: {}", key.escape_ascii());
            }
            LoadEvent::CommandFailed(error) => {
                tracing::warn!(
                    "== CRITICAL == This server is sending an error to its AOF-loading-client: '-{error}'"
                );
            }
            LoadEvent::Truncating { name, complete_bytes: whole } => {
                tracing::warn!("!!! Warning: short read while loading the AOF file {name}!!!");
                tracing::warn!("!!! Truncating the AOF {name} at offset {whole} !!!");
            }
            LoadEvent::Truncated(name) => {
                tracing::warn!("AOF {name} loaded anyway because aof-load-truncated is enabled");
            }
        }
    }
}

/// Runs `load` with a loader for this server's engine.
pub(super) fn with_loader<T>(durability: &Durability, load: impl FnOnce(&Loader<'_>) -> T) -> T {
    let config = &durability.config;
    let host = ServerLoadHost {
        durability,
        progress: &durability.rdb_saves.load_progress,
        key_delay_micros: config.get(keys::KEY_LOAD_DELAY),
        last_report_at: Cell::new(time::monotonic_now()),
        file_started_at: Cell::new(time::monotonic_now()),
    };
    // The capacity is read now, because the log is not locked during the load.
    let kept = durability.log.lock().capacity();
    load(&Loader {
        engine: &durability.engine,
        commands: &durability.commands,
        store_threads: config.get(keys::IO_THREADS),
        verify_checksum: config.get(keys::RDBCHECKSUM),
        max_deletion_bytes: kept,
        host: &host,
    })
}

/// Replaces all data by a file's content ([`Loader::replace`]).
///
/// # Errors
/// The file cannot be opened (the data is unchanged), or it cannot be loaded (all data is gone).
pub fn replace_data_from_file(
    durability: &Durability,
    path: &Path,
    drops_expired_keys: bool,
) -> Result<LoadResult, LoadError> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    with_loader(durability, |loader| loader.replace_dataset(file, len, drops_expired_keys, || true))
}

/// Checks a snapshot without loading it ([`Loader::check`]).
///
/// # Errors
/// The error that loading it would return.
pub fn check_snapshot(durability: &Durability, input: impl Read) -> Result<(), LoadError> {
    with_loader(durability, |loader| loader.check(input))
}

/// Replaces all data by a snapshot from a connection ([`Loader::replace_dataset_after`]).
///
/// # Errors
/// The input is truncated or invalid, or `is_complete` returned `false`. If `before_replacing` was called, all data is
/// gone.
pub fn replace_data_from_stream(
    durability: &Durability,
    input: impl Read,
    len: u64,
    before_replacing: impl FnOnce(),
    is_complete: impl FnOnce() -> bool,
) -> Result<LoadResult, LoadError> {
    with_loader(durability, |loader| {
        loader.replace_dataset_after(input, len, false, before_replacing, is_complete)
    })
}

/// Replaces all data once a snapshot has been loaded completely ([`Loader::replace_dataset_by_swap`]).
///
/// # Errors
/// As for [`Loader::replace_dataset_by_swap`]. The data is then unchanged.
pub fn replace_by_exchange(
    durability: &Durability,
    input: impl Read,
    len: u64,
    serves_old_data: bool,
    is_complete: impl FnOnce() -> bool,
    before_replacing: impl FnOnce(),
) -> Result<LoadResult, LoadError> {
    with_loader(durability, |loader| {
        loader.replace_dataset_by_swap(input, len, serves_old_data, is_complete, before_replacing)
    })
}

/// Adds a file's keys to the data ([`Loader::add`]).
pub(crate) fn add_file(
    durability: &Durability,
    path: &Path,
    drops_expired_keys: bool,
) -> Result<LoadResult, LoadError> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    with_loader(durability, |loader| loader.add_to_dataset(file, len, drops_expired_keys))
}
