//! A base as commands (`aof-use-rdb-preamble no`): those that make the data again, as every Redis since 7.0 runs them.
//!
//! A collection is added by so many elements a command, so that none is longer than a client's would be; that is also how
//! a large value comes out of a snapshot. The time of a key follows its last element, for a time that has passed would
//! delete what there is of it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clock::Millis;
use keyspace::{
    Cursor, Elements, Field, FieldsPart, Head, ItemDigits, Piece, Scored, Shown, SnapshotEntry, StreamId,
    Value, node_entries,
};
use resp::encode_request;

/// Elements a command, as in Redis.
const MOST_ELEMENTS: usize = 64;
/// So much is gathered before it is written.
const PIECE: usize = 64 << 10;

/// Writes commands that make the entries of a snapshot.
#[derive(Debug)]
pub struct CommandWriter<W> {
    out: W,
    /// Commands that are not written yet.
    ready: Vec<u8>,
    selected: u16,
    key: Vec<u8>,
    /// Of the key, to be said behind its last element.
    expiry: Option<Millis>,
    elements: Elements64,
    group: Group,
    /// Entries of the stream so far.
    entries: u64,
}

/// A command for some elements that is being made.
#[derive(Debug, Default)]
struct Elements64 {
    name: &'static str,
    words: Vec<u8>,
    count: usize,
    elements: usize,
}

/// The group of a stream that is being written.
#[derive(Debug, Default)]
struct Group {
    name: Vec<u8>,
    consumer: Vec<u8>,
    pending: BTreeMap<StreamId, (Millis, u64)>,
}

impl<W: Write> CommandWriter<W> {
    /// Writes to `out`. All errors are its own.
    pub fn new(out: W) -> Self {
        Self {
            out,
            ready: Vec::new(),
            selected: 0,
            key: Vec::new(),
            expiry: None,
            elements: Elements64::default(),
            group: Group::default(),
            entries: 0,
        }
    }

    /// Writes a library of functions. To be called before the first key.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.command(&[b"FUNCTION", b"LOAD", code]);
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
            Shown::Whole(value) => self.value(value),
            Shown::Part(part) => self.part(&part.elements),
        }
        self.flush_elements();
        self.write_ready(PIECE)
    }

    /// Writes the rest. The caller makes it durable.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_key();
        self.write_ready(0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_ready(&mut self, least: usize) -> io::Result<()> {
        if self.ready.len() > least {
            self.out.write_all(&self.ready)?;
            self.ready.clear();
        }
        Ok(())
    }

    fn command(&mut self, words: &[&[u8]]) {
        encode_request(&mut self.ready, words.iter().copied());
    }

    fn begin(&mut self, entry: &SnapshotEntry<'_>) {
        self.end_key();
        if entry.db != self.selected {
            self.selected = entry.db;
            self.command(&[b"SELECT", itoa::Buffer::new().format(entry.db).as_bytes()]);
        }
        self.key.clear();
        self.key.extend_from_slice(entry.key);
        self.expiry = entry.expiry;
        self.entries = 0;
    }

    fn end_key(&mut self) {
        if let Some(Millis(at)) = self.expiry.take() {
            let key = std::mem::take(&mut self.key);
            self.command(&[b"PEXPIREAT", &key, itoa::Buffer::new().format(at).as_bytes()]);
        }
    }

    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::String(string) => match self.expiry.take() {
                None => encode_request(&mut self.ready, [&b"SET"[..], &self.key, string.bytes]),
                Some(Millis(at)) => {
                    let mut digits = itoa::Buffer::new();
                    let at = digits.format(at).as_bytes();
                    encode_request(&mut self.ready, [&b"SET"[..], &self.key, string.bytes, b"PXAT", at]);
                }
            },
            Value::List(list) => list.for_each(&mut |item| {
                self.element("RPUSH", &[item.bytes(&mut ItemDigits::default())]);
            }),
            Value::Set(set) => set.for_each(&mut |member| self.element("SADD", &[&member])),
            Value::SortedSet(set) => {
                set.visit(0..set.len(), false, &mut |member| {
                    self.scored(&member);
                    true
                });
            }
            Value::Hash(hash) => {
                hash.for_each(&mut |field| self.element("HSET", &[field.name, field.value]));
                hash.for_each(&mut |field| self.field_time(&field));
            }
            Value::Stream(stream) => {
                let (stream, mut cursor) = (stream.read(), Cursor::default());
                while let Some(piece) = cursor.next(&stream) {
                    self.piece(&piece);
                }
            }
        }
    }

    fn part(&mut self, elements: &Elements<'_>) {
        match elements {
            Elements::List(part) => part.for_each_run(&mut |run| {
                run.items().for_each(|item| self.element("RPUSH", &[item.bytes(&mut ItemDigits::default())]));
            }),
            Elements::Set(members) => members.for_each(&mut |member| self.element("SADD", &[member.name])),
            Elements::SortedSet(members) => members.for_each(&mut |member| self.scored(&member)),
            Elements::Hash(fields) => self.fields(fields),
            Elements::Stream(pieces) => pieces.for_each(&mut |piece| self.piece(&piece)),
        }
    }

    fn fields(&mut self, fields: &FieldsPart<'_>) {
        fields.for_each(&mut |field| self.element("HSET", &[field.name, field.value]));
        if fields.any_expires {
            fields.for_each(&mut |field| self.field_time(&field));
        }
    }

    /// Behind the fields of a part: a time that has passed deletes its field.
    fn field_time(&mut self, field: &Field<'_>) {
        self.flush_elements();
        if let Some(Millis(at)) = field.expiry {
            let mut digits = itoa::Buffer::new();
            let words: [&[u8]; 6] =
                [b"HPEXPIREAT", &self.key, digits.format(at).as_bytes(), b"FIELDS", b"1", field.name];
            encode_request(&mut self.ready, words);
        }
    }

    fn scored(&mut self, member: &Scored<'_>) {
        // Either way the shortest digits that are this score again.
        self.element("ZADD", &[format!("{:?}", member.score).as_bytes(), member.name]);
    }

    /// Adds an element to the command that is being made, or begins one.
    fn element(&mut self, name: &'static str, words: &[&[u8]]) {
        if self.elements.elements == MOST_ELEMENTS {
            self.flush_elements();
        }
        let elements = &mut self.elements;
        elements.name = name;
        elements.elements += 1;
        for word in words {
            elements.count += 1;
            put_word(&mut elements.words, word);
        }
    }

    fn flush_elements(&mut self) {
        let Elements64 { name, count, .. } = self.elements;
        if count == 0 {
            return;
        }
        self.ready.push(b'*');
        self.ready.extend_from_slice(itoa::Buffer::new().format(count + 2).as_bytes());
        self.ready.extend_from_slice(b"\r\n");
        put_word(&mut self.ready, name.as_bytes());
        put_word(&mut self.ready, &self.key);
        self.ready.append(&mut self.elements.words);
        (self.elements.count, self.elements.elements) = (0, 0);
    }

    fn piece(&mut self, piece: &Piece<'_>) {
        match *piece {
            Piece::Nodes(_) | Piece::Consumers(_) => {}
            Piece::Node { id, bytes } => node_entries(id, bytes, &mut |entry| {
                self.entries += 1;
                let id = entry.id.to_string();
                let (mut words, mut count) = (Vec::new(), 0);
                entry.for_each(&mut |name, value| {
                    put_word(&mut words, name);
                    put_word(&mut words, value);
                    count += 2;
                });
                self.ready.extend_from_slice(format!("*{}\r\n", count + 3).as_bytes());
                [b"XADD", &self.key[..], id.as_bytes()]
                    .iter()
                    .for_each(|word| put_word(&mut self.ready, word));
                self.ready.append(&mut words);
            }),
            Piece::Head { head, .. } => self.head(&head),
            Piece::Group { name, last, read, .. } => {
                self.group = Group { name: name.to_vec(), ..Group::default() };
                let read = read.map_or_else(|| "-1".to_owned(), |read| read.to_string());
                let (key, last) = (std::mem::take(&mut self.key), last.to_string());
                self.command(&[
                    b"XGROUP",
                    b"CREATE",
                    &key,
                    name,
                    last.as_bytes(),
                    b"ENTRIESREAD",
                    read.as_bytes(),
                ]);
                self.key = key;
            }
            Piece::Pending { id, delivered, count } => {
                self.group.pending.insert(id, (delivered, count));
            }
            Piece::Consumer { name, .. } => {
                self.group.consumer = name.to_vec();
                let words: [&[u8]; 5] = [b"XGROUP", b"CREATECONSUMER", &self.key, &self.group.name, name];
                encode_request(&mut self.ready, words);
            }
            Piece::Owned(id) => self.owned(id),
        }
    }

    /// An empty stream is made by an entry that does not stay.
    fn head(&mut self, head: &Head) {
        let key = std::mem::take(&mut self.key);
        if self.entries == 0 {
            let first = StreamId { millis: 0, sequence: 1 };
            let id = head.last.max(first).to_string();
            self.command(&[b"XADD", &key, b"MAXLEN", b"0", id.as_bytes(), b"x", b"y"]);
        }
        let (last, added, deleted) =
            (head.last.to_string(), head.added.to_string(), head.max_deleted.to_string());
        let counts: [&[u8]; 4] = [b"ENTRIESADDED", added.as_bytes(), b"MAXDELETEDID", deleted.as_bytes()];
        self.command(&[&[&b"XSETID"[..], &key, last.as_bytes()][..], &counts].concat());
        self.key = key;
    }

    /// An entry that is pending with the consumer.
    fn owned(&mut self, id: StreamId) {
        let Some((Millis(delivered), count)) = self.group.pending.remove(&id) else { return };
        let (id, delivered, count) = (id.to_string(), delivered.to_string(), count.to_string());
        let Group { name, consumer, .. } = &self.group;
        let whose: [&[u8]; 6] = [b"XCLAIM", &self.key, name, consumer, b"0", id.as_bytes()];
        let how: [&[u8]; 6] =
            [b"TIME", delivered.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"JUSTID", b"FORCE"];
        encode_request(&mut self.ready, [whose, how].concat());
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
    use keyspace::{Naming, Str, Usage};

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
