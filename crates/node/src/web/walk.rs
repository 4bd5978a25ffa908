//! Samples the data: memory by type and key pattern, and the largest keys of the sample.
//!
//! Some thousand keys are examined, from all slots in proportion to their number of keys, a few at a time under the
//! slot's lock. Results are scaled to all keys.

use std::collections::BTreeMap;

use keyspace::{KeyLookup, Keyspace, SlotData};
use serde::Serialize;
use slot_routing::{SLOT_COUNT, Slot};

use super::patterns::pattern_of;
use crate::server::Server;

/// The sample size in keys.
const SAMPLE: usize = 4000;
/// The number of keys examined under one lock.
const AT_ONCE: usize = 32;
/// Coprime to the number of slots, so that steps of this size visit all slots.
const STEP: usize = 7919;
/// The maximum number of patterns counted, and of those shown.
const MOST_PATTERNS: usize = 1000;
const SHOWN: usize = 40;
const LARGEST: usize = 20;
const BYTES: usize = 120;

/// The name for keys of patterns beyond that maximum.
const OTHERS: &str = "(others)";

#[derive(Debug, Default, Serialize)]
struct Walk {
    /// The number of all keys, and of examined ones.
    keys: usize,
    sampled: usize,
    types: Vec<Share>,
    patterns: Vec<Share>,
    largest: Vec<LargeKey>,
}

/// A part of the data, scaled to all keys.
#[derive(Debug, Clone, Default, Serialize)]
struct Share {
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

/// Returns the sample as JSON. It starts at a random slot, so that later samples see other keys.
pub(super) fn json(server: &Server) -> String {
    let from = process::time::nanos() as usize % SLOT_COUNT;
    let mut sample = Sample::default();
    let keyspace = &server.engine.keyspace;
    let keys: usize = keyspace.keys();
    // The sample keys still owed by the slots visited so far, in units of 1 / `keys`.
    let mut owed = 0;
    for turn in 0..SLOT_COUNT {
        let Some(slot) = Slot::new(((from + turn * STEP) % SLOT_COUNT) as u16) else { continue };
        let len = keyspace.keys_in_slot(slot);
        owed += len * SAMPLE.min(keys);
        if keys > 0 && owed >= keys {
            sample.take(keyspace, slot, (owed / keys).min(len));
            owed %= keys;
        }
    }
    super::json_of(&sample.finish(keys))
}

#[derive(Debug, Default)]
struct Sample {
    sampled: usize,
    types: BTreeMap<&'static str, (usize, usize)>,
    patterns: BTreeMap<String, (usize, usize)>,
    largest: Vec<LargeKey>,
}

impl Sample {
    /// Examines this many keys of a slot.
    fn take(&mut self, keyspace: &Keyspace, slot: Slot, wanted: usize) {
        let mut left = wanted;
        let databases = keyspace.lock(slot).databases();
        for db in databases {
            let mut position = Some(0);
            while let Some(from) = position.filter(|_| left > 0) {
                let data = keyspace.lock(slot);
                position = self.look(keyspace, &data, (slot, db), from, &mut left);
            }
        }
    }

    /// Examines some of them and returns where to continue.
    fn look(
        &mut self,
        keyspace: &Keyspace,
        data: &SlotData,
        (slot, db): (Slot, u16),
        from: u64,
        left: &mut usize,
    ) -> Option<u64> {
        let (table, now) = (data.table_if(db)?, process::time::now());
        table.scan(from, AT_ONCE.min(*left), &mut |item| {
            let KeyLookup::Live(place) = table.find(&keyspace.key_in(slot, item.key), now) else { return };
            if *left > 0 {
                *left -= 1;
                self.add(item.key, item.kind.name(), slot, table.entry_bytes(place));
            }
        })
    }

    fn add(&mut self, key: &[u8], kind: &'static str, slot: Slot, bytes: usize) {
        self.sampled += 1;
        let mut pattern = pattern_of(key);
        if self.patterns.len() >= MOST_PATTERNS && !self.patterns.contains_key(&pattern) {
            pattern = OTHERS.to_owned();
        }
        for share in [self.types.entry(kind).or_default(), self.patterns.entry(pattern).or_default()] {
            share.0 += 1;
            share.1 += bytes;
        }
        let least = self.largest.last().map_or(0, |last| last.bytes);
        if self.largest.len() < LARGEST || bytes > least {
            let at = self.largest.partition_point(|other| other.bytes >= bytes);
            let key = super::shown(key, BYTES);
            self.largest.insert(at, LargeKey { key, kind, slot: slot.number(), bytes });
            self.largest.truncate(LARGEST);
        }
    }

    fn finish(self, keys: usize) -> Walk {
        let scale = if self.sampled == 0 { 0.0 } else { keys as f64 / self.sampled as f64 };
        let share = |name: String, (keys, bytes): (usize, usize)| Share {
            name,
            keys: keys as f64 * scale,
            bytes: bytes as f64 * scale,
        };
        let by_bytes = |mut shares: Vec<Share>| {
            shares.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
            shares.truncate(SHOWN);
            shares
        };
        Walk {
            keys,
            sampled: self.sampled,
            types: by_bytes(self.types.into_iter().map(|(kind, sum)| share(kind.to_owned(), sum)).collect()),
            patterns: by_bytes(self.patterns.into_iter().map(|(name, sum)| share(name, sum)).collect()),
            largest: self.largest,
        }
    }
}
