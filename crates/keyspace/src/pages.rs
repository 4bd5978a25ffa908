//! The pages of one store of entries, and how an entry is referred to.
//!
//! A reference is the number of a page in the store's list and, in its low 13 bits, half the offset in the
//! page: entries have even lengths. So a store holds 2^19 pages of at most 16 KB, 8 GB.

use smallvec::SmallVec;

use crate::entry::{Header, Where};
use crate::hashing;
use crate::index::Hashes;
use crate::memory::{Block, prefetch};
use crate::outside::{Outside, Store};
use crate::page;
use crate::purge::A_PART;

const OFFSET_BITS: u32 = 13;
/// How much of a page is asked for ahead of its being read from begin to end.
const PREFETCHED: usize = 512;
const MOST_PAGES: usize = 1 << (32 - OFFSET_BITS);

#[inline]
pub(crate) fn reference(page: usize, at: usize) -> u32 {
    (page as u32) << OFFSET_BITS | (at / 2) as u32
}

#[inline]
pub(crate) fn split(reference: u32) -> (usize, usize) {
    ((reference >> OFFSET_BITS) as usize, (reference & ((1 << OFFSET_BITS) - 1)) as usize * 2)
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
        let unused = self.list.iter().skip(from).take(64).position(Option::is_none);
        match unused {
            Some(number) => {
                self.list[from + number] = Some(block);
                from + number
            }
            None => {
                assert!(self.list.len() < MOST_PAGES, "a slot holds at most 8 GB of small values");
                self.list.push(Some(block));
                self.list.len() - 1
            }
        }
    }

    /// Makes a page longer. Its entries keep their references.
    pub(crate) fn grow(&mut self, number: usize, len: usize) {
        let mut block = Block::new(len);
        let page = self.page(number);
        block.bytes_mut()[..page::end(page)].copy_from_slice(&page[..page::end(page)]);
        self.put_back(number, block);
    }

    /// Gives back what a page has free at its end.
    pub(crate) fn trim(&mut self, number: usize) {
        if let Some(Some(block)) = self.list.get_mut(number) {
            block.truncate(page::end(block.bytes()).next_multiple_of(Block::STEP));
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

/// What the index has to know of the entries: their keys.
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

    #[inline]
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
