//! Compares the data of two servers after a sequence.
//!
//! DEBUG DIGEST shows whether two servers have equal data. It can differ for equal data: servers differ in how they
//! digest hash fields with a TTL and in the digits of scores. If the digests differ, the keys are compared one by one.

use std::time::Duration;

use harness::{Connection, Node, Reply};

use crate::{Command, are_equivalent};

/// The time limit for a digest of the largest dataset.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(600);
/// The default number of databases of a server.
const DATABASE_COUNT: usize = 16;

pub(crate) struct ServerData {
    connection: Connection,
}

impl ServerData {
    pub(crate) fn connect(node: &Node) -> Self {
        let mut connection = node.connect();
        // The digest may have to read a hundred megabytes.
        connection.set_timeout(DIGEST_TIMEOUT);
        Self { connection }
    }

    /// Returns a query to which the two servers reply differently, with their replies.
    pub(crate) fn find_difference(&mut self, theirs: &mut Self) -> Option<(Command, Reply, Reply)> {
        if self.read_digest() == theirs.read_digest() {
            return None;
        }
        (0..DATABASE_COUNT).find_map(|database| self.find_difference_in(database, theirs))
    }

    /// Reads the digest after a scan of all keys, which makes the server delete expired keys.
    fn read_digest(&mut self) -> Reply {
        let mut lines: Vec<String> = (0..DATABASE_COUNT)
            // KEYS skips expired keys without deleting them.
            .flat_map(|database| [format!("SELECT {database}"), "SCAN 0 COUNT 100000000".to_owned()])
            .collect();
        lines.push("DEBUG DIGEST".to_owned());
        self.connection.call_lines(&lines).pop().expect("the last of many replies")
    }

    fn find_difference_in(&mut self, database: usize, theirs: &mut Self) -> Option<(Command, Reply, Reply)> {
        let select = format!("SELECT {database}");
        self.connection.call_line(&select).expect_ok();
        theirs.connection.call_line(&select).expect_ok();
        if let Some(found) = self.compare_replies(theirs, &command_from_words(&[b"KEYS", b"*"])) {
            return Some(found);
        }
        let mut keys: Vec<Vec<u8>> = list_elements(&self.connection.call_line("KEYS *"));
        keys.sort();
        keys.iter().find_map(|key| {
            let about_key: [&[&[u8]]; 2] = [&[b"TYPE", key], &[b"PEXPIRETIME", key]];
            let first =
                about_key.iter().find_map(|words| self.compare_replies(theirs, &command_from_words(words)));
            first.or_else(|| self.compare_values(theirs, key))
        })
    }

    fn compare_values(&mut self, theirs: &mut Self, key: &[u8]) -> Option<(Command, Reply, Reply)> {
        let kind = run_query(&mut self.connection, &command_from_words(&[b"TYPE", key]));
        if kind == Reply::Simple("zset".into()) {
            let all = command_from_words(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]);
            let [ours, theirs] =
                [&mut self.connection, &mut theirs.connection].map(|side| run_query(side, &all));
            return (members_with_scores(&ours) != members_with_scores(&theirs))
                .then_some((all, ours, theirs));
        }
        if kind != Reply::Simple("hash".into()) {
            return self.compare_replies(theirs, &command_from_words(&[b"DEBUG", b"DIGEST-VALUE", key]));
        }
        let fields = list_elements(&run_query(&mut self.connection, &command_from_words(&[b"HKEYS", key])));
        let count = fields.len().to_string();
        let mut times = command_from_words(&[b"HPEXPIRETIME", key, b"FIELDS", count.as_bytes()]);
        times.extend(fields);
        self.compare_replies(theirs, &command_from_words(&[b"HGETALL", key]))
            .or_else(|| self.compare_replies(theirs, &times))
            // Older servers do not have the commands for field TTLs.
            .filter(|(_, ours, theirs)| ![ours, theirs].iter().any(|it| it.is_error("ERR unknown command")))
    }

    fn compare_replies(&mut self, theirs: &mut Self, query: &Command) -> Option<(Command, Reply, Reply)> {
        let answers = [&mut self.connection, &mut theirs.connection].map(|side| run_query(side, query));
        let [ours, theirs] = answers;
        (!are_equivalent(query, &ours, &theirs)).then(|| (query.clone(), ours, theirs))
    }
}

/// The members of a sorted set with their scores as numbers.
fn members_with_scores(list: &Reply) -> Vec<(Vec<u8>, Option<f64>)> {
    let score = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    let words = list_elements(list);
    words.chunks_exact(2).map(|pair| (pair[0].clone(), score(&pair[1]))).collect()
}

fn run_query(connection: &mut Connection, query: &Command) -> Reply {
    connection.send(query).expect("the server takes commands");
    connection.read().expect("a reply")
}

fn command_from_words(words: &[&[u8]]) -> Command {
    words.iter().map(|word| word.to_vec()).collect()
}

fn list_elements(list: &Reply) -> Vec<Vec<u8>> {
    let bytes = |item: &Reply| if let Reply::Bulk(bytes) = item { bytes.clone() } else { Vec::new() };
    list.items().iter().map(bytes).collect()
}
