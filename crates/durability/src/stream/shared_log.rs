//! The replication log as threads share it: a lock around it, and wakeups when it grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use clock::Millis;
use engine::{AofEffects, Client, EffectLog};
use migration::ControlCommand;
use parking_lot::{Mutex, MutexGuard};
use replication::master_driver::LogLock;
use replication::{CursorId, Log, ReplPosition, StreamEpoch, StreamRange};
use slot_routing::ReplOffset;
use tokio::sync::Notify;

use super::random_repl_id;

/// The replication log with its readers and their wakeups.
#[derive(Debug)]
pub struct SharedLog {
    log: Mutex<Log>,
    /// Mirrors whether the log is open, so that this can be read without the lock.
    is_open: AtomicBool,
    /// Whether the log stays open without replicas, because this node reads it itself.
    is_kept_open: AtomicBool,
    /// Number of replicas that read the log.
    replica_count: AtomicUsize,
    /// Number of slot migrations that read the log.
    migration_count: AtomicUsize,
    /// The clients of the replicas that read the log, each with its cursor. Must be locked before the log.
    readers: Mutex<Vec<(CursorId, Arc<Client>)>>,
    /// Whether any reader waits for the log to grow.
    has_waiters: AtomicBool,
    log_grown: Notify,
    cursor_trimmed: Notify,
    first_write: FirstWriteTime,
}

/// Records the time of the first write after a promotion, for the failover history.
#[derive(Debug, Default)]
struct FirstWriteTime {
    /// Whether the next write is to be recorded. Checked on every write.
    is_watched: AtomicBool,
    /// When the first write happened, in wall clock milliseconds; 0 if it has not happened yet.
    time: AtomicI64,
}

impl SharedLog {
    /// Creates a closed log with a new replication id. While open it retains `capacity` bytes for returning readers.
    pub fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            log: Mutex::new(Log::new(random_repl_id(), capacity)),
            is_open: AtomicBool::new(false),
            is_kept_open: AtomicBool::new(false),
            replica_count: AtomicUsize::new(0),
            migration_count: AtomicUsize::new(0),
            readers: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            log_grown: Notify::new(),
            cursor_trimmed: Notify::new(),
            first_write: FirstWriteTime::default(),
        })
    }

    /// Locks the log. Use the methods of this type to open or close the log or to adopt a position, because they also
    /// update the shared state.
    pub fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    /// Opens the log if it is closed. The caller must have locked all slots and the log.
    pub fn open(&self, log: &mut Log) {
        if !log.is_open() {
            log.open(random_repl_id());
            self.is_open.store(true, Ordering::Release);
        }
    }

    pub(crate) fn adopt_position(&self, position: ReplPosition) {
        self.log.lock().adopt_history(position);
        self.is_open.store(true, Ordering::Release);
        self.wake();
    }

    /// Adopts the position of loaded data, see [`Log::adopt_loaded_history`]. Later entries get a new replication id.
    pub fn adopt_loaded_history(&self, position: ReplPosition) {
        self.log.lock().adopt_loaded_history(position, random_repl_id());
        self.is_open.store(true, Ordering::Release);
        self.wake();
    }

    /// Requests that the time of this node's next write be recorded.
    pub fn watch_first_write(&self) {
        self.first_write.is_watched.store(true, Ordering::Release);
    }

    /// Takes the recorded time of the first write. `None` if no write has happened since [`Self::watch_first_write`].
    pub fn take_first_write(&self) -> Option<Millis> {
        let first = &self.first_write.time;
        let came = first.load(Ordering::Acquire) != 0;
        came.then(|| Millis(first.swap(0, Ordering::AcqRel)))
    }

    fn record_first_write(&self) {
        let FirstWriteTime { is_watched: watched, time: at } = &self.first_write;
        if watched.load(Ordering::Relaxed) && watched.swap(false, Ordering::AcqRel) {
            at.store(process::time::now().0, Ordering::Release);
        }
    }

    /// Sets whether the log stays open without replicas. The append-only file requires this.
    pub(crate) fn set_kept_open(&self, is_kept_open: bool) {
        self.is_kept_open.store(is_kept_open, Ordering::Release);
    }

    /// Returns whether the log stays open without replicas.
    pub fn is_kept_open(&self) -> bool {
        self.is_kept_open.load(Ordering::Acquire) || self.migration_count.load(Ordering::Acquire) > 0
    }

    /// Records how many replicas read the log. Without any reader the log may be closed.
    pub fn set_replica_count(&self, count: usize) {
        self.replica_count.store(count, Ordering::Relaxed);
    }

    /// Registers a replica's client as a reader until the guard is dropped.
    pub fn add_reader(&self, cursor: CursorId, client: &Arc<Client>) -> RegisteredReader<'_> {
        self.readers.lock().push((cursor, client.clone()));
        RegisteredReader { log: self, cursor }
    }

    fn publish_unsent_bytes(&self) {
        let readers = self.readers.lock();
        if readers.is_empty() {
            return;
        }
        let log = self.log.lock();
        for (cursor, client) in readers.iter() {
            if let Ok(bytes) = log.unread_bytes(*cursor) {
                client.set_unsent_log_bytes(bytes);
            }
        }
    }

    /// Counts a slot migration as a reader until [`Self::end_migration`].
    pub fn begin_migration(&self) {
        self.migration_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the registration by [`Self::begin_migration`].
    pub fn end_migration(&self) {
        self.migration_count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Closes the log ([`Log::close`]), so that later commands are not recorded.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        self.log.lock().close();
    }

    /// Appends commands that no client has sent ([`Log::append`]), such as the start of an import.
    pub fn append(&self, db: u16, commands: &[u8]) {
        self.append_and_wake(|log| log.append(db, commands));
    }

    /// Appends a control command and wakes readers, see [`Log::append_control`].
    pub fn append_control(&self, bytes: &[u8]) -> ReplOffset {
        self.append_and_wake(|log| log.append_control(bytes))
    }

    /// Appends bytes of the master's stream and wakes readers, see [`Log::append_stream`].
    pub fn append_stream(&self, stream_epoch: StreamEpoch, bytes: &[u8]) {
        let taken = self.append_and_wake(|log| log.append_stream(stream_epoch, bytes));
        assert!(taken, "what was applied in the stream's turn is logged in it");
    }

    fn append_and_wake<R>(&self, append: impl FnOnce(&mut Log) -> R) -> R {
        let mut log = self.log.lock();
        let appended = append(&mut log);
        let fell_off = log.take_lost_cursor_flag();
        drop(log);
        if fell_off {
            self.cursor_trimmed.notify_one();
        }
        self.wake();
        appended
    }

    /// Waits until the log has dropped bytes that a reader has not read, so that its cursor became invalid.
    pub async fn wait_for_trimmed_cursor(&self) {
        self.cursor_trimmed.notified().await;
    }

    /// Asks all replicas to acknowledge their offsets.
    pub fn request_acknowledgements(&self) {
        self.append_control(&ControlCommand::AckRequested.to_resp());
    }

    /// Wakes all waiting readers after a change other than growth of the log, such as a new history.
    pub fn wake_readers(&self) {
        self.wake();
    }

    fn wake(&self) {
        if self.has_waiters.swap(false, Ordering::AcqRel) {
            self.log_grown.notify_waiters();
        }
    }

    /// Waits until `read` returns a value. The log must not be locked by the caller, since `read` may lock it.
    pub async fn wait_for_growth<T>(&self, mut read: impl FnMut() -> Option<T>) -> T {
        loop {
            let grown = self.log_grown.notified();
            tokio::pin!(grown);
            // This order avoids lost wakeups: register, set the flag, then check.
            grown.as_mut().enable();
            self.has_waiters.store(true, Ordering::Release);
            if let Some(found) = read() {
                return found;
            }
            grown.await;
        }
    }
}

/// Removes a reader from the log's list of readers on drop.
#[derive(Debug)]
pub struct RegisteredReader<'a> {
    log: &'a SharedLog,
    cursor: CursorId,
}

impl Drop for RegisteredReader<'_> {
    fn drop(&mut self) {
        self.log.readers.lock().retain(|(cursor, _)| *cursor != self.cursor);
    }
}

impl LogLock for &SharedLog {
    fn with_log<R>(&mut self, action: impl FnOnce(&mut Log) -> R) -> R {
        action(&mut self.lock())
    }
}

/// Lets the engine append to the log and query it.
#[derive(Debug)]
pub struct EngineLogHandle(pub Arc<SharedLog>);

impl EffectLog for EngineLogHandle {
    fn has_readers(&self) -> bool {
        self.0.is_open.load(Ordering::Acquire)
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        self.0.record_first_write();
        self.0.append_and_wake(|log| log.append(db, commands))
    }

    fn append_with_aof_versions(&self, db: u16, commands: &[u8], versions: &[AofEffects]) -> ReplOffset {
        self.0.record_first_write();
        let range = |version: &AofEffects| StreamRange {
            range: version.range.clone(),
            commands: version.commands.clone(),
        };
        let ranges: Vec<StreamRange> = versions.iter().map(range).collect();
        self.0.append_and_wake(|log| log.append_with_file_versions(db, commands, &ranges))
    }

    fn retained_bytes(&self) -> usize {
        if self.has_readers() { self.0.lock().memory_beyond_capacity() as usize } else { 0 }
    }

    fn update_unsent_output(&self) {
        self.0.publish_unsent_bytes();
    }

    fn replica_count(&self) -> usize {
        self.0.replica_count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
