//! Large values on their way out. Taking one apart takes time that no client should wait, so the shell does
//! it on a thread of its own.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyspace::Dropped;
use parking_lot::Mutex;

/// Smaller ones are dropped where they are: about what handing them over costs.
const LARGE: usize = 64 << 10;

/// What waits to be dropped.
#[derive(Debug, Default)]
pub struct Bin {
    waiting: Mutex<Vec<Dropped>>,
    pending: AtomicUsize,
    freed: AtomicU64,
}

impl Bin {
    /// Lets go of a value that left its table.
    pub(crate) fn discard(&self, dropped: Dropped) {
        if dropped.bytes() >= LARGE {
            self.waiting.lock().push(dropped);
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many values wait or are being dropped.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// How many have been dropped.
    #[must_use]
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Drops what waits. Takes as long as it takes.
    pub fn empty(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for dropped in waiting {
            drop(dropped);
            self.pending.fetch_sub(1, Ordering::Relaxed);
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
