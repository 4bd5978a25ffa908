//! The binary layout of an entry: one key and its value in a page.
//!
//! ```text
//!  0        4      6          12 (6 without an expiry; two less for an element)
//! +--------+------+-----------+---------+-----------+---+
//! | header | use  | expiry    | key     | value     | 0 |   padded to an even length
//! +--------+------+-----------+---------+-----------+---+
//!  u32      u16    48 bits, ms  klen      vlen
//!
//! header, from its lowest bit:
//!   4 state     0 alive; 1 to 7 removed from the index, kept for these snapshots; 8 dead
//!   4 code      type and OBJECT ENCODING name ([`crate::kind::ValueEncoding`]); 15: an element of a large
//!               collection, which has no `use` field
//!   2 placement 0 all inline; 1 value in overflow; 2 key and value in overflow; 3 like 2, with an
//!               eight-byte expiry
//!   1 expiry    whether the expiry bytes are present
//!   9 klen
//!  12 vlen
//! ```
//!
//! Overflow keys and values lie in the table's record store ([`crate::overflow`]); the entry's value is then
//! the record number, four bytes.
//!
//! Six bytes of milliseconds reach the year 6429. Later expiry times are rare, so they may cost more: such an
//! entry is stored in overflow with an eight-byte time.

use clock::Millis;

/// Number of header and usage bytes of an entry.
const KEY_FIXED_LEN: usize = 6;
const ELEMENT_FIXED_LEN: usize = 4;
pub(crate) const TIME_LEN: usize = 6;
pub(crate) const MAX_KEY_LEN: usize = (1 << 9) - 1;
pub(crate) const MAX_VALUE_LEN: usize = (1 << 12) - 1;

/// Length in bytes of an expiry time that is too large for six bytes.
pub(crate) const WIDE_TIME_LEN: usize = 8;

/// The largest time in milliseconds that fits in six bytes; the smallest is its negation. Page bounds clamp times to
/// this range.
const TIME_LIMIT: i64 = (1 << 47) - 1;

pub(crate) const STATE_ALIVE: u32 = 0;
pub(crate) const STATE_DEAD: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    Inline,
    ValueOverflow,
    /// Key and value are in overflow. Only this placement can store a time for which [`needs_wide_time`] is true.
    KeyValueOverflow,
}

/// The placement bits of [`Placement::KeyValueOverflow`] with an eight-byte time.
const WIDE_PLACEMENT_BITS: u32 = 3;

/// Returns whether the time needs more than six bytes.
#[inline]
pub(crate) fn needs_wide_time(expiry: Option<Millis>) -> bool {
    expiry.is_some_and(|time| clamp_time(time) != time)
}

/// The type code in an entry's header, four bits. `ValueEncoding` defines the codes of keys; this module distinguishes
/// only elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeCode(u8);

impl TypeCode {
    pub(crate) const KEY_CODE_COUNT: usize = 15;
    /// The code of an element of a large collection.
    pub(crate) const ELEMENT: Self = Self(15);

    pub(crate) const fn for_key(number: u8) -> Self {
        assert!((number as usize) < Self::KEY_CODE_COUNT, "four bits, and one code is the elements'");
        Self(number)
    }

    #[inline]
    pub(crate) const fn as_u8(self) -> u8 {
        self.0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(u32);

impl Header {
    pub(crate) fn new(
        code: TypeCode,
        placement: Placement,
        expiry: Option<Millis>,
        key_len: usize,
        value_len: usize,
    ) -> Self {
        debug_assert!(key_len <= MAX_KEY_LEN && value_len <= MAX_VALUE_LEN);
        let wide = needs_wide_time(expiry);
        assert!(!wide || placement == Placement::KeyValueOverflow, "a wide time needs overflow placement");
        Self(
            u32::from(code.0) << 4
                | if wide { WIDE_PLACEMENT_BITS } else { placement as u32 } << 8
                | u32::from(expiry.is_some()) << 10
                | (key_len as u32) << 11
                | (value_len as u32) << 20,
        )
    }

    #[inline]
    pub(crate) fn read(page: &[u8], at: usize) -> Self {
        Self(u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes")))
    }

    #[inline]
    pub(crate) fn write(self, page: &mut [u8], at: usize) {
        page[at..at + 4].copy_from_slice(&self.0.to_le_bytes());
    }

    pub(crate) fn state(self) -> u32 {
        self.0 & 15
    }

    pub(crate) fn with_state(self, state: u32) -> Self {
        Self(self.0 & !15 | state)
    }

    #[inline]
    pub(crate) fn type_code(self) -> TypeCode {
        TypeCode((self.0 >> 4 & 15) as u8)
    }

    pub(crate) fn with_code(self, code: TypeCode) -> Self {
        Self(self.0 & !(15 << 4) | u32::from(code.0) << 4)
    }

    #[inline]
    fn is_element(self) -> bool {
        self.type_code() == TypeCode::ELEMENT
    }

    /// Returns the offset in the entry at which the expiry time starts, if present.
    #[inline]
    fn time_start(self) -> usize {
        if self.is_element() { ELEMENT_FIXED_LEN } else { KEY_FIXED_LEN }
    }

    #[inline]
    pub(crate) fn placement(self) -> Placement {
        match self.0 >> 8 & 3 {
            0 => Placement::Inline,
            1 => Placement::ValueOverflow,
            _ => Placement::KeyValueOverflow,
        }
    }

    #[inline]
    pub(crate) fn has_expiry(self) -> bool {
        self.0 >> 10 & 1 == 1
    }

    /// Returns whether the expiry time has eight bytes.
    #[inline]
    fn has_wide_expiry(self) -> bool {
        self.0 >> 8 & 3 == WIDE_PLACEMENT_BITS
    }

    /// Returns whether this expiry fits the entry without moving it.
    #[inline]
    pub(crate) fn fits_expiry(self, expiry: Option<Millis>) -> bool {
        self.has_expiry() == expiry.is_some() && (self.has_wide_expiry() || !needs_wide_time(expiry))
    }

    #[inline]
    fn time_len(self) -> usize {
        match (self.has_expiry(), self.has_wide_expiry()) {
            (false, _) => 0,
            (true, false) => TIME_LEN,
            (true, true) => WIDE_TIME_LEN,
        }
    }

    #[inline]
    fn key_len(self) -> usize {
        (self.0 >> 11) as usize & MAX_KEY_LEN
    }

    #[inline]
    fn value_len(self) -> usize {
        (self.0 >> 20) as usize
    }

    #[inline]
    fn key_start(self) -> usize {
        self.time_start() + self.time_len()
    }

    /// Returns the length, before padding, of an entry whose key and value are stored inline.
    pub(crate) fn entry_len(code: TypeCode, has_expiry: bool, key_len: usize, value_len: usize) -> usize {
        let fixed = if code == TypeCode::ELEMENT { ELEMENT_FIXED_LEN } else { KEY_FIXED_LEN };
        fixed + if has_expiry { TIME_LEN } else { 0 } + key_len + value_len
    }

    /// Returns the length of the entry in its page, including padding.
    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.key_start() + self.key_len() + self.value_len()).next_multiple_of(2)
    }

    #[inline]
    pub(crate) fn key(self, page: &[u8], at: usize) -> &[u8] {
        let start = at + self.key_start();
        &page[start..start + self.key_len()]
    }

    #[inline]
    pub(crate) fn value(self, page: &[u8], at: usize) -> &[u8] {
        let start = at + self.key_start() + self.key_len();
        &page[start..start + self.value_len()]
    }

    #[inline]
    pub(crate) fn value_mut(self, page: &mut [u8], at: usize) -> &mut [u8] {
        let start = at + self.key_start() + self.key_len();
        &mut page[start..start + self.value_len()]
    }

    #[inline]
    pub(crate) fn expiry(self, page: &[u8], at: usize) -> Option<Millis> {
        self.has_expiry().then(|| {
            let start = at + self.time_start();
            if self.has_wide_expiry() { read_wide_time(page, start) } else { read_time(page, start) }
        })
    }

    /// Overwrites the expiry of an entry for which [`fits_expiry`](Self::fits_expiry) is true.
    #[inline]
    pub(crate) fn set_expiry(self, page: &mut [u8], at: usize, expiry: Millis) {
        debug_assert!(self.fits_expiry(Some(expiry)));
        let start = at + self.time_start();
        if self.has_wide_expiry() {
            page[start..start + WIDE_TIME_LEN].copy_from_slice(&expiry.0.to_le_bytes());
        } else {
            write_time(page, start, expiry);
        }
    }

    /// Returns the usage counters; 0 for an element.
    #[inline]
    pub(crate) fn usage(self, page: &[u8], at: usize) -> u16 {
        if self.is_element() { 0 } else { u16::from_le_bytes([page[at + 4], page[at + 5]]) }
    }

    #[inline]
    pub(crate) fn set_usage(self, page: &mut [u8], at: usize, usage: u16) {
        if !self.is_element() {
            page[at + 4..at + KEY_FIXED_LEN].copy_from_slice(&usage.to_le_bytes());
        }
    }

    #[inline]
    pub(crate) fn attributes(self, page: &[u8], at: usize) -> EntryAttributes {
        EntryAttributes { code: self.type_code(), usage: self.usage(page, at), expiry: self.expiry(page, at) }
    }

    pub(crate) fn record_number(self, page: &[u8], at: usize) -> Option<u32> {
        let value = (self.placement() != Placement::Inline).then(|| self.value(page, at))?;
        Some(u32::from_le_bytes(value.try_into().expect("a number is four bytes")))
    }
}

/// The attributes of an entry besides its key and value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryAttributes {
    pub(crate) code: TypeCode,
    pub(crate) usage: u16,
    pub(crate) expiry: Option<Millis>,
}

/// An entry that is about to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryDraft<'a> {
    pub(crate) attributes: EntryAttributes,
    pub(crate) placement: Placement,
    /// The key's bytes; empty if the key is stored in overflow.
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl EntryDraft<'_> {
    pub(crate) fn header(&self, value_len: usize) -> Header {
        Header::new(self.attributes.code, self.placement, self.attributes.expiry, self.key.len(), value_len)
    }

    /// Writes the entry with a value of `value_len` bytes: the bytes of the draft, then zeros.
    pub(crate) fn write(&self, page: &mut [u8], at: usize, value_len: usize) {
        let header = self.header(value_len);
        let entry = &mut page[at..at + header.len()];
        header.write(entry, 0);
        header.set_usage(entry, 0, self.attributes.usage);
        if let Some(expiry) = self.attributes.expiry {
            header.set_expiry(entry, 0, expiry);
        }
        let start = header.key_start();
        entry[start..start + self.key.len()].copy_from_slice(self.key);
        let value = &mut entry[start + self.key.len()..];
        let kept = self.value.len().min(value_len);
        value[..kept].copy_from_slice(&self.value[..kept]);
        value[kept..].fill(0);
    }
}

#[inline]
pub(crate) fn read_time(page: &[u8], at: usize) -> Millis {
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(&page[at..at + TIME_LEN]);
    Millis(i64::from_le_bytes(bytes) >> 16)
}

#[inline]
pub(crate) fn write_time(page: &mut [u8], at: usize, time: Millis) {
    let bytes = (clamp_time(time).0 << 16).to_le_bytes();
    page[at..at + TIME_LEN].copy_from_slice(&bytes[2..]);
}

#[cold]
pub(crate) fn read_wide_time(page: &[u8], at: usize) -> Millis {
    Millis(i64::from_le_bytes(page[at..at + WIDE_TIME_LEN].try_into().expect("eight bytes")))
}

/// Clamps a time to the range that fits in six bytes, about the years -2490 to 6429.
pub(crate) fn clamp_time(time: Millis) -> Millis {
    Millis(time.0.clamp(-TIME_LIMIT, TIME_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_round_trips() {
        let mut page = vec![0xff; 600];
        for (key, value, expiry, element) in [
            (&b"k"[..], &b"value"[..], None, false),
            (b"", b"", Some(Millis(1)), true),
            (&[7; MAX_KEY_LEN], b"x", Some(Millis(-5)), false),
            (b"key", &[9; 300], Some(Millis(TIME_LIMIT)), true),
        ] {
            let code = if element { TypeCode::ELEMENT } else { TypeCode::for_key(7) };
            let attributes = EntryAttributes { code, usage: 513, expiry };
            let draft = EntryDraft { attributes, placement: Placement::Inline, key, value };
            draft.write(&mut page, 10, value.len());
            let header = Header::read(&page, 10);
            assert_eq!(header, draft.header(value.len()));
            assert_eq!(header.len() % 2, 0);
            assert_eq!((header.key(&page, 10), header.value(&page, 10)), (key, value));
            assert_eq!((header.expiry(&page, 10), header.type_code()), (expiry, code));
            assert_eq!((header.placement(), header.state()), (Placement::Inline, STATE_ALIVE));
            assert_eq!(header.usage(&page, 10), if element { 0 } else { 513 });
        }
    }

    #[test]
    fn changing_the_type_code_keeps_other_parts() {
        for (before, after) in (0..15).flat_map(|before| (0..15).map(move |after| (before, after))) {
            let time = Some(Millis(1));
            let header = Header::new(
                TypeCode::for_key(before),
                Placement::ValueOverflow,
                time,
                MAX_KEY_LEN,
                MAX_VALUE_LEN,
            );
            let changed = header.with_state(5).with_code(TypeCode::for_key(after));
            assert_eq!((header.type_code().as_u8(), changed.type_code().as_u8()), (before, after));
            assert_eq!(
                changed.with_state(0),
                Header::new(changed.type_code(), Placement::ValueOverflow, time, MAX_KEY_LEN, MAX_VALUE_LEN)
            );
            assert_eq!((changed.state(), changed.len()), (5, header.len()));
        }
    }

    #[test]
    fn wide_expiry_is_exact_and_can_be_replaced() {
        let mut page = vec![0xff; 100];
        let number = 77u32.to_le_bytes();
        for time in [i64::MAX, i64::MIN, TIME_LIMIT + 1, -TIME_LIMIT - 1] {
            let attributes =
                EntryAttributes { code: TypeCode::for_key(4), usage: 513, expiry: Some(Millis(time)) };
            let draft =
                EntryDraft { attributes, placement: Placement::KeyValueOverflow, key: b"", value: &number };
            draft.write(&mut page, 10, number.len());
            let header = Header::read(&page, 10);
            assert_eq!(
                (header.placement(), header.record_number(&page, 10)),
                (Placement::KeyValueOverflow, Some(77))
            );
            assert_eq!((header.expiry(&page, 10), header.usage(&page, 10)), (Some(Millis(time)), 513));
            assert!(header.fits_expiry(Some(Millis(1))) && !header.fits_expiry(None));
            header.set_expiry(&mut page, 10, Millis(5));
            assert_eq!(header.expiry(&page, 10), Some(Millis(5)));
            let narrow = EntryAttributes { expiry: Some(Millis(5)), ..attributes };
            let narrow = EntryDraft { attributes: narrow, ..draft }.header(number.len());
            assert!(!narrow.fits_expiry(Some(Millis(time))) && narrow.len() == header.len() - 2);
        }
    }

    #[test]
    fn out_of_range_times_are_clamped() {
        let mut page = [0; 6];
        for (time, kept) in [(i64::MAX, TIME_LIMIT), (i64::MIN, -TIME_LIMIT), (-1, -1), (0, 0)] {
            write_time(&mut page, 0, Millis(time));
            assert_eq!(read_time(&page, 0), Millis(kept));
        }
    }
}
