//! Allocates space for entries and reclaims dead bytes.
//!
//! New entries go to the open page. When it is full, a page with many dead bytes is compacted and becomes the
//! open one, or a new page is allocated. A new page is as long as its first entry and grows as entries are
//! added; it keeps its number, so entry references stay valid. When another page becomes the open one, the
//! old one gives back its free space. The maximum page size depends on the store ([`OverflowValue::SQUARE`]):
//! more pages waste more on headers and rounding, longer pages leave larger holes in the pool as they grow.
//! Every step works on one page of at most 8 KB, so no command waits longer than that.
//!
//! Invariant: no entry of a pinned page is moved.

use super::{Entries, NO_PAGE};
use crate::entry::Header;
use crate::hashing;
use crate::memory::Block;
use crate::order::Order;
use crate::overflow::Outside;
use crate::page;
use crate::pages::{self, Names, Pages};

/// Pages examined by one search for a page to compact.
const LOOK_AT: usize = 32;

/// Page size for `len` used bytes: sixteen size classes per power of two.
fn page_size(len: usize) -> usize {
    pages::whole(len).next_multiple_of(Block::STEP.max(len.next_power_of_two() / 16)).min(Block::LARGEST)
}

impl<V: Outside> Entries<V> {
    /// The page and offset for a new entry of `need` bytes.
    pub(super) fn room_for(&mut self, need: usize) -> (usize, usize) {
        if let Some(at) = self.fits(self.open as usize, need) {
            return (self.open as usize, at);
        }
        if self.dead > self.live / 6
            && let Some(number) = self.victim(need)
        {
            self.compact(number);
            if let Some(at) = self.fits(number, need) {
                self.set_open(number);
                return (number, at);
            }
        }
        let number = self.grow_open(need).unwrap_or_else(|| self.add_page(need));
        self.set_open(number);
        (number, page::end(self.pages.page(number)))
    }

    /// Makes this the open page and gives back the free space of the previous one.
    fn set_open(&mut self, number: usize) {
        if self.open as usize != number {
            self.pages.trim(self.open as usize);
            self.open = number as u32;
        }
    }

    fn fits(&self, number: usize, need: usize) -> Option<usize> {
        let page = self.pages.page_if(number)?;
        (page::room(page) >= need && self.pinned(number) == 0).then(|| page::end(page))
    }

    /// Maximum page length for a store that grows by `need` bytes.
    fn longest_page(&self, need: usize) -> usize {
        let live = (self.live_bytes() + self.ahead(need)) as u64;
        Block::LARGEST.min((V::SQUARE * live).isqrt() as usize)
    }

    /// `need` plus the bytes announced to follow.
    fn ahead(&self, need: usize) -> usize {
        need.max(usize::from(self.announced))
    }

    /// Hints that about `bytes` of entries will be inserted soon, so that pages are sized for them.
    pub(crate) fn announce(&mut self, bytes: usize) {
        self.announced = u16::try_from(bytes).unwrap_or(u16::MAX);
    }

    /// Sizes the index for this many entries.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let names = Names { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.reserve(entries, &names);
    }

    /// Grows the open page for another `need` bytes if its maximum allows that.
    fn grow_open(&mut self, need: usize) -> Option<usize> {
        let number = self.open as usize;
        let end = page::end(self.pages.page_if(number)?);
        let most = self.longest_page(need);
        let grows = end + need <= most && self.pinned(number) == 0;
        grows.then(|| self.pages.grow(number, page_size((end + self.ahead(need)).min(most))))?;
        Some(number)
    }

    /// Adds a page with room for `need` bytes plus the announced ones.
    fn add_page(&mut self, need: usize) -> usize {
        let most = self.longest_page(need).max(page::HEAD + need);
        let len = page_size((page::HEAD + self.ahead(need)).min(most));
        let number = self.pages.add(len, self.first_free_number());
        self.due_page_added(number);
        number
    }

    /// Page numbers after `number`, wrapping around and ending with it; only a few of them.
    fn others(&self, number: usize) -> impl Iterator<Item = usize> + use<V> {
        let count = self.pages.count();
        let start = if number < count { number + 1 } else { 0 };
        (0..count.min(LOOK_AT)).map(move |step| (start + step) % count)
    }

    /// The page with the most dead bytes among the next few after the open one, if it has enough to be worth
    /// compacting.
    fn victim(&self, need: usize) -> Option<usize> {
        let open = self.open as usize;
        let candidates = self.others(open).filter_map(|number| Some((number, self.pages.page_if(number)?)));
        let (number, page) = candidates
            .filter(|&(number, _)| self.pinned(number) == 0)
            .max_by_key(|(_, page)| page::dead(page))?;
        let dead = page::dead(page);
        (dead >= page.len() / 8 && dead + page::room(page) >= need).then_some(number)
    }

    /// Compacts a page.
    fn compact(&mut self, number: usize) {
        debug_assert_eq!(self.pinned(number), 0);
        let mut places = self.places_of(number);
        let mut block = self.pages.lift(number);
        let page = block.bytes_mut();
        let (mut from, mut to, end) = (page::HEAD, page::HEAD, page::end(page));
        let mut earliest = page::NEVER;
        while from < end {
            let header = Header::read(page, from);
            let len = header.len();
            if header.state() == crate::entry::ALIVE {
                let (before, after) = (pages::reference(number, from), pages::reference(number, to));
                if from != to {
                    page.copy_within(from..from + len, to);
                    let hash = self.hash_in(header, page, to);
                    self.index.redirect(hash, before, after);
                }
                self.order.redirect(&mut places, before, after);
                earliest = earliest.min(header.expiry(page, to).unwrap_or(page::NEVER));
                to += len;
            }
            from += len;
        }
        self.dead -= (page::dead(page) / 2) as u32;
        page::set_dead(page, 0);
        page::set_end(page, to);
        self.pages.put_back(number, block);
        self.set_earliest(number, earliest);
    }

    /// Moves the live entries of page `from` to the end of page `to` and frees `from`.
    fn evacuate(&mut self, from: usize, to: usize) {
        debug_assert_eq!(self.pinned(from) | self.pinned(to), 0);
        let mut places = self.places_of(from);
        let (source, mut target) = (self.pages.lift(from), self.pages.lift(to));
        let (page, into) = (source.bytes(), target.bytes_mut());
        let mut end = page::end(into);
        let mut earliest = page::earliest(into);
        for (at, header) in page::entries(page, page::HEAD) {
            let len = header.len();
            into[end..end + len].copy_from_slice(&page[at..at + len]);
            let hash = self.hash_in(header, page, at);
            let (before, after) = (pages::reference(from, at), pages::reference(to, end));
            self.index.redirect(hash, before, after);
            self.order.redirect(&mut places, before, after);
            earliest = earliest.min(header.expiry(page, at).unwrap_or(page::NEVER));
            end += len;
        }
        page::set_end(into, end);
        self.pages.put_back(from, source);
        self.pages.put_back(to, target);
        self.set_earliest(to, earliest);
        self.free_page(from);
    }

    /// The ordered references to the entries of a page. None of these entries may be kept for a snapshot.
    fn places_of(&self, number: usize) -> <V::Order as Order<V>>::Places {
        let entries = page::entries(self.pages.page(number), page::HEAD);
        self.order.places(entries.map(|(at, _)| pages::reference(number, at)), &self.names())
    }

    /// The key hash of an entry in a page that is detached from the page list.
    fn hash_in(&self, header: Header, page: &[u8], at: usize) -> u64 {
        let nothing = Pages::default();
        let names = Names { pages: &nothing, store: self.rare.as_ref().map(|rare| &rare.store) };
        hashing::of(names.name_of(header, page, at))
    }

    /// Compacts one page per removal while most bytes of the store are dead.
    pub(super) fn tidy_after_removal(&mut self) {
        if self.dead > self.live / 2 + 512 {
            self.tidy();
        }
    }

    /// Compacts one page. Returns whether there was anything to do.
    pub(crate) fn tidy(&mut self) -> bool {
        let Some(number) = self.victim(0) else { return false };
        let live = page::live(self.pages.page(number));
        let open = self.open as usize;
        if number != open && self.fits(open, live).is_some() {
            self.evacuate(number, open);
        } else {
            self.compact(number);
            let room = |number| self.pages.page_if(number).map_or(0, page::room);
            if self.open == NO_PAGE || self.pinned(open) != 0 || room(number) > room(open) {
                self.set_open(number);
            } else {
                self.pages.trim(number);
            }
        }
        true
    }

    /// Compacts a page if it has enough dead bytes.
    pub(super) fn squeeze(&mut self, number: usize) {
        let Some(page) = self.pages.page_if(number) else { return };
        if self.pinned(number) == 0 && page::dead(page) >= page.len() / 16 {
            self.compact(number);
            if self.open as usize != number {
                self.pages.trim(number);
            }
        }
    }

    /// Whether enough bytes are dead to justify a pass over the store.
    pub(crate) fn is_untidy(&self) -> bool {
        self.dead > self.live / 8 + 64
    }

    /// Moves one chunk of the pages and index lines to lower addresses of the pool, if there is room. Returns
    /// whether more chunks follow.
    pub(crate) fn sink(&mut self, part: usize) -> bool {
        self.pages.sink(part) | self.index.sink(part)
    }
}
