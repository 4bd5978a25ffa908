//! Redis's packed forms: many small items in one string.
//!
//! Each reader goes forward once, looks at no byte outside of the string, and gives `None` where anything
//! does not fit: an item that passes the end, an unknown form, a missing end mark.

use smallvec::SmallVec;

/// One item: a string, or a number that stands for its digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Bytes(&'a [u8]),
    Integer(i64),
}

impl<'a> Item<'a> {
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

/// The items of a string; no memory is taken for those of a small one.
pub(super) type Items<'a> = SmallVec<[Item<'a>; 64]>;

const END: u8 = 0xFF;

/// Bytes read forward.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn bytes(&mut self, len: usize) -> Option<Item<'a>> {
        self.take(len).map(Item::Bytes)
    }

    /// A little-endian number of three bytes.
    fn integer24(&mut self) -> Option<i64> {
        let [a, b, c] = self.array()?;
        Some(i64::from(i32::from_le_bytes([0, a, b, c]) >> 8))
    }

    fn integer16(&mut self) -> Option<i64> {
        self.array().map(|bytes| i64::from(i16::from_le_bytes(bytes)))
    }

    fn integer32(&mut self) -> Option<i64> {
        self.array().map(|bytes| i64::from(i32::from_le_bytes(bytes)))
    }

    fn integer64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

/// A listpack: its length in 4 bytes, the number of items in 2, the items, 0xFF. An item is followed by
/// its own length, for reading backwards.
pub(super) fn listpack(bytes: &[u8]) -> Option<Items<'_>> {
    let mut reader = Reader(bytes);
    let len = u32::from_le_bytes(reader.array()?);
    let _: [u8; 2] = reader.array()?;
    let mut items = Items::new();
    loop {
        let before = reader.0.len();
        let first = reader.byte()?;
        if first == END {
            return (len as usize == bytes.len() && reader.0.is_empty()).then_some(items);
        }
        let low = |bits: u8| usize::from(first & ((1 << bits) - 1));
        items.push(match first {
            0x00..=0x7F => Item::Integer(i64::from(first)),
            0x80..=0xBF => reader.bytes(low(6))?,
            0xC0..=0xDF => {
                let value = (low(5) << 8 | usize::from(reader.byte()?)) as i64;
                Item::Integer(if value >= 1 << 12 { value - (1 << 13) } else { value })
            }
            0xE0..=0xEF => {
                let len = low(4) << 8 | usize::from(reader.byte()?);
                reader.bytes(len)?
            }
            0xF0 => {
                let len = u32::from_le_bytes(reader.array()?);
                reader.bytes(len as usize)?
            }
            0xF1 => Item::Integer(reader.integer16()?),
            0xF2 => Item::Integer(reader.integer24()?),
            0xF3 => Item::Integer(reader.integer32()?),
            0xF4 => Item::Integer(reader.integer64()?),
            _ => return None,
        });
        let length_of_length = match before - reader.0.len() {
            0..=127 => 1,
            128..=16_382 => 2,
            16_383..=2_097_150 => 3,
            2_097_151..=268_435_454 => 4,
            _ => 5,
        };
        reader.take(length_of_length)?;
    }
}

/// A listpack with more items does not say how many.
const UNCOUNTED: u16 = u16::MAX;

/// Makes a listpack of so many items' entries.
pub(super) fn frame_listpack(out: &mut Vec<u8>, count: usize, entries: &[u8]) {
    const FRAME: usize = 4 + 2 + 1;
    out.clear();
    out.extend_from_slice(&((entries.len() + FRAME) as u32).to_le_bytes());
    out.extend_from_slice(&u16::try_from(count).unwrap_or(UNCOUNTED).to_le_bytes());
    out.extend_from_slice(entries);
    out.push(END);
}

/// A ziplist: its length and the place of its last item in 4 bytes each, the number of items in 2, the
/// items, 0xFF. An item begins with the length of the one before it.
pub(super) fn ziplist(bytes: &[u8]) -> Option<Items<'_>> {
    let mut reader = Reader(bytes);
    let len = u32::from_le_bytes(reader.array()?);
    let _: [u8; 6] = reader.array()?;
    let mut items = Items::new();
    loop {
        match reader.byte()? {
            END => return (len as usize == bytes.len() && reader.0.is_empty()).then_some(items),
            0xFE => drop(reader.take(4)?),
            _ => {}
        }
        let form = reader.byte()?;
        let low = usize::from(form & 0x3F);
        items.push(match form {
            0x00..=0x3F => reader.bytes(low)?,
            0x40..=0x7F => {
                let len = low << 8 | usize::from(reader.byte()?);
                reader.bytes(len)?
            }
            0x80 => {
                let len = u32::from_be_bytes(reader.array()?);
                reader.bytes(len as usize)?
            }
            0xC0 => Item::Integer(reader.integer16()?),
            0xD0 => Item::Integer(reader.integer32()?),
            0xE0 => Item::Integer(reader.integer64()?),
            0xF0 => Item::Integer(reader.integer24()?),
            0xFE => Item::Integer(i64::from(reader.byte()? as i8)),
            0xF1..=0xFD => Item::Integer(i64::from(form & 0x0F) - 1),
            _ => return None,
        });
    }
}

/// A zipmap: the number of its fields in one byte, then name and value in turn, each after its length
/// (one byte, or 254 and four); behind a value's length, how many unused bytes follow the value; 0xFF.
pub(super) fn zipmap(bytes: &[u8]) -> Option<Items<'_>> {
    let mut reader = Reader(bytes);
    reader.byte()?;
    let mut items = Items::new();
    while let Some(name) = zipmap_len(&mut reader)? {
        items.push(reader.bytes(name)?);
        let value = zipmap_len(&mut reader)??;
        let unused = reader.byte()?;
        items.push(reader.bytes(value)?);
        reader.take(usize::from(unused))?;
    }
    reader.0.is_empty().then_some(items)
}

/// A length; the end mark gives `Some(None)`.
fn zipmap_len(reader: &mut Reader<'_>) -> Option<Option<usize>> {
    Some(match reader.byte()? {
        END => None,
        254 => Some(u32::from_le_bytes(reader.array()?) as usize),
        len => Some(usize::from(len)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: &[u8] = &[b'x'; 70];

    #[test]
    fn listpack_items_of_every_form() {
        let forms: &[(&[u8], Item<'_>)] = &[
            (b"\x05\x01", Item::Integer(5)),
            (b"\x82ab\x03", Item::Bytes(b"ab")),
            (b"\xc1\x00\x02", Item::Integer(256)),
            (b"\xdf\xff\x02", Item::Integer(-1)),
            (b"\xe0\x01z\x03", Item::Bytes(b"z")),
            (b"\xf0\x01\x00\x00\x00z\x06", Item::Bytes(b"z")),
            (b"\xf1\x00\x80\x03", Item::Integer(-32768)),
            (b"\xf2\xff\xff\xff\x04", Item::Integer(-1)),
            (b"\xf3\x00\x00\x00\x80\x05", Item::Integer(i64::from(i32::MIN))),
            (b"\xf4\x00\x00\x00\x00\x00\x00\x00\x80\x09", Item::Integer(i64::MIN)),
        ];
        let mut body = Vec::new();
        forms.iter().for_each(|(form, _)| body.extend_from_slice(form));
        let mut bytes = (body.len() as u32 + 7).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[forms.len() as u8, 0]);
        bytes.extend_from_slice(&body);
        bytes.push(END);
        let items: Items<'_> = forms.iter().map(|(_, item)| *item).collect();
        assert_eq!(listpack(&bytes), Some(items));
        for end in 0..bytes.len() {
            assert_eq!(listpack(&bytes[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn ziplist_items_of_every_form() {
        let mut body = Vec::new();
        let mut long = b"\x02\x40\x46".to_vec();
        long.extend_from_slice(LONG);
        let forms: &[(&[u8], Item<'_>)] = &[
            (b"\x00\x02ab", Item::Bytes(b"ab")),
            (&long, Item::Bytes(LONG)),
            (b"\x02\x80\x00\x00\x00\x01z", Item::Bytes(b"z")),
            (b"\x02\xc0\x00\x80", Item::Integer(-32768)),
            (b"\x02\xd0\xff\xff\xff\xff", Item::Integer(-1)),
            (b"\x02\xe0\x01\x00\x00\x00\x00\x00\x00\x00", Item::Integer(1)),
            (b"\xfe\x02\x00\x00\x00\xf0\xff\xff\xff", Item::Integer(-1)),
            (b"\x02\xfe\x80", Item::Integer(-128)),
            (b"\x02\xf1", Item::Integer(0)),
            (b"\x02\xfd", Item::Integer(12)),
        ];
        forms.iter().for_each(|(form, _)| body.extend_from_slice(form));
        let mut bytes = (body.len() as u32 + 11).to_le_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0, 0, 0, forms.len() as u8, 0]);
        bytes.extend_from_slice(&body);
        bytes.push(END);
        let items: Items<'_> = forms.iter().map(|(_, item)| *item).collect();
        assert_eq!(ziplist(&bytes), Some(items));
    }

    #[test]
    fn zipmaps_with_unused_bytes() {
        let bytes = b"\x02\x01a\x01\x02x..\xfe\x01\x00\x00\x00b\x00\x00\xff";
        let expected: Items<'_> = [&b"a"[..], b"x", b"b", b""].map(Item::Bytes).into_iter().collect();
        assert_eq!(zipmap(bytes), Some(expected));
        assert_eq!(zipmap(b"\x01\x01a\xff"), None);
        assert_eq!(zipmap(b"\x00\xff"), Some(Items::new()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_them_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (listpack(&bytes), ziplist(&bytes), zipmap(&bytes));
        }
    }
}
