//! The types: which number a value has in an RDB, and what follows its key.
//!
//! One file per type reads and writes all the encodings that the type ever had. Bytes that are right
//! for one type and wrong for another are told apart here alone.

mod flat;
mod hash;
mod string;

use std::io::{self, Read, Write};

use keyspace::{HashLimits, HashPart, NewValue, Value};

use crate::Dialect;
use crate::decode::Source;
use crate::encode::Encoder;
use crate::error::{RdbError, Reason};

const STRING: u8 = 0;
const HASHES: [u8; 7] = [
    hash::PAIRS,
    hash::ZIPMAP,
    hash::ZIPLIST,
    hash::LISTPACK,
    hash::VALKEY_TIMED,
    hash::TIMED,
    hash::TIMED_LISTPACK,
];

/// The numbers of the types that are not read, and how users know them.
const UNSUPPORTED: &[(u8, &str)] = &[
    (1, "list"),
    (2, "set"),
    (3, "sorted set"),
    (5, "sorted set"),
    (10, "list as a ziplist"),
    (11, "set as an intset"),
    (12, "sorted set as a ziplist"),
    (14, "list as a quicklist"),
    (15, "stream"),
    (17, "sorted set as a listpack"),
    (18, "list as a quicklist of listpacks"),
    (19, "stream"),
    (20, "set as a listpack"),
    (21, "stream"),
    (23, "hash with expiring fields"),
];
/// Module types.
const MODULE: [u8; 2] = [6, 7];

/// Holds a value that was read until it is stored, and keeps its memory for the next one.
#[derive(Debug, Default)]
pub struct ValueBuffer {
    held: Held,
    string: Vec<u8>,
    hash: hash::Buffer,
    limits: HashLimits,
}

/// What was read last.
#[derive(Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    String,
    Hash,
}

impl ValueBuffer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides up to where OBJECT ENCODING will call a hash `listpack`.
    pub fn set_hash_limits(&mut self, limits: HashLimits) {
        self.limits = limits;
    }

    /// Whether what was read last is a part of a hash, and others follow.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.held == Held::Hash && self.hash.is_part()
    }

    /// The value that was read last, or the first part of it.
    #[must_use]
    pub fn value(&self) -> NewValue<'_> {
        match self.held {
            Held::String => NewValue::string(&self.string),
            Held::Hash => NewValue::Hash(self.hash.fields.packed()),
        }
    }
}

/// The number of the type and encoding that [`write()`] uses for `value`.
pub(crate) fn type_code(value: &Value<'_>, dialect: Dialect) -> u8 {
    match value {
        Value::String(_) => STRING,
        Value::Hash(hash) => hash::type_code(hash, dialect),
        Value::HashPart(part) => hash::type_code_of_part(part, dialect),
    }
}

/// Writes what follows the key. Of a value that comes in parts only what comes before the first of them.
pub(crate) fn write<W: Write>(code: u8, value: &Value<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    match value {
        Value::String(string) => string::write(string, out),
        Value::Hash(hash) => hash::write(code, hash, out),
        Value::HashPart(part) => hash::write_head(code, part.total, out),
    }
}

/// Writes one part of a value that was begun under `code`.
pub(crate) fn write_part<W: Write>(code: u8, part: &HashPart<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    hash::write_part(code, part, out)
}

/// Refuses a type that cannot be read, before anything of it is.
pub(crate) fn check_type(code: u8) -> Result<(), Reason> {
    if code == STRING || HASHES.contains(&code) {
        return Ok(());
    }
    if MODULE.contains(&code) {
        return Err(Reason::ModuleData);
    }
    match UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == code) {
        Some(&(code, name)) => Err(Reason::UnsupportedType { code, name }),
        None => Err(Reason::UnknownType(code)),
    }
}

/// Reads the next part of a value, while [`ValueBuffer::is_part`] says that there is one.
pub(crate) fn read_more<R: Read>(source: &mut Source<R>, buffer: &mut ValueBuffer) -> Result<(), RdbError> {
    debug_assert!(buffer.is_part());
    hash::read_more(source, &mut buffer.hash)
}

/// Reads what follows the key: all of it, or the first part of a large value.
pub(crate) fn read<R: Read>(
    code: u8,
    source: &mut Source<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    match code {
        STRING => {
            buffer.held = Held::String;
            string::read(source, &mut buffer.string)
        }
        code if HASHES.contains(&code) => {
            buffer.held = Held::Hash;
            hash::read(code, source, buffer.limits, &mut buffer.hash)
        }
        _ => {
            let reason = check_type(code).expect_err("what is supported has an arm above");
            Err(source.error(reason))
        }
    }
}
