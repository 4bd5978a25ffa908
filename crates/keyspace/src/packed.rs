//! A hash as one run of bytes.
//!
//! ```text
//!  0        2
//! +-------+--------------------------------------------------------+-----+
//! | count | field length * 2 + timed | value length | time | field | ... |
//! +-------+--------------------------------------------------------+-----+
//!  u16     varint                    varint         6 bytes if timed; then the value
//! ```
//!
//! A varint has seven bits a byte, the lowest first, and the highest bit says that more follow. Fields stand
//! in the order in which they came. Who edits a hash computes the bytes that change and lets the table
//! exchange them ([`crate::table`], `splice`).

use clock::Millis;
use smallvec::{Array, SmallVec};

use crate::entry::{TIME, read_time, write_time};

pub(crate) const COUNT: usize = 2;
/// What a packed hash has at most, for each of its fields is looked at to find one.
pub(crate) const MOST_BYTES: usize = 8 << 10;
pub(crate) const MOST_FIELDS: usize = 512;

/// One field of a packed hash and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Where the value begins; it goes to `end`.
    pub(crate) value_at: usize,
    pub(crate) field: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) expiry: Option<Millis>,
}

#[inline]
fn varint(bytes: &[u8], at: &mut usize) -> usize {
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

/// Bytes that grow at their end.
pub(crate) trait Bytes {
    fn append(&mut self, bytes: &[u8]);
}

impl Bytes for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<A: Array<Item = u8>> Bytes for SmallVec<A> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Up to here a record is short.
const SHORT: usize = 96;
/// What a record has at most before its field.
const MOST_HEAD: usize = 2 * usize::BITS.div_ceil(7) as usize + TIME;

fn put_varint(out: &mut [u8; MOST_HEAD], at: &mut usize, mut value: usize) {
    while value >= 0x80 {
        out[*at] = value as u8 | 0x80;
        *at += 1;
        value >>= 7;
    }
    out[*at] = value as u8;
    *at += 1;
}

pub(crate) fn count(packed: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([packed[0], packed[1]]))
}

pub(crate) fn set_count(packed: &mut [u8], count: usize) {
    packed[..COUNT].copy_from_slice(&(count as u16).to_le_bytes());
}

#[inline]
pub(crate) fn record(packed: &[u8], start: usize) -> Record<'_> {
    let mut at = start;
    let (field_len, value_len) = (varint(packed, &mut at), varint(packed, &mut at));
    let expiry = (field_len & 1 == 1).then(|| read_time(packed, at));
    at += if expiry.is_some() { TIME } else { 0 };
    let value_at = at + field_len / 2;
    let end = value_at + value_len;
    Record { start, end, value_at, field: &packed[at..value_at], value: &packed[value_at..end], expiry }
}

/// The fields of a packed hash, its count in front.
#[inline]
pub(crate) fn records(packed: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut at = COUNT;
    std::iter::from_fn(move || {
        let record = (at < packed.len()).then(|| record(packed, at))?;
        at = record.end;
        Some(record)
    })
}

#[inline]
pub(crate) fn find<'a>(packed: &'a [u8], field: &[u8]) -> Option<Record<'a>> {
    records(packed).find(|record| record.field == field)
}

pub(crate) fn push(out: &mut impl Bytes, field: &[u8], value: &[u8], expiry: Option<Millis>) {
    let (mut head, mut len) = ([0; MOST_HEAD], 0);
    put_varint(&mut head, &mut len, field.len() * 2 + usize::from(expiry.is_some()));
    put_varint(&mut head, &mut len, value.len());
    if let Some(expiry) = expiry {
        write_time(&mut head, len, expiry);
        len += TIME;
    }
    let (value_at, end) = (len + field.len(), len + field.len() + value.len());
    let mut record = [0; SHORT];
    if end <= SHORT {
        // Put together here it is copied once: three calls would cost more than what they copy.
        record[..MOST_HEAD].copy_from_slice(&head);
        copy(&mut record[len..value_at], field);
        copy(&mut record[value_at..end], value);
        out.append(&record[..end]);
    } else {
        out.append(&head[..len]);
        out.append(field);
        out.append(value);
    }
}

/// Copies as many bytes as there are, few of them without a call.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
            to[..N].copy_from_slice(first);
            let at = to.len() - N;
            to[at..].copy_from_slice(last);
        }
    }
    match from.len() {
        4..8 => ends::<4>(to, from),
        8..16 => ends::<8>(to, from),
        16..32 => ends::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Writes another time into a record that has one.
pub(crate) fn set_time(packed: &mut [u8], record_start: usize, expiry: Millis) {
    let mut at = record_start;
    varint(packed, &mut at);
    varint(packed, &mut at);
    write_time(packed, at, expiry);
}

/// A hash on its way into a table: from a dump, a copy.
#[derive(Debug, Clone, Default)]
pub struct HashBuilder {
    /// Nothing before the first field comes.
    packed: Vec<u8>,
    about: AboutHash,
}

/// What belongs to the bytes of a [`PackedHash`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AboutHash {
    count: u32,
    /// Of the longest name or value.
    longest: u32,
    /// Whether a field expires.
    timed: bool,
    named_table: bool,
}

/// A hash, or a part of one, that is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct PackedHash<'a> {
    /// As above, but what stands as count is only true of a hash that may stay packed.
    packed: &'a [u8],
    about: AboutHash,
}

/// A hash without fields.
impl Default for PackedHash<'_> {
    fn default() -> Self {
        Self { packed: &[0; COUNT], about: AboutHash::default() }
    }
}

impl HashBuilder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the fields and keeps the memory.
    pub fn clear(&mut self) {
        self.packed.clear();
        self.about = AboutHash::default();
    }

    /// Adds a field that is not there yet.
    pub fn push(&mut self, field: &[u8], value: &[u8], expiry: Option<Millis>) {
        if self.packed.is_empty() {
            self.packed.extend_from_slice(&[0; COUNT]);
        }
        push(&mut self.packed, field, value, expiry);
        let about = &mut self.about;
        about.count += 1;
        about.longest = about.longest.max(field.len().max(value.len()) as u32);
        about.timed |= expiry.is_some();
        set_count(&mut self.packed, about.count as usize);
    }

    /// Decides how OBJECT ENCODING will call it.
    pub fn name_by(&mut self, limits: HashLimits) {
        self.about.named_table |= self.packed().passes(limits);
    }

    /// Makes OBJECT ENCODING call it `hashtable`.
    pub fn name_table(&mut self) {
        self.about.named_table = true;
    }

    /// What has been built.
    #[must_use]
    pub fn packed(&self) -> PackedHash<'_> {
        let about = self.about;
        if self.packed.is_empty() {
            return PackedHash { about, ..PackedHash::default() };
        }
        PackedHash { packed: &self.packed, about }
    }
}

impl<'a> PackedHash<'a> {
    /// Puts one together again from what [`bytes`](Self::bytes) and [`about`](Self::about) gave.
    #[must_use]
    pub fn of(packed: &'a [u8], about: AboutHash) -> Self {
        Self { packed, about }
    }

    /// How many fields there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.about.count as usize
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.about.count == 0
    }

    /// The names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        self.fields().map(|record| record.field)
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = Record<'a>> + use<'a> {
        records(self.packed)
    }

    /// The fields as they are stored.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.packed
    }

    #[must_use]
    pub fn about(&self) -> AboutHash {
        self.about
    }

    /// Whether one of the fields expires.
    #[must_use]
    pub fn any_expires(&self) -> bool {
        self.about.timed
    }

    pub(crate) fn named_table(&self) -> bool {
        self.about.named_table
    }

    pub(crate) fn passes(&self, limits: HashLimits) -> bool {
        self.len() > limits.fields || self.about.longest as usize > limits.value
    }
}

/// Up to where OBJECT ENCODING says `listpack`: `hash-max-listpack-entries` and `hash-max-listpack-value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashLimits {
    pub fields: usize,
    pub value: usize,
}

impl Default for HashLimits {
    fn default() -> Self {
        Self { fields: 512, value: 64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_as_they_were_pushed() {
        let long = vec![7; 70_000];
        let fields: &[(&[u8], &[u8], Option<Millis>)] = &[
            (b"", b"", None),
            (b"field", b"value", Some(Millis(12_345))),
            (&[1; 63], &[2; 127], None),
            (b"5", b"12345678901234567", None),
            (b"seven..", b"twelve bytes", Some(Millis(1))),
            (&[3; 64], &[4; 128], Some(Millis(-1))),
            (b"long", &long, None),
        ];
        let mut packed = vec![0; COUNT];
        for (field, value, expiry) in fields {
            push(&mut packed, field, value, *expiry);
        }
        set_count(&mut packed, fields.len());
        assert_eq!(count(&packed), fields.len());
        let read: Vec<_> = records(&packed).map(|r| (r.field, r.value, r.expiry)).collect();
        assert_eq!(read, fields);
        let start = find(&packed, b"field").expect("there").start;
        set_time(&mut packed, start, Millis(99));
        assert_eq!(find(&packed, b"field").and_then(|record| record.expiry), Some(Millis(99)));
        assert!(find(&packed, b"other").is_none());
    }
}
