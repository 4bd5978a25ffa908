//! Reads the keys of an RDB file with their properties.

use std::io::Read;

use anyhow::{Result, bail};
use clock::Millis;
use keyspace::Kind;
use persistence::{RdbEntry, RdbItem, RdbLoader, ReadLimits};

use capacity::estimate::{self, ElementCounts, KeyShape};

/// The properties of a key, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyInfo {
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
    pub(crate) kind: Kind,
    /// The encoding as OBJECT ENCODING shows it with the default limits.
    pub(crate) encoding: &'static str,
    pub(crate) elements: u64,
    /// Bytes of the longest element: a field or value of a hash, or a node of a stream.
    pub(crate) longest_element: u64,
    /// Estimated bytes that the key takes in memory.
    pub(crate) memory_bytes: u64,
    pub(crate) expiry: Option<Millis>,
}

/// Selects keys by database, type and pattern.
#[derive(Debug, Default)]
pub(crate) struct KeyFilter {
    db: Option<u16>,
    kind: Option<Kind>,
    pattern: Option<Vec<u8>>,
}

impl KeyFilter {
    pub(crate) fn new(db: Option<u16>, kind: Option<&str>, pattern: Option<&str>) -> Result<Self> {
        let kind = match kind {
            None => None,
            Some(name) => match Kind::from_name(name) {
                Some(kind) => Some(kind),
                None => bail!("unknown type '{name}'"),
            },
        };
        let pattern = pattern.filter(|pattern| *pattern != "*").map(|pattern| pattern.as_bytes().to_vec());
        Ok(Self { db, kind, pattern })
    }

    fn matches(&self, entry: &RdbEntry<'_>) -> bool {
        self.db.is_none_or(|db| db == entry.db)
            && self.kind.is_none_or(|kind| kind == entry.packed_value.kind())
            && self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, entry.key))
    }
}

/// Reads an RDB file key by key, and combines the parts of large values.
#[derive(Debug)]
pub(crate) struct KeyReader<R> {
    loader: RdbLoader<R>,
    filter: KeyFilter,
    /// Number of keys with empty collections, which are skipped.
    skipped_keys: u64,
}

/// A key whose value may continue in further parts of the file.
struct PartialKey {
    info: KeyInfo,
    counts: ElementCounts,
    /// Bytes of the value in the packed encoding; `None` if it is too large for that.
    packed_bytes: Option<u64>,
}

impl PartialKey {
    fn start(entry: &RdbEntry<'_>) -> Self {
        let value = entry.packed_value;
        let info = KeyInfo {
            db: entry.db,
            key: entry.key.to_vec(),
            kind: value.kind(),
            encoding: value.encoding(),
            elements: 0,
            longest_element: 0,
            memory_bytes: 0,
            expiry: entry.expiry,
        };
        let mut seen = ElementCounts::default();
        seen.add_value(&value);
        let packed = (!entry.is_part && value.stays_packed()).then_some(value.bytes().len() as u64);
        Self { info, counts: seen, packed_bytes: packed }
    }

    fn finish(self) -> KeyInfo {
        let Self { info, counts: seen, packed_bytes: packed } = self;
        let size = estimate::estimate_key_bytes(&KeyShape {
            kind: info.kind,
            key_bytes: info.key.len() as u64,
            elements: seen.elements,
            payload_bytes: seen.payload_bytes,
            packed_bytes: packed,
            expires: info.expiry.is_some(),
            expiring_elements: seen.expiring_elements,
        });
        KeyInfo { elements: seen.elements, longest_element: seen.longest_bytes, memory_bytes: size, ..info }
    }
}

impl<R: Read> KeyReader<R> {
    pub(crate) fn new(input: R, filter: KeyFilter) -> Result<Self> {
        Ok(Self { loader: RdbLoader::new(input, ReadLimits::default())?, filter, skipped_keys: 0 })
    }

    /// Returns the number of skipped keys with empty collections, regardless of the filter.
    pub(crate) fn skipped_keys(&self) -> u64 {
        self.skipped_keys
    }

    /// Visits every selected key.
    pub(crate) fn for_each_key(&mut self, visit: &mut dyn FnMut(&KeyInfo) -> Result<()>) -> Result<()> {
        let mut open: Option<PartialKey> = None;
        while let Some(item) = self.loader.next_item()? {
            match item {
                RdbItem::Entry(entry) if !self.filter.matches(&entry) => open = None,
                RdbItem::Entry(entry) => {
                    let begun = PartialKey::start(&entry);
                    if entry.is_part {
                        open = Some(begun);
                    } else {
                        visit(&begun.finish())?;
                    }
                }
                RdbItem::NextPart { part, is_last } => {
                    if let Some(open) = &mut open {
                        open.counts.add_value(&part);
                    }
                    if is_last && let Some(open) = open.take() {
                        visit(&open.finish())?;
                    }
                }
                RdbItem::Empty(_) => {
                    self.skipped_keys += 1;
                    open = None;
                }
                RdbItem::Aux { .. } | RdbItem::KeyCounts { .. } | RdbItem::Function(_) => {}
            }
        }
        Ok(())
    }
}
