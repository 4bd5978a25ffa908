//! The kinds: the type number of a value in an RDB, and the encoding that follows its key.
//!
//! One file per kind reads and writes all the encodings that the kind ever had: a [`Codec`], and [`InParts`] if its
//! values can be large. It has the commands that make the value, too, for a base of commands. Bytes that are right for
//! one kind and wrong for another are told apart here alone.

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
use keyspace::{Builder, Elements, Kind, Limits, Packed, Part, Shown, Value};
use list::ListCodec;
use set::SetCodec;
use sorted_set::SortedSetCodec;
use stream::StreamCodec;
use string::StringCodec;

use crate::decode::Source;
use crate::encode::Encoder;
use crate::error::{ModuleType, RdbError, Reason};
use crate::{Depth, Dialect};

/// The numbers of the types that are not read, and how users know them.
const UNSUPPORTED: &[(u8, &str)] = &[(23, "hash with expiring fields")];
/// The forms of the values in what modules keep of a key, each behind its number; zero ends them.
const META_END: u64 = 0;
const META_SIGNED: u64 = 1;
const META_UNSIGNED: u64 = 2;
const META_FLOAT: u64 = 3;
const META_DOUBLE: u64 = 4;
const META_STRING: u64 = 5;
/// A value with more bytes than this is read in parts, so that it is not held twice as it is stored.
const PART: usize = 128 << 10;
/// Module types.
const MODULE: [u8; 2] = [6, NAMED_MODULE];
/// The number of the type comes first.
const NAMED_MODULE: u8 = 7;

/// The RDB form of one kind.
trait Codec {
    /// The numbers of all the encodings that are read.
    const CODES: &'static [u8];
    /// A value as it is written.
    type Value<'a>;

    /// The number of the encoding in which the value is written.
    fn code(value: &Self::Value<'_>, dialect: Dialect) -> u8;

    /// Writes what follows the key.
    fn write<W: Write>(code: u8, value: &Self::Value<'_>, out: &mut Encoder<W>) -> io::Result<()>;

    /// Adds the commands that make the value.
    fn add_commands(value: &Self::Value<'_>, out: &mut Commands);

    /// Reads what follows the key: all of it, or, of a value [`InParts`], the first part.
    fn read<R: Read>(code: u8, source: &mut Source<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError>;
}

/// A kind whose values may be too large to be held twice.
trait InParts: Codec {
    /// A part as it is written.
    type Part<'a>;

    /// The same for a value that comes in parts, as any of them says it.
    fn part_code(part: &Self::Part<'_>, dialect: Dialect) -> u8;

    /// Writes what comes before the first part of a value of so many elements.
    fn write_head<W: Write>(
        code: u8,
        total: usize,
        first: &Self::Part<'_>,
        out: &mut Encoder<W>,
    ) -> io::Result<()>;

    fn write_part<W: Write>(code: u8, part: &Self::Part<'_>, out: &mut Encoder<W>) -> io::Result<()>;

    /// Adds the commands that make a part.
    fn add_part_commands(part: &Self::Part<'_>, out: &mut Commands);

    /// Reads the next part in place of the one before.
    fn read_more<R: Read>(source: &mut Source<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError>;
}

/// Holds a value that was read until it is stored, and keeps its memory for the next one.
#[derive(Debug, Default)]
pub struct ValueBuffer {
    packed: Builder,
    /// Two strings of an element.
    first: Vec<u8>,
    second: Vec<u8>,
    rest: Rest,
    of_stream: stream::Rest,
    limits: Limits,
    depth: Depth,
}

/// The part of a large value that is still to be read.
#[derive(Debug, Default)]
struct Rest {
    code: u8,
    /// The time in milliseconds that the elements' times are counted from.
    base: i64,
    elements: u64,
}

impl ValueBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides up to where OBJECT ENCODING will call collections small.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Decides how closely packed forms are looked at.
    pub fn set_depth(&mut self, depth: Depth) {
        self.depth = depth;
    }

    /// Whether what was read last is a part of a value, and others follow.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.rest.elements > 0
    }

    /// The value that was read last, or a part of it.
    #[must_use]
    pub fn value(&self) -> Packed<'_> {
        self.packed.packed()
    }
}

/// The numbers that are read as this kind.
fn codes(kind: Kind) -> &'static [u8] {
    match kind {
        Kind::String => StringCodec::CODES,
        Kind::List => ListCodec::CODES,
        Kind::Set => SetCodec::CODES,
        Kind::SortedSet => SortedSetCodec::CODES,
        Kind::Hash => HashCodec::CODES,
        Kind::Stream => StreamCodec::CODES,
    }
}

/// The number of the type and encoding that [`write()`] uses for `value`.
pub(crate) fn type_code(value: &Value<'_>, dialect: Dialect) -> u8 {
    match value {
        Value::String(string) => StringCodec::code(string, dialect),
        Value::List(list) => ListCodec::code(list, dialect),
        Value::Set(set) => SetCodec::code(set, dialect),
        Value::SortedSet(set) => SortedSetCodec::code(set, dialect),
        Value::Hash(hash) => HashCodec::code(hash, dialect),
        Value::Stream(stream) => StreamCodec::code(stream, dialect),
    }
}

/// Writes what follows the key.
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

/// Adds the commands that make the value.
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

/// The same of one part of a value.
pub(crate) fn add_part_commands(part: &Part<'_>, out: &mut Commands) {
    match &part.elements {
        Elements::List(list) => ListCodec::add_part_commands(list, out),
        Elements::Set(members) => SetCodec::add_part_commands(members, out),
        Elements::SortedSet(members) => SortedSetCodec::add_part_commands(members, out),
        Elements::Hash(fields) => HashCodec::add_part_commands(fields, out),
        Elements::Stream(pieces) => StreamCodec::add_part_commands(pieces, out),
    }
}

/// The number for a value, whole or in parts.
pub(crate) fn shown_code(shown: &Shown<'_>, dialect: Dialect) -> u8 {
    match shown {
        Shown::Whole(value) => type_code(value, dialect),
        Shown::Part(part) => match &part.elements {
            Elements::List(part) => ListCodec::part_code(part, dialect),
            Elements::Set(members) => SetCodec::part_code(members, dialect),
            Elements::SortedSet(members) => SortedSetCodec::part_code(members, dialect),
            Elements::Hash(fields) => HashCodec::part_code(fields, dialect),
            Elements::Stream(pieces) => StreamCodec::part_code(pieces, dialect),
        },
    }
}

/// Writes one part of a value under `code`; before the first one, the value's head.
pub(crate) fn write_part<W: Write>(code: u8, part: &Part<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    fn write<C: InParts, W: Write>(
        (code, part): (u8, &Part<'_>),
        elements: &C::Part<'_>,
        out: &mut Encoder<W>,
    ) -> io::Result<()> {
        if part.first {
            C::write_head(code, part.total, elements, out)?;
        }
        C::write_part(code, elements, out)
    }
    match &part.elements {
        Elements::List(list) => write::<ListCodec, W>((code, part), list, out),
        Elements::Set(members) => write::<SetCodec, W>((code, part), members, out),
        Elements::SortedSet(members) => write::<SortedSetCodec, W>((code, part), members, out),
        Elements::Hash(fields) => write::<HashCodec, W>((code, part), fields, out),
        Elements::Stream(pieces) => write::<StreamCodec, W>((code, part), pieces, out),
    }
}

/// The kind that is read from this number.
pub(crate) fn kind_of(code: u8) -> Result<Kind, Reason> {
    if let Some(kind) = Kind::ALL.iter().copied().find(|kind| codes(*kind).contains(&code)) {
        return Ok(kind);
    }
    if MODULE.contains(&code) {
        return Err(Reason::ModuleData);
    }
    match UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == code) {
        Some(&(code, name)) => Err(Reason::UnsupportedType { code, name }),
        None => Err(Reason::UnknownType(code)),
    }
}

/// Whether values of this number are those of modules.
pub(crate) fn is_of_module(code: u8) -> bool {
    MODULE.contains(&code)
}

/// Passes over what modules keep of the next key (Redis 8.6): no module is here to make use of it.
pub(crate) fn pass_key_meta<R: Read>(source: &mut Source<R>) -> Result<(), RdbError> {
    let mut text = Vec::new();
    for _ in 0..source.len()? {
        let _class: [u8; 4] = source.array()?;
        loop {
            match source.len()? {
                META_END => break,
                META_SIGNED | META_UNSIGNED => drop(source.len()?),
                META_FLOAT => drop(source.array::<4>()?),
                META_DOUBLE => drop(source.array::<8>()?),
                META_STRING => source.string(&mut text)?,
                _ => return Err(source.error(Reason::BadValue("Corrupted metadata of a key"))),
            }
        }
    }
    Ok(())
}

/// Reads what follows the key: all of it, or the first part of a large value.
pub(crate) fn read<R: Read>(
    code: u8,
    source: &mut Source<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    if code == NAMED_MODULE {
        let name = ModuleType::of_number(source.len()?);
        return Err(source.error(Reason::ModuleType(name)));
    }
    let kind = kind_of(code).map_err(|reason| source.error(reason))?;
    buffer.rest = Rest::default();
    buffer.packed.begin(kind);
    match kind {
        Kind::String => StringCodec::read(code, source, buffer),
        Kind::List => ListCodec::read(code, source, buffer),
        Kind::Set => SetCodec::read(code, source, buffer),
        Kind::SortedSet => SortedSetCodec::read(code, source, buffer),
        Kind::Hash => HashCodec::read(code, source, buffer),
        Kind::Stream => StreamCodec::read(code, source, buffer),
    }?;
    buffer.packed.name_by(&buffer.limits);
    Ok(())
}

/// Reads the next part of a value, while [`ValueBuffer::is_part`] says that there is one.
pub(crate) fn read_more<R: Read>(source: &mut Source<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
    debug_assert!(buffer.is_part());
    let kind = buffer.value().kind();
    buffer.packed.begin(kind);
    match kind {
        // Always whole.
        Kind::String => Ok(()),
        Kind::List => ListCodec::read_more(source, buffer),
        Kind::Set => SetCodec::read_more(source, buffer),
        Kind::SortedSet => SortedSetCodec::read_more(source, buffer),
        Kind::Hash => HashCodec::read_more(source, buffer),
        Kind::Stream => StreamCodec::read_more(source, buffer),
    }
}
