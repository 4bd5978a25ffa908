//! Redis's packed encodings: many small items in one string.
//!
//! Each decoder reads its string forward once, never accesses bytes outside it, and returns `None` on malformed input:
//! an item beyond the end, an unknown encoding, a missing terminator. [`ValidationDepth::Deep`] also validates what
//! only backward readers use.

use smallvec::SmallVec;

use crate::ValidationDepth;

/// An item: a string, or an integer that stands for its decimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackedItem<'a> {
    Bytes(&'a [u8]),
    Integer(i64),
}

impl<'a> PackedItem<'a> {
    pub(super) fn as_bytes<'b>(&self, digits: &'b mut itoa::Buffer) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Integer(value) => digits.format(*value).as_bytes(),
        }
    }

    pub(super) fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Bytes(bytes) => resp::parse_i64(bytes),
            Self::Integer(value) => Some(*value),
        }
    }
}

/// The items of a packed string; up to 64 items need no heap allocation.
pub(super) type Items<'a> = SmallVec<[PackedItem<'a>; 64]>;

const TERMINATOR: u8 = 0xFF;

/// Reads a packed string forward. Contains the bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take_bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, remaining) = self.0.split_at_checked(len)?;
        self.0 = remaining;
        Some(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, remaining) = self.0.split_first_chunk()?;
        self.0 = remaining;
        Some(*taken)
    }

    fn take_byte(&mut self) -> Option<u8> {
        self.take_array::<1>().map(|[byte]| byte)
    }

    fn take_item(&mut self, len: usize) -> Option<PackedItem<'a>> {
        self.take_bytes(len).map(PackedItem::Bytes)
    }

    /// Reads a three-byte little-endian integer.
    fn take_integer24(&mut self) -> Option<i64> {
        let [a, b, c] = self.take_array()?;
        Some(i64::from(i32::from_le_bytes([0, a, b, c]) >> 8))
    }

    fn take_integer16(&mut self) -> Option<i64> {
        self.take_array().map(|bytes| i64::from(i16::from_le_bytes(bytes)))
    }

    fn take_integer32(&mut self) -> Option<i64> {
        self.take_array().map(|bytes| i64::from(i32::from_le_bytes(bytes)))
    }

    fn take_integer64(&mut self) -> Option<i64> {
        self.take_array().map(i64::from_le_bytes)
    }
}

/// Decodes a listpack: total length (4 bytes), number of items (2), the items, 0xFF. Each item is followed by its own
/// length, so that it can be read backwards.
pub(super) fn decode_listpack(bytes: &[u8], depth: ValidationDepth) -> Option<Items<'_>> {
    let mut reader = Reader(bytes);
    let len = u32::from_le_bytes(reader.take_array()?);
    let count = u16::from_le_bytes(reader.take_array()?);
    let mut items = Items::new();
    loop {
        let before = reader.0.len();
        let first = reader.take_byte()?;
        if first == TERMINATOR {
            let is_whole = len as usize == bytes.len() && reader.0.is_empty();
            return (is_whole && is_count_valid(count, items.len(), depth)).then_some(items);
        }
        let low = |bits: u8| usize::from(first & ((1 << bits) - 1));
        items.push(match first {
            0x00..=0x7F => PackedItem::Integer(i64::from(first)),
            0x80..=0xBF => reader.take_item(low(6))?,
            0xC0..=0xDF => {
                let value = (low(5) << 8 | usize::from(reader.take_byte()?)) as i64;
                PackedItem::Integer(if value >= 1 << 12 { value - (1 << 13) } else { value })
            }
            0xE0..=0xEF => {
                let len = low(4) << 8 | usize::from(reader.take_byte()?);
                reader.take_item(len)?
            }
            0xF0 => {
                let len = u32::from_le_bytes(reader.take_array()?);
                reader.take_item(len as usize)?
            }
            0xF1 => PackedItem::Integer(reader.take_integer16()?),
            0xF2 => PackedItem::Integer(reader.take_integer24()?),
            0xF3 => PackedItem::Integer(reader.take_integer32()?),
            0xF4 => PackedItem::Integer(reader.take_integer64()?),
            _ => return None,
        });
        let item_len = before - reader.0.len();
        let length_of_length = match item_len {
            0..=127 => 1,
            128..=16_382 => 2,
            16_383..=2_097_150 => 3,
            2_097_151..=268_435_454 => 4,
            _ => 5,
        };
        let length = reader.take_bytes(length_of_length)?;
        if depth == ValidationDepth::Deep && decode_backward_len(length) != Some(item_len) {
            return None;
        }
    }
}

/// Decodes the backward length at the end of an item: seven bits per byte plus a continuation bit. Returns `None`
/// unless it uses all of `bytes`.
fn decode_backward_len(bytes: &[u8]) -> Option<usize> {
    let mut value = 0;
    for (index, byte) in bytes.iter().rev().enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * index);
        let is_last = index + 1 == bytes.len();
        if (byte & 0x80 == 0) != is_last {
            return None;
        }
    }
    Some(value)
}

/// Returns whether the item count in the header matches the number of items.
fn is_count_valid(count: u16, items: usize, depth: ValidationDepth) -> bool {
    depth == ValidationDepth::HeadersOnly || count == COUNT_UNKNOWN || usize::from(count) == items
}

/// The count in the header if there are too many items to count.
const COUNT_UNKNOWN: u16 = u16::MAX;

/// Adds a listpack header and terminator around the encoded entries of `count` items.
pub(super) fn wrap_listpack(out: &mut Vec<u8>, count: usize, entries: &[u8]) {
    const HEADER_AND_TERMINATOR_BYTES: usize = 4 + 2 + 1;
    out.clear();
    out.extend_from_slice(&((entries.len() + HEADER_AND_TERMINATOR_BYTES) as u32).to_le_bytes());
    out.extend_from_slice(&u16::try_from(count).unwrap_or(COUNT_UNKNOWN).to_le_bytes());
    out.extend_from_slice(entries);
    out.push(TERMINATOR);
}

/// Decodes a ziplist: total length and offset of the last item (4 bytes each), number of items (2), the
/// items, 0xFF. Each item starts with the length of the previous one.
pub(super) fn decode_ziplist(bytes: &[u8], depth: ValidationDepth) -> Option<Items<'_>> {
    let mut reader = Reader(bytes);
    let len = u32::from_le_bytes(reader.take_array()?);
    let tail = u32::from_le_bytes(reader.take_array()?) as usize;
    let count = u16::from_le_bytes(reader.take_array()?);
    let mut items = Items::new();
    // `last` and `last_len` are offset and length of the last item read.
    let (mut last, mut last_len) = (None, 0);
    loop {
        let begin = bytes.len() - reader.0.len();
        let before = match reader.take_byte()? {
            TERMINATOR => {
                let is_whole = len as usize == bytes.len() && reader.0.is_empty();
                let is_tail_right =
                    depth == ValidationDepth::HeadersOnly || last.is_none_or(|last| last == tail);
                let is_right = is_whole && is_tail_right && is_count_valid(count, items.len(), depth);
                return is_right.then_some(items);
            }
            0xFE => u32::from_le_bytes(reader.take_array()?) as usize,
            len => usize::from(len),
        };
        if depth == ValidationDepth::Deep && before != last_len {
            return None;
        }
        let form = reader.take_byte()?;
        let low = usize::from(form & 0x3F);
        items.push(match form {
            0x00..=0x3F => reader.take_item(low)?,
            0x40..=0x7F => {
                let len = low << 8 | usize::from(reader.take_byte()?);
                reader.take_item(len)?
            }
            0x80 => {
                let len = u32::from_be_bytes(reader.take_array()?);
                reader.take_item(len as usize)?
            }
            0xC0 => PackedItem::Integer(reader.take_integer16()?),
            0xD0 => PackedItem::Integer(reader.take_integer32()?),
            0xE0 => PackedItem::Integer(reader.take_integer64()?),
            0xF0 => PackedItem::Integer(reader.take_integer24()?),
            0xFE => PackedItem::Integer(i64::from(reader.take_byte()? as i8)),
            0xF1..=0xFD => PackedItem::Integer(i64::from(form & 0x0F) - 1),
            _ => return None,
        });
        (last, last_len) = (Some(begin), bytes.len() - reader.0.len() - begin);
    }
}

/// Decodes a zipmap: number of fields (one byte), then names and values, 0xFF. Each name and value follows its length
/// (one byte, or 254 and four bytes); after a value's length comes the number of unused bytes that follow the value.
pub(super) fn decode_zipmap(bytes: &[u8], depth: ValidationDepth) -> Option<Items<'_>> {
    let mut reader = Reader(bytes);
    let count = reader.take_byte()?;
    let mut items = Items::new();
    while let Some(name) = take_zipmap_len(&mut reader)? {
        items.push(reader.take_item(name)?);
        let value = take_zipmap_len(&mut reader)??;
        let unused = reader.take_byte()?;
        items.push(reader.take_item(value)?);
        reader.take_bytes(usize::from(unused))?;
    }
    // A count of 254 means that the zipmap has too many fields to count.
    let is_count_valid =
        depth == ValidationDepth::HeadersOnly || count == 254 || usize::from(count) == items.len() / 2;
    (reader.0.is_empty() && is_count_valid).then_some(items)
}

/// Reads a length; returns `Some(None)` at the end mark.
fn take_zipmap_len(reader: &mut Reader<'_>) -> Option<Option<usize>> {
    Some(match reader.take_byte()? {
        TERMINATOR => None,
        254 => Some(u32::from_le_bytes(reader.take_array()?) as usize),
        len => Some(usize::from(len)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG_ITEM: &[u8] = &[b'x'; 70];

    #[test]
    fn listpack_items_of_every_encoding() {
        let forms: &[(&[u8], PackedItem<'_>)] = &[
            (b"\x05\x01", PackedItem::Integer(5)),
            (b"\x82ab\x03", PackedItem::Bytes(b"ab")),
            (b"\xc1\x00\x02", PackedItem::Integer(256)),
            (b"\xdf\xff\x02", PackedItem::Integer(-1)),
            (b"\xe0\x01z\x03", PackedItem::Bytes(b"z")),
            (b"\xf0\x01\x00\x00\x00z\x06", PackedItem::Bytes(b"z")),
            (b"\xf1\x00\x80\x03", PackedItem::Integer(-32768)),
            (b"\xf2\xff\xff\xff\x04", PackedItem::Integer(-1)),
            (b"\xf3\x00\x00\x00\x80\x05", PackedItem::Integer(i64::from(i32::MIN))),
            (b"\xf4\x00\x00\x00\x00\x00\x00\x00\x80\x09", PackedItem::Integer(i64::MIN)),
        ];
        let mut body = Vec::new();
        forms.iter().for_each(|(form, _)| body.extend_from_slice(form));
        let mut bytes = (body.len() as u32 + 7).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[forms.len() as u8, 0]);
        bytes.extend_from_slice(&body);
        bytes.push(TERMINATOR);
        let items: Items<'_> = forms.iter().map(|(_, item)| *item).collect();
        assert_eq!(decode_listpack(&bytes, ValidationDepth::Deep), Some(items));
        for end in 0..bytes.len() {
            assert_eq!(decode_listpack(&bytes[..end], ValidationDepth::HeadersOnly), None, "cut at {end}");
        }
    }

    #[test]
    fn ziplist_items_of_every_encoding() {
        let mut body = Vec::new();
        let mut long = b"\x02\x40\x46".to_vec();
        long.extend_from_slice(LONG_ITEM);
        let forms: &[(&[u8], PackedItem<'_>)] = &[
            (b"\x00\x02ab", PackedItem::Bytes(b"ab")),
            (&long, PackedItem::Bytes(LONG_ITEM)),
            (b"\x02\x80\x00\x00\x00\x01z", PackedItem::Bytes(b"z")),
            (b"\x02\xc0\x00\x80", PackedItem::Integer(-32768)),
            (b"\x02\xd0\xff\xff\xff\xff", PackedItem::Integer(-1)),
            (b"\x02\xe0\x01\x00\x00\x00\x00\x00\x00\x00", PackedItem::Integer(1)),
            (b"\xfe\x02\x00\x00\x00\xf0\xff\xff\xff", PackedItem::Integer(-1)),
            (b"\x02\xfe\x80", PackedItem::Integer(-128)),
            (b"\x02\xf1", PackedItem::Integer(0)),
            (b"\x02\xfd", PackedItem::Integer(12)),
        ];
        forms.iter().for_each(|(form, _)| body.extend_from_slice(form));
        let mut bytes = (body.len() as u32 + 11).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0, 0, 0, forms.len() as u8, 0]);
        bytes.extend_from_slice(&body);
        bytes.push(TERMINATOR);
        let items: Items<'_> = forms.iter().map(|(_, item)| *item).collect();
        assert_eq!(decode_ziplist(&bytes, ValidationDepth::HeadersOnly), Some(items));
    }

    #[test]
    fn zipmap_with_unused_bytes_is_decoded() {
        let bytes = b"\x02\x01a\x01\x02x..\xfe\x01\x00\x00\x00b\x00\x00\xff";
        let expected: Items<'_> = [&b"a"[..], b"x", b"b", b""].map(PackedItem::Bytes).into_iter().collect();
        assert_eq!(decode_zipmap(bytes, ValidationDepth::Deep), Some(expected));
        assert_eq!(decode_zipmap(b"\x01\x01a\xff", ValidationDepth::HeadersOnly), None);
        assert_eq!(decode_zipmap(b"\x00\xff", ValidationDepth::Deep), Some(Items::new()));
    }

    /// Some malformed encodings are accepted by default and rejected by [`ValidationDepth::Deep`].
    #[test]
    fn deep_validation_finds_damage_that_forward_reading_ignores() {
        // A valid listpack of the items "ab" and 5.
        let sound = b"\x0d\0\0\0\x02\0\x82ab\x03\x05\x01\xff";
        assert!(decode_listpack(sound, ValidationDepth::Deep).is_some());
        // Corrupt the count, or the length after an item, once with an unexpected continuation bit.
        for (at, byte) in [(4, 3), (4, 1), (9, 2), (9, 4), (9, 0x83), (11, 0), (11, 2)] {
            let mut bytes = sound.to_vec();
            bytes[at] = byte;
            assert!(decode_listpack(&bytes, ValidationDepth::HeadersOnly).is_some(), "{at} {byte}");
            assert!(decode_listpack(&bytes, ValidationDepth::Deep).is_none(), "{at} {byte}");
        }
        // A valid ziplist of the items "ab" and 1.
        let sound = b"\x11\0\0\0\x0e\0\0\0\x02\0\x00\x02ab\x04\xf2\xff";
        assert!(decode_ziplist(sound, ValidationDepth::Deep).is_some());
        // Corrupt the offset of the last item, the count, or the length before an item.
        for (at, byte) in [(4, 10), (4, 15), (5, 1), (8, 1), (8, 3), (10, 1), (14, 3), (14, 5)] {
            let mut bytes = sound.to_vec();
            bytes[at] = byte;
            assert!(decode_ziplist(&bytes, ValidationDepth::HeadersOnly).is_some(), "{at} {byte}");
            assert!(decode_ziplist(&bytes, ValidationDepth::Deep).is_none(), "{at} {byte}");
        }
        let uncounted = b"\x09\0\0\0\xff\xff\x05\x01\xff";
        assert!(decode_listpack(uncounted, ValidationDepth::Deep).is_some());
        let sound = b"\x01\x01a\x01\x00x\xff";
        assert!(decode_zipmap(sound, ValidationDepth::Deep).is_some());
        assert!(decode_zipmap(b"\x02\x01a\x01\x00x\xff", ValidationDepth::HeadersOnly).is_some());
        assert!(decode_zipmap(b"\x02\x01a\x01\x00x\xff", ValidationDepth::Deep).is_none());
    }

    #[test]
    fn backward_lengths_of_long_items_decode() {
        for len in [126, 127, 128, 4000, 16_380, 16_381, 16_382, 70_000] {
            let item = vec![b'x'; len];
            let mut packed = vec![0xF0];
            packed.extend_from_slice(&(len as u32).to_le_bytes());
            packed.extend_from_slice(&item);
            let total = packed.len();
            let groups: Vec<u8> = (0..5).map(|index| (total >> (7 * index) & 0x7F) as u8).collect();
            let count = groups.iter().rposition(|group| *group > 0).unwrap_or(0) + 1;
            let length = groups[..count].iter().enumerate().rev();
            packed.extend(length.map(|(index, group)| if index + 1 < count { group | 0x80 } else { *group }));
            // A backward length is stored backwards: its last byte is the first to be read.
            let mut bytes = Vec::new();
            wrap_listpack(&mut bytes, 1, &packed);
            assert!(decode_listpack(&bytes, ValidationDepth::Deep).is_some(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            for depth in [ValidationDepth::HeadersOnly, ValidationDepth::Deep] {
                let _ = (decode_listpack(&bytes, depth), decode_ziplist(&bytes, depth), decode_zipmap(&bytes, depth));
            }
        }
    }
}
