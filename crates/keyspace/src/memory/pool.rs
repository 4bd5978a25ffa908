//! Tracks which parts of the pool are in use.
//!
//! The pool grows by chunks of 2 MB. A block is 1 to 128 granules of 64 bytes, taken from the free
//! [`runs`](super::runs) of the chunks. Free memory in whole system pages can be returned to the kernel
//! ([`purge_pool`]).
//!
//! The kernel zeroes the huge page of a chunk on first touch, which can take ten milliseconds in a virtual machine. So
//! that no command has to wait for this, a background thread touches the next chunk when the last one is nearly full
//! ([`prepare_chunk`]), if a chunk is less than 2 % of the pool. A chunk is *open* (blocks are allocated from it),
//! *ready* (its memory is present) or *closed* (its memory was returned to the kernel).
//!
//! Invariant: blocks in use never overlap. [`super::block`] relies on it.
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::bits::BitSet;
use super::block;
use super::runs::Runs;

/// Allocation unit and smallest block, in bytes.
pub(super) const GRANULE_BYTES: usize = 64;
/// Number of granules of the largest block.
pub(super) const MAX_GRANULES: usize = 128;
pub(super) const CHUNK_BYTES: usize = 2 << 20;
pub(super) const CHUNK_GRANULES: usize = CHUNK_BYTES / GRANULE_BYTES;
/// Maximum number of chunks (256 GB), limited so that a granule number plus one fits 32 bits.
pub(super) const MAX_CHUNKS: usize = u32::MAX as usize / CHUNK_GRANULES;
const SYSTEM_PAGE_BYTES: usize = 4096;
/// The kernel's page size in granules.
pub(super) const SYSTEM_PAGE_GRANULES: usize = SYSTEM_PAGE_BYTES / GRANULE_BYTES;
const SYSTEM_PAGES_PER_CHUNK: usize = CHUNK_BYTES / SYSTEM_PAGE_BYTES;
/// Number of free granules in all open chunks below which the next chunk is prepared.
const LOW_WATERMARK_GRANULES: usize = CHUNK_GRANULES / 4;
/// Number of chunks below which no chunk is prepared, so that a small server stays small.
const MIN_CHUNKS_TO_PREPARE: usize = 64;

static POOL: Mutex<Pool> = Mutex::new(Pool {
    runs: Runs::new(),
    chunks: Vec::new(),
    closed_chunks: BitSet::new(),
    ready_chunk: None,
    compaction: CompactionRound {
        is_active: false,
        moved_bytes: 0,
        used_bytes_at_start: 0,
        used_bytes_at_futile_round: None,
    },
});
/// Bytes of blocks in use. Written while the pool is locked, but read without the lock.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Signalled when the pool has little free memory left.
static POOL_LOW: Condvar = Condvar::new();

#[derive(Debug)]
struct Pool {
    /// The free runs of the open chunks.
    runs: Runs,
    chunks: Vec<Chunk>,
    closed_chunks: BitSet,
    ready_chunk: Option<usize>,
    compaction: CompactionRound,
}

/// The current round of compaction, which may move blocks to lower chunks.
#[derive(Debug)]
struct CompactionRound {
    is_active: bool,
    moved_bytes: usize,
    /// Number of bytes in use when the current round began.
    used_bytes_at_start: usize,
    /// Number of bytes in use when a round began that could not move anything. Another round is futile until the number
    /// has changed considerably.
    used_bytes_at_futile_round: Option<usize>,
}

#[derive(Debug)]
struct Chunk {
    is_open: bool,
    /// Whether the kernel was told not to use huge pages for the chunk.
    uses_small_pages: bool,
    /// System pages that were returned to the kernel and have not been used since.
    released_pages: BitSet,
}

/// How much memory the pool uses, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUsage {
    /// Bytes of blocks in use.
    pub used_bytes: usize,
    /// Bytes obtained from the kernel and not returned to it.
    pub mapped_bytes: usize,
    /// The part of `mapped_bytes` that belongs to the prepared chunk, which is still unused.
    pub ready_bytes: usize,
}

/// Allocates a block of this many granules and returns the number of its first granule.
pub(super) fn take_block(granules: usize) -> u32 {
    POOL.lock().take_block(granules)
}

/// Allocates a block in a lower chunk than that of `below_granule`, if one has room.
pub(super) fn allocate_lower(below_granule: u32, granules: usize) -> Option<u32> {
    let mut pool = POOL.lock();
    let (index, first) = pool.runs.allocate_below(below_granule as usize / CHUNK_GRANULES, granules)?;
    pool.compaction.moved_bytes += GRANULE_BYTES * granules;
    Some(pool.record_allocation(index, first, granules))
}

pub(super) fn free_block(granule: u32, granules: usize) {
    let mut pool = POOL.lock();
    USED_BYTES.store(pool_used_bytes() - GRANULE_BYTES * granules, Ordering::Relaxed);
    pool.runs.free_block(granule as usize / CHUNK_GRANULES, granule as usize % CHUNK_GRANULES, granules);
}

/// Returns the bytes of blocks in use, without locking the pool.
#[must_use]
#[inline]
pub fn pool_used_bytes() -> usize {
    USED_BYTES.load(Ordering::Relaxed)
}

/// Returns the current pool usage.
#[must_use]
pub fn pool_usage() -> PoolUsage {
    POOL.lock().usage()
}

/// Starts a round over all blocks. Returns whether blocks should be moved to lower chunks: only if more than 1/16 of
/// the pool is free and the last such round moved anything.
pub(crate) fn begin_purge_round() -> bool {
    let mut pool = POOL.lock();
    let PoolUsage { used_bytes: taken, mapped_bytes: held, ready_bytes: ready } = pool.usage();
    let last = &pool.compaction;
    let futile_at = if last.is_active && last.moved_bytes < held / 256 {
        Some(last.used_bytes_at_start)
    } else {
        last.used_bytes_at_futile_round
    };
    let futile_at = futile_at.filter(|&at| at.abs_diff(taken) <= at / 64);
    let now = futile_at.is_none() && taken < (held - ready) / 16 * 15;
    pool.compaction = CompactionRound {
        is_active: now,
        moved_bytes: 0,
        used_bytes_at_start: taken,
        used_bytes_at_futile_round: futile_at,
    };
    now
}

/// Returns whether blocks should move to lower chunks in this round.
pub(crate) fn is_moving_to_lower_addresses() -> bool {
    POOL.lock().compaction.is_active
}

/// Waits until the pool has little free memory, and then prepares the next chunk. A dedicated thread calls this in a
/// loop; otherwise the command that opens a chunk waits for the kernel.
pub fn prepare_chunk() {
    let mut pool = POOL.lock();
    POOL_LOW.wait_while(&mut pool, |pool| !pool.is_running_low());
    let index = pool.take_closed_chunk();
    // Only this thread knows of the chunk, so touch it without holding the lock.
    MutexGuard::unlocked(&mut pool, || block::prefault(index));
    pool.chunks[index].released_pages.clear();
    pool.ready_chunk = Some(index);
}

/// Returns free system pages to the kernel, in one of `parts` equal shares of the chunks, which takes a few hundred
/// microseconds. Returns the number of released bytes.
pub fn purge_pool(part: usize, parts: usize) -> usize {
    let count = POOL.lock().chunks.len();
    (0..count).filter(|index| index % parts == part).map(|index| POOL.lock().purge_chunk(index)).sum()
}

impl Pool {
    fn usage(&self) -> PoolUsage {
        let released: usize =
            self.chunks.iter().map(|chunk| chunk.released_pages.count() * SYSTEM_PAGE_BYTES).sum();
        let ready = self.ready_chunk.map_or(0, |_| CHUNK_BYTES);
        PoolUsage {
            used_bytes: pool_used_bytes(),
            mapped_bytes: self.chunks.len() * CHUNK_BYTES - released,
            ready_bytes: ready,
        }
    }

    fn take_block(&mut self, granules: usize) -> u32 {
        let (index, first) = self.runs.allocate(granules).unwrap_or_else(|| {
            self.open_chunk();
            self.runs.allocate(granules).expect("a new chunk has room")
        });
        if self.is_running_low() {
            POOL_LOW.notify_one();
        }
        self.record_allocation(index, first, granules)
    }

    fn record_allocation(&mut self, index: usize, first: usize, granules: usize) -> u32 {
        USED_BYTES.store(pool_used_bytes() + GRANULE_BYTES * granules, Ordering::Relaxed);
        let released = &mut self.chunks[index].released_pages;
        for page in first / SYSTEM_PAGE_GRANULES..=(first + granules - 1) / SYSTEM_PAGE_GRANULES {
            released.remove(page);
        }
        (index * CHUNK_GRANULES + first) as u32
    }

    fn open_chunk(&mut self) {
        let index = self.ready_chunk.take().unwrap_or_else(|| self.take_closed_chunk());
        self.chunks[index].is_open = true;
        self.runs.open_chunk(index);
    }

    /// Removes and returns a closed chunk. The kernel may have to allocate its memory again.
    fn take_closed_chunk(&mut self) -> usize {
        if let Some(index) = self.closed_chunks.first() {
            self.closed_chunks.remove(index);
            self.chunks[index].advise_small_pages(index, false);
            return index;
        }
        let index = self.chunks.len();
        assert!(index < MAX_CHUNKS, "the pool for small values is limited to 256 GB");
        block::map_chunk(index, index > 0);
        let mut released = BitSet::with_capacity_below(SYSTEM_PAGES_PER_CHUNK);
        (0..SYSTEM_PAGES_PER_CHUNK).for_each(|page| released.insert(page));
        self.chunks.push(Chunk { is_open: false, uses_small_pages: index == 0, released_pages: released });
        self.runs.add_chunk();
        self.closed_chunks.reserve(index + 1);
        index
    }

    fn is_running_low(&self) -> bool {
        self.chunks.len() >= MIN_CHUNKS_TO_PREPARE
            && self.ready_chunk.is_none()
            && self.runs.free_granules() < LOW_WATERMARK_GRANULES
    }

    /// Returns the free pages of a chunk to the kernel, and closes the chunk if it is entirely free.
    fn purge_chunk(&mut self, index: usize) -> usize {
        let (chunk, runs) = (&mut self.chunks[index], &mut self.runs);
        if !chunk.is_open {
            return 0;
        }
        let (mut page, mut given) = (0, 0);
        while page < SYSTEM_PAGES_PER_CHUNK {
            let can_go =
                |page: &usize| runs.is_page_free(index, *page) && !chunk.released_pages.contains(*page);
            let count = (page..SYSTEM_PAGES_PER_CHUNK).take_while(can_go).count();
            if count > 0 {
                chunk.advise_small_pages(index, true);
                block::release_pages(index, page * SYSTEM_PAGE_BYTES, count * SYSTEM_PAGE_BYTES);
                (page..page + count).for_each(|page| chunk.released_pages.insert(page));
            }
            given += count * SYSTEM_PAGE_BYTES;
            page += count + 1;
        }
        if chunk.released_pages.count() == 0 {
            chunk.advise_small_pages(index, false);
        }
        if runs.is_empty(index) {
            runs.close_chunk(index);
            chunk.is_open = false;
            self.closed_chunks.insert(index);
        }
        given
    }
}

impl Chunk {
    /// Tells the kernel whether to use huge pages for the chunk, if that has changed. The first chunk never uses them,
    /// so that a nearly empty server stays small.
    fn advise_small_pages(&mut self, index: usize, small_pages: bool) {
        if index > 0 && self.uses_small_pages != small_pages {
            block::advise_huge_pages(index, !small_pages);
            self.uses_small_pages = small_pages;
        }
    }
}
