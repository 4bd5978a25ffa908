//! Writing an RDB.

use std::io::{self, Write};

use clock::Millis;
use keyspace::{LfuSettings, Shown, SnapshotEntry};

use super::{AUX, END, EXPIRE_MILLIS, FREQUENCY, FUNCTION, IDLE, RESIZE_DB, SELECT_DB};
use crate::Dialect;
use crate::encode::Encoder;
use crate::value;

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Shorten long strings (`rdbcompression`).
    pub compress: bool,
    /// End with a checksum (`rdbchecksum`); without, with zeros.
    pub checksum: bool,
    /// Whether it is said how keys were used.
    pub uses: Uses,
    /// The server whose format is written.
    pub dialect: Dialect,
}

/// The measure of each key's use that is written: the one that the server evicts by (`maxmemory-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uses {
    /// Nothing.
    NotKept,
    /// For how long it was not used (LRU).
    Idle(Millis),
    /// How often it was used (LFU).
    Frequency(Millis, LfuSettings),
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { compress: true, checksum: true, uses: Uses::NotKept, dialect: Dialect::Redis }
    }
}

/// Fields about the file itself, as Redis's files have them.
#[derive(Debug, Clone, Copy)]
pub struct Info<'a> {
    /// The version of Redis that the server passes for.
    pub version: &'a str,
    /// Wall-clock time.
    pub created: Millis,
    /// Bytes in use when it was made.
    pub used_memory: u64,
    /// Where in the replication stream the data stands: identifier, offset, and the database that the
    /// stream had selected. For a replica that resumes from the file.
    pub replication: Option<(&'a [u8], u64, u32)>,
    /// Whether the file is the base of an AOF.
    pub aof_base: bool,
    /// The slots that are on the move, for a replica, as Valkey has them since version 8: `slot>node,` for each that
    /// leaves and `slot<node,` for each that comes.
    pub slot_states: &'a str,
}

/// Writes an RDB: the header on creation, then databases and their entries, then the end.
#[derive(Debug)]
pub struct RdbWriter<W> {
    encoder: Encoder<W>,
    uses: Uses,
    dialect: Dialect,
    selected: Option<u16>,
    /// The type of the last key, for a value that comes in parts.
    begun: u8,
    /// Databases whose sizes have been told.
    told: Vec<u16>,
}

impl<W: Write> RdbWriter<W> {
    /// Starts an RDB. All errors are those of `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, options: WriteOptions, info: &Info<'_>) -> io::Result<Self> {
        let encoder = Encoder::new(out, options.compress, options.checksum);
        let WriteOptions { uses, dialect, .. } = options;
        let mut writer = Self { encoder, uses, dialect, selected: None, begun: 0, told: Vec::new() };
        let version = dialect.written_version();
        let signature = match dialect {
            Dialect::Redis | Dialect::Own => format!("REDIS{version:04}"),
            Dialect::Valkey => format!("VALKEY{version:03}"),
        };
        writer.encoder.bytes(signature.as_bytes())?;
        writer.aux("redis-ver", info.version.as_bytes())?;
        writer.aux_number("redis-bits", 64)?;
        writer.aux_number("ctime", info.created.secs())?;
        writer.aux_number("used-mem", info.used_memory as i64)?;
        if let Some((id, offset, db)) = info.replication {
            writer.aux_number("repl-stream-db", i64::from(db))?;
            writer.aux("repl-id", id)?;
            writer.aux_number("repl-offset", offset as i64)?;
        }
        writer.aux_number("aof-base", i64::from(info.aof_base))?;
        if !info.slot_states.is_empty() {
            writer.aux("cluster-slot-states", info.slot_states.as_bytes())?;
        }
        Ok(writer)
    }

    /// Writes a library of functions. To be called before the first key.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.encoder.byte(FUNCTION)?;
        self.encoder.string(code)
    }

    fn aux_number(&mut self, name: &str, value: i64) -> io::Result<()> {
        self.aux(name, itoa::Buffer::new().format(value).as_bytes())
    }

    fn aux(&mut self, name: &str, value: &[u8]) -> io::Result<()> {
        self.encoder.byte(AUX)?;
        self.encoder.string(name.as_bytes())?;
        self.encoder.string(value)
    }

    /// Writes one key, or a further part of its value. The database is selected when it changes; `sizes` tells how many
    /// keys a database has and how many of them expire, and is asked once for each, so that a loader can reserve.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn entry(
        &mut self,
        entry: &SnapshotEntry<'_>,
        sizes: impl FnOnce(u16) -> (usize, usize),
    ) -> io::Result<()> {
        if let Shown::Part(part) = &entry.value
            && !part.first
        {
            return value::write_part(self.begun, part, &mut self.encoder);
        }
        if self.selected != Some(entry.db) {
            self.select(entry.db, sizes)?;
        }
        if let Some(Millis(expiry)) = entry.expiry {
            self.encoder.byte(EXPIRE_MILLIS)?;
            self.encoder.bytes(&expiry.to_le_bytes())?;
        }
        match self.uses {
            Uses::NotKept => {}
            Uses::Idle(now) => {
                self.encoder.byte(IDLE)?;
                self.encoder.len(entry.usage.idle_seconds(now))?;
            }
            Uses::Frequency(now, settings) => {
                self.encoder.bytes(&[FREQUENCY, entry.usage.frequency(now, settings)])?;
            }
        }
        self.begun = value::shown_code(&entry.value, self.dialect);
        self.encoder.byte(self.begun)?;
        self.encoder.string(entry.key)?;
        match &entry.value {
            Shown::Whole(value) => value::write(self.begun, value, &mut self.encoder),
            Shown::Part(part) => value::write_part(self.begun, part, &mut self.encoder),
        }
    }

    fn select(&mut self, db: u16, sizes: impl FnOnce(u16) -> (usize, usize)) -> io::Result<()> {
        self.encoder.byte(SELECT_DB)?;
        self.encoder.len(u64::from(db))?;
        self.selected = Some(db);
        if !self.told.contains(&db) {
            let (keys, volatile) = sizes(db);
            self.told.push(db);
            self.encoder.byte(RESIZE_DB)?;
            self.encoder.len(keys as u64)?;
            self.encoder.len(volatile as u64)?;
        }
        Ok(())
    }

    /// How many bytes have been written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.encoder.written()
    }

    /// Writes the end. The caller makes it durable.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.encoder.byte(END)?;
        let checksum = self.encoder.checksum()?;
        self.encoder.bytes(&checksum.to_le_bytes())?;
        self.encoder.into_out()
    }
}
