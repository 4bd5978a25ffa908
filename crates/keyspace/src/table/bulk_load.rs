//! Stores many entries at once, for example while loading a snapshot.
//!
//! If entries are inserted one at a time, a table rebuilds its index every twenty entries and its pages grow in steps.
//! If the number of entries is known in advance, index and pages get their final size at once.

use clock::Millis;

use super::Table;
use crate::entries::{KeyLookup, MAX_ALWAYS_INLINE};
use crate::entry::{Header, MAX_KEY_LEN, MAX_VALUE_LEN};
use crate::key::Key;
use crate::packed::PackedValue;
use crate::pages::FillLevel;
use crate::usage::Usage;

/// A key and its value, to be stored by [`Table::bulk_load`].
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// The key, with its hash and slot.
    pub key: Key<'a>,
    /// The value to store under the key.
    pub value: PackedValue<'a>,
    /// Time at which the key expires; `None` if it has no expiry.
    pub expiry: Option<Millis>,
    /// Usage counters; `None` means that the key counts as just used.
    pub usage: Option<Usage>,
}

impl NewEntry<'_> {
    /// Returns how many bytes the entry takes in a page; 0 if it may be stored outside the pages.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        let (key, value, form) =
            (self.key.bytes.len(), self.value.bytes().len(), self.value.value_encoding());
        let most = if form.is_collection() { MAX_ALWAYS_INLINE } else { usize::MAX };
        if key > MAX_KEY_LEN || value > MAX_VALUE_LEN {
            return 0;
        }
        let whole = Header::entry_len(form.code(), self.expiry.is_some(), key, value);
        if whole <= most { whole.next_multiple_of(2) } else { 0 }
    }
}

impl Table {
    /// Stores entries, most of which are new. If a key occurs more than once, its last entry wins. `expected_len` is
    /// the final size of the table; too high an estimate wastes memory. Returns false if the table is full.
    #[must_use]
    pub fn bulk_load(&mut self, entries: &[NewEntry<'_>], expected_len: usize) -> bool {
        if self.entries.fill_level() == FillLevel::Full {
            return false;
        }
        self.entries.reserve(expected_len.max(self.len() + entries.len()));
        entries.iter().for_each(|entry| self.entries.prefetch_index(entry.key.hash));
        let mut left: usize = entries.iter().map(NewEntry::inline_bytes).sum();
        let mean = left / entries.len().max(1);
        for &NewEntry { key, value, expiry, usage } in entries {
            let in_the_end = expected_len.saturating_sub(self.len()).saturating_mul(mean);
            self.entries.set_expected_bytes(left.max(in_the_end));
            let place = match self.find(&key, Millis(i64::MIN)) {
                KeyLookup::Missing => self.insert(&key, value, expiry),
                KeyLookup::Live(place) | KeyLookup::Expired(place) => {
                    self.replace(place, &key, value, expiry).0
                }
            };
            if let Some(usage) = usage {
                self.set_usage(place, usage);
            }
            left -= NewEntry { key, value, expiry, usage }.inline_bytes();
        }
        self.entries.set_expected_bytes(0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Keyspace;
    use crate::kind::{EncodingLimits, Kind};
    use crate::packed::PackedBuilder;
    use crate::value::StringRef;

    /// Returns the value, expiry and usage of a key in comparable form.
    fn stored_state(keyspace: &Keyspace, name: &[u8]) -> (Vec<u8>, Option<Millis>, Usage) {
        let key = keyspace.key(name);
        let mut slot = keyspace.lock(key.slot());
        let table = slot.table(0);
        let KeyLookup::Live(place) = table.find(&key, Millis(i64::MIN)) else { panic!("{name:?} is there") };
        let value = if let Some(hash) = table.hash(place) {
            let mut copy = PackedBuilder::new(Kind::Hash);
            hash.for_each(&mut |field| copy.push_field(field.name, field.value, field.expiry));
            copy.packed().bytes().to_vec()
        } else {
            table.typed_value::<StringRef<'_>>(place).expect("hashes and strings were stored").bytes.to_vec()
        };
        (value, table.expiry(place), table.usage(place))
    }

    /// Loads a mix of entries, some of them with duplicate keys, where `expected_len` is zero, the exact number, or far
    /// too high. The result must equal that of inserting the entries one at a time.
    #[test]
    fn bulk_load_equals_single_inserts() {
        let names: Vec<Vec<u8>> =
            (0..900).map(|n| format!("{{of one slot}}{}", n % 800).into_bytes()).collect();
        let values: Vec<Vec<u8>> = (0..900).map(|n: usize| vec![n as u8; n * n % 1700]).collect();
        let hashes: Vec<PackedBuilder> = (0..900)
            .map(|n| {
                let mut hash = PackedBuilder::new(Kind::Hash);
                (0..n % 40)
                    .for_each(|field| hash.push_field(&[field as u8], &values[field], Some(Millis(9))));
                hash.choose_encoding(&EncodingLimits::default());
                hash
            })
            .collect();
        for expected in [0, 800, 1_000_000] {
            let (at_once, singly) = (Keyspace::new(1, 1), Keyspace::new(1, 1));
            let entry = |number: usize| NewEntry {
                key: at_once.key(&names[number]),
                value: match number % 3 {
                    1 => hashes[number].packed(),
                    _ => PackedValue::string(&values[number]),
                },
                expiry: number.is_multiple_of(5).then_some(Millis(7_000 + number as i64)),
                usage: number.is_multiple_of(7).then_some(Usage::with_idle_time(Millis(1 << 40), 1000)),
            };
            let entries: Vec<_> = (0..900).map(entry).collect();
            for some in entries.chunks(70) {
                assert!(at_once.lock(some[0].key.slot()).table(0).bulk_load(some, expected));
            }
            for entry in &entries {
                assert!(singly.lock(entry.key.slot()).table(0).bulk_load(std::slice::from_ref(entry), 0));
            }
            let slot = entries[0].key.slot();
            assert_eq!((at_once.slot_len(slot), singly.slot_len(slot)), (800, 800));
            for name in &names {
                assert_eq!(stored_state(&at_once, name), stored_state(&singly, name));
            }
            let held = [at_once, singly].map(|keyspace| keyspace.lock(slot).heap_bytes());
            assert!(held[0] < held[1] + 40_000, "{held:?} bytes when {expected} were expected");
        }
    }
}
