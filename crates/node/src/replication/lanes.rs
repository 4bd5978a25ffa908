//! The threads that store what a load has read.
//!
//! Each has a lane: a short queue of batches of keys. A large hash comes in parts; it is put together before its
//! key is made, so that no slot is held meanwhile, and what of it is on its way is one part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use clock::Millis;
use keyspace::{Detached, Found, HashBuilder, HashLimits, Key, Keyspace, Naming, NewValue, Str, Usage};
use persistence::Entry;

/// A batch goes to its thread when it has so many bytes or keys.
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_KEYS: usize = 1024;
/// Batches that may wait for a thread.
const BATCHES_AHEAD: usize = 4;
/// Keys whose memory is asked for at once.
const SWEEP: usize = 16;

/// Hashes that had the same field in two of their parts.
#[derive(Debug)]
pub(super) struct Faults(AtomicU64);

impl Default for Faults {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Faults {
    /// Where in the file the first of them was seen.
    pub(super) fn first(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&offset| offset != u64::MAX)
    }
}

/// The way to a storing thread.
pub(super) struct Lane {
    sender: SyncSender<Batch>,
    batch: Batch,
}

/// What a storing thread works with.
pub(super) struct Storing<'a> {
    keyspace: &'a Keyspace,
    limits: HashLimits,
    faults: &'a Faults,
    batches: Receiver<Batch>,
}

/// Keys on their way to a thread; keys and strings lie in `bytes`.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    keys: Vec<Loose>,
    /// Bytes of hashes.
    fields: usize,
}

/// A key that was read, or a further part of its value.
struct Loose {
    db: u16,
    /// Where in the batch the key ends; it starts where the one before it ended.
    key_end: usize,
    end: usize,
    content: Content,
    expiry: Option<Millis>,
    usage: Option<Usage>,
}

enum Content {
    /// Its bytes lie behind the key.
    String {
        naming: Naming,
    },
    Hash(Box<HashBuilder>),
    /// The first part of a large hash.
    First(Box<HashBuilder>),
    /// A further part, and where in the file it begins.
    More {
        fields: Box<HashBuilder>,
        is_last: bool,
        offset: u64,
    },
}

/// A large hash of which parts have come.
struct Open {
    db: u16,
    key: Box<[u8]>,
    expiry: Option<Millis>,
    usage: Option<Usage>,
    hash: Detached,
}

/// A lane and what is at its end.
pub(super) fn lane<'a>(
    keyspace: &'a Keyspace,
    limits: HashLimits,
    faults: &'a Faults,
) -> (Lane, Storing<'a>) {
    let (sender, batches) = sync_channel(BATCHES_AHEAD);
    (Lane { sender, batch: Batch::default() }, Storing { keyspace, limits, faults, batches })
}

impl Lane {
    /// Adds a key with its value, or with the first part of it.
    pub(super) fn add(&mut self, entry: &Entry<'_>, usage: Option<Usage>) {
        let Batch { bytes, fields, .. } = &mut self.batch;
        bytes.extend_from_slice(entry.key);
        let key_end = bytes.len();
        let content = match entry.value {
            NewValue::String(string) => {
                bytes.extend_from_slice(string.bytes);
                Content::String { naming: string.naming }
            }
            NewValue::Hash(builder) => {
                *fields += builder.bytes();
                let hash = Box::new(builder.clone());
                if entry.is_part { Content::First(hash) } else { Content::Hash(hash) }
            }
        };
        let end = bytes.len();
        self.push(Loose { db: entry.db, key_end, end, content, expiry: entry.expiry, usage });
    }

    /// Adds a further part of the hash that came last.
    pub(super) fn add_fields(&mut self, fields: &HashBuilder, is_last: bool, offset: u64) {
        self.batch.fields += fields.bytes();
        let end = self.batch.bytes.len();
        let content = Content::More { fields: Box::new(fields.clone()), is_last, offset };
        self.push(Loose { db: 0, key_end: end, end, content, expiry: None, usage: None });
    }

    fn push(&mut self, loose: Loose) {
        let Batch { bytes, keys, fields } = &mut self.batch;
        keys.push(loose);
        if bytes.len() + *fields >= BATCH_BYTES || keys.len() >= BATCH_KEYS {
            self.send();
        }
    }

    pub(super) fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if !batch.keys.is_empty() {
            self.sender.send(batch).expect("a storing thread ends after its sender");
        }
    }
}

impl Storing<'_> {
    /// Stores batches until no more come.
    pub(super) fn run(self) {
        let mut open = None;
        while let Ok(Batch { bytes, keys, .. }) = self.batches.recv() {
            let mut start = 0;
            let mut names = Vec::with_capacity(SWEEP);
            for part in keys.chunks(SWEEP) {
                names.clear();
                let mut at = start;
                for loose in part {
                    names.push(self.keyspace.key(&bytes[at..loose.key_end]));
                    at = loose.end;
                }
                names.iter().for_each(|name| self.keyspace.touch_slot(name));
                self.keyspace.touch_entries(part[0].db, names.iter());
                for (loose, name) in part.iter().zip(&names) {
                    self.store(name, &bytes[loose.key_end..loose.end], loose, &mut open);
                }
                start = at;
            }
        }
    }

    fn store(&self, key: &Key<'_>, string: &[u8], loose: &Loose, open: &mut Option<Open>) {
        let (db, expiry, usage) = (loose.db, loose.expiry, loose.usage);
        match &loose.content {
            Content::String { naming } => {
                self.put(db, key, NewValue::String(Str { bytes: string, naming: *naming }), expiry, usage);
            }
            Content::Hash(builder) => self.put(db, key, NewValue::Hash(builder), expiry, usage),
            Content::First(fields) => {
                let mut hash = Detached::large_hash();
                let _ = hash.add_fields(fields, self.limits);
                *open = Some(Open { db, key: key.bytes().into(), expiry, usage, hash });
            }
            Content::More { fields, is_last, offset } => {
                let hash = &mut open.as_mut().expect("the first part comes first").hash;
                if !hash.add_fields(fields, self.limits) {
                    self.faults.0.fetch_min(*offset, Ordering::Relaxed);
                }
                if *is_last && let Some(whole) = open.take() {
                    self.put_made(whole);
                }
            }
        }
    }

    fn put(&self, db: u16, key: &Key<'_>, value: NewValue<'_>, expiry: Option<Millis>, usage: Option<Usage>) {
        let mut slot = self.keyspace.lock(key.slot());
        let table = slot.table(db);
        // A file names a key once, but nothing makes it.
        let place = match table.find(key, Millis(i64::MIN)) {
            Found::Missing => table.insert(key, value, expiry),
            Found::Live(place) | Found::Expired(place) => table.replace(place, key, value, expiry).0,
        };
        if let Some(usage) = usage {
            table.set_usage(place, usage);
        }
    }

    fn put_made(&self, Open { db, key, expiry, usage, hash }: Open) {
        let key = self.keyspace.key(&key);
        let mut slot = self.keyspace.lock(key.slot());
        let table = slot.table(db);
        if let Found::Live(place) | Found::Expired(place) = table.find(&key, Millis(i64::MIN)) {
            drop(table.remove(place, &key));
        }
        let place = table.attach(&key, hash, expiry);
        if let Some(usage) = usage {
            table.set_usage(place, usage);
        }
    }
}
