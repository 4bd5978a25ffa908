//! The RDB: `REDIS` and a version in four digits, then items, each led by one byte, then a checksum.
//!
//! | byte | item |
//! | ---: | --- |
//! | 250 | a field about the file: name, value |
//! | 254, 251 | a database's number; its keys and how many of them expire |
//! | 252 or 253, 248, 249 | about the next key: when it expires, idle time, frequency of use |
//! | a type's number | key, value |
//! | 243 | (Valkey 9) slots on their way here: the import's name, how many ranges, first and last slot of each |
//! | 243 | (Redis 8.6) about the next key, what modules keep of it: how many, four bytes that name each, its values |
//! | 244 | (Valkey, Redis 8) a slot's number, its keys and how many expire |
//! | 245 | a function library |
//! | 247 | data of a module |
//! | 255 | the end; eight bytes of CRC64 follow, zero if none was counted |

mod loader;
#[cfg(test)]
mod tests;
mod writer;

pub use loader::{EmptyKey, Entry, Item, Limits, RdbLoader, Used};
pub use writer::{Info, RdbWriter, Uses, WriteOptions};

const SLOT_IMPORT: u8 = 243;
/// The same number in Redis's numbering of versions.
pub(crate) const KEY_META: u8 = SLOT_IMPORT;
const SLOT_INFO: u8 = 244;
pub(crate) const FUNCTION: u8 = 245;
const FUNCTION_BEFORE_7: u8 = 246;
const MODULE_AUX: u8 = 247;
const IDLE: u8 = 248;
const FREQUENCY: u8 = 249;
const AUX: u8 = 250;
const RESIZE_DB: u8 = 251;
const EXPIRE_MILLIS: u8 = 252;
const EXPIRE_SECONDS: u8 = 253;
const SELECT_DB: u8 = 254;
const END: u8 = 255;
