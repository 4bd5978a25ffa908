//! Integers at their edges, infinities, ids and offsets that are the last, empty keys and members: answers are those of
//! a real Redis.

use differential::{Command, Pair, Protocol};
use harness::Program;

/// One command a line; `""` is an empty word.
fn commands(table: &str) -> Vec<Command> {
    let word = |word: &str| if word == "\"\"" { Vec::new() } else { word.as_bytes().to_vec() };
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split(' ').map(word).collect()).collect()
}

fn answers_are_equal(table: &str) {
    let pair = Pair::start(&Program::redoubt(), &Program::redis());
    for protocol in [Protocol::V2, Protocol::V3] {
        if let Some(difference) = pair.compare(protocol, &commands(table)) {
            panic!("{protocol:?}:\n{difference}");
        }
    }
}

#[test]
fn what_is_at_an_edge_is_answered_as_redis_does() {
    answers_are_equal(include_str!("limits/edges.txt"));
}

/// Each server holds two strings of 512 MB.
#[test]
#[ignore = "takes three gigabytes"]
fn strings_of_the_greatest_length_are_answered_as_redis_does() {
    answers_are_equal(include_str!("limits/lengths.txt"));
}
