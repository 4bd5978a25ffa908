//! Background freeing of large values. Freeing them on a worker would delay its clients, so a separate thread does it.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyspace::{RemovedValue, Table};
use parking_lot::Mutex;

/// Size in bytes below which a value is freed immediately, which costs about as much as queueing it.
const LARGE_VALUE_BYTES: usize = 64 << 10;

/// Total size in bytes below which tables are freed immediately.
const LARGE_TABLES_BYTES: usize = 16 * LARGE_VALUE_BYTES;

#[derive(Debug)]
enum Garbage {
    Value(RemovedValue),
    Tables(Vec<Table>),
}

impl Garbage {
    /// Returns the approximate memory in bytes that freeing this item releases.
    fn bytes(&self) -> usize {
        match self {
            Self::Value(dropped) => dropped.bytes(),
            Self::Tables(tables) => tables.iter().map(Table::estimated_bytes).sum(),
        }
    }

    /// Returns how many values this item counts as.
    fn value_count(&self) -> usize {
        match self {
            Self::Value(_) => 1,
            Self::Tables(tables) => tables.iter().map(Table::len).sum(),
        }
    }
}

/// Callback that schedules [`LazyFreeQueue::free_all`].
type NonEmptyCallback = Box<dyn Fn() + Send + Sync>;

/// Values and tables waiting to be freed in the background.
#[derive(Default)]
pub struct LazyFreeQueue {
    queue: Mutex<Vec<Garbage>>,
    pending_count: AtomicUsize,
    pending_bytes: AtomicUsize,
    freed_count: AtomicU64,
    non_empty_callback: OnceLock<NonEmptyCallback>,
}

impl fmt::Debug for LazyFreeQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyFreeQueue").field("pending", &self.pending_count).finish_non_exhaustive()
    }
}

impl LazyFreeQueue {
    /// Frees a removed value, in the background if it is large and `lazy` is set.
    pub(crate) fn discard(&self, removed: RemovedValue, lazy: bool) {
        if lazy && Self::is_large(&removed) {
            self.enqueue(Garbage::Value(removed));
        }
    }

    /// Returns whether the value is large enough for background freeing.
    #[inline]
    pub(crate) fn is_large(removed: &RemovedValue) -> bool {
        removed.bytes() >= LARGE_VALUE_BYTES
    }

    /// Queues the tables removed by a flush; returns them if they are small enough for the caller to free.
    pub(crate) fn discard_tables(&self, tables: Vec<Table>) -> Vec<Table> {
        if tables.iter().map(Table::estimated_bytes).sum::<usize>() < LARGE_TABLES_BYTES {
            return tables;
        }
        self.enqueue(Garbage::Tables(tables));
        Vec::new()
    }

    fn enqueue(&self, garbage: Garbage) {
        self.pending_count.fetch_add(garbage.value_count(), Ordering::Relaxed);
        self.pending_bytes.fetch_add(garbage.bytes(), Ordering::Relaxed);
        let mut waiting = self.queue.lock();
        waiting.push(garbage);
        let first = waiting.len() == 1;
        drop(waiting);
        if first && let Some(ring) = self.non_empty_callback.get() {
            ring();
        }
    }

    /// Registers a callback that runs when an item is added to the empty queue, so that freeing starts without delay: a
    /// client that overwrites large values can fill the queue very fast.
    ///
    /// # Panics
    /// If called twice.
    pub fn call_when_non_empty(&self, callback: impl Fn() + Send + Sync + 'static) {
        assert!(self.non_empty_callback.set(Box::new(callback)).is_ok(), "one shell empties the queue");
    }

    /// Returns the number of values waiting or being freed.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending_count.load(Ordering::Relaxed)
    }

    /// Returns the approximate memory of values waiting or being freed.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of values freed so far.
    #[must_use]
    pub fn freed_count(&self) -> u64 {
        self.freed_count.load(Ordering::Relaxed)
    }

    /// Frees everything in the queue. This may take long, so only the background thread calls it.
    pub fn free_all(&self) {
        let waiting = std::mem::take(&mut *self.queue.lock());
        for waste in waiting {
            let (values, bytes) = (waste.value_count(), waste.bytes());
            drop(waste);
            self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.pending_count.fetch_sub(values, Ordering::Relaxed);
            self.freed_count.fetch_add(values as u64, Ordering::Relaxed);
        }
    }
}
