//! Rewrites: another base, so that the increments before it are needed no more.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use engine::Gate;
use persistence::Dialect;
use replication::Mode;

use super::AppendOnly;
use super::files::Files;
use crate::durability::Durability;
use crate::durability::pace::Pace;
use crate::durability::snapshot::{Form, cut, write_commands, write_rdb};
use crate::process::time;

/// How often it is looked at whether a rewrite is due.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// After a rewrite that failed, so long until the next by itself.
const RETRY: Duration = Duration::from_secs(5);
/// So many bytes are written before they are brought to the disk.
const SYNC_STEP: usize = 4 << 20;

/// Why no rewrite has begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RewriteError {
    #[error("Background append only file rewriting already in progress")]
    Running,
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl AppendOnly {
    /// Switches it on, with what the data is now as its base (CONFIG SET appendonly yes).
    pub(crate) fn switch_on(self: &Arc<Self>) -> anyhow::Result<()> {
        // What there is of an older file counts until the new base does.
        let files = Files::find(&self.config)?.map_or_else(|| Files::none(&self.config), Ok)?;
        self.start(files, None)?;
        self.rewrites.lock().scheduled = true;
        Ok(())
    }

    /// Whether one is due by itself.
    fn is_rewrite_due(&self) -> bool {
        if !self.is_on() || self.engine.settings.gate().contains(Gate::LOADING) {
            return false;
        }
        {
            // What a replica has after a synchronisation that failed is nobody's data.
            let log = self.log.lock();
            if log.authority().mode() == Mode::Replica && !log.is_open() {
                return false;
            }
        }
        let size = self.size();
        let rewrites = self.rewrites.lock();
        let recently = |at| time::instant().since(at) < RETRY;
        if rewrites.running.is_some() || (!rewrites.last_ok && rewrites.last_try.is_some_and(recently)) {
            return false;
        }
        let bytes = |name: &str| u64::try_from(self.config.integer(name)).unwrap_or(u64::MAX);
        let percent = bytes("auto-aof-rewrite-percentage");
        let growth =
            size.saturating_sub(rewrites.size_after).saturating_mul(100) / rewrites.size_after.max(1);
        rewrites.scheduled || percent > 0 && size > bytes("auto-aof-rewrite-min-size") && growth >= percent
    }
}

/// Begins a rewrite whenever one is due. Never returns.
pub(crate) async fn watch(durability: Arc<Durability>) {
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        durability.append_only.settle_replies();
        if durability.append_only.is_rewrite_due()
            && let Err(error) = rewrite_in_background(&durability)
        {
            tracing::warn!("Can't rewrite append only file in background: {error}");
        }
    }
}

/// BGREWRITEAOF. Where the file is off the base is written all the same, and is there when it is switched on by hand.
pub(crate) fn rewrite_in_background(durability: &Arc<Durability>) -> Result<(), RewriteError> {
    begin(&durability.append_only)?;
    tracing::info!("Background append only file rewriting started");
    let work = durability.clone();
    let spawned = std::thread::Builder::new().name("aof-rewrite".to_owned()).spawn(move || {
        match carry_out(&work) {
            Ok(()) => tracing::info!("Background AOF rewrite finished successfully"),
            Err(error) => tracing::warn!("Background AOF rewrite failed: {error:#}"),
        };
    });
    spawned.map(drop).map_err(|error| {
        end(&durability.append_only, false);
        RewriteError::Failed(error.into())
    })
}

/// Rewrites, and returns when that is done.
pub(crate) fn rewrite_now(durability: &Durability) -> Result<(), RewriteError> {
    begin(&durability.append_only)?;
    Ok(carry_out(durability)?)
}

/// Brings all data to the disk, when nothing is written any more: by another base, if what there is of the file is not
/// all. An error says that this is not possible.
pub(crate) fn finish(durability: &Durability) -> Result<(), String> {
    let shared = &durability.append_only;
    while shared.is_on() && !shared.is_whole() {
        match rewrite_now(durability) {
            Ok(()) => {}
            Err(RewriteError::Running) => std::thread::sleep(LOOK_PERIOD),
            Err(error) => return Err(error.to_string()),
        }
    }
    shared.flush()
}

fn begin(shared: &AppendOnly) -> Result<(), RewriteError> {
    let mut rewrites = shared.rewrites.lock();
    if rewrites.running.is_some() {
        return Err(RewriteError::Running);
    }
    rewrites.running = Some(time::instant());
    rewrites.last_try = rewrites.running;
    rewrites.scheduled = false;
    Ok(())
}

fn carry_out(durability: &Durability) -> anyhow::Result<()> {
    let outcome = rewrite(durability);
    end(&durability.append_only, outcome.is_ok());
    outcome
}

fn end(shared: &AppendOnly, ok: bool) {
    let needed = !shared.is_whole();
    let mut rewrites = shared.rewrites.lock();
    rewrites.last_took = rewrites.running.take().map(|since| time::instant().since(since));
    rewrites.last_ok = ok;
    if ok {
        rewrites.done += 1;
        rewrites.failed_in_a_row = 0;
    } else {
        rewrites.failed_in_a_row += 1;
        rewrites.scheduled |= needed;
    }
}

fn rewrite(durability: &Durability) -> anyhow::Result<()> {
    let shared = &durability.append_only;
    let on = shared.is_on();
    let switches = shared.progress.lock().switches;
    let (state, position) = cut(durability, |log| {
        shared.log.open(log);
        let stream_db = durability.applied.db_in(log);
        if stream_db.is_none() {
            log.forget_db();
        }
        if on {
            shared.switch_at_cut(log, stream_db);
        }
        (log.position(), stream_db.unwrap_or(0))
    })?;
    let pace = Pace::behind_commands(durability.engine.keyspace.used_bytes());
    let temporary = match &*shared.files.lock() {
        Some(files) => files.temporary_base(),
        None => Files::none(&durability.config)?.temporary_base(),
    };
    let by_steps = durability.config.switch("aof-rewrite-incremental-fsync");
    let mut out = Steps { file: temporary?, unsynced: 0, by_steps };
    let base = Base { rdb: durability.config.switch("aof-use-rdb-preamble"), switches };
    if base.rdb {
        let form = Form {
            dialect: Dialect::Redis,
            position: Some(position),
            aof_base: true,
            slot_states: String::new(),
        };
        write_rdb(durability, state, &form, None, pace, &mut out)?;
    } else {
        write_commands(durability, state, pace, &mut out)?;
    }
    out.file.as_file().sync_all()?;
    if on { shared.take_base(out.file, base) } else { put_alone(durability, out.file, base) }
}

/// A base that was written.
#[derive(Debug, Clone, Copy)]
struct Base {
    /// Whether it is an RDB, or commands.
    rdb: bool,
    /// How many increments had been begun at its cut, before its own.
    switches: u64,
}

/// The base of a file that is off.
fn put_alone(durability: &Durability, file: tempfile::NamedTempFile, base: Base) -> anyhow::Result<()> {
    let mut files = match Files::find(&durability.config)? {
        Some(files) => files,
        None => Files::none(&durability.config)?,
    };
    Ok(files.put_base(file, base.rdb, "")?)
}

impl AppendOnly {
    /// Puts the base in place once the writer has begun the increment that follows it.
    fn take_base(&self, file: tempfile::NamedTempFile, base: Base) -> anyhow::Result<()> {
        let Base { rdb, switches } = base;
        let mut progress = self.progress.lock();
        while progress.switches == switches {
            anyhow::ensure!(progress.running, "the file was switched off meanwhile");
            self.moved.wait_for(&mut progress, LOOK_PERIOD);
        }
        anyhow::ensure!(
            progress.switches == switches + 1 && !progress.lost,
            "the data was replaced meanwhile"
        );
        let first = progress.current.clone();
        drop(progress);
        let mut files = self.files.lock();
        let files = files.as_mut().ok_or_else(|| anyhow::anyhow!("the file was switched off meanwhile"))?;
        files.put_base(file, rdb, &first)?;
        let (base, all) = files.sizes();
        self.base_size.store(base, std::sync::atomic::Ordering::Relaxed);
        self.size_before.store(base, std::sync::atomic::Ordering::Relaxed);
        self.rewrites.lock().size_after = all;
        Ok(())
    }
}

/// A file that is brought to the disk every few megabytes, not all of it at the end.
struct Steps {
    file: tempfile::NamedTempFile,
    unsynced: usize,
    by_steps: bool,
}

impl Write for Steps {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.unsynced += count;
        if self.by_steps && self.unsynced >= SYNC_STEP {
            self.file.as_file().sync_data()?;
            self.unsynced = 0;
        }
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
