//! Samples the data: memory by type and key pattern, and the largest sampled keys.
//!
//! A few thousand keys are examined. Each slot contributes in proportion to its number of keys, and only a few keys are
//! examined at a time under the slot's lock. Results are scaled to all keys.

use std::collections::BTreeMap;

use keyspace::{KeyLookup, Keyspace, Table};
use serde::Serialize;
use slot_routing::{SLOT_COUNT, Slot};

use super::patterns::key_pattern;
use crate::server::Server;

/// The number of keys to examine.
const SAMPLE_SIZE: usize = 4000;
/// The number of keys examined each time a slot is locked.
const KEYS_PER_LOCK: usize = 32;
/// The step between sampled slots. It is coprime to the number of slots, so stepping visits all of them.
const SLOT_STEP: usize = 7919;
/// The maximum number of patterns that are counted, and the number of those that are shown.
const MAX_PATTERNS: usize = 1000;
const MAX_SHOWN_PATTERNS: usize = 40;
const MAX_LARGEST_KEYS: usize = 20;
const MAX_KEY_BYTES: usize = 120;

/// The name under which keys are counted once the maximum number of patterns is reached.
const OTHER_PATTERNS: &str = "(others)";

#[derive(Debug, Default, Serialize)]
struct DataSample {
    /// The number of all keys, including those that were not examined.
    keys: usize,
    sampled: usize,
    types: Vec<SampleGroup>,
    patterns: Vec<SampleGroup>,
    largest: Vec<LargeKey>,
}

/// Statistics of keys with the same type or pattern, scaled to all keys.
#[derive(Debug, Clone, Default, Serialize)]
struct SampleGroup {
    name: String,
    keys: f64,
    bytes: f64,
}

#[derive(Debug, Serialize)]
struct LargeKey {
    key: String,
    kind: &'static str,
    slot: u16,
    bytes: usize,
}

/// Samples the data and returns the result as JSON. The sample starts at a random slot, so that later samples see other
/// keys.
pub(super) fn sample_json(server: &Server) -> String {
    let from = process::time::nanos() as usize % SLOT_COUNT;
    let mut sample = DataSampler::default();
    let keyspace = &server.engine.keyspace;
    let keys: usize = keyspace.key_count();
    // The number of keys that the visited slots must still contribute, in units of 1 / `keys`.
    let mut owed = 0;
    for turn in 0..SLOT_COUNT {
        let Some(slot) = Slot::new(((from + turn * SLOT_STEP) % SLOT_COUNT) as u16) else { continue };
        let len = keyspace.keys_in_slot(slot);
        owed += len * SAMPLE_SIZE.min(keys);
        if keys > 0 && owed >= keys {
            sample.sample_slot(keyspace, slot, (owed / keys).min(len));
            owed %= keys;
        }
    }
    super::to_json(&sample.finish(keys))
}

#[derive(Debug, Default)]
struct DataSampler {
    sampled_keys: usize,
    types: BTreeMap<&'static str, (usize, usize)>,
    patterns: BTreeMap<String, (usize, usize)>,
    largest_keys: Vec<LargeKey>,
}

impl DataSampler {
    fn sample_slot(&mut self, keyspace: &Keyspace, slot: Slot, count: usize) {
        let mut left = count;
        let databases = keyspace.lock(slot).databases();
        for db in databases {
            let mut position = Some(0);
            while let Some(from) = position.filter(|_| left > 0) {
                let data = keyspace.lock(slot);
                let table = data.existing_table(db);
                position = table.and_then(|table| self.sample_keys(keyspace, table, slot, from, &mut left));
            }
        }
    }

    /// Examines up to [`KEYS_PER_LOCK`] keys and returns where to continue.
    fn sample_keys(
        &mut self,
        keyspace: &Keyspace,
        table: &Table,
        slot: Slot,
        from: u64,
        remaining: &mut usize,
    ) -> Option<u64> {
        let now = process::time::now();
        table.scan(from, KEYS_PER_LOCK.min(*remaining), &mut |item| {
            let KeyLookup::Live(place) = table.find(&keyspace.key_in_slot(slot, item.key), now) else {
                return;
            };
            if *remaining > 0 {
                *remaining -= 1;
                self.add_key(item.key, item.kind.name(), slot, table.entry_bytes(place));
            }
        })
    }

    fn add_key(&mut self, key: &[u8], kind: &'static str, slot: Slot, bytes: usize) {
        self.sampled_keys += 1;
        let mut pattern = key_pattern(key);
        if self.patterns.len() >= MAX_PATTERNS && !self.patterns.contains_key(&pattern) {
            pattern = OTHER_PATTERNS.to_owned();
        }
        for share in [self.types.entry(kind).or_default(), self.patterns.entry(pattern).or_default()] {
            share.0 += 1;
            share.1 += bytes;
        }
        let least = self.largest_keys.last().map_or(0, |last| last.bytes);
        if self.largest_keys.len() < MAX_LARGEST_KEYS || bytes > least {
            let at = self.largest_keys.partition_point(|other| other.bytes >= bytes);
            let key = super::format_bytes(key, MAX_KEY_BYTES);
            self.largest_keys.insert(at, LargeKey { key, kind, slot: slot.number(), bytes });
            self.largest_keys.truncate(MAX_LARGEST_KEYS);
        }
    }

    fn finish(self, key_count: usize) -> DataSample {
        let scale = if self.sampled_keys == 0 { 0.0 } else { key_count as f64 / self.sampled_keys as f64 };
        let share = |name: String, (keys, bytes): (usize, usize)| SampleGroup {
            name,
            keys: keys as f64 * scale,
            bytes: bytes as f64 * scale,
        };
        let by_bytes = |mut shares: Vec<SampleGroup>| {
            shares.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
            shares.truncate(MAX_SHOWN_PATTERNS);
            shares
        };
        DataSample {
            keys: key_count,
            sampled: self.sampled_keys,
            types: by_bytes(self.types.into_iter().map(|(kind, sum)| share(kind.to_owned(), sum)).collect()),
            patterns: by_bytes(self.patterns.into_iter().map(|(name, sum)| share(name, sum)).collect()),
            largest: self.largest_keys,
        }
    }
}
