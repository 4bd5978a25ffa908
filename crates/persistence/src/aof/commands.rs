//! Writes an AOF base as commands (`aof-use-rdb-preamble no`) that recreate the data on any Redis since 7.0.
//!
//! A collection is written with a limited number of elements per command, because a snapshot may deliver a large value
//! in parts, and commands stay short. A key's expiry is set after its last element; otherwise an expired key would be
//! deleted before it is complete. Each value type defines its own commands ([`crate::value`]).

use std::io::{self, Write};

use keyspace::{SnapshotEntry, SnapshotValue};

use crate::value::{Commands, add_commands, add_part_commands};

/// Number of buffered bytes above which the buffer is written out.
const BUFFER_LEN: usize = 64 << 10;

/// Writes commands that recreate the entries of a snapshot.
#[derive(Debug)]
pub struct CommandWriter<W> {
    out: W,
    selected_db: u16,
    commands: Commands,
}

impl<W: Write> CommandWriter<W> {
    /// Creates a writer that sends its output to `out`.
    pub fn new(out: W) -> Self {
        Self { out, selected_db: 0, commands: Commands::default() }
    }

    /// Writes a function library. Must be called before the first key.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn write_function(&mut self, code: &[u8]) -> io::Result<()> {
        self.commands.add(&[b"FUNCTION", b"LOAD", code]);
        self.write_if_longer_than(BUFFER_LEN)
    }

    /// Writes a key, or a further part of its value.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn write_entry(&mut self, entry: &SnapshotEntry<'_>) -> io::Result<()> {
        if !matches!(&entry.value, SnapshotValue::Part(part) if !part.is_first) {
            self.begin_entry(entry);
        }
        match &entry.value {
            SnapshotValue::Whole(value) => add_commands(value, &mut self.commands),
            SnapshotValue::Part(part) => add_part_commands(part, &mut self.commands),
        }
        self.commands.flush_elements();
        self.write_if_longer_than(BUFFER_LEN)
    }

    /// Writes the remaining commands. The caller must sync the output to make them durable.
    ///
    /// # Errors
    /// Writing to the output failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.commands.end_key();
        self.write_if_longer_than(0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_if_longer_than(&mut self, min_bytes: usize) -> io::Result<()> {
        let ready = &mut self.commands.encoded_commands;
        if ready.len() > min_bytes {
            self.out.write_all(ready)?;
            ready.clear();
        }
        Ok(())
    }

    fn begin_entry(&mut self, entry: &SnapshotEntry<'_>) {
        self.commands.end_key();
        if entry.db != self.selected_db {
            self.selected_db = entry.db;
            self.commands.add(&[b"SELECT", itoa::Buffer::new().format(entry.db).as_bytes()]);
        }
        self.commands.begin_key(entry.key, entry.expiry);
    }
}

#[cfg(test)]
mod tests {
    use clock::Millis;
    use keyspace::{EncodingHint, StringRef, Usage, Value};

    use super::*;

    /// Columns: database, key, value, expiry.
    type ExpectedCommand = (u16, &'static [u8], &'static [u8], Option<i64>);

    fn written_commands(entries: &[ExpectedCommand]) -> String {
        let mut writer = CommandWriter::new(Vec::new());
        writer.write_function(b"#!lua name=lib").unwrap();
        for (db, key, value, expiry) in entries {
            let value = SnapshotValue::Whole(Value::String(StringRef {
                bytes: value,
                encoding_hint: EncodingHint::ByContent,
            }));
            let expiry = expiry.map(Millis);
            writer.write_entry(&SnapshotEntry { db: *db, key, value, expiry, usage: Usage(0) }).unwrap();
        }
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }

    #[test]
    fn writes_strings_databases_and_libraries() {
        let text = written_commands(&[(0, b"a", b"1", None), (3, b"b", b"2", Some(5))]);
        let words: Vec<&str> = text.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
        let expected = "FUNCTION LOAD #!lua name=lib|SET a 1|SELECT 3|SET b 2 PXAT 5";
        assert_eq!(words.join(" "), expected.replace('|', " "));
        assert!(crate::aof::check_aof(text.as_bytes(), None).unwrap().is_complete());
    }
}
