//! The packed binary format of a hash.
//!
//! ```text
//! 0        2
//! +-------+--------------------------------------------------------+-----+
//! | count | field length * 2 + timed | value length | time | field | ... |
//! +-------+--------------------------------------------------------+-----+
//! u16     varint                    varint         6 bytes if timed; then the value
//! ```
//!
//! A time that does not fit in six bytes (beyond the year 6429) is stored as a six-byte mark and eight bytes of
//! milliseconds. Lengths are encoded as in [`crate::varint`]. Fields are in insertion order. An edit computes the
//! changed bytes, which the table then replaces ([`crate::table`], `splice`).

use clock::Millis;
use smallvec::{Array, SmallVec};

use crate::entry::{
    TIME_LEN, WIDE_TIME_LEN, clamp_time, needs_wide_time, read_time, read_wide_time, write_time,
};
use crate::packed::COUNT_LEN;
use crate::varint;

/// A field of a packed hash, and the byte range of its record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldRecord<'a> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Offset at which the value starts. The value extends to `end`.
    pub(crate) value_start: usize,
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) expiry: Option<Millis>,
}

/// A byte buffer that supports appending.
pub(crate) trait AppendBytes {
    fn append(&mut self, bytes: &[u8]);
}

impl AppendBytes for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<A: Array<Item = u8>> AppendBytes for SmallVec<A> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Maximum length of a record that is assembled on the stack.
const MAX_STACK_RECORD_LEN: usize = 96;
/// Maximum number of bytes that precede the field name in a record.
const MAX_HEAD_LEN: usize = 2 * varint::MAX_LEN + TIME_LEN + WIDE_TIME_LEN;
/// Six-byte mark before an eight-byte time. No six-byte time has these bytes, because [`clamp_time`] is symmetric.
const WIDE_TIME_MARK: [u8; TIME_LEN] = [0, 0, 0, 0, 0, 0x80];

/// Reads the time at `at`, and advances `at` past it.
#[inline]
fn read_expiry(packed: &[u8], at: &mut usize) -> Millis {
    let time = read_time(packed, *at);
    *at += TIME_LEN;
    // Only the mark is outside the range of six-byte times.
    if clamp_time(time) == time { time } else { read_wide_expiry(packed, at) }
}

#[cold]
fn read_wide_expiry(packed: &[u8], at: &mut usize) -> Millis {
    *at += WIDE_TIME_LEN;
    read_wide_time(packed, *at - WIDE_TIME_LEN)
}

/// Writes a time at `at`, and advances `at` past it.
#[inline]
fn write_expiry(packed: &mut [u8], at: &mut usize, expiry: Millis) {
    if needs_wide_time(Some(expiry)) {
        packed[*at..*at + TIME_LEN].copy_from_slice(&WIDE_TIME_MARK);
        *at += TIME_LEN + WIDE_TIME_LEN;
        packed[*at - WIDE_TIME_LEN..*at].copy_from_slice(&expiry.0.to_le_bytes());
    } else {
        write_time(packed, *at, expiry);
        *at += TIME_LEN;
    }
}

#[inline]
pub(crate) fn read_record(packed: &[u8], start: usize) -> FieldRecord<'_> {
    let mut at = start;
    let (field_len, value_len) = (varint::read(packed, &mut at), varint::read(packed, &mut at));
    let expiry = (field_len & 1 == 1).then(|| read_expiry(packed, &mut at));
    let value_at = at + field_len / 2;
    let end = value_at + value_len;
    FieldRecord {
        start,
        end,
        value_start: value_at,
        name: &packed[at..value_at],
        value: &packed[value_at..end],
        expiry,
    }
}

/// Returns the fields of a packed hash. `packed` includes the count prefix.
#[inline]
pub(crate) fn records(packed: &[u8]) -> impl Iterator<Item = FieldRecord<'_>> + Clone {
    let mut at = COUNT_LEN;
    std::iter::from_fn(move || {
        let record = (at < packed.len()).then(|| read_record(packed, at))?;
        at = record.end;
        Some(record)
    })
}

#[inline]
pub(crate) fn find_record<'a>(packed: &'a [u8], field: &[u8]) -> Option<FieldRecord<'a>> {
    let mut at = COUNT_LEN;
    while at < packed.len() {
        let record = read_record(packed, at);
        if record.name == field {
            return Some(record);
        }
        at = record.end;
    }
    None
}

pub(crate) fn push_record(out: &mut impl AppendBytes, field: &[u8], value: &[u8], expiry: Option<Millis>) {
    let (mut head, mut len) = ([0; MAX_HEAD_LEN], 0);
    varint::write(&mut head, &mut len, field.len() * 2 + usize::from(expiry.is_some()));
    varint::write(&mut head, &mut len, value.len());
    if let Some(expiry) = expiry {
        write_expiry(&mut head, &mut len, expiry);
    }
    let (value_at, end) = (len + field.len(), len + field.len() + value.len());
    let mut record = [0; MAX_STACK_RECORD_LEN];
    if end <= MAX_STACK_RECORD_LEN {
        // Assemble the record on the stack and append it at once, because three appends would cost more than the
        // copying.
        record[..MAX_HEAD_LEN].copy_from_slice(&head);
        copy_short(&mut record[len..value_at], field);
        copy_short(&mut record[value_at..end], value);
        out.append(&record[..end]);
    } else {
        out.append(&head[..len]);
        out.append(field);
        out.append(value);
    }
}

/// Copies a short slice with fixed-size moves instead of a `memcpy` call.
#[inline]
fn copy_short(to: &mut [u8], from: &[u8]) {
    fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
            to[..N].copy_from_slice(first);
            let at = to.len() - N;
            to[at..].copy_from_slice(last);
        }
    }
    match from.len() {
        4..8 => copy_ends::<4>(to, from),
        8..16 => copy_ends::<8>(to, from),
        16..32 => copy_ends::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Returns whether the expiry of a record can be changed from `old` to `new` without moving the following bytes.
#[inline]
pub(crate) fn can_overwrite_expiry(old: Option<Millis>, new: Option<Millis>) -> bool {
    old.is_some() == new.is_some() && needs_wide_time(old) == needs_wide_time(new)
}

/// Overwrites the expiry of a record. [`can_overwrite_expiry`] must be true.
pub(crate) fn overwrite_expiry(packed: &mut [u8], record_start: usize, expiry: Millis) {
    let mut at = record_start;
    varint::read(packed, &mut at);
    varint::read(packed, &mut at);
    write_expiry(packed, &mut at, expiry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::{count, set_count};

    #[test]
    fn packed_fields_round_trip() {
        let long = vec![7; 70_000];
        let fields: &[(&[u8], &[u8], Option<Millis>)] = &[
            (b"", b"", None),
            (b"field", b"value", Some(Millis(12_345))),
            (&[1; 63], &[2; 127], None),
            (b"5", b"12345678901234567", None),
            (b"seven..", b"twelve bytes", Some(Millis(1))),
            (&[3; 64], &[4; 128], Some(Millis(-1))),
            (b"wide", b"x", Some(Millis(i64::MAX))),
            (b"early", &[5; 90], Some(Millis(i64::MIN))),
            (b"just wide", b"", Some(Millis(1 << 47))),
            (b"just not", b"", Some(Millis((1 << 47) - 1))),
            (b"nor this", b"", Some(Millis(1 - (1 << 47)))),
            (b"long", &long, None),
        ];
        let mut packed = vec![0; COUNT_LEN];
        for (field, value, expiry) in fields {
            push_record(&mut packed, field, value, *expiry);
        }
        set_count(&mut packed, fields.len());
        assert_eq!(count(&packed), fields.len());
        let read: Vec<_> = records(&packed).map(|r| (r.name, r.value, r.expiry)).collect();
        assert_eq!(read, fields);
        let start = find_record(&packed, b"field").expect("there").start;
        overwrite_expiry(&mut packed, start, Millis(99));
        assert_eq!(find_record(&packed, b"field").and_then(|record| record.expiry), Some(Millis(99)));
        let start = find_record(&packed, b"wide").expect("there").start;
        overwrite_expiry(&mut packed, start, Millis(i64::MAX - 1));
        assert_eq!(
            find_record(&packed, b"wide").and_then(|record| record.expiry),
            Some(Millis(i64::MAX - 1))
        );
        assert!(find_record(&packed, b"other").is_none());
    }
}
