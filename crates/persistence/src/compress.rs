//! LZF compression for long RDB strings.
//!
//! Compressed data is a sequence of literal runs (a byte below 32 with the length minus one, then the bytes) and back
//! references (three bits of length minus two and five bits of distance, an extra length byte if the three bits are
//! full, then the low byte of the distance). Distances reach 8192 bytes; references are 3 to 264 bytes long.
//!
//! Decompression uses the `lzf` crate. Its compressor is not used, because it clears a table of half a megabyte per
//! string, which takes a hundred times as long as compressing a short value, and a snapshot compresses millions of
//! those. This compressor never clears its table between strings: positions keep counting, and a table entry below the
//! start of the current string is invalid.

const TABLE_BITS: u32 = 13;
/// Base-2 logarithm of the table size for short strings, small enough for the L1 cache.
const SHORT_TABLE_BITS: u32 = 9;
const MAX_SHORT_INPUT_LEN: usize = 1 << SHORT_TABLE_BITS;
/// Number of positions recorded inside a back reference. Recording all positions of a long one costs more time than it
/// saves space.
const POSITIONS_PER_REFERENCE: usize = 2;
const MAX_DISTANCE: usize = 1 << 13;
const MAX_REFERENCE_LEN: usize = 264;
const MAX_LITERAL_RUN: usize = 32;
/// The best possible compression ratio: three compressed bytes for 264 bytes.
const MAX_COMPRESSION_RATIO: u64 = 264 / 3;

/// A reusable LZF compressor.
#[derive(Debug)]
pub(crate) struct Compressor {
    positions: Box<[u32]>,
    /// Position of the current string's first byte. Positions start at one, because zero marks an empty table entry.
    base_position: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Self { positions: vec![0; 1 << TABLE_BITS].into(), base_position: 1 }
    }
}

impl Compressor {
    /// Compresses `data` into `out`, replacing its content. Returns whether the result has at most `max_len` bytes; if
    /// not, the content of `out` is incomplete and must be discarded.
    pub(crate) fn compress(&mut self, data: &[u8], max_len: usize, out: &mut Vec<u8>) -> bool {
        let Ok(len) = u32::try_from(data.len()) else { return false };
        if self.base_position.checked_add(len).is_none() {
            *self = Self::default();
        }
        out.clear();
        let fits = self.compress_into(data, max_len, out);
        self.base_position = self.base_position.saturating_add(len);
        fits
    }

    fn compress_into(&mut self, data: &[u8], max_len: usize, out: &mut Vec<u8>) -> bool {
        let shift = 32 - if data.len() <= MAX_SHORT_INPUT_LEN { SHORT_TABLE_BITS } else { TABLE_BITS };
        let (mut at, mut literals_from) = (0, 0);
        while at + 3 <= data.len() {
            let found = self.find_match(data, at, shift);
            let Some(earlier) = found else {
                at += 1;
                continue;
            };
            write_literals(&data[literals_from..at], out);
            let len = common_prefix_len(&data[earlier..], &data[at..]);
            write_reference(at - earlier, len, out);
            for inside in at + 1..=(at + POSITIONS_PER_REFERENCE).min(data.len() - 3) {
                self.record_position(data, inside, shift);
            }
            at += len;
            literals_from = at;
            if out.len() > max_len {
                return false;
            }
        }
        write_literals(&data[literals_from..], out);
        out.len() <= max_len
    }

    /// Returns an earlier position within reach that has the same three bytes as `at`, and records `at` for them
    /// instead.
    #[inline]
    fn find_match(&mut self, data: &[u8], at: usize, shift: u32) -> Option<usize> {
        let earlier = self.record_position(data, at, shift).checked_sub(self.base_position)? as usize;
        (at - earlier <= MAX_DISTANCE && data[earlier..earlier + 3] == data[at..at + 3]).then_some(earlier)
    }

    /// Records a position under the hash of its three bytes and returns the position that was recorded there before.
    #[inline]
    fn record_position(&mut self, data: &[u8], at: usize, shift: u32) -> u32 {
        let word = u32::from_be_bytes([0, data[at], data[at + 1], data[at + 2]]);
        let hash = word.wrapping_mul(0x9E37_79B1) >> shift;
        std::mem::replace(&mut self.positions[hash as usize], self.base_position + at as u32)
    }
}

/// Returns the length of the common prefix of two slices, limited to the maximum reference length.
fn common_prefix_len(earlier: &[u8], current: &[u8]) -> usize {
    let most = current.len().min(MAX_REFERENCE_LEN);
    let (earlier, here) = (&earlier[..most], &current[..most]);
    let (mut of_earlier, mut of_here) = (earlier.chunks_exact(8), here.chunks_exact(8));
    let mut same = 0;
    for (a, b) in (&mut of_earlier).zip(&mut of_here) {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        let differs = word(a) ^ word(b);
        if differs != 0 {
            return same + differs.trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    same + of_earlier.remainder().iter().zip(of_here.remainder()).take_while(|(a, b)| a == b).count()
}

fn write_literals(bytes: &[u8], out: &mut Vec<u8>) {
    for run in bytes.chunks(MAX_LITERAL_RUN) {
        out.push(run.len() as u8 - 1);
        out.extend_from_slice(run);
    }
}

fn write_reference(distance: usize, len: usize, out: &mut Vec<u8>) {
    let (distance, len) = (distance - 1, len - 2);
    let high = (distance >> 8) as u8;
    if len < 7 {
        out.push((len as u8) << 5 | high);
    } else {
        out.push(7 << 5 | high);
        out.push((len - 7) as u8);
    }
    out.push(distance as u8);
}

/// Decompresses `data`; returns `None` unless the result has exactly `len` bytes. Memory is allocated only if `data` is
/// long enough to expand to `len` bytes.
pub(crate) fn decompress(data: &[u8], len: u64) -> Option<Vec<u8>> {
    if len > (data.len() as u64).saturating_mul(MAX_COMPRESSION_RATIO) {
        return None;
    }
    lzf::decompress(data, len as usize).ok().filter(|out| out.len() as u64 == len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compress_all(compressor: &mut Compressor, data: &[u8], max_len: usize) -> Option<Vec<u8>> {
        let mut out = b"what was there".to_vec();
        compressor.compress(data, max_len, &mut out).then_some(out)
    }

    fn round_trip_len(compressor: &mut Compressor, data: &[u8]) -> Option<usize> {
        let compressed = compress_all(compressor, data, data.len())?;
        assert_eq!(decompress(&compressed, data.len() as u64).as_deref(), Some(data));
        Some(compressed.len())
    }

    #[test]
    fn repetitive_strings_are_compressed() {
        let mut compressor = Compressor::default();
        assert!(round_trip_len(&mut compressor, &[b'x'; 10_000]).unwrap() < 150);
        let text = b"the quick brown fox jumps over the lazy dog. ".repeat(20);
        assert!(round_trip_len(&mut compressor, &text).unwrap() < 100);
        assert_eq!(compress_all(&mut compressor, b"abcdefghijklmnopqrstuvwxyz", 22), None);
    }

    #[test]
    fn table_entries_of_earlier_strings_are_ignored() {
        let data = b"abcabcabcabcabcabcabcabcabcabc";
        let fresh = compress_all(&mut Compressor::default(), data, 100);
        let mut used = Compressor::default();
        let _ = compress_all(&mut used, b"zzzabcabcabczzzzzzzzzzzzzzzzzzzz", 100);
        assert_eq!(compress_all(&mut used, data, 100), fresh);
    }

    #[test]
    fn positions_reset_before_overflow() {
        let mut compressor = Compressor { base_position: u32::MAX - 40, ..Compressor::default() };
        for _ in 0..5 {
            round_trip_len(&mut compressor, &[7; 30]);
        }
    }

    #[test]
    fn impossible_length_is_rejected() {
        assert_eq!(decompress(&[0, 1], u64::MAX), None);
        assert_eq!(decompress(&[0, 1], 1 << 30), None);
        assert_eq!(decompress(&[0, 1], 2), None);
        assert_eq!(decompress(&[0, 1], 1), Some(vec![1]));
    }

    proptest! {
        #[test]
        fn compressed_strings_round_trip(
            strings in prop::collection::vec(prop::collection::vec(0u8..4, 1..600), 1..5),
        ) {
            let mut compressor = Compressor::default();
            for data in strings {
                let _ = round_trip_len(&mut compressor, &data);
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(data in prop::collection::vec(any::<u8>(), 0..200), len in 0u64..20_000) {
            let _ = decompress(&data, len);
        }
    }
}
