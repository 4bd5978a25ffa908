//! Compares the data of two servers after a sequence.
//!
//! DEBUG DIGEST shows whether two servers have equal data. It can differ for equal data: servers differ in how they
//! digest hash fields with a TTL and in the digits of scores. If the digests differ, the keys are compared one by one.

use std::time::Duration;

use harness::{Connection, Node, Value};

use crate::{Command, same};

/// The time limit for a digest of the largest dataset.
const DIGESTED: Duration = Duration::from_secs(600);
/// The default number of databases.
const DATABASES: usize = 16;

/// The data of one server.
pub(crate) struct Data {
    connection: Connection,
}

impl Data {
    pub(crate) fn of(node: &Node) -> Self {
        let mut connection = node.connect();
        // There may be a hundred million bytes to digest.
        connection.set_timeout(DIGESTED);
        Self { connection }
    }

    /// A query to which the two servers reply differently, and their replies.
    pub(crate) fn difference(&mut self, theirs: &mut Self) -> Option<(Command, Value, Value)> {
        if self.digest() == theirs.digest() {
            return None;
        }
        (0..DATABASES).find_map(|database| self.difference_in(database, theirs))
    }

    /// Scans all keys first, which makes both servers delete expired ones.
    fn digest(&mut self) -> Value {
        let mut lines: Vec<String> = (0..DATABASES)
            // KEYS skips expired keys without deleting them.
            .flat_map(|database| [format!("SELECT {database}"), "SCAN 0 COUNT 100000000".to_owned()])
            .collect();
        lines.push("DEBUG DIGEST".to_owned());
        self.connection.run_all(&lines).pop().expect("the last of many replies")
    }

    fn difference_in(&mut self, database: usize, theirs: &mut Self) -> Option<(Command, Value, Value)> {
        let select = format!("SELECT {database}");
        self.connection.run(&select).expect_ok();
        theirs.connection.run(&select).expect_ok();
        if let Some(found) = self.answers_differ(theirs, &command(&[b"KEYS", b"*"])) {
            return Some(found);
        }
        let mut keys: Vec<Vec<u8>> = bytes_of(&self.connection.run("KEYS *"));
        keys.sort();
        keys.iter().find_map(|key| {
            let about_key: [&[&[u8]]; 2] = [&[b"TYPE", key], &[b"PEXPIRETIME", key]];
            let first = about_key.iter().find_map(|words| self.answers_differ(theirs, &command(words)));
            first.or_else(|| self.values_differ(theirs, key))
        })
    }

    fn values_differ(&mut self, theirs: &mut Self, key: &[u8]) -> Option<(Command, Value, Value)> {
        let kind = ask(&mut self.connection, &command(&[b"TYPE", key]));
        if kind == Value::Simple("zset".into()) {
            let all = command(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]);
            let [ours, theirs] = [&mut self.connection, &mut theirs.connection].map(|side| ask(side, &all));
            return (scored(&ours) != scored(&theirs)).then_some((all, ours, theirs));
        }
        if kind != Value::Simple("hash".into()) {
            return self.answers_differ(theirs, &command(&[b"DEBUG", b"DIGEST-VALUE", key]));
        }
        let fields = bytes_of(&ask(&mut self.connection, &command(&[b"HKEYS", key])));
        let count = fields.len().to_string();
        let mut times = command(&[b"HPEXPIRETIME", key, b"FIELDS", count.as_bytes()]);
        times.extend(fields);
        self.answers_differ(theirs, &command(&[b"HGETALL", key]))
            .or_else(|| self.answers_differ(theirs, &times))
            // An older server does not have the commands for field TTLs.
            .filter(|(_, ours, theirs)| ![ours, theirs].iter().any(|it| it.is_error("ERR unknown command")))
    }

    fn answers_differ(&mut self, theirs: &mut Self, question: &Command) -> Option<(Command, Value, Value)> {
        let answers = [&mut self.connection, &mut theirs.connection].map(|side| ask(side, question));
        let [ours, theirs] = answers;
        (!same(question, &ours, &theirs)).then(|| (question.clone(), ours, theirs))
    }
}

/// The members of a sorted set with their scores as numbers.
fn scored(list: &Value) -> Vec<(Vec<u8>, Option<f64>)> {
    let score = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    let words = bytes_of(list);
    words.chunks_exact(2).map(|pair| (pair[0].clone(), score(&pair[1]))).collect()
}

fn ask(connection: &mut Connection, question: &Command) -> Value {
    connection.send(question).expect("the server takes commands");
    connection.read().expect("a reply")
}

fn command(words: &[&[u8]]) -> Command {
    words.iter().map(|word| word.to_vec()).collect()
}

fn bytes_of(list: &Value) -> Vec<Vec<u8>> {
    let bytes = |item: &Value| if let Value::Bulk(bytes) = item { bytes.clone() } else { Vec::new() };
    list.items().iter().map(bytes).collect()
}
