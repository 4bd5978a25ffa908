//! From a seed to a sequence of commands.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Command;
use crate::grammar::{Form, Grammar, Part};

/// Kinds of arguments that are made here; the others are lists of words in the tables.
const MADE: &[&str] = &["commandline", "payload", "value"];
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
/// The words that an argument is replaced by. No small positive number: as a time it would expire under the test.
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

/// Whether arguments of this kind are made by the generator.
pub(crate) fn is_made(kind: &str) -> bool {
    MADE.contains(&kind)
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
            commands.extend(self.grammar.looks.iter().flat_map(|look| self.grammar.each(look)));
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
        match kind {
            "value" => out.push(self.value()),
            "payload" => out.push(self.payload()),
            "commandline" => out.extend(words(COMMAND_LINES.choose(&mut self.random).expect("not empty"))),
            _ => out.push(self.word(kind)),
        }
    }

    /// A word of this kind.
    fn word(&mut self, kind: &str) -> Vec<u8> {
        self.grammar.words[kind].choose(&mut self.random).expect("a kind has words").clone()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.random_range(0..8) {
            0 => {
                let length = self.random.random_range(0..40);
                (0..length).map(|_| self.random.random()).collect()
            }
            1 => vec![b'x'; self.random.random_range(1..600)],
            2 => self.random.random_range(-100_000_i64..100_000).to_string().into_bytes(),
            _ => self.word("value"),
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
        if nonsense == b"*" && command[0].eq_ignore_ascii_case(b"XADD") {
            // An id by the clock.
            return;
        }
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
        let grammar = Grammar::of(crate::Peer::Valkey);
        let make = |seed| Generator::new(&grammar, &[], seed).sequence(300);
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }
}
