//! The log as threads share it: a lock around the pure one, and the way to wait for it to grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use clock::Millis;
use engine::EffectLog;
use parking_lot::{Mutex, MutexGuard};
use replication::serving::LogTurns;
use replication::{Generation, Log, Position};
use slot_routing::ReplOffset;
use tokio::sync::Notify;

use super::random_id;

/// The log and the readers that wait for it.
#[derive(Debug)]
pub struct SharedLog {
    log: Mutex<Log>,
    /// Whether the log is open, readable without the lock.
    wanted: AtomicBool,
    /// It stays open without replicas, too: this node reads it itself.
    kept_open: AtomicBool,
    /// How many replicas read it.
    replicas: AtomicUsize,
    /// How many moves of slots read it.
    moves: AtomicUsize,
    /// Somebody waits for the log to get further.
    sleepers: AtomicBool,
    grown: Notify,
    fell_off: Notify,
    first_write: FirstWrite,
}

/// When the first write came after a promotion, for the record of the failover.
#[derive(Debug, Default)]
struct FirstWrite {
    /// It is waited for; looked at with every write.
    watched: AtomicBool,
    /// By the wall clock; 0: none that was not taken.
    at: AtomicI64,
}

impl SharedLog {
    /// A closed log of a new history; while it is open it keeps `capacity` bytes for readers that come back.
    pub fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::new(Log::new(random_id(), capacity)),
            wanted: AtomicBool::new(false),
            kept_open: AtomicBool::new(false),
            replicas: AtomicUsize::new(0),
            moves: AtomicUsize::new(0),
            sleepers: AtomicBool::new(false),
            grown: Notify::new(),
            fell_off: Notify::new(),
            first_write: FirstWrite::default(),
        })
    }

    /// The log itself. To open, adopt or close it, use the methods here.
    pub fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    /// Opens the log if it is closed. The caller holds every slot and the log's guard.
    pub fn open(&self, log: &mut Log) {
        if !log.is_open() {
            log.open(random_id());
            self.wanted.store(true, Ordering::Release);
        }
    }

    pub(crate) fn adopt(&self, position: Position) {
        self.log.lock().adopt(position);
        self.wanted.store(true, Ordering::Release);
        self.wake();
    }

    /// [`Log::adopt_loaded`], with a new name for what comes next.
    pub fn adopt_loaded(&self, position: Position) {
        self.log.lock().adopt_loaded(position, random_id());
        self.wanted.store(true, Ordering::Release);
        self.wake();
    }

    /// The next write of this node's own is the first since its promotion.
    pub fn watch_first_write(&self) {
        self.first_write.watched.store(true, Ordering::Release);
    }

    /// When the write came that was watched for; told once.
    pub fn take_first_write(&self) -> Option<Millis> {
        let first = &self.first_write.at;
        let came = first.load(Ordering::Acquire) != 0;
        came.then(|| Millis(first.swap(0, Ordering::AcqRel)))
    }

    fn note_write(&self) {
        let FirstWrite { watched, at } = &self.first_write;
        if watched.load(Ordering::Relaxed) && watched.swap(false, Ordering::AcqRel) {
            at.store(process::time::now().0, Ordering::Release);
        }
    }

    /// Says whether the log stays open while it has no replicas.
    pub(crate) fn keep_open(&self, kept: bool) {
        self.kept_open.store(kept, Ordering::Release);
    }

    /// Whether it stays open without replicas.
    pub fn is_kept_open(&self) -> bool {
        self.kept_open.load(Ordering::Acquire) || self.moves.load(Ordering::Acquire) > 0
    }

    /// So many replicas read it.
    pub fn note_replicas(&self, count: usize) {
        self.replicas.store(count, Ordering::Relaxed);
    }

    /// A move of slots reads the log from now on.
    pub fn begin_move(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// It has ended.
    pub fn end_move(&self) {
        self.moves.fetch_sub(1, Ordering::AcqRel);
    }

    /// [`Log::close`]: commands say no more what they did.
    pub fn close(&self) {
        self.wanted.store(false, Ordering::Release);
        self.log.lock().close();
    }

    /// [`Log::append`] of what no command did.
    pub fn append(&self, db: u16, commands: &[u8]) {
        self.append_by(|log| log.append(db, commands));
    }

    /// [`Log::append_control`]
    pub fn append_control(&self, bytes: &[u8]) -> ReplOffset {
        self.append_by(|log| log.append_control(bytes))
    }

    /// [`Log::append_stream`]
    pub fn append_stream(&self, stream: Generation, bytes: &[u8]) {
        let taken = self.append_by(|log| log.append_stream(stream, bytes));
        assert!(taken, "what was applied in the stream's turn is logged in it");
    }

    fn append_by<R>(&self, append: impl FnOnce(&mut Log) -> R) -> R {
        let mut log = self.log.lock();
        let appended = append(&mut log);
        let fell_off = log.take_fell_off();
        drop(log);
        if fell_off {
            self.fell_off.notify_one();
        }
        self.wake();
        appended
    }

    /// Returns when a cursor has fallen off.
    pub async fn cursor_fell_off(&self) {
        self.fell_off.notified().await;
    }

    /// Has every replica say how far it is.
    pub fn ask_for_acknowledgements(&self) {
        self.append_control(b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n");
    }

    /// Has all that wait for the log look again: something else changed that they ask for.
    pub fn look_again(&self) {
        self.wake();
    }

    fn wake(&self) {
        if self.sleepers.swap(false, Ordering::AcqRel) {
            self.grown.notify_waiters();
        }
    }

    /// Waits until `read` says that there is something. `read` is called with the log unlocked.
    pub async fn when_grown<T>(&self, mut read: impl FnMut() -> Option<T>) -> T {
        loop {
            let grown = self.grown.notified();
            tokio::pin!(grown);
            // From here on a wake-up is not lost: first listen, then say so, then look.
            grown.as_mut().enable();
            self.sleepers.store(true, Ordering::Release);
            if let Some(found) = read() {
                return found;
            }
            grown.await;
        }
    }
}

impl LogTurns for &SharedLog {
    fn turn<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R {
        work(&mut self.lock())
    }
}

/// The engine's end of the log.
#[derive(Debug)]
pub struct LogHandle(pub Arc<SharedLog>);

impl EffectLog for LogHandle {
    fn wanted(&self) -> bool {
        self.0.wanted.load(Ordering::Acquire)
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        self.0.note_write();
        self.0.append_by(|log| log.append(db, commands))
    }

    fn bytes_for_readers(&self) -> usize {
        if self.wanted() { self.0.lock().memory_beyond_capacity() as usize } else { 0 }
    }

    fn replicas(&self) -> usize {
        self.0.replicas.load(Ordering::Relaxed)
    }
}
