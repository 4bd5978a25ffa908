//! One key and its value, as they lie in a page.
//!
//! ```text
//!  0        4      6          12 (6 without a time; two less for a field)
//! +--------+------+-----------+---------+-----------+---+
//! | header | use  | time      | key     | value     | 0 |   padded to an even length
//! +--------+------+-----------+---------+-----------+---+
//!  u32      u16    48 bits, ms  klen      vlen
//!
//! header, from its lowest bit:
//!   4 state     0 alive; 1 to 7 out of the index, kept for these snapshots; 8 dead
//!   3 kind      string, list, set, sorted set, hash, stream; 6: a field of a large hash, which is a string
//!               and has no `use`
//!   2 where     0 all here; 1 the value lies outside; 2 key and value lie outside
//!   1 time      whether the 6 bytes of the expiry time are there
//!   1 mark      a bit of the kind's own (a string that was edited)
//!   9 klen
//!  12 vlen
//! ```
//!
//! What lies outside is in the table's store ([`crate::outside`]); the entry then has its number, four
//! bytes, as its value.

use clock::Millis;

use crate::value::Kind;

/// The header, and when the entry was used.
const FIXED: usize = 6;
const FIXED_OF_FIELD: usize = 4;
pub(crate) const TIME: usize = 6;
pub(crate) const MAX_KEY: usize = (1 << 9) - 1;
pub(crate) const MAX_VALUE: usize = (1 << 12) - 1;

/// Expiry times are kept in 48 bits; what is earlier or later is kept as the nearest that fits.
const TIME_LIMIT: i64 = (1 << 47) - 1;

pub(crate) const ALIVE: u32 = 0;
pub(crate) const DEAD: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Here,
    ValueOutside,
    BothOutside,
}

/// The code of a field among those of the kinds.
const FIELD: u32 = 6;

/// What an entry is: a key's value, or a field of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Key(Kind),
    Field,
}

impl Form {
    fn code(self) -> u32 {
        match self {
            Self::Key(kind) => kind as u32,
            Self::Field => FIELD,
        }
    }
}

/// The header of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(u32);

impl Header {
    pub(crate) fn new(
        form: Form,
        place: Where,
        volatile: bool,
        mark: bool,
        key: usize,
        value: usize,
    ) -> Self {
        debug_assert!(key <= MAX_KEY && value <= MAX_VALUE);
        Self(
            form.code() << 4
                | (place as u32) << 7
                | u32::from(volatile) << 9
                | u32::from(mark) << 10
                | (key as u32) << 11
                | (value as u32) << 20,
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

    pub(crate) fn kind(self) -> Kind {
        match self.0 >> 4 & 7 {
            0 | FIELD => Kind::String,
            1 => Kind::List,
            2 => Kind::Set,
            3 => Kind::SortedSet,
            4 => Kind::Hash,
            _ => Kind::Stream,
        }
    }

    #[inline]
    fn is_field(self) -> bool {
        self.0 >> 4 & 7 == FIELD
    }

    /// Where the time is, if there is one.
    #[inline]
    fn time_start(self) -> usize {
        if self.is_field() { FIXED_OF_FIELD } else { FIXED }
    }

    #[inline]
    pub(crate) fn place(self) -> Where {
        match self.0 >> 7 & 3 {
            0 => Where::Here,
            1 => Where::ValueOutside,
            _ => Where::BothOutside,
        }
    }

    #[inline]
    pub(crate) fn volatile(self) -> bool {
        self.0 >> 9 & 1 == 1
    }

    #[inline]
    pub(crate) fn mark(self) -> bool {
        self.0 >> 10 & 1 == 1
    }

    pub(crate) fn with_mark(self, mark: bool) -> Self {
        Self(self.0 & !(1 << 10) | u32::from(mark) << 10)
    }

    #[inline]
    fn key_len(self) -> usize {
        (self.0 >> 11) as usize & MAX_KEY
    }

    #[inline]
    fn value_len(self) -> usize {
        (self.0 >> 20) as usize
    }

    #[inline]
    fn key_start(self) -> usize {
        self.time_start() + if self.volatile() { TIME } else { 0 }
    }

    /// Bytes of an entry all of which lies in its page, before padding.
    pub(crate) fn entry_len(form: Form, volatile: bool, key: usize, value: usize) -> usize {
        let fixed = if form == Form::Field { FIXED_OF_FIELD } else { FIXED };
        fixed + if volatile { TIME } else { 0 } + key + value
    }

    /// Bytes of the page that the entry takes.
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
        self.volatile().then(|| read_time(page, at + self.time_start()))
    }

    /// Writes another time into an entry that has one.
    #[inline]
    pub(crate) fn set_expiry(self, page: &mut [u8], at: usize, expiry: Millis) {
        write_time(page, at + self.time_start(), expiry);
    }

    /// When the entry was used; a field does not say.
    #[inline]
    pub(crate) fn usage(self, page: &[u8], at: usize) -> u16 {
        if self.is_field() { 0 } else { u16::from_le_bytes([page[at + 4], page[at + 5]]) }
    }

    #[inline]
    pub(crate) fn set_usage(self, page: &mut [u8], at: usize, usage: u16) {
        if !self.is_field() {
            page[at + 4..at + FIXED].copy_from_slice(&usage.to_le_bytes());
        }
    }

    /// The number of what lies outside.
    pub(crate) fn outside(self, page: &[u8], at: usize) -> Option<u32> {
        let value = (self.place() != Where::Here).then(|| self.value(page, at))?;
        Some(u32::from_le_bytes(value.try_into().expect("a number is four bytes")))
    }
}

/// What an entry is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draft<'a> {
    pub(crate) form: Form,
    pub(crate) place: Where,
    pub(crate) mark: bool,
    pub(crate) usage: u16,
    pub(crate) expiry: Option<Millis>,
    /// Empty when it lies outside.
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl Draft<'_> {
    pub(crate) fn header(&self, value_len: usize) -> Header {
        Header::new(self.form, self.place, self.expiry.is_some(), self.mark, self.key.len(), value_len)
    }

    /// Writes the entry with a value of `value_len` bytes, of which the first are the draft's and the
    /// others zero.
    pub(crate) fn write(&self, page: &mut [u8], at: usize, value_len: usize) {
        let header = self.header(value_len);
        let entry = &mut page[at..at + header.len()];
        header.write(entry, 0);
        header.set_usage(entry, 0, self.usage);
        if let Some(expiry) = self.expiry {
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
    bytes[2..].copy_from_slice(&page[at..at + TIME]);
    Millis(i64::from_le_bytes(bytes) >> 16)
}

#[inline]
pub(crate) fn write_time(page: &mut [u8], at: usize, time: Millis) {
    let bytes = (kept_time(time).0 << 16).to_le_bytes();
    page[at..at + TIME].copy_from_slice(&bytes[2..]);
}

/// The time as it is kept: to about the years -2490 and 6429.
pub(crate) fn kept_time(time: Millis) -> Millis {
    Millis(time.0.clamp(-TIME_LIMIT, TIME_LIMIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let mut page = vec![0xff; 600];
        for (key, value, expiry, mark) in [
            (&b"k"[..], &b"value"[..], None, false),
            (b"", b"", Some(Millis(1)), true),
            (&[7; MAX_KEY], b"x", Some(Millis(-5)), false),
            (b"key", &[9; 300], Some(Millis(TIME_LIMIT)), true),
        ] {
            let form = if mark { Form::Field } else { Form::Key(Kind::Hash) };
            let draft = Draft { form, place: Where::Here, mark, usage: 513, expiry, key, value };
            draft.write(&mut page, 10, value.len());
            let header = Header::read(&page, 10);
            assert_eq!(header, draft.header(value.len()));
            assert_eq!(header.len() % 2, 0);
            assert_eq!((header.key(&page, 10), header.value(&page, 10)), (key, value));
            assert_eq!((header.expiry(&page, 10), header.mark()), (expiry, mark));
            let (kind, usage) = if mark { (Kind::String, 0) } else { (Kind::Hash, 513) };
            assert_eq!((header.kind(), header.place(), header.state()), (kind, Where::Here, ALIVE));
            assert_eq!(header.usage(&page, 10), usage);
        }
    }

    #[test]
    fn times_that_do_not_fit_are_kept_as_the_nearest() {
        let mut page = [0; 6];
        for (time, kept) in [(i64::MAX, TIME_LIMIT), (i64::MIN, -TIME_LIMIT), (-1, -1), (0, 0)] {
            write_time(&mut page, 0, Millis(time));
            assert_eq!(read_time(&page, 0), Millis(kept));
        }
    }
}
