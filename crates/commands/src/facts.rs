//! Facts of COMMAND DOCS that are not in the command table: complexity, history and arguments.
//!
//! They are text files beside this one, one per command group; only hints in redis-cli and client libraries use them. A
//! command starts at the left margin and its facts are indented by two spaces. An argument is a line with its name, its
//! type, then `key=` (index of its key spec), `display=` (name to show instead), `token=`, `since=`, `deprecated=` and
//! flags. Nested arguments are indented further:
//!
//! ```text
//! set
//!   complexity O(1)
//!   history 6.0.0 KEEPTTL.
//!   arguments
//!     key key key=0
//!     condition oneof optional since=2.6.12
//!       nx pure-token token=NX
//! ```
//!
//! Names, types, tokens and versions are those of Valkey 9.1; the prose is ours. The files are compiled in, so an
//! unreadable line is a bug; a test parses them all.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::LazyLock;

const COMMAND_DOCS_TEXTS: &[&str] = &[
    include_str!("facts/bitmap.txt"),
    include_str!("facts/cluster.txt"),
    include_str!("facts/connection.txt"),
    include_str!("facts/generic.txt"),
    include_str!("facts/geo.txt"),
    include_str!("facts/hash.txt"),
    include_str!("facts/list.txt"),
    include_str!("facts/hyperloglog.txt"),
    include_str!("facts/pubsub.txt"),
    include_str!("facts/scripting.txt"),
    include_str!("facts/sentinel.txt"),
    include_str!("facts/server.txt"),
    include_str!("facts/set.txt"),
    include_str!("facts/sorted_set.txt"),
    include_str!("facts/stream.txt"),
    include_str!("facts/string.txt"),
    include_str!("facts/transactions.txt"),
];

/// Documentation of one command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CommandDocs {
    pub(crate) complexity: Option<&'static str>,
    /// The versions that changed the command, each with a description of the change.
    pub(crate) history: Vec<(&'static str, &'static str)>,
    pub(crate) doc_flags: Vec<&'static str>,
    pub(crate) deprecated_since: Option<&'static str>,
    pub(crate) replaced_by: Option<&'static str>,
    pub(crate) arguments: Vec<ArgumentDocs>,
}

/// An argument, or a group of arguments, in COMMAND DOCS.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ArgumentDocs {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    /// The name to show instead of `name`, if they differ.
    pub(crate) display: Option<&'static str>,
    /// Index of the key spec that locates this argument, or `None` if the argument is not a key.
    pub(crate) key_spec: Option<i64>,
    pub(crate) token: Option<&'static str>,
    pub(crate) since: Option<&'static str>,
    pub(crate) deprecated_since: Option<&'static str>,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) arguments: Vec<ArgumentDocs>,
}

static DOCS_BY_COMMAND: LazyLock<BTreeMap<&'static str, CommandDocs>> = LazyLock::new(|| {
    let mut all = BTreeMap::new();
    COMMAND_DOCS_TEXTS.iter().for_each(|text| parse_text(text, &mut all));
    all
});

/// Looks up a command by its full name, such as `config get`.
pub(crate) fn find_docs(full_name: &str) -> Option<&'static CommandDocs> {
    DOCS_BY_COMMAND.get(full_name)
}

/// The indentation depth of a line and its text without the indentation.
type IndentedLine = (usize, &'static str);

fn parse_text(text: &'static str, docs: &mut BTreeMap<&'static str, CommandDocs>) {
    let depth = |line: &str| (line.len() - line.trim_start().len()) / 2;
    let mut lines = text.lines().map(|line| (depth(line), line.trim_start())).peekable();
    while let Some((_, name)) = lines.next() {
        let mut facts = CommandDocs::default();
        while let Some((_, line)) = lines.next_if(|(depth, _)| *depth == 1) {
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            match what {
                "complexity" => facts.complexity = Some(rest),
                "history" => facts.history.push(rest.split_once(' ').expect("a version and a text")),
                "doc_flags" => facts.doc_flags = rest.split(' ').collect(),
                "deprecated_since" => facts.deprecated_since = Some(rest),
                "replaced_by" => facts.replaced_by = Some(rest),
                "arguments" => facts.arguments = parse_arguments(&mut lines, 2),
                _ => panic!("{name}: what is '{what}'?"),
            }
        }
        assert!(docs.insert(name, facts).is_none(), "{name} is there twice");
    }
}

fn parse_arguments(
    lines: &mut Peekable<impl Iterator<Item = IndentedLine>>,
    depth: usize,
) -> Vec<ArgumentDocs> {
    let mut arguments = Vec::new();
    while let Some((_, line)) = lines.next_if(|(found, _)| *found == depth) {
        let mut argument = parse_argument(line);
        argument.arguments = parse_arguments(lines, depth + 1);
        arguments.push(argument);
    }
    arguments
}

fn parse_argument(line: &'static str) -> ArgumentDocs {
    let mut words = line.split(' ');
    let mut argument = ArgumentDocs {
        name: words.next().unwrap_or_default(),
        kind: words.next().expect("an argument has a type"),
        ..ArgumentDocs::default()
    };
    for word in words {
        match word.split_once('=') {
            Some(("key", number)) => argument.key_spec = Some(number.parse().expect("a number")),
            Some(("display", text)) => argument.display = Some(text),
            Some(("token", token)) => argument.token = Some(token),
            Some(("since", version)) => argument.since = Some(version),
            Some(("deprecated", version)) => argument.deprecated_since = Some(version),
            Some(_) => panic!("{line}: what is '{word}'?"),
            None => argument.flags.push(word),
        }
    }
    argument
}

#[cfg(test)]
mod tests {
    use engine::RegisteredCommand;

    use super::*;

    fn visit_arguments<'a>(arguments: &'a [ArgumentDocs], visit: &mut impl FnMut(&'a ArgumentDocs)) {
        for argument in arguments {
            visit(argument);
            visit_arguments(&argument.arguments, visit);
        }
    }

    fn listed_commands() -> impl Iterator<Item = &'static RegisteredCommand> {
        crate::server_registry().listed_commands().chain(crate::sentinel_registry().listed_commands())
    }

    #[test]
    fn every_command_is_documented() {
        for entry in listed_commands() {
            assert!(find_docs(&entry.full_name).is_some(), "{}: no facts", entry.full_name);
        }
        for name in DOCS_BY_COMMAND.keys() {
            assert!(listed_commands().any(|entry| entry.full_name == *name), "{name}: no command");
        }
    }

    #[test]
    fn documented_arguments_have_known_types_and_key_specs() {
        let kinds =
            ["block", "double", "integer", "key", "oneof", "pattern", "pure-token", "string", "unix-time"];
        let flags = ["optional", "multiple", "multiple_token"];
        for entry in listed_commands() {
            let facts = find_docs(&entry.full_name).unwrap();
            visit_arguments(&facts.arguments, &mut |argument| {
                let place = format!("{}: {}", entry.full_name, argument.name);
                assert!(kinds.contains(&argument.kind), "{place}");
                assert!(argument.flags.iter().all(|flag| flags.contains(flag)), "{place}");
                assert_eq!(
                    argument.arguments.is_empty(),
                    !["block", "oneof"].contains(&argument.kind),
                    "{place}"
                );
                let spec = argument.key_spec.map(|spec| usize::try_from(spec).unwrap());
                assert!(spec.is_none_or(|spec| spec < entry.command.keys.len()), "{place}");
            });
        }
    }
}
