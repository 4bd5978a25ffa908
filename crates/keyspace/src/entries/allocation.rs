//! Allocates space for entries and reclaims dead bytes.
//!
//! New entries go to the open page. When it is full, a page with many dead bytes is compacted and becomes the open one,
//! or a new page is allocated. A new page is as long as its first entry and grows as entries are added; it keeps its
//! number, so entry references stay valid. When another page becomes the open one, the free space of the previous one
//! is released. The maximum page size depends on the store ([`OverflowValue::PAGE_LEN_FACTOR`]): small pages waste more
//! on headers and rounding, large pages leave larger holes in the pool as they grow. Every step works on one page of at
//! most 8 KB, so no command waits longer than that.
//!
//! Invariant: no entry of a pinned page is moved.

use super::{Entries, NO_PAGE};
use crate::entry::Header;
use crate::hashing;
use crate::memory::Block;
use crate::order::SecondaryOrder;
use crate::overflow::OverflowValue;
use crate::page;
use crate::pages::{self, EntryKeys, Pages};

/// Number of pages examined by one search for a page to compact.
const MAX_EXAMINED_PAGES: usize = 32;

/// Returns the page size for `len` used bytes: sixteen size classes per power of two.
fn page_size(len: usize) -> usize {
    pages::round_up_len(len)
        .next_multiple_of(Block::MIN_BLOCK_BYTES.max(len.next_power_of_two() / 16))
        .min(Block::MAX_BLOCK_BYTES)
}

impl<V: OverflowValue> Entries<V> {
    /// Allocates `needed_bytes` for a new entry. Returns the page number and the offset in the page.
    pub(super) fn allocate_space(&mut self, needed_bytes: usize) -> (usize, usize) {
        if let Some(at) = self.offset_if_fits(self.open_page as usize, needed_bytes) {
            return (self.open_page as usize, at);
        }
        if self.dead_half_bytes > self.live_half_bytes / 6
            && let Some(number) = self.page_to_compact(needed_bytes)
        {
            self.compact_page(number);
            if let Some(at) = self.offset_if_fits(number, needed_bytes) {
                self.set_open_page(number);
                return (number, at);
            }
        }
        let number = self.grow_open_page(needed_bytes).unwrap_or_else(|| self.add_page(needed_bytes));
        self.set_open_page(number);
        (number, page::entries_end(self.pages.page(number)))
    }

    /// Makes this page the open one and releases the free space of the previous open page.
    fn set_open_page(&mut self, number: usize) {
        if self.open_page as usize != number {
            self.pages.trim_page(self.open_page as usize);
            self.open_page = number as u32;
        }
    }

    fn offset_if_fits(&self, number: usize, needed_bytes: usize) -> Option<usize> {
        let page = self.pages.existing_page(number)?;
        (page::free_len(page) >= needed_bytes && self.pinned_bits(number) == 0)
            .then(|| page::entries_end(page))
    }

    /// Returns the maximum page length for a store that is about to grow by `needed_bytes`.
    fn max_page_len(&self, needed_bytes: usize) -> usize {
        let live = (self.live_bytes() + self.with_expected_bytes(needed_bytes)) as u64;
        Block::MAX_BLOCK_BYTES.min((V::PAGE_LEN_FACTOR * live).isqrt() as usize)
    }

    /// Returns `needed_bytes` plus the bytes that [`Self::set_expected_bytes`] announced.
    fn with_expected_bytes(&self, needed_bytes: usize) -> usize {
        needed_bytes.max(usize::from(self.expected_bytes))
    }

    /// Hints that about `bytes` of entries will be inserted soon, so that pages are sized for them.
    pub(crate) fn set_expected_bytes(&mut self, bytes: usize) {
        self.expected_bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
    }

    /// Sizes the index for this many entries.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let names =
            EntryKeys { pages: &self.pages, records: self.extras.as_ref().map(|extras| &extras.records) };
        self.index.reserve(entries, &names);
    }

    /// Grows the open page by `needed_bytes` and returns the offset, unless the page would exceed its maximum
    /// length.
    fn grow_open_page(&mut self, needed_bytes: usize) -> Option<usize> {
        let number = self.open_page as usize;
        let end = page::entries_end(self.pages.existing_page(number)?);
        let most = self.max_page_len(needed_bytes);
        let grows = end + needed_bytes <= most && self.pinned_bits(number) == 0;
        grows.then(|| {
            self.pages.grow_page(number, page_size((end + self.with_expected_bytes(needed_bytes)).min(most)));
        })?;
        Some(number)
    }

    /// Adds a page with room for `needed_bytes` and the bytes that [`Self::set_expected_bytes`] announced.
    fn add_page(&mut self, needed_bytes: usize) -> usize {
        let most = self.max_page_len(needed_bytes).max(page::HEADER_LEN + needed_bytes);
        let len = page_size((page::HEADER_LEN + self.with_expected_bytes(needed_bytes)).min(most));
        let number = self.pages.add_page(len, self.first_usable_page_number());
        self.add_page_to_expiry_tree(number);
        number
    }

    /// Returns a few of the page numbers after `number`, wrapping around at the end of the page list.
    fn pages_after(&self, number: usize) -> impl Iterator<Item = usize> + use<V> {
        let count = self.pages.count();
        let start = if number < count { number + 1 } else { 0 };
        (0..count.min(MAX_EXAMINED_PAGES)).map(move |step| (start + step) % count)
    }

    /// Returns the page with the most dead bytes among the next few pages after the open one; `None` if that is too few
    /// to be worth a compaction.
    fn page_to_compact(&self, needed_bytes: usize) -> Option<usize> {
        let open = self.open_page as usize;
        let candidates =
            self.pages_after(open).filter_map(|number| Some((number, self.pages.existing_page(number)?)));
        let (number, page) = candidates
            .filter(|&(number, _)| self.pinned_bits(number) == 0)
            .max_by_key(|(_, page)| page::dead_bytes(page))?;
        let dead = page::dead_bytes(page);
        (dead >= page.len() / 8 && dead + page::free_len(page) >= needed_bytes).then_some(number)
    }

    fn compact_page(&mut self, number: usize) {
        debug_assert_eq!(self.pinned_bits(number), 0);
        let mut places = self.secondary_positions(number);
        let mut block = self.pages.take_page(number);
        let page = block.bytes_mut();
        let (mut from, mut to, end) = (page::HEADER_LEN, page::HEADER_LEN, page::entries_end(page));
        let mut earliest = page::NO_EXPIRY;
        while from < end {
            let header = Header::read(page, from);
            let len = header.len();
            if header.state() == crate::entry::STATE_ALIVE {
                let (before, after) = (pages::reference(number, from), pages::reference(number, to));
                if from != to {
                    page.copy_within(from..from + len, to);
                    let hash = self.hash_in_detached_page(header, page, to);
                    self.index.replace_reference(hash, before, after);
                }
                self.secondary_order.replace_reference(&mut places, before, after);
                earliest = earliest.min(header.expiry(page, to).unwrap_or(page::NO_EXPIRY));
                to += len;
            }
            from += len;
        }
        self.dead_half_bytes -= (page::dead_bytes(page) / 2) as u32;
        page::set_dead_bytes(page, 0);
        page::set_entries_end(page, to);
        self.pages.put_page(number, block);
        self.set_page_expiry(number, earliest);
    }

    /// Moves the live entries of page `from` to the end of page `to`, and frees page `from`.
    fn merge_page_into(&mut self, from: usize, to: usize) {
        debug_assert_eq!(self.pinned_bits(from) | self.pinned_bits(to), 0);
        let mut places = self.secondary_positions(from);
        let (source, mut target) = (self.pages.take_page(from), self.pages.take_page(to));
        let (page, into) = (source.bytes(), target.bytes_mut());
        let mut end = page::entries_end(into);
        let mut earliest = page::earliest_expiry(into);
        for (at, header) in page::entries(page, page::HEADER_LEN) {
            let len = header.len();
            into[end..end + len].copy_from_slice(&page[at..at + len]);
            let hash = self.hash_in_detached_page(header, page, at);
            let (before, after) = (pages::reference(from, at), pages::reference(to, end));
            self.index.replace_reference(hash, before, after);
            self.secondary_order.replace_reference(&mut places, before, after);
            earliest = earliest.min(header.expiry(page, at).unwrap_or(page::NO_EXPIRY));
            end += len;
        }
        page::set_entries_end(into, end);
        self.pages.put_page(from, source);
        self.pages.put_page(to, target);
        self.set_page_expiry(to, earliest);
        self.free_page(from);
    }

    /// Returns the positions of a page's entries in the secondary order. No snapshot may need these entries.
    fn secondary_positions(&self, number: usize) -> <V::SecondaryOrder as SecondaryOrder<V>>::Positions {
        let entries = page::entries(self.pages.page(number), page::HEADER_LEN);
        self.secondary_order
            .positions_of(entries.map(|(at, _)| pages::reference(number, at)), &self.entry_keys())
    }

    /// Returns the key hash of an entry in a page that is detached from the page list.
    fn hash_in_detached_page(&self, header: Header, page: &[u8], at: usize) -> u64 {
        let nothing = Pages::default();
        let names =
            EntryKeys { pages: &nothing, records: self.extras.as_ref().map(|extras| &extras.records) };
        hashing::hash_bytes(names.name_of(header, page, at))
    }

    /// Compacts one page if more than about a third of the store's bytes are dead. Called after each removal.
    pub(super) fn compact_after_removal(&mut self) {
        if self.dead_half_bytes > self.live_half_bytes / 2 + 512 {
            self.compact();
        }
    }

    /// Compacts one page. Returns false if no page was worth compacting.
    pub(crate) fn compact(&mut self) -> bool {
        let Some(number) = self.page_to_compact(0) else { return false };
        let live = page::live_bytes(self.pages.page(number));
        let open = self.open_page as usize;
        if number != open && self.offset_if_fits(open, live).is_some() {
            self.merge_page_into(number, open);
        } else {
            self.compact_page(number);
            let room = |number| self.pages.existing_page(number).map_or(0, page::free_len);
            if self.open_page == NO_PAGE || self.pinned_bits(open) != 0 || room(number) > room(open) {
                self.set_open_page(number);
            } else {
                self.pages.trim_page(number);
            }
        }
        true
    }

    /// Compacts a page if it has enough dead bytes.
    pub(super) fn compact_if_worthwhile(&mut self, number: usize) {
        let Some(page) = self.pages.existing_page(number) else { return };
        if self.pinned_bits(number) == 0 && page::dead_bytes(page) >= page.len() / 16 {
            self.compact_page(number);
            if self.open_page as usize != number {
                self.pages.trim_page(number);
            }
        }
    }

    /// Returns whether enough bytes are dead to justify visiting the whole store.
    pub(crate) fn needs_compaction(&self) -> bool {
        self.dead_half_bytes > self.live_half_bytes / 8 + 64
    }

    /// Moves the pages and index lines in chunk `part` to lower addresses of the pool if there is room. Returns whether
    /// more chunks follow.
    pub(crate) fn move_to_lower_addresses(&mut self, part: usize) -> bool {
        self.pages.move_to_lower_addresses(part) | self.index.move_to_lower_addresses(part)
    }
}
