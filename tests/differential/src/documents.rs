//! Reads the commands of a server from COMMAND DOCS.

use std::collections::BTreeSet;

use harness::Value;

/// A command, or a subcommand with its container's name and a space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// In upper case.
    pub name: String,
    /// The command group, such as `sorted-set`.
    pub group: String,
    /// The first server version that has the command.
    pub since: String,
    /// The tokens that its arguments may contain, in upper case.
    pub words: BTreeSet<String>,
}

/// Every command and subcommand in a reply to COMMAND DOCS, except containers.
#[must_use]
pub fn read_documents(reply: &Value) -> Vec<Document> {
    let mut documents = Vec::new();
    gather(reply, &mut documents);
    documents
}

fn fields(value: &Value) -> impl Iterator<Item = (String, &Value)> {
    value.items().chunks_exact(2).map(|pair| (pair[0].text(), &pair[1]))
}

fn gather(reply: &Value, documents: &mut Vec<Document>) {
    for (name, described) in fields(reply) {
        let name = name.to_uppercase().replace('|', " ");
        let mut document =
            Document { name, group: String::new(), since: String::new(), words: BTreeSet::new() };
        let mut is_container = false;
        for (field, value) in fields(described) {
            match field.as_str() {
                "subcommands" => {
                    is_container = true;
                    gather(value, documents);
                }
                "arguments" => gather_words(value, &mut document.words),
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

/// Collects the tokens of these arguments and of nested arguments.
fn gather_words(arguments: &Value, found: &mut BTreeSet<String>) {
    for argument in arguments.items() {
        for (name, value) in fields(argument) {
            match name.as_str() {
                "token" => found.extend(value.text().split(' ').map(str::to_uppercase)),
                "arguments" => gather_words(value, found),
                _ => {}
            }
        }
    }
}
