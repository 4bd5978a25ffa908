//! The keys of one slot and one database.
//!
//! They are the entries of a store ([`crate::entries`]). Operations on values of all kinds are here, those on values
//! of one kind in that kind's module.
mod bulk_load;
mod detached;

use clock::Millis;

use crate::entries::{Body, Content, Entries, Found, Place};
use crate::entry::Marks;
use crate::key::Key;
use crate::kind::{Form, Kind, Naming};
use crate::large::{Collection, Large};
use crate::overflow::{Outside, Record, Shape};
use crate::packed::Packed;
use crate::pages::Crowding;
use crate::usage::Usage;
use crate::value::{Typed, Value};

pub use bulk_load::NewEntry;
pub use detached::Detached;

/// A value that a removal took out of the table. Dropping it frees the memory, which for a large value takes
/// time: the caller may drop it elsewhere.
#[derive(Debug, Default)]
#[must_use = "dropping a large value takes time: decide where"]
pub struct Dropped {
    record: Option<Record<Large>>,
}

/// From a part of a value that stays.
impl From<Large> for Dropped {
    fn from(value: Large) -> Self {
        Self { record: Some(value.into()) }
    }
}

impl Dropped {
    /// A value that was in no entry of its own.
    pub(crate) fn of(value: Large) -> Self {
        Self { record: Some(Record::loose(value)) }
    }

    /// Bytes of the heap that dropping it gives back.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.record.as_ref().map_or(0, Record::bytes)
    }
}

/// One key that a scan passes.
#[derive(Debug, Clone, Copy)]
pub struct ScanItem<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The kind of its value.
    pub kind: Kind,
    /// When it expires, if it does.
    pub expiry: Option<Millis>,
    /// When and how often it was used.
    pub usage: Usage,
}

/// The keys of one slot and one database.
#[derive(Debug, Default)]
pub struct Table {
    pub(crate) entries: Entries<Large>,
}

impl Table {
    /// How many keys it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys have a time to live.
    #[must_use]
    pub fn volatile_len(&self) -> usize {
        self.entries.volatile_len()
    }

    /// How many keys have values whose elements expire.
    #[must_use]
    #[inline]
    pub fn timed_len(&self) -> usize {
        self.entries.parts_due_len()
    }

    /// Looks `key` up.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key<'_>, now: Millis) -> Found {
        self.entries.find(key, now)
    }

    /// Looks `key` up, and says when and how often it was used, if it is there.
    #[must_use]
    #[inline]
    pub fn find_with_usage(&self, key: &Key<'_>, now: Millis) -> (Found, Usage) {
        self.entries.find_with_usage(key, now)
    }

    /// The value at `place`.
    #[must_use]
    #[inline(always)]
    pub fn value(&self, place: Place) -> Value<'_> {
        let (code, body) = self.entries.value(place);
        match body {
            Body::Here(bytes) => Value::flat(Form::of(code), bytes),
            Body::Outside(large) => Value::outside(Form::of(code), large),
        }
    }

    /// The kind of the value at `place`.
    #[must_use]
    #[inline]
    pub fn kind(&self, place: Place) -> Kind {
        Form::of(self.entries.code(place)).kind()
    }

    /// The value, if it is of that kind.
    #[must_use]
    #[inline]
    pub fn typed<T: Typed>(&self, place: Place) -> Option<T::At<'_>> {
        T::of(self.value(place))
    }

    /// The time at which the key expires.
    #[must_use]
    #[inline]
    pub fn expiry(&self, place: Place) -> Option<Millis> {
        self.entries.expiry(place)
    }

    /// When and how often the key was used.
    #[must_use]
    pub fn usage(&self, place: Place) -> Usage {
        self.entries.usage(place)
    }

    /// The key was used. Writes only a change.
    #[inline]
    pub fn set_usage(&mut self, place: Place, usage: Usage) {
        self.entries.set_usage(place, usage);
    }

    /// Visits about `count` keys in the order of their hashes from position `from` on; returns the
    /// position to go on from, or `None` at the end. A key that stays from the first call to the last
    /// is visited at least once, however the table grows or shrinks in between. The low 16 bits of a
    /// position are zero.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(ScanItem<'_>)) -> Option<u64> {
        self.entries.scan(from, count, &mut |place| visit(self.item(place)))
    }

    /// A key chosen by `random`, a uniform random number.
    #[must_use]
    pub fn random(&self, random: u64) -> Option<ScanItem<'_>> {
        self.entries.random(random).map(|place| self.item(place))
    }

    /// Visits a key for each of these uniform random numbers; their reads overlap.
    pub fn sample(&self, randoms: &[u64], visit: &mut dyn FnMut(ScanItem<'_>)) {
        self.entries.sample(randoms, &mut |place| visit(self.item(place)));
    }

    /// A random one of the keys that expire: one of a page chosen by chance, in a table in which few keys do.
    #[must_use]
    pub fn random_volatile(&self, random: u64) -> Option<ScanItem<'_>> {
        self.entries.random_volatile(random).map(|place| self.item(place))
    }

    fn item(&self, place: Place) -> ScanItem<'_> {
        let (kind, expiry, usage) = (self.kind(place), self.expiry(place), self.usage(place));
        ScanItem { key: self.entries.key(place), kind, expiry, usage }
    }

    /// Stores a value under a key that is not there.
    pub fn insert(&mut self, key: &Key<'_>, value: Packed<'_>, expiry: Option<Millis>) -> Place {
        self.insert_used(key, value, expiry, Usage::of_new().0)
    }

    fn insert_used(&mut self, key: &Key<'_>, value: Packed<'_>, expiry: Option<Millis>, usage: u16) -> Place {
        let (marks, bytes) = (Marks { code: value.form().code(), usage, expiry }, value.bytes());
        let place = if value.stays_packed() {
            self.entries.insert(key, Content { marks, bytes, len: bytes.len() })
        } else {
            let mut large = Large::empty(value.kind());
            large.add(value);
            self.entries.insert_outside(key, marks, large)
        };
        if value.any_expires() {
            self.note_parts_due(place, key);
        }
        place
    }

    /// Stores another value and expiry under the key that lies at `place`.
    pub fn replace(
        &mut self,
        place: Place,
        key: &Key<'_>,
        value: Packed<'_>,
        expiry: Option<Millis>,
    ) -> (Place, Dropped) {
        // A string of the same length is written where the one before it lies.
        let form = value.form();
        if !form.is_collection() && self.entries.overwrite(place, value.bytes(), form.code(), expiry) {
            return (place, Dropped::default());
        }
        let usage = self.usage(place);
        self.entries.forget_parts_due(key.bytes);
        let record = self.entries.remove_quietly(place, key.hash);
        (self.insert_used(key, value, expiry, usage.0), Dropped { record })
    }

    /// Changes when the key expires; `None` makes it stay.
    pub fn set_expiry(&mut self, place: Place, key: &Key<'_>, expiry: Option<Millis>) -> Place {
        self.entries.set_expiry(place, key, expiry)
    }

    /// Makes the string at `place` `len` bytes long, keeping what it has and filling with zeros, and
    /// gives its bytes for editing. The expiry stays.
    pub fn edit_string(
        &mut self,
        place: Place,
        key: &Key<'_>,
        len: usize,
        naming: Naming,
    ) -> (Place, &mut [u8]) {
        self.entries.edit(place, key, len, Form::from(naming).code())
    }

    /// Takes the key out.
    pub fn remove(&mut self, place: Place, key: &Key<'_>) -> Dropped {
        self.entries.forget_parts_due(key.bytes);
        Dropped { record: self.entries.remove(place, key) }
    }

    /// [`Table::remove`] for a caller that needs the memory now: the key's page is made shorter at once.
    pub fn evict(&mut self, place: Place, key: &Key<'_>) -> Dropped {
        self.entries.forget_parts_due(key.bytes);
        Dropped { record: self.entries.evict(place, key) }
    }

    /// Takes out one key whose time has come and puts it into `key`; says whether there was one.
    pub fn pop_due(&mut self, now: Millis, key: &mut Vec<u8>) -> Option<Dropped> {
        let record = self.entries.pop_due(now, key)?;
        self.entries.forget_parts_due(key);
        Some(Dropped { record })
    }

    /// When the next key or element of a value expires, or a time before that.
    #[must_use]
    #[inline]
    pub fn next_due(&self) -> Option<Millis> {
        self.entries.next_due()
    }

    /// Notes when the next element of the value at `place` expires.
    pub(crate) fn note_parts_due(&mut self, place: Place, key: &Key<'_>) {
        if let Some(due) = self.value(place).next_due() {
            self.entries.note_parts_due(key.bytes, due);
        }
    }

    /// Elements of the value at `place` went, or stay now: it may have none left that expire.
    #[inline]
    pub(crate) fn update_parts_due(&mut self, place: Place, key: &Key<'_>) {
        if self.entries.has_parts_due(key.bytes) && self.value(place).next_due().is_none() {
            self.entries.forget_parts_due(key.bytes);
        }
    }

    /// Puts a large value in the place of a packed one; the other things that the entry says stay.
    pub(crate) fn make_large(&mut self, place: Place, key: &Key<'_>, large: Large) -> Place {
        let marks = self.entries.marks(place);
        drop(self.entries.remove_quietly(place, key.hash));
        self.entries.insert_outside(key, marks, large)
    }

    /// Bytes that deleting the key gives back, at once or with its page's next compaction: the entry, its
    /// share of the index and of the free bytes in pages, and its record outside. Those of all keys add
    /// up to the bytes that the table holds, without its dead bytes.
    #[must_use]
    pub fn entry_bytes(&self, place: Place) -> usize {
        self.entries.entry_bytes(place)
    }

    /// Bytes of the entries that are alive, without those that large values take outside.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.entries.live_bytes()
    }

    /// Bytes that the table takes: pages, index and records outside.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.entries.held_bytes()
    }

    /// Bytes of the structures that find the keys: the index and the list of pages.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        self.entries.overhead_bytes()
    }

    /// Gets the dead bytes of up to `pages` pages back, if there are so many that it is worth it; returns how many of
    /// `pages` are left.
    pub fn tidy(&mut self, pages: usize) -> usize {
        let mut left = pages;
        while left > 0 && self.entries.is_untidy() && self.entries.tidy() {
            left -= 1;
        }
        left
    }

    /// Whether a value may be so large that it lies outside.
    #[must_use]
    #[inline]
    pub fn may_have_large(&self) -> bool {
        self.entries.may_have_records()
    }

    /// About how much dropping the table gives back, without a look at all of it.
    #[must_use]
    pub fn rough_bytes(&self) -> usize {
        self.entries.rough_bytes()
    }

    /// How full the table, or the value under `key`, is.
    pub(crate) fn crowding(&self, key: &Key<'_>) -> Crowding {
        let value = match self.find(key, Millis(i64::MIN)) {
            Found::Live(place) | Found::Expired(place) => self.entries.value(place).1,
            Found::Missing => Body::Here(&[]),
        };
        let of_value = match value {
            Body::Here(_) => Crowding::Free,
            Body::Outside(large) => match large.shape() {
                Shape::Flat(_) => Crowding::Free,
                Shape::Collection(collection) => collection.crowding(),
            },
        };
        self.entries.crowding().max(of_value)
    }

    /// The large collection that is most likely under a key with this hash. Only a hint.
    #[inline]
    pub(crate) fn likely_collection(&self, hash: u64) -> Option<&dyn Collection> {
        match self.entries.likely_outside(hash)? {
            Shape::Collection(collection) => Some(collection),
            Shape::Flat(_) => None,
        }
    }
}
