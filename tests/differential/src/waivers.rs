//! Intended differences from Valkey. The page docs/differences.md is also generated from them.

use std::fmt::Write as _;
use std::sync::LazyLock;

use harness::Reply;

const WAIVERS_TABLE: &str = include_str!("waivers.tsv");
/// Differences that do not show in any reply, used only for the page of differences.
const NON_REPLY_DIFFERENCES_TABLE: &str = include_str!("beside_replies.tsv");

/// An accepted difference in the replies to one command.
struct Waiver {
    /// The first arguments of the command.
    command: &'static str,
    arguments: Vec<&'static str>,
    ours: &'static str,
    theirs: &'static str,
    reason: &'static str,
}

static WAIVERS: LazyLock<Vec<Waiver>> = LazyLock::new(|| {
    let waiver = |[command, ours, theirs, reason]: [&'static str; 4]| Waiver {
        command,
        arguments: split_arguments(command),
        ours,
        theirs,
        reason,
    };
    parse_rows(WAIVERS_TABLE).map(waiver).collect()
});

/// Parses a table into rows of four columns.
fn parse_rows(data: &'static str) -> impl Iterator<Item = [&'static str; 4]> {
    let lines = data.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        columns.try_into().unwrap_or_else(|_| panic!("four columns: {line}"))
    })
}

/// Splits a command into arguments. A script argument is quoted, because scripts contain spaces.
fn split_arguments(command: &str) -> Vec<&str> {
    let parts = command.split('"').enumerate();
    parts
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        })
        .collect()
}

/// Whether the difference between these two replies to a command is accepted.
#[must_use]
pub fn is_waived(command: &[Vec<u8>], ours: &Reply, theirs: &Reply) -> bool {
    WAIVERS.iter().any(|waiver| {
        let begins = command.len() >= waiver.arguments.len()
            && command
                .iter()
                .zip(&waiver.arguments)
                .all(|(word, known)| word.eq_ignore_ascii_case(known.as_bytes()));
        begins && reply_matches(ours, waiver.ours) && reply_matches(theirs, waiver.theirs)
    })
}

/// Whether a reply equals the text of a waiver.
fn reply_matches(reply: &Reply, pattern: &str) -> bool {
    let reply = format!("{reply:?}");
    match pattern.strip_suffix('*') {
        Some(beginning) => reply.starts_with(beginning),
        None => reply == pattern,
    }
}

/// The number of waivers for this command; a subcommand's name is its container's name, a space, and its own.
pub(crate) fn waiver_count(command: &str) -> usize {
    let words = split_arguments(command);
    WAIVERS.iter().filter(|waiver| waiver.arguments.starts_with(&words)).count()
}

/// Generates the text of docs/differences.md.
#[must_use]
pub fn differences_page() -> String {
    let mut page =
        "# Differences from Valkey 9.1\n\nThese replies differ from those of Valkey 9.1 by choice. A star matches any text. The \
                    page is generated from the data that the differential tests use \
                    (`tests/differential/src/waivers.tsv`).\n\n\
                    | command | Redoubt | Valkey | reason |\n| --- | --- | --- | --- |\n"
            .to_owned();
    for waiver in WAIVERS.iter() {
        let Waiver { command, arguments: _, ours, theirs, reason } = waiver;
        let _ = writeln!(page, "| {command} | `{ours}` | `{theirs}` | {reason} |");
    }
    page.push_str(
        "\n## Other differences\n\n| subject | Redoubt | Valkey | reason |\n| --- | --- | --- | --- |\n",
    );
    for [place, ours, theirs, reason] in parse_rows(NON_REPLY_DIFFERENCES_TABLE) {
        let _ = writeln!(page, "| {place} | {ours} | {theirs} | {reason} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiver_applies_only_to_its_command_and_replies() {
        let command =
            |line: &str| -> Vec<Vec<u8>> { line.split(' ').map(|word| word.as_bytes().to_vec()).collect() };
        let (refused, done) = (Reply::Error("ERR index out of range".into()), Reply::Simple("OK".into()));
        assert!(is_waived(&command("lset l 4294967296 x"), &refused, &done));
        assert!(!is_waived(&command("lset l 4294967296 x"), &done, &refused));
        assert!(!is_waived(&command("lindex l 4294967296"), &refused, &done));
    }

    #[test]
    fn script_is_parsed_as_one_argument() {
        assert_eq!(
            split_arguments("EVAL \"return redis.SERVER_NAME\" 0"),
            ["EVAL", "return redis.SERVER_NAME", "0"]
        );
    }

    #[test]
    fn no_waiver_covers_a_whole_command() {
        for waiver in WAIVERS.iter() {
            assert!(
                waiver.ours != "*" && waiver.theirs != "*",
                "{:?} says nothing of its replies",
                waiver.arguments
            );
        }
    }
}
