//! Validates a snapshot completely before the current data is dropped.
//!
//! The check decodes every value and verifies the checksum without storing anything. It needs memory for one value, or
//! for one part of a large value, and in addition:
//!
//! - The parts of one set, sorted set or hash must not share an element, and the parts of a stream must fit together.
//!   For this, the check remembers a hash of each element of the value that is being read, or the stream itself, up to
//!   [`MAX_CHECK_BYTES`]. The parts of a larger value are checked only one by one, so the load may still find an error
//!   after the old data is dropped.
//! - The small values of one slot must fit in its pages. The check adds up their sizes, eight bytes per slot. Only the
//!   load knows how many bytes of the pages stay unused, so it may still reject a slot that is fuller than three
//!   quarters of [`slot_capacity`](keyspace::slot_capacity).

use std::io::Read;

use keyspace::{
    DetachedValue, ElementUniqueness, EncodingLimits, Keyspace, Kind, NewEntry, PackedValue, slot_capacity,
};
use persistence::{RdbEntry, RdbError, RdbItem};
use slot_routing::{SLOT_COUNT, Slot};

use crate::rdb::{DUPLICATE_ELEMENT_ERROR, LoadError, Loader};
use crate::store_queue::PREFETCH_BATCH;

/// Maximum memory for checking the elements of one value: 8,388,608 hashes, or a stream of this size.
const MAX_CHECK_BYTES: usize = 128 << 20;
/// Number of bytes by which one batch of keys may exceed a slot's capacity, because the load checks the capacity only
/// before each batch.
const MAX_BATCH_BYTES: u64 = (PREFETCH_BATCH as u64) << 13;

impl Loader<'_> {
    /// Checks that [`Loader::replace`] would accept `input`. The current data is not changed.
    ///
    /// # Errors
    /// The error that the load would return.
    pub fn check(&self, input: impl Read) -> Result<(), LoadError> {
        let mut loader = self.open(input)?;
        let keyspace = &self.engine.keyspace;
        let (databases, limits) =
            (keyspace.database_count(), self.engine.settings.value_limits.encoding_limits());
        let (mut libraries, mut slots) = (Vec::new(), SlotSizes::default());
        let mut open = ElementChecker::None;
        loop {
            let offset = loader.offset();
            let fits = match loader.next_item()? {
                None => break,
                Some(RdbItem::Entry(entry)) if entry.db >= databases => {
                    return Err(LoadError::DatabaseOutOfRange(entry.db, databases));
                }
                Some(RdbItem::Entry(entry)) if entry.is_part => {
                    open = ElementChecker::for_kind(entry.packed_value.kind());
                    open.add_part(entry.packed_value, keyspace, &limits)
                }
                Some(RdbItem::Entry(entry)) => {
                    slots.add(keyspace, &entry)?;
                    true
                }
                Some(RdbItem::NextPart { part, is_last }) => {
                    let fits = open.add_part(part, keyspace, &limits);
                    fits && (!is_last || std::mem::take(&mut open).has_no_duplicates())
                }
                Some(RdbItem::Function(code)) => {
                    libraries.push(code.to_vec());
                    true
                }
                Some(RdbItem::Aux { .. } | RdbItem::KeyCounts { .. } | RdbItem::Empty(_)) => true,
            };
            if !fits {
                return Err(RdbError { offset, reason: DUPLICATE_ELEMENT_ERROR }.into());
            }
        }
        Ok(self.engine.check_libraries(&libraries, self.host.nanos_clock())?)
    }
}

/// What the check remembers of a large value while its parts are read.
#[derive(Debug, Default)]
enum ElementChecker {
    /// Nothing: no large value is being read, or it may contain duplicates, or it is too large.
    #[default]
    None,
    /// Two hashes per element. A single 64-bit hash is not enough: an accidental collision in a valid snapshot would
    /// prevent a replica from synchronizing.
    Hashes(Vec<[u64; 2]>),
    /// The value itself, which rejects elements out of order, and its size in bytes.
    Ordered(DetachedValue, usize),
}

impl ElementChecker {
    fn for_kind(kind: Kind) -> Self {
        match kind.element_uniqueness() {
            ElementUniqueness::ByName => Self::Hashes(Vec::new()),
            ElementUniqueness::ByOrder => Self::Ordered(DetachedValue::empty_large(kind), 0),
            ElementUniqueness::Repeatable => Self::None,
        }
    }

    /// Adds a part. Returns false if it is a stream's part that does not fit the earlier parts.
    fn add_part(&mut self, part: PackedValue<'_>, keyspace: &Keyspace, limits: &EncodingLimits) -> bool {
        let (is_within, fits) = match self {
            Self::None => return true,
            Self::Hashes(hashes) => {
                push_hashes(hashes, part, keyspace);
                (size_of_val(hashes.as_slice()) <= MAX_CHECK_BYTES, true)
            }
            Self::Ordered(value, bytes) => {
                *bytes += part.bytes().len();
                (*bytes <= MAX_CHECK_BYTES, value.add_part(part, limits))
            }
        };
        if !is_within {
            *self = Self::None;
        }
        fits
    }

    /// Returns whether no element occurs twice.
    fn has_no_duplicates(self) -> bool {
        let Self::Hashes(mut hashes) = self else { return true };
        hashes.sort_unstable();
        hashes.windows(2).all(|pair| pair[0] != pair[1])
    }
}

fn push_hashes(hashes: &mut Vec<[u64; 2]>, part: PackedValue<'_>, keyspace: &Keyspace) {
    let mut copy = Vec::new();
    part.visit_names(&mut |name| {
        copy.clear();
        copy.push(0);
        copy.extend_from_slice(name);
        hashes.push([keyspace.hash_element_name(name), keyspace.hash_element_name(&copy)]);
    });
}

/// Total size in bytes of the small values, by database and slot.
#[derive(Debug, Default)]
struct SlotSizes(Vec<Vec<u64>>);

impl SlotSizes {
    fn add(&mut self, keyspace: &Keyspace, entry: &RdbEntry<'_>) -> Result<(), LoadError> {
        let (slot, db) = (Slot::of_key(entry.key), usize::from(entry.db));
        if self.0.len() <= db {
            self.0.resize_with(db + 1, Vec::new);
        }
        let sizes = &mut self.0[db];
        sizes.resize(SLOT_COUNT, 0);
        let key = keyspace.key_in_slot(slot, entry.key);
        let stored = NewEntry { key, value: entry.packed_value, expiry: entry.expiry, usage: None };
        let size = &mut sizes[slot.index()];
        *size += stored.inline_bytes() as u64;
        if *size > slot_capacity() + MAX_BATCH_BYTES { Err(LoadError::SlotFull) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use engine::{CommandSet, Engine, NoLog};
    use keyspace::Keyspace;

    use super::*;
    use crate::testing::NoopHost;

    /// Builds a snapshot with one string key and, unless `library` is empty, a function library.
    fn build_snapshot(value: &[u8], library: &str) -> Vec<u8> {
        let mut bytes = b"REDIS0011".to_vec();
        if !library.is_empty() {
            bytes.extend([0xF5, library.len() as u8]);
            bytes.extend(library.as_bytes());
        }
        bytes.extend([0xFE, 0, 0, 1, b'k', value.len() as u8]);
        bytes.extend(value);
        bytes.push(0xFF);
        // A checksum of zero means that the file has no checksum.
        bytes.extend([0; 8]);
        bytes
    }

    fn with_loader(test: impl FnOnce(&Loader<'_>)) {
        let commands = CommandSet::new(::commands::server_registry());
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::new(1, 2), None, Box::new(NoLog));
        engine.init_slot_ownership();
        let (engine, commands) = (&engine, &commands);
        test(&Loader {
            engine,
            commands,
            store_threads: 1,
            verify_checksum: true,
            max_deletion_bytes: 0,
            host: &NoopHost,
        });
    }

    fn has_data(loader: &Loader<'_>) -> bool {
        !loader.engine.keyspace.is_empty(0)
    }

    #[test]
    fn check_finds_load_errors_without_storing() {
        let good = build_snapshot(b"value", "#!lua name=lib\nserver.register_function('f', function() end)");
        with_loader(|loader| loader.check(good.as_slice()).unwrap());
        let mut bad: Vec<(Vec<u8>, &str)> =
            (0..good.len()).map(|end| (good[..end].to_vec(), "cut off")).collect();
        bad.push((build_snapshot(b"v", "#!lua name=lib\nnonsense("), "a library that does not load"));
        let vector_set = [&b"REDIS0012"[..], &[0xFE, 0, 7, 1, b'v', 1, 0, 0xFF]].concat();
        bad.push((vector_set, "a module's value"));
        bad.push((b"REDIS0999".to_vec(), "a version of the future"));
        let mut database = build_snapshot(b"v", "");
        database[b"REDIS0011".len() + 1] = 2;
        bad.push((database, "a database that is not there"));
        let mut damaged = good.clone();
        *damaged.last_mut().unwrap() = 1;
        bad.push((damaged, "a wrong checksum"));
        with_loader(|loader| {
            loader.replace_dataset(good.as_slice(), 0, false, || true).unwrap();
            for (bytes, what) in bad {
                assert!(loader.check(bytes.as_slice()).is_err(), "{what}");
                assert!(has_data(loader), "{what}");
                assert!(loader.replace_dataset(bytes.as_slice(), 0, false, || true).is_err(), "{what}");
                loader.replace_dataset(good.as_slice(), 0, false, || true).unwrap();
            }
            loader.check(good.as_slice()).unwrap();
        });
    }

    /// Encodes `number` as an RDB length of two bytes.
    fn encode_len(number: usize) -> [u8; 2] {
        [0x40 | (number >> 8) as u8, number as u8]
    }

    fn encode_string(bytes: &[u8]) -> Vec<u8> {
        [&encode_len(bytes.len())[..], bytes].concat()
    }

    /// Builds a snapshot whose key `k` has a value of type `code` with a hundred bytes per element, so that the value
    /// is read in parts.
    fn build_large_value(code: u8, elements: &[usize]) -> Vec<u8> {
        let mut bytes = [&b"REDIS0011"[..], &[0xFE, 0, code, 1, b'k'], &encode_len(elements.len())].concat();
        for element in elements {
            bytes.extend(encode_string(format!("{element:0>100}").as_bytes()));
            match code {
                4 => bytes.extend(encode_string(b"value")),
                5 => bytes.extend([0; 8]),
                _ => {}
            }
        }
        bytes.push(0xFF);
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn check_finds_duplicates_across_parts() {
        let unique: Vec<usize> = (0..5000).collect();
        let repeated: Vec<usize> = (0..4999).chain([7]).collect();
        for code in [2, 4, 5] {
            with_loader(|loader| {
                let bytes = build_large_value(code, &unique);
                loader.check(bytes.as_slice()).unwrap();
                loader.replace_dataset(bytes.as_slice(), 0, false, || true).unwrap();
                let bytes = build_large_value(code, &repeated);
                let refused = loader.check(bytes.as_slice()).map_err(|error| error.to_string());
                assert!(refused.is_err_and(|text| text.contains("the same element twice")), "type {code}");
                assert!(has_data(loader));
                assert!(
                    loader.replace_dataset(bytes.as_slice(), 0, false, || true).is_err(),
                    "the load agrees"
                );
            });
        }
        // A list may contain equal elements.
        with_loader(|loader| loader.check(build_large_value(1, &repeated).as_slice()).unwrap());
    }

    #[test]
    fn check_finds_a_slot_with_too_many_small_values() {
        keyspace::limit_pages(64);
        let snapshot = |keys: usize| {
            let mut bytes = [&b"REDIS0011"[..], &[0xFE, 0]].concat();
            for key in 0..keys {
                bytes.push(0);
                bytes.extend(encode_string(format!("{{slot}}{key}").as_bytes()));
                bytes.extend(encode_string(&[b'v'; 200]));
            }
            bytes.push(0xFF);
            bytes.extend([0; 8]);
            bytes
        };
        let most = (keyspace::slot_capacity() + MAX_BATCH_BYTES) as usize / 200;
        with_loader(|loader| {
            let (few, many) = (snapshot(most / 4), snapshot(most));
            loader.check(few.as_slice()).unwrap();
            loader.replace_dataset(few.as_slice(), 0, false, || true).unwrap();
            assert!(matches!(loader.check(many.as_slice()), Err(LoadError::SlotFull)));
            assert!(has_data(loader));
            assert!(matches!(
                loader.replace_dataset(many.as_slice(), 0, false, || true),
                Err(LoadError::SlotFull)
            ));
        });
    }

    #[test]
    fn unreadable_header_leaves_the_data_unchanged() {
        with_loader(|loader| {
            loader.replace_dataset(build_snapshot(b"value", "").as_slice(), 0, false, || true).unwrap();
            for header in [&b""[..], b"nonsense!", b"REDIS0999", b"REDI"] {
                let mut is_dropped = false;
                let outcome = loader.replace_dataset_after(header, 0, false, || is_dropped = true, || true);
                assert!(outcome.is_err() && !is_dropped && has_data(loader), "{header:?}");
            }
        });
    }
}
