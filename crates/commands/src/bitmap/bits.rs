//! Counts and searches bits in a byte slice. Works on blocks of words in portable code that the compiler vectorizes.

use std::ops::Range;

/// Number of words that one iteration processes, so that the compiler vectorizes the loop.
const WORDS_PER_BLOCK: usize = 8;
const WORD_BYTES: usize = size_of::<u64>();
const BLOCK_BYTES: usize = WORDS_PER_BLOCK * WORD_BYTES;

type Lanes = [u64; WORDS_PER_BLOCK];

#[inline(always)]
fn load_lanes(block: &[u8]) -> Lanes {
    let mut words = [0; WORDS_PER_BLOCK];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<WORD_BYTES>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Counts the set bits.
#[inline(always)]
fn count_ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
    let ones = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
    words.iter().map(|word| u64::from(u64::from_le_bytes(*word).count_ones())).sum::<u64>() + ones(rest)
}

/// A mask of the bits in `range`, numbered from the most significant bit.
fn bit_mask(range: Range<u64>) -> u8 {
    (0xff_u8 >> range.start) & !(0xff_u16 >> range.end) as u8
}

/// A byte index and the mask of the bits that are in range.
type PartialByte = (usize, u8);

/// Splits a range of bits into a partial byte at the start, whole bytes, and a partial byte at the end.
fn split_at_bytes(range: &Range<u64>) -> (Option<PartialByte>, Range<usize>, Option<PartialByte>) {
    let (first, last) = ((range.start / 8) as usize, (range.end / 8) as usize);
    let (from, to) = (range.start % 8, range.end % 8);
    if first == last {
        return (Some((first, bit_mask(from..to))).filter(|_| from < to), 0..0, None);
    }
    let head = (from > 0).then(|| (first, bit_mask(from..8)));
    (head, first + usize::from(from > 0)..last, (to > 0).then(|| (last, bit_mask(0..to))))
}

/// Counts the set bits in `range`, which must lie within `bytes`.
pub(super) fn count_ones_in(bytes: &[u8], range: &Range<u64>) -> u64 {
    let (head, whole, tail) = split_at_bytes(range);
    let part =
        |part: Option<PartialByte>| part.map_or(0, |(at, mask)| u64::from((bytes[at] & mask).count_ones()));
    let whole = &bytes[whole];
    part(head) + keyspace::with_wide_vectors(|| count_ones(whole)) + part(tail)
}

/// Finds the first bit in `range` that equals `bit`. The range must lie within `bytes`.
pub(super) fn find_bit(bytes: &[u8], range: &Range<u64>, bit: bool) -> Option<u64> {
    let (head, whole, tail) = split_at_bytes(range);
    // A search for a zero inverts the bytes, so that the wanted bits are always ones.
    let shown = |byte: u8| if bit { byte } else { !byte };
    let within = |(at, mask): PartialByte| {
        let found = shown(bytes[at]) & mask;
        (found != 0).then(|| at as u64 * 8 + u64::from(found.leading_zeros()))
    };
    head.and_then(within)
        .or_else(|| {
            let at = whole.start + find_first_different_byte(&bytes[whole], if bit { 0 } else { 0xff })?;
            within((at, 0xff))
        })
        .or_else(|| tail.and_then(within))
}

/// The index of the first byte that differs from `expected`.
fn find_first_different_byte(bytes: &[u8], expected: u8) -> Option<usize> {
    let word = u64::from_le_bytes([expected; WORD_BYTES]);
    let differs = |block: &[u8]| load_lanes(block).iter().fold(0, |seen, each| seen | (each ^ word)) != 0;
    let blocks = bytes.chunks_exact(BLOCK_BYTES).position(differs).unwrap_or(bytes.len() / BLOCK_BYTES);
    let rest = &bytes[blocks * BLOCK_BYTES..];
    rest.iter().position(|byte| *byte != expected).map(|at| blocks * BLOCK_BYTES + at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_bit_set(bytes: &[u8], bit: u64) -> bool {
        bytes[(bit / 8) as usize] >> (7 - bit % 8) & 1 == 1
    }

    proptest! {
        #[test]
        fn bit_ranges_match_naive_implementation(
            bytes in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..2500),
                proptest::collection::vec(prop_oneof![50 => Just(0u8), 1 => any::<u8>()], 0..2500),
                proptest::collection::vec(prop_oneof![50 => Just(255u8), 1 => any::<u8>()], 0..2500),
            ],
            a in any::<u64>(),
            b in any::<u64>(),
        ) {
            let bits = bytes.len() as u64 * 8;
            let (a, b) = (a % (bits + 1), b % (bits + 1));
            let range = a.min(b)..a.max(b);
            let ones = range.clone().filter(|at| is_bit_set(&bytes, *at)).count() as u64;
            prop_assert_eq!(count_ones_in(&bytes, &range), ones);
            for wanted in [false, true] {
                let first = range.clone().find(|at| is_bit_set(&bytes, *at) == wanted);
                prop_assert_eq!(find_bit(&bytes, &range, wanted), first);
            }
        }
    }
}
