//! The commands of a server as its COMMAND DOCS tells of them.

use std::collections::BTreeSet;

use harness::Value;

/// A command, or a subcommand behind a space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// In capitals.
    pub name: String,
    /// The family, as `sorted-set`.
    pub group: String,
    /// The version of the protocol's first server that had it.
    pub since: String,
    /// The words that its arguments may be, in capitals.
    pub words: BTreeSet<String>,
}

/// All of them in a reply to COMMAND DOCS, without those that only have subcommands.
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

/// The words among these arguments and those within them.
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
