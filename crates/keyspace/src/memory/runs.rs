//! The free runs of the pool's open chunks, for best-fit allocation.
//!
//! A run is a maximal sequence of adjacent free granules in one chunk. A block is allocated from the shortest run that
//! fits, and among equally short ones from the lowest chunk. A freed block merges with the runs on both sides. The runs
//! that growing slots leave behind therefore fit the next slots that grow, and a block of three granules leaves no
//! hole.
//!
//! There is no list of runs. Each chunk has a bit per granule and, for each length, a bit mask of those of its 64 parts
//! in which a run of that length starts; the run itself is then found within the eight words of the part.
//!
//! Invariant: blocks in use never overlap. [`super::block`] relies on it.
use super::bits::BitSet;
use super::pool::{CHUNK_GRANULES, MAX_GRANULES, SYSTEM_PAGE_GRANULES};

const WORDS_PER_CHUNK: usize = CHUNK_GRANULES / 64;
/// Number of padding words before a chunk's words, so that scans need no bounds checks.
const PADDING_BEFORE: usize = 1;
const PADDING_AFTER: usize = LENGTH_CLASS_COUNT / 64 + 1;
const GRANULES_PER_PART: usize = CHUNK_GRANULES / 64;
/// Number of run lengths that are distinguished: 1 to 128 granules. The last one includes all longer runs.
const LENGTH_CLASS_COUNT: usize = MAX_GRANULES;
/// Maximum number of granules up to which a run is measured. This suffices to know the length class of what remains
/// after an allocation.
const MAX_MEASURED_GRANULES: usize = 2 * LENGTH_CLASS_COUNT;

#[derive(Debug)]
pub(super) struct Runs {
    chunks: Vec<Chunk>,
    /// The chunks that have a run of a given length, indexed by length minus one.
    chunks_with_run: [BitSet; LENGTH_CLASS_COUNT],
    /// Bit mask of the run lengths that exist in any chunk.
    length_mask: u128,
    free_words: usize,
}

#[derive(Debug)]
struct Chunk {
    /// One bit per granule, set if it is free. The padding words count as taken.
    free_bits: Box<[u64; PADDING_BEFORE + WORDS_PER_CHUNK + PADDING_AFTER]>,
    /// For each run length minus one, a bit mask of the parts in which such a run starts.
    parts_with_run: Box<[u64; LENGTH_CLASS_COUNT]>,
}

/// Adjacent free granules of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeRun {
    start: usize,
    len: usize,
}

impl FreeRun {
    fn end(self) -> usize {
        self.start + self.len
    }

    /// Returns the length class: the length minus one, but at most the highest class.
    fn length_class(self) -> usize {
        self.len.min(LENGTH_CLASS_COUNT) - 1
    }

    fn part_index(self) -> usize {
        self.start / GRANULES_PER_PART
    }
}

impl Runs {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            chunks_with_run: [const { BitSet::new() }; LENGTH_CLASS_COUNT],
            length_mask: 0,
            free_words: 0,
        }
    }

    /// Returns the approximate number of free granules. Small holes are not counted.
    pub(super) fn free_granules(&self) -> usize {
        self.free_words * 64
    }

    /// Adds a chunk, which is not used for allocations until it is opened.
    pub(super) fn add_chunk(&mut self) {
        let mut free = [0; PADDING_BEFORE + WORDS_PER_CHUNK + PADDING_AFTER];
        free[PADDING_BEFORE..PADDING_BEFORE + WORDS_PER_CHUNK].fill(u64::MAX);
        self.chunks
            .push(Chunk { free_bits: Box::new(free), parts_with_run: Box::new([0; LENGTH_CLASS_COUNT]) });
        let count = self.chunks.len();
        self.chunks_with_run.iter_mut().for_each(|chunks| chunks.reserve(count));
    }

    pub(super) fn open_chunk(&mut self, chunk: usize) {
        debug_assert!(self.is_empty(chunk));
        self.free_words += WORDS_PER_CHUNK;
        self.index_run(chunk, FreeRun { start: 0, len: CHUNK_GRANULES });
    }

    pub(super) fn close_chunk(&mut self, chunk: usize) {
        debug_assert!(self.is_empty(chunk));
        self.free_words -= WORDS_PER_CHUNK;
        self.unindex_run(chunk, FreeRun { start: 0, len: CHUNK_GRANULES });
    }

    /// Returns whether the chunk is entirely free.
    pub(super) fn is_empty(&self, chunk: usize) -> bool {
        self.chunks[chunk].free_bits[PADDING_BEFORE..PADDING_BEFORE + WORDS_PER_CHUNK]
            .iter()
            .all(|&word| word == u64::MAX)
    }

    pub(super) fn is_page_free(&self, chunk: usize, page: usize) -> bool {
        const { assert!(SYSTEM_PAGE_GRANULES == 64) };
        self.chunks[chunk].free_bits[PADDING_BEFORE + page] == u64::MAX
    }

    /// Allocates this many granules by best fit. Returns the chunk and the first granule.
    pub(super) fn allocate(&mut self, granules: usize) -> Option<(usize, usize)> {
        let length = self.lengths_from(granules).next()?;
        let chunk = self.chunks_with_run[length].first().expect("a chunk is listed as having such a run");
        Some((chunk, self.allocate_from(chunk, length, granules)))
    }

    /// Allocates from the lowest chunk with a sufficient run, if that chunk is below `limit`.
    pub(super) fn allocate_below(&mut self, limit: usize, granules: usize) -> Option<(usize, usize)> {
        let first = |length: usize| {
            self.chunks_with_run[length].first().expect("a chunk is listed as having such a run")
        };
        let (chunk, length) = self.lengths_from(granules).map(|length| (first(length), length)).min()?;
        (chunk < limit).then(|| (chunk, self.allocate_from(chunk, length, granules)))
    }

    /// Returns the length classes of at least this many granules for which a run exists.
    fn lengths_from(&self, granules: usize) -> impl Iterator<Item = usize> + use<> {
        let some = |lengths: u128| (lengths != 0).then_some(lengths);
        let long_enough = self.length_mask >> (granules - 1) << (granules - 1);
        std::iter::successors(some(long_enough), move |lengths| some(lengths & (lengths - 1)))
            .map(|lengths| lengths.trailing_zeros() as usize)
    }

    fn allocate_from(&mut self, chunk: usize, length: usize, granules: usize) -> usize {
        let found = &self.chunks[chunk];
        let part = found.parts_with_run[length].trailing_zeros() as usize;
        let run = found.find_run(length, part).expect("the part is listed as having such a run");
        self.free_words -= self.chunks[chunk].mark_run(FreeRun { len: granules, ..run }, false);
        self.unindex_run(chunk, run);
        if run.len > granules {
            self.index_run(chunk, FreeRun { start: run.start + granules, len: run.len - granules });
        }
        run.start
    }

    /// Frees granules that were allocated as one block.
    pub(super) fn free_block(&mut self, chunk: usize, start: usize, granules: usize) {
        let given = FreeRun { start, len: granules };
        let here = &mut self.chunks[chunk];
        let (before, behind) = (here.run_before(start), here.run_from(given.end()));
        self.free_words += here.mark_run(given, true);
        let both = [before, behind].into_iter().filter(|run| run.len > 0);
        both.for_each(|run| self.unindex_run(chunk, run));
        self.index_run(chunk, FreeRun { start: before.start, len: before.len + granules + behind.len });
    }

    /// Adds a run to the search structures.
    fn index_run(&mut self, chunk: usize, run: FreeRun) {
        let length = run.length_class();
        self.chunks[chunk].parts_with_run[length] |= 1 << run.part_index();
        self.chunks_with_run[length].insert(chunk);
        self.length_mask |= 1 << length;
    }

    /// Removes a run from the search structures, before its start or end changes.
    fn unindex_run(&mut self, chunk: usize, run: FreeRun) {
        let (length, part) = (run.length_class(), run.part_index());
        let here = &mut self.chunks[chunk];
        if here.find_run(length, part).is_some_and(|other| other.start != run.start) {
            return;
        }
        here.parts_with_run[length] &= !(1 << part);
        if here.parts_with_run[length] == 0 {
            self.chunks_with_run[length].remove(chunk);
            if self.chunks_with_run[length].first().is_none() {
                self.length_mask &= !(1 << length);
            }
        }
    }
}

impl Chunk {
    /// Marks the granules of a run as free or taken. Returns the number of affected words that are entirely free while
    /// the run is free.
    fn mark_run(&mut self, run: FreeRun, is_free: bool) -> usize {
        let (mut at, mut whole) = (run.start, 0);
        while at < run.end() {
            let word = &mut self.free_bits[PADDING_BEFORE + at / 64];
            let count = (run.end() - at).min(64 - at % 64);
            let mask = u64::MAX >> (64 - count) << (at % 64);
            assert!(*word & mask == if is_free { 0 } else { mask }, "a block is taken and given back once");
            whole += usize::from(*word | mask == u64::MAX);
            *word ^= mask;
            at += count;
        }
        whole
    }

    /// Returns the first run of this length that starts in this part.
    fn find_run(&self, length: usize, part: usize) -> Option<FreeRun> {
        const PART_WORDS: usize = GRANULES_PER_PART / 64;
        for word in part * PART_WORDS..(part + 1) * PART_WORDS {
            let mut starts = self.free_bits[PADDING_BEFORE + word] & !self.preceded_by_free(word);
            // This mask excludes most starts cheaply. A remaining start can still be wrong, because the end at that
            // distance may belong to another run.
            starts &= match length + 1 {
                LENGTH_CLASS_COUNT if self.free_bits[PADDING_BEFORE + word + 1] == u64::MAX => u64::MAX,
                LENGTH_CLASS_COUNT => 0,
                len => self.run_ends_at(word, len),
            };
            while starts != 0 {
                let run = self.run_from(word * 64 + starts.trailing_zeros() as usize);
                if run.length_class() == length {
                    return Some(run);
                }
                starts &= starts - 1;
            }
        }
        None
    }

    /// Returns a bit for each granule of the word, set if the granule at `distance` after it is the first taken granule
    /// after a run.
    #[inline]
    fn run_ends_at(&self, word: usize, distance: usize) -> u64 {
        let ends = |word: usize| !self.free_bits[PADDING_BEFORE + word] & self.preceded_by_free(word);
        let (low, shift) = (word + distance / 64, distance % 64);
        ends(low) >> shift | ends(low + 1) << 1 << (63 - shift)
    }

    /// Returns a bit for each granule of the word, set if the preceding granule is free.
    #[inline]
    fn preceded_by_free(&self, word: usize) -> u64 {
        self.free_bits[PADDING_BEFORE + word] << 1 | self.free_bits[PADDING_BEFORE + word - 1] >> 63
    }

    /// Returns the run of free granules that starts at `start`, measured only up to [`MAX_MEASURED_GRANULES`].
    fn run_from(&self, start: usize) -> FreeRun {
        let (mut end, mut word) = (start, start / 64);
        while end < start + MAX_MEASURED_GRANULES {
            let taken = !self.free_bits[PADDING_BEFORE + word] >> (end % 64);
            if taken != 0 {
                end += taken.trailing_zeros() as usize;
                break;
            }
            word += 1;
            end = word * 64;
        }
        FreeRun { start, len: end - start }
    }

    /// Returns the run of free granules that ends at `end`.
    fn run_before(&self, end: usize) -> FreeRun {
        let mut start = end;
        while start > 0 {
            let taken = !self.free_bits[PADDING_BEFORE + (start - 1) / 64] << (63 - (start - 1) % 64);
            let free = (taken.leading_zeros() as usize).min((start - 1) % 64 + 1);
            start -= free;
            if taken != 0 {
                break;
            }
        }
        FreeRun { start, len: end - start }
    }
}

#[cfg(test)]
mod tests;
