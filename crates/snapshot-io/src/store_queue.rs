//! The threads that store what a load has read.
//!
//! Each has a lane, by which it gets batches of keys. A batch has several keys of many slots; they are sorted by slot
//! and stored together, so that a slot's lines are fetched once for all of them, and its table is told how many it will
//! have in the end, so that it makes room at once. A large value comes in parts; it is put together before its key is
//! made, so that no slot is held meanwhile, and at most a batch of its parts is on its way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use clock::Millis;
use keyspace::{About, Detached, Found, Keyspace, Limits, NewEntry, Packed, Usage};
use persistence::Entry;
use slot_routing::Slot;
use smallvec::SmallVec;

/// Keys whose memory is asked for at once.
const SWEEP: usize = 32;

/// The faults that the storing threads found.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Where the first large value was that had an element twice.
    twice: AtomicU64,
    /// Whether a slot could not hold what there was.
    full: AtomicBool,
}

impl Default for Faults {
    fn default() -> Self {
        Self { twice: AtomicU64::new(u64::MAX), full: AtomicBool::new(false) }
    }
}

impl Faults {
    /// Where in the file an element was seen a second time.
    pub(crate) fn twice(&self) -> Option<u64> {
        Some(self.twice.load(Ordering::Relaxed)).filter(|&offset| offset != u64::MAX)
    }

    /// Whether a slot could not hold what there was.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }
}

/// The way to a storing thread.
pub(crate) struct Lane {
    sender: SyncSender<Batch>,
    /// Batches that were stored, for their memory.
    spare: Receiver<Batch>,
    batch: Batch,
    /// A batch goes to its thread when it has so many bytes.
    share: usize,
    /// Keys that a slot will have.
    expected: usize,
}

/// The parts of a storing thread: the data, its limits, and the batches that come and go.
pub(crate) struct Storing<'a> {
    keyspace: &'a Keyspace,
    limits: Limits,
    faults: &'a Faults,
    batches: Receiver<Batch>,
    emptied: Sender<Batch>,
    share: usize,
}

/// Keys on their way to a thread; they and their values lie in `bytes`.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    keys: Vec<ReadEntry>,
    /// How many keys a slot may have in the end.
    expected: usize,
}

/// A key whose value is whole, and where it is in its batch.
struct Ordered {
    db: u16,
    slot: Slot,
    number: u32,
    about: About,
}

/// A key that was read, or a further part of its value.
struct ReadEntry {
    db: u16,
    slot: Slot,
    /// Where in the batch the key ends; it starts where the one before it ended.
    key_end: u32,
    end: u32,
    content: Content,
    expiry: Option<Millis>,
    usage: Option<Usage>,
}

/// The kind of bytes behind the key.
#[derive(Clone, Copy)]
enum Content {
    Whole(About),
    /// The first part of a large value, and where in the file the key begins.
    First {
        about: About,
        offset: u64,
    },
    /// A further part, and where it begins.
    More {
        about: About,
        is_last: bool,
        offset: u64,
    },
}

/// A large value of which parts have come.
struct Open {
    db: u16,
    key: Box<[u8]>,
    expiry: Option<Millis>,
    usage: Option<Usage>,
    value: Detached,
}

/// A lane and what is at its end. `share` is how much of all that is on its way may be on this one.
pub(crate) fn lane<'a>(
    keyspace: &'a Keyspace,
    limits: Limits,
    faults: &'a Faults,
    share: usize,
) -> (Lane, Storing<'a>) {
    let ((sender, batches), (emptied, spare)) = (sync_channel(0), channel());
    let batch = Batch::default();
    (
        Lane { sender, spare, batch, share, expected: 0 },
        Storing { keyspace, limits, faults, batches, emptied, share },
    )
}

impl Lane {
    /// Adds a key with its value, or with the first part of it. `offset` is where in the file it begins.
    pub(crate) fn add(&mut self, slot: Slot, entry: &Entry<'_>, usage: Option<Usage>, offset: u64) {
        let bytes = &mut self.batch.bytes;
        bytes.extend_from_slice(entry.key);
        let key_end = bytes.len() as u32;
        bytes.extend_from_slice(entry.value.bytes());
        let about = entry.value.about();
        let content = if entry.is_part { Content::First { about, offset } } else { Content::Whole(about) };
        let end = bytes.len() as u32;
        self.push(ReadEntry { db: entry.db, slot, key_end, end, content, expiry: entry.expiry, usage });
    }

    /// Adds a further part of the value that came last.
    pub(crate) fn add_part(&mut self, part: Packed<'_>, is_last: bool, offset: u64) {
        let key_end = self.batch.bytes.len() as u32;
        self.batch.bytes.extend_from_slice(part.bytes());
        let content = Content::More { about: part.about(), is_last, offset };
        let (end, slot) = (self.batch.bytes.len() as u32, Slot::of_key(b""));
        self.push(ReadEntry { db: 0, slot, key_end, end, content, expiry: None, usage: None });
    }

    /// From here on, a slot will have about so many keys of a database.
    pub(crate) fn expect(&mut self, keys: usize) {
        self.send();
        self.expected = keys;
    }

    fn push(&mut self, entry: ReadEntry) {
        self.batch.keys.push(entry);
        if self.batch.bytes.len() >= self.share {
            self.send();
        }
    }

    pub(crate) fn send(&mut self) {
        if !self.batch.keys.is_empty() {
            let spare = self.spare.try_recv().unwrap_or_default();
            let mut batch = std::mem::replace(&mut self.batch, spare);
            batch.expected = self.expected;
            self.sender.send(batch).expect("a storing thread ends after its sender");
        }
    }
}

impl Batch {
    /// Where a key begins.
    fn start(&self, number: usize) -> usize {
        number.checked_sub(1).map_or(0, |before| self.keys[before].end as usize)
    }

    /// A key and the bytes behind it.
    fn parts(&self, number: usize) -> (&[u8], &[u8]) {
        let loose = &self.keys[number];
        let (key_end, end) = (loose.key_end as usize, loose.end as usize);
        (&self.bytes[self.start(number)..key_end], &self.bytes[key_end..end])
    }

    /// The numbers of the keys whose values are whole, sorted by database and slot.
    fn sort(&self, order: &mut Vec<Ordered>) {
        order.clear();
        let whole = self.keys.iter().enumerate();
        order.extend(whole.filter_map(|(number, loose)| match loose.content {
            Content::Whole(about) => {
                Some(Ordered { db: loose.db, slot: loose.slot, number: number as u32, about })
            }
            Content::First { .. } | Content::More { .. } => None,
        }));
        order.sort_unstable_by_key(|ordered| (ordered.db, ordered.slot, ordered.number));
    }

    fn clear(&mut self, share: usize) {
        self.keys.clear();
        self.bytes.clear();
        // One long string needs not be there for ever.
        self.bytes.shrink_to(2 * share);
    }
}

impl Storing<'_> {
    /// Stores batches until no more come.
    pub(crate) fn run(self) {
        let (mut open, mut order) = (None, Vec::new());
        while let Ok(mut batch) = self.batches.recv() {
            self.put_together(&batch, &mut open);
            batch.sort(&mut order);
            order.chunks(SWEEP).for_each(|some| self.store(&batch, some));
            batch.clear(self.share);
            // At the end no lane takes it back.
            let _ = self.emptied.send(batch);
        }
    }

    /// Stores some keys, those of one slot together.
    fn store(&self, batch: &Batch, some: &[Ordered]) {
        let entry = |&Ordered { slot, number, about, .. }: &Ordered| {
            let loose = &batch.keys[number as usize];
            let (key, bytes) = batch.parts(number as usize);
            let (key, value) = (self.keyspace.key_in(slot, key), Packed::of(bytes, about));
            NewEntry { key, value, expiry: loose.expiry, usage: loose.usage }
        };
        let entries: SmallVec<[NewEntry<'_>; SWEEP]> = some.iter().map(entry).collect();
        entries.iter().for_each(|entry| self.keyspace.touch_slot(&entry.key));
        self.keyspace.touch_entries(some[0].db, entries.iter().map(|entry| &entry.key));
        let mut at = 0;
        for of_one in some.chunk_by(|one, other| (one.db, one.slot) == (other.db, other.slot)) {
            let Ordered { db, slot, .. } = of_one[0];
            let entries = &entries[at..at + of_one.len()];
            if !self.keyspace.lock(slot).table(db).load(entries, batch.expected) {
                self.faults.full.store(true, Ordering::Relaxed);
            }
            at += of_one.len();
        }
    }

    /// Puts large values together from their parts. One is made before its key is.
    fn put_together(&self, batch: &Batch, open: &mut Option<Open>) {
        for (number, loose) in batch.keys.iter().enumerate() {
            let (key, bytes) = batch.parts(number);
            match loose.content {
                Content::Whole(_) => {}
                Content::First { about, offset } => {
                    let part = Packed::of(bytes, about);
                    let mut value = Detached::large(part.kind());
                    self.add(&mut value, part, offset);
                    let (db, expiry, usage) = (loose.db, loose.expiry, loose.usage);
                    *open = Some(Open { db, key: key.into(), expiry, usage, value });
                }
                Content::More { about, is_last, offset } => {
                    let value = &mut open.as_mut().expect("the first part comes first").value;
                    self.add(value, Packed::of(bytes, about), offset);
                    if is_last && let Some(whole) = open.take() {
                        self.put_made(whole);
                    }
                }
            }
        }
    }

    fn add(&self, value: &mut Detached, part: Packed<'_>, offset: u64) {
        if !value.add(part, &self.limits) {
            self.faults.twice.fetch_min(offset, Ordering::Relaxed);
        }
    }

    fn put_made(&self, Open { db, key, expiry, usage, value }: Open) {
        let key = self.keyspace.key(&key);
        let mut slot = self.keyspace.lock(key.slot());
        let table = slot.table(db);
        if let Found::Live(place) | Found::Expired(place) = table.find(&key, Millis(i64::MIN)) {
            drop(table.remove(place, &key));
        }
        let place = table.attach(&key, value, expiry);
        if let Some(usage) = usage {
            table.set_usage(place, usage);
        }
    }
}
