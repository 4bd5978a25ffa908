//! Looking keys up, one after another or those of a batch ahead, and passing over all of them.

use clock::Millis;

use super::{Place, Table};
use crate::entry::Header;
use crate::hash::{HashRef, Shape};
use crate::key::{self, Key};
use crate::outside::Large;
use crate::pages;
use crate::usage::Usage;
use crate::value::{Kind, Str, Value};

/// What a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Missing,
    /// There, but past its time: a master removes it, a replica treats it as missing.
    Expired(Place),
    Live(Place),
}

/// One entry that a scan passes.
#[derive(Debug, Clone, Copy)]
pub struct ScanItem<'a> {
    pub key: &'a [u8],
    pub kind: Kind,
    pub expiry: Option<Millis>,
}

/// The value that an entry has as bytes.
pub(crate) fn flat_value(header: Header, bytes: &[u8]) -> Value<'_> {
    match header.kind() {
        Kind::Hash => {
            Value::Hash(HashRef { shape: Shape::Packed(bytes), named_table: header.mark().is_on() })
        }
        _ => Value::String(Str { bytes, naming: header.mark().into() }),
    }
}

impl Table {
    /// Looks `key` up.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key<'_>, now: Millis) -> Found {
        self.find_with_usage(key, now).0
    }

    /// Looks `key` up, and says when and how often it was used, if it is there.
    #[must_use]
    #[inline]
    pub fn find_with_usage(&self, key: &Key<'_>, now: Millis) -> (Found, Usage) {
        let mut found = (Found::Missing, Usage(0));
        self.index.find(key.hash, |reference| match self.seen_at(reference, key, now) {
            None => false,
            Some(seen) => {
                found = seen;
                true
            }
        });
        found
    }

    /// The same, where an entry is known that it most likely is.
    #[inline(always)]
    pub(crate) fn find_likely(&self, likely: Option<u32>, key: &Key<'_>, now: Millis) -> (Found, Usage) {
        match likely.and_then(|reference| self.seen_at(reference, key, now)) {
            Some(found) => found,
            None => self.find_with_usage(key, now),
        }
    }

    /// What a lookup of `key` finds if its entry is this one.
    #[inline(always)]
    fn seen_at(&self, reference: u32, key: &Key<'_>, now: Millis) -> Option<(Found, Usage)> {
        let (header, page, at) = self.pages.entry(reference);
        if !key::same(self.keys().key_of(header, page, at), key.bytes) {
            return None;
        }
        let place = Place(reference);
        let expired = header.expiry(page, at).is_some_and(|expiry| expiry <= now);
        let found = if expired { Found::Expired(place) } else { Found::Live(place) };
        Some((found, Usage(header.usage(page, at))))
    }

    #[must_use]
    #[inline]
    pub fn value(&self, place: Place) -> Value<'_> {
        let (header, page, at) = self.pages.entry(place.0);
        self.value_of(header, page, at)
    }

    #[inline(always)]
    pub(super) fn value_of<'a>(&'a self, header: Header, page: &'a [u8], at: usize) -> Value<'a> {
        let bytes = match header.outside(page, at) {
            None => header.value(page, at),
            Some(number) => match &self.store().record(number).value {
                Large::Bytes(bytes) => bytes,
                Large::Fields(table) => {
                    let named_table = header.mark().is_on();
                    return Value::Hash(HashRef { shape: Shape::Table(table), named_table });
                }
            },
        };
        flat_value(header, bytes)
    }

    /// The time at which the entry expires.
    #[must_use]
    #[inline]
    pub fn expiry(&self, place: Place) -> Option<Millis> {
        let (header, page, at) = self.pages.entry(place.0);
        header.expiry(page, at)
    }

    /// Visits about `count` entries in the order of their hashes from position `from` on; returns the
    /// position to go on from, or `None` at the end. An entry that stays from the first call to the last
    /// is visited at least once, however the table grows or shrinks in between. The low 16 bits of a
    /// position are zero.
    pub fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(ScanItem<'_>)) -> Option<u64> {
        let (mut position, mut visited) = (from, 0);
        loop {
            let next = self.index.visit(position, &self.keys(), |reference| {
                visited += 1;
                visit(self.item(reference));
            });
            match next {
                Some(next) if visited < count => position = next,
                next => return next,
            }
        }
    }

    /// An entry chosen by `random`, a uniform random number.
    #[must_use]
    pub fn random(&self, random: u64) -> Option<ScanItem<'_>> {
        self.index.pick(random).map(|reference| self.item(reference))
    }

    fn item(&self, reference: u32) -> ScanItem<'_> {
        let (header, page, at) = self.pages.entry(reference);
        ScanItem { key: self.keys().key(reference), kind: header.kind(), expiry: header.expiry(page, at) }
    }

    /// Second sweep: asks for the index line.
    pub(crate) fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
        self.pages.prefetch_list();
    }

    /// Third sweep: asks for the entry, or, if there is none, for the page that a new one would go to. Returns the
    /// entry's reference.
    pub(crate) fn prefetch_entry(&self, hash: u64) -> Option<u32> {
        let likely = self.index.likely(hash);
        self.pages.prefetch(likely.unwrap_or_else(|| pages::reference(self.open as usize, 0)));
        likely
    }

    /// The large collection that is most likely under a key with this hash. Only a hint.
    #[inline]
    pub(crate) fn likely_parts(&self, hash: u64) -> Option<&Table> {
        // Without records nothing here is large.
        let store = &self.rare.as_ref()?.store;
        let (header, page, at) = self.pages.entry(self.index.likely(hash)?);
        match &store.record(header.outside(page, at)?).value {
            Large::Fields(table) => Some(table),
            Large::Bytes(_) => None,
        }
    }
}
