//! The table of command forms, read into trees.

use std::iter::Peekable;
use std::str::SplitWhitespace;

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

/// Every form there is.
#[derive(Debug, Clone)]
pub struct Grammar {
    pub(crate) forms: Vec<Form>,
}

impl Grammar {
    /// The table in `commands.txt`.
    #[must_use]
    pub fn all() -> Self {
        Self::parse(include_str!("commands.txt"))
    }

    fn parse(table: &'static str) -> Self {
        let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { forms: lines.map(parse_form).collect() }
    }
}

fn parse_form(line: &'static str) -> Form {
    let (may_be_mutilated, rest) = match line.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, line),
    };
    let (weight, rest) = rest.trim_start().split_once(' ').expect("a weight and a form");
    let mut words = rest.split_whitespace().peekable();
    let form = Form {
        weight: weight.parse().unwrap_or_else(|_| panic!("no weight: {line}")),
        may_be_mutilated,
        parts: parse_parts(&mut words),
    };
    assert!(words.next().is_none(), "a bracket too many: {line}");
    form
}

/// Up to a closing bracket or a bar, which is left.
fn parse_parts(words: &mut Peekable<SplitWhitespace<'static>>) -> Vec<Part> {
    let mut parts = Vec::new();
    while let Some(&word) = words.peek() {
        if ["]", ")", "}", "|"].contains(&word) {
            break;
        }
        words.next();
        let part = match word {
            "[" => Part::Optional(parse_group(words, "]")),
            "{" => Part::Repeated(parse_group(words, "}")),
            "(" => parse_choice(words),
            "\"\"" => Part::Word(""),
            _ if crate::generate::is_kind(word) => Part::Kind(word),
            _ => Part::Word(word),
        };
        parts.push(part);
    }
    parts
}

fn parse_group(words: &mut Peekable<SplitWhitespace<'static>>, end: &str) -> Vec<Part> {
    let parts = parse_parts(words);
    assert_eq!(words.next(), Some(end), "brackets match");
    parts
}

fn parse_choice(words: &mut Peekable<SplitWhitespace<'static>>) -> Part {
    let mut choices = Vec::new();
    loop {
        choices.push(parse_parts(words));
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
        let form = parse_form("! 2 SET key [ ( EX sec | KEEPTTL ) ]");
        let choice =
            Part::Choice(vec![vec![Part::Word("EX"), Part::Kind("sec")], vec![Part::Word("KEEPTTL")]]);
        let parts = vec![Part::Word("SET"), Part::Kind("key"), Part::Optional(vec![choice])];
        assert_eq!(form, Form { weight: 2, may_be_mutilated: false, parts });
    }

    #[test]
    fn the_table_can_be_read() {
        assert!(Grammar::all().forms.len() > 50);
    }
}
