//! Which parts of the pool are taken.
//!
//! The pool grows by chunks of 2 MB. A chunk is cut by halves (a buddy system) into pieces of 128 bytes to
//! 16 KB: a piece's place is a multiple of its size, and a freed one joins its other half when that is free
//! too. A block is any number of granules of 128 bytes: the begin of the smallest piece in which it fits, of
//! which the rest is free at once, in smaller pieces. It comes from the lowest chunk that has such a piece,
//! so that what is in use drifts together and the rest can be given back to the system ([`purge_pool`]).
//!
//! What must hold: no two blocks that are taken overlap. [`super::block`] relies on it.
use parking_lot::Mutex;

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
/// Chunks that are backed by the system's small pages, so that a nearly empty server stays small.
const SMALL_CHUNKS: usize = 4;

static POOL: Mutex<Pool> =
    Mutex::new(Pool { chunks: Vec::new(), available: [const { Bits::new() }; ORDERS], taken: 0 });

#[derive(Debug)]
struct Pool {
    chunks: Vec<Chunk>,
    /// By order: the chunks that have a free block of it.
    available: [Bits; ORDERS],
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
    PoolUse { taken: pool.taken, held: pool.chunks.len() * CHUNK - released }
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

    fn grow(&mut self) -> usize {
        let index = self.chunks.len();
        assert!(index < MAX_CHUNKS, "the pool for small values is limited to 256 GB");
        block::map_chunk(index, index >= SMALL_CHUNKS);
        // The chunk before is full.
        if (1..=SMALL_CHUNKS).contains(&index) {
            block::make_large(index - 1);
        }
        let free: [Bits; ORDERS] = std::array::from_fn(|order| {
            let mut bits = Bits::new();
            bits.reserve(CHUNK_GRANULES >> order);
            bits
        });
        let mut released = Bits::new();
        released.reserve(CHUNK_GRANULES / SYSTEM_PAGE_GRANULES);
        (0..CHUNK_GRANULES / SYSTEM_PAGE_GRANULES).for_each(|page| released.add(page));
        self.chunks.push(Chunk { free, released });
        for available in &mut self.available {
            available.reserve(index + 1);
        }
        (0..CHUNK_GRANULES >> (ORDERS - 1)).for_each(|number| self.add_free(index, ORDERS - 1, number));
        index
    }

    fn add_free(&mut self, index: usize, order: usize, number: usize) {
        self.chunks[index].free[order].add(number);
        self.available[order].add(index);
    }

    fn remove_free(&mut self, index: usize, order: usize, number: usize) {
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
        given
    }
}
