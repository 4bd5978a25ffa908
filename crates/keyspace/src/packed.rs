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

fn push_varint(out: &mut impl Extend<u8>, mut value: usize) {
    while value >= 0x80 {
        out.extend([value as u8 | 0x80]);
        value >>= 7;
    }
    out.extend([value as u8]);
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
    records_from(packed, COUNT)
}

#[inline]
pub(crate) fn records_from(packed: &[u8], start: usize) -> impl Iterator<Item = Record<'_>> {
    let mut at = start;
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

pub(crate) fn push(out: &mut impl Extend<u8>, field: &[u8], value: &[u8], expiry: Option<Millis>) {
    push_varint(out, field.len() * 2 + usize::from(expiry.is_some()));
    push_varint(out, value.len());
    if let Some(expiry) = expiry {
        let mut time = [0; TIME];
        write_time(&mut time, 0, expiry);
        out.extend(time);
    }
    out.extend(field.iter().copied());
    out.extend(value.iter().copied());
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
    /// Records without a count in front.
    pub(crate) records: Vec<u8>,
    pub(crate) count: usize,
    longest: usize,
    pub(crate) named_table: bool,
}

impl HashBuilder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the fields and keeps the memory.
    pub fn clear(&mut self) {
        self.records.clear();
        (self.count, self.longest, self.named_table) = (0, 0, false);
    }

    /// Adds a field that is not there yet.
    pub fn push(&mut self, field: &[u8], value: &[u8], expiry: Option<Millis>) {
        push(&mut self.records, field, value, expiry);
        self.count += 1;
        self.longest = self.longest.max(field.len()).max(value.len());
    }

    /// How many fields were added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The fields that were added.
    pub fn fields(&self) -> impl Iterator<Item = &[u8]> {
        records_from(&self.records, 0).map(|record| record.field)
    }

    /// How many bytes they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.records.len()
    }

    /// Decides how OBJECT ENCODING will call it.
    pub fn name_by(&mut self, limits: HashLimits) {
        self.named_table |= self.passes(limits);
    }

    pub(crate) fn passes(&self, limits: HashLimits) -> bool {
        self.count > limits.fields || self.longest > limits.value
    }

    /// Makes OBJECT ENCODING call it `hashtable`.
    pub fn name_table(&mut self) {
        self.named_table = true;
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
            (&[3; 64], &[4; 128], Some(Millis(-1))),
            (b"long", &long, None),
        ];
        let mut packed = vec![0; COUNT];
        for (field, value, expiry) in fields {
            push(&mut packed, field, value, *expiry);
        }
        set_count(&mut packed, fields.len());
        assert_eq!(count(&packed), 5);
        let read: Vec<_> = records(&packed).map(|r| (r.field, r.value, r.expiry)).collect();
        assert_eq!(read, fields);
        let start = find(&packed, b"field").expect("there").start;
        set_time(&mut packed, start, Millis(99));
        assert_eq!(find(&packed, b"field").and_then(|record| record.expiry), Some(Millis(99)));
        assert!(find(&packed, b"other").is_none());
    }
}
