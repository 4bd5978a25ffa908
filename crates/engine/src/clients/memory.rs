//! Client memory accounting and client eviction (`maxmemory-clients`).
//!
//! Each [`Client`] publishes its memory. While there is a limit, [`Clients::update_memory`] updates the total: each
//! session does so for its client before each command and after each batch, and the server's timer for all clients many
//! times a second. Above the limit the largest clients are evicted, that is closed without their pending replies. An
//! evicted client's memory counts neither for this limit nor for `maxmemory`, since its own thread will free it soon:
//! clients are evicted before keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{Client, ClientFlags, ClientKind, Clients, ForcedClose};

/// Memory of all clients and its limit. Threads add changes in any order, so a sum may wrap around temporarily.
#[derive(Debug, Default)]
pub(super) struct ClientMemoryTotals {
    /// Limit in bytes for normal clients and subscribers together; 0 means unlimited.
    limit_bytes: AtomicUsize,
    /// Total bytes, including evicted clients until they are removed.
    used_bytes: AtomicUsize,
    /// Bytes of evicted clients that are not removed yet.
    closing_bytes: AtomicUsize,
    /// Number of clients evicted since startup.
    evicted_count: AtomicU64,
    /// Held by the thread that evicts clients, so that two threads do not evict for the same excess.
    eviction_lock: Mutex<()>,
}

/// A client's contribution to [`ClientMemoryTotals`], and the parts of its memory that change while a batch runs.
#[derive(Debug, Default)]
pub(crate) struct CountedMemory {
    /// Bytes of the running batch's replies that are not in the connection's output yet.
    pub(crate) reply_bytes: AtomicUsize,
    /// Bytes of messages queued for the client and not taken yet.
    pub(crate) inbox_bytes: AtomicUsize,
    counted_bytes: AtomicUsize,
    counted_closing_bytes: AtomicUsize,
    is_removed: AtomicBool,
}

impl Client {
    fn counts_towards_limit(&self) -> bool {
        matches!(self.kind(), ClientKind::Normal | ClientKind::PubSub)
    }
}

impl Clients {
    /// Sets the limit in bytes for normal clients and subscribers together; 0 means unlimited.
    pub(crate) fn limit_memory(&self, bytes: usize) {
        self.memory.limit_bytes.store(bytes, Ordering::Relaxed);
        self.update_all_memory();
    }

    /// Returns `maxmemory-clients` in bytes, if set.
    #[must_use]
    pub fn memory_limit(&self) -> Option<usize> {
        Some(self.memory.limit_bytes.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// Returns the number of clients evicted since startup.
    #[must_use]
    pub fn evicted_count(&self) -> u64 {
        self.memory.evicted_count.load(Ordering::Relaxed)
    }

    /// Returns the bytes of evicted clients that are not removed yet.
    pub(crate) fn closing_bytes(&self) -> usize {
        self.memory.closing_bytes.load(Ordering::Relaxed)
    }

    /// Updates the total with the client's current memory, if there is a limit.
    pub fn update_memory(&self, client: &Client) {
        if self.memory_limit().is_none() || client.is_killed() || !client.counts_towards_limit() {
            return;
        }
        let (now, footprint) = (client.memory_bytes(), &client.counted_memory);
        if footprint.counted_bytes.load(Ordering::Relaxed) == now {
            return;
        }
        let before = footprint.counted_bytes.swap(now, Ordering::AcqRel);
        self.memory.used_bytes.fetch_add(now.wrapping_sub(before), Ordering::AcqRel);
        if footprint.is_removed.load(Ordering::Acquire) {
            self.remove_memory(client);
        }
    }

    /// Updates the total for all clients.
    pub fn update_all_memory(&self) {
        if self.memory_limit().is_some() {
            self.by_id.read().values().for_each(|client| self.update_memory(client));
        }
    }

    /// Removes a disconnected client from the sums.
    pub(super) fn remove_memory(&self, client: &Client) {
        let footprint = &client.counted_memory;
        footprint.is_removed.store(true, Ordering::Release);
        self.memory.used_bytes.fetch_sub(footprint.counted_bytes.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        self.memory
            .closing_bytes
            .fetch_sub(footprint.counted_closing_bytes.swap(0, Ordering::AcqRel), Ordering::AcqRel);
    }

    /// Returns the bytes by which the clients exceed the limit.
    fn excess_bytes(&self) -> usize {
        let Some(limit) = self.memory_limit() else { return 0 };
        let (used, closing) = (self.memory.used_bytes.load(Ordering::Relaxed), self.closing_bytes());
        // A sum that has wrapped around temporarily counts as zero.
        let used = used.wrapping_sub(closing).cast_signed().max(0).unsigned_abs();
        used.saturating_sub(limit)
    }

    /// Counts the client's memory at the end of a batch, and evicts clients above the limit.
    pub fn update_memory_and_evict(&self, client: &Client) {
        client.counted_memory.reply_bytes.store(0, Ordering::Relaxed);
        self.update_memory(client);
        self.evict_over_limit();
    }

    #[inline]
    pub(crate) fn is_over_limit(&self) -> bool {
        self.excess_bytes() > 0
    }

    /// Closes the largest clients until the others are within the limit. Clients with CLIENT NO-EVICT stay.
    pub fn evict_over_limit(&self) {
        if self.excess_bytes() > 0 {
            self.evict_largest();
        }
    }

    #[cold]
    fn evict_largest(&self) {
        let _evicting = self.memory.eviction_lock.lock();
        let all = self.list();
        let may_go = |client: &&Arc<Client>| {
            client.counts_towards_limit() && !client.flags().contains(ClientFlags::NO_EVICT)
        };
        let size = |client: &Arc<Client>| client.counted_memory.counted_bytes.load(Ordering::Relaxed);
        let mut sizes: Vec<(usize, &Arc<Client>)> =
            all.iter().filter(may_go).map(|client| (size(client), client)).collect();
        sizes.sort_unstable_by_key(|(bytes, _)| *bytes);
        while self.excess_bytes() > 0
            && let Some((_, client)) = sizes.pop()
        {
            let bytes = size(client);
            client.counted_memory.counted_closing_bytes.store(bytes, Ordering::Release);
            self.memory.closing_bytes.fetch_add(bytes, Ordering::AcqRel);
            self.memory.evicted_count.fetch_add(1, Ordering::Relaxed);
            client.force_close(ForcedClose::Evicted);
            if client.counted_memory.is_removed.load(Ordering::Acquire) {
                self.remove_memory(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::Millis;

    use super::*;
    use crate::clients::ConnectionInfo;

    fn connect_client(clients: &Clients, output_bytes: usize) -> Arc<Client> {
        let client = clients.connect(ConnectionInfo::default(), Millis(0), Box::new(|| {}));
        client.output_bytes.store(output_bytes, Ordering::Relaxed);
        clients.update_memory(&client);
        client
    }

    #[test]
    fn largest_clients_are_evicted_until_below_limit() {
        let clients = Clients::default();
        let early = connect_client(&clients, 70_000);
        clients.limit_memory(100_000);
        let sizes = [20_000, 60_000, 10_000, 50_000];
        let all: Vec<Arc<Client>> = sizes.into_iter().map(|size| connect_client(&clients, size)).collect();
        clients.evict_over_limit();
        let evicted: Vec<bool> = all.iter().map(|client| client.is_evicted()).collect();
        assert_eq!((early.is_evicted(), evicted), (true, vec![false, true, false, false]));
        assert_eq!((clients.evicted_count(), clients.excess_bytes()), (2, 0));
        // The memory of evicted clients counts as free immediately, and leaves all sums once they disconnect.
        assert!(clients.closing_bytes() >= 130_000);
        for client in [&early, &all[1]] {
            assert!(client.is_killed());
            clients.disconnect(client.id);
        }
        assert_eq!(clients.closing_bytes(), 0);
        let rest: usize = [0, 2, 3].map(|index: usize| all[index].memory_bytes()).into_iter().sum();
        assert_eq!(clients.memory.used_bytes.load(Ordering::Relaxed), rest);
    }

    #[test]
    fn no_evict_clients_count_but_are_not_evicted() {
        let clients = Clients::default();
        clients.limit_memory(50_000);
        let (kept, other) = (connect_client(&clients, 60_000), connect_client(&clients, 100));
        kept.set_flag(ClientFlags::NO_EVICT, true);
        clients.evict_over_limit();
        assert!(!kept.is_killed() && other.is_evicted());
    }
}
