//! Which parts of the pool are taken.
//!
//! The pool grows by chunks of 2 MB. A chunk is cut by halves (a buddy system) into pieces of 128 bytes to
//! 16 KB: a piece's place is a multiple of its size, and a freed one joins its other half when that is free
//! too. A block is any number of granules of 128 bytes: the begin of the smallest piece in which it fits, of
//! which the rest is free at once, in smaller pieces. It comes from the lowest chunk that has such a piece,
//! so that what is in use drifts together and the rest can be given back to the system ([`purge_pool`]).
//!
//! The system zeroes a chunk's large page when it is first touched, which takes a virtual machine up to ten
//! milliseconds. So that no command waits for that, a thread that nobody waits for touches the next chunk when
//! the last one is nearly full ([`keep_chunk_ready`]), where that is less than 2 % of the pool. A chunk is
//! *open* (blocks are cut from it), *ready* (its memory is there) or *closed* (the system has its memory back).
//!
//! What must hold: no two blocks that are taken overlap. [`super::block`] relies on it.
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::bits::Bits;
use super::block;

/// The smallest block.
pub(super) const GRANULE: usize = 128;
/// Pieces are `GRANULE << order` bytes, order 0 to 7: 128 bytes to 16 KB.
const ORDERS: usize = 8;
/// Granules of the largest block.
pub(super) const MOST_GRANULES: usize = 1 << (ORDERS - 1);
pub(super) const CHUNK: usize = 2 << 20;
pub(super) const CHUNK_GRANULES: usize = CHUNK / GRANULE;
/// 2^31 granules: 256 GB.
pub(super) const MAX_CHUNKS: usize = (1 << 31) / CHUNK_GRANULES;
/// What the system takes back, in granules.
const SYSTEM_PAGE_GRANULES: usize = 4096 / GRANULE;
/// The system's pages in a chunk.
const SYSTEM_PAGES: usize = CHUNK_GRANULES / SYSTEM_PAGE_GRANULES;
/// The largest pieces of a chunk.
const PIECES: usize = CHUNK_GRANULES / MOST_GRANULES;
/// With fewer of the largest pieces left in all open chunks, the next chunk is made ready.
const FEW_PIECES: usize = PIECES / 4;
/// In a pool of fewer chunks none is made ready: a small server stays small.
const MANY_CHUNKS: usize = 64;

static POOL: Mutex<Pool> = Mutex::new(Pool {
    chunks: Vec::new(),
    available: [const { Bits::new() }; ORDERS],
    pieces: 0,
    closed: Bits::new(),
    ready: None,
    taken: 0,
});
/// The pool has few pieces left.
static RUNS_LOW: Condvar = Condvar::new();

#[derive(Debug)]
struct Pool {
    chunks: Vec<Chunk>,
    /// By order: the chunks that have a free block of it.
    available: [Bits; ORDERS],
    /// How many of the largest pieces are free.
    pieces: usize,
    closed: Bits,
    ready: Option<usize>,
    taken: usize,
}

#[derive(Debug)]
struct Chunk {
    /// By order: the free blocks.
    free: [Bits; ORDERS],
    /// The system's pages that were given back and not used since.
    released: Bits,
}

/// How much of the pool is in use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUse {
    /// In blocks that are taken.
    pub taken: usize,
    /// Got from the system and not given back.
    pub held: usize,
    /// Of what is held: the chunk that nothing has been put into yet.
    pub ready: usize,
}

/// Takes a block of so many granules; returns the number of its first.
pub(super) fn take(granules: usize) -> u32 {
    POOL.lock().take(granules)
}

/// Gives a taken block back.
pub(super) fn give_back(granule: u32, granules: usize) {
    POOL.lock().give_back(granule as usize, granules);
}

/// How much is in use.
#[must_use]
pub fn pool_use() -> PoolUse {
    let pool = POOL.lock();
    let released: usize = pool.chunks.iter().map(|chunk| chunk.released.count() * 4096).sum();
    let ready = pool.ready.map_or(0, |_| CHUNK);
    PoolUse { taken: pool.taken, held: pool.chunks.len() * CHUNK - released, ready }
}

/// Waits until the pool runs low and makes its next chunk ready: what the driver's thread for this does over
/// and over. Without such a thread whoever opens a chunk waits for its memory.
pub fn keep_chunk_ready() {
    let mut pool = POOL.lock();
    RUNS_LOW.wait_while(&mut pool, |pool| !pool.runs_low());
    let index = pool.take_closed();
    // Nobody else knows of the chunk now.
    MutexGuard::unlocked(&mut pool, || block::touch(index));
    pool.chunks[index].released.clear();
    pool.ready = Some(index);
}

/// Gives what lies free in whole pages of the system back to it, for a share of the chunks (`part` of
/// `parts`): a step of a few hundred microseconds. Returns how many bytes it gave back.
pub fn purge_pool(part: usize, parts: usize) -> usize {
    let count = POOL.lock().chunks.len();
    (0..count).filter(|index| index % parts == part).map(|index| POOL.lock().purge(index)).sum()
}

/// The order of the smallest piece with so many granules.
fn order_of(granules: usize) -> usize {
    granules.next_power_of_two().ilog2() as usize
}

impl Pool {
    fn take(&mut self, granules: usize) -> u32 {
        let order = order_of(granules);
        let found = (order..ORDERS).find_map(|from| Some((from, self.available[from].first()?)));
        let (mut from, index) = found.unwrap_or_else(|| (ORDERS - 1, self.grow()));
        let mut number = self.chunks[index].free[from].first().expect("the chunk was said to have one");
        self.remove_free(index, from, number);
        while from > order {
            from -= 1;
            number *= 2;
            self.add_free(index, from, number + 1);
        }
        let (first, end) = (number << order, (number + 1) << order);
        let mut rest = first + granules;
        while rest < end {
            let order = rest.trailing_zeros() as usize;
            self.add_free(index, order, rest >> order);
            rest += 1 << order;
        }
        self.taken += GRANULE * granules;
        let chunk = &mut self.chunks[index];
        for page in first / SYSTEM_PAGE_GRANULES..=(first + granules - 1) / SYSTEM_PAGE_GRANULES {
            chunk.released.remove(page);
        }
        (index * CHUNK_GRANULES + first) as u32
    }

    fn give_back(&mut self, granule: usize, granules: usize) {
        let (index, mut first) = (granule / CHUNK_GRANULES, granule % CHUNK_GRANULES);
        self.taken -= GRANULE * granules;
        let mut left = granules;
        while left > 0 {
            // The block begins where a piece does in which it fits, so these are pieces.
            let order = left.ilog2() as usize;
            self.add_joined(index, order, first >> order);
            first += 1 << order;
            left -= 1 << order;
        }
    }

    /// Adds a free piece, joined with its other half as often as that is free.
    fn add_joined(&mut self, index: usize, mut order: usize, mut number: usize) {
        assert!(!self.chunks[index].free[order].has(number), "a block is given back once");
        while order + 1 < ORDERS && self.chunks[index].free[order].has(number ^ 1) {
            self.remove_free(index, order, number ^ 1);
            number >>= 1;
            order += 1;
        }
        self.add_free(index, order, number);
    }

    /// Opens a chunk.
    fn grow(&mut self) -> usize {
        let index = self.ready.take().unwrap_or_else(|| self.take_closed());
        (0..PIECES).for_each(|number| self.add_free(index, ORDERS - 1, number));
        index
    }

    /// A chunk that is not open, whose memory may not be there.
    fn take_closed(&mut self) -> usize {
        if let Some(index) = self.closed.first() {
            self.closed.remove(index);
            return index;
        }
        let index = self.chunks.len();
        assert!(index < MAX_CHUNKS, "the pool for small values is limited to 256 GB");
        // With small pages in the first, a nearly empty server stays small.
        block::map_chunk(index, index > 0);
        let free: [Bits; ORDERS] = std::array::from_fn(|order| Bits::below(CHUNK_GRANULES >> order));
        let mut released = Bits::below(SYSTEM_PAGES);
        (0..SYSTEM_PAGES).for_each(|page| released.add(page));
        self.chunks.push(Chunk { free, released });
        for chunks in self.available.iter_mut().chain([&mut self.closed]) {
            chunks.reserve(index + 1);
        }
        index
    }

    /// Closes a chunk that nothing lies in and that the system has back.
    fn close(&mut self, index: usize) {
        (0..PIECES).for_each(|number| self.remove_free(index, ORDERS - 1, number));
        self.closed.add(index);
    }

    fn runs_low(&self) -> bool {
        self.pieces < FEW_PIECES && self.ready.is_none() && self.chunks.len() >= MANY_CHUNKS
    }

    fn add_free(&mut self, index: usize, order: usize, number: usize) {
        self.pieces += usize::from(order == ORDERS - 1);
        self.chunks[index].free[order].add(number);
        self.available[order].add(index);
    }

    fn remove_free(&mut self, index: usize, order: usize, number: usize) {
        if order == ORDERS - 1 {
            self.pieces -= 1;
            if self.pieces + 1 == FEW_PIECES {
                RUNS_LOW.notify_one();
            }
        }
        let free = &mut self.chunks[index].free[order];
        free.remove(number);
        if free.first().is_none() {
            self.available[order].remove(index);
        }
    }

    fn purge(&mut self, index: usize) -> usize {
        let chunk = &mut self.chunks[index];
        let smallest = SYSTEM_PAGE_GRANULES.trailing_zeros() as usize;
        let mut given = 0;
        for order in smallest..ORDERS {
            for number in chunk.free[order].iter() {
                let first = (number << order) / SYSTEM_PAGE_GRANULES;
                let count = (1 << order) / SYSTEM_PAGE_GRANULES;
                if (first..first + count).all(|page| chunk.released.has(page)) {
                    continue;
                }
                block::release(index, first * 4096, count * 4096);
                (first..first + count).for_each(|page| chunk.released.add(page));
                given += count * 4096;
            }
        }
        if self.chunks[index].free[ORDERS - 1].count() == PIECES {
            self.close(index);
        }
        given
    }
}
