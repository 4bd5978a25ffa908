//! The append-only file (`appendonly yes`): every change since a base, on disk.
//!
//! A [`writer`] of its own thread follows the log. A rewrite ([`rewriting`]) cuts a snapshot as a save does, has the
//! writer go on in another increment from the cut's offset on, writes the snapshot as the next base and puts both into
//! the manifest ([`files`]); switching on, and a full synchronisation, begin in the same way. At the start the files
//! are [`loading`] in their order.
//!
//! Under `appendfsync always` replies to writes wait for the log's commit point, which is then what is synced.

mod files;
mod loading;
mod rewriting;
mod tail;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clock::Instant;
use config::Config;
use engine::{Engine, Gate};
use parking_lot::{Condvar, Mutex};
use replication::{CursorId, Log, ReplId};
use slot_routing::ReplOffset;
use tokio::sync::Notify;

use crate::process::time;
use crate::replication::SharedLog;
use crate::replication::commit_point::CommitPoint;
use files::Files;
use writer::Writer;

pub(crate) use loading::{load, position_of, reload};
pub(crate) use rewriting::{finish, rewrite_in_background, rewrite_now, watch};

/// How long somebody waits for the writer at a time before looking again whether it is still there.
const LOOK: Duration = Duration::from_millis(100);

/// With so many bytes that are not written yet, replies to writes wait until they are, whatever `appendfsync` says; with
/// a quarter of that they do no longer.
const MOST_BEHIND: u64 = 64 << 20;

/// `appendfsync`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    EverySecond,
    Never,
}

/// Where another increment begins. Made while everything is held, with the log locked.
#[derive(Debug)]
struct Switch {
    at: ReplOffset,
    history: ReplId,
    /// Where it reads on, and where it would begin again.
    cursor: CursorId,
    anchor: CursorId,
    /// What the stream has selected, where it will not say it again.
    db: Option<u16>,
}

/// How far the file is.
#[derive(Debug, Default)]
struct Progress {
    running: bool,
    written: ReplOffset,
    synced: ReplOffset,
    /// Bytes of the increment that is written to.
    increment: u64,
    /// The increment that was begun last.
    current: String,
    /// How many were begun.
    switches: u64,
    /// What is written does not follow what the files have: another base must come.
    lost: bool,
    error: Option<String>,
}

/// How rewrites stand.
#[derive(Debug)]
struct Rewrites {
    running: Option<Instant>,
    scheduled: bool,
    last_ok: bool,
    last_try: Option<Instant>,
    last_took: Option<Duration>,
    done: u64,
    failed_in_a_row: u64,
    /// Bytes of all files after the last rewrite, or at the start.
    size_after: u64,
}

/// The append-only file, as all threads share it.
#[derive(Debug)]
pub(crate) struct AppendOnly {
    engine: Arc<Engine>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    commit_point: Arc<CommitPoint>,
    synced_further: Arc<Notify>,
    on: AtomicBool,
    /// `None` while it is off. Locked while files are made, renamed and synced: never by who answers clients.
    files: Mutex<Option<Files>>,
    /// Locked with the log or without it, never before it.
    switch: Mutex<Option<Switch>>,
    progress: Mutex<Progress>,
    moved: Condvar,
    rewrites: Mutex<Rewrites>,
    /// Bytes of the files before the increment that is written to.
    size_before: AtomicU64,
    base_size: AtomicU64,
    stopping: AtomicBool,
    /// Microseconds that each write waits before it (DEBUG AOF-FLUSH-SLEEP).
    pub(crate) flush_sleep: AtomicU64,
    /// The writer is to look what is wanted.
    asked: Notify,
}

impl AppendOnly {
    pub(super) fn new(
        engine: Arc<Engine>,
        config: Arc<Config>,
        log: Arc<SharedLog>,
        (commit_point, synced_further): (Arc<CommitPoint>, Arc<Notify>),
    ) -> Arc<Self> {
        let rewrites = Rewrites {
            running: None,
            scheduled: false,
            last_ok: true,
            last_try: None,
            last_took: None,
            done: 0,
            failed_in_a_row: 0,
            size_after: 0,
        };
        Arc::new(Self {
            engine,
            config,
            log,
            commit_point,
            synced_further,
            on: AtomicBool::new(false),
            files: Mutex::default(),
            switch: Mutex::default(),
            progress: Mutex::default(),
            moved: Condvar::new(),
            rewrites: Mutex::new(rewrites),
            size_before: AtomicU64::new(0),
            base_size: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            flush_sleep: AtomicU64::new(0),
            asked: Notify::new(),
        })
    }

    /// Whether it is on.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// The configuration may have changed.
    pub(crate) fn configure(&self) {
        self.settle_replies();
        self.asked.notify_one();
    }

    /// Has replies to writes wait, or not: always under `always`, and while the disk cannot keep up. Who is far behind
    /// would fall off the log, and the file end there.
    fn settle_replies(&self) {
        let behind = self.is_on().then(|| {
            let end = self.log.lock().position().offset;
            let progress = self.progress.lock();
            if progress.lost { 0 } else { end.0.saturating_sub(progress.written.0) }
        });
        let most = if self.commit_point.is_required() { MOST_BEHIND / 4 } else { MOST_BEHIND };
        let waits = behind.is_some_and(|behind| self.policy() == Policy::Always || behind > most);
        self.commit_point.require(waits);
    }

    fn policy(&self) -> Policy {
        match self.config.text("appendfsync").as_str() {
            "always" => Policy::Always,
            "no" => Policy::Never,
            _ => Policy::EverySecond,
        }
    }

    fn stamps(&self) -> bool {
        self.config.switch("aof-timestamp-enabled")
    }

    /// Whether a rewrite has the disk to itself (`no-appendfsync-on-rewrite`).
    fn spares_the_disk(&self) -> bool {
        self.config.switch("no-appendfsync-on-rewrite") && self.rewrites.lock().running.is_some()
    }

    /// Follows the log from now on: after what `files` have, or from the next switch on.
    fn start(self: &Arc<Self>, files: Files, file: Option<std::fs::File>) -> io::Result<()> {
        self.stopping.store(false, Ordering::Release);
        self.log.keep_open(true);
        let (base, all) = files.sizes();
        *self.files.lock() = Some(files);
        self.on.store(true, Ordering::Release);
        self.base_size.store(base, Ordering::Relaxed);
        let increment = file.as_ref().map_or(Ok(0), |file| file.metadata().map(|data| data.len()))?;
        self.size_before.store(all - increment.min(all), Ordering::Relaxed);
        self.rewrites.lock().size_after = all;
        *self.progress.lock() =
            Progress { running: true, lost: file.is_none(), increment, ..Progress::default() };
        let writer = Writer::new(self.clone(), file)?;
        let shared = self.clone();
        std::thread::Builder::new().name("aof".to_owned()).spawn(move || {
            writer.run();
            shared.progress.lock().running = false;
            shared.moved.notify_all();
        })?;
        self.configure();
        Ok(())
    }

    /// Stops following the log (`appendonly no`). What is written is brought to the disk.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.asked.notify_one();
        let mut progress = self.progress.lock();
        self.moved.wait_while(&mut progress, |progress| progress.running);
        *progress = Progress::default();
        drop(progress);
        self.log.keep_open(false);
        self.on.store(false, Ordering::Release);
        *self.files.lock() = None;
        self.configure();
        // Whoever waited for the file waits no longer.
        self.commit_point.publish(self.log.lock().position().offset);
        self.engine.settings.set_gate(Gate::AOF_FAILED, false);
    }

    /// Whether its files, and what is to be written yet, are all of the data.
    fn is_whole(&self) -> bool {
        !self.progress.lock().lost && self.files.lock().as_ref().is_none_or(Files::is_whole)
    }

    /// Brings all that is in the log to the disk. An error says that this is not possible.
    fn flush(&self) -> Result<(), String> {
        let end = self.log.lock().position().offset;
        let mut progress = self.progress.lock();
        if !progress.running {
            return Ok(());
        }
        drop(progress);
        self.stopping.store(true, Ordering::Release);
        self.asked.notify_one();
        progress = self.progress.lock();
        while progress.running && progress.synced < end && progress.error.is_none() {
            self.moved.wait_for(&mut progress, LOOK);
        }
        match &progress.error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn is_switch_pending(&self) -> bool {
        self.switch.lock().is_some()
    }

    /// Has the writer go on in another increment from here on. Called at a cut; `db` is what a master's stream has
    /// selected.
    fn switch_at_cut(&self, log: &mut Log, db: Option<u16>) {
        let position = log.position();
        let (cursor, anchor) = (log.add_own_cursor(position.offset), log.add_own_cursor(position.offset));
        let switch = Switch { at: position.offset, history: position.id, cursor, anchor, db };
        if let Some(before) = self.switch.lock().replace(switch) {
            log.remove_cursor(before.cursor);
            log.remove_cursor(before.anchor);
        }
        self.asked.notify_one();
    }

    /// A file for what follows; `continues` what the files have so far, or does not.
    fn begin_increment(&self, continues: bool) -> io::Result<(String, std::fs::File)> {
        let mut files = self.files.lock();
        let files = files.as_mut().ok_or_else(|| io::Error::other("the file is off"))?;
        if !continues {
            files.begin_anew();
        }
        let before = files.sizes().1;
        let begun = files.begin_increment()?;
        self.size_before.store(before, Ordering::Relaxed);
        Ok(begun)
    }

    fn switched(&self, name: String) {
        let mut progress = self.progress.lock();
        progress.current = name;
        progress.switches += 1;
        progress.lost = false;
        self.moved.notify_all();
    }

    fn lose(&self) {
        self.progress.lock().lost = true;
        self.rewrites.lock().scheduled = true;
    }

    fn publish(&self, written: ReplOffset, synced: ReplOffset, increment: u64) {
        let mut progress = self.progress.lock();
        (progress.written, progress.synced, progress.increment) = (written, synced, increment);
        self.moved.notify_all();
        drop(progress);
        self.synced_further.notify_waiters();
        let committed = if self.policy() == Policy::Always { synced } else { written };
        self.commit_point.publish(committed);
    }

    /// Takes note of how a round ended.
    fn report(&self, error: Option<&io::Error>) {
        let error = error.map(ToString::to_string);
        let mut progress = self.progress.lock();
        if progress.error == error {
            return;
        }
        match &error {
            Some(error) => tracing::error!("Error writing to the AOF file: {error}"),
            None => tracing::warn!("AOF write error looks solved. The server can write again."),
        }
        let failed = error.is_some();
        self.engine.settings.aof_error.store(Arc::new(error.clone().unwrap_or_default()));
        progress.error = error;
        drop(progress);
        self.engine.settings.set_gate(Gate::AOF_FAILED, failed);
        self.moved.notify_all();
    }

    /// Up to where this node's log is on its disk; `None` without an append-only file.
    pub(crate) fn synced(&self) -> Option<ReplOffset> {
        self.is_on().then(|| self.progress.lock().synced)
    }

    fn size(&self) -> u64 {
        self.size_before.load(Ordering::Relaxed) + self.progress.lock().increment
    }

    /// The lines of INFO's section Persistence.
    pub(crate) fn info(&self, text: &mut String) {
        use std::fmt::Write;
        let on = self.is_on();
        let pending = self.log.lock().position().offset;
        let rewrites = self.rewrites.lock();
        let ok = |ok: bool| if ok { "ok" } else { "err" }.to_owned();
        let now = time::instant();
        let seconds = |took: Option<Duration>| took.map_or(-1, |took| took.as_secs() as i64).to_string();
        let (error, written) = {
            let progress = self.progress.lock();
            (progress.error.is_some(), progress.written)
        };
        let mut lines = vec![
            ("aof_enabled", u8::from(on).to_string()),
            ("aof_rewrite_in_progress", u8::from(rewrites.running.is_some()).to_string()),
            ("aof_rewrite_scheduled", u8::from(rewrites.scheduled).to_string()),
            ("aof_last_rewrite_time_sec", seconds(rewrites.last_took)),
            ("aof_current_rewrite_time_sec", seconds(rewrites.running.map(|since| now.since(since)))),
            ("aof_last_bgrewrite_status", ok(rewrites.last_ok)),
            ("aof_rewrites", rewrites.done.to_string()),
            ("aof_rewrites_consecutive_failures", rewrites.failed_in_a_row.to_string()),
            ("aof_last_write_status", ok(!error)),
            ("aof_last_cow_size", "0".to_owned()),
        ];
        drop(rewrites);
        if on {
            lines.extend([
                ("aof_current_size", self.size().to_string()),
                ("aof_base_size", self.base_size.load(Ordering::Relaxed).to_string()),
                ("aof_pending_rewrite", "0".to_owned()),
                ("aof_buffer_length", pending.0.saturating_sub(written.0).to_string()),
                ("aof_pending_bio_fsync", "0".to_owned()),
                ("aof_delayed_fsync", "0".to_owned()),
            ]);
        }
        for (name, value) in lines {
            // Writing to a String cannot fail.
            let _ = write!(text, "{name}:{value}\r\n");
        }
    }
}
