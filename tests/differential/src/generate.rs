//! From a seed to a sequence of commands.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Command;
use crate::grammar::{Form, Grammar, Part};

/// Few, so that commands meet; among them an empty one, one with a hash tag, one that is no text, and two that
/// are mostly hashes.
const KEYS: &[&[u8]] = &[b"a", b"b", b"c", b"{t}1", b"{t}2", b"", b"\x00\xff\r\n", b"key:1", b"h", b"{t}h"];
const HASHES: &[&[u8]] = &[b"h", b"h", b"h", b"h", b"{t}h", b"{t}h", b"{t}h", b"a", b"{t}1"];
/// The last one is longer than what Redis keeps in a listpack.
const FIELDS: &[&[u8]] = &[
    b"f",
    b"g",
    b"field",
    b"n",
    b"n",
    b"1",
    b"-5",
    b"",
    b"\x00\xff\r\n",
    b"sixty-four bytes are the most that a listpack takes for a field's name",
];
const DATABASES: &[&str] = &["0", "1", "2", "0", "1", "15", "16", "-1", "x", "1.5", "9999999999999999999"];
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "10",
    "-0",
    "+5",
    "007",
    "9999",
    "10000",
    "9223372036854775806",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "3.14",
    "-2.5",
    "1e3",
    "1e400",
    "inf",
    "nan",
    " 1",
    "1 ",
    "0x10",
    "hello",
    "ohmytext",
    "mynewtext",
    "forty-four bytes are embedded in Redis's way",
    "forty-five bytes and more are a string apart.",
];
const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "7",
    "-300",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1.5",
    "x",
    "",
];
const FLOATS: &[&str] = &[
    "0",
    "1",
    "0.1",
    "-2.5",
    "3.0e3",
    "1e-7",
    "200",
    "1e17",
    "1e308",
    "1e309",
    "inf",
    "-inf",
    "nan",
    "x",
    "",
    " 1",
    "5e-324",
    "0.1e1",
    "123456789.123456789",
];
const INDICES: &[&str] =
    &["0", "1", "2", "3", "5", "10", "44", "100", "-1", "-2", "-5", "-100", "9223372036854775807", "x", ""];
/// Either an error or small: an accepted offset of hundreds of megabytes would be allocated.
const OFFSETS: &[&str] = &["0", "1", "5", "43", "100", "-1", "536870912", "9223372036854775807", "x"];
const COUNTS: &[&str] = &["10", "100000", "0", "-1", "x"];
/// Gone already or hours away, so that no reply depends on how fast the test runs. Divisible only where it shows.
const SECONDS: &[&str] = &[
    "10000",
    "20000",
    "30000",
    "40000",
    "0",
    "-1",
    "-100",
    "9223372036854775",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "1.5",
    "",
];
const MILLISECONDS: &[&str] = &["15000000", "25000000", "35000000", "0", "-1", "-9223372036854775808", "x"];
const UNIX_SECONDS: &[&str] = &["4102444800", "4202444800", "1000", "0", "-1", "9223372036854775807", "x"];
const UNIX_MILLISECONDS: &[&str] = &["4152444800000", "99999999999999", "1000", "0", "-1", "x"];
const RESTORE_TTLS: &[&str] = &["0", "0", "0", "25000000", "4152444800000", "-1", "x"];
const PATTERNS: &[&str] = &[
    "*", "a", "?", "[a-c]", "[^a]", "key:*", "\\a", "{t}*", "*[", "[c-a]", "**", "*1", "", "h?llo", "[\\a]",
];
const TYPES: &[&str] = &["string", "hash", "list", "STRING", "nosuchtype"];
/// None of them is one.
const CURSORS: &[&str] = &["x", "1.5", "18446744073709551616", " 0", "0x"];
const NAMES: &[&str] = &["app", "an app", "app\n", "", "name-1"];
const SUBCOMMANDS: &[&str] =
    &["NOSUCH", "", "get", "nosuch\r\n", "ENCODING", "GETNAME", "SETNAME", "GETKEYS"];
const PARAMETERS: &[&str] = &[
    "timeout",
    "maxmemory-policy",
    "databases",
    "MAXMEMORY",
    "appendonly",
    "proto-max-bulk-len",
    "nosuch",
    "cluster-enabled",
    "cluster-node-timeout",
    "repl-timeout",
    "maxmemory-sampl?s",
    "hz",
    "repl-backlog-size",
    "min-replicas-*",
    "client-output-buffer-limit",
];
const COMMAND_LINES: &[&[&str]] = &[
    &["GET", "a"],
    &["MSET", "a", "1", "b", "2"],
    &["COPY", "a", "b"],
    &["NOSUCH", "a"],
    &["SET", "a", "b", "EX", "10"],
    &["DEL", "a", "b", "c"],
    &["MIGRATE", "h", "1", "k", "0", "10"],
    &["MIGRATE", "h", "1", "", "0", "10"],
    &["MIGRATE", "h", "1", "", "0", "10", "COPY", "KEYS", "a", "b"],
    &["MIGRATE", "h", "1", "k", "0", "10", "KEYS", "a", "b"],
    &["LCS", "a", "b"],
];
/// What an argument is replaced by. No small positive number: as a time it would expire under the test.
const NONSENSE: &[&str] = &[
    "",
    "nonsense",
    "-1",
    "0",
    "1000000",
    "9223372036854775808",
    "1.5",
    "NX",
    "XX",
    "GET",
    "EX",
    "PX",
    "KEEPTTL",
    "*",
    "REPLACE",
    "DB",
    "\u{0}",
    "COUNT",
    "nan",
];

const KINDS: &[&str] = &[
    "key",
    "hash",
    "field",
    "value",
    "int",
    "float",
    "index",
    "offset",
    "count",
    "sec",
    "msec",
    "at",
    "msat",
    "restorettl",
    "db",
    "pattern",
    "type",
    "cursor",
    "name",
    "subcommand",
    "parameter",
    "commandline",
    "payload",
];

pub(crate) fn is_kind(word: &str) -> bool {
    KINDS.contains(&word)
}

/// Makes commands from a seed.
#[derive(Debug)]
pub struct Generator<'a> {
    grammar: &'a Grammar,
    /// Serialized values that a real Redis made, for RESTORE.
    payloads: &'a [Vec<u8>],
    random: ChaCha8Rng,
}

impl<'a> Generator<'a> {
    /// The same seed makes the same commands.
    #[must_use]
    pub fn new(grammar: &'a Grammar, payloads: &'a [Vec<u8>], seed: u64) -> Self {
        Self { grammar, payloads, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// This many commands, then those that look at what they left behind.
    #[must_use]
    pub fn sequence(&mut self, length: usize) -> Vec<Command> {
        let mut commands: Vec<Command> = (0..length).map(|_| self.command()).collect();
        for database in ["0", "1", "2"] {
            commands.push(words(&["SELECT", database]));
            commands.push(words(&["KEYS", "*"]));
            for key in KEYS {
                let looks = [("GET", None), ("HGETALL", None), ("PTTL", None), ("OBJECT", Some("ENCODING"))];
                for (name, argument) in looks {
                    let mut command = words(&[name]);
                    command.extend(argument.map(|argument| argument.as_bytes().to_vec()));
                    command.push(key.to_vec());
                    commands.push(command);
                }
            }
        }
        commands
    }

    fn command(&mut self) -> Command {
        let form = self.form();
        let mut command = Command::new();
        self.expand(&form.parts, &mut command);
        self.mutilate(form, &mut command);
        command
    }

    /// A form, each as often as its weight says.
    fn form(&mut self) -> &'a Form {
        let total: u32 = self.grammar.forms.iter().map(|form| form.weight).sum();
        let mut left = self.random.random_range(0..total);
        self.grammar
            .forms
            .iter()
            .find(|form| {
                let chosen = left < form.weight;
                left = left.saturating_sub(form.weight);
                chosen
            })
            .expect("the draw is below the sum of the weights")
    }

    fn expand(&mut self, parts: &[Part], out: &mut Command) {
        for part in parts {
            match part {
                Part::Word(word) => out.push(self.in_some_case(word)),
                Part::Kind(kind) => self.argument(kind, out),
                Part::Optional(inner) => {
                    if self.random.random_ratio(1, 3) {
                        self.expand(inner, out);
                    }
                }
                Part::Choice(choices) => {
                    let chosen = self.random.random_range(0..choices.len());
                    self.expand(&choices[chosen], out);
                }
                Part::Repeated(inner) => {
                    for _ in 0..self.random.random_range(1..=3) {
                        self.expand(inner, out);
                    }
                }
            }
        }
    }

    fn in_some_case(&mut self, word: &str) -> Vec<u8> {
        match self.random.random_range(0..10) {
            0 => word.to_lowercase().into_bytes(),
            _ => word.as_bytes().to_vec(),
        }
    }

    fn argument(&mut self, kind: &str, out: &mut Command) {
        let from = match kind {
            "key" => {
                out.push(KEYS.choose(&mut self.random).expect("not empty").to_vec());
                return;
            }
            "hash" => {
                out.push(HASHES.choose(&mut self.random).expect("not empty").to_vec());
                return;
            }
            "field" => {
                out.push(FIELDS.choose(&mut self.random).expect("not empty").to_vec());
                return;
            }
            "value" => {
                out.push(self.value());
                return;
            }
            "payload" => {
                out.push(self.payload());
                return;
            }
            "commandline" => {
                out.extend(words(COMMAND_LINES.choose(&mut self.random).expect("not empty")));
                return;
            }
            "int" => INTEGERS,
            "float" => FLOATS,
            "index" => INDICES,
            "offset" => OFFSETS,
            "count" => COUNTS,
            "sec" => SECONDS,
            "msec" => MILLISECONDS,
            "at" => UNIX_SECONDS,
            "msat" => UNIX_MILLISECONDS,
            "restorettl" => RESTORE_TTLS,
            "db" => DATABASES,
            "pattern" => PATTERNS,
            "type" => TYPES,
            "cursor" => CURSORS,
            "name" => NAMES,
            "subcommand" => SUBCOMMANDS,
            "parameter" => PARAMETERS,
            _ => unreachable!("{kind} is in KINDS"),
        };
        out.push(from.choose(&mut self.random).expect("not empty").as_bytes().to_vec());
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.random_range(0..8) {
            0 => {
                let length = self.random.random_range(0..40);
                (0..length).map(|_| self.random.random()).collect()
            }
            1 => vec![b'x'; self.random.random_range(1..600)],
            2 => self.random.random_range(-100_000_i64..100_000).to_string().into_bytes(),
            _ => VALUES.choose(&mut self.random).expect("not empty").as_bytes().to_vec(),
        }
    }

    /// A payload, sometimes with a byte changed: the checksum must notice.
    fn payload(&mut self) -> Vec<u8> {
        let mut payload = self.payloads.choose(&mut self.random).cloned().unwrap_or_default();
        if !payload.is_empty() && self.random.random_ratio(1, 6) {
            let at = self.random.random_range(0..payload.len());
            payload[at] ^= 1 << self.random.random_range(0..8);
        }
        payload
    }

    /// Once in twelve, an argument is dropped, doubled, replaced or added.
    fn mutilate(&mut self, form: &Form, command: &mut Command) {
        if !form.may_be_mutilated || command.is_empty() || !self.random.random_ratio(1, 12) {
            return;
        }
        let nonsense = NONSENSE.choose(&mut self.random).expect("not empty").as_bytes().to_vec();
        let at = self.random.random_range(1..=command.len());
        match self.random.random_range(0..4) {
            0 if at < command.len() => {
                command.remove(at);
            }
            1 if at < command.len() => command.insert(at, command[at].clone()),
            2 if at < command.len() => command[at] = nonsense,
            _ => command.insert(at, nonsense),
        }
    }
}

fn words(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_commands() {
        let grammar = Grammar::all();
        let make = |seed| Generator::new(&grammar, &[], seed).sequence(300);
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }
}
