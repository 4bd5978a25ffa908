//! Errors of bytes that should be an RDB or a serialized value.

use std::{fmt, io};

/// Why the bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It could not be read.
    #[error("{}", io::Error::from(*.0))]
    Io(io::ErrorKind),
    /// It ends too early.
    #[error("unexpected end of file")]
    UnexpectedEnd,
    /// It is no RDB.
    #[error("wrong signature, this is no RDB file")]
    WrongSignature,
    /// A version that is not known.
    #[error("can't handle RDB format version {0}")]
    UnknownVersion(u16),
    /// The checksum at its end does not match its bytes.
    #[error("wrong RDB checksum: expected {expected:016x}, got {actual:016x}")]
    WrongChecksum {
        /// The sum of its bytes.
        expected: u64,
        /// The sum at its end.
        actual: u64,
    },
    /// A type that is not known.
    #[error("unknown opcode or type {0}")]
    UnknownType(u8),
    /// A type that this server does not have.
    #[error("values of type {code} ({name}) are not supported")]
    UnsupportedType {
        /// The type's code.
        code: u8,
        /// The type's name.
        name: &'static str,
    },
    /// Data of a module.
    #[error("the file holds data of a module, which is not supported")]
    ModuleData,
    /// A value of a module's type.
    #[error("values of the module type '{0}' are not supported")]
    ModuleType(ModuleType),
    /// Something else where a length is expected.
    #[error("a {0} where a length must be")]
    NotALength(&'static str),
    /// A form of strings that is not known.
    #[error("unknown string encoding {0}")]
    UnknownStringEncoding(u8),
    /// A string beyond the bound.
    #[error("a string of {0} bytes is too long")]
    StringTooLong(u64),
    /// A compressed string that cannot be expanded.
    #[error("a compressed string of {compressed} bytes that does not expand to {claimed}")]
    BadCompression {
        /// Its compressed length.
        compressed: u64,
        /// The length it claims.
        claimed: u64,
    },
    /// A database that this server does not have.
    #[error("database number {0} is out of range")]
    DatabaseOutOfRange(u64),
    /// A collection without elements, which was read to its end.
    #[error("{0}")]
    Empty(&'static str),
    /// A value that makes no sense.
    #[error("{0}")]
    BadValue(&'static str),
}

/// The name of a module's type, such as `vectorset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleType([u8; 9]);

impl ModuleType {
    /// Reads the number that stands before a value of the type: nine letters of six bits, and ten bits of a version.
    #[must_use]
    pub fn of_number(number: u64) -> Self {
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

/// Where in the input reading failed, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at offset {offset}: {reason}")]
pub struct RdbError {
    /// Bytes from the start of the input.
    pub offset: u64,
    /// The reason why reading failed there.
    pub reason: Reason,
}
