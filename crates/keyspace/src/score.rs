//! Scores of sorted sets: their ordering and compact encoding.
//!
//! A score is any double except NaN. Most scores are small integers and take one, two or four bytes. Decoding returns
//! exactly the encoded bits.

/// Maximum length of an encoded score in bytes.
pub(crate) const MAX_ENCODED_LEN: usize = 8;

/// A score in its shortest encoding that has at least a given length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodedScore {
    bytes: [u8; MAX_ENCODED_LEN],
    len: u8,
}

impl EncodedScore {
    /// Encodes the score in at least `min_len` bytes. The encoded length is 1, 2, 4 or 8.
    #[inline]
    pub(crate) fn new(score: f64, min_len: usize) -> Self {
        let whole = score as i32;
        // Negative zero must not be encoded as an integer, which would lose the sign.
        let is_whole = f64::from(whole).to_bits() == score.to_bits();
        let len = match whole {
            _ if !is_whole => MAX_ENCODED_LEN,
            -0x80..0x80 => 1,
            -0x8000..0x8000 => 2,
            _ => 4,
        };
        let len = len.max(min_len);
        let bytes = if len == MAX_ENCODED_LEN { score.to_le_bytes() } else { i64::from(whole).to_le_bytes() };
        Self { bytes, len: len as u8 }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[inline]
pub(crate) fn decode(bytes: &[u8]) -> f64 {
    match *bytes {
        [a] => f64::from(a as i8),
        [a, b] => f64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => f64::from(i32::from_le_bytes([a, b, c, d])),
        _ => f64::from_le_bytes(bytes.try_into().expect("a score has one, two, four or eight bytes")),
    }
}

/// Maps the score to an integer with the same ordering. Positive and negative zero give equal integers.
#[inline]
pub(crate) fn order_bits(score: f64) -> u64 {
    let bits = (score + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f64; 22] = [
        f64::NEG_INFINITY,
        f64::MIN,
        -2_147_483_649.0,
        -2_147_483_648.0,
        -32_769.0,
        -32_768.0,
        -129.0,
        -128.0,
        -1.5,
        -f64::MIN_POSITIVE,
        0.0,
        5e-324,
        0.1,
        1.0,
        127.0,
        128.0,
        32_767.0,
        32_768.0,
        2_147_483_647.0,
        2_147_483_648.0,
        1e300,
        f64::INFINITY,
    ];

    #[test]
    fn scores_round_trip_bit_by_bit() {
        for score in SCORES.into_iter().chain([-0.0]) {
            for least in [1, 2, 4, 8] {
                let kept = EncodedScore::new(score, least);
                assert!(kept.bytes().len() >= least);
                assert_eq!(decode(kept.bytes()).to_bits(), score.to_bits(), "{score} in {least}");
            }
        }
        let lens = [0.0, -128.0, 128.0, 32_768.0, 2_147_483_648.0, 0.5, -0.0];
        assert_eq!(lens.map(|score| EncodedScore::new(score, 1).bytes().len()), [1, 1, 2, 4, 8, 8, 8]);
    }

    #[test]
    fn order_bits_sort_like_scores() {
        assert!(SCORES.windows(2).all(|two| order_bits(two[0]) < order_bits(two[1])));
        assert_eq!(order_bits(-0.0), order_bits(0.0));
    }
}
