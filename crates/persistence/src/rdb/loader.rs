//! Reading an RDB, item by item.

use std::io::Read;

use clock::Millis;
use keyspace::{Limits as KindLimits, Packed};

use super::{
    AUX, END, EXPIRE_MILLIS, EXPIRE_SECONDS, FREQUENCY, FUNCTION, FUNCTION_BEFORE_7, IDLE, MODULE_AUX,
    RESIZE_DB, SELECT_DB, SLOT_IMPORT, SLOT_INFO,
};
use crate::decode::Source;
use crate::error::{RdbError, Reason};
use crate::value::{self, ValueBuffer};
use crate::{Checks, VALKEY_WRITTEN_VERSION, Versions};

/// The first version whose files end with a checksum.
const FIRST_WITH_CHECKSUM: u16 = 5;
const WINDOW: usize = 64 * 1024;

/// Bounds on what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest string.
    pub max_string: u64,
    /// Whether a wrong checksum is an error (`rdbchecksum`).
    pub verify_checksum: bool,
    /// The other checks.
    pub checks: Checks,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_string: 512 * 1024 * 1024, verify_checksum: true, checks: Checks::default() }
    }
}

/// A key whose collection has no elements. Some old versions left such keys, and no server keeps them.
#[derive(Debug, Clone, Copy)]
pub struct EmptyKey<'a> {
    /// Its database.
    pub db: u16,
    /// The key.
    pub key: &'a [u8],
}

/// A key and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its database.
    pub db: u16,
    /// The key.
    pub key: &'a [u8],
    /// The value, or its first part.
    pub value: Packed<'a>,
    /// Whether further parts follow, as [`Item::More`].
    pub is_part: bool,
    /// When it expires, if it does.
    pub expiry: Option<Millis>,
    /// How it was used.
    pub used: Used,
}

/// How a key was used, as the file says. Both are absent unless the server that wrote it evicts by them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// For how many seconds it was not used (LRU).
    pub idle_seconds: Option<u64>,
    /// The counter of its uses (LFU).
    pub frequency: Option<u8>,
}

/// One part of an RDB.
#[derive(Debug, Clone, Copy)]
pub enum Item<'a> {
    /// A field about the file.
    Aux {
        /// The field's name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// How many keys database `db` has, and how many of them expire. A hint, not to be trusted.
    Sizes {
        /// The database.
        db: u16,
        /// How many keys it has.
        keys: u64,
        /// How many of them expire.
        volatile: u64,
    },
    /// A key with its value, or with the first part of it.
    Entry(Entry<'a>),
    /// A key without a value, to be passed over.
    Empty(EmptyKey<'a>),
    /// Further elements of the value that came last. Whether one was in an earlier part is for the caller to see.
    More {
        /// Some elements.
        part: Packed<'a>,
        /// Whether they are the last.
        is_last: bool,
    },
    /// A library of functions, as its source text.
    Function(&'a [u8]),
}

/// The attributes that stand before a key.
#[derive(Debug, Default)]
struct Prelude {
    expiry: Option<Millis>,
    used: Used,
}

/// Reads an RDB from its start to its end.
#[derive(Debug)]
pub struct RdbLoader<R> {
    source: Source<R>,
    version: u16,
    limits: Limits,
    db: u16,
    name: Vec<u8>,
    value: ValueBuffer,
    text: Vec<u8>,
    done: bool,
}

impl<R: Read> RdbLoader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no RDB, of an unknown version, or cannot be read.
    pub fn new(input: R, limits: Limits) -> Result<Self, RdbError> {
        let mut source = Source::new(input, WINDOW, limits.max_string, limits.verify_checksum);
        let version = header(&mut source, limits.checks.versions)?;
        let mut value = ValueBuffer::new();
        value.set_depth(limits.checks.depth);
        Ok(Self { source, version, limits, db: 0, name: Vec::new(), value, text: Vec::new(), done: false })
    }

    /// Decides up to where OBJECT ENCODING will call collections small.
    pub fn set_limits(&mut self, limits: KindLimits) {
        self.value.set_limits(limits);
    }

    /// The version that the header names.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Bytes read so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// The next item; `None` once the end and its checksum have been read.
    ///
    /// # Errors
    /// The first place in the input that cannot be read as an RDB, and the reason.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, RdbError> {
        if self.value.is_part() {
            value::read_more(&mut self.source, &mut self.value)?;
            return Ok(Some(Item::More { part: self.value.value(), is_last: !self.value.is_part() }));
        }
        let mut prelude = Prelude::default();
        while !self.done {
            match self.source.byte()? {
                END => self.end()?,
                AUX => {
                    self.source.string(&mut self.name)?;
                    self.source.string(&mut self.text)?;
                    return Ok(Some(Item::Aux { name: &self.name, value: &self.text }));
                }
                SELECT_DB => self.db = self.database()?,
                RESIZE_DB => {
                    let (keys, volatile) = (self.source.len()?, self.source.len()?);
                    return Ok(Some(Item::Sizes { db: self.db, keys, volatile }));
                }
                SLOT_INFO => {
                    for _ in 0..3 {
                        self.source.len()?;
                    }
                }
                SLOT_IMPORT if self.version < VALKEY_WRITTEN_VERSION => {
                    value::pass_key_meta(&mut self.source)?;
                }
                // Of no use to a node that was not part of the import: its keys are keys like others.
                SLOT_IMPORT => {
                    self.source.string(&mut self.text)?;
                    for _ in 0..self.source.len()? {
                        self.source.len()?;
                        self.source.len()?;
                    }
                }
                EXPIRE_MILLIS => {
                    prelude.expiry = Some(Millis(i64::from_le_bytes(self.source.array()?)));
                }
                EXPIRE_SECONDS => {
                    let seconds = i32::from_le_bytes(self.source.array()?);
                    prelude.expiry = Some(Millis(i64::from(seconds) * 1000));
                }
                IDLE => prelude.used.idle_seconds = Some(self.source.len()?),
                FREQUENCY => prelude.used.frequency = Some(self.source.byte()?),
                FUNCTION => {
                    self.source.string(&mut self.text)?;
                    return Ok(Some(Item::Function(&self.text)));
                }
                FUNCTION_BEFORE_7 => {
                    let reason = Reason::BadValue("functions of a version before the release of Redis 7");
                    return Err(self.source.error(reason));
                }
                MODULE_AUX => return Err(self.source.error(Reason::ModuleData)),
                code => return self.entry(code, &prelude).map(Some),
            }
        }
        Ok(None)
    }

    fn entry(&mut self, code: u8, prelude: &Prelude) -> Result<Item<'_>, RdbError> {
        if !value::is_of_module(code) {
            value::kind_of(code).map_err(|reason| self.source.error(reason))?;
        }
        self.source.string(&mut self.name)?;
        match value::read(code, &mut self.source, &mut self.value) {
            Ok(()) => {}
            Err(RdbError { reason: Reason::Empty(_), .. }) => {
                return Ok(Item::Empty(EmptyKey { db: self.db, key: &self.name }));
            }
            Err(error) => return Err(error),
        }
        Ok(Item::Entry(Entry {
            db: self.db,
            key: &self.name,
            value: self.value.value(),
            is_part: self.value.is_part(),
            expiry: prelude.expiry,
            used: prelude.used,
        }))
    }

    fn database(&mut self) -> Result<u16, RdbError> {
        let db = self.source.len()?;
        u16::try_from(db).map_err(|_| self.source.error(Reason::DatabaseOutOfRange(db)))
    }

    fn end(&mut self) -> Result<(), RdbError> {
        self.done = true;
        if self.version < FIRST_WITH_CHECKSUM {
            return Ok(());
        }
        let actual = self.source.checksum();
        let expected = u64::from_le_bytes(self.source.array()?);
        match actual {
            // Zero: the writer computed no checksum.
            Some(actual) if expected != 0 && self.limits.verify_checksum && actual != expected => {
                Err(self.source.error(Reason::WrongChecksum { expected, actual }))
            }
            _ => Ok(()),
        }
    }
}

/// `REDIS` and four digits, or `VALKEY` and three.
fn header<R: Read>(source: &mut Source<R>, versions: Versions) -> Result<u16, RdbError> {
    let bytes: [u8; 9] = source.array()?;
    let (digits, is_valkey) = match (bytes.strip_prefix(b"REDIS"), bytes.strip_prefix(b"VALKEY")) {
        (Some(digits), _) => (digits, false),
        (_, Some(digits)) => (digits, true),
        _ => return Err(source.error(Reason::WrongSignature)),
    };
    let version =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_digit()));
    let Some(version) = version.and_then(|digits| digits.parse().ok()) else {
        return Err(source.error(Reason::WrongSignature));
    };
    if !versions.has(version) || is_valkey != (version >= VALKEY_WRITTEN_VERSION) {
        return Err(source.error(Reason::UnknownVersion(version)));
    }
    Ok(version)
}
