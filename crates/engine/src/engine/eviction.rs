//! Key eviction when memory use exceeds `maxmemory`.
//!
//! Before each command the worker checks the memory use ([`crate::budget`]). Above the limit it evicts keys, without
//! holding a slot lock, until memory use is below the limit or the time allowed by `maxmemory-eviction-tenacity` is
//! over. Then the command proceeds; eviction continues before the next command and on the server's timer. If nothing
//! can be evicted, commands that need memory are refused ([`NodeFlags::OUT_OF_MEMORY`]). [`crate::eviction`] chooses
//! the keys.
//!
//! The deletion of an evicted key is logged before the command that needed the memory.

use clock::Millis;
use keyspace::{KeyLookup, ScanItem, Table};
use smallvec::SmallVec;

use super::{Engine, Worker};
use crate::eviction::{Candidate, EvictionRule, Evictor, MemoryState};
use crate::notifications::EventClass;
use crate::random::Random;
use crate::settings::{EvictionSettings, LazyFreeReason, NodeFlags};
use crate::stats::add;

/// Sampling moves on to another slot after inspecting 1/SLOT_SAMPLE_DIVISOR of a slot's keys.
const SLOT_SAMPLE_DIVISOR: usize = 2;
/// Number of consecutive rounds without a candidate after which eviction gives up.
const MAX_EMPTY_ROUNDS: usize = 64;

impl Engine {
    /// Returns whether this node may evict keys. A replica leaves eviction to its master, and paused writes and loading
    /// forbid it.
    fn may_evict(&self, node_flags: NodeFlags) -> bool {
        let replica = node_flags.contains(NodeFlags::REPLICA)
            && self.settings.eviction.load().replica_ignores_maxmemory;
        !replica && !node_flags.intersects(NodeFlags::PAUSED | NodeFlags::LOADING)
    }

    /// Sets the memory limit in bytes; 0 means unlimited. It takes effect before the next command.
    pub fn limit_memory(&self, bytes: usize) {
        self.memory.budget.set_limit(bytes);
        self.settings.set_node_flag(NodeFlags::OUT_OF_MEMORY, false);
    }

    /// Sets the limit on the memory of all clients in bytes; 0 means unlimited. As in Valkey, the minimum is 128 KB:
    /// below that no client could stay connected to raise it.
    pub(crate) fn set_client_memory_limit(&self, bytes: usize) {
        const MIN_CLIENT_MEMORY_LIMIT: usize = 128 * 1024;
        let bytes = if bytes == 0 { 0 } else { bytes.max(MIN_CLIENT_MEMORY_LIMIT) };
        self.clients.limit_memory(bytes);
        self.memory.budget.set_clients_limited(bytes > 0);
    }

    /// Returns the bytes by which memory use exceeds the limit.
    pub(crate) fn excess_bytes(&self) -> usize {
        self.memory.budget.excess_bytes(|| {
            let log = self.log.retained_bytes();
            let clients = self.clients.closing_bytes();
            // Together the Lua states may use more than `maxmemory` although each is within its own limit, so only a
            // bounded part of their memory counts.
            let scripts = self
                .scripting
                .scripts
                .lua_bytes()
                .min(scripting::lua_memory_limit(self.memory.budget.limit()));
            keyspace::snapshot_only_bytes() + self.memory.lazy_free.pending_bytes() + log + clients + scripts
        })
    }

    /// Evicts clients if together they exceed `maxmemory-clients`.
    pub fn evict_clients(&self) {
        self.clients.update_all_memory();
        self.clients.evict_over_limit();
    }

    /// Evicts keys if memory use exceeds the limit. The caller must not hold a slot lock.
    pub fn evict_if_over_limit(&self, worker: &mut Worker, now: Millis) -> MemoryState {
        self.memory.budget.report_allocations(&mut worker.reported_allocations);
        let room = match self.excess_bytes() {
            0 => MemoryState::BelowLimit,
            _ => self.evict_until_deadline(worker, now),
        };
        self.memory.budget.record_over_limit(room != MemoryState::BelowLimit, worker.clock_nanos);
        self.settings.set_node_flags(
            NodeFlags::OUT_OF_MEMORY,
            if room == MemoryState::Exhausted { NodeFlags::OUT_OF_MEMORY } else { NodeFlags::empty() },
        );
        room
    }

    #[cold]
    fn evict_until_deadline(&self, worker: &mut Worker, now: Millis) -> MemoryState {
        // Evict clients before keys, since this may already free enough memory.
        self.evict_clients();
        if self.excess_bytes() == 0 {
            return MemoryState::BelowLimit;
        }
        let evicting = self.settings.eviction.load();
        if !self.may_evict(self.settings.node_flags()) {
            return MemoryState::BelowLimit;
        }
        // In import mode the server from which data is imported decides which keys to evict.
        if evicting.policy.order.is_none() || self.settings.node_flags().contains(NodeFlags::IMPORTING) {
            return MemoryState::Exhausted;
        }
        let begun = (worker.clock_nanos)();
        let mut evictor = std::mem::take(&mut worker.evictor);
        let mut room = MemoryState::BelowLimit;
        while self.excess_bytes() > 0 {
            if !self.evict_one(worker, &mut evictor, evicting, now) {
                room = MemoryState::Exhausted;
                break;
            }
            self.memory.budget.report_allocations(&mut worker.reported_allocations);
            if (worker.clock_nanos)().saturating_sub(begun) > evicting.time_limit_nanos {
                room = MemoryState::Evicting;
                break;
            }
        }
        worker.evictor = evictor;
        self.diagnostics.latency.record_if_slow(
            "eviction-cycle",
            now,
            (worker.clock_nanos)().saturating_sub(begun),
        );
        room
    }

    /// Evicts one key; returns whether there was a candidate.
    fn evict_one(
        &self,
        worker: &mut Worker,
        evictor: &mut Evictor,
        settings: EvictionSettings,
        now: Millis,
    ) -> bool {
        evictor.set_policy(settings.policy);
        for _ in 0..MAX_EMPTY_ROUNDS {
            // Another sampled key may turn out to be a better candidate.
            if let Some(best) = evictor.best_candidate() {
                self.keyspace.prefetch_slot(&self.keyspace.key_in_slot(best.slot, &best.key));
            }
            if !self.sample_candidates(worker, evictor, settings, now) {
                return false;
            }
            while let Some(best) = evictor.pop() {
                if self.evict_candidate(worker, &best, settings.policy, now) {
                    return true;
                }
            }
        }
        false
    }

    /// Samples random keys as candidates; returns whether there are any.
    fn sample_candidates(
        &self,
        worker: &mut Worker,
        evictor: &mut Evictor,
        settings: EvictionSettings,
        now: Millis,
    ) -> bool {
        let EvictionSettings { policy, sample_count: samples, .. } = settings;
        let (mut seen, lfu) = (0, self.settings.eviction.lfu());
        while seen < samples {
            let random = worker.random.next_u64();
            let Some(slot) = evictor.choose_slot(&self.keyspace, policy.volatile_only, random) else {
                return !evictor.is_empty();
            };
            let before = seen;
            let guard = self.keyspace.lock(slot);
            let databases =
                guard.databases().into_iter().filter_map(|db| Some((db, guard.existing_table(db)?)));
            for (db, table) in databases {
                let merit = |item: &ScanItem<'_>| {
                    policy.rank(self.memory.interpret_usage(slot, item.usage), item.expiry, lfu, now)
                };
                sample_keys(
                    table,
                    policy.volatile_only,
                    samples - seen.min(samples - 1),
                    &mut worker.random,
                    |item| {
                        seen += 1;
                        evictor.add_candidate(merit(&item), slot, db, item.key);
                    },
                );
            }
            if seen == before {
                evictor.invalidate_counts();
                break;
            }
        }
        true
    }

    /// Removes a key unless it is gone or was used since it was sampled.
    fn evict_candidate(
        &self,
        worker: &mut Worker,
        candidate: &Candidate,
        rule: EvictionRule,
        now: Millis,
    ) -> bool {
        let Candidate { rank: merit, slot, db, ref key } = *candidate;
        let begun = (worker.clock_nanos)();
        let mut guard = self.keyspace.lock(slot);
        // Check while the slot is locked: a thread that starts a pause or a demotion sets the flag and then locks each
        // slot once.
        if !self.may_evict(self.settings.node_flags()) {
            return false;
        }
        let hashed = self.keyspace.key_in_slot(slot, key);
        let Some(table) = guard.existing_table(db) else { return false };
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = table.find(&hashed, now) else {
            return false;
        };
        let (usage, expiry) = (self.memory.interpret_usage(slot, table.usage(place)), table.expiry(place));
        if rule.volatile_only && expiry.is_none()
            || rule.rank(usage, expiry, self.settings.eviction.lfu(), now) < merit
        {
            return false;
        }
        let dropped = guard.table(db).evict(place, &hashed);
        self.log_removed_key(
            db,
            slot,
            key,
            self.settings.lazy_free.deletion_command(LazyFreeReason::EVICTION),
        );
        self.notify(EventClass::EVICTED, "evicted", db, key);
        drop(guard);
        self.memory.lazy_free.discard(dropped, self.settings.lazy_free.is_enabled(LazyFreeReason::EVICTION));
        add(&worker.stats.evicted_keys, 1);
        self.diagnostics.latency.record_if_slow(
            "eviction-del",
            now,
            (worker.clock_nanos)().saturating_sub(begun),
        );
        true
    }
}

/// Passes up to `count` keys of a table to `visit`. Slots are chosen in proportion to their number of keys, so each key
/// of the server is equally likely to be sampled.
fn sample_keys(
    table: &Table,
    volatile_only: bool,
    count: usize,
    random: &mut Random,
    mut visit: impl FnMut(ScanItem<'_>),
) {
    let keys = if volatile_only { table.volatile_len() } else { table.len() };
    let randoms: SmallVec<[u64; 8]> =
        (0..count.min(keys.div_ceil(SLOT_SAMPLE_DIVISOR))).map(|_| random.next_u64()).collect();
    if !volatile_only {
        table.sample(&randoms, &mut visit);
        return;
    }
    randoms.into_iter().filter_map(|random| table.random_volatile_key(random)).for_each(visit);
}
