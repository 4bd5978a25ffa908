//! Room for entries: which page they go to, and getting dead bytes back.
//!
//! New entries go to the open page. When that is full, a page with many dead bytes is compacted and becomes
//! the open one, or a new page is taken. A new page is as long as its first entry and grows with those that
//! follow; it keeps its number, so references to it stay good. When another becomes the open one it gives back what
//! it has free. How far a page grows depends on the store ([`Outside::SQUARE`]): the more there are, the more is lost
//! for their heads and to rounding, and the longer they are, the larger the holes that they leave in the pool as they
//! grow. All of this works on one page at a time, at most 8 KB, so no command waits for more.
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

/// How many pages a search for a good one looks at.
const LOOK_AT: usize = 32;

/// The size of a page in which `len` bytes are used: sixteen steps to a power of two.
fn page_size(len: usize) -> usize {
    pages::whole(len).next_multiple_of(Block::STEP.max(len.next_power_of_two() / 16)).min(Block::LARGEST)
}

impl<V: Outside> Entries<V> {
    /// The page and the offset at which an entry of `need` bytes is to be written.
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

    /// New entries go to this page from now on. The last one keeps no room for them.
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

    /// How long a page may grow, in a store with another `need` bytes.
    fn longest_page(&self, need: usize) -> usize {
        let live = (self.live_bytes() + self.ahead(need)) as u64;
        Block::LARGEST.min((V::SQUARE * live).isqrt() as usize)
    }

    /// An entry's bytes and those of what follows at once.
    fn ahead(&self, need: usize) -> usize {
        need.max(usize::from(self.announced))
    }

    /// About so many bytes of entries follow at once: pages get room for them.
    pub(crate) fn announce(&mut self, bytes: usize) {
        self.announced = u16::try_from(bytes).unwrap_or(u16::MAX);
    }

    /// Makes the index ready for so many entries.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let names = Names { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.reserve(entries, &names);
    }

    /// Makes the open page long enough for another `need` bytes, if it may grow so long.
    fn grow_open(&mut self, need: usize) -> Option<usize> {
        let number = self.open as usize;
        let end = page::end(self.pages.page_if(number)?);
        let most = self.longest_page(need);
        let grows = end + need <= most && self.pinned(number) == 0;
        grows.then(|| self.pages.grow(number, page_size((end + self.ahead(need)).min(most))))?;
        Some(number)
    }

    /// Adds a page with room for `need` bytes, and for what is known to follow.
    fn add_page(&mut self, need: usize) -> usize {
        let most = self.longest_page(need).max(page::HEAD + need);
        let len = page_size((page::HEAD + self.ahead(need)).min(most));
        let number = self.pages.add(len, self.first_free_number());
        self.due_page_added(number);
        number
    }

    /// The numbers of some pages behind `number`, in a circle that ends with it.
    fn others(&self, number: usize) -> impl Iterator<Item = usize> + use<V> {
        let count = self.pages.count();
        let start = if number < count { number + 1 } else { 0 };
        (0..count.min(LOOK_AT)).map(move |step| (start + step) % count)
    }

    /// Among the pages behind the open one, that with the most dead bytes, if it has many.
    fn victim(&self, need: usize) -> Option<usize> {
        let open = self.open as usize;
        let candidates = self.others(open).filter_map(|number| Some((number, self.pages.page_if(number)?)));
        let (number, page) = candidates
            .filter(|&(number, _)| self.pinned(number) == 0)
            .max_by_key(|(_, page)| page::dead(page))?;
        let dead = page::dead(page);
        (dead >= page.len() / 8 && dead + page::room(page) >= need).then_some(number)
    }

    /// Moves the entries of a page together.
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

    /// Moves the entries of page `from` behind those of page `to`, and gives `from` back.
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

    /// Where the order has the entries of a page, none of which is kept for a snapshot.
    fn places_of(&self, number: usize) -> <V::Order as Order<V>>::Places {
        let entries = page::entries(self.pages.page(number), page::HEAD);
        self.order.places(entries.map(|(at, _)| pages::reference(number, at)), &self.names())
    }

    /// The hash of the key of an entry in a page that is lifted out.
    fn hash_in(&self, header: Header, page: &[u8], at: usize) -> u64 {
        let nothing = Pages::default();
        let names = Names { pages: &nothing, store: self.rare.as_ref().map(|rare| &rare.store) };
        hashing::of(names.name_of(header, page, at))
    }

    /// After a removal: a store that is mostly dead bytes is tidied, a page each time.
    pub(super) fn tidy_after_removal(&mut self) {
        if self.dead > self.live / 2 + 512 {
            self.tidy();
        }
    }

    /// Gets the dead bytes of one page back; says whether there was something to do.
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

    /// Gets the dead bytes of a page back if they are worth it.
    pub(super) fn squeeze(&mut self, number: usize) {
        let Some(page) = self.pages.page_if(number) else { return };
        if self.pinned(number) == 0 && page::dead(page) >= page.len() / 16 {
            self.compact(number);
            if self.open as usize != number {
                self.pages.trim(number);
            }
        }
    }

    /// Whether so many bytes are dead that a pass over the store is worth its while.
    pub(crate) fn is_untidy(&self) -> bool {
        self.dead > self.live / 8 + 64
    }

    /// Moves a part of the pages and lines to lower chunks of the pool, where there is room; says whether
    /// there are further parts.
    pub(crate) fn sink(&mut self, part: usize) -> bool {
        self.pages.sink(part) | self.index.sink(part)
    }
}
