//! Redis's listpack: many small items in one byte string, the in-memory and file format of stream nodes.
//!
//! ```text
//! 0       4       6
//! +-------+-------+------+--------+------+-----+------+
//! | bytes | items | item | length | item | ... | 0xFF |
//! +-------+-------+------+--------+------+-----+------+
//! u32     u16
//! ```
//!
//! An item is a string or an integer, which stands for its digits. Each item is followed by its length, encoded for
//! reading backwards. The first byte of an item determines its encoding (lengths and integers after that byte are
//! little-endian):
//!
//! | first byte | item |
//! | --- | --- |
//! | 0xxxxxxx | an integer from 0 to 127 |
//! | 10xxxxxx | a string of up to 63 bytes |
//! | 110xxxxx | a 13-bit integer, high bits here |
//! | 1110xxxx | a string of up to 4095 bytes, high bits of its length here |
//! | F0 | a string with a four-byte length |
//! | F1 to F4 | an integer of 2, 3, 4 or 8 bytes |
//!
//! Based on the format description in Redis's documentation. Reads never go out of bounds: malformed bytes give `None`.

use resp::parse_i64;

/// Header length in bytes.
pub(super) const HEADER_LEN: usize = 6;
const TERMINATOR: u8 = 0xFF;
/// The item count in the header if the listpack has too many items to count.
const COUNT_UNKNOWN: u16 = u16::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Bytes(&'a [u8]),
    Integer(i64),
}

impl<'a> Item<'a> {
    pub(super) fn as_text<'b>(self, digits: &'b mut itoa::Buffer) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Integer(value) => digits.format(value).as_bytes(),
        }
    }

    pub(super) fn as_integer(self) -> Option<i64> {
        match self {
            Self::Bytes(bytes) => parse_i64(bytes),
            Self::Integer(value) => Some(value),
        }
    }
}

/// Decodes the item at `at`; also returns the offset of the next item.
#[inline]
pub(super) fn read_item(bytes: &[u8], at: usize) -> Option<(Item<'_>, usize)> {
    let first = *bytes.get(at)?;
    let rest = &bytes[at + 1..];
    let low = |bits: u8| usize::from(first & ((1 << bits) - 1));
    let string = |head: usize, len: usize| {
        let start = at + head;
        Some((Item::Bytes(bytes.get(start..start.checked_add(len)?)?), head + len))
    };
    let (item, len) = match first {
        0x00..=0x7F => (Item::Integer(i64::from(first)), 1),
        0x80..=0xBF => string(1, low(6))?,
        0xC0..=0xDF => {
            let value = (low(5) << 8 | usize::from(*rest.first()?)) as i64;
            (Item::Integer(if value >= 1 << 12 { value - (1 << 13) } else { value }), 2)
        }
        0xE0..=0xEF => string(2, low(4) << 8 | usize::from(*rest.first()?))?,
        0xF0 => string(5, u32::from_le_bytes(*rest.first_chunk()?) as usize)?,
        0xF1 => (Item::Integer(i64::from(i16::from_le_bytes(*rest.first_chunk()?))), 3),
        0xF2 => {
            let [a, b, c] = *rest.first_chunk()?;
            (Item::Integer(i64::from(i32::from_le_bytes([0, a, b, c]) >> 8)), 4)
        }
        0xF3 => (Item::Integer(i64::from(i32::from_le_bytes(*rest.first_chunk()?))), 5),
        0xF4 => (Item::Integer(i64::from_le_bytes(*rest.first_chunk()?)), 9),
        _ => return None,
    };
    let next = at + len + backward_length_size(len);
    (next < bytes.len()).then_some((item, next))
}

/// Decodes the integer at `at`; also returns the offset of the next item.
#[inline]
pub(super) fn read_integer(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (item, next) = read_item(bytes, at)?;
    Some((item.as_integer()?, next))
}

/// Returns the offset of the item that precedes the one at `at`.
pub(super) fn previous_offset(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut len, mut shift) = (0usize, 0);
    for count in 1..=5 {
        let byte = *bytes.get(at.checked_sub(count)?)?;
        len |= usize::from(byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            return at.checked_sub(count + len).filter(|start| *start >= HEADER_LEN);
        }
    }
    None
}

/// Returns whether the terminator is at offset `at`.
pub(super) fn is_end(bytes: &[u8], at: usize) -> bool {
    at + 1 >= bytes.len()
}

/// Returns the offset of the terminator.
pub(super) fn terminator_offset(bytes: &[u8]) -> usize {
    bytes.len() - 1
}

fn backward_length_size(len: usize) -> usize {
    match len {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

/// Returns an empty listpack with this capacity in bytes.
pub(super) fn with_capacity(capacity: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(capacity.max(HEADER_LEN + 1));
    bytes.extend_from_slice(&[(HEADER_LEN + 1) as u8, 0, 0, 0, 0, 0, TERMINATOR]);
    bytes
}

/// Checks that the header's length and item count, the terminator, and all backward lengths are correct.
pub(super) fn is_valid(bytes: &[u8], items: usize) -> bool {
    let Some((head, _)) = bytes.split_at_checked(HEADER_LEN) else { return false };
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let count = u16::from_le_bytes([head[4], head[5]]);
    bytes.last() == Some(&TERMINATOR)
        && len as usize == bytes.len()
        && (count == COUNT_UNKNOWN || usize::from(count) == items)
        && has_valid_backward_lengths(bytes)
}

/// Returns whether the backward length after each item is the length of that item.
fn has_valid_backward_lengths(bytes: &[u8]) -> bool {
    let mut at = HEADER_LEN;
    while !is_end(bytes, at) {
        match read_item(bytes, at) {
            Some((_, next)) if previous_offset(bytes, next) == Some(at) => at = next,
            _ => return false,
        }
    }
    at == terminator_offset(bytes)
}

pub(super) struct Appender<'b> {
    bytes: &'b mut Vec<u8>,
    items: usize,
}

impl<'b> Appender<'b> {
    pub(super) fn append_to(bytes: &'b mut Vec<u8>) -> Self {
        bytes.pop();
        Self { bytes, items: 0 }
    }

    /// Appends a string. It is encoded as an integer if it is the canonical text of one.
    #[inline]
    pub(super) fn push(&mut self, string: &[u8]) {
        // The longest integer has twenty characters, so a longer string need not be parsed.
        match if string.len() <= 20 { parse_i64(string) } else { None } {
            Some(value) => self.push_integer(value),
            None => self.push_string(string),
        }
    }

    fn push_string(&mut self, string: &[u8]) {
        let (bytes, len) = (&mut *self.bytes, string.len());
        let start = bytes.len();
        match len {
            0..64 => bytes.push(0x80 | len as u8),
            64..4096 => bytes.extend_from_slice(&[0xE0 | (len >> 8) as u8, len as u8]),
            _ => {
                bytes.push(0xF0);
                bytes.extend_from_slice(&(len as u32).to_le_bytes());
            }
        }
        bytes.extend_from_slice(string);
        self.finish_item(start);
    }

    #[inline]
    pub(super) fn push_integer(&mut self, value: i64) {
        let start = self.bytes.len();
        put_integer(self.bytes, value);
        self.finish_item(start);
    }

    /// Appends the backward length of the item that starts at `start`.
    #[inline]
    fn finish_item(&mut self, start: usize) {
        put_backward_length(self.bytes, self.bytes.len() - start);
        self.items += 1;
    }
}

impl Drop for Appender<'_> {
    fn drop(&mut self) {
        self.bytes.push(TERMINATOR);
        let count = u16::from_le_bytes([self.bytes[4], self.bytes[5]]);
        let count = usize::from(count) + if count == COUNT_UNKNOWN { 0 } else { self.items };
        self.bytes[4..HEADER_LEN]
            .copy_from_slice(&(count.min(usize::from(COUNT_UNKNOWN)) as u16).to_le_bytes());
        update_total_len(self.bytes);
    }
}

fn update_total_len(bytes: &mut [u8]) {
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
}

#[inline]
fn put_integer(bytes: &mut Vec<u8>, value: i64) {
    match value {
        0..=127 => bytes.push(value as u8),
        -4096..=4095 => {
            let value = value as u16 & 0x1FFF;
            bytes.extend_from_slice(&[0xC0 | (value >> 8) as u8, value as u8]);
        }
        -0x8000..=0x7FFF => {
            bytes.push(0xF1);
            bytes.extend_from_slice(&(value as i16).to_le_bytes());
        }
        -0x80_0000..=0x7F_FFFF => {
            bytes.push(0xF2);
            bytes.extend_from_slice(&(value as i32).to_le_bytes()[..3]);
        }
        -0x8000_0000..=0x7FFF_FFFF => {
            bytes.push(0xF3);
            bytes.extend_from_slice(&(value as i32).to_le_bytes());
        }
        _ => {
            bytes.push(0xF4);
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
}

/// Appends a backward length, highest bits first. Every byte except the first has the continuation bit.
#[inline]
fn put_backward_length(bytes: &mut Vec<u8>, len: usize) {
    let count = backward_length_size(len);
    for place in (0..count).rev() {
        let byte = (len >> (7 * place)) as u8 & 0x7F;
        bytes.push(if place + 1 == count { byte } else { byte | 0x80 });
    }
}

pub(super) fn replace_integer(bytes: &mut Vec<u8>, at: usize, value: i64) {
    let Some((Item::Integer(old), next)) = read_item(bytes, at) else { return };
    if (0..=127).contains(&value) && (0..=127).contains(&old) && bytes[at] < 0x80 {
        bytes[at] = value as u8;
        return;
    }
    let mut coded = Vec::with_capacity(10);
    put_integer(&mut coded, value);
    let len = coded.len();
    put_backward_length(&mut coded, len);
    bytes.splice(at..next, coded);
    update_total_len(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut at, mut items) = (HEADER_LEN, Vec::new());
        while !is_end(bytes, at) {
            let (item, next) = read_item(bytes, at)?;
            assert_eq!(previous_offset(bytes, next), Some(at));
            items.push(item.as_text(&mut itoa::Buffer::new()).to_vec());
            at = next;
        }
        is_valid(bytes, items.len()).then_some(items)
    }

    #[test]
    fn items_of_every_encoding_match_redis() {
        let long = [b'x'; 5000];
        let table: &[(&[u8], &[u8])] = &[
            (b"5", b"\x05\x01"),
            (b"ab", b"\x82ab\x03"),
            (b"256", b"\xc1\x00\x02"),
            (b"-1", b"\xdf\xff\x02"),
            (b"-32768", b"\xf1\x00\x80\x03"),
            (b"8388607", b"\xf2\xff\xff\x7f\x04"),
            (b"-2147483648", b"\xf3\x00\x00\x00\x80\x05"),
            (b"-9223372036854775808", b"\xf4\x00\x00\x00\x00\x00\x00\x00\x80\x09"),
            (b"05", b"\x8205\x03"),
            (b"", b"\x80\x01"),
        ];
        let mut bytes = with_capacity(0);
        table.iter().for_each(|(string, _)| Appender::append_to(&mut bytes).push(string));
        let body: Vec<u8> = table.iter().flat_map(|(_, coded)| coded.iter().copied()).collect();
        assert_eq!(&bytes[HEADER_LEN..bytes.len() - 1], body);
        Appender::append_to(&mut bytes).push(&long[..100]);
        Appender::append_to(&mut bytes).push(&long);
        let mut expected: Vec<Vec<u8>> = table.iter().map(|(string, _)| string.to_vec()).collect();
        expected.extend([long[..100].to_vec(), long.to_vec()]);
        assert_eq!(items(&bytes), Some(expected));
    }

    proptest! {
        #[test]
        fn appended_and_replaced_items_round_trip(
            strings in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                any::<i64>().prop_map(|value| value.to_string().into_bytes()),
                (-5000..5000i64).prop_map(|value| value.to_string().into_bytes()),
            ], 0..20),
            other in any::<i64>(),
        ) {
            let mut bytes = with_capacity(0);
            {
                let mut appending = Appender::append_to(&mut bytes);
                appending.push_integer(1);
                strings.iter().for_each(|string| appending.push(string));
            }
            replace_integer(&mut bytes, HEADER_LEN, other);
            let mut expected = vec![other.to_string().into_bytes()];
            expected.extend(strings);
            prop_assert_eq!(items(&bytes), Some(expected));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 1..100), at in 0..100usize) {
            let _ = (read_item(&bytes, at), previous_offset(&bytes, at), is_valid(&bytes, at));
        }
    }
}
