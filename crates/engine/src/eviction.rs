//! Eviction policies (`maxmemory-policy`): ranks keys and maintains each thread's list of candidates. The engine
//! removes the keys ([`crate::Engine::evict_if_over_limit`]).
//!
//! As in Redis ("Using Redis as an LRU cache"), eviction samples a few random keys, and evicts the best candidate among
//! the samples and a pool of sixteen earlier candidates: the least recently used, the least frequently used, or the
//! first to expire. A slot is chosen with a probability in proportion to its number of keys, and the keys are sampled
//! within it, so that a sample of five takes one lock. Each thread has its own pool, so threads do not contend. A
//! pooled key that was used after it was sampled is skipped.

use clock::Millis;
use config::EvictionPolicy;
use keyspace::{Keyspace, LfuSettings, Usage};
use slot_routing::Slot;

const POOL_SIZE: usize = 16;
const SLOT_COUNT: usize = 16384;
/// Number of slots whose key counts are summed in one block.
const SLOTS_PER_BLOCK: usize = 128;
/// Number of times that a slot is chosen before the key counts are refreshed.
const CHOICES_PER_REFRESH: usize = 2048;
/// Maximum eviction time per command in microseconds, at the default `maxmemory-eviction-tenacity`.
const DEFAULT_TIME_LIMIT_MICROS: f64 = 500.0;

/// The order in which a policy evicts keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionOrder {
    /// Keys that were not used for the longest time are evicted first.
    Lru,
    /// Keys that were not modified for the longest time are evicted first.
    Lrm,
    /// Keys that are used least often are evicted first.
    Lfu,
    /// Keys are evicted at random.
    Random,
    /// Keys that expire soonest are evicted first.
    Ttl,
}

/// An eviction policy (`maxmemory-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionRule {
    /// The order of eviction; `None` if the policy is `noeviction`.
    pub order: Option<EvictionOrder>,
    /// Whether only keys with an expiry are evicted.
    pub volatile_only: bool,
}

impl EvictionRule {
    /// Returns the eviction rank of a key; the highest is evicted first.
    pub(crate) fn rank(
        self,
        usage: Usage,
        expiry: Option<Millis>,
        lfu: Option<LfuSettings>,
        now: Millis,
    ) -> u64 {
        match self.order {
            Some(EvictionOrder::Lru | EvictionOrder::Lrm) => usage.idle_seconds(now),
            Some(EvictionOrder::Lfu) => {
                let lfu = lfu.unwrap_or(LfuSettings { log_factor: 10, decay_minutes: 1 });
                u64::from(u8::MAX - usage.frequency(now, lfu))
            }
            Some(EvictionOrder::Ttl) => expiry.map_or(0, |at| u64::MAX / 2 - at.0.max(0) as u64),
            Some(EvictionOrder::Random) | None => 0,
        }
    }
}

/// All policies by their configuration values.
pub(crate) const EVICTION_POLICIES: [(EvictionPolicy, EvictionRule); 10] = [
    (EvictionPolicy::NoEviction, EvictionRule { order: None, volatile_only: false }),
    (EvictionPolicy::AllKeysLru, EvictionRule { order: Some(EvictionOrder::Lru), volatile_only: false }),
    (EvictionPolicy::AllKeysLrm, EvictionRule { order: Some(EvictionOrder::Lrm), volatile_only: false }),
    (EvictionPolicy::AllKeysLfu, EvictionRule { order: Some(EvictionOrder::Lfu), volatile_only: false }),
    (
        EvictionPolicy::AllKeysRandom,
        EvictionRule { order: Some(EvictionOrder::Random), volatile_only: false },
    ),
    (EvictionPolicy::VolatileLru, EvictionRule { order: Some(EvictionOrder::Lru), volatile_only: true }),
    (EvictionPolicy::VolatileLrm, EvictionRule { order: Some(EvictionOrder::Lrm), volatile_only: true }),
    (EvictionPolicy::VolatileLfu, EvictionRule { order: Some(EvictionOrder::Lfu), volatile_only: true }),
    (
        EvictionPolicy::VolatileRandom,
        EvictionRule { order: Some(EvictionOrder::Random), volatile_only: true },
    ),
    (EvictionPolicy::VolatileTtl, EvictionRule { order: Some(EvictionOrder::Ttl), volatile_only: true }),
];

/// Memory state relative to `maxmemory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryState {
    /// Memory use is below the limit.
    BelowLimit,
    /// Memory use is above the limit, and eviction is in progress.
    Evicting,
    /// Memory use is above the limit, and no key can be evicted.
    Exhausted,
}

/// A sampled key that may be evicted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Eviction rank; among all candidates, the one with the highest rank is evicted first.
    pub(crate) rank: u64,
    pub(crate) slot: Slot,
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
}

/// One thread's eviction state: the candidate pool and the slot samplers.
#[derive(Debug, Default)]
pub(crate) struct Evictor {
    /// The candidate pool, in ascending order of rank.
    candidates: Vec<Candidate>,
    policy: Option<EvictionRule>,
    slot_sampler: SlotSampler,
}

/// Samples slots in proportion to their key counts. The cached counts take only one kilobyte, because every worker has
/// a sampler even on the smallest server.
#[derive(Debug)]
struct SlotSampler {
    /// Cumulative key counts by block of slots.
    block_sums: [u64; SLOT_COUNT / SLOTS_PER_BLOCK],
    choice_count: usize,
}

impl Default for SlotSampler {
    fn default() -> Self {
        Self { block_sums: [0; SLOT_COUNT / SLOTS_PER_BLOCK], choice_count: 0 }
    }
}

impl SlotSampler {
    /// Chooses a slot at random, weighted by its keys; `None` if all slots are empty.
    fn choose_slot(&mut self, keyspace: &Keyspace, volatile_only: bool, random: u64) -> Option<Slot> {
        let keys_in = |number: usize| {
            Slot::new(number as u16).map_or(0, |slot| key_count(keyspace, slot, volatile_only) as u64)
        };
        if self.choice_count == 0 {
            let mut sum = 0;
            for (block, sums) in self.block_sums.iter_mut().enumerate() {
                sum += (block * SLOTS_PER_BLOCK..(block + 1) * SLOTS_PER_BLOCK).map(keys_in).sum::<u64>();
                *sums = sum;
            }
        }
        // While there are no keys, the next call refreshes the counts again, since keys may appear at any moment.
        let at = random.checked_rem(*self.block_sums.last()?)?;
        self.choice_count = (self.choice_count + 1) % CHOICES_PER_REFRESH;
        let block = self.block_sums.partition_point(|sum| *sum <= at);
        let mut left = at - block.checked_sub(1).map_or(0, |before| self.block_sums[before]);
        let slots = block * SLOTS_PER_BLOCK..(block + 1) * SLOTS_PER_BLOCK;
        // Keys may have been removed since they were counted; in that case use the block's last slot.
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

fn key_count(keyspace: &Keyspace, slot: Slot, volatile_only: bool) -> usize {
    if volatile_only { keyspace.volatile_keys_in_slot(slot) } else { keyspace.keys_in_slot(slot) }
}

impl Evictor {
    /// Switches to a policy; candidates of another policy are dropped.
    pub(crate) fn set_policy(&mut self, policy: EvictionRule) {
        if self.policy.replace(policy) != Some(policy) {
            self.candidates.clear();
            self.slot_sampler = SlotSampler::default();
        }
    }

    /// Returns whether there are no candidates.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Returns the best candidate so far.
    pub(crate) fn best_candidate(&self) -> Option<&Candidate> {
        self.candidates.last()
    }

    /// Removes and returns the best candidate.
    pub(crate) fn pop(&mut self) -> Option<Candidate> {
        self.candidates.pop()
    }

    /// Chooses a slot at random, weighted by its evictable keys; `None` if there are none.
    pub(crate) fn choose_slot(
        &mut self,
        keyspace: &Keyspace,
        volatile_only: bool,
        random: u64,
    ) -> Option<Slot> {
        self.slot_sampler.choose_slot(keyspace, volatile_only, random)
    }

    /// Discards the cached key counts, so that the next choice of a slot refreshes them.
    pub(crate) fn invalidate_counts(&mut self) {
        self.slot_sampler.choice_count = 0;
    }

    /// Adds a key to the candidate pool if it ranks high enough.
    pub(crate) fn add_candidate(&mut self, rank: u64, slot: Slot, db: u16, key: &[u8]) {
        let candidates = &mut self.candidates;
        let is_same = |known: &Candidate| (known.slot, known.db) == (slot, db) && known.key == key;
        if let Some(known) = candidates.iter().position(is_same) {
            candidates.remove(known);
        } else if candidates.len() == POOL_SIZE {
            if candidates[0].rank >= rank {
                return;
            }
            candidates.remove(0);
        }
        let place = candidates.partition_point(|known| known.rank < rank);
        candidates.insert(place, Candidate { rank, slot, db, key: key.to_vec() });
    }
}

/// Returns the maximum eviction time per command at this tenacity (0 to 100), in nanoseconds.
pub(crate) fn time_limit_nanos(tenacity: u32) -> u64 {
    let micros = match tenacity {
        0..=10 => DEFAULT_TIME_LIMIT_MICROS / 10.0 * f64::from(tenacity),
        11..100 => DEFAULT_TIME_LIMIT_MICROS * 1.15f64.powi(tenacity as i32 - 10),
        _ => return u64::MAX,
    };
    (micros * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_time_limit_grows_with_tenacity() {
        assert_eq!([0, 5, 10].map(time_limit_nanos), [0, 250_000, 500_000]);
        assert!((120_000_000_000..130_000_000_000).contains(&time_limit_nanos(99)), "two minutes");
        assert_eq!(time_limit_nanos(100), u64::MAX);
    }
}
