//! Blocks of the pool as bytes. The only unsafe code of the workspace.
//!
//! A [`Block`] is to the pool what a `Box<[u8]>` is to the allocator: the one owner of its bytes, given
//! back when dropped. It is four bytes instead of sixteen, because a slot has many: the block's first
//! granule and its order in one number, `(granule >> order) * 2 + 1 << order` (the lowest one bit tells
//! the order, which works because a block's place is a multiple of its size).
//!
//! What must hold: a chunk, once mapped, is never unmapped or moved; the pool never hands out overlapping
//! blocks; a `Block` is made only from what the pool handed out, and is not copied.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::num::NonZeroU32;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::pool::{self, CHUNK, CHUNK_GRANULES, GRANULE, MAX_CHUNKS, ORDERS};

/// Where each chunk lies. Written once, under the pool's lock, before a block of it is handed out.
static CHUNKS: [AtomicPtr<u8>; MAX_CHUNKS] = [const { AtomicPtr::new(null_mut()) }; MAX_CHUNKS];

/// A block of the pool: 128 bytes to 16 KB.
#[derive(Debug)]
pub(crate) struct Block(NonZeroU32);

impl Block {
    pub(crate) const SMALLEST: usize = GRANULE;
    pub(crate) const LARGEST: usize = GRANULE << (ORDERS - 1);

    /// A block of `GRANULE << order` bytes, with what its last owner left in them.
    pub(crate) fn new(order: usize) -> Self {
        assert!(order < ORDERS, "no block is that large");
        let granule = pool::take(order);
        let coded = (granule >> order) * 2 + 1;
        Self(NonZeroU32::new(coded << order).expect("the lowest bit was set before the shift"))
    }

    pub(crate) fn order(&self) -> usize {
        self.0.trailing_zeros() as usize
    }

    pub(crate) fn len(&self) -> usize {
        GRANULE << self.order()
    }

    fn granule(&self) -> usize {
        let order = self.order();
        (self.0.get() as usize >> (order + 1)) << order
    }

    fn start(&self) -> NonNull<u8> {
        let granule = self.granule();
        let chunk = CHUNKS[granule / CHUNK_GRANULES].load(Ordering::Acquire);
        // SAFETY: the chunk was mapped before the pool handed out a block of it and stays so; the
        // granule lies in it, so the offset is below the chunk's size, and the pointer is not null.
        unsafe { NonNull::new_unchecked(chunk.add(granule % CHUNK_GRANULES * GRANULE)) }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block's bytes lie in one mapped chunk, are initialized (the system zeroes them) and
        // belong to this block alone; the borrow of the block guards them as with a `Box<[u8]>`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    /// Asks the processor for the line at `offset`.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        prefetch(self.start().as_ptr().wrapping_add(offset));
    }

    /// Moves the block to a lower chunk if the pool has room there.
    pub(crate) fn sink(&mut self) {
        let mut lower = Self::new(self.order());
        if lower.granule() / CHUNK_GRANULES < self.granule() / CHUNK_GRANULES {
            lower.bytes_mut().copy_from_slice(self.bytes());
            *self = lower;
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        pool::give_back(self.granule() as u32, self.order());
    }
}

/// Asks the processor for the line that `at` points to. Any address will do.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could see and does not fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Gets chunk `index` from the system, aligned to its size. `large` asks for the system's large pages:
/// with them a lookup misses the translation buffer far less often, and nothing forks here, which is why
/// others advise against them.
pub(super) fn map_chunk(index: usize, large: bool) {
    let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no memory that the program has.
    let mapped = unsafe { libc::mmap(null_mut(), 2 * CHUNK, read_write, private, -1, 0) };
    if mapped == libc::MAP_FAILED {
        std::alloc::handle_alloc_error(
            Layout::from_size_align(CHUNK, CHUNK).expect("both are powers of two"),
        );
    }
    let mapped = mapped.cast::<u8>();
    let before = mapped.align_offset(CHUNK);
    // SAFETY: twice the size was mapped, so an aligned chunk lies in it, and what lies before and behind
    // it belongs to nobody.
    let chunk = unsafe {
        let chunk = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped.cast(), before);
        }
        libc::munmap(chunk.add(CHUNK).cast(), CHUNK - before);
        if large {
            libc::madvise(chunk.cast(), CHUNK, libc::MADV_HUGEPAGE);
        }
        chunk
    };
    CHUNKS[index].store(chunk, Ordering::Release);
}

/// Gives `len` bytes of a chunk back to the system; they read as zeros afterwards. Called by the pool, under
/// its lock, for free blocks only.
pub(super) fn release(index: usize, offset: usize, len: usize) {
    assert!(offset + len <= CHUNK);
    let chunk = CHUNKS[index].load(Ordering::Acquire);
    // SAFETY: the range lies in a mapped chunk, and no block that is taken lies in it.
    let done = unsafe { libc::madvise(chunk.add(offset).cast(), len, libc::MADV_DONTNEED) };
    debug_assert_eq!(done, 0);
}

#[cfg(test)]
mod tests;
