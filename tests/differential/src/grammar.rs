//! The tables of command forms, read into trees.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::SplitWhitespace;

use crate::{Command, Peer};

/// A part of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Stands for itself.
    Word(&'static str),
    /// An argument of a kind that the generator knows.
    Kind(&'static str),
    /// May be left out.
    Optional(Vec<Part>),
    /// One of these.
    Choice(Vec<Vec<Part>>),
    /// One to three times.
    Repeated(Vec<Part>),
}

/// One form of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) weight: u32,
    /// Whether arguments may be dropped, doubled or replaced.
    pub(crate) may_be_mutilated: bool,
    pub(crate) parts: Vec<Part>,
}

/// A table for each family of commands.
const TABLES: &[&str] = &[
    include_str!("commands/bitmap.txt"),
    include_str!("commands/acl.txt"),
    include_str!("commands/connection.txt"),
    include_str!("commands/generic.txt"),
    include_str!("commands/geo.txt"),
    include_str!("commands/geo-newer.txt"),
    include_str!("commands/hash.txt"),
    include_str!("commands/hash-fields.txt"),
    include_str!("commands/list.txt"),
    include_str!("commands/hyperloglog.txt"),
    include_str!("commands/pubsub.txt"),
    include_str!("commands/scripting.txt"),
    include_str!("commands/server.txt"),
    include_str!("commands/set.txt"),
    include_str!("commands/sort.txt"),
    include_str!("commands/stream.txt"),
    include_str!("commands/stream-redis.txt"),
    include_str!("commands/string.txt"),
    include_str!("commands/string-newer.txt"),
    include_str!("commands/string-redis.txt"),
    include_str!("commands/transaction.txt"),
    include_str!("commands/unknown.txt"),
    include_str!("commands/zset.txt"),
];

/// The words of each kind of argument.
type Words = BTreeMap<&'static str, Vec<Vec<u8>>>;

/// Every form there is.
#[derive(Debug, Clone)]
pub struct Grammar {
    pub(crate) forms: Vec<Form>,
    /// How what is left at the end of a sequence is looked at: for each word of the one kind in it.
    pub(crate) looks: Vec<Vec<Part>>,
    pub(crate) words: Words,
}

impl Grammar {
    /// The tables of all families whose replies are compared with those of `peer`.
    ///
    /// A line that begins with `=` has words of a kind of argument, one with `?` is a look, and what is neither is a
    /// form behind its weight; `commands/README.md` has the rest.
    #[must_use]
    pub fn of(peer: Peer) -> Self {
        Self::read(|table| Peer::of_table(table) == peer)
    }

    /// The tables of all families, whoever the peer is.
    #[must_use]
    pub fn whole() -> Self {
        Self::read(|_| true)
    }

    /// The forms of the tables that are meant, with the words of all.
    fn read(is_meant: impl Fn(&str) -> bool) -> Self {
        let lines_of = |table: &&'static str| table.lines().map(str::trim);
        let own: Vec<&&'static str> = TABLES.iter().filter(|table| is_meant(table)).collect();
        let lines = || own.iter().copied().flat_map(lines_of);
        let mut words = Words::new();
        // Words are shared by the tables of all.
        for line in TABLES.iter().flat_map(lines_of).filter_map(|line| line.strip_prefix('=')) {
            let (kind, listed) = line.trim_start().split_once(' ').expect("a kind and its words");
            words.entry(kind).or_default().extend(read_words(listed));
        }
        let is_kind = |word: &str| words.contains_key(word) || crate::generate::is_made(word);
        let is_form =
            |line: &&str| line.starts_with('!') || line.starts_with(|first: char| first.is_ascii_digit());
        let forms = lines().filter(is_form).map(|line| parse_form(line, &is_kind)).collect();
        let looks = lines().filter_map(|line| line.strip_prefix('?'));
        let looks = looks.map(|line| parse_all(line, &is_kind)).collect();
        Self { forms, looks, words }
    }

    /// The words in all forms that may give this command (a subcommand behind a space); empty if none does.
    #[must_use]
    pub fn words_of(&self, command: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let names: Vec<&str> = command.split(' ').collect();
        for form in self.forms.iter().filter(|form| self.may_give(&form.parts, &names)) {
            self.gather_words(&form.parts, &mut found);
        }
        found
    }

    /// Whether the first parts of a form may be these names.
    fn may_give(&self, parts: &[Part], names: &[&str]) -> bool {
        let [name, others @ ..] = names else { return true };
        let [part, behind @ ..] = parts else { return false };
        match part {
            Part::Word(word) => word.eq_ignore_ascii_case(name) && self.may_give(behind, others),
            Part::Kind(kind) => {
                let is_name = |word: &Vec<u8>| word.eq_ignore_ascii_case(name.as_bytes());
                self.words.get(kind).is_some_and(|words| words.iter().any(is_name))
                    && self.may_give(behind, others)
            }
            Part::Optional(_) | Part::Repeated(_) => false,
            Part::Choice(choices) => choices.iter().any(|choice| {
                let parts: Vec<Part> = choice.iter().chain(behind).cloned().collect();
                self.may_give(&parts, names)
            }),
        }
    }

    fn gather_words(&self, parts: &[Part], found: &mut BTreeSet<String>) {
        for part in parts {
            match part {
                Part::Word(word) => {
                    found.insert(word.to_uppercase());
                }
                Part::Kind(kind) => {
                    let words = self.words.get(kind).into_iter().flatten();
                    found.extend(words.map(|word| String::from_utf8_lossy(word).to_uppercase()));
                }
                Part::Optional(inner) | Part::Repeated(inner) => self.gather_words(inner, found),
                Part::Choice(choices) => choices.iter().for_each(|choice| self.gather_words(choice, found)),
            }
        }
    }

    /// A look at each word of its kind.
    pub(crate) fn each(&self, look: &[Part]) -> Vec<Command> {
        let kind = look.iter().find_map(|part| if let Part::Kind(kind) = part { Some(*kind) } else { None });
        let words: BTreeSet<&Vec<u8>> = self.words[kind.expect("a look has one kind")].iter().collect();
        let part = |part: &Part, word: &[u8]| match part {
            Part::Word(word) => word.as_bytes().to_vec(),
            _ => word.to_vec(),
        };
        words.into_iter().map(|word| look.iter().map(|each| part(each, word)).collect()).collect()
    }
}

/// Words with blanks between them, in quotes where they have blanks or escapes (`\\`, `\r`, `\n`, `\xff`).
fn read_words(listed: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = listed.trim();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let end = end_of_quote(quoted).expect("quotes come in pairs");
                (&quoted[..end], &quoted[end + 1..])
            }
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(unescape(word));
        rest = behind.trim_start();
    }
    words
}

/// Where the quote is that closes a word: the first that no backslash stands before.
fn end_of_quote(quoted: &str) -> Option<usize> {
    let mut escaped = false;
    quoted.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

fn unescape(word: &str) -> Vec<u8> {
    let mut bytes = word.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        let plain = match byte {
            b'\\' => match bytes.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b'x') => {
                    let digits = [bytes.next(), bytes.next()].map(|digit| digit.expect("two digits"));
                    let digits = std::str::from_utf8(&digits).expect("digits");
                    u8::from_str_radix(digits, 16).expect("digits")
                }
                other => other.expect("something behind the backslash"),
            },
            byte => byte,
        };
        out.push(plain);
    }
    out
}

fn parse_form(line: &'static str, is_kind: &dyn Fn(&str) -> bool) -> Form {
    let (may_be_mutilated, rest) = match line.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, line),
    };
    let (weight, rest) = rest.trim_start().split_once(' ').expect("a weight and a form");
    let weight = weight.parse().unwrap_or_else(|_| panic!("no weight: {line}"));
    Form { weight, may_be_mutilated, parts: parse_all(rest, is_kind) }
}

fn parse_all(line: &'static str, is_kind: &dyn Fn(&str) -> bool) -> Vec<Part> {
    let mut words = line.split_whitespace().peekable();
    let parts = parse_parts(&mut words, is_kind);
    assert!(words.next().is_none(), "a bracket too many: {line}");
    parts
}

type Source = Peekable<SplitWhitespace<'static>>;

/// Up to a closing bracket or a bar, which is left.
fn parse_parts(words: &mut Source, is_kind: &dyn Fn(&str) -> bool) -> Vec<Part> {
    let mut parts = Vec::new();
    while let Some(&word) = words.peek() {
        if ["]", ")", "}", "|"].contains(&word) {
            break;
        }
        words.next();
        let part = match word {
            "[" => Part::Optional(parse_group(words, "]", is_kind)),
            "{" => Part::Repeated(parse_group(words, "}", is_kind)),
            "(" => parse_choice(words, is_kind),
            "\"\"" => Part::Word(""),
            _ if is_kind(word) => Part::Kind(word),
            _ => Part::Word(word),
        };
        parts.push(part);
    }
    parts
}

fn parse_group(words: &mut Source, end: &str, is_kind: &dyn Fn(&str) -> bool) -> Vec<Part> {
    let parts = parse_parts(words, is_kind);
    assert_eq!(words.next(), Some(end), "brackets match");
    parts
}

fn parse_choice(words: &mut Source, is_kind: &dyn Fn(&str) -> bool) -> Part {
    let mut choices = Vec::new();
    loop {
        choices.push(parse_parts(words, is_kind));
        match words.next() {
            Some("|") => {}
            Some(")") => return Part::Choice(choices),
            other => panic!("brackets match: {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_with_its_groups() {
        let form = parse_form("! 2 SET key [ ( EX sec | KEEPTTL ) ]", &|word| word == "key" || word == "sec");
        let choice =
            Part::Choice(vec![vec![Part::Word("EX"), Part::Kind("sec")], vec![Part::Word("KEEPTTL")]]);
        let parts = vec![Part::Word("SET"), Part::Kind("key"), Part::Optional(vec![choice])];
        assert_eq!(form, Form { weight: 2, may_be_mutilated: false, parts });
    }

    #[test]
    fn words_are_read_with_their_quotes_and_escapes() {
        let words: [&[u8]; 6] = [b"a", b"", b"b c", b"\x00\xff\r\n", b"\\a", b"\"q\""];
        assert_eq!(read_words(r#"a "" "b c" "\x00\xff\r\n" "\\a" "\"q\"""#), words);
    }

    #[test]
    fn the_table_can_be_read() {
        assert!(Grammar::of(Peer::Valkey).forms.len() > 300);
    }
}
