//! Errors of RDB files and serialized values.

use std::{fmt, io};

/// Why an RDB file or a serialized value was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RdbErrorReason {
    /// Reading from the input failed.
    #[error("{}", io::Error::from(*.0))]
    Io(io::ErrorKind),
    /// The input ends too early.
    #[error("unexpected end of file")]
    UnexpectedEnd,
    /// The input is not an RDB file.
    #[error("wrong signature, this is no RDB file")]
    WrongSignature,
    /// The format version is not supported.
    #[error("can't handle RDB format version {0}")]
    UnknownVersion(u16),
    /// The checksum does not match the content.
    #[error("wrong RDB checksum: expected {expected:016x}, got {actual:016x}")]
    WrongChecksum {
        /// The checksum computed from the content.
        expected: u64,
        /// The checksum stored at the end of the input.
        actual: u64,
    },
    /// The value type is unknown.
    #[error("unknown opcode or type {0}")]
    UnknownType(u8),
    /// The value type is known, but this server does not support it.
    #[error("values of type {code} ({name}) are not supported")]
    UnsupportedType {
        /// The type code in the input.
        code: u8,
        /// What the type code stands for.
        name: &'static str,
    },
    /// The input contains module data that does not belong to a key.
    #[error("the file holds data of a module, which is not supported")]
    ModuleData,
    /// The value belongs to this module type.
    #[error("values of the module type '{0}' are not supported")]
    ModuleType(ModuleType),
    /// The input has a special string encoding where a length is expected.
    #[error("a {0} where a length must be")]
    NotALength(&'static str),
    /// The encoding of a string is unknown.
    #[error("unknown string encoding {0}")]
    UnknownStringEncoding(u8),
    /// A string of this length exceeds the limit.
    #[error("a string of {0} bytes is too long")]
    StringTooLong(u64),
    /// A compressed string cannot be expanded.
    #[error("a compressed string of {compressed} bytes that does not expand to {declared}")]
    BadCompression {
        /// Number of compressed bytes.
        compressed: u64,
        /// The length that the string should have after decompression.
        declared: u64,
    },
    /// The database number exceeds the number of configured databases.
    #[error("database number {0} is out of range")]
    DatabaseOutOfRange(u64),
    /// The collection of this type has no elements. It was read to its end, so the caller may skip it and continue.
    #[error("{0}")]
    Empty(&'static str),
    /// The value is malformed; the text describes the fault.
    #[error("{0}")]
    BadValue(&'static str),
}

/// The name of a module type, such as `vectorset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleType([u8; 9]);

impl ModuleType {
    /// Decodes the number that precedes a module value: nine letters of six bits each, and a ten-bit version.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let letter = |index: u32| LETTERS[(number >> (64 - 6 * (index + 1)) & 0x3F) as usize];
        Self(std::array::from_fn(|index| letter(index as u32)))
    }
}

impl fmt::Display for ModuleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// An error in the input, with its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at offset {offset}: {reason}")]
pub struct RdbError {
    /// Number of bytes from the start of the input.
    pub offset: u64,
    /// Why the input was rejected at this position.
    pub reason: RdbErrorReason,
}
