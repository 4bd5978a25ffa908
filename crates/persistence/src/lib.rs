//! Redis's own formats for data at rest and in transfer.
//!
//! [`RdbWriter`] and [`RdbLoader`] write and read an RDB: what SAVE puts into a file and what a full
//! synchronisation streams to a replica. [`dump`] and [`restore`] turn one value into the payload of
//! DUMP and RESTORE, which is the same encoding with its own trailer. Each type's encodings live in one
//! file under `value/`; the two containers know nothing of types.
//!
//! Invariant: whatever bytes come in, a reader answers with a value or an [`RdbError`] that says
//! where and why. It never panics, and never reserves more memory than the input's own bytes can fill.
//!
//! Source: the RDB file format as documented for Redis 7 and as its tools read it.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

pub mod aof;
mod checksum;
mod compress;
mod decode;
mod disk;
mod dump;
mod encode;
mod error;
mod rdb;
mod snapshot_file;
mod value;

pub use disk::Disk;
pub use dump::{
    RestoreError, Restored, dump, dump_functions, restore, restore_functions, with_right_checksum,
};
pub use error::{ModuleType, RdbError, Reason};
pub use rdb::{EmptyKey, Entry, Info, Item, Limits, RdbLoader, RdbWriter, Used, Uses, WriteOptions};
pub use snapshot_file::{SavedFile, TEMP_PREFIX};
pub use value::ValueBuffer;

/// The version that is written. Files and DUMP payloads of version 10 are read by every Redis since
/// 7.0 and every Valkey, and hold every encoding that this crate writes; a higher number would only
/// make Redis 7.0 refuse to replicate from us.
pub const WRITTEN_VERSION: u16 = 10;
/// The first version of Valkey's own numbering, which is written in that dialect.
const VALKEY_WRITTEN_VERSION: u16 = 80;
/// The versions of Redis's own numbering that are read (12 is that of Redis 8.0 to 8.4, 13 that of 8.6).
pub(crate) const REDIS_VERSIONS: RangeInclusive<u16> = 1..=13;
/// Valkey numbers its own format from 80 on (Valkey 9.0 and 9.1; 81 is 9.2); the file then starts with `VALKEY`.
pub(crate) const VALKEY_VERSIONS: RangeInclusive<u16> = VALKEY_WRITTEN_VERSION..=81;

/// How closely the bytes of a file or a payload are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checks {
    /// `rdb-version-check`
    pub versions: Versions,
    /// `sanitize-dump-payload`
    pub depth: Depth,
}

/// The versions of the format that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Versions {
    /// Those that this crate knows.
    #[default]
    Known,
    /// Any: what follows may be of a type that is not known, and is refused then.
    Any,
}

impl Versions {
    /// Whether a file or a payload of this version is read.
    pub(crate) fn has(self, version: u16) -> bool {
        match self {
            Self::Known => REDIS_VERSIONS.contains(&version) || VALKEY_VERSIONS.contains(&version),
            Self::Any => version > 0,
        }
    }
}

/// How packed forms (ziplists, listpacks, zipmaps) are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// As far as they are read: items are read forward, once, and stored anew.
    #[default]
    AsRead,
    /// Also what only other readers go by: counts, offsets, and the lengths for reading backwards.
    Deep,
}

/// Since Redis 7.4 and Valkey 9 there are two formats, and neither server reads what the other has added:
/// here, hashes with fields that expire. What both had before is the same in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Redis 7.0's, which every version since reads: for a server of which nothing else is known.
    #[default]
    Redis,
    /// The same where nothing is lost by it, and what Redis 7.2 and Valkey read otherwise: for this server's own files, and
    /// for DUMP.
    Own,
    /// Valkey 9's, with times of fields.
    Valkey,
}

impl Dialect {
    pub(crate) fn written_version(self) -> u16 {
        match self {
            Self::Redis | Self::Own => WRITTEN_VERSION,
            Self::Valkey => VALKEY_WRITTEN_VERSION,
        }
    }
}
