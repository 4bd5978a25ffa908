//! Loads of this process: the crate `loading` does the work, here are the files, the time, and the tale of how far it is.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use clock::{Instant, Millis};
use config::keys;
use loading::{Host, LoadError, Loaded, Loader, Told};
use process::time;
use resp::Args;

use super::snapshot::delay;
use crate::Durability;

/// A load that takes long says how far it is this often.
const TELL_PERIOD: Duration = Duration::from_secs(5);

/// How far a load is.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// Wall clock in milliseconds.
    began: AtomicI64,
    total: AtomicU64,
    read: AtomicU64,
    /// The memory that the file's writer used, in bytes, as the file states it.
    used_memory: AtomicU64,
}

impl Loading {
    fn begin(&self, total: u64) {
        self.began.store(time::now().0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        self.used_memory.store(0, Ordering::Relaxed);
    }

    /// Percent done, and the seconds that the rest will take.
    fn estimate(&self) -> (f64, u64) {
        let (read, total) = (self.read.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        let took = (time::now().0 - self.began.load(Ordering::Relaxed)).max(0) as f64 / 1000.0;
        let done = if total == 0 { 0.0 } else { read as f64 / total as f64 };
        let left = if done == 0.0 { 1.0 } else { took / done * (1.0 - done) };
        (done * 100.0, left.ceil() as u64)
    }

    /// The lines of INFO while data is loaded.
    pub(crate) fn info(&self, text: &mut String) {
        use std::fmt::Write;
        let (percent, left) = self.estimate();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "loading_start_time:{}\r\nloading_total_bytes:{}\r\nloading_rdb_used_mem:{}\r\n\
             loading_loaded_bytes:{}\r\nloading_loaded_perc:{percent:.2}\r\nloading_eta_seconds:{left}\r\n",
            self.began.load(Ordering::Relaxed) / 1000,
            self.total.load(Ordering::Relaxed),
            self.used_memory.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        );
    }
}

/// This process, for a load.
struct Process<'a> {
    durability: &'a Durability,
    loading: &'a Loading,
    /// `key-load-delay`
    key_delay: i64,
    /// When it was said last how far the load is.
    told: Cell<Instant>,
    /// When the file that is being read was begun.
    file_began: Cell<Instant>,
}

impl Host for Process<'_> {
    fn now(&self) -> Millis {
        time::now()
    }

    fn nanos(&self) -> fn() -> u64 {
        time::nanos
    }

    fn begin(&self, total: u64) {
        self.loading.begin(total);
        self.told.set(time::instant());
    }

    fn progress(&self, read: u64, keys: u64) {
        self.loading.read.store(read, Ordering::Relaxed);
        if time::instant().since(self.told.get()) >= TELL_PERIOD {
            self.told.set(time::instant());
            let (percent, left) = self.loading.estimate();
            tracing::info!("Loading: {percent:.1} %, {keys} keys, about {left} seconds left");
        }
    }

    fn used_memory(&self, bytes: u64) {
        self.loading.used_memory.store(bytes, Ordering::Relaxed);
    }

    fn key_read(&self) {
        delay(self.key_delay, 1);
    }

    fn on_command(&self, args: Args<'_>) {
        let Durability { applied, engine, .. } = self.durability;
        applied.imports.on_stream(engine, args);
    }

    fn tell(&self, told: Told<'_>) {
        match told {
            Told::FileBegins => self.file_began.set(time::instant()),
            Told::RdbBase => tracing::info!("Reading RDB base file on AOF loading..."),
            Told::FileLoaded { name, is_base } => {
                let took = time::instant().since(self.file_began.get()).as_secs_f64();
                let kind = if is_base { "base" } else { "incr" };
                tracing::info!("DB loaded from {kind} file {name}: {took:.3} seconds");
            }
            Told::EmptyKey(key) => {
                tracing::info!("rdbLoadObject skipping empty key: {}", key.escape_ascii());
            }
            Told::CommandFailed(error) => {
                tracing::warn!(
                    "== CRITICAL == This server is sending an error to its AOF-loading-client: '-{error}'"
                );
            }
            Told::Truncating { name, whole } => {
                tracing::warn!("!!! Warning: short read while loading the AOF file {name}!!!");
                tracing::warn!("!!! Truncating the AOF {name} at offset {whole} !!!");
            }
            Told::Truncated(name) => {
                tracing::warn!("AOF {name} loaded anyway because aof-load-truncated is enabled");
            }
        }
    }
}

/// Loads something into the engine.
pub(super) fn with_loader<T>(durability: &Durability, load: impl FnOnce(&Loader<'_>) -> T) -> T {
    let config = &durability.config;
    let process = Process {
        durability,
        loading: &durability.saving.loading,
        key_delay: config.get(keys::KEY_LOAD_DELAY),
        told: Cell::new(time::instant()),
        file_began: Cell::new(time::instant()),
    };
    // The log is not locked while it loads.
    let kept = durability.log.lock().capacity();
    load(&Loader {
        engine: &durability.engine,
        commands: &durability.commands,
        threads: config.get(keys::IO_THREADS),
        verify_checksum: config.get(keys::RDBCHECKSUM),
        kept,
        host: &process,
    })
}

/// [`Loader::replace`] by a file.
///
/// # Errors
/// The file cannot be opened, and nothing has changed; or it cannot be loaded, and no data is left.
pub fn replace_by_file(
    durability: &Durability,
    path: &Path,
    drop_expired: bool,
) -> Result<Loaded, LoadError> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    with_loader(durability, |loader| loader.replace(file, len, drop_expired, || true))
}

/// [`Loader::check`]
///
/// # Errors
/// The error that the load would end with.
pub fn check(durability: &Durability, input: impl Read) -> Result<(), LoadError> {
    with_loader(durability, |loader| loader.check(input))
}

/// [`Loader::replace_after`], of the bytes of a connection.
///
/// # Errors
/// The bytes end early or are not in order, or `whole` denies that all came. If `before` was called, no data is left.
pub fn replace_by_stream(
    durability: &Durability,
    input: impl Read,
    len: u64,
    before: impl FnOnce(),
    whole: impl FnOnce() -> bool,
) -> Result<Loaded, LoadError> {
    with_loader(durability, |loader| loader.replace_after(input, len, false, before, whole))
}

/// [`Loader::replace_by_exchange`]
///
/// # Errors
/// As [`Loader::replace_by_exchange`]. The data is as it was then.
pub fn replace_by_exchange(
    durability: &Durability,
    input: impl Read,
    len: u64,
    served: bool,
    whole: impl FnOnce() -> bool,
    before: impl FnOnce(),
) -> Result<Loaded, LoadError> {
    with_loader(durability, |loader| loader.replace_by_exchange(input, len, served, whole, before))
}

/// [`Loader::add`] of a file.
pub(crate) fn add_file(
    durability: &Durability,
    path: &Path,
    drop_expired: bool,
) -> Result<Loaded, LoadError> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    with_loader(durability, |loader| loader.add(file, len, drop_expired))
}
