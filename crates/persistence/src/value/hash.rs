//! Hashes.
//!
//! Written as pairs of strings behind their number (type 4), which every version reads. One with fields
//! that expire has a form that Redis 7.4 reads and Valkey does not (type 24): a base time, the number of
//! fields, and each field as its time (0 for none, else from the base on, plus one), name, value; and one
//! that is the other way round (type 22).
//!
//! | type | form |
//! | ---: | --- |
//! | 4 | number of fields; name and value of each |
//! | 9 | one string that is a zipmap (before Redis 2.6) |
//! | 13 | one string that is a ziplist: name, value, name, value |
//! | 16 | one string that is a listpack: name, value, name, value |
//! | 22 | (Valkey 9) number of fields; name, value and time of each, -1 for none |
//! | 24 | (Redis 7.4) as above |
//! | 25 | (Redis 7.4) base time; a listpack: name, value, time, 0 for none |

use std::io::{self, Read, Write};

use clock::Millis;
use keyspace::{Field, HashBuilder, HashLimits, HashPart, HashRef, PackedHash};

use super::flat;
use crate::Dialect;
use crate::decode::Source;
use crate::encode::Encoder;
use crate::error::{RdbError, Reason};

pub(super) const PAIRS: u8 = 4;
pub(super) const ZIPMAP: u8 = 9;
pub(super) const ZIPLIST: u8 = 13;
pub(super) const LISTPACK: u8 = 16;
pub(super) const VALKEY_TIMED: u8 = 22;
pub(super) const TIMED: u8 = 24;
pub(super) const TIMED_LISTPACK: u8 = 25;

/// The base of times where not all of them are known beforehand.
const FIRST_MILLISECOND: i64 = 1;
/// A hash with more bytes than this is read in parts, so that it is not held twice as it is stored.
const PART: usize = 128 << 10;
/// Among so many names, one is looked for by looking at the tags of all.
const FEW: usize = 32;
const TWICE: Reason = Reason::BadValue("a hash with the same field twice");

pub(super) fn type_code(hash: &HashRef<'_>, dialect: Dialect) -> u8 {
    code(hash.next_due().is_some(), dialect)
}

/// A large hash comes in parts, so this is decided by what it was at the cut.
pub(super) fn type_code_of_part(part: &HashPart<'_>, dialect: Dialect) -> u8 {
    code(part.any_expires, dialect)
}

fn code(is_timed: bool, dialect: Dialect) -> u8 {
    match (is_timed, dialect) {
        (false, _) => PAIRS,
        (true, Dialect::Redis) => TIMED,
        (true, Dialect::Valkey) => VALKEY_TIMED,
    }
}

pub(super) fn write<W: Write>(code: u8, hash: &HashRef<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    let mut base = FIRST_MILLISECOND;
    if code == TIMED {
        let mut first = None;
        hash.for_each(&mut |field| first = first.into_iter().chain(field.expiry).min());
        base = first.map_or(base, |Millis(first)| first.max(base));
        write_base(base, out)?;
    }
    out.len(hash.len() as u64)?;
    let mut outcome = Ok(());
    hash.for_each(&mut |field| {
        if outcome.is_ok() {
            outcome = write_field(code, base, &field, out);
        }
    });
    outcome
}

/// Writes what comes before the fields of a hash in parts.
pub(super) fn write_head<W: Write>(code: u8, total: usize, out: &mut Encoder<W>) -> io::Result<()> {
    if code == TIMED {
        write_base(FIRST_MILLISECOND, out)?;
    }
    out.len(total as u64)
}

/// Writes the fields of one part.
pub(super) fn write_part<W: Write>(code: u8, part: &HashPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    let mut outcome = Ok(());
    part.for_each(&mut |field| {
        if outcome.is_ok() {
            outcome = write_field(code, FIRST_MILLISECOND, &field, out);
        }
    });
    outcome
}

fn write_base<W: Write>(base: i64, out: &mut Encoder<W>) -> io::Result<()> {
    out.bytes(&base.to_le_bytes())
}

fn write_field<W: Write>(code: u8, base: i64, field: &Field<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    if code == TIMED {
        // What expired before the base expires with it; both have passed.
        out.len(field.expiry.map_or(0, |Millis(expiry)| (expiry.max(base) - base + 1) as u64))?;
    }
    out.string(field.name)?;
    out.string(field.value)?;
    if code == VALKEY_TIMED {
        out.bytes(&field.expiry.map_or(-1, |Millis(expiry)| expiry).to_le_bytes())?;
    }
    Ok(())
}

/// Reads a hash of any form into `buffer`: all of it, or the first part of a large one.
pub(super) fn read<R: Read>(
    code: u8,
    source: &mut Source<R>,
    limits: HashLimits,
    buffer: &mut Buffer,
) -> Result<(), RdbError> {
    buffer.fields.clear();
    buffer.rest = Rest::default();
    match code {
        PAIRS | VALKEY_TIMED | TIMED => {
            let base = if code == TIMED { i64::from_le_bytes(source.array()?) } else { 0 };
            let fields = source.len()?;
            buffer.rest = Rest { code, base, fields };
            read_fields(source, buffer)?;
        }
        _ => read_flat(code, source, buffer)?,
    }
    if buffer.fields.packed().is_empty() {
        return Err(source.error(Reason::BadValue("a hash without fields")));
    }
    // Whoever puts parts together looks for names that come twice.
    if !buffer.is_part() && names_one_twice(buffer.fields.packed()) {
        return Err(source.error(TWICE));
    }
    buffer.fields.name_by(limits);
    Ok(())
}

/// Reads the next part of a large hash in place of the one before.
pub(super) fn read_more<R: Read>(source: &mut Source<R>, buffer: &mut Buffer) -> Result<(), RdbError> {
    buffer.fields.clear();
    read_fields(source, buffer)
}

/// A hash on its way in, or a part of it.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub(super) fields: HashBuilder,
    name: Vec<u8>,
    value: Vec<u8>,
    rest: Rest,
}

/// What of a hash is still to be read.
#[derive(Debug, Default)]
struct Rest {
    code: u8,
    base: i64,
    fields: u64,
}

impl Buffer {
    /// Whether further parts follow.
    pub(super) fn is_part(&self) -> bool {
        self.rest.fields > 0
    }
}

/// Whether two of the fields have the same name.
fn names_one_twice(hash: PackedHash<'_>) -> bool {
    if hash.len() > FEW {
        let mut names: Vec<_> = hash.names().collect();
        names.sort_unstable();
        return names.windows(2).any(|pair| pair[0] == pair[1]);
    }
    let mut tags = [0; FEW];
    for (count, name) in hash.names().enumerate() {
        let tag = tag(name);
        if tags[..count].contains(&tag) && hash.names().take(count).any(|other| other == name) {
            return true;
        }
        tags[count] = tag;
    }
    false
}

/// The begin and the end of a name, and its length: what mostly differs.
fn tag(name: &[u8]) -> u64 {
    let (begin, end) = match (name.first_chunk(), name.last_chunk()) {
        (Some(begin), Some(end)) => (u32::from_le_bytes(*begin), u32::from_le_bytes(*end)),
        _ => (name.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)), 0),
    };
    (u64::from(begin) << 32 | u64::from(end)) ^ (name.len() as u64) << 24
}

/// Reads fields until there are enough for a part.
fn read_fields<R: Read>(source: &mut Source<R>, buffer: &mut Buffer) -> Result<(), RdbError> {
    let Rest { code, base, .. } = buffer.rest;
    while buffer.rest.fields > 0 && buffer.fields.packed().bytes().len() < PART {
        buffer.rest.fields -= 1;
        let mut expiry = None;
        if code == TIMED {
            let since = source.len()?;
            expiry = time(base, since).map_err(|reason| source.error(reason))?;
        }
        source.string(&mut buffer.name)?;
        source.string(&mut buffer.value)?;
        if code == VALKEY_TIMED {
            let at = i64::from_le_bytes(source.array()?);
            expiry = (at >= 0).then_some(Millis(at));
        }
        buffer.fields.push(&buffer.name, &buffer.value, expiry);
    }
    Ok(())
}

/// A time that is written as its distance from `base`, plus one.
fn time(base: i64, since: u64) -> Result<Option<Millis>, Reason> {
    let Some(distance) = since.checked_sub(1) else { return Ok(None) };
    match base.checked_add_unsigned(distance) {
        Some(at) if base >= 0 => Ok(Some(Millis(at))),
        _ => Err(Reason::BadValue("a field that expires at an impossible time")),
    }
}

fn read_flat<R: Read>(code: u8, source: &mut Source<R>, buffer: &mut Buffer) -> Result<(), RdbError> {
    if code == TIMED_LISTPACK {
        // The earliest time; the fields say theirs themselves.
        let _: [u8; 8] = source.array()?;
    }
    let Buffer { fields, value: blob, .. } = buffer;
    source.string(blob)?;
    let items = match code {
        ZIPMAP => flat::zipmap(blob),
        ZIPLIST => flat::ziplist(blob),
        _ => flat::listpack(blob),
    };
    let outcome = items.ok_or(Reason::BadValue("a packed hash that is broken")).and_then(|items| {
        let width = if code == TIMED_LISTPACK { 3 } else { 2 };
        if items.len() % width != 0 {
            return Err(Reason::BadValue("a packed hash with a field and no value"));
        }
        items.chunks(width).try_for_each(|field| {
            let expiry = match field.get(2) {
                None => None,
                Some(time) => {
                    let time =
                        time.as_integer().ok_or(Reason::BadValue("a field whose time is no number"))?;
                    (time > 0).then_some(Millis(time))
                }
            };
            let (mut name, mut value) = (Default::default(), Default::default());
            fields.push(field[0].as_bytes(&mut name), field[1].as_bytes(&mut value), expiry);
            Ok(())
        })
    });
    outcome.map_err(|reason| source.error(reason))
}

#[cfg(test)]
mod tests;
