//! The RDB encodings of hashes.
//!
//! A hash is written as pairs of strings (type 4), which every version reads. Hashes with expiring fields
//! have two incompatible encodings: type 24 for Redis 7.4 (a base time, the number of fields, then per field
//! its time, name and value; a time is 0 for none, else its distance from the base plus one) and type 22 for
//! Valkey 9.
//!
//! | type | encoding |
//! | ---: | --- |
//! | 4 | number of fields; name and value of each |
//! | 9 | a zipmap string (before Redis 2.6) |
//! | 13 | a ziplist string: name, value, name, value |
//! | 16 | a listpack string: name, value, name, value |
//! | 22 | (Valkey 9) number of fields; name, value and time of each, -1 for none |
//! | 24 | (Redis 7.4) as above |
//! | 25 | (Redis 7.4) base time; a listpack: name, value, time, 0 for none |

use std::io::{self, Read, Write};

use clock::Millis;
use keyspace::{Field, FieldsPart, HashRef};

use super::commands::Commands;
use super::{
    Codec, MultipartCodec, PART_BYTES, RemainingElements, ValueBuffer, duplicates, packed_encodings,
};
use crate::Dialect;
use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{RdbError, RdbErrorReason};

const TYPE_PAIRS: u8 = 4;
const TYPE_ZIPMAP: u8 = 9;
const TYPE_ZIPLIST: u8 = 13;
const TYPE_LISTPACK: u8 = 16;
const TYPE_VALKEY_EXPIRY: u8 = 22;
const TYPE_EXPIRY: u8 = 24;
const TYPE_EXPIRY_LISTPACK: u8 = 25;

/// The base time that is written if the earliest field expiry is not known in advance.
const DEFAULT_BASE_TIME: i64 = 1;
/// What Valkey writes for a field without expiry.
const NO_EXPIRY: i64 = -1;
const IMPOSSIBLE_TIME_ERROR: RdbErrorReason =
    RdbErrorReason::BadValue("a field that expires at an impossible time");
const DUPLICATE_FIELD_ERROR: RdbErrorReason = RdbErrorReason::BadValue("a hash with the same field twice");

pub(super) struct HashCodec;

impl Codec for HashCodec {
    const TYPE_CODES: &'static [u8] = &[
        TYPE_PAIRS,
        TYPE_ZIPMAP,
        TYPE_ZIPLIST,
        TYPE_LISTPACK,
        TYPE_VALKEY_EXPIRY,
        TYPE_EXPIRY,
        TYPE_EXPIRY_LISTPACK,
    ];
    type Value<'a> = HashRef<'a>;

    fn type_code(hash: &HashRef<'_>, dialect: Dialect) -> u8 {
        select_type_code(hash.next_expiry().is_some(), dialect)
    }

    fn write<W: Write>(code: u8, hash: &HashRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        let mut base = DEFAULT_BASE_TIME;
        if code == TYPE_EXPIRY {
            let mut first = None;
            hash.for_each(&mut |field| first = first.into_iter().chain(field.expiry).min());
            base = first.map_or(base, |Millis(first)| first.max(base));
            write_base(base, out)?;
        }
        out.write_len(hash.len() as u64)?;
        let mut outcome = Ok(());
        hash.for_each(&mut |field| {
            if outcome.is_ok() {
                outcome = write_field(code, base, &field, out);
            }
        });
        outcome
    }

    fn add_commands(hash: &HashRef<'_>, out: &mut Commands) {
        hash.for_each(&mut |field| out.add_element("HSET", &[field.name, field.value]));
        hash.for_each(&mut |field| add_expiry(&field, out));
    }

    fn read<R: Read>(code: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        match code {
            TYPE_PAIRS | TYPE_VALKEY_EXPIRY | TYPE_EXPIRY => {
                let base = if code == TYPE_EXPIRY { i64::from_le_bytes(source.read_array()?) } else { 0 };
                buffer.remaining_elements =
                    RemainingElements { code, base_time: base, elements: source.read_len()? };
                Self::read_next_part(source, buffer)?;
            }
            _ => read_packed(code, source, buffer)?,
        }
        let fields = buffer.value();
        if fields.is_empty() {
            return Err(source.error(RdbErrorReason::Empty("a hash without fields")));
        }
        // For a value in several parts, the caller detects duplicate names across the parts.
        let names = fields.fields().map(|field| field.name);
        if !buffer.is_part() && duplicates::has_duplicate(names, fields.len()) {
            return Err(source.error(DUPLICATE_FIELD_ERROR));
        }
        Ok(())
    }
}

impl MultipartCodec for HashCodec {
    type Part<'a> = FieldsPart<'a>;

    fn part_code(part: &FieldsPart<'_>, dialect: Dialect) -> u8 {
        select_type_code(part.has_expiring_fields, dialect)
    }

    fn write_head<W: Write>(
        code: u8,
        total: usize,
        _: &FieldsPart<'_>,
        out: &mut Encoder<W>,
    ) -> io::Result<()> {
        if code == TYPE_EXPIRY {
            write_base(DEFAULT_BASE_TIME, out)?;
        }
        out.write_len(total as u64)
    }

    fn write_part<W: Write>(code: u8, part: &FieldsPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
        let mut outcome = Ok(());
        part.for_each(&mut |field| {
            if outcome.is_ok() {
                outcome = write_field(code, DEFAULT_BASE_TIME, &field, out);
            }
        });
        outcome
    }

    fn add_part_commands(part: &FieldsPart<'_>, out: &mut Commands) {
        part.for_each(&mut |field| out.add_element("HSET", &[field.name, field.value]));
        if part.has_expiring_fields {
            part.for_each(&mut |field| add_expiry(&field, out));
        }
    }

    /// Reads fields until a part is full or the value ends.
    fn read_next_part<R: Read>(source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
        let ValueBuffer {
            packed,
            first_buffer: name,
            second_buffer: value,
            remaining_elements: remaining,
            ..
        } = buffer;
        while remaining.elements > 0 && packed.packed().bytes().len() < PART_BYTES {
            remaining.elements -= 1;
            let mut expiry = None;
            if remaining.code == TYPE_EXPIRY {
                let since = source.read_len()?;
                expiry = read_time(remaining.base_time, since).map_err(|reason| source.error(reason))?;
            }
            source.read_string(name)?;
            source.read_string(value)?;
            if remaining.code == TYPE_VALKEY_EXPIRY {
                let at = i64::from_le_bytes(source.read_array()?);
                if at < NO_EXPIRY {
                    return Err(source.error(IMPOSSIBLE_TIME_ERROR));
                }
                expiry = (at != NO_EXPIRY).then_some(Millis(at));
            }
            packed.push_field(name, value, expiry);
        }
        Ok(())
    }
}

/// Adds the command that sets a field's expiry. It must follow the command that sets the field, because an expiry in
/// the past deletes the field.
fn add_expiry(field: &Field<'_>, out: &mut Commands) {
    out.flush_elements();
    if let Some(Millis(at)) = field.expiry {
        let mut digits = itoa::Buffer::new();
        out.add_key_command("HPEXPIREAT", &[digits.format(at).as_bytes(), b"FIELDS", b"1", field.name]);
    }
}

fn select_type_code(has_field_expiry: bool, dialect: Dialect) -> u8 {
    match (has_field_expiry, dialect) {
        (false, _) => TYPE_PAIRS,
        (true, Dialect::Redis | Dialect::Redoubt) => TYPE_EXPIRY,
        (true, Dialect::Valkey) => TYPE_VALKEY_EXPIRY,
    }
}

fn write_base<W: Write>(base: i64, out: &mut Encoder<W>) -> io::Result<()> {
    out.write_bytes(&base.to_le_bytes())
}

fn write_field<W: Write>(code: u8, base: i64, field: &Field<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    if code == TYPE_EXPIRY {
        // A time before the base cannot be encoded, so it is written as the base; both are in the past.
        out.write_len(field.expiry.map_or(0, |Millis(expiry)| (expiry.max(base) - base + 1) as u64))?;
    }
    out.write_string(field.name)?;
    out.write_string(field.value)?;
    if code == TYPE_VALKEY_EXPIRY {
        out.write_bytes(&field.expiry.map_or(NO_EXPIRY, |Millis(expiry)| expiry).to_le_bytes())?;
    }
    Ok(())
}

/// Decodes a time that is stored as its distance from `base` plus one.
fn read_time(base: i64, distance_plus_one: u64) -> Result<Option<Millis>, RdbErrorReason> {
    let Some(distance) = distance_plus_one.checked_sub(1) else { return Ok(None) };
    match base.checked_add_unsigned(distance) {
        Some(at) if base >= 0 => Ok(Some(Millis(at))),
        _ => Err(IMPOSSIBLE_TIME_ERROR),
    }
}

fn read_packed<R: Read>(
    code: u8,
    source: &mut RdbReader<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    if code == TYPE_EXPIRY_LISTPACK {
        // Skip the minimum time, since each field has its own time.
        let _: [u8; 8] = source.read_array()?;
    }
    let ValueBuffer { packed, first_buffer: blob, depth, .. } = buffer;
    source.read_string(blob)?;
    let (items, broken) = match code {
        TYPE_ZIPMAP => (packed_encodings::decode_zipmap(blob, *depth), "Zipmap integrity check failed."),
        TYPE_ZIPLIST => {
            (packed_encodings::decode_ziplist(blob, *depth), "Hash ziplist integrity check failed.")
        }
        _ => (packed_encodings::decode_listpack(blob, *depth), "Hash listpack integrity check failed."),
    };
    let outcome = items.ok_or(RdbErrorReason::BadValue(broken)).and_then(|items| {
        let width = if code == TYPE_EXPIRY_LISTPACK { 3 } else { 2 };
        if items.len() % width != 0 {
            return Err(RdbErrorReason::BadValue("a packed hash with a field and no value"));
        }
        items.chunks(width).try_for_each(|field| {
            let expiry = match field.get(2) {
                None => None,
                Some(time) => {
                    let time = time
                        .as_integer()
                        .ok_or(RdbErrorReason::BadValue("a field whose time is no number"))?;
                    (time > 0).then_some(Millis(time))
                }
            };
            let (mut name, mut value) = (Default::default(), Default::default());
            packed.push_field(field[0].as_bytes(&mut name), field[1].as_bytes(&mut value), expiry);
            Ok(())
        })
    });
    outcome.map_err(|reason| source.error(reason))
}

#[cfg(test)]
mod tests;
