//! Reads an RDB item by item.

use std::io::Read;

use clock::Millis;
use keyspace::{EncodingLimits, PackedValue};

use super::{
    AUX_OPCODE, END_OF_FILE_OPCODE, EXPIRE_MILLIS_OPCODE, EXPIRE_SECONDS_OPCODE, FREQUENCY_OPCODE,
    FUNCTION_BEFORE_7_OPCODE, FUNCTION_OPCODE, IDLE_TIME_OPCODE, MODULE_AUX_OPCODE, RESIZE_DB_OPCODE,
    SELECT_DB_OPCODE, SLOT_IMPORT_OPCODE, SLOT_INFO_OPCODE,
};
use crate::decode::RdbReader;
use crate::error::{RdbError, RdbErrorReason};
use crate::value::{self, ValueBuffer};
use crate::{AcceptedVersions, InputChecks, VALKEY_WRITTEN_VERSION};

/// The first format version with a checksum at the end.
const FIRST_VERSION_WITH_CHECKSUM: u16 = 5;
const WINDOW_BYTES: usize = 64 * 1024;

/// Limits and checks that a reader applies to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Maximum string length in bytes.
    pub max_string_len: u64,
    /// Whether a wrong checksum is an error (`rdbchecksum`).
    pub verify_checksum: bool,
    /// How thoroughly the version and the packed encodings are validated.
    pub checks: InputChecks,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { max_string_len: 512 * 1024 * 1024, verify_checksum: true, checks: InputChecks::default() }
    }
}

/// A key whose collection is empty. Some old Redis versions wrote such keys, but no server keeps empty collections.
#[derive(Debug, Clone, Copy)]
pub struct EmptyCollectionKey<'a> {
    /// Number of the database that contains the key.
    pub db: u16,
    /// The key's name.
    pub key: &'a [u8],
}

/// A key with its value and attributes.
#[derive(Debug, Clone, Copy)]
pub struct RdbEntry<'a> {
    /// Number of the database that contains the key.
    pub db: u16,
    /// The key's name.
    pub key: &'a [u8],
    /// The value, or its first part if `is_part` is set.
    pub packed_value: PackedValue<'a>,
    /// Whether the value is incomplete, so that further parts follow as [`RdbItem::NextPart`].
    pub is_part: bool,
    /// Time at which the key expires; `None` if it has no expiry.
    pub expiry: Option<Millis>,
    /// Idle time or access frequency, if the file has it.
    pub access_metadata: AccessMetadata,
}

/// Access metadata of a key. A server writes at most one of the two fields, depending on its eviction policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccessMetadata {
    /// Seconds since the last access (LRU); `None` if the file does not state it.
    pub idle_seconds: Option<u64>,
    /// Access counter (LFU); `None` if the file does not state it.
    pub frequency: Option<u8>,
}

/// One element read from an RDB file: metadata, key counts, a key with its value, or a function library.
#[derive(Debug, Clone, Copy)]
pub enum RdbItem<'a> {
    /// A field of file metadata.
    Aux {
        /// Name of the field, such as `redis-ver`.
        name: &'a [u8],
        /// Value of the field, as text.
        value: &'a [u8],
    },
    /// Key counts of a database. They serve only to preallocate memory, because they may be wrong.
    KeyCounts {
        /// The database number.
        db: u16,
        /// Number of all keys, including those with an expiry.
        keys: u64,
        /// Number of keys with an expiry.
        expiring_keys: u64,
    },
    /// A key with its complete value, or with the first part of a large value.
    Entry(RdbEntry<'a>),
    /// A key with an empty collection, which the caller should skip.
    Empty(EmptyCollectionKey<'a>),
    /// Further elements of the last key's value. The caller must detect duplicates across parts.
    NextPart {
        /// The elements of this part.
        part: PackedValue<'a>,
        /// Whether the value ends with this part.
        is_last: bool,
    },
    /// The source text of a function library.
    Function(&'a [u8]),
}

#[derive(Debug, Default)]
struct KeyAttributes {
    expiry: Option<Millis>,
    access_metadata: AccessMetadata,
}

/// Reads an RDB stream sequentially.
#[derive(Debug)]
pub struct RdbLoader<R> {
    source: RdbReader<R>,
    version: u16,
    limits: ReadLimits,
    db: u16,
    name_buffer: Vec<u8>,
    value_buffer: ValueBuffer,
    text_buffer: Vec<u8>,
    is_done: bool,
}

impl<R: Read> RdbLoader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The input is not an RDB, has an unknown version, or cannot be read.
    pub fn new(input: R, limits: ReadLimits) -> Result<Self, RdbError> {
        let mut source = RdbReader::new(input, WINDOW_BYTES, limits.max_string_len, limits.verify_checksum);
        let version = read_header(&mut source, limits.checks.versions)?;
        let mut value = ValueBuffer::new();
        value.set_depth(limits.checks.depth);
        Ok(Self {
            source,
            version,
            limits,
            db: 0,
            name_buffer: Vec::new(),
            value_buffer: value,
            text_buffer: Vec::new(),
            is_done: false,
        })
    }

    /// Sets the thresholds for the OBJECT ENCODING of collections.
    pub fn set_limits(&mut self, limits: EncodingLimits) {
        self.value_buffer.set_limits(limits);
    }

    /// Returns the format version in the header.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the number of bytes read so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// Returns the next item; `None` after the end and its checksum.
    ///
    /// # Errors
    /// The first position that cannot be read, and the reason.
    pub fn next_item(&mut self) -> Result<Option<RdbItem<'_>>, RdbError> {
        if self.value_buffer.is_part() {
            value::read_next_part(&mut self.source, &mut self.value_buffer)?;
            return Ok(Some(RdbItem::NextPart {
                part: self.value_buffer.value(),
                is_last: !self.value_buffer.is_part(),
            }));
        }
        let mut prelude = KeyAttributes::default();
        while !self.is_done {
            match self.source.read_byte()? {
                END_OF_FILE_OPCODE => self.read_end()?,
                AUX_OPCODE => {
                    self.source.read_string(&mut self.name_buffer)?;
                    self.source.read_string(&mut self.text_buffer)?;
                    return Ok(Some(RdbItem::Aux { name: &self.name_buffer, value: &self.text_buffer }));
                }
                SELECT_DB_OPCODE => self.db = self.read_database()?,
                RESIZE_DB_OPCODE => {
                    let (keys, volatile) = (self.source.read_len()?, self.source.read_len()?);
                    return Ok(Some(RdbItem::KeyCounts { db: self.db, keys, expiring_keys: volatile }));
                }
                SLOT_INFO_OPCODE => {
                    for _ in 0..3 {
                        self.source.read_len()?;
                    }
                }
                SLOT_IMPORT_OPCODE if self.version < VALKEY_WRITTEN_VERSION => {
                    value::skip_key_metadata(&mut self.source)?;
                }
                // Skip the import: this node takes no part in it, and the imported keys follow as ordinary keys.
                SLOT_IMPORT_OPCODE => {
                    self.source.read_string(&mut self.text_buffer)?;
                    for _ in 0..self.source.read_len()? {
                        self.source.read_len()?;
                        self.source.read_len()?;
                    }
                }
                EXPIRE_MILLIS_OPCODE => {
                    prelude.expiry = Some(Millis(i64::from_le_bytes(self.source.read_array()?)));
                }
                EXPIRE_SECONDS_OPCODE => {
                    let seconds = i32::from_le_bytes(self.source.read_array()?);
                    prelude.expiry = Some(Millis(i64::from(seconds) * 1000));
                }
                IDLE_TIME_OPCODE => prelude.access_metadata.idle_seconds = Some(self.source.read_len()?),
                FREQUENCY_OPCODE => prelude.access_metadata.frequency = Some(self.source.read_byte()?),
                FUNCTION_OPCODE => {
                    self.source.read_string(&mut self.text_buffer)?;
                    return Ok(Some(RdbItem::Function(&self.text_buffer)));
                }
                FUNCTION_BEFORE_7_OPCODE => {
                    let reason =
                        RdbErrorReason::BadValue("functions of a version before the release of Redis 7");
                    return Err(self.source.error(reason));
                }
                MODULE_AUX_OPCODE => return Err(self.source.error(RdbErrorReason::ModuleData)),
                code => return self.read_entry(code, &prelude).map(Some),
            }
        }
        Ok(None)
    }

    fn read_entry(&mut self, code: u8, attributes: &KeyAttributes) -> Result<RdbItem<'_>, RdbError> {
        if !value::is_module_type(code) {
            value::kind_of_type(code).map_err(|reason| self.source.error(reason))?;
        }
        self.source.read_string(&mut self.name_buffer)?;
        match value::read(code, &mut self.source, &mut self.value_buffer) {
            Ok(()) => {}
            Err(RdbError { reason: RdbErrorReason::Empty(_), .. }) => {
                return Ok(RdbItem::Empty(EmptyCollectionKey { db: self.db, key: &self.name_buffer }));
            }
            Err(error) => return Err(error),
        }
        Ok(RdbItem::Entry(RdbEntry {
            db: self.db,
            key: &self.name_buffer,
            packed_value: self.value_buffer.value(),
            is_part: self.value_buffer.is_part(),
            expiry: attributes.expiry,
            access_metadata: attributes.access_metadata,
        }))
    }

    fn read_database(&mut self) -> Result<u16, RdbError> {
        let db = self.source.read_len()?;
        u16::try_from(db).map_err(|_| self.source.error(RdbErrorReason::DatabaseOutOfRange(db)))
    }

    fn read_end(&mut self) -> Result<(), RdbError> {
        self.is_done = true;
        if self.version < FIRST_VERSION_WITH_CHECKSUM {
            return Ok(());
        }
        let actual = self.source.checksum();
        let expected = u64::from_le_bytes(self.source.read_array()?);
        match actual {
            // A stored checksum of zero means that the writer did not compute one.
            Some(actual) if expected != 0 && self.limits.verify_checksum && actual != expected => {
                Err(self.source.error(RdbErrorReason::WrongChecksum { expected, actual }))
            }
            _ => Ok(()),
        }
    }
}

/// Reads `REDIS` and four digits, or `VALKEY` and three.
fn read_header<R: Read>(source: &mut RdbReader<R>, versions: AcceptedVersions) -> Result<u16, RdbError> {
    let bytes: [u8; 9] = source.read_array()?;
    let (digits, is_valkey) = match (bytes.strip_prefix(b"REDIS"), bytes.strip_prefix(b"VALKEY")) {
        (Some(digits), _) => (digits, false),
        (_, Some(digits)) => (digits, true),
        _ => return Err(source.error(RdbErrorReason::WrongSignature)),
    };
    let version =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_digit()));
    let Some(version) = version.and_then(|digits| digits.parse().ok()) else {
        return Err(source.error(RdbErrorReason::WrongSignature));
    };
    if !versions.includes(version) || is_valkey != (version >= VALKEY_WRITTEN_VERSION) {
        return Err(source.error(RdbErrorReason::UnknownVersion(version)));
    }
    Ok(version)
}
