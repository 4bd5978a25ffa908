//! The memory that clients take together, and the limit on it (`maxmemory-clients`).
//!
//! A client's memory is published piece by piece in its [`Client`]. While there is a limit, [`Clients::recount`] brings
//! the sum up to date: each session does so for its own client before each command and at the end of each batch, and the
//! shell for all clients many times a second. Above the limit the largest clients are evicted: closed without the replies
//! that wait for them. The memory of an evicted client counts neither for this limit nor for `maxmemory`, since its own
//! thread is about to give it back: clients go before keys do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{Client, ClientFlags, ClientKind, Clients, CutOff};

/// The memory of all clients against its limit. Sums wrap around: a client that grows and one that shrinks may be
/// counted in any order.
#[derive(Debug, Default)]
pub(super) struct MemoryOfAll {
    /// Bytes that normal clients and subscribers may take together; 0 is no limit.
    limit: AtomicUsize,
    /// Bytes that they take, evicted ones included until they are gone.
    used: AtomicUsize,
    /// Bytes of the clients that were evicted and are not gone yet.
    closing: AtomicUsize,
    /// Clients evicted since the start.
    evicted: AtomicU64,
    /// Held by the thread that evicts.
    evicting: Mutex<()>,
}

/// The share of one client in [`MemoryOfAll`], and parts of its memory that are published while it runs.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    /// Bytes of the replies of the batch that runs, which are not in the connection's output yet.
    pub(crate) replies: AtomicUsize,
    /// Bytes of the messages that wait in the inbox.
    pub(crate) inbox: AtomicUsize,
    used: AtomicUsize,
    closing: AtomicUsize,
    gone: AtomicBool,
}

impl Client {
    fn counts_for_limit(&self) -> bool {
        matches!(self.kind(), ClientKind::Normal | ClientKind::PubSub)
    }
}

impl Clients {
    /// Sets how many bytes normal clients and subscribers may take together; 0 is no limit.
    pub(crate) fn limit_memory(&self, bytes: usize) {
        self.memory.limit.store(bytes, Ordering::Relaxed);
        self.recount_all();
    }

    /// `maxmemory-clients` in bytes, if there is a limit.
    #[must_use]
    pub fn memory_limit(&self) -> Option<usize> {
        Some(self.memory.limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// How many clients were evicted since the start.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.memory.evicted.load(Ordering::Relaxed)
    }

    /// Bytes of clients that were evicted and are not gone yet.
    pub(crate) fn closing_bytes(&self) -> usize {
        self.memory.closing.load(Ordering::Relaxed)
    }

    /// Brings the sum up to date with what the client takes now, if there is a limit.
    pub fn recount(&self, client: &Client) {
        if self.memory_limit().is_none() || client.is_killed() || !client.counts_for_limit() {
            return;
        }
        let (now, footprint) = (client.bytes(), &client.footprint);
        if footprint.used.load(Ordering::Relaxed) == now {
            return;
        }
        let before = footprint.used.swap(now, Ordering::AcqRel);
        self.memory.used.fetch_add(now.wrapping_sub(before), Ordering::AcqRel);
        if footprint.gone.load(Ordering::Acquire) {
            self.forget_memory(client);
        }
    }

    /// [`Self::recount`] of every client.
    pub fn recount_all(&self) {
        if self.memory_limit().is_some() {
            self.by_id.read().values().for_each(|client| self.recount(client));
        }
    }

    /// Takes a client that is gone out of the sums.
    pub(super) fn forget_memory(&self, client: &Client) {
        let footprint = &client.footprint;
        footprint.gone.store(true, Ordering::Release);
        self.memory.used.fetch_sub(footprint.used.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        self.memory.closing.fetch_sub(footprint.closing.swap(0, Ordering::AcqRel), Ordering::AcqRel);
    }

    /// How many bytes clients take above the limit.
    fn excess(&self) -> usize {
        let Some(limit) = self.memory_limit() else { return 0 };
        let (used, closing) = (self.memory.used.load(Ordering::Relaxed), self.closing_bytes());
        // Wrapped around for a moment: less than nothing.
        let used = used.wrapping_sub(closing).cast_signed().max(0).unsigned_abs();
        used.saturating_sub(limit)
    }

    /// A batch of the client's has ended and its memory is published: counts it, and evicts clients if all take more
    /// than they may.
    pub fn settle(&self, client: &Client) {
        client.footprint.replies.store(0, Ordering::Relaxed);
        self.recount(client);
        self.evict();
    }

    /// Whether clients take more than they may.
    #[inline]
    pub(crate) fn are_over_limit(&self) -> bool {
        self.excess() > 0
    }

    /// Closes clients, the largest first, until the others take no more than the limit. One that said CLIENT NO-EVICT
    /// stays.
    pub fn evict(&self) {
        if self.excess() > 0 {
            self.evict_largest();
        }
    }

    #[cold]
    fn evict_largest(&self) {
        let _evicting = self.memory.evicting.lock();
        let all = self.all();
        let may_go = |client: &&Arc<Client>| {
            client.counts_for_limit() && !client.flags().contains(ClientFlags::NO_EVICT)
        };
        let size = |client: &Arc<Client>| client.footprint.used.load(Ordering::Relaxed);
        let mut sizes: Vec<(usize, &Arc<Client>)> =
            all.iter().filter(may_go).map(|client| (size(client), client)).collect();
        sizes.sort_unstable_by_key(|(bytes, _)| *bytes);
        while self.excess() > 0
            && let Some((_, client)) = sizes.pop()
        {
            let bytes = size(client);
            client.footprint.closing.store(bytes, Ordering::Release);
            self.memory.closing.fetch_add(bytes, Ordering::AcqRel);
            self.memory.evicted.fetch_add(1, Ordering::Relaxed);
            client.cut_off(CutOff::Evicted);
            if client.footprint.gone.load(Ordering::Acquire) {
                self.forget_memory(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::Millis;

    use super::*;
    use crate::clients::Link;

    fn connect(clients: &Clients, output: usize) -> Arc<Client> {
        let client = clients.connect(Link::default(), Millis(0), Box::new(|| {}));
        client.output_bytes.store(output, Ordering::Relaxed);
        clients.recount(&client);
        client
    }

    #[test]
    fn largest_clients_are_evicted_until_the_rest_fits() {
        let clients = Clients::default();
        let early = connect(&clients, 70_000);
        clients.limit_memory(100_000);
        let sizes = [20_000, 60_000, 10_000, 50_000];
        let all: Vec<Arc<Client>> = sizes.into_iter().map(|size| connect(&clients, size)).collect();
        clients.evict();
        let evicted: Vec<bool> = all.iter().map(|client| client.is_evicted()).collect();
        assert_eq!((early.is_evicted(), evicted), (true, vec![false, true, false, false]));
        assert_eq!((clients.evicted(), clients.excess()), (2, 0));
        // Their memory counts as free at once, and is taken out of all sums once they are gone.
        assert!(clients.closing_bytes() >= 130_000);
        for client in [&early, &all[1]] {
            assert!(client.is_killed());
            clients.disconnect(client.id);
        }
        assert_eq!(clients.closing_bytes(), 0);
        let rest: usize = [0, 2, 3].map(|index: usize| all[index].bytes()).into_iter().sum();
        assert_eq!(clients.memory.used.load(Ordering::Relaxed), rest);
    }

    #[test]
    fn clients_that_may_not_be_evicted_count_and_stay() {
        let clients = Clients::default();
        clients.limit_memory(50_000);
        let (kept, other) = (connect(&clients, 60_000), connect(&clients, 100));
        kept.set_flag(ClientFlags::NO_EVICT, true);
        clients.evict();
        assert!(!kept.is_killed() && other.is_evicted());
    }
}
