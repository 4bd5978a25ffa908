//! Redis's own formats for data at rest and in transfer.
//!
//! [`RdbWriter`] and [`RdbLoader`] write and read an RDB: what SAVE puts into a file and what a full
//! synchronisation streams to a replica. [`dump`] and [`restore`] turn one value into the payload of
//! DUMP and RESTORE, which is the same encoding with its own trailer. Each type's encodings live in one
//! file under `value/`; the two containers know nothing of types.
//!
//! What must hold: whatever bytes come in, a reader answers with a value or an [`RdbError`] that says
//! where and why. It never panics, and never reserves more memory than the input's own bytes can fill.
//!
//! Source: the RDB file format as documented for Redis 7 and as its tools read it.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

mod checksum;
mod compress;
mod decode;
mod dump;
mod encode;
mod error;
mod rdb;
mod value;

pub use dump::{RestoreError, Restored, dump, restore};
pub use error::{RdbError, Reason};
pub use rdb::{Entry, Info, Item, Limits, RdbLoader, RdbWriter, Used, Uses, WriteOptions};
pub use value::ValueBuffer;

/// The version that is written. Files and DUMP payloads of version 10 are read by every Redis since
/// 7.0 and every Valkey, and hold every encoding that this crate writes; a higher number would only
/// make Redis 7.0 refuse to replicate from us.
pub const WRITTEN_VERSION: u16 = 10;
/// The versions of Redis's own numbering that are read (the last is that of Redis 8).
pub(crate) const REDIS_VERSIONS: RangeInclusive<u16> = 1..=12;
/// Valkey numbers its own format from 80 on (Valkey 9); the file then starts with `VALKEY`.
pub(crate) const VALKEY_VERSIONS: RangeInclusive<u16> = 80..=80;
