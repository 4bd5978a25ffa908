//! A base as commands (`aof-use-rdb-preamble no`): those that make the data again, as every Redis since 7.0 runs them.
//!
//! A collection is added by so many elements a command, so that none is longer than a client's would be; that is also how
//! a large value comes out of a snapshot. The time of a key follows its last element, for a time that has passed would
//! delete what there is of it. Which commands those are is each kind's own ([`crate::value`]).

use std::io::{self, Write};

use clock::Millis;
use keyspace::{Shown, SnapshotEntry};
use resp::encode_request;

use crate::value::{StreamCommands, add_commands, add_part_commands};

/// Elements a command, as in Redis.
const MOST_ELEMENTS: usize = 64;
/// So much is gathered before it is written.
const PIECE: usize = 64 << 10;

/// Writes commands that make the entries of a snapshot.
#[derive(Debug)]
pub struct CommandWriter<W> {
    out: W,
    selected: u16,
    commands: Commands,
}

/// The commands that make the values of keys, one key after another.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Those that are not written yet.
    ready: Vec<u8>,
    key: Vec<u8>,
    /// Of the key, to be said behind its last element.
    expiry: Option<Millis>,
    elements: Elements64,
    /// How far the stream is that is being written, if the key has one.
    pub(crate) stream: StreamCommands,
}

/// A command for some elements that is being made.
#[derive(Debug, Default)]
struct Elements64 {
    name: &'static str,
    words: Words,
    elements: usize,
}

/// Words of a command, in the form of the protocol.
#[derive(Debug, Default)]
pub(crate) struct Words {
    bytes: Vec<u8>,
    count: usize,
}

impl Words {
    pub(crate) fn push(&mut self, word: &[u8]) {
        self.count += 1;
        put_word(&mut self.bytes, word);
    }
}

impl<W: Write> CommandWriter<W> {
    /// Writes to `out`. All errors are its own.
    pub fn new(out: W) -> Self {
        Self { out, selected: 0, commands: Commands::default() }
    }

    /// Writes a library of functions. To be called before the first key.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.commands.add(&[b"FUNCTION", b"LOAD", code]);
        self.write_ready(PIECE)
    }

    /// Writes one key, or a further part of its value.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn entry(&mut self, entry: &SnapshotEntry<'_>) -> io::Result<()> {
        if !matches!(&entry.value, Shown::Part(part) if !part.first) {
            self.begin(entry);
        }
        match &entry.value {
            Shown::Whole(value) => add_commands(value, &mut self.commands),
            Shown::Part(part) => add_part_commands(part, &mut self.commands),
        }
        self.commands.flush_elements();
        self.write_ready(PIECE)
    }

    /// Writes the rest. The caller makes it durable.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.commands.end_key();
        self.write_ready(0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_ready(&mut self, least: usize) -> io::Result<()> {
        let ready = &mut self.commands.ready;
        if ready.len() > least {
            self.out.write_all(ready)?;
            ready.clear();
        }
        Ok(())
    }

    fn begin(&mut self, entry: &SnapshotEntry<'_>) {
        self.commands.end_key();
        if entry.db != self.selected {
            self.selected = entry.db;
            self.commands.add(&[b"SELECT", itoa::Buffer::new().format(entry.db).as_bytes()]);
        }
        self.commands.begin_key(entry.key, entry.expiry);
    }
}

impl Commands {
    fn add(&mut self, words: &[&[u8]]) {
        encode_request(&mut self.ready, words.iter().copied());
    }

    /// Adds a command whose second word is the key.
    pub(crate) fn about_key(&mut self, name: &str, words: &[&[u8]]) {
        let all = [name.as_bytes(), &self.key].into_iter().chain(words.iter().copied());
        encode_request(&mut self.ready, all.collect::<Vec<_>>());
    }

    /// The same where the name of a subcommand stands between.
    pub(crate) fn about_key_of(&mut self, name: &str, subcommand: &str, words: &[&[u8]]) {
        let all =
            [name.as_bytes(), subcommand.as_bytes(), &self.key].into_iter().chain(words.iter().copied());
        encode_request(&mut self.ready, all.collect::<Vec<_>>());
    }

    /// The same with words that were gathered, which are taken.
    pub(crate) fn about_key_with(&mut self, name: &str, words: &mut Words) {
        self.ready.push(b'*');
        self.ready.extend_from_slice(itoa::Buffer::new().format(words.count + 2).as_bytes());
        self.ready.extend_from_slice(b"\r\n");
        put_word(&mut self.ready, name.as_bytes());
        put_word(&mut self.ready, &self.key);
        self.ready.append(&mut words.bytes);
        words.count = 0;
    }

    fn begin_key(&mut self, key: &[u8], expiry: Option<Millis>) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.expiry = expiry;
        self.stream = StreamCommands::default();
    }

    /// The time of the key, which is said behind its value unless it is taken.
    pub(crate) fn take_expiry(&mut self) -> Option<Millis> {
        self.expiry.take()
    }

    fn end_key(&mut self) {
        if let Some(Millis(at)) = self.expiry.take() {
            self.about_key("PEXPIREAT", &[itoa::Buffer::new().format(at).as_bytes()]);
        }
    }

    /// Adds an element to the command that is being made, or begins one.
    pub(crate) fn element(&mut self, name: &'static str, words: &[&[u8]]) {
        if self.elements.elements == MOST_ELEMENTS {
            self.flush_elements();
        }
        let elements = &mut self.elements;
        elements.name = name;
        elements.elements += 1;
        words.iter().for_each(|word| elements.words.push(word));
    }

    /// What follows comes behind the elements so far.
    pub(crate) fn flush_elements(&mut self) {
        let Elements64 { name, mut words, elements } = std::mem::take(&mut self.elements);
        if elements > 0 {
            self.about_key_with(name, &mut words);
        }
        self.elements.words = words;
    }
}

fn put_word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    out.extend_from_slice(itoa::Buffer::new().format(word.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use keyspace::{Naming, Str, Usage, Value};

    use super::*;

    /// Database, key, value, expiry.
    type Row = (u16, &'static [u8], &'static [u8], Option<i64>);

    fn written(entries: &[Row]) -> String {
        let mut writer = CommandWriter::new(Vec::new());
        writer.function(b"#!lua name=lib").unwrap();
        for (db, key, value, expiry) in entries {
            let value = Shown::Whole(Value::String(Str { bytes: value, naming: Naming::ByContent }));
            let expiry = expiry.map(Millis);
            writer.entry(&SnapshotEntry { db: *db, key, value, expiry, usage: Usage(0) }).unwrap();
        }
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }

    #[test]
    fn strings_databases_and_libraries() {
        let text = written(&[(0, b"a", b"1", None), (3, b"b", b"2", Some(5))]);
        let words: Vec<&str> = text.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
        let expected = "FUNCTION LOAD #!lua name=lib|SET a 1|SELECT 3|SET b 2 PXAT 5";
        assert_eq!(words.join(" "), expected.replace('|', " "));
        assert!(crate::aof::check(text.as_bytes(), None).unwrap().is_whole());
    }
}
