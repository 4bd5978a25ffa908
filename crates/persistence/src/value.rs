//! Value types: their type codes and encodings in an RDB.
//!
//! One file per value type implements all its encodings, old and new: a [`Codec`], and a [`MultipartCodec`] if values
//! can be large. It also defines the commands that recreate a value in an AOF base. Differences between types are
//! confined to this module.

mod commands;
mod duplicates;
mod hash;
mod list;
mod packed_encodings;
mod set;
mod sorted_set;
mod stream;
mod string;

use std::io::{self, Read, Write};

pub(crate) use commands::Commands;
use hash::HashCodec;
use keyspace::{
    EncodingLimits, Kind, PackedBuilder, PackedValue, PartElements, SnapshotValue, Value, ValuePart,
};
use list::ListCodec;
use set::SetCodec;
use sorted_set::SortedSetCodec;
use stream::StreamCodec;
use string::StringCodec;

use crate::decode::RdbReader;
use crate::encode::Encoder;
use crate::error::{ModuleType, RdbError, RdbErrorReason};
use crate::{Dialect, ValidationDepth};

/// Type codes that are known but rejected, with their names.
const UNSUPPORTED_TYPES: &[(u8, &str)] = &[(23, "hash with expiring fields")];
/// Type tags of the values in a key's module metadata; `META_TAG_END` ends the list.
const META_TAG_END: u64 = 0;
const META_TAG_SIGNED: u64 = 1;
const META_TAG_UNSIGNED: u64 = 2;
const META_TAG_FLOAT: u64 = 3;
const META_TAG_DOUBLE: u64 = 4;
const META_TAG_STRING: u64 = 5;
/// Size in bytes above which a value is read in parts, so that it is never in memory twice, decoded and stored.
const PART_BYTES: usize = 128 << 10;
/// Type codes of module values.
const MODULE_TYPES: [u8; 2] = [6, NAMED_MODULE_TYPE];
/// Type code of a module value that starts with a number identifying the module type.
const NAMED_MODULE_TYPE: u8 = 7;

/// The RDB encodings of one value type.
trait Codec {
    /// All type codes that this codec reads.
    const TYPE_CODES: &'static [u8];
    /// The form in which the value is passed to the writer.
    type Value<'a>;

    /// Returns the type code under which the value is written.
    fn type_code(value: &Self::Value<'_>, dialect: Dialect) -> u8;

    /// Writes the value. The caller has already written the type code and the key.
    fn write<W: Write>(code: u8, value: &Self::Value<'_>, out: &mut Encoder<W>) -> io::Result<()>;

    /// Adds the commands that recreate the value.
    fn add_commands(value: &Self::Value<'_>, out: &mut Commands);

    /// Reads the value that follows the key: all of it, or for a [`MultipartCodec`] maybe only the first part.
    fn read<R: Read>(code: u8, source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError>;
}

/// A codec of values that can be too large to be in memory twice, decoded and stored.
trait MultipartCodec: Codec {
    /// The form in which a part is passed to the writer.
    type Part<'a>;

    /// Returns the type code of a value that is written in parts. Every part of a value gives the same code.
    fn part_code(part: &Self::Part<'_>, dialect: Dialect) -> u8;

    /// Writes the head of a value with `total` elements, such as that number, before its first part.
    fn write_head<W: Write>(
        code: u8,
        total: usize,
        first: &Self::Part<'_>,
        out: &mut Encoder<W>,
    ) -> io::Result<()>;

    fn write_part<W: Write>(code: u8, part: &Self::Part<'_>, out: &mut Encoder<W>) -> io::Result<()>;

    /// Adds the commands that recreate a part.
    fn add_part_commands(part: &Self::Part<'_>, out: &mut Commands);

    /// Reads the next part, replacing the previous one.
    fn read_next_part<R: Read>(source: &mut RdbReader<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError>;
}

/// Stores a decoded value. Its memory is reused for the next value.
#[derive(Debug, Default)]
pub struct ValueBuffer {
    packed: PackedBuilder,
    /// Buffers for the two strings of an element, such as name and value.
    first_buffer: Vec<u8>,
    second_buffer: Vec<u8>,
    remaining_elements: RemainingElements,
    stream_progress: stream::StreamProgress,
    limits: EncodingLimits,
    depth: ValidationDepth,
}

/// What is still to be read of a large value.
#[derive(Debug, Default)]
struct RemainingElements {
    code: u8,
    /// Base in milliseconds that relative times of elements are added to.
    base_time: i64,
    elements: u64,
}

impl ValueBuffer {
    /// Creates an empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the thresholds for the OBJECT ENCODING of collections.
    pub fn set_limits(&mut self, limits: EncodingLimits) {
        self.limits = limits;
    }

    /// Sets how thoroughly packed encodings are validated.
    pub fn set_depth(&mut self, depth: ValidationDepth) {
        self.depth = depth;
    }

    /// Returns whether the last read gave only a part of the value, and more parts follow.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.remaining_elements.elements > 0
    }

    /// Returns the value, or the part, that was read last.
    #[must_use]
    pub fn value(&self) -> PackedValue<'_> {
        self.packed.packed()
    }
}

/// Returns the type codes that are read as this kind.
fn type_codes(kind: Kind) -> &'static [u8] {
    match kind {
        Kind::String => StringCodec::TYPE_CODES,
        Kind::List => ListCodec::TYPE_CODES,
        Kind::Set => SetCodec::TYPE_CODES,
        Kind::SortedSet => SortedSetCodec::TYPE_CODES,
        Kind::Hash => HashCodec::TYPE_CODES,
        Kind::Stream => StreamCodec::TYPE_CODES,
    }
}

/// Returns the type code that [`write()`] uses for `value`.
pub(crate) fn type_code(value: &Value<'_>, dialect: Dialect) -> u8 {
    match value {
        Value::String(string) => StringCodec::type_code(string, dialect),
        Value::List(list) => ListCodec::type_code(list, dialect),
        Value::Set(set) => SetCodec::type_code(set, dialect),
        Value::SortedSet(set) => SortedSetCodec::type_code(set, dialect),
        Value::Hash(hash) => HashCodec::type_code(hash, dialect),
        Value::Stream(stream) => StreamCodec::type_code(stream, dialect),
    }
}

/// Writes a value. The caller has already written the key.
pub(crate) fn write<W: Write>(code: u8, value: &Value<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    match value {
        Value::String(string) => StringCodec::write(code, string, out),
        Value::List(list) => ListCodec::write(code, list, out),
        Value::Set(set) => SetCodec::write(code, set, out),
        Value::SortedSet(set) => SortedSetCodec::write(code, set, out),
        Value::Hash(hash) => HashCodec::write(code, hash, out),
        Value::Stream(stream) => StreamCodec::write(code, stream, out),
    }
}

pub(crate) fn add_commands(value: &Value<'_>, out: &mut Commands) {
    match value {
        Value::String(string) => StringCodec::add_commands(string, out),
        Value::List(list) => ListCodec::add_commands(list, out),
        Value::Set(set) => SetCodec::add_commands(set, out),
        Value::SortedSet(set) => SortedSetCodec::add_commands(set, out),
        Value::Hash(hash) => HashCodec::add_commands(hash, out),
        Value::Stream(stream) => StreamCodec::add_commands(stream, out),
    }
}

pub(crate) fn add_part_commands(part: &ValuePart<'_>, out: &mut Commands) {
    match &part.elements {
        PartElements::List(list) => ListCodec::add_part_commands(list, out),
        PartElements::Set(members) => SetCodec::add_part_commands(members, out),
        PartElements::SortedSet(members) => SortedSetCodec::add_part_commands(members, out),
        PartElements::Hash(fields) => HashCodec::add_part_commands(fields, out),
        PartElements::Stream(pieces) => StreamCodec::add_part_commands(pieces, out),
    }
}

/// Returns the type code of a value in a snapshot, which may be complete or in parts.
pub(crate) fn snapshot_type_code(value: &SnapshotValue<'_>, dialect: Dialect) -> u8 {
    match value {
        SnapshotValue::Whole(value) => type_code(value, dialect),
        SnapshotValue::Part(part) => match &part.elements {
            PartElements::List(part) => ListCodec::part_code(part, dialect),
            PartElements::Set(members) => SetCodec::part_code(members, dialect),
            PartElements::SortedSet(members) => SortedSetCodec::part_code(members, dialect),
            PartElements::Hash(fields) => HashCodec::part_code(fields, dialect),
            PartElements::Stream(pieces) => StreamCodec::part_code(pieces, dialect),
        },
    }
}

/// Writes one part of a value; the first part is preceded by the value's head.
pub(crate) fn write_part<W: Write>(code: u8, part: &ValuePart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    fn write<C: MultipartCodec, W: Write>(
        code: u8,
        part: &ValuePart<'_>,
        elements: &C::Part<'_>,
        out: &mut Encoder<W>,
    ) -> io::Result<()> {
        if part.is_first {
            C::write_head(code, part.total_elements, elements, out)?;
        }
        C::write_part(code, elements, out)
    }
    match &part.elements {
        PartElements::List(list) => write::<ListCodec, W>(code, part, list, out),
        PartElements::Set(members) => write::<SetCodec, W>(code, part, members, out),
        PartElements::SortedSet(members) => write::<SortedSetCodec, W>(code, part, members, out),
        PartElements::Hash(fields) => write::<HashCodec, W>(code, part, fields, out),
        PartElements::Stream(pieces) => write::<StreamCodec, W>(code, part, pieces, out),
    }
}

pub(crate) fn kind_of_type(code: u8) -> Result<Kind, RdbErrorReason> {
    if let Some(kind) = Kind::ALL.iter().copied().find(|kind| type_codes(*kind).contains(&code)) {
        return Ok(kind);
    }
    if MODULE_TYPES.contains(&code) {
        return Err(RdbErrorReason::ModuleData);
    }
    match UNSUPPORTED_TYPES.iter().find(|(unsupported, _)| *unsupported == code) {
        Some(&(code, name)) => Err(RdbErrorReason::UnsupportedType { code, name }),
        None => Err(RdbErrorReason::UnknownType(code)),
    }
}

pub(crate) fn is_module_type(code: u8) -> bool {
    MODULE_TYPES.contains(&code)
}

/// Skips the module metadata of the next key (Redis 8.6), because this server has no modules.
pub(crate) fn skip_key_metadata<R: Read>(source: &mut RdbReader<R>) -> Result<(), RdbError> {
    let mut text = Vec::new();
    for _ in 0..source.read_len()? {
        let _class: [u8; 4] = source.read_array()?;
        loop {
            match source.read_len()? {
                META_TAG_END => break,
                META_TAG_SIGNED | META_TAG_UNSIGNED => drop(source.read_len()?),
                META_TAG_FLOAT => drop(source.read_array::<4>()?),
                META_TAG_DOUBLE => drop(source.read_array::<8>()?),
                META_TAG_STRING => source.read_string(&mut text)?,
                _ => return Err(source.error(RdbErrorReason::BadValue("Corrupted metadata of a key"))),
            }
        }
    }
    Ok(())
}

/// Reads the value that follows a key: all of it, or the first part of a large value.
pub(crate) fn read<R: Read>(
    code: u8,
    source: &mut RdbReader<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    if code == NAMED_MODULE_TYPE {
        let name = ModuleType::from_number(source.read_len()?);
        return Err(source.error(RdbErrorReason::ModuleType(name)));
    }
    let kind = kind_of_type(code).map_err(|reason| source.error(reason))?;
    buffer.remaining_elements = RemainingElements::default();
    buffer.packed.reset(kind);
    match kind {
        Kind::String => StringCodec::read(code, source, buffer),
        Kind::List => ListCodec::read(code, source, buffer),
        Kind::Set => SetCodec::read(code, source, buffer),
        Kind::SortedSet => SortedSetCodec::read(code, source, buffer),
        Kind::Hash => HashCodec::read(code, source, buffer),
        Kind::Stream => StreamCodec::read(code, source, buffer),
    }?;
    buffer.packed.choose_encoding(&buffer.limits);
    Ok(())
}

/// Reads the next part of a value. Must be called only while [`ValueBuffer::is_part`] is true.
pub(crate) fn read_next_part<R: Read>(
    source: &mut RdbReader<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    debug_assert!(buffer.is_part());
    let kind = buffer.value().kind();
    buffer.packed.reset(kind);
    match kind {
        // Strings are never read in parts.
        Kind::String => Ok(()),
        Kind::List => ListCodec::read_next_part(source, buffer),
        Kind::Set => SetCodec::read_next_part(source, buffer),
        Kind::SortedSet => SortedSetCodec::read_next_part(source, buffer),
        Kind::Hash => HashCodec::read_next_part(source, buffer),
        Kind::Stream => StreamCodec::read_next_part(source, buffer),
    }
}
