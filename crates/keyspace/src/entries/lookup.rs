//! Looks up keys, one at a time or prefetched in batches, and iterates over entries.

use clock::Millis;
use smallvec::SmallVec;

use super::{Entries, EntryRef};
use crate::entry::{self, EntryAttributes, Header, TypeCode};
use crate::key::{self, Key};
use crate::overflow::{OverflowShape, OverflowValue};
use crate::page;
use crate::pages;
use crate::usage::Usage;

/// The result of a key lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLookup {
    /// The key does not exist.
    Missing,
    /// The key exists but has expired. A master deletes such a key; a replica treats it as missing.
    Expired(EntryRef),
    /// The key exists and has not expired.
    Live(EntryRef),
}

/// A stored value: bytes in the page, or an overflow value.
pub(crate) enum StoredValue<'a, V> {
    Inline(&'a [u8]),
    Overflow(&'a V),
}

impl<V: OverflowValue> Entries<V> {
    /// Looks up `key`, which may have expired at `now`.
    #[inline]
    pub(crate) fn find(&self, key: &Key<'_>, now: Millis) -> KeyLookup {
        self.find_with_usage(key, now).0
    }

    /// Looks up `key` and also returns its usage counters if it exists.
    #[inline]
    pub(crate) fn find_with_usage(&self, key: &Key<'_>, now: Millis) -> (KeyLookup, Usage) {
        let mut found = (KeyLookup::Missing, Usage(0));
        self.index.find(key.hash, |reference| match self.check_reference(reference, key, now) {
            None => false,
            Some(seen) => {
                found = seen;
                true
            }
        });
        found
    }

    /// Like [`Self::find_with_usage`], but checks the entry `likely_reference` first.
    #[inline(always)]
    pub(crate) fn find_with_hint(
        &self,
        likely_reference: Option<u32>,
        key: &Key<'_>,
        now: Millis,
    ) -> (KeyLookup, Usage) {
        match likely_reference.and_then(|reference| self.check_reference(reference, key, now)) {
            Some(found) => found,
            None => self.find_with_usage(key, now),
        }
    }

    /// Checks whether the entry `reference` has this key. Returns the lookup result if it has.
    #[inline(always)]
    fn check_reference(&self, reference: u32, key: &Key<'_>, now: Millis) -> Option<(KeyLookup, Usage)> {
        let (header, page, at) = self.pages.entry(reference);
        if !key::bytes_equal(self.entry_keys().name_of(header, page, at), key.bytes) {
            return None;
        }
        let place = EntryRef(reference);
        let expired = header.expiry(page, at).is_some_and(|expiry| expiry <= now);
        let found = if expired { KeyLookup::Expired(place) } else { KeyLookup::Live(place) };
        Some((found, Usage(header.usage(page, at))))
    }

    #[inline(always)]
    pub(crate) fn value(&self, entry_ref: EntryRef) -> (TypeCode, StoredValue<'_, V>) {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        (header.type_code(), self.stored_value_of(header, page, at))
    }

    #[inline(always)]
    pub(super) fn stored_value_of<'a>(
        &'a self,
        header: Header,
        page: &'a [u8],
        at: usize,
    ) -> StoredValue<'a, V> {
        match header.record_number(page, at) {
            None => StoredValue::Inline(header.value(page, at)),
            Some(number) => StoredValue::Overflow(&self.records().record(number).value),
        }
    }

    /// Returns the key, value bytes and expiry of an entry whose value is plain bytes.
    #[inline]
    pub(crate) fn flat_entry(&self, entry_ref: EntryRef) -> (&[u8], &[u8], Option<Millis>) {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let names = self.entry_keys();
        (names.name_of(header, page, at), names.overflow_value(header, page, at), header.expiry(page, at))
    }

    #[inline]
    pub(crate) fn expiry(&self, entry_ref: EntryRef) -> Option<Millis> {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        header.expiry(page, at)
    }

    /// Returns all attributes of the entry besides key and value.
    pub(crate) fn attributes(&self, entry_ref: EntryRef) -> EntryAttributes {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        header.attributes(page, at)
    }

    /// Returns the entry's code, which identifies its type.
    #[inline]
    pub(crate) fn type_code(&self, entry_ref: EntryRef) -> TypeCode {
        self.pages.entry(entry_ref.0).0.type_code()
    }

    #[inline]
    pub(crate) fn key(&self, entry_ref: EntryRef) -> &[u8] {
        self.entry_keys().name(entry_ref.0)
    }

    /// Visits about `count` entries in hash order, starting at position `from`. Returns the next position, or `None` at
    /// the end. An entry that exists during the whole scan is visited at least once, even if the store grows or shrinks
    /// meanwhile. The low 16 bits of a position are zero.
    pub(crate) fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(EntryRef)) -> Option<u64> {
        let (mut position, mut visited) = (from, 0);
        loop {
            let next = self.index.visit(position, &self.entry_keys(), |reference| {
                visited += 1;
                visit(EntryRef(reference));
            });
            match next {
                Some(next) if visited < count => position = next,
                next => return next,
            }
        }
    }

    /// Visits all entries in arbitrary order until `visit` returns false. Returns whether all were visited.
    pub(crate) fn visit_all(&self, visit: &mut dyn FnMut(EntryRef) -> bool) -> bool {
        self.index.visit_all(&self.entry_keys(), |reference| visit(EntryRef(reference)))
    }

    /// Picks an entry by `random`, a uniform random number.
    pub(crate) fn random_entry(&self, random: u64) -> Option<EntryRef> {
        self.index.random_reference(random).map(EntryRef)
    }

    /// Visits one entry per random number. All memory reads are issued together, which hides cache misses.
    pub(crate) fn sample(&self, randoms: &[u64], visit: &mut dyn FnMut(EntryRef)) {
        randoms.iter().for_each(|&random| self.index.prefetch(random));
        let found = randoms.iter().filter_map(|&random| self.index.random_reference(random));
        let found: SmallVec<[u32; 8]> = found.inspect(|&reference| self.pages.prefetch(reference)).collect();
        found.into_iter().for_each(|reference| visit(EntryRef(reference)));
    }

    /// Picks a random entry that has an expiry. If such entries are rare, only a few pages are searched, so that none
    /// may be found in a large store.
    pub(crate) fn random_volatile_entry(&self, random: u64) -> Option<EntryRef> {
        const MAX_ATTEMPTS: usize = 8;
        const MAX_EXAMINED_ENTRIES: usize = 256;
        if self.volatile == 0 {
            return None;
        }
        let mut seed = random;
        for _ in 0..MAX_ATTEMPTS {
            let found = self.random_entry(seed).filter(|place| self.expiry(*place).is_some());
            if found.is_some() {
                return found;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        let count = self.pages.count();
        let start = ((seed >> 32) as usize).checked_rem(count)?;
        let some = || (start..count).chain(0..start).take(MAX_EXAMINED_ENTRIES);
        let may_have = |number: &usize| {
            self.pages
                .existing_page(*number)
                .is_some_and(|page| page::earliest_expiry(page) < page::NO_EXPIRY)
        };
        // A page's bound can be stale because its entry was removed, and is inexact for times far in the future.
        let found = some().filter(may_have).find_map(|number| self.random_volatile_in_page(number, seed));
        let found = found.or_else(|| self.random_volatile_in_page(self.earliest_page().0, seed));
        found.or_else(|| some().find_map(|number| self.random_volatile_in_page(number, seed)))
    }

    /// Picks an entry with an expiry from this page.
    fn random_volatile_in_page(&self, number: usize, random: u64) -> Option<EntryRef> {
        let page = self.pages.existing_page(number)?;
        let expires =
            |&(_, header): &(usize, Header)| header.state() == entry::STATE_ALIVE && header.has_expiry();
        let count = page::entries(page, page::HEADER_LEN).filter(expires).count() as u64;
        let chosen = (random >> 32).checked_rem(count)?;
        let (at, _) = page::entries(page, page::HEADER_LEN).filter(expires).nth(chosen as usize)?;
        Some(EntryRef(pages::reference(number, at)))
    }

    /// Prefetches the index segment of `hash`. In a large store, batches call this before [`Self::prefetch_index`].
    pub(crate) fn prefetch_segment(&self, hash: u64) {
        self.index.prefetch_segment(hash);
    }

    /// Prefetches the index line of `hash` (second pass of a batch).
    pub(crate) fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
        self.pages.prefetch_list();
    }

    /// Prefetches the entry with this hash, or the page that a new entry would go to, and returns the likely
    /// entry reference (third pass of a batch).
    pub(crate) fn prefetch_entry(&self, hash: u64) -> Option<u32> {
        let likely = self.index.probable_reference(hash);
        self.pages.prefetch(likely.unwrap_or_else(|| pages::reference(self.open_page as usize, 0)));
        likely
    }

    pub(crate) fn prefetch_at(&self, entry_ref: EntryRef) {
        self.pages.prefetch(entry_ref.0);
    }

    /// Returns the overflow value that most likely belongs to a key with this hash. The key is not compared.
    #[inline]
    pub(crate) fn probable_overflow(&self, hash: u64) -> Option<OverflowShape<'_>> {
        let store = &self.extras.as_ref()?.records;
        let (header, page, at) = self.pages.entry(self.index.probable_reference(hash)?);
        Some(store.record(header.record_number(page, at)?).value.shape())
    }
}
