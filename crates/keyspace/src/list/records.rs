//! The packed binary format of list elements.
//!
//! Each element is an entry of Redis's listpack, always in its shortest form:
//!
//! ```text
//! +------+----------------+-----------------------------+
//! | head | bytes or digits| length of head and content  |
//! +------+----------------+-----------------------------+
//! 1 to 5                  1 to 5, read backwards from its end
//! ```
//!
//! | first byte | content |
//! | --- | --- |
//! | 0xxxxxxx | the integer itself, 0 to 127 |
//! | 10xxxxxx | a string shorter than 64 bytes |
//! | 110xxxxx | a 13-bit integer, the rest in the next byte |
//! | 1110xxxx | a string shorter than 4096 bytes, the rest of its length in the next byte |
//! | F0 | a string after its four-byte length |
//! | F1 to F4 | an integer of 2, 3, 4 or 8 bytes, little-endian |
//!
//! Lists therefore have the length that Redis computes, which determines their OBJECT ENCODING, and are written to an
//! RDB unchanged. Listpacks from RDB files and DUMP payloads are decoded and re-encoded, so this module reads only
//! bytes that it wrote.

use smallvec::SmallVec;

/// A list element: a string, or an integer that stands for its decimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListItem<'a> {
    /// An element stored as a string.
    Bytes(&'a [u8]),
    /// An integer; its decimal digits are the element.
    Integer(i64),
}

/// Buffer for the decimal digits of an integer element.
#[derive(Clone, Default)]
pub struct ItemDigits(itoa::Buffer);

impl std::fmt::Debug for ItemDigits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemDigits").finish_non_exhaustive()
    }
}

impl<'a> ListItem<'a> {
    /// Returns the element's bytes; the digits of an integer are written to `digits`.
    #[inline]
    pub fn bytes<'b>(&self, digits: &'b mut ItemDigits) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Integer(value) => digits.0.format(*value).as_bytes(),
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes(&mut ItemDigits::default()).len()
    }

    /// Returns whether the element is an empty string.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Bytes(b""))
    }
}

/// Converts canonical decimal digits to an integer and keeps other bytes as a string.
impl<'a> From<&'a [u8]> for ListItem<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        resp::parse_i64(bytes).map_or(Self::Bytes(bytes), Self::Integer)
    }
}

/// An encoded element that is not part of a list yet.
pub(crate) type EncodedRecord = SmallVec<[u8; 256]>;

pub(crate) fn encode_record(item: ListItem<'_>) -> EncodedRecord {
    let mut out = EncodedRecord::new();
    push_record(&mut out, item);
    out
}

/// A byte buffer that supports appending.
pub(crate) trait AppendBytes {
    fn append(&mut self, bytes: &[u8]);
}

impl AppendBytes for Vec<u8> {
    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<A: smallvec::Array<Item = u8>> AppendBytes for SmallVec<A> {
    #[inline]
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

#[inline]
pub(crate) fn push_record(out: &mut impl AppendBytes, item: ListItem<'_>) {
    let (mut head, head_len, content) = encode_head(item);
    out.append(&head[..head_len]);
    out.append(content);
    let len = head_len + content.len();
    let back = write_backward_len(&mut head, len);
    out.append(&head[..back]);
}

/// Maximum length of a head: a type byte and an eight-byte integer.
const MAX_HEAD_LEN: usize = 9;

/// Returns the head of a record, the length of the head, and the string bytes that follow it.
#[inline]
fn encode_head(item: ListItem<'_>) -> ([u8; MAX_HEAD_LEN], usize, &[u8]) {
    let mut head = [0; MAX_HEAD_LEN];
    match item {
        ListItem::Bytes(bytes) => {
            let head_len = match bytes.len() {
                len @ 0..64 => {
                    head[0] = 0x80 | len as u8;
                    1
                }
                len @ 64..4096 => {
                    head[..2].copy_from_slice(&[0xE0 | (len >> 8) as u8, len as u8]);
                    2
                }
                len => {
                    head[0] = 0xF0;
                    head[1..5].copy_from_slice(&(len as u32).to_le_bytes());
                    5
                }
            };
            (head, head_len, bytes)
        }
        ListItem::Integer(value) => {
            let bytes = value.to_le_bytes();
            let mut wide = |mark: u8, len: usize| {
                head[0] = mark;
                head[1..=len].copy_from_slice(&bytes[..len]);
                len + 1
            };
            let head_len = match value {
                0..=127 => {
                    head[0] = value as u8;
                    1
                }
                -4096..=4095 => {
                    head[..2].copy_from_slice(&[0xC0 | (value >> 8 & 0x1F) as u8, value as u8]);
                    2
                }
                -0x8000..=0x7FFF => wide(0xF1, 2),
                -0x80_0000..=0x7F_FFFF => wide(0xF2, 3),
                -0x8000_0000..=0x7FFF_FFFF => wide(0xF3, 4),
                _ => wide(0xF4, 8),
            };
            (head, head_len, &[])
        }
    }
}

/// Returns the number of bytes that encode a backward length of `len`.
#[inline]
fn backward_len_size(len: usize) -> usize {
    match len {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

/// Writes the backward length `len` and returns the number of bytes written.
#[inline]
fn write_backward_len(out: &mut [u8; MAX_HEAD_LEN], len: usize) -> usize {
    let count = backward_len_size(len);
    for (place, byte) in out[..count].iter_mut().enumerate() {
        let bits = (len >> (7 * (count - 1 - place))) as u8 & 0x7F;
        *byte = if place == 0 { bits } else { bits | 0x80 };
    }
    count
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) item: ListItem<'a>,
    /// Offset of the record's end, where the next record starts.
    pub(crate) end: usize,
}

/// Decodes a little-endian two's complement integer of any width.
#[inline]
fn decode_integer(bytes: &[u8]) -> i64 {
    let mut whole = [0; 8];
    whole[8 - bytes.len()..].copy_from_slice(bytes);
    i64::from_le_bytes(whole) >> (64 - 8 * bytes.len())
}

/// Returns the offset of the content relative to `at`, and its length. Both depend on the first byte.
#[inline]
fn content_range(bytes: &[u8], at: usize) -> (usize, usize) {
    match bytes[at] {
        0x00..=0x7F => (0, 1),
        first @ 0x80..=0xBF => (1, usize::from(first & 0x3F)),
        0xC0..=0xDF => (0, 2),
        first @ 0xE0..=0xEF => (2, usize::from(first & 0x0F) << 8 | usize::from(bytes[at + 1])),
        0xF1 => (1, 2),
        0xF2 => (1, 3),
        0xF3 => (1, 4),
        0xF4 => (1, 8),
        _ => {
            let len: [u8; 4] = bytes[at + 1..at + 5].try_into().expect("four bytes");
            (5, u32::from_le_bytes(len) as usize)
        }
    }
}

/// Decodes the record at `at`.
#[inline]
pub(crate) fn read_record(bytes: &[u8], at: usize) -> Record<'_> {
    let (skip, len) = content_range(bytes, at);
    let whole = skip + len;
    let end = at + whole + backward_len_size(whole);
    let found = &bytes[at + skip..at + whole];
    let item = match bytes[at] {
        first @ 0x00..=0x7F => ListItem::Integer(i64::from(first)),
        0x80..=0xBF | 0xE0..=0xF0 => ListItem::Bytes(found),
        // A 13-bit integer in two's complement.
        first @ 0xC0..=0xDF => {
            let value = i16::from(first & 0x1F) << 8 | i16::from(found[1]);
            ListItem::Integer(i64::from(value << 3 >> 3))
        }
        _ => ListItem::Integer(decode_integer(found)),
    };
    Record { item, end }
}

/// Returns the offset of the record after the one at `at`.
#[inline]
pub(crate) fn next_offset(bytes: &[u8], at: usize) -> usize {
    let (skip, len) = content_range(bytes, at);
    at + skip + len + backward_len_size(skip + len)
}

#[inline]
pub(crate) fn previous_offset(bytes: &[u8], end: usize) -> usize {
    let (mut len, mut shift, mut at) = (0, 0, end);
    loop {
        at -= 1;
        len |= usize::from(bytes[at] & 0x7F) << shift;
        if bytes[at] < 0x80 || shift == 28 {
            return at - len;
        }
        shift += 7;
    }
}

/// Returns the offset of record `index` of `count`, or the end if `index` equals `count`. The search starts at the
/// nearer end.
#[inline]
pub(crate) fn record_offset(bytes: &[u8], count: usize, index: usize) -> usize {
    if index <= count / 2 {
        (0..index).fold(0, |at, _| next_offset(bytes, at))
    } else {
        (index..count).fold(bytes.len(), |end, _| previous_offset(bytes, end))
    }
}

/// Returns the elements of a run of records.
#[inline]
pub(crate) fn items(bytes: &[u8]) -> impl Iterator<Item = ListItem<'_>> + Clone {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < bytes.len()).then(|| {
            let record = read_record(bytes, at);
            at = record.end;
            record.item
        })
    })
}

/// Returns the elements in reverse order.
#[inline]
pub(crate) fn items_backward(bytes: &[u8]) -> impl Iterator<Item = ListItem<'_>> + Clone {
    let mut end = bytes.len();
    std::iter::from_fn(move || {
        (end > 0).then(|| {
            end = previous_offset(bytes, end);
            read_record(bytes, end).item
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS_AT_BOUNDARIES: [usize; 14] =
        [0, 1, 63, 64, 126, 127, 4095, 4096, 16_376, 16_377, 16_378, 16_380, 2_097_145, 2_097_146];

    fn sample_elements() -> Vec<Vec<u8>> {
        let powers = (0..63).map(|power| 1i64 << power).flat_map(|n| [n - 1, n, n + 1, -n - 1, -n, -n + 1]);
        let integers = powers.chain([i64::MIN, i64::MAX, 4095, 4096, -4096, -4097]);
        let texts = ["", "a", "-0", "007", "+1", " 1", "9223372036854775808", "1.5"];
        let long = LENGTHS_AT_BOUNDARIES.map(|len| vec![b'x'; len]);
        integers
            .map(|n| n.to_string().into_bytes())
            .chain(texts.map(|text| text.as_bytes().to_vec()))
            .chain(long)
            .collect()
    }

    #[test]
    fn elements_round_trip_in_both_directions() {
        let elements = sample_elements();
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for element in &elements {
            starts.push(bytes.len());
            push_record(&mut bytes, element[..].into());
        }
        starts.push(bytes.len());
        let mut digits = ItemDigits::default();
        for (element, item) in elements.iter().zip(items(&bytes)) {
            assert_eq!(item.bytes(&mut digits), element);
            assert_eq!((item, item.len()), (ListItem::from(&element[..]), element.len()));
        }
        assert_eq!(items(&bytes).count(), elements.len());
        assert!(items_backward(&bytes).eq(items(&bytes).collect::<Vec<_>>().into_iter().rev()));
        for (index, start) in starts.iter().enumerate() {
            assert_eq!(record_offset(&bytes, elements.len(), index), *start, "record {index}");
        }
        for pair in starts.windows(2) {
            assert_eq!((next_offset(&bytes, pair[0]), previous_offset(&bytes, pair[1])), (pair[1], pair[0]));
        }
    }

    #[test]
    fn records_match_listpack_entries() {
        let table: &[(&str, &[u8])] = &[
            ("5", b"\x05\x01"),
            ("ab", b"\x82ab\x03"),
            ("256", b"\xc1\x00\x02"),
            ("-1", b"\xdf\xff\x02"),
            ("-32768", b"\xf1\x00\x80\x03"),
            ("32768", b"\xf2\x00\x80\x00\x04"),
            ("-2147483648", b"\xf3\x00\x00\x00\x80\x05"),
            ("-9223372036854775808", b"\xf4\x00\x00\x00\x00\x00\x00\x00\x80\x09"),
        ];
        for (element, bytes) in table {
            assert_eq!(&encode_record(element.as_bytes().into())[..], *bytes, "{element}");
        }
        let long = encode_record(ListItem::Bytes(&[b'x'; 200]));
        assert_eq!((&long[..2], &long[202..]), (&b"\xe0\xc8"[..], &b"\x01\xca"[..]));
    }
}
