//! Integers of any width up to 64 bits at any bit offset of a string, big-endian.

/// The type of a bitfield integer: `i1` to `i64`, `u1` to `u63`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IntegerType {
    is_signed: bool,
    pub(super) bits: u32,
}

/// What happens to a value that does not fit into the integer type (OVERFLOW).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverflowMode {
    /// Keep only the lowest bits.
    Wrap,
    /// Store the nearest value that fits.
    Saturate,
    /// Change nothing and reply with null.
    Fail,
}

impl IntegerType {
    /// Parses a type such as `i16` or `u8`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (signed, bits) = match text {
            [b'i', bits @ ..] => (true, bits),
            [b'u', bits @ ..] => (false, bits),
            _ => return None,
        };
        let most = if signed { 64 } else { 63 };
        let bits = resp::parse_i64(bits).filter(|bits| (1..=most).contains(bits))?;
        Some(Self { is_signed: signed, bits: bits as u32 })
    }

    /// The minimum length in bytes of a string that holds an integer of this type at `offset`.
    pub(super) fn required_bytes(self, offset: u64) -> usize {
        ((offset + u64::from(self.bits) - 1) / 8 + 1) as usize
    }

    /// Reads the integer at `offset`. Bits past the end of the string are 0.
    pub(super) fn read(self, bytes: &[u8], offset: u64) -> i64 {
        // 64 bits at an arbitrary bit offset span up to nine bytes.
        let first = (offset / 8) as usize;
        let mut window = [0; 16];
        let there = bytes.get(first..).unwrap_or_default();
        let there = &there[..there.len().min(9)];
        window[..there.len()].copy_from_slice(there);
        let aligned = u128::from_be_bytes(window) << (offset % 8);
        let shift = 128 - self.bits;
        if self.is_signed { (aligned as i128 >> shift) as i64 } else { (aligned >> shift) as i64 }
    }

    /// Writes the lowest bits of `value` at `offset`. The slice must reach to [`IntegerType::required_bytes`].
    pub(super) fn write(self, bytes: &mut [u8], offset: u64, value: i64) {
        let (first, end) = ((offset / 8) as usize, self.required_bytes(offset));
        let mut window = [0; 16];
        window[..end - first].copy_from_slice(&bytes[first..end]);
        let shift = 128 - self.bits - (offset % 8) as u32;
        let mask = (u128::MAX >> (128 - self.bits)) << shift;
        let written = u128::from_be_bytes(window) & !mask | (value as u128) << shift & mask;
        bytes[first..end].copy_from_slice(&written.to_be_bytes()[..end - first]);
    }

    /// The value that SET stores for `argument`, or `None` if the value does not fit and `overflow` is FAIL. An
    /// unsigned width reinterprets a negative argument as unsigned.
    pub(super) fn fit_set_argument(self, argument: i64, overflow: OverflowMode) -> Option<i64> {
        if !self.is_signed {
            return self.apply_overflow(i128::from(argument as u64), overflow);
        }
        // Redis computes the distance to the maximum in 64 bits and saturates upwards where that overflows.
        let (_, most) = self.bounds();
        let far_below = self.bits < 64 && most - i128::from(argument) > i128::from(i64::MAX);
        let upwards = far_below && overflow == OverflowMode::Saturate;
        self.apply_overflow(if upwards { most } else { i128::from(argument) }, overflow)
    }

    fn bounds(self) -> (i128, i128) {
        match self.is_signed {
            true => (-1_i128 << (self.bits - 1), (1_i128 << (self.bits - 1)) - 1),
            false => (0, (1_i128 << self.bits) - 1),
        }
    }

    /// The value to store for `value`, or `None` if it does not fit and `overflow` is FAIL.
    pub(super) fn apply_overflow(self, value: i128, overflow: OverflowMode) -> Option<i64> {
        let (least, most) = self.bounds();
        let shift = 128 - self.bits;
        match overflow {
            _ if (least..=most).contains(&value) => Some(value as i64),
            OverflowMode::Wrap if self.is_signed => Some((value << shift >> shift) as i64),
            OverflowMode::Wrap => Some(((value as u128) << shift >> shift) as i64),
            OverflowMode::Saturate => Some(value.clamp(least, most) as i64),
            OverflowMode::Fail => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn integer_widths_have_correct_bounds() {
        for text in ["i0", "u0", "i65", "u64", "u", "i", "8", "u08", "u+8", "U8", "u8x", "x8", ""] {
            assert_eq!(IntegerType::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(IntegerType::parse(b"i64"), Some(IntegerType { is_signed: true, bits: 64 }));
        assert_eq!(IntegerType::parse(b"u1"), Some(IntegerType { is_signed: false, bits: 1 }));
    }

    proptest! {
        /// A written number reads back unchanged and the surrounding bits stay the same.
        #[test]
        fn written_integers_read_back_unchanged(
            bytes in proptest::collection::vec(any::<u8>(), 24..40),
            signed in any::<bool>(),
            bits in 1u32..=64,
            offset in 0u64..120,
            value in any::<i64>(),
        ) {
            let width = IntegerType { is_signed: signed, bits: bits.min(if signed { 64 } else { 63 }) };
            let mut written = bytes.clone();
            width.write(&mut written, offset, value);
            prop_assert_eq!(Some(width.read(&written, offset)), width.apply_overflow(i128::from(value), OverflowMode::Wrap));
            let bit = |bytes: &[u8], at: u64| bytes[(at / 8) as usize] >> (7 - at % 8) & 1;
            for at in 0..bytes.len() as u64 * 8 {
                let own = at.checked_sub(offset).filter(|at| *at < u64::from(width.bits));
                let expected = match own {
                    Some(at) => (value >> (u64::from(width.bits) - 1 - at) & 1) as u8,
                    None => bit(&bytes, at),
                };
                prop_assert_eq!(bit(&written, at), expected);
            }
            let short = &written[..written.len().min((offset / 8) as usize + 1)];
            let mut long = short.to_vec();
            long.resize(64, 0);
            prop_assert_eq!(width.read(short, offset), width.read(&long, offset));
        }
    }
}
