//! The tables have forms of every command that Valkey has and of every word that a command knows, and the page of
//! differences is what the waivers make.

use std::collections::BTreeSet;
use std::path::Path;

use differential::{ELSEWHERE, Grammar, Peer, differences_page, stands_for};
use harness::{Node, Value};

fn fields(value: &Value) -> impl Iterator<Item = (String, &Value)> {
    value.items().chunks_exact(2).map(|pair| (pair[0].text(), &pair[1]))
}

/// The words that a command knows, of its arguments and those within them.
fn tokens(arguments: &Value, found: &mut BTreeSet<String>) {
    for argument in arguments.items() {
        for (name, value) in fields(argument) {
            match name.as_str() {
                "token" => found.extend(value.text().split(' ').map(str::to_uppercase)),
                "arguments" => tokens(value, found),
                _ => {}
            }
        }
    }
}

/// Each command and subcommand, with its words.
fn gather(documents: &Value, commands: &mut Vec<(String, BTreeSet<String>)>) {
    for (name, document) in fields(documents) {
        let mut words = BTreeSet::new();
        let mut is_container = false;
        for (field, value) in fields(document) {
            match field.as_str() {
                "subcommands" => {
                    is_container = true;
                    gather(value, commands);
                }
                "arguments" => tokens(value, &mut words),
                _ => {}
            }
        }
        if !is_container {
            commands.push((name.to_uppercase().replace('|', " "), words));
        }
    }
}

#[test]
fn every_command_and_every_word_of_valkey_is_in_the_tables() {
    let Some(valkey) = Peer::Valkey.program() else { return };
    let mut commands = Vec::new();
    gather(&Node::start(&valkey, "").run("COMMAND DOCS"), &mut commands);
    assert!(commands.len() > 300, "{}", commands.len());
    let grammar = Grammar::of(Peer::Valkey);
    let mut missing = Vec::new();
    for (command, words) in &commands {
        if ELSEWHERE.iter().any(|(listed, _)| stands_for(listed, command)) {
            continue;
        }
        let known = grammar.words_of(command);
        if known.is_empty() {
            missing.push(command.clone());
        }
        let lacks = words.iter().filter(|word| !word.is_empty() && !known.contains(*word));
        missing.extend(lacks.filter(|_| !known.is_empty()).map(|word| format!("{command} ... {word}")));
    }
    assert!(missing.is_empty(), "no form has\n{}", missing.join("\n"));
}

#[test]
fn the_page_of_differences_is_made_of_the_waivers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/differences.md");
    let page = differences_page();
    if std::env::var_os("WRITE_DIFFERENCES").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(there, page, "WRITE_DIFFERENCES=1 writes it anew");
}
