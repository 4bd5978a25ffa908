//! The RDB format: `REDIS` and a four-digit version, then items with a leading opcode, then a checksum.
//!
//! | opcode | item |
//! | ---: | --- |
//! | 250 | file metadata: name, value |
//! | 254, 251 | database number; number of keys and of keys with an expiry |
//! | 252 or 253, 248, 249 | attributes of the next key: expiry, idle time, access frequency |
//! | a value type | key, value |
//! | 243 | (Valkey 9) slots being imported: name of the import, number of ranges, first and last slot of each |
//! | 243 | (Redis 8.6) module metadata of the next key: count; a four-byte id and values for each entry |
//! | 244 | (Valkey, Redis 8) slot number, its number of keys and of keys with an expiry |
//! | 245 | a function library |
//! | 247 | module data |
//! | 255 | end; eight bytes of CRC64 follow, zero if not computed |

mod loader;
#[cfg(test)]
mod tests;
mod writer;

pub use loader::{AccessMetadata, EmptyCollectionKey, RdbEntry, RdbItem, RdbLoader, ReadLimits};
pub use writer::{RdbInfo, RdbWriter, UsageFormat, WriteOptions};

const SLOT_IMPORT_OPCODE: u8 = 243;
/// Opcode of key metadata in Redis; Valkey uses the same number for slot imports.
pub(crate) const KEY_META_OPCODE: u8 = SLOT_IMPORT_OPCODE;
const SLOT_INFO_OPCODE: u8 = 244;
pub(crate) const FUNCTION_OPCODE: u8 = 245;
const FUNCTION_BEFORE_7_OPCODE: u8 = 246;
const MODULE_AUX_OPCODE: u8 = 247;
const IDLE_TIME_OPCODE: u8 = 248;
const FREQUENCY_OPCODE: u8 = 249;
const AUX_OPCODE: u8 = 250;
const RESIZE_DB_OPCODE: u8 = 251;
const EXPIRE_MILLIS_OPCODE: u8 = 252;
const EXPIRE_SECONDS_OPCODE: u8 = 253;
const SELECT_DB_OPCODE: u8 = 254;
const END_OF_FILE_OPCODE: u8 = 255;
