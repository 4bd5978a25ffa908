//! Which keys go when room is needed (`maxmemory-policy`): the order in which they go, and the list of candidates that
//! each thread keeps. Taking them out is the engine's ([`crate::Engine::make_room`]).
//!
//! As in Redis ("Using Redis as an LRU cache"), a few keys are looked at, chosen by chance, and the best of them and of
//! those that were looked at before (a list of sixteen) goes, the one that was not used for longest, or least often, or
//! expires first. A slot is chosen by how many keys it has, then keys within it, so that looking at five takes one
//! lock. Each thread has a list of its own, so threads do not wait for each other; and a key that was used since it
//! came into the list is not taken for what it was.

use clock::Millis;
use config::EvictionPolicy;
use keyspace::{Keyspace, LfuSettings, Usage};
use slot_routing::Slot;

/// How many keys are remembered that were not the best.
const REMEMBERED: usize = 16;
const SLOTS: usize = 16384;
/// Slots whose keys are counted together.
const BLOCK: usize = 128;
/// Slots are chosen so often before it is asked again how many keys each has.
const CHOICES: usize = 2048;
/// How long one command makes room at most, in microseconds, at the usual tenacity.
const USUAL_MICROS: f64 = 500.0;

/// Which keys go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The key that was not used for longest.
    Lru,
    /// The key that was not written for longest.
    Lrm,
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

impl Policy {
    /// How much a key is one to go.
    pub(crate) fn merit(
        self,
        usage: Usage,
        expiry: Option<Millis>,
        lfu: Option<LfuSettings>,
        now: Millis,
    ) -> u64 {
        match self.order {
            Some(Order::Lru | Order::Lrm) => usage.idle_seconds(now),
            Some(Order::Lfu) => {
                let lfu = lfu.unwrap_or(LfuSettings { log_factor: 10, decay_minutes: 1 });
                u64::from(u8::MAX - usage.frequency(now, lfu))
            }
            Some(Order::Ttl) => expiry.map_or(0, |at| u64::MAX / 2 - at.0.max(0) as u64),
            Some(Order::Random) | None => 0,
        }
    }
}

/// All policies, as the configuration has them.
pub(crate) const POLICIES: [(EvictionPolicy, Policy); 10] = [
    (EvictionPolicy::NoEviction, Policy { order: None, volatile: false }),
    (EvictionPolicy::AllKeysLru, Policy { order: Some(Order::Lru), volatile: false }),
    (EvictionPolicy::AllKeysLrm, Policy { order: Some(Order::Lrm), volatile: false }),
    (EvictionPolicy::AllKeysLfu, Policy { order: Some(Order::Lfu), volatile: false }),
    (EvictionPolicy::AllKeysRandom, Policy { order: Some(Order::Random), volatile: false }),
    (EvictionPolicy::VolatileLru, Policy { order: Some(Order::Lru), volatile: true }),
    (EvictionPolicy::VolatileLrm, Policy { order: Some(Order::Lrm), volatile: true }),
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
pub(crate) struct Candidate {
    /// The greater, the sooner it goes.
    pub(crate) merit: u64,
    pub(crate) slot: Slot,
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
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

impl Evictor {
    /// Keys go by this policy from now on: those that were found by another are forgotten.
    pub(crate) fn follow(&mut self, policy: Policy) {
        if self.policy.replace(policy) != Some(policy) {
            self.candidates.clear();
            self.slots = Slots::default();
        }
    }

    /// Whether no key was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// The key that goes next, unless a better one is found.
    pub(crate) fn best(&self) -> Option<&Candidate> {
        self.candidates.last()
    }

    /// Takes that key off the list.
    pub(crate) fn pop(&mut self) -> Option<Candidate> {
        self.candidates.pop()
    }

    /// A slot with keys that may go, those with many more often; `None` if none has any.
    pub(crate) fn choose_slot(&mut self, keyspace: &Keyspace, volatile: bool, random: u64) -> Option<Slot> {
        self.slots.choose(keyspace, volatile, random)
    }

    /// The counts of keys by which slots are chosen are outdated.
    pub(crate) fn count_again(&mut self) {
        self.slots.chosen = 0;
    }

    /// Puts a key among those that may go, if it is one of the best.
    pub(crate) fn remember(&mut self, merit: u64, slot: Slot, db: u16, key: &[u8]) {
        let candidates = &mut self.candidates;
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
