//! Reads and writes Redis's data formats for disk and transfer.
//!
//! [`RdbWriter`] and [`RdbLoader`] handle RDB streams: the files of SAVE and the payload of a full resync. [`dump`] and
//! [`restore`] handle DUMP payloads, which use the same value encodings with a different trailer. The encodings of each
//! value type are in one file under `value/`; RDB and DUMP do not depend on value types.
//!
//! Invariant: for any input, a reader returns a value or an [`RdbError`] with position and reason. It never panics, and
//! never allocates more memory than the input's own bytes can fill.
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
    RestoreError, RestoredValue, dump, dump_functions, restore, restore_functions, with_corrected_checksum,
};
pub use error::{ModuleType, RdbError, RdbErrorReason};
pub use rdb::{
    AccessMetadata, EmptyCollectionKey, RdbEntry, RdbInfo, RdbItem, RdbLoader, RdbWriter, ReadLimits,
    UsageFormat, WriteOptions,
};
pub use snapshot_file::{SnapshotFile, TEMP_PREFIX};
pub use value::ValueBuffer;

/// The format version that is written. Every Redis since 7.0 and every Valkey reads version 10, and it covers every
/// encoding that this crate writes; with a higher number, Redis 7.0 would refuse to replicate from this server.
pub const WRITTEN_VERSION: u16 = 10;
/// First version of Valkey's own numbering, and the version written in [`Dialect::Valkey`].
const VALKEY_WRITTEN_VERSION: u16 = 80;
/// Accepted versions in Redis's numbering (12 is Redis 8.0 to 8.4, 13 is Redis 8.6).
pub(crate) const REDIS_VERSIONS: RangeInclusive<u16> = 1..=13;
/// Accepted versions in Valkey's numbering, which starts at 80 (80 is Valkey 9.0 and 9.1, 81 is 9.2). Files with these
/// versions start with `VALKEY`.
pub(crate) const VALKEY_VERSIONS: RangeInclusive<u16> = VALKEY_WRITTEN_VERSION..=81;

/// How thoroughly the input is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputChecks {
    /// Which format versions are accepted (`rdb-version-check`).
    pub versions: AcceptedVersions,
    /// How thoroughly packed encodings are validated (`sanitize-dump-payload`).
    pub depth: ValidationDepth,
}

/// Which RDB format versions are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptedVersions {
    /// Accept only the versions known to this crate.
    #[default]
    Known,
    /// Accept any version; unknown value types are still rejected.
    Any,
}

impl AcceptedVersions {
    pub(crate) fn includes(self, version: u16) -> bool {
        match self {
            Self::Known => REDIS_VERSIONS.contains(&version) || VALKEY_VERSIONS.contains(&version),
            Self::Any => version > 0,
        }
    }
}

/// How thoroughly packed encodings (ziplists, listpacks, zipmaps) are validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValidationDepth {
    /// Validate only what a forward read needs, because items are decoded once and re-encoded.
    #[default]
    HeadersOnly,
    /// Also validate what a forward read ignores: counts, offsets and backward lengths.
    Deep,
}

/// The variant of the RDB format. Since Redis 7.4 and Valkey 9 the formats diverge, and neither server reads the
/// other's additions, such as hashes with expiring fields. Older encodings are common to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// The format of Redis 7.0, which every later version of Redis and Valkey reads; for readers of unknown version.
    #[default]
    Redis,
    /// The format of Redis 7.0 if it can represent the value without loss, otherwise that of Redis 7.2 and Valkey; for
    /// DUMP and for files that this server reads itself.
    Redoubt,
    /// The format of Valkey 9, which includes field expiry times.
    Valkey,
}

impl Dialect {
    pub(crate) fn written_version(self) -> u16 {
        match self {
            Self::Redis | Self::Redoubt => WRITTEN_VERSION,
            Self::Valkey => VALKEY_WRITTEN_VERSION,
        }
    }
}
