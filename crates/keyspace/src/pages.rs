//! The pages of one store of entries, and how an entry is referred to.
//!
//! A reference is the number of a page in the store's list and, in its low 12 bits, half the offset in the
//! page: entries have even lengths. So a store holds 2^20 pages of at most 8 KB, 8 GB. No store is to come to that
//! end: from half of it on a store is called crowded, from three quarters on full ([`Crowding`]), and the server
//! refuses commands that would fill it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use smallvec::SmallVec;

use crate::entry::{Header, Where};
use crate::hashing;
use crate::index::Hashes;
use crate::memory::{Block, prefetch};
use crate::overflow::{Outside, Shape, Store};
use crate::page;
use crate::purge::A_PART;

const OFFSET_BITS: u32 = 12;
/// How much of a page is asked for ahead of its being read from begin to end.
const PREFETCHED: usize = 512;
const MOST_PAGES: usize = 1 << (32 - OFFSET_BITS);
/// How many numbers a search for one without a page looks at, and at how many places besides the first.
const LOOK_AT: usize = 64;
const ELSEWHERE: usize = 3;

/// How many pages a store may have.
static MOST: AtomicUsize = AtomicUsize::new(MOST_PAGES);
/// Whether a store was ever crowded.
static ANY_CROWDED: AtomicBool = AtomicBool::new(false);
/// Where the next search begins.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Lets stores of this process have at most so many pages, for tests.
pub fn bound_pages(most: usize) {
    MOST.store(most.min(MOST_PAGES), Ordering::Relaxed);
}

/// Whether a store of this process was ever crowded; while none was, there is no need to ask for [`Crowding`].
#[must_use]
#[inline]
pub fn any_crowded() -> bool {
    ANY_CROWDED.load(Ordering::Relaxed)
}

/// How full a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crowding {
    /// Less than half.
    Free,
    /// It should not grow.
    Crowded,
    /// More than three quarters. New values lie outside then, however small; the rest is for entries that were pinned
    /// or change their size.
    Full,
}

#[inline]
pub(crate) fn reference(page: usize, at: usize) -> u32 {
    (page as u32) << OFFSET_BITS | (at / 2) as u32
}

#[inline]
pub(crate) fn split(reference: u32) -> (usize, usize) {
    ((reference >> OFFSET_BITS) as usize, (reference & ((1 << OFFSET_BITS) - 1)) as usize * 2)
}

/// The length of a block for so many bytes: short ones by granules, others by pairs of them, as lines of the index are.
/// So what one leaves in the pool as it grows fits another.
pub(crate) fn whole(len: usize) -> usize {
    const SHORT: usize = 4 * Block::STEP;
    len.next_multiple_of(if len <= SHORT { Block::STEP } else { 2 * Block::STEP })
}

/// A store's pages by number. A number without a page may be given to a new one.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    list: SmallVec<[Option<Block>; 3]>,
}

impl Pages {
    /// How many numbers are in use or were.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(crate) fn page(&self, number: usize) -> &[u8] {
        self.list[number].as_ref().expect("a page that is referred to is there").bytes()
    }

    #[inline]
    pub(crate) fn page_mut(&mut self, number: usize) -> &mut [u8] {
        self.list[number].as_mut().expect("a page that is referred to is there").bytes_mut()
    }

    /// The page with this number, if it is there.
    pub(crate) fn page_if(&self, number: usize) -> Option<&[u8]> {
        Some(self.list.get(number)?.as_ref()?.bytes())
    }

    pub(crate) fn page_mut_if(&mut self, number: usize) -> Option<&mut [u8]> {
        Some(self.list.get_mut(number)?.as_mut()?.bytes_mut())
    }

    /// The size of the page with this number, without a look at it.
    pub(crate) fn size_if(&self, number: usize) -> Option<usize> {
        Some(self.list.get(number)?.as_ref()?.len())
    }

    /// The header of an entry, its page and its offset there.
    #[inline]
    pub(crate) fn entry(&self, reference: u32) -> (Header, &[u8], usize) {
        let (number, at) = split(reference);
        let page = self.page(number);
        (Header::read(page, at), page, at)
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, reference: u32) -> (Header, &mut [u8], usize) {
        let (number, at) = split(reference);
        let page = self.page_mut(number);
        (Header::read(page, at), page, at)
    }

    #[inline]
    pub(crate) fn prefetch(&self, reference: u32) {
        let (number, at) = split(reference);
        if let Some(Some(block)) = self.list.get(number) {
            block.prefetch(at);
            // Most small entries lie on two lines.
            block.prefetch(at + 48);
        }
    }

    /// Asks the processor for the begin of a page; reading on, it asks for the rest by itself.
    pub(crate) fn prefetch_page(&self, number: usize) {
        if let Some(Some(block)) = self.list.get(number) {
            (0..block.len().min(PREFETCHED)).step_by(64).for_each(|at| block.prefetch(at));
        }
    }

    /// Asks the processor for the list.
    pub(crate) fn prefetch_list(&self) {
        if self.list.spilled() {
            prefetch(self.list.as_ptr());
        }
    }

    /// Takes a page out, to work on it beside the others.
    pub(crate) fn lift(&mut self, number: usize) -> Block {
        self.list[number].take().expect("a page that is referred to is there")
    }

    pub(crate) fn put_back(&mut self, number: usize, block: Block) {
        self.list[number] = Some(block);
    }

    /// Adds an empty page of `len` bytes under a number of at least `from`.
    pub(crate) fn add(&mut self, len: usize, from: usize) -> usize {
        let mut block = Block::new(len);
        page::format(block.bytes_mut());
        match self.unused(from) {
            Some(number) => {
                self.list[number] = Some(block);
                number
            }
            None => {
                assert!(self.list.len() < MOST.load(Ordering::Relaxed), "a full store is not added to");
                self.list.push(Some(block));
                if self.crowding() > Crowding::Free {
                    ANY_CROWDED.store(true, Ordering::Relaxed);
                }
                self.list.len() - 1
            }
        }
    }

    /// A number of at least `from` without a page. Looks at the first, and at some elsewhere, another time at others:
    /// of many without a page one is soon found, so their number stays small.
    fn unused(&self, from: usize) -> Option<usize> {
        let numbers = self.list.len().saturating_sub(from);
        let turn = TURN.fetch_add(1, Ordering::Relaxed) * ELSEWHERE;
        let elsewhere = (turn..turn + ELSEWHERE).map(|turn| turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        std::iter::once(0).chain(elsewhere.filter_map(|any| any.checked_rem(numbers))).find_map(|start| {
            let some = self.list.iter().enumerate().skip(from + start).take(LOOK_AT);
            some.into_iter().find_map(|(number, block)| block.is_none().then_some(number))
        })
    }

    /// How full the list of pages is, of as many as can be referred to.
    #[inline]
    pub(crate) fn crowding(&self) -> Crowding {
        let (pages, most) = (self.list.len() * 4, MOST.load(Ordering::Relaxed));
        if pages < 2 * most {
            Crowding::Free
        } else if pages < 3 * most {
            Crowding::Crowded
        } else {
            Crowding::Full
        }
    }

    /// Makes a page longer. Its entries keep their references.
    pub(crate) fn grow(&mut self, number: usize, len: usize) {
        let mut block = Block::new(len);
        let page = self.page(number);
        block.bytes_mut()[..page::end(page)].copy_from_slice(&page[..page::end(page)]);
        self.put_back(number, block);
    }

    /// Gives back the free bytes at a page's end.
    pub(crate) fn trim(&mut self, number: usize) {
        if let Some(Some(block)) = self.list.get_mut(number) {
            block.truncate(whole(page::end(block.bytes())).min(block.len()));
        }
    }

    /// Gives a page back, and forgets the numbers at the end that have none.
    pub(crate) fn free(&mut self, number: usize) {
        self.list[number] = None;
        while matches!(self.list.last(), Some(None)) {
            self.list.pop();
        }
        if self.list.spilled() && self.list.len() <= 3 {
            self.list.shrink_to_fit();
        }
    }

    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.list.iter().flatten().map(Block::len)
    }

    /// Bytes of pages and of their list.
    pub(crate) fn bytes(&self) -> usize {
        self.list_bytes() + self.sizes().sum::<usize>()
    }

    pub(crate) fn list_bytes(&self) -> usize {
        if self.list.spilled() { self.list.capacity() * size_of::<Option<Block>>() } else { 0 }
    }

    /// Moves a part of the pages to lower chunks of the pool where there is room; says whether there are
    /// further parts.
    pub(crate) fn sink(&mut self, part: usize) -> bool {
        let some = self.list.iter_mut().skip(part * A_PART).take(A_PART);
        some.flatten().for_each(Block::sink);
        self.list.len() > (part + 1) * A_PART
    }
}

/// The keys of the entries, which the index looks up by reference.
pub(crate) struct Names<'a, V: Outside> {
    pub(crate) pages: &'a Pages,
    pub(crate) store: Option<&'a Store<V>>,
}

impl<V: Outside> Clone for Names<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: Outside> Copy for Names<'_, V> {}

impl<'a, V: Outside> Names<'a, V> {
    #[inline]
    pub(crate) fn name(self, reference: u32) -> &'a [u8] {
        let (header, page, at) = self.pages.entry(reference);
        self.name_of(header, page, at)
    }

    /// The bytes of a value that is flat.
    #[inline]
    pub(crate) fn value(self, reference: u32) -> &'a [u8] {
        let (header, page, at) = self.pages.entry(reference);
        self.value_of(header, page, at)
    }

    #[inline(always)]
    pub(crate) fn value_of<'p>(self, header: Header, page: &'p [u8], at: usize) -> &'p [u8]
    where
        'a: 'p,
    {
        let Some(number) = header.outside(page, at) else { return header.value(page, at) };
        match self.store.expect("an entry with a record is where a store is").record(number).value.shape() {
            Shape::Flat(bytes) => bytes,
            Shape::Collection(_) => &[],
        }
    }

    #[inline(always)]
    pub(crate) fn name_of<'p>(self, header: Header, page: &'p [u8], at: usize) -> &'p [u8]
    where
        'a: 'p,
    {
        match header.place() {
            Where::BothOutside => {
                let number = header.outside(page, at).expect("its value is a number");
                let record = self.store.expect("an entry with a record is where a store is").record(number);
                record.key.as_deref().expect("the record has the key")
            }
            _ => header.key(page, at),
        }
    }
}

impl<V: Outside> Hashes for Names<'_, V> {
    fn hash(&self, reference: u32) -> u64 {
        hashing::of(self.name(reference))
    }

    fn prefetch(&self, reference: u32) {
        self.pages.prefetch(reference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: pages come and go in the middle of a long list. Numbers were only looked for among the first, so the
    /// list grew by one for each, up to the end of what can be referred to.
    #[test]
    fn numbers_without_a_page_are_used_again_wherever_they_are() {
        let mut pages = Pages::default();
        for _ in 0..2000 {
            pages.add(Block::STEP, 0);
        }
        let mut random = 1usize;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (random >> 33) % pages.count();
            if pages.page_if(number).is_some() {
                pages.free(number);
                pages.add(Block::STEP, 0);
            }
        }
        assert!(pages.count() < 2200, "{} numbers for 2000 pages", pages.count());
    }
}
