//! Compares COMMAND DOCS with Valkey for each command that both servers have.

use std::collections::BTreeMap;

use harness::{Node, Program, Value};

/// The fields of each command and subcommand.
type Documents = BTreeMap<String, BTreeMap<String, Value>>;

fn fields(value: &Value) -> BTreeMap<String, Value> {
    value.items().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].clone())).collect()
}

fn gather(of: &Value, documents: &mut Documents) {
    for (name, document) in fields(of) {
        let document = fields(&document);
        if let Some(subcommands) = document.get("subcommands") {
            gather(subcommands, documents);
        }
        documents.insert(name, document);
    }
}

fn documents(program: &Program) -> Documents {
    let mut documents = Documents::new();
    gather(&Node::start(program, "").run("COMMAND DOCS"), &mut documents);
    documents
}

/// Formats the arguments in order, each with its sorted properties.
fn arguments(list: &Value) -> Vec<String> {
    let shown = |argument: &Value| {
        // A summary is free text.
        let facts = fields(argument).into_iter().filter(|(name, _)| name != "summary");
        let facts = facts.map(|(name, value)| match name.as_str() {
            "arguments" => format!("arguments={:?}", arguments(&value)),
            "flags" => {
                let mut flags: Vec<String> = value.items().iter().map(Value::text).collect();
                flags.sort();
                format!("flags={flags:?}")
            }
            _ => format!("{name}={value:?}"),
        });
        facts.collect::<Vec<_>>().join(" ")
    };
    list.items().iter().map(shown).collect()
}

/// The fields of a document that must be equal. Free texts may differ.
fn facts(document: &BTreeMap<String, Value>) -> BTreeMap<&str, String> {
    let mut facts: BTreeMap<&str, String> = ["since", "group", "deprecated_since", "doc_flags"]
        .into_iter()
        .filter_map(|name| Some((name, format!("{:?}", document.get(name)?))))
        .collect();
    if document.contains_key("replaced_by") {
        facts.insert("replaced_by", "told".to_owned());
    }
    if let Some(history) = document.get("history") {
        let versions: Vec<String> = history.items().iter().map(|entry| entry.items()[0].text()).collect();
        facts.insert("history", versions.join(" "));
    }
    if let Some(list) = document.get("arguments") {
        facts.insert("arguments", arguments(list).join("\n"));
    }
    facts
}

#[test]
fn command_docs_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let (ours, theirs) = (documents(&Program::redoubt()), documents(&valkey));
    let both = ours.iter().filter_map(|(name, document)| Some((name, document, theirs.get(name)?)));
    let mut compared = 0;
    let mut report = Vec::new();
    for (name, own, other) in both {
        compared += 1;
        if facts(own) != facts(other) {
            report.push(format!("{name}:\n    here   {:?}\n    Valkey {:?}", facts(own), facts(other)));
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(compared > 380, "only {compared} commands were compared");
}
