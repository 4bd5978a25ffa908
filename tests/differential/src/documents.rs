//! Reads the commands of a server from COMMAND DOCS.

use std::collections::BTreeSet;

use harness::Reply;

/// The documentation of a command, or of a subcommand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandDocument {
    /// The name in upper case; a subcommand's name follows its container's name and a space.
    pub name: String,
    /// The command group, such as `sorted-set`.
    pub group: String,
    /// The first server version that has the command.
    pub since: String,
    /// The tokens that the command's arguments may contain, in upper case.
    pub tokens: BTreeSet<String>,
}

/// Returns every command and subcommand in a reply to COMMAND DOCS, except containers.
#[must_use]
pub fn read_documents(reply: &Reply) -> Vec<CommandDocument> {
    let mut documents = Vec::new();
    collect_documents(reply, &mut documents);
    documents
}

fn iter_fields(value: &Reply) -> impl Iterator<Item = (String, &Reply)> {
    value.items().chunks_exact(2).map(|pair| (pair[0].text(), &pair[1]))
}

fn collect_documents(reply: &Reply, documents: &mut Vec<CommandDocument>) {
    for (name, described) in iter_fields(reply) {
        let name = name.to_uppercase().replace('|', " ");
        let mut document =
            CommandDocument { name, group: String::new(), since: String::new(), tokens: BTreeSet::new() };
        let mut is_container = false;
        for (field, value) in iter_fields(described) {
            match field.as_str() {
                "subcommands" => {
                    is_container = true;
                    collect_documents(value, documents);
                }
                "arguments" => collect_tokens(value, &mut document.tokens),
                "group" => document.group = value.text(),
                "since" => document.since = value.text(),
                _ => {}
            }
        }
        if !is_container {
            documents.push(document);
        }
    }
}

/// Collects the tokens of a command's arguments and their nested arguments.
fn collect_tokens(arguments: &Reply, tokens: &mut BTreeSet<String>) {
    for argument in arguments.items() {
        for (name, value) in iter_fields(argument) {
            match name.as_str() {
                "token" => tokens.extend(value.text().split(' ').map(str::to_uppercase)),
                "arguments" => collect_tokens(value, tokens),
                _ => {}
            }
        }
    }
}
