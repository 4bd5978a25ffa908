//! The keys of one slot and one database.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use clock::Millis;

use crate::key::Key;
use crate::value::{Kind, NewValue, Str, Value};

/// Where an entry lies. Good until the next change to its table; after that, use what the change returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

/// What a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Missing,
    /// There, but past its time: a master removes it, a replica treats it as missing.
    Expired(Place),
    Live(Place),
}

/// What a removal took out of the table. Dropping it frees the memory, which for a large value takes
/// time: the caller may drop it elsewhere.
#[derive(Debug)]
#[must_use = "dropping a large value takes time: decide where"]
pub struct Dropped {
    #[expect(dead_code, reason = "kept only to be dropped")]
    entry: Option<Entry>,
}

/// One entry that a scan passes.
#[derive(Debug, Clone, Copy)]
pub struct ScanItem<'a> {
    pub key: &'a [u8],
    pub kind: Kind,
    pub expiry: Option<Millis>,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Box<[u8]>,
    hash: u64,
    pub(crate) expiry: Option<Millis>,
    bytes: Vec<u8>,
    raw: bool,
}

impl Entry {
    pub(crate) fn value(&self) -> Value<'_> {
        Value::String(Str { bytes: &self.bytes, raw: self.raw })
    }
}

/// The keys of one slot and one database.
#[derive(Debug, Default, Clone)]
pub struct Table {
    places: HashMap<Box<[u8]>, u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    order: BTreeMap<(u64, Box<[u8]>), u32>,
    due: BTreeSet<(Millis, u32)>,
}

impl Table {
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How many keys have a time to live.
    #[must_use]
    pub fn volatile_len(&self) -> usize {
        self.due.len()
    }

    /// Looks `key` up.
    #[must_use]
    pub fn find(&self, key: &Key<'_>, now: Millis) -> Found {
        match self.places.get(key.bytes) {
            None => Found::Missing,
            Some(&place) => match self.entry(Place(place)).expiry {
                Some(expiry) if expiry <= now => Found::Expired(Place(place)),
                _ => Found::Live(Place(place)),
            },
        }
    }

    #[must_use]
    pub fn value(&self, place: Place) -> Value<'_> {
        self.entry(place).value()
    }

    /// The time at which the entry expires.
    #[must_use]
    pub fn expiry(&self, place: Place) -> Option<Millis> {
        self.entry(place).expiry
    }

    /// Stores a value under a key that is not there.
    pub fn insert(&mut self, key: &Key<'_>, value: NewValue<'_>, expiry: Option<Millis>) -> Place {
        debug_assert!(!self.places.contains_key(key.bytes), "insert is for a key that is missing");
        let NewValue::String(Str { bytes, raw }) = value;
        let entry = Entry { key: key.bytes.into(), hash: key.hash, expiry, bytes: bytes.to_vec(), raw };
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[place as usize] = Some(entry);
        self.places.insert(key.bytes.into(), place);
        self.order.insert((key.hash, key.bytes.into()), place);
        if let Some(expiry) = expiry {
            self.due.insert((expiry, place));
        }
        Place(place)
    }

    /// Stores another value and expiry under the key that lies at `place`.
    pub fn replace(
        &mut self,
        place: Place,
        key: &Key<'_>,
        value: NewValue<'_>,
        expiry: Option<Millis>,
    ) -> (Place, Dropped) {
        let dropped = self.remove(place, key);
        (self.insert(key, value, expiry), dropped)
    }

    /// Changes when the entry expires; `None` makes it stay.
    pub fn set_expiry(&mut self, place: Place, _key: &Key<'_>, expiry: Option<Millis>) -> Place {
        let before = std::mem::replace(&mut self.entry_mut(place).expiry, expiry);
        if let Some(before) = before {
            self.due.remove(&(before, place.0));
        }
        if let Some(expiry) = expiry {
            self.due.insert((expiry, place.0));
        }
        place
    }

    /// Makes the string at `place` `len` bytes long, keeping what it has and filling with zeros, and
    /// gives its bytes for editing. The expiry stays. `raw` is the string's new mark.
    pub fn edit_string(&mut self, place: Place, _key: &Key<'_>, len: usize, raw: bool) -> (Place, &mut [u8]) {
        let entry = self.entry_mut(place);
        entry.raw = raw;
        entry.bytes.resize(len, 0);
        (place, &mut entry.bytes)
    }

    /// Takes the entry out.
    pub fn remove(&mut self, place: Place, key: &Key<'_>) -> Dropped {
        let entry = self.entries[place.0 as usize].take().expect("a place is good until the next change");
        debug_assert_eq!(&*entry.key, key.bytes);
        self.unlink(place, &entry);
        Dropped { entry: Some(entry) }
    }

    /// Takes out one entry whose time has come and puts its key into `key`; says whether there was one.
    pub fn pop_due(&mut self, now: Millis, key: &mut Vec<u8>) -> Option<Dropped> {
        let &(expiry, place) = self.due.first()?;
        if expiry > now {
            return None;
        }
        let entry = self.entries[place as usize].take().expect("what is due is there");
        self.unlink(Place(place), &entry);
        key.clear();
        key.extend_from_slice(&entry.key);
        Some(Dropped { entry: Some(entry) })
    }

    /// When the next entry expires.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        self.due.first().map(|&(expiry, _)| expiry)
    }

    /// Visits about `count` entries in the order of their hashes from position `from` on; returns the
    /// position to go on from, or `None` at the end. An entry that stays from the first call to the last
    /// is visited at least once, however the table grows or shrinks in between.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(ScanItem<'_>)) -> Option<u64> {
        for (visited, (&(hash, _), &place)) in self.order.range((from, Box::default())..).enumerate() {
            if visited >= count {
                return Some(hash);
            }
            let entry = self.entry(Place(place));
            visit(ScanItem { key: &entry.key, kind: entry.value().kind(), expiry: entry.expiry });
        }
        None
    }

    /// An entry chosen by `random`, a uniform random number.
    #[must_use]
    pub fn random(&self, random: u64) -> Option<ScanItem<'_>> {
        let len = self.places.len() as u64;
        let place = *self.order.values().nth(random.checked_rem(len)? as usize)?;
        let entry = self.entry(Place(place));
        Some(ScanItem { key: &entry.key, kind: entry.value().kind(), expiry: entry.expiry })
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    fn entry(&self, place: Place) -> &Entry {
        self.entries[place.0 as usize].as_ref().expect("a place is good until the next change")
    }

    fn entry_mut(&mut self, place: Place) -> &mut Entry {
        self.entries[place.0 as usize].as_mut().expect("a place is good until the next change")
    }

    fn unlink(&mut self, place: Place, entry: &Entry) {
        self.places.remove(&entry.key);
        self.order.remove(&(entry.hash, entry.key.clone()));
        if let Some(expiry) = entry.expiry {
            self.due.remove(&(expiry, place.0));
        }
        self.free.push(place.0);
    }
}
