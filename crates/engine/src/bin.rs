//! Large values on their way out. Taking one apart takes time that no client should wait, so the shell does
//! it on a thread of its own.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyspace::{Dropped, Table};
use parking_lot::Mutex;

/// Smaller ones are dropped where they are: about what handing them over costs.
const LARGE: usize = 64 << 10;

/// Tables with less than this in all are as good as nothing.
const LARGE_TABLES: usize = 16 * LARGE;

#[derive(Debug)]
enum Waste {
    Value(Dropped),
    Tables(Vec<Table>),
}

impl Waste {
    /// About how much memory dropping it gives back.
    fn bytes(&self) -> usize {
        match self {
            Self::Value(dropped) => dropped.bytes(),
            Self::Tables(tables) => tables.iter().map(Table::rough_bytes).sum(),
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

/// Has [`Bin::empty`] called soon.
type Ring = Box<dyn Fn() + Send + Sync>;

/// What waits to be dropped.
#[derive(Default)]
pub struct Bin {
    waiting: Mutex<Vec<Waste>>,
    pending: AtomicUsize,
    pending_bytes: AtomicUsize,
    freed: AtomicU64,
    ring: OnceLock<Ring>,
}

impl fmt::Debug for Bin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bin").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Bin {
    /// Lets go of a value that left its table: in the background if it is large and that is to be (`lazy`).
    pub(crate) fn discard(&self, dropped: Dropped, lazy: bool) {
        if lazy && Self::is_large(&dropped) {
            self.throw(Waste::Value(dropped));
        }
    }

    /// Whether it matters who drops it.
    #[inline]
    pub(crate) fn is_large(dropped: &Dropped) -> bool {
        dropped.bytes() >= LARGE
    }

    /// Lets go of what a flush took out; gives it back if it is so little that the caller may drop it.
    pub(crate) fn discard_tables(&self, tables: Vec<Table>) -> Vec<Table> {
        if tables.iter().map(Table::rough_bytes).sum::<usize>() < LARGE_TABLES {
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

    /// Has `ring` called, from then on, whenever something lies in the empty bin: whoever overwrites large values
    /// fills it as fast as memory is written. Once.
    ///
    /// # Panics
    /// If it was called before.
    pub fn call_when_filled(&self, ring: impl Fn() + Send + Sync + 'static) {
        assert!(self.ring.set(Box::new(ring)).is_ok(), "one shell empties the bin");
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::settings::Lazy;
    use crate::testing::Client;

    #[test]
    fn a_large_value_waits_and_a_small_one_does_not() {
        let mut client = Client::new();
        let value = "v".repeat(100);
        for field in 0..2000 {
            client.call(&["hset", "h", &format!("f{field}"), &value]);
        }
        client.table(&[("hset small f v", ":1"), ("del small", ":1")]);
        assert_eq!(client.engine.bin.pending(), 0);
        client.table(&[("rename h other", "+OK"), ("del h", ":0")]);
        assert_eq!(client.engine.bin.pending(), 0, "a rename drops nothing");
        client.table(&[("set other v", "+OK")]);
        assert_eq!((client.engine.bin.pending(), client.engine.bin.freed()), (1, 0));
        client.engine.bin.empty();
        assert_eq!((client.engine.bin.pending(), client.engine.bin.freed()), (0, 1));
    }

    #[test]
    fn the_bin_is_emptied_as_soon_as_something_lies_in_it() {
        let mut client = Client::new();
        let rung = Arc::new(AtomicUsize::new(0));
        let counter = rung.clone();
        client.engine.bin.call_when_filled(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let value = "v".repeat(1 << 20);
        for rings in 1..4 {
            (0..4).for_each(|_| drop(client.call(&["set", "k", &value])));
            assert_eq!(rung.load(Ordering::Relaxed), rings);
            client.engine.bin.empty();
        }
    }

    /// Each reason that a value goes for has a parameter of its own.
    #[test]
    fn who_drops_a_large_value_is_said_by_reason() {
        let value = "v".repeat(100_000);
        for (reason, commands) in [
            (Lazy::USER_DEL, "del k"),
            (Lazy::SERVER_DEL, "set k other"),
            (Lazy::SERVER_DEL, "rename other k"),
            (Lazy::EXPIRE, "get k"),
        ] {
            for (reasons, pending) in [(Lazy::all() - reason, 0), (reason, 1)] {
                let mut client = Client::new();
                client.engine.settings.set_lazy(reasons);
                client.call(&["set", "k", &value, "px", "100"]);
                client.call(&["set", "other", "v"]);
                client.now.0 += if reason == Lazy::EXPIRE { 200 } else { 0 };
                client.wire(commands);
                assert_eq!(client.engine.bin.pending(), pending, "{commands}, {reasons:?}");
            }
        }
        let mut client = Client::new();
        client.engine.settings.set_lazy(Lazy::empty());
        client.call(&["set", "k", &value]);
        client.wire("unlink k");
        assert_eq!(client.engine.bin.pending(), 1, "UNLINK says what it wants");
        assert!(client.engine.bin.pending_bytes() >= value.len());
        client.engine.bin.empty();
        assert_eq!(client.engine.bin.pending_bytes(), 0);
    }

    #[test]
    fn a_flush_leaves_much_to_the_bin_unless_the_client_waits() {
        let mut client = Client::new();
        let value = "v".repeat(1000);
        for (flush, waiting) in [("flushall", 2000), ("flushdb async", 2000), ("flushall sync", 0)] {
            (0..2000).for_each(|key| drop(client.call(&["set", &format!("k{key}"), &value])));
            client.table(&[("dbsize", ":2000"), (flush, "+OK"), ("dbsize", ":0"), ("get k1", "$-1")]);
            assert_eq!(client.engine.bin.pending(), waiting, "{flush}");
            client.engine.bin.empty();
        }
        assert_eq!((client.engine.bin.pending(), client.engine.bin.freed()), (0, 4000));
        client.table(&[("set k v", "+OK"), ("flushall", "+OK")]);
        assert_eq!(client.engine.bin.pending(), 0, "what is little is dropped at once");
    }
}
