//! Checks that the tables have a syntax form of every command and every token of Valkey, and that the generated pages
//! of commands and differences are up to date.

use std::path::Path;

use differential::{
    CommandDocument, Grammar, ReferenceServer, ServerCommands, compatibility_page, differences_page,
    find_wrong_missing_entries, read_documents, tested_elsewhere_reason,
};
use harness::{Node, Program};

/// Starts a server of this program and reads its commands.
fn read_commands(program: &Program) -> Vec<CommandDocument> {
    read_documents(&Node::start(program, "").run("COMMAND DOCS"))
}

/// Compares a page of docs/ with the generated text, or writes it on request.
fn check_page(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("WRITE_COMPATIBILITY").is_some() {
        std::fs::write(&path, page).expect("the page can be written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(there, page, "make compatibility-page writes it anew");
}

#[test]
fn tables_cover_every_command_and_token_of_valkey() {
    let Some(valkey) = ReferenceServer::Valkey.program() else { return };
    let commands = read_commands(&valkey);
    assert!(commands.len() > 300, "{}", commands.len());
    let grammar = Grammar::for_reference_server(ReferenceServer::Valkey);
    let mut missing = Vec::new();
    for CommandDocument { name: command, tokens: words, .. } in &commands {
        if tested_elsewhere_reason(command).is_some() {
            continue;
        }
        let known = grammar.words_of_command(command);
        if known.is_empty() {
            missing.push(command.clone());
        }
        let lacks = words.iter().filter(|word| !word.is_empty() && !known.contains(*word));
        missing.extend(lacks.filter(|_| !known.is_empty()).map(|word| format!("{command} ... {word}")));
    }
    assert!(missing.is_empty(), "no form has\n{}", missing.join("\n"));
}

#[test]
fn compatibility_page_of_differences_matches_waivers() {
    check_page("differences.md", &differences_page());
}

#[test]
fn compatibility_page_of_commands_matches_servers() {
    let (Some(valkey), Some(redis8)) = (ReferenceServer::Valkey.program(), ReferenceServer::Redis8.program())
    else {
        return;
    };
    let commands = ServerCommands {
        redoubt_commands: read_commands(&Program::redoubt()),
        valkey_commands: read_commands(&valkey),
        redis8_commands: read_commands(&redis8),
    };
    assert_eq!(
        find_wrong_missing_entries(&commands),
        Vec::<String>::new(),
        "src/elsewhere.in says that they are not there, or not"
    );
    check_page("compatibility.md", &compatibility_page(&commands));
}
