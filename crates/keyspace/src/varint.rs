//! Variable-length integers: seven bits per byte, lowest bits first. The high bit of a byte means that more bytes
//! follow.

/// Maximum length of an encoded integer in bytes.
pub(crate) const MAX_LEN: usize = usize::BITS.div_ceil(7) as usize;

/// Decodes the integer at offset `at`, and advances `at` past it.
#[inline]
pub(crate) fn read(bytes: &[u8], at: &mut usize) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

/// Encodes an integer at offset `at`, and advances `at` past it.
#[inline]
pub(crate) fn write<const ROOM: usize>(out: &mut [u8; ROOM], at: &mut usize, mut value: usize) {
    while value >= 0x80 {
        out[*at] = value as u8 | 0x80;
        *at += 1;
        value >>= 7;
    }
    out[*at] = value as u8;
    *at += 1;
}
