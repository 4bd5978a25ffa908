//! Compares COMMAND DOCS with Valkey for each command that both servers have.

use std::collections::BTreeMap;

use harness::{Node, Program, Reply};

/// The fields of each documented command and subcommand.
type DocumentFields = BTreeMap<String, BTreeMap<String, Reply>>;

fn read_fields(value: &Reply) -> BTreeMap<String, Reply> {
    value.items().chunks_exact(2).map(|pair| (pair[0].text(), pair[1].clone())).collect()
}

fn collect_documents(reply: &Reply, documents: &mut DocumentFields) {
    for (name, document) in read_fields(reply) {
        let document = read_fields(&document);
        if let Some(subcommands) = document.get("subcommands") {
            collect_documents(subcommands, documents);
        }
        documents.insert(name, document);
    }
}

fn read_documents(program: &Program) -> DocumentFields {
    let mut documents = DocumentFields::new();
    collect_documents(&Node::start(program, "").run("COMMAND DOCS"), &mut documents);
    documents
}

/// Formats the arguments in order, each with its sorted properties.
fn format_arguments(list: &Reply) -> Vec<String> {
    let shown = |argument: &Reply| {
        // The summary is free text, which may differ.
        let facts = read_fields(argument).into_iter().filter(|(name, _)| name != "summary");
        let facts = facts.map(|(name, value)| match name.as_str() {
            "arguments" => format!("arguments={:?}", format_arguments(&value)),
            "flags" => {
                let mut flags: Vec<String> = value.items().iter().map(Reply::text).collect();
                flags.sort();
                format!("flags={flags:?}")
            }
            _ => format!("{name}={value:?}"),
        });
        facts.collect::<Vec<_>>().join(" ")
    };
    list.items().iter().map(shown).collect()
}

/// The fields of a document that must be equal; free texts are left out.
fn comparable_fields(document: &BTreeMap<String, Reply>) -> BTreeMap<&str, String> {
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
        facts.insert("arguments", format_arguments(list).join("\n"));
    }
    facts
}

#[test]
fn command_docs_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let (ours, theirs) = (read_documents(&Program::redoubt()), read_documents(&valkey));
    let both = ours.iter().filter_map(|(name, document)| Some((name, document, theirs.get(name)?)));
    let mut compared = 0;
    let mut report = Vec::new();
    for (name, own, other) in both {
        compared += 1;
        if comparable_fields(own) != comparable_fields(other) {
            report.push(format!(
                "{name}:\n    here   {:?}\n    Valkey {:?}",
                comparable_fields(own),
                comparable_fields(other)
            ));
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(compared > 380, "only {compared} commands were compared");
}
