//! The pages of an entry store, and entry references.
//!
//! A reference is a page number and, in its low 12 bits, half the offset in the page (entries have even lengths). A
//! store can therefore have 2^20 pages of at most 8 KB, 8 GB in total. So that this limit is never reached, a store is
//! crowded when it is half full, and full at three quarters ([`FillLevel`]); the server then rejects commands that
//! would grow it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::entry::{Header, Placement};
use crate::hashing;
use crate::index::HashSource;
use crate::memory::{Block, prefetch};
use crate::overflow::{OverflowShape, OverflowValue, RecordStore};
use crate::page;
use crate::purge::PAGES_PER_LOCK;

const OFFSET_BITS: u32 = 12;
/// Number of bytes of a page to prefetch before a sequential read. The hardware prefetcher loads the rest.
const PREFETCH_BYTES: usize = 512;
const ADDRESSABLE_PAGES: usize = 1 << (32 - OFFSET_BITS);
/// Number of page numbers that are probed at each of 1 + `EXTRA_SEARCHES` positions when a free number is searched.
const MAX_PROBED_NUMBERS: usize = 64;
const EXTRA_SEARCHES: usize = 3;

/// Maximum number of pages per store; lowered by tests.
static MAX_PAGES: AtomicUsize = AtomicUsize::new(ADDRESSABLE_PAGES);
/// Whether any store of this process was ever crowded.
static WAS_EVER_CROWDED: AtomicBool = AtomicBool::new(false);
/// Position where the next search for a free page number starts.
static NEXT_SEARCH_START: AtomicUsize = AtomicUsize::new(0);

/// Sets the maximum number of pages per store in this process, for tests.
pub fn limit_pages(max: usize) {
    MAX_PAGES.store(max.min(ADDRESSABLE_PAGES), Ordering::Relaxed);
}

/// Returns the total bytes of small values above which a slot is certainly full for
/// [`Table::bulk_load`](crate::Table::bulk_load). A slot may be full earlier, because pages have unused bytes.
#[must_use]
pub fn slot_capacity() -> u64 {
    (MAX_PAGES.load(Ordering::Relaxed) * 3 / 4 * Block::MAX_BLOCK_BYTES) as u64
}

/// Returns whether any store of this process was ever crowded. If not, callers need not check the [`FillLevel`].
#[must_use]
#[inline]
pub fn was_ever_crowded() -> bool {
    WAS_EVER_CROWDED.load(Ordering::Relaxed)
}

/// How full a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FillLevel {
    /// The store is less than half full.
    Free,
    /// The store is at least half full and should not grow.
    Crowded,
    /// The store is at least three quarters full. New values are stored outside the pages whatever their size; the
    /// remaining pages are for pinned entries and for entries that change their size.
    Full,
}

#[inline]
pub(crate) fn reference(page: usize, at: usize) -> u32 {
    (page as u32) << OFFSET_BITS | (at / 2) as u32
}

#[inline]
pub(crate) fn page_and_offset(reference: u32) -> (usize, usize) {
    ((reference >> OFFSET_BITS) as usize, (reference & ((1 << OFFSET_BITS) - 1)) as usize * 2)
}

/// Rounds a length up to a block length. Short blocks have any number of granules, longer ones an even number, like
/// index lines. Blocks that growing pages leave behind therefore fit other pages.
pub(crate) fn round_up_len(len: usize) -> usize {
    const SHORT_PAGE_BYTES: usize = 4 * Block::MIN_BLOCK_BYTES;
    len.next_multiple_of(if len <= SHORT_PAGE_BYTES {
        Block::MIN_BLOCK_BYTES
    } else {
        2 * Block::MIN_BLOCK_BYTES
    })
}

/// The pages of a store by number. The numbers of freed pages are reused.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    blocks: SmallVec<[Option<Block>; 3]>,
}

impl Pages {
    /// Returns the number of page numbers, used or free.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    pub(crate) fn page(&self, number: usize) -> &[u8] {
        self.blocks[number].as_ref().expect("a page that is referred to is there").bytes()
    }

    #[inline]
    pub(crate) fn page_mut(&mut self, number: usize) -> &mut [u8] {
        self.blocks[number].as_mut().expect("a page that is referred to is there").bytes_mut()
    }

    pub(crate) fn existing_page(&self, number: usize) -> Option<&[u8]> {
        Some(self.blocks.get(number)?.as_ref()?.bytes())
    }

    pub(crate) fn existing_page_mut(&mut self, number: usize) -> Option<&mut [u8]> {
        Some(self.blocks.get_mut(number)?.as_mut()?.bytes_mut())
    }

    /// Returns the size of the page in bytes, without reading the page; `None` if it does not exist.
    pub(crate) fn page_size(&self, number: usize) -> Option<usize> {
        Some(self.blocks.get(number)?.as_ref()?.len())
    }

    #[inline]
    pub(crate) fn entry(&self, reference: u32) -> (Header, &[u8], usize) {
        let (number, at) = page_and_offset(reference);
        let page = self.page(number);
        (Header::read(page, at), page, at)
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, reference: u32) -> (Header, &mut [u8], usize) {
        let (number, at) = page_and_offset(reference);
        let page = self.page_mut(number);
        (Header::read(page, at), page, at)
    }

    #[inline]
    pub(crate) fn prefetch(&self, reference: u32) {
        let (number, at) = page_and_offset(reference);
        if let Some(Some(block)) = self.blocks.get(number) {
            block.prefetch(at);
            // Prefetch a second line, because most small entries span two cache lines.
            block.prefetch(at + 48);
        }
    }

    /// Prefetches the start of a page. The hardware prefetcher loads the rest.
    pub(crate) fn prefetch_page(&self, number: usize) {
        if let Some(Some(block)) = self.blocks.get(number) {
            (0..block.len().min(PREFETCH_BYTES)).step_by(64).for_each(|at| block.prefetch(at));
        }
    }

    pub(crate) fn prefetch_list(&self) {
        if self.blocks.spilled() {
            prefetch(self.blocks.as_ptr());
        }
    }

    /// Takes a page out of the list, so that it can be modified together with other pages.
    pub(crate) fn take_page(&mut self, number: usize) -> Block {
        self.blocks[number].take().expect("a page that is referred to is there")
    }

    pub(crate) fn put_page(&mut self, number: usize, block: Block) {
        self.blocks[number] = Some(block);
    }

    /// Adds an empty page of `len` bytes. Its number is at least `from`.
    pub(crate) fn add_page(&mut self, len: usize, from: usize) -> usize {
        let mut block = Block::new(len);
        page::initialize(block.bytes_mut());
        match self.unused_number(from) {
            Some(number) => {
                self.blocks[number] = Some(block);
                number
            }
            None => {
                assert!(
                    self.blocks.len() < MAX_PAGES.load(Ordering::Relaxed),
                    "a full store is not added to"
                );
                self.blocks.push(Some(block));
                if self.fill_level() > FillLevel::Free {
                    WAS_EVER_CROWDED.store(true, Ordering::Relaxed);
                }
                self.blocks.len() - 1
            }
        }
    }

    /// Finds a free page number of at least `from` by probing the lowest numbers and some others. The other probes
    /// start at different positions in each call, so that free numbers do not accumulate.
    fn unused_number(&self, from: usize) -> Option<usize> {
        let numbers = self.blocks.len().saturating_sub(from);
        let turn = NEXT_SEARCH_START.fetch_add(1, Ordering::Relaxed) * EXTRA_SEARCHES;
        let elsewhere =
            (turn..turn + EXTRA_SEARCHES).map(|turn| turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        std::iter::once(0).chain(elsewhere.filter_map(|any| any.checked_rem(numbers))).find_map(|start| {
            let some = self.blocks.iter().enumerate().skip(from + start).take(MAX_PROBED_NUMBERS);
            some.into_iter().find_map(|(number, block)| block.is_none().then_some(number))
        })
    }

    /// Returns how full the page list is compared to its maximum length.
    #[inline]
    pub(crate) fn fill_level(&self) -> FillLevel {
        let (pages, most) = (self.blocks.len() * 4, MAX_PAGES.load(Ordering::Relaxed));
        if pages < 2 * most {
            FillLevel::Free
        } else if pages < 3 * most {
            FillLevel::Crowded
        } else {
            FillLevel::Full
        }
    }

    /// Enlarges a page. Entry references stay valid.
    pub(crate) fn grow_page(&mut self, number: usize, len: usize) {
        let mut block = Block::new(len);
        let page = self.page(number);
        block.bytes_mut()[..page::entries_end(page)].copy_from_slice(&page[..page::entries_end(page)]);
        self.put_page(number, block);
    }

    /// Releases the free bytes at the end of a page.
    pub(crate) fn trim_page(&mut self, number: usize) {
        if let Some(Some(block)) = self.blocks.get_mut(number) {
            block.truncate(round_up_len(page::entries_end(block.bytes())).min(block.len()));
        }
    }

    /// Frees a page, and removes free numbers from the end of the page list.
    pub(crate) fn free_page(&mut self, number: usize) {
        self.blocks[number] = None;
        while matches!(self.blocks.last(), Some(None)) {
            self.blocks.pop();
        }
        if self.blocks.spilled() && self.blocks.len() <= 3 {
            self.blocks.shrink_to_fit();
        }
    }

    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.blocks.iter().flatten().map(Block::len)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.list_bytes() + self.sizes().sum::<usize>()
    }

    pub(crate) fn list_bytes(&self) -> usize {
        if self.blocks.spilled() { self.blocks.capacity() * size_of::<Option<Block>>() } else { 0 }
    }

    /// Moves the pages in chunk `part` to lower addresses of the pool if there is room. Returns whether more chunks
    /// follow.
    pub(crate) fn move_to_lower_addresses(&mut self, part: usize) -> bool {
        let some = self.blocks.iter_mut().skip(part * PAGES_PER_LOCK).take(PAGES_PER_LOCK);
        some.flatten().for_each(Block::move_to_lower_addresses);
        self.blocks.len() > (part + 1) * PAGES_PER_LOCK
    }
}

/// Reads entry keys by reference, for the index.
pub(crate) struct EntryKeys<'a, V: OverflowValue> {
    pub(crate) pages: &'a Pages,
    pub(crate) records: Option<&'a RecordStore<V>>,
}

impl<V: OverflowValue> Clone for EntryKeys<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: OverflowValue> Copy for EntryKeys<'_, V> {}

impl<'a, V: OverflowValue> EntryKeys<'a, V> {
    #[inline]
    pub(crate) fn name(self, reference: u32) -> &'a [u8] {
        let (header, page, at) = self.pages.entry(reference);
        self.name_of(header, page, at)
    }

    /// Returns the value bytes of an entry.
    #[inline]
    pub(crate) fn value(self, reference: u32) -> &'a [u8] {
        let (header, page, at) = self.pages.entry(reference);
        self.overflow_value(header, page, at)
    }

    #[inline(always)]
    pub(crate) fn overflow_value<'p>(self, header: Header, page: &'p [u8], at: usize) -> &'p [u8]
    where
        'a: 'p,
    {
        let Some(number) = header.record_number(page, at) else { return header.value(page, at) };
        match self.records.expect("an entry with a record is where a store is").record(number).value.shape() {
            OverflowShape::Flat(bytes) => bytes,
            OverflowShape::Collection(_) => &[],
        }
    }

    #[inline(always)]
    pub(crate) fn name_of<'p>(self, header: Header, page: &'p [u8], at: usize) -> &'p [u8]
    where
        'a: 'p,
    {
        match header.placement() {
            Placement::KeyValueOverflow => {
                let number = header.record_number(page, at).expect("its value is a number");
                let record = self.records.expect("an entry with a record is where a store is").record(number);
                record.key.as_deref().expect("the record has the key")
            }
            _ => header.key(page, at),
        }
    }
}

impl<V: OverflowValue> HashSource for EntryKeys<'_, V> {
    fn hash(&self, reference: u32) -> u64 {
        hashing::hash_bytes(self.name(reference))
    }

    fn prefetch(&self, reference: u32) {
        self.pages.prefetch(reference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: when only the lowest numbers were searched, the list grew forever as pages in the middle were
    /// freed and allocated.
    #[test]
    fn free_page_numbers_are_reused() {
        let mut pages = Pages::default();
        for _ in 0..2000 {
            pages.add_page(Block::MIN_BLOCK_BYTES, 0);
        }
        let mut random = 1usize;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (random >> 33) % pages.count();
            if pages.existing_page(number).is_some() {
                pages.free_page(number);
                pages.add_page(Block::MIN_BLOCK_BYTES, 0);
            }
        }
        assert!(pages.count() < 2200, "{} numbers for 2000 pages", pages.count());
    }
}
