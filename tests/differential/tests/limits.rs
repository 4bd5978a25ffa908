//! Integers at their edges, infinities, ids and offsets that are the last, empty keys and members, words with a NUL in
//! them, the first lines of scripts: answers are those of Valkey.

use differential::{Command, Pair, Peer, Protocol};
use harness::Program;

/// The longest word that both servers take.
const LONGEST: usize = 512 << 20;

/// One command a line; `""` is an empty word, `(longest)` one of 512 MB, and `(nul)`, `(nl)` and `(sp)` are bytes of a
/// word.
fn commands(table: &str) -> Vec<Command> {
    let word = |word: &str| match word {
        "\"\"" => Vec::new(),
        "(longest)" => vec![b'x'; LONGEST],
        word => word.replace("(nul)", "\0").replace("(nl)", "\n").replace("(sp)", " ").into_bytes(),
    };
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split(' ').map(word).collect()).collect()
}

/// Runs each paragraph of `table` by itself: both servers are emptied between them.
fn answers_are_equal(table: &str) {
    let Some(theirs) = Peer::Valkey.program() else { return };
    let pair = Pair::start(&Program::redoubt(), &theirs);
    let mut report = Vec::new();
    for (protocol, paragraph) in [Protocol::V2, Protocol::V3]
        .into_iter()
        .flat_map(|it| table.split("\n\n").map(move |each| (it, each)))
    {
        for difference in pair.compare(protocol, &commands(paragraph)) {
            report.push(format!("{protocol:?}:\n{difference}"));
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}

#[test]
fn what_is_at_an_edge_is_answered_as_valkey_does() {
    answers_are_equal(include_str!("limits/edges.txt"));
}

#[test]
fn a_word_of_client_and_a_subcommand_end_at_a_nul() {
    answers_are_equal(include_str!("limits/nuls.txt"));
}

/// Words in quotes, as those of an inline request, and what is wrong with them.
#[test]
fn the_first_line_of_a_script_is_read_as_valkey_does() {
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
    answers_are_equal(&table);
}

/// Each server holds two strings of 512 MB.
#[test]
#[ignore = "long: make soak"]
fn strings_of_the_greatest_length_are_answered_as_valkey_does() {
    answers_are_equal(include_str!("limits/lengths.txt"));
}

/// Each server holds an element of 512 MB at a time.
#[test]
#[ignore = "long: make soak"]
fn members_of_the_greatest_length_are_answered_as_valkey_does() {
    answers_are_equal(include_str!("limits/members.txt"));
}

/// Each server holds twice as many, and sees all of them.
#[test]
#[ignore = "long: make soak"]
fn a_set_of_ten_million_is_answered_as_valkey_does() {
    const AT_ONCE: usize = 10_000;
    let member = |number: usize| format!("m{number}").into_bytes();
    let mut all: Vec<Command> = (0..1000)
        .map(|part| {
            let members = (1..=AT_ONCE).map(|number| member(part * AT_ONCE + number));
            [b"SADD".to_vec(), b"s".to_vec()].into_iter().chain(members).collect()
        })
        .collect();
    all.extend(commands(include_str!("limits/ten_million.txt")));
    let Some(theirs) = Peer::Valkey.program() else { return };
    let differences = Pair::start(&Program::redoubt(), &theirs).compare(Protocol::V2, &all);
    assert!(differences.is_empty(), "{differences:?}");
}
