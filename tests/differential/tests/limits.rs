//! Compares replies for edge values with Valkey: the smallest and largest integers, infinities, maximum ids and
//! offsets, empty keys and members, arguments with NUL bytes, and the first lines of scripts.

use differential::{Command, Protocol, ReferenceServer, ServerPair};
use harness::Program;

/// The length in bytes of the longest argument that both servers accept.
const MAX_ARGUMENT_BYTES: usize = 512 << 20;

/// Parses one command per line. `""` is an empty argument, `(longest)` an argument of 512 MB, and `(nul)`, `(nl)` and
/// `(sp)` are bytes within an argument.
fn parse_commands(table: &str) -> Vec<Command> {
    let word = |word: &str| match word {
        "\"\"" => Vec::new(),
        "(longest)" => vec![b'x'; MAX_ARGUMENT_BYTES],
        word => word.replace("(nul)", "\0").replace("(nl)", "\n").replace("(sp)", " ").into_bytes(),
    };
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split(' ').map(word).collect()).collect()
}

/// Runs each paragraph of `table` on emptied servers and compares the replies.
fn assert_equal_replies(table: &str) {
    let Some(theirs) = ReferenceServer::Valkey.program() else { return };
    let pair = ServerPair::start(&Program::redoubt(), &theirs);
    let mut report = Vec::new();
    for (protocol, paragraph) in [Protocol::V2, Protocol::V3]
        .into_iter()
        .flat_map(|it| table.split("\n\n").map(move |each| (it, each)))
    {
        for difference in pair.compare_servers(protocol, &parse_commands(paragraph)) {
            report.push(format!("{protocol:?}:\n{difference}"));
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}

#[test]
fn replies_for_edge_values_match_valkey() {
    assert_equal_replies(include_str!("limits/edges.txt"));
}

#[test]
fn client_arguments_and_subcommands_end_at_nul() {
    assert_equal_replies(include_str!("limits/nuls.txt"));
}

/// The shebang lines have quoted arguments, as in inline requests, and malformed quotes.
#[test]
fn script_shebang_lines_match_valkey() {
    let line = |of: &str, line: &str, body: &str| {
        [of, line, "(nl)", body, if of == "eval" { " 0" } else { "" }].concat().replacen(
            of,
            &format!("{of} "),
            1,
        )
    };
    let mut table = String::new();
    for first in include_str!("limits/first_lines.txt").lines() {
        table += &line("function load", first, "redis.register_function('f',function()(sp)end)");
        table += "\nfunction list\nfunction flush\n";
        table += &line("eval", first, "return(sp)redis.pcall('set','a','b')");
        table += "\n";
    }
    assert_equal_replies(&table);
}

/// Each server holds two strings of 512 MB.
#[test]
#[ignore = "long: make soak"]
fn replies_for_strings_of_maximum_length_match_valkey() {
    assert_equal_replies(include_str!("limits/lengths.txt"));
}

/// Each server holds one element of 512 MB at a time.
#[test]
#[ignore = "long: make soak"]
fn replies_for_members_of_maximum_length_match_valkey() {
    assert_equal_replies(include_str!("limits/members.txt"));
}

/// Each server holds ten million members twice and iterates over all of them.
#[test]
#[ignore = "long: make soak"]
fn replies_for_set_of_ten_million_match_valkey() {
    const MEMBERS_PER_COMMAND: usize = 10_000;
    let member = |number: usize| format!("m{number}").into_bytes();
    let mut all: Vec<Command> = (0..1000)
        .map(|part| {
            let members = (1..=MEMBERS_PER_COMMAND).map(|number| member(part * MEMBERS_PER_COMMAND + number));
            [b"SADD".to_vec(), b"s".to_vec()].into_iter().chain(members).collect()
        })
        .collect();
    all.extend(parse_commands(include_str!("limits/ten_million.txt")));
    let Some(theirs) = ReferenceServer::Valkey.program() else { return };
    let differences = ServerPair::start(&Program::redoubt(), &theirs).compare_servers(Protocol::V2, &all);
    assert!(differences.is_empty(), "{differences:?}");
}
