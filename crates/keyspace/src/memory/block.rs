//! Pool blocks as byte slices. This is the crate's only module with unsafe code.
//!
//! A [`Block`] owns its bytes like a `Box<[u8]>` and frees them on drop, but they come from the pool. It takes five
//! bytes instead of sixteen, because a slot has many blocks; a [`CacheLinePair`], a block of fixed length, takes four.
//!
//! Invariants: a mapped chunk is never unmapped or moved; the pool never hands out overlapping blocks; a `Block` or
//! `CacheLinePair` is created only from a position that the pool handed out, and is not copied.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::num::{NonZeroU8, NonZeroU32};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::pool::{self, CHUNK_BYTES, CHUNK_GRANULES, GRANULE_BYTES, MAX_CHUNKS, MAX_GRANULES};

/// Address of each chunk. Written once, while the pool is locked, before any block of the chunk is handed out.
static CHUNK_ADDRESSES: [AtomicPtr<u8>; MAX_CHUNKS] = [const { AtomicPtr::new(null_mut()) }; MAX_CHUNKS];

/// Returns the address of a granule that the pool has handed out.
#[inline]
fn granule_address(granule: u32) -> NonNull<u8> {
    let (chunk, granule) = (granule as usize / CHUNK_GRANULES, granule as usize % CHUNK_GRANULES);
    let chunk = CHUNK_ADDRESSES[chunk].load(Ordering::Acquire);
    // SAFETY: the chunk was mapped before the pool handed out a block of it, and is never unmapped; the granule lies in
    // the chunk, so the offset is less than the chunk's size, and the pointer is not null.
    unsafe { NonNull::new_unchecked(chunk.add(granule * GRANULE_BYTES)) }
}

/// A pool block of 64 bytes to 8 KB, in steps of 64.
#[derive(Debug)]
pub(crate) struct Block {
    granules: NonZeroU8,
    first_granule: [u8; 4],
}

impl Block {
    /// The block granularity and smallest block size in bytes.
    pub(crate) const MIN_BLOCK_BYTES: usize = GRANULE_BYTES;
    pub(crate) const MAX_BLOCK_BYTES: usize = GRANULE_BYTES * MAX_GRANULES;

    /// Allocates a block of `len` bytes, a multiple of [`Block::MIN_BLOCK_BYTES`]. Its content is whatever the previous
    /// owner of the memory left.
    pub(crate) fn new(len: usize) -> Self {
        assert!(
            len.is_multiple_of(GRANULE_BYTES) && len <= Self::MAX_BLOCK_BYTES,
            "no block has {len} bytes"
        );
        let granules = NonZeroU8::new((len / GRANULE_BYTES) as u8).expect("a block is not empty");
        Self::from_granule(pool::take_block(len / GRANULE_BYTES), granules)
    }

    /// Creates the owner of a block that the pool has just handed out.
    fn from_granule(first: u32, granules: NonZeroU8) -> Self {
        Self { granules, first_granule: first.to_le_bytes() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        GRANULE_BYTES * usize::from(self.granules.get())
    }

    #[inline]
    fn first_granule(&self) -> u32 {
        u32::from_le_bytes(self.first_granule)
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block's bytes lie in one mapped chunk, are initialized (the system zeroes them) and belong to
        // this block alone; they are borrowed for as long as the block is.
        unsafe { std::slice::from_raw_parts(granule_address(self.first_granule()).as_ptr(), self.len()) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are valid as in `bytes`, and the mutable borrow of the block is exclusive.
        unsafe { std::slice::from_raw_parts_mut(granule_address(self.first_granule()).as_ptr(), self.len()) }
    }

    /// Prefetches the cache line at `offset`.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        prefetch(granule_address(self.first_granule()).as_ptr().wrapping_add(offset));
    }

    /// Frees all bytes after the first `len`, which must be a multiple of [`Block::MIN_BLOCK_BYTES`].
    pub(crate) fn truncate(&mut self, len: usize) {
        let (all, left) = (usize::from(self.granules.get()), len / GRANULE_BYTES);
        assert!(
            len.is_multiple_of(GRANULE_BYTES) && left <= all,
            "no block of {all} granules can be cut to {len} bytes"
        );
        self.granules = NonZeroU8::new(left as u8).expect("a block is not empty");
        if left < all {
            pool::free_block(self.first_granule() + left as u32, all - left);
        }
    }

    /// Moves the block to a lower chunk of the pool if there is room.
    pub(crate) fn move_to_lower_addresses(&mut self) {
        if let Some(first) = pool::allocate_lower(self.first_granule(), usize::from(self.granules.get())) {
            let mut lower = Self::from_granule(first, self.granules);
            lower.bytes_mut().copy_from_slice(self.bytes());
            *self = lower;
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        pool::free_block(self.first_granule(), usize::from(self.granules.get()));
    }
}

/// A block of two cache lines, stored as the number of its first granule plus one.
#[derive(Debug)]
pub(crate) struct CacheLinePair(NonZeroU32);

impl CacheLinePair {
    pub(crate) const LEN: usize = 128;
    const GRANULES: usize = Self::LEN / GRANULE_BYTES;

    /// Allocates a block. Its content is whatever the previous owner of the memory left.
    pub(crate) fn new() -> Self {
        Self::from_granule(pool::take_block(Self::GRANULES))
    }

    /// Creates the owner of a block that the pool has just handed out.
    fn from_granule(granule: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(granule))
    }

    #[inline]
    fn first_granule(&self) -> u32 {
        self.0.get() - 1
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8; Self::LEN] {
        // SAFETY: as in `Block::bytes`; the two cache lines are as long as the array.
        unsafe { granule_address(self.first_granule()).cast().as_ref() }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; Self::LEN] {
        // SAFETY: the bytes are valid as in `bytes`, and the mutable borrow of the block is exclusive.
        unsafe { granule_address(self.first_granule()).cast().as_mut() }
    }

    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        prefetch(granule_address(self.first_granule()).as_ptr().wrapping_add(offset));
    }

    /// Moves the block to a lower chunk of the pool if there is room.
    pub(crate) fn move_to_lower_addresses(&mut self) {
        if let Some(granule) = pool::allocate_lower(self.first_granule(), Self::GRANULES) {
            let mut lower = Self::from_granule(granule);
            *lower.bytes_mut() = *self.bytes();
            *self = lower;
        }
    }
}

impl Drop for CacheLinePair {
    fn drop(&mut self) {
        pool::free_block(self.first_granule(), Self::GRANULES);
    }
}

/// Prefetches the cache line at address `at`, which need not be valid.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Runs `work` compiled for wide vector instructions if the CPU supports them. This speeds up loops over many bytes,
/// but only in code that is inlined into `work`.
#[inline]
pub fn with_wide_vectors<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,popcnt")]
        fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vpopcntdq,avx2,popcnt")]
        fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if std::arch::is_x86_feature_detected!("avx512vpopcntdq")
            && std::arch::is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the CPU supports the features that `with_avx512` is compiled for.
            return unsafe { with_avx512(work) };
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("popcnt") {
            // SAFETY: the CPU supports the features that `with_avx2` is compiled for.
            return unsafe { with_avx2(work) };
        }
    }
    work()
}

/// Maps chunk `index`. With `huge_pages` it uses huge pages, which make TLB misses on lookups far rarer. The usual
/// objection to huge pages, the cost of copy-on-write after a fork, does not apply, because this server does not fork.
pub(super) fn map_chunk(index: usize, huge_pages: bool) {
    CHUNK_ADDRESSES[index].store(map_memory(huge_pages).as_ptr(), Ordering::Release);
}

/// Enables or disables huge pages for chunk `index`. They must be disabled while a chunk is partially released;
/// otherwise khugepaged would rebuild a huge page and allocate all of its memory again.
pub(super) fn advise_huge_pages(index: usize, huge_pages: bool) {
    let advice = if huge_pages { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: this advice does not change the contents of a mapped chunk. Systems without huge pages reject the advice.
    unsafe { libc::madvise(CHUNK_ADDRESSES[index].load(Ordering::Acquire).cast(), CHUNK_BYTES, advice) };
}

/// Touches a chunk so that the kernel allocates its memory now. The pool must not have handed out any block of the
/// chunk; the caller gives the chunk to the pool afterwards.
pub(super) fn prefault(index: usize) {
    let chunk = CHUNK_ADDRESSES[index].load(Ordering::Acquire);
    for page in (0..CHUNK_BYTES).step_by(4096) {
        // SAFETY: the offset is below the size of the mapped chunk, and no block of it is in use.
        unsafe { chunk.add(page).write_volatile(0) };
    }
}

/// Maps memory with the size and alignment of a chunk.
fn map_memory(huge_pages: bool) -> NonNull<u8> {
    let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping does not affect existing memory.
    let mapped = unsafe { libc::mmap(null_mut(), 2 * CHUNK_BYTES, read_write, private, -1, 0) };
    if mapped == libc::MAP_FAILED {
        std::alloc::handle_alloc_error(
            Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).expect("both are powers of two"),
        );
    }
    let mapped = mapped.cast::<u8>();
    let before = mapped.align_offset(CHUNK_BYTES);
    // SAFETY: twice the chunk size was mapped, so an aligned chunk lies within it and is not null; nothing uses the
    // memory before and after that chunk.
    unsafe {
        let chunk = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped.cast(), before);
        }
        libc::munmap(chunk.add(CHUNK_BYTES).cast(), CHUNK_BYTES - before);
        if huge_pages {
            libc::madvise(chunk.cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE);
        }
        NonNull::new_unchecked(chunk)
    }
}

/// A chunk filled with values of `T`, on a huge page if possible. Meant for data that every command accesses at an
/// unpredictable position.
#[derive(Debug)]
pub(crate) struct ChunkArray<T>(NonNull<T>);

// SAFETY: a `ChunkArray` owns its values like a `Box<[T]>`.
unsafe impl<T: Send> Send for ChunkArray<T> {}
// SAFETY: a `ChunkArray` owns its values like a `Box<[T]>`.
unsafe impl<T: Sync> Sync for ChunkArray<T> {}

impl<T: Default> Default for ChunkArray<T> {
    fn default() -> Self {
        const { assert!(CHUNK_BYTES.is_multiple_of(size_of::<T>()) && align_of::<T>() <= CHUNK_BYTES) };
        let start = map_memory(true).cast::<T>();
        for number in 0..Self::LEN {
            // SAFETY: `LEN` values fit in the new mapping, which is aligned for them and has no other owner.
            unsafe { start.add(number).write(T::default()) };
        }
        Self(start)
    }
}

impl<T> ChunkArray<T> {
    pub(crate) const LEN: usize = CHUNK_BYTES / size_of::<T>();
}

impl<T> std::ops::Deref for ChunkArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `LEN` values were written at construction and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), Self::LEN) }
    }
}

impl<T> Drop for ChunkArray<T> {
    fn drop(&mut self) {
        // SAFETY: the values are dropped once, here, and the mapping was created in `default` with this size.
        unsafe {
            std::ptr::slice_from_raw_parts_mut(self.0.as_ptr(), Self::LEN).drop_in_place();
            libc::munmap(self.0.as_ptr().cast(), CHUNK_BYTES);
        }
    }
}

/// Returns `len` bytes of a chunk to the kernel; they read as zeros afterwards. They must be free, and the pool must be
/// locked.
pub(super) fn release_pages(index: usize, offset: usize, len: usize) {
    assert!(offset + len <= CHUNK_BYTES);
    let chunk = CHUNK_ADDRESSES[index].load(Ordering::Acquire);
    // SAFETY: the range lies in a mapped chunk, and no block in use overlaps it.
    let done = unsafe { libc::madvise(chunk.add(offset).cast(), len, libc::MADV_DONTNEED) };
    debug_assert_eq!(done, 0);
}

#[cfg(test)]
mod tests;
