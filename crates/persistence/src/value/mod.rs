//! The types: which number a value has in an RDB, and what follows its key.
//!
//! One file per type reads and writes all the encodings that the type ever had. Bytes that are right
//! for one type and wrong for another are told apart here alone.

mod string;

use std::io::{self, Read, Write};

use keyspace::{NewValue, Value};

use crate::decode::Source;
use crate::encode::Encoder;
use crate::error::{RdbError, Reason};

const STRING: u8 = 0;

/// The numbers of the types that are not read, and how users know them.
const UNSUPPORTED: &[(u8, &str)] = &[
    (1, "list"),
    (2, "set"),
    (3, "sorted set"),
    (4, "hash"),
    (5, "sorted set"),
    (9, "hash as a zipmap"),
    (10, "list as a ziplist"),
    (11, "set as an intset"),
    (12, "sorted set as a ziplist"),
    (13, "hash as a ziplist"),
    (14, "list as a quicklist"),
    (15, "stream"),
    (16, "hash as a listpack"),
    (17, "sorted set as a listpack"),
    (18, "list as a quicklist of listpacks"),
    (19, "stream"),
    (20, "set as a listpack"),
    (21, "stream"),
    (22, "hash with expiring fields"),
    (23, "hash with expiring fields"),
    (24, "hash with expiring fields"),
    (25, "hash with expiring fields"),
];
/// Module types.
const MODULE: [u8; 2] = [6, 7];

/// Holds a value that was read until it is stored, and keeps its memory for the next one.
#[derive(Debug, Default)]
pub struct ValueBuffer {
    string: Vec<u8>,
}

impl ValueBuffer {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value that was read last.
    #[must_use]
    pub fn value(&self) -> NewValue<'_> {
        NewValue::string(&self.string)
    }
}

/// The number of the type and encoding that [`write()`] uses for `value`.
pub(crate) fn type_code(value: &Value<'_>) -> u8 {
    match value {
        Value::String(_) => STRING,
        other => panic!("no RDB encoding for a {}", other.kind().name()),
    }
}

/// Writes what follows the key.
pub(crate) fn write<W: Write>(value: &Value<'_>, out: &mut Encoder<W>) -> io::Result<()> {
    match value {
        Value::String(string) => string::write(string, out),
        other => panic!("no RDB encoding for a {}", other.kind().name()),
    }
}

/// Refuses a type that cannot be read, before anything of it is.
pub(crate) fn check_type(code: u8) -> Result<(), Reason> {
    if code == STRING {
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

/// Reads what follows the key.
pub(crate) fn read<R: Read>(
    code: u8,
    source: &mut Source<R>,
    buffer: &mut ValueBuffer,
) -> Result<(), RdbError> {
    match code {
        STRING => string::read(source, &mut buffer.string),
        _ => {
            let reason = check_type(code).expect_err("what is supported has an arm above");
            Err(source.error(reason))
        }
    }
}
