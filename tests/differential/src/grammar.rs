//! Parses the tables of command forms into syntax trees.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::str::SplitWhitespace;

use crate::{Command, ReferenceServer};

/// An element of a command's syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyntaxPart {
    /// A literal word, such as the command's name.
    Word(&'static str),
    /// An argument of a kind whose words are listed in the tables or generated.
    ArgumentKind(&'static str),
    /// Syntax elements that may be absent.
    Optional(Vec<SyntaxPart>),
    /// A choice of exactly one alternative.
    Choice(Vec<Vec<SyntaxPart>>),
    /// Syntax elements that are repeated one to three times.
    Repeated(Vec<SyntaxPart>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandForm {
    pub(crate) weight: u32,
    /// Whether the generator may drop, duplicate or replace arguments.
    pub(crate) can_be_mutated: bool,
    pub(crate) parts: Vec<SyntaxPart>,
}

/// The tables, one for each group of commands.
const COMMAND_TABLES: &[&str] = &[
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

/// The possible words for each kind of argument.
type WordLists = BTreeMap<&'static str, Vec<Vec<u8>>>;

/// The command forms of the tables, with the words of their arguments.
#[derive(Debug, Clone)]
pub struct Grammar {
    pub(crate) forms: Vec<CommandForm>,
    /// Commands that inspect the data after a sequence, each repeated for every word of its argument kind.
    pub(crate) inspections: Vec<Vec<SyntaxPart>>,
    pub(crate) word_lists: WordLists,
}

impl Grammar {
    /// Reads the tables whose replies are compared with those of `server`.
    ///
    /// A line that begins with `=` lists words of an argument kind, one with `?` is an inspection command, and every
    /// other line is a weight and a form; `commands/README.md` describes the format.
    #[must_use]
    pub fn for_reference_server(server: ReferenceServer) -> Self {
        Self::read_tables(|table| ReferenceServer::from_table(table) == server)
    }

    /// Reads the tables for all reference servers.
    #[must_use]
    pub fn all_tables() -> Self {
        Self::read_tables(|_| true)
    }

    /// Reads the syntax forms of the selected tables. The word lists come from all tables.
    fn read_tables(is_selected: impl Fn(&str) -> bool) -> Self {
        let lines_of = |table: &&'static str| table.lines().map(str::trim);
        let own: Vec<&&'static str> = COMMAND_TABLES.iter().filter(|table| is_selected(table)).collect();
        let lines = || own.iter().copied().flat_map(lines_of);
        let mut words = WordLists::new();
        // Word lists are shared between all tables.
        for line in COMMAND_TABLES.iter().flat_map(lines_of).filter_map(|line| line.strip_prefix('=')) {
            let (kind, listed) = line.trim_start().split_once(' ').expect("a kind and its words");
            words.entry(kind).or_default().extend(read_words(listed));
        }
        let is_kind = |word: &str| words.contains_key(word) || crate::generate::is_generated_kind(word);
        let is_form =
            |line: &&str| line.starts_with('!') || line.starts_with(|first: char| first.is_ascii_digit());
        let forms = lines().filter(is_form).map(|line| parse_form(line, &is_kind)).collect();
        let inspections = lines().filter_map(|line| line.strip_prefix('?'));
        let inspections = inspections.map(|line| parse_all(line, &is_kind)).collect();
        Self { forms, inspections, word_lists: words }
    }

    /// Returns the words in all syntax forms of `command` (for a subcommand: "COMMAND SUBCOMMAND"); empty if the
    /// command has no form.
    #[must_use]
    pub fn words_of_command(&self, command: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let names: Vec<&str> = command.split(' ').collect();
        for form in self.forms.iter().filter(|form| self.can_start_with_names(&form.parts, &names)) {
            self.gather_words(&form.parts, &mut found);
        }
        found
    }

    /// Whether the first syntax elements of a form can produce these names.
    fn can_start_with_names(&self, parts: &[SyntaxPart], names: &[&str]) -> bool {
        let [name, others @ ..] = names else { return true };
        let [part, behind @ ..] = parts else { return false };
        match part {
            SyntaxPart::Word(word) => {
                word.eq_ignore_ascii_case(name) && self.can_start_with_names(behind, others)
            }
            SyntaxPart::ArgumentKind(kind) => {
                let is_name = |word: &Vec<u8>| word.eq_ignore_ascii_case(name.as_bytes());
                self.word_lists.get(kind).is_some_and(|words| words.iter().any(is_name))
                    && self.can_start_with_names(behind, others)
            }
            SyntaxPart::Optional(_) | SyntaxPart::Repeated(_) => false,
            SyntaxPart::Choice(choices) => choices.iter().any(|choice| {
                let parts: Vec<SyntaxPart> = choice.iter().chain(behind).cloned().collect();
                self.can_start_with_names(&parts, names)
            }),
        }
    }

    fn gather_words(&self, parts: &[SyntaxPart], words: &mut BTreeSet<String>) {
        for part in parts {
            match part {
                SyntaxPart::Word(word) => {
                    words.insert(word.to_uppercase());
                }
                SyntaxPart::ArgumentKind(kind) => {
                    let list = self.word_lists.get(kind).into_iter().flatten();
                    words.extend(list.map(|word| String::from_utf8_lossy(word).to_uppercase()));
                }
                SyntaxPart::Optional(inner) | SyntaxPart::Repeated(inner) => self.gather_words(inner, words),
                SyntaxPart::Choice(choices) => {
                    choices.iter().for_each(|choice| self.gather_words(choice, words));
                }
            }
        }
    }

    /// Returns the inspection command for each word of its argument kind.
    pub(crate) fn expand_inspection(&self, inspection: &[SyntaxPart]) -> Vec<Command> {
        let kind = inspection
            .iter()
            .find_map(|part| if let SyntaxPart::ArgumentKind(kind) = part { Some(*kind) } else { None });
        let words: BTreeSet<&Vec<u8>> =
            self.word_lists[kind.expect("a inspection has one kind")].iter().collect();
        let part = |part: &SyntaxPart, word: &[u8]| match part {
            SyntaxPart::Word(word) => word.as_bytes().to_vec(),
            _ => word.to_vec(),
        };
        words.into_iter().map(|word| inspection.iter().map(|each| part(each, word)).collect()).collect()
    }
}

/// Splits a line into words at spaces. Words are quoted if they contain spaces or escapes (`\\`, `\r`, `
/// `, `\xff`).
fn read_words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let end = closing_quote_position(quoted).expect("quotes come in pairs");
                (&quoted[..end], &quoted[end + 1..])
            }
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(unescape(word));
        rest = behind.trim_start();
    }
    words
}

/// The position of the closing quote: the first one without a backslash before it.
fn closing_quote_position(quoted: &str) -> Option<usize> {
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

fn parse_form(line: &'static str, is_kind: &dyn Fn(&str) -> bool) -> CommandForm {
    let (can_be_mutated, rest) = match line.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, line),
    };
    let (weight, rest) = rest.trim_start().split_once(' ').expect("a weight and a form");
    let weight = weight.parse().unwrap_or_else(|_| panic!("no weight: {line}"));
    CommandForm { weight, can_be_mutated, parts: parse_all(rest, is_kind) }
}

fn parse_all(line: &'static str, is_kind: &dyn Fn(&str) -> bool) -> Vec<SyntaxPart> {
    let mut words = line.split_whitespace().peekable();
    let parts = parse_parts(&mut words, is_kind);
    assert!(words.next().is_none(), "a bracket too many: {line}");
    parts
}

type WordSource = Peekable<SplitWhitespace<'static>>;

/// Parses syntax elements up to a closing bracket or a bar, which is not consumed.
fn parse_parts(words: &mut WordSource, is_kind: &dyn Fn(&str) -> bool) -> Vec<SyntaxPart> {
    let mut parts = Vec::new();
    while let Some(&word) = words.peek() {
        if ["]", ")", "}", "|"].contains(&word) {
            break;
        }
        words.next();
        let part = match word {
            "[" => SyntaxPart::Optional(parse_group(words, "]", is_kind)),
            "{" => SyntaxPart::Repeated(parse_group(words, "}", is_kind)),
            "(" => parse_choice(words, is_kind),
            "\"\"" => SyntaxPart::Word(""),
            _ if is_kind(word) => SyntaxPart::ArgumentKind(word),
            _ => SyntaxPart::Word(word),
        };
        parts.push(part);
    }
    parts
}

fn parse_group(words: &mut WordSource, end: &str, is_kind: &dyn Fn(&str) -> bool) -> Vec<SyntaxPart> {
    let parts = parse_parts(words, is_kind);
    assert_eq!(words.next(), Some(end), "brackets match");
    parts
}

fn parse_choice(words: &mut WordSource, is_kind: &dyn Fn(&str) -> bool) -> SyntaxPart {
    let mut choices = Vec::new();
    loop {
        choices.push(parse_parts(words, is_kind));
        match words.next() {
            Some("|") => {}
            Some(")") => return SyntaxPart::Choice(choices),
            other => panic!("brackets match: {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_with_groups_is_parsed() {
        let form = parse_form("! 2 SET key [ ( EX sec | KEEPTTL ) ]", &|word| word == "key" || word == "sec");
        let choice = SyntaxPart::Choice(vec![
            vec![SyntaxPart::Word("EX"), SyntaxPart::ArgumentKind("sec")],
            vec![SyntaxPart::Word("KEEPTTL")],
        ]);
        let parts = vec![
            SyntaxPart::Word("SET"),
            SyntaxPart::ArgumentKind("key"),
            SyntaxPart::Optional(vec![choice]),
        ];
        assert_eq!(form, CommandForm { weight: 2, can_be_mutated: false, parts });
    }

    #[test]
    fn arguments_are_parsed_with_quotes_and_escapes() {
        let words: [&[u8]; 6] = [b"a", b"", b"b c", b"\x00\xff\r\n", b"\\a", b"\"q\""];
        assert_eq!(read_words(r#"a "" "b c" "\x00\xff\r\n" "\\a" "\"q\"""#), words);
    }

    #[test]
    fn command_tables_can_be_parsed() {
        assert!(Grammar::for_reference_server(ReferenceServer::Valkey).forms.len() > 300);
    }
}
