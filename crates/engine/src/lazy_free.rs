//! Large values on their way out. Taking one apart takes time that no client should wait, so the shell does
//! it on a thread of its own.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyspace::{RemovedValue, Table};
use parking_lot::Mutex;

/// Smaller ones are dropped where they are: about what handing them over costs.
const LARGE: usize = 64 << 10;

/// Tables with less than this in all are as good as nothing.
const LARGE_TABLES: usize = 16 * LARGE;

#[derive(Debug)]
enum Waste {
    Value(RemovedValue),
    Tables(Vec<Table>),
}

impl Waste {
    /// About how much memory dropping it gives back.
    fn bytes(&self) -> usize {
        match self {
            Self::Value(dropped) => dropped.bytes(),
            Self::Tables(tables) => tables.iter().map(Table::estimated_bytes).sum(),
        }
    }

    /// As how many values it counts.
    fn values(&self) -> usize {
        match self {
            Self::Value(_) => 1,
            Self::Tables(tables) => tables.iter().map(Table::len).sum(),
        }
    }
}

/// The callback that has [`LazyFreeQueue::empty`] called soon.
type Ring = Box<dyn Fn() + Send + Sync>;

/// The lazy-free queue: values and tables that wait to be dropped.
#[derive(Default)]
pub struct LazyFreeQueue {
    waiting: Mutex<Vec<Waste>>,
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    freed: AtomicU64,
    ring: OnceLock<Ring>,
}

impl fmt::Debug for LazyFreeQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyFreeQueue").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl LazyFreeQueue {
    /// Lets go of a value that left its table: in the background if it is large and that is to be (`lazy`).
    pub(crate) fn discard(&self, dropped: RemovedValue, lazy: bool) {
        if lazy && Self::is_large(&dropped) {
            self.throw(Waste::Value(dropped));
        }
    }

    /// Whether it is so large that it matters which thread drops it.
    #[inline]
    pub(crate) fn is_large(dropped: &RemovedValue) -> bool {
        dropped.bytes() >= LARGE
    }

    /// Lets go of what a flush took out; gives it back if it is so little that the caller may drop it.
    pub(crate) fn discard_tables(&self, tables: Vec<Table>) -> Vec<Table> {
        if tables.iter().map(Table::estimated_bytes).sum::<usize>() < LARGE_TABLES {
            return tables;
        }
        self.throw(Waste::Tables(tables));
        Vec::new()
    }

    fn throw(&self, waste: Waste) {
        self.pending.fetch_add(waste.values(), Ordering::Relaxed);
        self.pending_bytes.fetch_add(waste.bytes(), Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        waiting.push(waste);
        let first = waiting.len() == 1;
        drop(waiting);
        if first && let Some(ring) = self.ring.get() {
            ring();
        }
    }

    /// Has `ring` called, from then on, whenever something lies in the empty lazy-free queue: a client that overwrites
    /// large values fills it as fast as memory is written. To be called once.
    ///
    /// # Panics
    /// If it was called before.
    pub fn call_when_filled(&self, ring: impl Fn() + Send + Sync + 'static) {
        assert!(self.ring.set(Box::new(ring)).is_ok(), "one shell empties the queue");
    }

    /// How many values wait or are being dropped.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// About how much memory they take. What is being dropped counts until that is done.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// How many have been dropped.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Drops what waits. Takes as long as it takes.
    pub fn empty(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for waste in waiting {
            let (values, bytes) = (waste.values(), waste.bytes());
            drop(waste);
            self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.pending.fetch_sub(values, Ordering::Relaxed);
            self.freed.fetch_add(values as u64, Ordering::Relaxed);
        }
    }
}
