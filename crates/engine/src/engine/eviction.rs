//! Making room: keys that go because more memory is in use than may be (`maxmemory`).
//!
//! Before each command its thread asks how much is in use ([`crate::budget`]). If that is too much, it evicts keys,
//! with no slot held, until it is not, or for as long as `maxmemory-eviction-tenacity` lets it; then the command goes
//! on, and so does eviction, before the next command and by the shell's timer. Where nothing can be evicted, commands
//! that need memory are refused ([`Gate::OUT_OF_MEMORY`]). Which keys go says [`crate::eviction`].
//!
//! An evicted key is logged as deleted before the command that needed the room.

use clock::Millis;
use keyspace::{KeyLookup, ScanItem, Table};
use smallvec::SmallVec;

use super::{Engine, Worker};
use crate::eviction::{Candidate, Evictor, Policy, Room};
use crate::notifications::Class;
use crate::random::Random;
use crate::settings::{Evicting, Gate, Lazy};
use crate::stats::add;

/// Of so many keys one is looked at, before another slot is chosen.
const MANY: usize = 2;
/// So many rounds that find nothing mean that there is nothing.
const ROUNDS: usize = 64;

impl Engine {
    /// Whether this node may evict at all: a replica leaves that to its master, and while writes are paused or data is
    /// loaded nothing changes by itself.
    fn may_evict(&self, gate: Gate) -> bool {
        let replica = gate.contains(Gate::REPLICA) && self.settings.evicting().replica_ignores;
        !replica && !gate.intersects(Gate::PAUSED | Gate::LOADING)
    }

    /// Sets how much memory may be in use; 0 is no limit. The next command finds out what follows from that.
    pub fn limit_memory(&self, bytes: usize) {
        self.budget.set_limit(bytes);
        self.settings.set_gate(Gate::OUT_OF_MEMORY, false);
    }

    /// Sets how much memory clients may take together; 0 is no limit. As in Valkey a limit is at least 128 KB: below
    /// that no client could stay to change it.
    pub(crate) fn limit_client_memory(&self, bytes: usize) {
        const LEAST_CLIENT_LIMIT: usize = 128 * 1024;
        let bytes = if bytes == 0 { 0 } else { bytes.max(LEAST_CLIENT_LIMIT) };
        self.clients.limit_memory(bytes);
        self.budget.watch_clients(bytes > 0);
    }

    /// By how many bytes more is in use than may be.
    pub(crate) fn excess(&self) -> usize {
        self.budget.excess(|| {
            let log = self.log.bytes_for_readers();
            let clients = self.clients.closing_bytes();
            // Several states of Lua with as much as each may have would be more than the limit itself: the rest counts.
            let scripts = self.scripts.lua_bytes().min(scripting::memory_bound(self.budget.limit()));
            keyspace::kept_bytes() + self.lazy_free.pending_bytes() + log + clients + scripts
        })
    }

    /// Takes what the calling thread took of the general allocator and gave back into the account: for a thread that
    /// runs no commands, and gives back much that others took.
    pub fn tell_memory(&self, worker: &mut Worker) {
        if self.budget.is_limited() {
            self.budget.tell(&mut worker.told);
        }
    }

    /// Closes clients if they take more than they may together.
    pub fn evict_clients(&self) {
        self.clients.recount_all();
        self.clients.evict();
    }

    /// Makes room if more memory is in use than may be. The caller holds no slot.
    pub fn make_room(&self, worker: &mut Worker, now: Millis) -> Room {
        self.budget.tell(&mut worker.told);
        let room = match self.excess() {
            0 => Room::Enough,
            _ => self.evict_for_a_while(worker, now),
        };
        self.budget.note_over(room != Room::Enough, worker.nanos);
        self.settings.set_gates(
            Gate::OUT_OF_MEMORY,
            if room == Room::None { Gate::OUT_OF_MEMORY } else { Gate::empty() },
        );
        room
    }

    #[cold]
    fn evict_for_a_while(&self, worker: &mut Worker, now: Millis) -> Room {
        // Before any key goes.
        self.evict_clients();
        if self.excess() == 0 {
            return Room::Enough;
        }
        let evicting = self.settings.evicting();
        if !self.may_evict(self.settings.gate()) {
            return Room::Enough;
        }
        // In import mode the source decides what stays.
        if evicting.policy.order.is_none() || self.settings.gate().contains(Gate::IMPORTING) {
            return Room::None;
        }
        let begun = (worker.nanos)();
        let mut evictor = std::mem::take(&mut worker.evictor);
        let mut room = Room::Enough;
        while self.excess() > 0 {
            if !self.evict_one(worker, &mut evictor, evicting, now) {
                room = Room::None;
                break;
            }
            self.budget.tell(&mut worker.told);
            if (worker.nanos)().saturating_sub(begun) > evicting.nanos {
                room = Room::Evicting;
                break;
            }
        }
        worker.evictor = evictor;
        self.latency.sample("eviction-cycle", now, (worker.nanos)().saturating_sub(begun));
        room
    }

    /// Evicts a key; says whether there was one.
    fn evict_one(&self, worker: &mut Worker, evictor: &mut Evictor, evicting: Evicting, now: Millis) -> bool {
        evictor.follow(evicting.policy);
        for _ in 0..ROUNDS {
            // Most likely it goes, unless a better one is found.
            if let Some(best) = evictor.best() {
                self.keyspace.prefetch_slot(&self.keyspace.key_in(best.slot, &best.key));
            }
            if !self.look_at_some(worker, evictor, evicting, now) {
                return false;
            }
            while let Some(best) = evictor.pop() {
                if self.evict(worker, &best, evicting.policy, now) {
                    return true;
                }
            }
        }
        false
    }

    /// Looks at some keys, chosen by chance; says whether there are any.
    fn look_at_some(
        &self,
        worker: &mut Worker,
        evictor: &mut Evictor,
        evicting: Evicting,
        now: Millis,
    ) -> bool {
        let Evicting { policy, samples, .. } = evicting;
        let (mut seen, lfu) = (0, self.settings.lfu());
        while seen < samples {
            let random = worker.random.number();
            let Some(slot) = evictor.choose_slot(&self.keyspace, policy.volatile, random) else {
                return !evictor.is_empty();
            };
            let before = seen;
            let guard = self.keyspace.lock(slot);
            let databases = guard.databases().into_iter().filter_map(|db| Some((db, guard.table_if(db)?)));
            for (db, table) in databases {
                let merit = |item: &ScanItem<'_>| {
                    policy.merit(self.usage_in(slot, item.usage), item.expiry, lfu, now)
                };
                sample(table, policy.volatile, samples - seen.min(samples - 1), &mut worker.random, |item| {
                    seen += 1;
                    evictor.remember(merit(&item), slot, db, item.key);
                });
            }
            if seen == before {
                evictor.count_again();
                break;
            }
        }
        true
    }

    /// Takes a key out, if it is still there and was not used since it was looked at.
    fn evict(&self, worker: &mut Worker, candidate: &Candidate, policy: Policy, now: Millis) -> bool {
        let Candidate { merit, slot, db, ref key } = *candidate;
        let begun = (worker.nanos)();
        let mut guard = self.keyspace.lock(slot);
        // Asked under the lock: a pause, or a change to a replica, waits for each slot once.
        if !self.may_evict(self.settings.gate()) {
            return false;
        }
        let hashed = self.keyspace.key_in(slot, key);
        let Some(table) = guard.table_if(db) else { return false };
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = table.find(&hashed, now) else {
            return false;
        };
        let (usage, expiry) = (self.usage_in(slot, table.usage(place)), table.expiry(place));
        if policy.volatile && expiry.is_none()
            || policy.merit(usage, expiry, self.settings.lfu(), now) < merit
        {
            return false;
        }
        let dropped = guard.table(db).evict(place, &hashed);
        self.key_gone(db, slot, key, self.settings.deletion(Lazy::EVICTION));
        self.notify(Class::EVICTED, "evicted", db, key);
        drop(guard);
        self.lazy_free.discard(dropped, self.settings.is_lazy(Lazy::EVICTION));
        add(&worker.stats.evicted_keys, 1);
        self.latency.sample("eviction-del", now, (worker.nanos)().saturating_sub(begun));
        true
    }
}

/// Shows `visit` up to `count` keys of a table, of few keys one: the slot was chosen by how many there are, so each key
/// of the server has the same chance.
fn sample(
    table: &Table,
    volatile: bool,
    count: usize,
    random: &mut Random,
    mut visit: impl FnMut(ScanItem<'_>),
) {
    let keys = if volatile { table.volatile_len() } else { table.len() };
    let randoms: SmallVec<[u64; 8]> = (0..count.min(keys.div_ceil(MANY))).map(|_| random.number()).collect();
    if !volatile {
        table.sample(&randoms, &mut visit);
        return;
    }
    randoms.into_iter().filter_map(|random| table.random_volatile(random)).for_each(visit);
}
