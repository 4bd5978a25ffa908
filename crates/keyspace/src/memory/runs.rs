//! The free runs of the pool's open chunks: where a block fits best.
//!
//! A run is as many free granules as lie side by side in one chunk. A block comes from the shortest run in which it
//! fits; of equally long ones, from the lowest chunk's. A block that is given back joins the runs on both sides. So the
//! runs that slots leave behind as they grow in step fit the next ones, and a block of three granules leaves no hole.
//!
//! Runs are not listed: a chunk has a bit for each granule, and says for each length in which of its 64 parts a run of
//! that length begins. The run itself is looked for in the part's eight words.
//!
//! Invariant: no two blocks that are taken overlap. [`super::block`] relies on it.
use super::bits::Bits;
use super::pool::{CHUNK_GRANULES, MOST_GRANULES, SYSTEM_PAGE_GRANULES};

const WORDS: usize = CHUNK_GRANULES / 64;
/// Words that are looked at beyond a chunk's own.
const BEFORE: usize = 1;
const BEHIND: usize = LENGTHS / 64 + 1;
/// Granules of a part.
const PART: usize = CHUNK_GRANULES / 64;
/// Lengths that are told apart: 1 to 128 granules, of which the last stands for all longer ones too.
const LENGTHS: usize = MOST_GRANULES;
/// How much is looked at of a run: enough to know the length that is left of it when a block is taken.
const MOST_SEEN: usize = 2 * LENGTHS;

#[derive(Debug)]
pub(super) struct Runs {
    chunks: Vec<Chunk>,
    /// By length, less one: the chunks that have such a run.
    having: [Bits; LENGTHS],
    /// The lengths that some chunk has, a bit each.
    lengths: u128,
    /// Words that are free as a whole.
    whole: usize,
}

#[derive(Debug)]
struct Chunk {
    /// A bit for each free granule, with words before and behind that say that nothing is.
    free: Box<[u64; BEFORE + WORDS + BEHIND]>,
    /// By length, less one: a bit for each part in which such a run begins.
    parts: Box<[u64; LENGTHS]>,
}

/// Free granules of a chunk, side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: usize,
    len: usize,
}

impl Run {
    fn end(self) -> usize {
        self.start + self.len
    }

    /// By which it is found: its length, less one.
    fn length(self) -> usize {
        self.len.min(LENGTHS) - 1
    }

    fn part(self) -> usize {
        self.start / PART
    }
}

impl Runs {
    pub(super) const fn new() -> Self {
        Self { chunks: Vec::new(), having: [const { Bits::new() }; LENGTHS], lengths: 0, whole: 0 }
    }

    /// How many granules lie free side by side, about: small holes are not counted.
    pub(super) fn room(&self) -> usize {
        self.whole * 64
    }

    /// Adds the next chunk, of which nothing may be taken before it is opened.
    pub(super) fn add_chunk(&mut self) {
        let mut free = [0; BEFORE + WORDS + BEHIND];
        free[BEFORE..BEFORE + WORDS].fill(u64::MAX);
        self.chunks.push(Chunk { free: Box::new(free), parts: Box::new([0; LENGTHS]) });
        let count = self.chunks.len();
        self.having.iter_mut().for_each(|chunks| chunks.reserve(count));
    }

    pub(super) fn open(&mut self, chunk: usize) {
        debug_assert!(self.is_empty(chunk));
        self.whole += WORDS;
        self.enter(chunk, Run { start: 0, len: CHUNK_GRANULES });
    }

    pub(super) fn close(&mut self, chunk: usize) {
        debug_assert!(self.is_empty(chunk));
        self.whole -= WORDS;
        self.strike(chunk, Run { start: 0, len: CHUNK_GRANULES });
    }

    /// Whether nothing of the chunk is taken.
    pub(super) fn is_empty(&self, chunk: usize) -> bool {
        self.chunks[chunk].free[BEFORE..BEFORE + WORDS].iter().all(|&word| word == u64::MAX)
    }

    /// Whether this page of the system is free.
    pub(super) fn is_page_free(&self, chunk: usize, page: usize) -> bool {
        const { assert!(SYSTEM_PAGE_GRANULES == 64) };
        self.chunks[chunk].free[BEFORE + page] == u64::MAX
    }

    /// Takes so many granules where they fit best; the chunk and the first of them.
    pub(super) fn take(&mut self, granules: usize) -> Option<(usize, usize)> {
        let length = self.lengths_from(granules).next()?;
        let chunk = self.having[length].first().expect("some chunk was said to have one");
        Some((chunk, self.take_from(chunk, length, granules)))
    }

    /// The same from the lowest chunk in which they fit, if it is below `limit`.
    pub(super) fn take_below(&mut self, limit: usize, granules: usize) -> Option<(usize, usize)> {
        let first = |length: usize| self.having[length].first().expect("some chunk was said to have one");
        let (chunk, length) = self.lengths_from(granules).map(|length| (first(length), length)).min()?;
        (chunk < limit).then(|| (chunk, self.take_from(chunk, length, granules)))
    }

    /// The lengths that some chunk has, from that of so many granules on.
    fn lengths_from(&self, granules: usize) -> impl Iterator<Item = usize> + use<> {
        let some = |lengths: u128| (lengths != 0).then_some(lengths);
        let long_enough = self.lengths >> (granules - 1) << (granules - 1);
        std::iter::successors(some(long_enough), move |lengths| some(lengths & (lengths - 1)))
            .map(|lengths| lengths.trailing_zeros() as usize)
    }

    fn take_from(&mut self, chunk: usize, length: usize, granules: usize) -> usize {
        let found = &self.chunks[chunk];
        let part = found.parts[length].trailing_zeros() as usize;
        let run = found.run_of(length, part).expect("the part was said to have one");
        self.whole -= self.chunks[chunk].set(Run { len: granules, ..run }, false);
        self.strike(chunk, run);
        if run.len > granules {
            self.enter(chunk, Run { start: run.start + granules, len: run.len - granules });
        }
        run.start
    }

    /// Gives granules back that were taken together.
    pub(super) fn give_back(&mut self, chunk: usize, start: usize, granules: usize) {
        let given = Run { start, len: granules };
        let here = &mut self.chunks[chunk];
        let (before, behind) = (here.run_up_to(start), here.run_from(given.end()));
        self.whole += here.set(given, true);
        let both = [before, behind].into_iter().filter(|run| run.len > 0);
        both.for_each(|run| self.strike(chunk, run));
        self.enter(chunk, Run { start: before.start, len: before.len + granules + behind.len });
    }

    /// Lets a run be found.
    fn enter(&mut self, chunk: usize, run: Run) {
        let length = run.length();
        self.chunks[chunk].parts[length] |= 1 << run.part();
        self.having[length].add(chunk);
        self.lengths |= 1 << length;
    }

    /// Forgets a run whose begin or end is no longer what it was.
    fn strike(&mut self, chunk: usize, run: Run) {
        let (length, part) = (run.length(), run.part());
        let here = &mut self.chunks[chunk];
        if here.run_of(length, part).is_some_and(|other| other.start != run.start) {
            return;
        }
        here.parts[length] &= !(1 << part);
        if here.parts[length] == 0 {
            self.having[length].remove(chunk);
            if self.having[length].first().is_none() {
                self.lengths &= !(1 << length);
            }
        }
    }
}

impl Chunk {
    /// Marks granules as free, or as taken; they were the opposite. Returns how many words are or were free as a
    /// whole.
    fn set(&mut self, run: Run, free: bool) -> usize {
        let (mut at, mut whole) = (run.start, 0);
        while at < run.end() {
            let word = &mut self.free[BEFORE + at / 64];
            let count = (run.end() - at).min(64 - at % 64);
            let mask = u64::MAX >> (64 - count) << (at % 64);
            assert!(*word & mask == if free { 0 } else { mask }, "a block is taken and given back once");
            whole += usize::from(*word | mask == u64::MAX);
            *word ^= mask;
            at += count;
        }
        whole
    }

    /// The first run of this length that begins in this part.
    fn run_of(&self, length: usize, part: usize) -> Option<Run> {
        const PART_WORDS: usize = PART / 64;
        for word in part * PART_WORDS..(part + 1) * PART_WORDS {
            let mut starts = self.free[BEFORE + word] & !self.behind_free(word);
            // A start that is ruled out here costs no closer look. One that is left may still belong to two runs, of
            // which the second ends in that distance.
            starts &= match length + 1 {
                LENGTHS if self.free[BEFORE + word + 1] == u64::MAX => u64::MAX,
                LENGTHS => 0,
                len => self.ends_from(word, len),
            };
            while starts != 0 {
                let run = self.run_from(word * 64 + starts.trailing_zeros() as usize);
                if run.length() == length {
                    return Some(run);
                }
                starts &= starts - 1;
            }
        }
        None
    }

    /// A bit for each of the 64 granules that begin `distance` behind a word's first, if it is the first taken one
    /// behind a run.
    #[inline]
    fn ends_from(&self, word: usize, distance: usize) -> u64 {
        let ends = |word: usize| !self.free[BEFORE + word] & self.behind_free(word);
        let (low, shift) = (word + distance / 64, distance % 64);
        ends(low) >> shift | ends(low + 1) << 1 << (63 - shift)
    }

    /// A bit for each granule of a word that comes right behind a free one.
    #[inline]
    fn behind_free(&self, word: usize) -> u64 {
        self.free[BEFORE + word] << 1 | self.free[BEFORE + word - 1] >> 63
    }

    /// The free granules from this one on, or a part of them that is not shorter than [`MOST_SEEN`].
    fn run_from(&self, start: usize) -> Run {
        let (mut end, mut word) = (start, start / 64);
        while end < start + MOST_SEEN {
            let taken = !self.free[BEFORE + word] >> (end % 64);
            if taken != 0 {
                end += taken.trailing_zeros() as usize;
                break;
            }
            word += 1;
            end = word * 64;
        }
        Run { start, len: end - start }
    }

    /// The free granules right before this one.
    fn run_up_to(&self, end: usize) -> Run {
        let mut start = end;
        while start > 0 {
            let taken = !self.free[BEFORE + (start - 1) / 64] << (63 - (start - 1) % 64);
            let free = (taken.leading_zeros() as usize).min((start - 1) % 64 + 1);
            start -= free;
            if taken != 0 {
                break;
            }
        }
        Run { start, len: end - start }
    }
}

#[cfg(test)]
mod tests;
