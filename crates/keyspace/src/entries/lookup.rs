//! Looking keys up, one after another or those of a batch ahead, and passing over all of them.

use clock::Millis;
use smallvec::SmallVec;

use super::{Entries, Place};
use crate::entry::{self, Code, Header, Marks};
use crate::key::{self, Key};
use crate::overflow::{Outside, Shape};
use crate::page;
use crate::pages;
use crate::usage::Usage;

/// The outcome of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It is not there.
    Missing,
    /// There, but past its time: a master removes it, a replica treats it as missing.
    Expired(Place),
    /// It is there and has not expired.
    Live(Place),
}

/// A value as it lies.
pub(crate) enum Body<'a, V> {
    Here(&'a [u8]),
    Outside(&'a V),
}

impl<V: Outside> Entries<V> {
    /// Looks `key` up.
    #[inline]
    pub(crate) fn find(&self, key: &Key<'_>, now: Millis) -> Found {
        self.find_with_usage(key, now).0
    }

    /// Looks `key` up, and says when and how often it was used, if it is there.
    #[inline]
    pub(crate) fn find_with_usage(&self, key: &Key<'_>, now: Millis) -> (Found, Usage) {
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

    /// The outcome of a lookup of `key`, if this entry is the key's.
    #[inline(always)]
    fn seen_at(&self, reference: u32, key: &Key<'_>, now: Millis) -> Option<(Found, Usage)> {
        let (header, page, at) = self.pages.entry(reference);
        if !key::same(self.names().name_of(header, page, at), key.bytes) {
            return None;
        }
        let place = Place(reference);
        let expired = header.expiry(page, at).is_some_and(|expiry| expiry <= now);
        let found = if expired { Found::Expired(place) } else { Found::Live(place) };
        Some((found, Usage(header.usage(page, at))))
    }

    /// The entry's code and value.
    #[inline(always)]
    pub(crate) fn value(&self, place: Place) -> (Code, Body<'_, V>) {
        let (header, page, at) = self.pages.entry(place.0);
        (header.code(), self.body_of(header, page, at))
    }

    #[inline(always)]
    pub(super) fn body_of<'a>(&'a self, header: Header, page: &'a [u8], at: usize) -> Body<'a, V> {
        match header.outside(page, at) {
            None => Body::Here(header.value(page, at)),
            Some(number) => Body::Outside(&self.store().record(number).value),
        }
    }

    /// The key, the value, which is flat, and the time at which the entry expires.
    #[inline]
    pub(crate) fn flat_entry(&self, place: Place) -> (&[u8], &[u8], Option<Millis>) {
        let (header, page, at) = self.pages.entry(place.0);
        let names = self.names();
        (names.name_of(header, page, at), names.value_of(header, page, at), header.expiry(page, at))
    }

    /// The time at which the entry expires.
    #[inline]
    pub(crate) fn expiry(&self, place: Place) -> Option<Millis> {
        let (header, page, at) = self.pages.entry(place.0);
        header.expiry(page, at)
    }

    /// The entry's attributes: all that it has besides its key and value.
    pub(crate) fn marks(&self, place: Place) -> Marks {
        let (header, page, at) = self.pages.entry(place.0);
        header.marks(page, at)
    }

    /// The entry's code, which says its type.
    #[inline]
    pub(crate) fn code(&self, place: Place) -> Code {
        self.pages.entry(place.0).0.code()
    }

    #[inline]
    pub(crate) fn key(&self, place: Place) -> &[u8] {
        self.names().name(place.0)
    }

    /// Visits about `count` entries in the order of their hashes from position `from` on; returns the
    /// position to go on from, or `None` at the end. An entry that stays from the first call to the last
    /// is visited at least once, however the store grows or shrinks in between. The low 16 bits of a
    /// position are zero.
    pub(crate) fn scan(&self, from: u64, count: usize, visit: &mut dyn FnMut(Place)) -> Option<u64> {
        let (mut position, mut visited) = (from, 0);
        loop {
            let next = self.index.visit(position, &self.names(), |reference| {
                visited += 1;
                visit(Place(reference));
            });
            match next {
                Some(next) if visited < count => position = next,
                next => return next,
            }
        }
    }

    /// Visits all entries, in any order, until `visit` says no; says whether it never did.
    pub(crate) fn visit_all(&self, visit: &mut dyn FnMut(Place) -> bool) -> bool {
        self.index.visit_all(&self.names(), |reference| visit(Place(reference)))
    }

    /// An entry chosen by `random`, a uniform random number.
    pub(crate) fn random(&self, random: u64) -> Option<Place> {
        self.index.pick(random).map(Place)
    }

    /// Visits an entry for each of these uniform random numbers, whose reads overlap.
    pub(crate) fn sample(&self, randoms: &[u64], visit: &mut dyn FnMut(Place)) {
        randoms.iter().for_each(|&random| self.index.prefetch(random));
        let found = randoms.iter().filter_map(|&random| self.index.pick(random));
        let found: SmallVec<[u32; 8]> = found.inspect(|&reference| self.pages.prefetch(reference)).collect();
        found.into_iter().for_each(|reference| visit(Place(reference)));
    }

    /// A random one of the entries that expire. Where they are few, one of a page that has some; where they are very
    /// few in a large store it may find none.
    pub(crate) fn random_volatile(&self, random: u64) -> Option<Place> {
        const TRIES: usize = 8;
        const LOOK_AT: usize = 256;
        if self.volatile == 0 {
            return None;
        }
        let mut seed = random;
        for _ in 0..TRIES {
            let found = self.random(seed).filter(|place| self.expiry(*place).is_some());
            if found.is_some() {
                return found;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        let count = self.pages.count();
        let start = ((seed >> 32) as usize).checked_rem(count)?;
        let some = || (start..count).chain(0..start).take(LOOK_AT);
        let may_have = |number: &usize| {
            self.pages.page_if(*number).is_some_and(|page| page::earliest(page) < page::NEVER)
        };
        // A page's time may be that of an entry which is gone, and times that are far off it does not know.
        let found = some().filter(may_have).find_map(|number| self.volatile_in(number, seed));
        let found = found.or_else(|| self.volatile_in(self.earliest_page().0, seed));
        found.or_else(|| some().find_map(|number| self.volatile_in(number, seed)))
    }

    /// One of the entries of a page that expire.
    fn volatile_in(&self, number: usize, random: u64) -> Option<Place> {
        let page = self.pages.page_if(number)?;
        let expires = |&(_, header): &(usize, Header)| header.state() == entry::ALIVE && header.volatile();
        let count = page::entries(page, page::HEAD).filter(expires).count() as u64;
        let chosen = (random >> 32).checked_rem(count)?;
        let (at, _) = page::entries(page, page::HEAD).filter(expires).nth(chosen as usize)?;
        Some(Place(pages::reference(number, at)))
    }

    /// Before the second sweep, where there are many entries: asks for what leads to the index line.
    pub(crate) fn prefetch_segment(&self, hash: u64) {
        self.index.prefetch_segment(hash);
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

    /// Asks for an entry.
    pub(crate) fn prefetch_at(&self, place: Place) {
        self.pages.prefetch(place.0);
    }

    /// The value outside that a key with this hash most likely has. Only a hint.
    #[inline]
    pub(crate) fn likely_outside(&self, hash: u64) -> Option<Shape<'_>> {
        let store = &self.rare.as_ref()?.store;
        let (header, page, at) = self.pages.entry(self.index.likely(hash)?);
        Some(store.record(header.outside(page, at)?).value.shape())
    }
}
