//! Generates a sequence of commands from a seed.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Command;
use crate::grammar::{CommandForm, Grammar, SyntaxPart};

/// Kinds of arguments that the generator creates; all others are lists of words in the tables.
const GENERATED_ARGUMENT_KINDS: &[&str] = &["commandline", "payload", "value"];
const NESTED_COMMANDS: &[&[&str]] = &[
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
/// Words that replace valid arguments. Small positive numbers are left out, because as a TTL they would expire during
/// the test.
const INVALID_ARGUMENTS: &[&str] = &[
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

/// Whether the generator creates arguments of this kind.
pub(crate) fn is_generated_kind(kind: &str) -> bool {
    GENERATED_ARGUMENT_KINDS.contains(&kind)
}

/// Generates commands from a seed.
#[derive(Debug)]
pub struct Generator<'a> {
    grammar: &'a Grammar,
    /// Serialized values for RESTORE, made by a real Redis.
    payloads: &'a [Vec<u8>],
    random: ChaCha8Rng,
    /// If set, only words that contain this tag are used for kinds that have such words.
    hash_tag: Option<&'static str>,
}

impl<'a> Generator<'a> {
    /// Creates a generator; equal seeds generate equal commands.
    #[must_use]
    pub fn new(grammar: &'a Grammar, payloads: &'a [Vec<u8>], seed: u64) -> Self {
        Self { grammar, payloads, random: ChaCha8Rng::seed_from_u64(seed), hash_tag: None }
    }

    /// Restricts the generator to keys of one slot, for kinds that have keys with a hash tag.
    #[must_use]
    pub fn with_keys_of_one_slot(self) -> Self {
        Self { hash_tag: Some("{t}"), ..self }
    }

    /// Generates `length` commands, followed by commands that inspect the resulting data.
    #[must_use]
    pub fn generate_sequence(&mut self, length: usize) -> Vec<Command> {
        let mut commands: Vec<Command> = (0..length).map(|_| self.generate_command()).collect();
        for database in ["0", "1", "2"] {
            commands.push(command_from_words(&["SELECT", database]));
            commands.push(command_from_words(&["KEYS", "*"]));
            commands.extend(
                self.grammar
                    .inspections
                    .iter()
                    .flat_map(|inspection| self.grammar.expand_inspection(inspection)),
            );
        }
        commands
    }

    /// Generates a valid command, sometimes with a mutated argument.
    #[must_use]
    pub fn generate_command(&mut self) -> Command {
        let form = self.random_form();
        let mut command = Command::new();
        self.expand_parts(&form.parts, &mut command);
        self.mutate_argument(form, &mut command);
        command
    }

    /// Generates a command with arguments moved, repeated, replaced and dropped at random: options come several times
    /// and in any order, option names stand where names and numbers belong, and numbers are wrong.
    #[must_use]
    pub fn generate_scrambled_command(&mut self) -> Command {
        let form = &self.grammar.forms[self.random.random_range(0..self.grammar.forms.len())];
        let mut command = Command::new();
        self.expand_parts(&form.parts, &mut command);
        for _ in 0..self.random.random_range(0..4) {
            self.scramble_argument(form, &mut command);
        }
        command
    }

    /// Changes one random argument of a command.
    fn scramble_argument(&mut self, form: &'a CommandForm, command: &mut Command) {
        if command.len() < 2 {
            return;
        }
        let at = self.random.random_range(1..command.len());
        let run = at..command.len().min(at + self.random.random_range(1..=3));
        match self.random.random_range(0..6) {
            0 | 1 => {
                let repeated: Vec<_> = command[run].to_vec();
                let to = self.random.random_range(1..=command.len());
                command.splice(to..to, repeated);
            }
            2 => {
                let moved: Vec<_> = command.drain(run).collect();
                let to = self.random.random_range(1..=command.len());
                command.splice(to..to, moved);
            }
            3 | 4 => command[at] = self.random_option(form),
            _ if self.random.random() => {
                let word = INVALID_ARGUMENTS.choose(&mut self.random);
                command[at] = word.map_or_else(Vec::new, |word| word.as_bytes().to_vec());
            }
            _ => drop(command.remove(at)),
        }
    }

    /// Returns an option name of this command form or of any other form.
    fn random_option(&mut self, form: &'a CommandForm) -> Vec<u8> {
        let any = self.grammar.forms.choose(&mut self.random).map_or(form, |form| form);
        let mut words = Vec::new();
        for form in [form, form, any] {
            collect_literals(&form.parts, &mut words);
        }
        // A command form may consist of placeholders only, even for the command name, and then has no literal word.
        let word = words.choose(&mut self.random).copied().unwrap_or("nonsense");
        self.random_case(word)
    }

    /// Returns a random form, chosen by the forms' weights.
    fn random_form(&mut self) -> &'a CommandForm {
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

    fn expand_parts(&mut self, parts: &[SyntaxPart], out: &mut Command) {
        for part in parts {
            match part {
                SyntaxPart::Word(word) => out.push(self.random_case(word)),
                SyntaxPart::ArgumentKind(kind) => self.append_argument(kind, out),
                SyntaxPart::Optional(inner) => {
                    if self.random.random_ratio(1, 3) {
                        self.expand_parts(inner, out);
                    }
                }
                SyntaxPart::Choice(choices) => {
                    let chosen = self.random.random_range(0..choices.len());
                    self.expand_parts(&choices[chosen], out);
                }
                SyntaxPart::Repeated(inner) => {
                    for _ in 0..self.random.random_range(1..=3) {
                        self.expand_parts(inner, out);
                    }
                }
            }
        }
    }

    fn random_case(&mut self, word: &str) -> Vec<u8> {
        match self.random.random_range(0..10) {
            0 => word.to_lowercase().into_bytes(),
            _ => word.as_bytes().to_vec(),
        }
    }

    fn append_argument(&mut self, kind: &str, out: &mut Command) {
        match kind {
            "value" => out.push(self.random_value()),
            "payload" => out.push(self.random_payload()),
            "commandline" => {
                out.extend(command_from_words(NESTED_COMMANDS.choose(&mut self.random).expect("not empty")));
            }
            _ => out.push(self.random_word(kind)),
        }
    }

    fn random_word(&mut self, kind: &str) -> Vec<u8> {
        let words = &self.grammar.word_lists[kind];
        if let Some(tag) = self.hash_tag {
            let has_tag = |word: &&Vec<u8>| word.starts_with(tag.as_bytes()) && !word.contains(&b'*');
            let tagged: Vec<&Vec<u8>> = words.iter().filter(has_tag).collect();
            if let Some(word) = tagged.choose(&mut self.random) {
                return (*word).clone();
            }
        }
        words.choose(&mut self.random).expect("a kind has words").clone()
    }

    fn random_value(&mut self) -> Vec<u8> {
        match self.random.random_range(0..8) {
            0 => {
                let length = self.random.random_range(0..40);
                (0..length).map(|_| self.random.random()).collect()
            }
            1 => vec![b'x'; self.random.random_range(1..600)],
            2 => self.random.random_range(-100_000_i64..100_000).to_string().into_bytes(),
            _ => self.random_word("value"),
        }
    }

    /// Returns a payload, sometimes with a changed byte that RESTORE must detect by the checksum.
    fn random_payload(&mut self) -> Vec<u8> {
        let mut payload = self.payloads.choose(&mut self.random).cloned().unwrap_or_default();
        if !payload.is_empty() && self.random.random_ratio(1, 6) {
            let at = self.random.random_range(0..payload.len());
            payload[at] ^= 1 << self.random.random_range(0..8);
        }
        payload
    }

    /// Drops, duplicates, replaces or adds an argument in one of twelve commands on average.
    fn mutate_argument(&mut self, form: &CommandForm, command: &mut Command) {
        if !form.can_be_mutated || command.is_empty() || !self.random.random_ratio(1, 12) {
            return;
        }
        let nonsense = INVALID_ARGUMENTS.choose(&mut self.random).expect("not empty").as_bytes().to_vec();
        if nonsense == b"*" && command[0].eq_ignore_ascii_case(b"XADD") {
            // An id `*` would depend on the clock, so XADD never gets this invalid argument.
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

/// Collects the literal words of a form.
fn collect_literals(parts: &[SyntaxPart], literals: &mut Vec<&'static str>) {
    for part in parts {
        match part {
            SyntaxPart::Word(word) => literals.push(word),
            SyntaxPart::ArgumentKind(_) => {}
            SyntaxPart::Optional(inner) | SyntaxPart::Repeated(inner) => collect_literals(inner, literals),
            SyntaxPart::Choice(choices) => {
                choices.iter().for_each(|choice| collect_literals(choice, literals));
            }
        }
    }
}

fn command_from_words(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_generates_same_commands() {
        let grammar = Grammar::for_reference_server(crate::ReferenceServer::Valkey);
        let make = |seed| Generator::new(&grammar, &[], seed).generate_sequence(300);
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }
}
