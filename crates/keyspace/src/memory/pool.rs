//! Which parts of the pool are taken.
//!
//! The pool grows by chunks of 2 MB. A block is any number of granules of 64 bytes, up to 8 KB, and comes from
//! the chunks' free [`runs`](super::runs). Free memory in whole pages can be given back to the system
//! ([`purge_pool`]).
//!
//! The system zeroes a chunk's large page when it is first touched, which takes a virtual machine up to ten
//! milliseconds. So that no command waits for that, a thread that no command waits for touches the next chunk when
//! the last one is nearly full ([`keep_chunk_ready`]), where that is less than 2 % of the pool. A chunk is
//! *open* (blocks are cut from it), *ready* (its memory is there) or *closed* (the system has its memory back).
//!
//! Invariant: no two blocks that are taken overlap. [`super::block`] relies on it.
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::bits::Bits;
use super::block;
use super::runs::Runs;

/// The smallest block.
pub(super) const GRANULE: usize = 64;
/// Granules of the largest block.
pub(super) const MOST_GRANULES: usize = 128;
pub(super) const CHUNK: usize = 2 << 20;
pub(super) const CHUNK_GRANULES: usize = CHUNK / GRANULE;
/// A granule's number, and one more, fit into 32 bits: 256 GB.
pub(super) const MAX_CHUNKS: usize = u32::MAX as usize / CHUNK_GRANULES;
const SYSTEM_PAGE: usize = 4096;
/// The unit that the system takes back, in granules.
pub(super) const SYSTEM_PAGE_GRANULES: usize = SYSTEM_PAGE / GRANULE;
/// The system's pages in a chunk.
const SYSTEM_PAGES: usize = CHUNK / SYSTEM_PAGE;
/// With less room in all open chunks, in granules, the next chunk is made ready.
const LITTLE_ROOM: usize = CHUNK_GRANULES / 4;
/// In a pool of fewer chunks none is made ready: a small server stays small.
const MANY_CHUNKS: usize = 64;

static POOL: Mutex<Pool> = Mutex::new(Pool {
    runs: Runs::new(),
    chunks: Vec::new(),
    closed: Bits::new(),
    ready: None,
    sinking: Sinking { now: false, sunk: 0, taken: 0, in_vain: None },
});
/// Bytes in blocks that are taken. Changed under the pool's lock, read without it.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// The pool has little room left.
static RUNS_LOW: Condvar = Condvar::new();

#[derive(Debug)]
struct Pool {
    /// The free runs of the open chunks.
    runs: Runs,
    chunks: Vec<Chunk>,
    closed: Bits,
    ready: Option<usize>,
    sinking: Sinking,
}

/// Whether blocks are moved to lower chunks.
#[derive(Debug)]
struct Sinking {
    now: bool,
    /// Bytes moved in this round.
    sunk: usize,
    /// Bytes in taken blocks when this round began.
    taken: usize,
    /// The same of a round that found nothing to move: while it is still about that, the next would not either.
    in_vain: Option<usize>,
}

#[derive(Debug)]
struct Chunk {
    open: bool,
    /// The system was told that it is to lie in small pages.
    small_pages: bool,
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

/// Takes a block in a lower chunk than that of this granule, if there is room.
pub(super) fn take_lower(than: u32, granules: usize) -> Option<u32> {
    let mut pool = POOL.lock();
    let found = pool.runs.take_below(than as usize / CHUNK_GRANULES, granules)?;
    pool.sinking.sunk += GRANULE * granules;
    Some(pool.taken_at(found, granules))
}

/// Gives a taken block back.
pub(super) fn give_back(granule: u32, granules: usize) {
    let mut pool = POOL.lock();
    TAKEN.store(pool_taken() - GRANULE * granules, Ordering::Relaxed);
    pool.runs.give_back(granule as usize / CHUNK_GRANULES, granule as usize % CHUNK_GRANULES, granules);
}

/// Bytes in blocks that are taken. Takes no lock.
#[must_use]
#[inline]
pub fn pool_taken() -> usize {
    TAKEN.load(Ordering::Relaxed)
}

/// How much is in use.
#[must_use]
pub fn pool_use() -> PoolUse {
    POOL.lock().in_use()
}

/// Begins a round over all blocks, and says whether those that can move to lower chunks should: while more than a
/// sixteenth of the pool lies free, and the last such round was not in vain.
pub(crate) fn begin_round() -> bool {
    let mut pool = POOL.lock();
    let PoolUse { taken, held, ready } = pool.in_use();
    let last = &pool.sinking;
    let in_vain = if last.now && last.sunk < held / 256 { Some(last.taken) } else { last.in_vain };
    let in_vain = in_vain.filter(|&at| at.abs_diff(taken) <= at / 64);
    let now = in_vain.is_none() && taken < (held - ready) / 16 * 15;
    pool.sinking = Sinking { now, sunk: 0, taken, in_vain };
    now
}

/// Whether blocks are to move to lower chunks in this round.
pub(crate) fn is_sinking() -> bool {
    POOL.lock().sinking.now
}

/// Waits until the pool runs low and makes its next chunk ready: what the driver's thread for this does over
/// and over. Without such a thread, the command that opens a chunk waits for its memory.
pub fn keep_chunk_ready() {
    let mut pool = POOL.lock();
    RUNS_LOW.wait_while(&mut pool, |pool| !pool.runs_low());
    let index = pool.take_closed();
    // No other thread knows of the chunk now.
    MutexGuard::unlocked(&mut pool, || block::touch(index));
    pool.chunks[index].released.clear();
    pool.ready = Some(index);
}

/// Gives the system's pages that are wholly free back to it, for a share of the chunks (`part` of
/// `parts`): a step of a few hundred microseconds. Returns how many bytes it gave back.
pub fn purge_pool(part: usize, parts: usize) -> usize {
    let count = POOL.lock().chunks.len();
    (0..count).filter(|index| index % parts == part).map(|index| POOL.lock().purge(index)).sum()
}

impl Pool {
    fn in_use(&self) -> PoolUse {
        let released: usize = self.chunks.iter().map(|chunk| chunk.released.count() * SYSTEM_PAGE).sum();
        let ready = self.ready.map_or(0, |_| CHUNK);
        PoolUse { taken: pool_taken(), held: self.chunks.len() * CHUNK - released, ready }
    }

    fn take(&mut self, granules: usize) -> u32 {
        let found = self.runs.take(granules).unwrap_or_else(|| {
            self.grow();
            self.runs.take(granules).expect("a new chunk has room")
        });
        if self.runs_low() {
            RUNS_LOW.notify_one();
        }
        self.taken_at(found, granules)
    }

    /// Notes that a block was taken there; returns the number of its first granule.
    fn taken_at(&mut self, (index, first): (usize, usize), granules: usize) -> u32 {
        TAKEN.store(pool_taken() + GRANULE * granules, Ordering::Relaxed);
        let released = &mut self.chunks[index].released;
        for page in first / SYSTEM_PAGE_GRANULES..=(first + granules - 1) / SYSTEM_PAGE_GRANULES {
            released.remove(page);
        }
        (index * CHUNK_GRANULES + first) as u32
    }

    /// Opens a chunk.
    fn grow(&mut self) {
        let index = self.ready.take().unwrap_or_else(|| self.take_closed());
        self.chunks[index].open = true;
        self.runs.open(index);
    }

    /// A chunk that is not open, whose memory may not be there.
    fn take_closed(&mut self) -> usize {
        if let Some(index) = self.closed.first() {
            self.closed.remove(index);
            self.chunks[index].advise_small_pages(index, false);
            return index;
        }
        let index = self.chunks.len();
        assert!(index < MAX_CHUNKS, "the pool for small values is limited to 256 GB");
        block::map_chunk(index, index > 0);
        let mut released = Bits::below(SYSTEM_PAGES);
        (0..SYSTEM_PAGES).for_each(|page| released.add(page));
        self.chunks.push(Chunk { open: false, small_pages: index == 0, released });
        self.runs.add_chunk();
        self.closed.reserve(index + 1);
        index
    }

    fn runs_low(&self) -> bool {
        self.chunks.len() >= MANY_CHUNKS && self.ready.is_none() && self.runs.room() < LITTLE_ROOM
    }

    /// Gives the free pages of a chunk back to the system, and closes it if nothing of it is taken.
    fn purge(&mut self, index: usize) -> usize {
        let (chunk, runs) = (&mut self.chunks[index], &mut self.runs);
        if !chunk.open {
            return 0;
        }
        let (mut page, mut given) = (0, 0);
        while page < SYSTEM_PAGES {
            let can_go = |page: &usize| runs.is_page_free(index, *page) && !chunk.released.has(*page);
            let count = (page..SYSTEM_PAGES).take_while(can_go).count();
            if count > 0 {
                chunk.advise_small_pages(index, true);
                block::release(index, page * SYSTEM_PAGE, count * SYSTEM_PAGE);
                (page..page + count).for_each(|page| chunk.released.add(page));
            }
            given += count * SYSTEM_PAGE;
            page += count + 1;
        }
        if chunk.released.count() == 0 {
            chunk.advise_small_pages(index, false);
        }
        if runs.is_empty(index) {
            runs.close(index);
            chunk.open = false;
            self.closed.add(index);
        }
        given
    }
}

impl Chunk {
    /// Tells the system, if that is news. The first chunk has small pages always: a nearly empty server stays small.
    fn advise_small_pages(&mut self, index: usize, small: bool) {
        if index > 0 && self.small_pages != small {
            block::advise_large(index, !small);
            self.small_pages = small;
        }
    }
}
