//! What can be wrong with bytes that should be an RDB or a serialized value.

use std::io;

/// Why the bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    #[error("{}", io::Error::from(*.0))]
    Io(io::ErrorKind),
    #[error("unexpected end of file")]
    UnexpectedEnd,
    #[error("wrong signature, this is no RDB file")]
    WrongSignature,
    #[error("can't handle RDB format version {0}")]
    UnknownVersion(u16),
    #[error("wrong RDB checksum: expected {expected:016x}, got {actual:016x}")]
    WrongChecksum { expected: u64, actual: u64 },
    #[error("unknown opcode or type {0}")]
    UnknownType(u8),
    #[error("values of type {code} ({name}) are not supported")]
    UnsupportedType { code: u8, name: &'static str },
    #[error("the file holds data of a module, which is not supported")]
    ModuleData,
    #[error("a {0} where a length must be")]
    NotALength(&'static str),
    #[error("unknown string encoding {0}")]
    UnknownStringEncoding(u8),
    #[error("a string of {0} bytes is too long")]
    StringTooLong(u64),
    #[error("a compressed string of {compressed} bytes that does not expand to {claimed}")]
    BadCompression { compressed: u64, claimed: u64 },
    #[error("database number {0} is out of range")]
    DatabaseOutOfRange(u64),
    #[error("{0}")]
    BadValue(&'static str),
}

/// Where in the input reading failed, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at offset {offset}: {reason}")]
pub struct RdbError {
    /// Bytes from the start of the input.
    pub offset: u64,
    pub reason: Reason,
}
