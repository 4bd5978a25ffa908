//! Making room: keys that go because more memory is in use than may be (`maxmemory`).
//!
//! Before each command its thread asks how much is in use ([`crate::budget`]). If that is too much, it evicts keys,
//! with no slot held, until it is not, or for as long as `maxmemory-eviction-tenacity` lets it; then the command goes
//! on, and so does eviction, before the next command and by the shell's timer. Where nothing can be evicted, commands
//! that need memory are refused ([`Gate::OUT_OF_MEMORY`]).
//!
//! Which key goes: as in Redis ("Using Redis as an LRU cache"), a few keys are looked at, chosen by chance, and the
//! best of them and of those that were looked at before (a list of sixteen) goes, the one that was not used for
//! longest, or least often, or expires first. A slot is chosen by how many keys it has, then keys within it, so that
//! looking at five takes one lock. Each thread has a list of its own, so threads do not wait for each other; and a key
//! that was used since it came into the list is not taken for what it was.
//!
//! An evicted key is logged as deleted before the command that needed the room.

use clock::Millis;
use config::EvictionPolicy;
use keyspace::{Found, Keyspace, ScanItem, Table, Usage};
use slot_routing::Slot;
use smallvec::SmallVec;

use crate::engine::{Engine, Worker};
use crate::notifications::Class;
use crate::settings::{Gate, Lazy};
use crate::stats::add;

/// Of so many keys one is looked at, before another slot is chosen.
const MANY: usize = 2;
/// How many keys are remembered that were not the best.
const REMEMBERED: usize = 16;
const SLOTS: usize = 16384;
/// Slots whose keys are counted together.
const BLOCK: usize = 128;
/// Slots are chosen so often before it is asked again how many keys each has.
const CHOICES: usize = 2048;
/// So many rounds that find nothing mean that there is nothing.
const ROUNDS: usize = 64;
/// How long one command makes room at most, in microseconds, at the usual tenacity.
const USUAL_MICROS: f64 = 500.0;

/// Which keys go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The key that was not used for longest.
    Lru,
    /// The key that was used least often.
    Lfu,
    /// Any key.
    Random,
    /// The key that expires first.
    Ttl,
}

/// `maxmemory-policy`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Which keys go first; `None`: none does.
    pub order: Option<Order>,
    /// Only keys that expire.
    pub volatile: bool,
}

/// All policies, as the configuration has them.
pub(crate) const POLICIES: [(EvictionPolicy, Policy); 8] = [
    (EvictionPolicy::NoEviction, Policy { order: None, volatile: false }),
    (EvictionPolicy::AllKeysLru, Policy { order: Some(Order::Lru), volatile: false }),
    (EvictionPolicy::AllKeysLfu, Policy { order: Some(Order::Lfu), volatile: false }),
    (EvictionPolicy::AllKeysRandom, Policy { order: Some(Order::Random), volatile: false }),
    (EvictionPolicy::VolatileLru, Policy { order: Some(Order::Lru), volatile: true }),
    (EvictionPolicy::VolatileLfu, Policy { order: Some(Order::Lfu), volatile: true }),
    (EvictionPolicy::VolatileRandom, Policy { order: Some(Order::Random), volatile: true }),
    (EvictionPolicy::VolatileTtl, Policy { order: Some(Order::Ttl), volatile: true }),
];

/// The state of memory against its limit, as a command that needs memory finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// No more is in use than may be.
    Enough,
    /// More is, and eviction goes on.
    Evicting,
    /// More is, and nothing can be evicted.
    None,
}

/// A key that may go.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    /// The greater, the sooner it goes.
    merit: u64,
    slot: Slot,
    db: u16,
    key: Vec<u8>,
}

/// The keys that one thread has sampled and that may go.
#[derive(Debug, Default)]
pub(crate) struct Evictor {
    /// In rising order of merit.
    candidates: Vec<Candidate>,
    policy: Option<Policy>,
    slots: Slots,
}

/// Slots, to be chosen by how many keys they have. What is remembered of them takes a kilobyte, since the smallest
/// cache pays for it too.
#[derive(Debug)]
struct Slots {
    /// How many keys the blocks of slots up to each have.
    sums: [u64; SLOTS / BLOCK],
    chosen: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self { sums: [0; SLOTS / BLOCK], chosen: 0 }
    }
}

impl Slots {
    /// A slot with keys, those with many more often; `None` if none has any.
    fn choose(&mut self, keyspace: &Keyspace, volatile: bool, random: u64) -> Option<Slot> {
        let keys_in = |number: usize| {
            Slot::new(number as u16).map_or(0, |slot| keys_of(keyspace, slot, volatile) as u64)
        };
        if self.chosen == 0 {
            let mut sum = 0;
            for (block, sums) in self.sums.iter_mut().enumerate() {
                sum += (block * BLOCK..(block + 1) * BLOCK).map(keys_in).sum::<u64>();
                *sums = sum;
            }
        }
        // Where there are no keys, the next may be there a moment later: they are counted again then.
        let at = random.checked_rem(*self.sums.last()?)?;
        self.chosen = (self.chosen + 1) % CHOICES;
        let block = self.sums.partition_point(|sum| *sum <= at);
        let mut left = at - block.checked_sub(1).map_or(0, |before| self.sums[before]);
        let slots = block * BLOCK..(block + 1) * BLOCK;
        // Keys may have gone since they were counted: then it is the block's last.
        let last = slots.end - 1;
        let found = slots.into_iter().find(|&number| {
            let keys = keys_in(number);
            let here = left < keys;
            left = left.saturating_sub(keys);
            here
        });
        Slot::new(found.unwrap_or(last) as u16)
    }
}

fn keys_of(keyspace: &Keyspace, slot: Slot, volatile: bool) -> usize {
    if volatile { keyspace.volatile_in_slot(slot) } else { keyspace.keys_in_slot(slot) }
}

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

    /// Makes room if more memory is in use than may be. The caller holds no slot.
    pub fn make_room(&self, worker: &mut Worker, now: Millis) -> Room {
        worker.tell_heap(&self.budget);
        let room = match self.budget.excess(&self.lazy_free) {
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
        let evicting = self.settings.evicting();
        if !self.may_evict(self.settings.gate()) {
            return Room::Enough;
        }
        if evicting.policy.order.is_none() {
            return Room::None;
        }
        let begun = (worker.nanos)();
        let mut evictor = std::mem::take(&mut worker.evictor);
        let mut room = Room::Enough;
        while self.budget.excess(&self.lazy_free) > 0 {
            if !self.evict_one(worker, &mut evictor, evicting.policy, evicting.samples, now) {
                room = Room::None;
                break;
            }
            worker.tell_heap(&self.budget);
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
    fn evict_one(
        &self,
        worker: &mut Worker,
        evictor: &mut Evictor,
        policy: Policy,
        samples: usize,
        now: Millis,
    ) -> bool {
        if evictor.policy.replace(policy) != Some(policy) {
            evictor.candidates.clear();
            evictor.slots = Slots::default();
        }
        for _ in 0..ROUNDS {
            // Most likely it goes, unless a better one is found.
            if let Some(best) = evictor.candidates.last() {
                self.keyspace.touch_slot(&self.keyspace.key_in(best.slot, &best.key));
            }
            if !self.look_at_some(worker, evictor, policy, samples, now) {
                return false;
            }
            while let Some(best) = evictor.candidates.pop() {
                if self.evict(worker, &best, policy, now) {
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
        policy: Policy,
        samples: usize,
        now: Millis,
    ) -> bool {
        let mut seen = 0;
        while seen < samples {
            let random = worker.random.number();
            let Some(slot) = evictor.slots.choose(&self.keyspace, policy.volatile, random) else {
                return !evictor.candidates.is_empty();
            };
            let before = seen;
            let guard = self.keyspace.lock(slot);
            let databases = guard.databases().filter_map(|db| Some((db, guard.table_if(db)?)));
            for (db, table) in databases {
                let merit = |item: &ScanItem<'_>| self.merit(policy, item.usage, item.expiry, now);
                sample(table, policy.volatile, samples - seen.min(samples - 1), worker, |item| {
                    seen += 1;
                    remember(&mut evictor.candidates, merit(&item), slot, db, item.key);
                });
            }
            if seen == before {
                // The counts of keys by which slots are chosen are outdated.
                evictor.slots.chosen = 0;
                break;
            }
        }
        true
    }

    /// How much a key is one to go.
    fn merit(&self, policy: Policy, usage: Usage, expiry: Option<Millis>, now: Millis) -> u64 {
        match policy.order {
            Some(Order::Lru) => usage.idle_seconds(now),
            Some(Order::Lfu) => {
                let settings =
                    self.settings.lfu().unwrap_or(keyspace::LfuSettings { log_factor: 10, decay_minutes: 1 });
                u64::from(u8::MAX - usage.frequency(now, settings))
            }
            Some(Order::Ttl) => expiry.map_or(0, |at| u64::MAX / 2 - at.0.max(0) as u64),
            Some(Order::Random) | None => 0,
        }
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
        let (Found::Live(place) | Found::Expired(place)) = table.find(&hashed, now) else { return false };
        let (usage, expiry) = (table.usage(place), table.expiry(place));
        if policy.volatile && expiry.is_none() || self.merit(policy, usage, expiry, now) < merit {
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
    worker: &mut Worker,
    mut visit: impl FnMut(ScanItem<'_>),
) {
    let keys = if volatile { table.volatile_len() } else { table.len() };
    let randoms: SmallVec<[u64; 8]> =
        (0..count.min(keys.div_ceil(MANY))).map(|_| worker.random.number()).collect();
    if !volatile {
        table.sample(&randoms, &mut visit);
        return;
    }
    randoms.into_iter().filter_map(|random| table.random_volatile(random)).for_each(visit);
}

/// Puts a key among those that may go, if it is one of the best.
fn remember(candidates: &mut Vec<Candidate>, merit: u64, slot: Slot, db: u16, key: &[u8]) {
    let is_same = |known: &Candidate| (known.slot, known.db) == (slot, db) && known.key == key;
    if let Some(known) = candidates.iter().position(is_same) {
        candidates.remove(known);
    } else if candidates.len() == REMEMBERED {
        if candidates[0].merit >= merit {
            return;
        }
        candidates.remove(0);
    }
    let place = candidates.partition_point(|known| known.merit < merit);
    candidates.insert(place, Candidate { merit, slot, db, key: key.to_vec() });
}

/// How long a command makes room at most, with this tenacity (0 to 100), in nanoseconds.
pub(crate) fn time_limit(tenacity: u32) -> u64 {
    let micros = match tenacity {
        0..=10 => USUAL_MICROS / 10.0 * f64::from(tenacity),
        11..100 => USUAL_MICROS * 1.15f64.powi(tenacity as i32 - 10),
        _ => return u64::MAX,
    };
    (micros * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_evicts_for_as_long_as_its_tenacity_lets_it() {
        assert_eq!([0, 5, 10].map(time_limit), [0, 250_000, 500_000]);
        assert!((120_000_000_000..130_000_000_000).contains(&time_limit(99)), "two minutes");
        assert_eq!(time_limit(100), u64::MAX);
    }
}
