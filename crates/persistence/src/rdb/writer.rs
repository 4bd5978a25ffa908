//! Writes an RDB.

use std::io::{self, Write};

use clock::Millis;
use keyspace::{LfuSettings, SnapshotEntry, SnapshotValue};

use super::{
    AUX_OPCODE, END_OF_FILE_OPCODE, EXPIRE_MILLIS_OPCODE, FREQUENCY_OPCODE, FUNCTION_OPCODE,
    IDLE_TIME_OPCODE, RESIZE_DB_OPCODE, SELECT_DB_OPCODE,
};
use crate::Dialect;
use crate::encode::Encoder;
use crate::value;

/// Format options of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether long strings are compressed (`rdbcompression`).
    pub compress: bool,
    /// Whether a checksum is computed (`rdbchecksum`); otherwise it is written as zero.
    pub checksum: bool,
    /// Which usage information is written for each key.
    pub usage_format: UsageFormat,
    /// The format variant to write.
    pub dialect: Dialect,
}

/// The usage information to write for each key, which depends on the eviction policy (`maxmemory-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageFormat {
    /// No usage information is written.
    None,
    /// The idle time up to this moment is written (LRU).
    Idle(Millis),
    /// The access frequency at this moment is written (LFU).
    Frequency(Millis, LfuSettings),
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { compress: true, checksum: true, usage_format: UsageFormat::None, dialect: Dialect::Redis }
    }
}

/// Metadata that is written at the start of the file, as in Redis.
#[derive(Debug, Clone, Copy)]
pub struct RdbInfo<'a> {
    /// The Redis version that the server reports.
    pub version: &'a str,
    /// Wall-clock time at which the file is written.
    pub created_at: Millis,
    /// Used memory in bytes when the file is written.
    pub used_memory: u64,
    /// Position in the replication stream: replication id, offset and selected database. A replica can resume
    /// from it.
    pub replication_position: Option<(&'a [u8], u64, u32)>,
    /// Whether the file is the base of an AOF.
    pub is_aof_base: bool,
    /// The migrating slots, for a replica, in the format of Valkey since version 8: `slot>node,` for each outgoing and
    /// `slot<node,` for each incoming slot.
    pub slot_states: &'a str,
}

/// Writes an RDB: first the header, then databases with their keys, finally the end marker and checksum.
#[derive(Debug)]
pub struct RdbWriter<W> {
    encoder: Encoder<W>,
    usage_format: UsageFormat,
    dialect: Dialect,
    selected_db: Option<u16>,
    /// Type code of the current key's value, which determines how its further parts are written.
    current_type: u8,
    /// Numbers of the databases whose key counts have been written.
    dbs_with_sizes: Vec<u16>,
}

impl<W: Write> RdbWriter<W> {
    /// Creates a writer and writes the header.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn new(out: W, options: WriteOptions, info: &RdbInfo<'_>) -> io::Result<Self> {
        let encoder = Encoder::new(out, options.compress, options.checksum);
        let WriteOptions { usage_format: uses, dialect, .. } = options;
        let mut writer = Self {
            encoder,
            usage_format: uses,
            dialect,
            selected_db: None,
            current_type: 0,
            dbs_with_sizes: Vec::new(),
        };
        let version = dialect.written_version();
        let signature = match dialect {
            Dialect::Redis | Dialect::Redoubt => format!("REDIS{version:04}"),
            Dialect::Valkey => format!("VALKEY{version:03}"),
        };
        writer.encoder.write_bytes(signature.as_bytes())?;
        writer.write_aux("redis-ver", info.version.as_bytes())?;
        writer.write_aux_number("redis-bits", 64)?;
        writer.write_aux_number("ctime", info.created_at.secs())?;
        writer.write_aux_number("used-mem", info.used_memory as i64)?;
        if let Some((id, offset, db)) = info.replication_position {
            writer.write_aux_number("repl-stream-db", i64::from(db))?;
            writer.write_aux("repl-id", id)?;
            writer.write_aux_number("repl-offset", offset as i64)?;
        }
        writer.write_aux_number("aof-base", i64::from(info.is_aof_base))?;
        if !info.slot_states.is_empty() {
            writer.write_aux("cluster-slot-states", info.slot_states.as_bytes())?;
        }
        Ok(writer)
    }

    /// Writes a function library. Must be called before the first key.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn write_function(&mut self, code: &[u8]) -> io::Result<()> {
        self.encoder.write_byte(FUNCTION_OPCODE)?;
        self.encoder.write_string(code)
    }

    fn write_aux_number(&mut self, name: &str, value: i64) -> io::Result<()> {
        self.write_aux(name, itoa::Buffer::new().format(value).as_bytes())
    }

    fn write_aux(&mut self, name: &str, value: &[u8]) -> io::Result<()> {
        self.encoder.write_byte(AUX_OPCODE)?;
        self.encoder.write_string(name.as_bytes())?;
        self.encoder.write_string(value)
    }

    /// Writes a key, or a further part of its value. Selects the key's database first if it is not the current one.
    /// `sizes` returns the number of keys and of keys with an expiry; it is called once per database and lets a loader
    /// preallocate memory.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn write_entry(
        &mut self,
        entry: &SnapshotEntry<'_>,
        sizes: impl FnOnce(u16) -> (usize, usize),
    ) -> io::Result<()> {
        if let SnapshotValue::Part(part) = &entry.value
            && !part.is_first
        {
            return value::write_part(self.current_type, part, &mut self.encoder);
        }
        if self.selected_db != Some(entry.db) {
            self.select_db(entry.db, sizes)?;
        }
        if let Some(Millis(expiry)) = entry.expiry {
            self.encoder.write_byte(EXPIRE_MILLIS_OPCODE)?;
            self.encoder.write_bytes(&expiry.to_le_bytes())?;
        }
        match self.usage_format {
            UsageFormat::None => {}
            UsageFormat::Idle(now) => {
                self.encoder.write_byte(IDLE_TIME_OPCODE)?;
                self.encoder.write_len(entry.usage.idle_seconds(now))?;
            }
            UsageFormat::Frequency(now, settings) => {
                self.encoder.write_bytes(&[FREQUENCY_OPCODE, entry.usage.frequency(now, settings)])?;
            }
        }
        self.current_type = value::snapshot_type_code(&entry.value, self.dialect);
        self.encoder.write_byte(self.current_type)?;
        self.encoder.write_string(entry.key)?;
        match &entry.value {
            SnapshotValue::Whole(value) => value::write(self.current_type, value, &mut self.encoder),
            SnapshotValue::Part(part) => value::write_part(self.current_type, part, &mut self.encoder),
        }
    }

    fn select_db(&mut self, db: u16, sizes: impl FnOnce(u16) -> (usize, usize)) -> io::Result<()> {
        self.encoder.write_byte(SELECT_DB_OPCODE)?;
        self.encoder.write_len(u64::from(db))?;
        self.selected_db = Some(db);
        if !self.dbs_with_sizes.contains(&db) {
            let (keys, volatile) = sizes(db);
            self.dbs_with_sizes.push(db);
            self.encoder.write_byte(RESIZE_DB_OPCODE)?;
            self.encoder.write_len(keys as u64)?;
            self.encoder.write_len(volatile as u64)?;
        }
        Ok(())
    }

    /// Returns the number of bytes written so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.encoder.bytes_written()
    }

    /// Writes the end marker and the checksum. The caller must sync the output to make the file durable.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.encoder.write_byte(END_OF_FILE_OPCODE)?;
        let checksum = self.encoder.checksum()?;
        self.encoder.write_bytes(&checksum.to_le_bytes())?;
        self.encoder.finish()
    }
}
