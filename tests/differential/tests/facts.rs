//! Compares COMMAND and ACL CAT: arity, flags, categories, keys and hints of each command. Valkey is the reference for
//! the commands that it has, Redis 8 for those that only Redis has.

use std::collections::{BTreeMap, BTreeSet};

use differential::{REDOUBT_ONLY_COMMANDS, ReferenceServer, is_missing};
use harness::{Connection, Node, Program, Reply};

/// The prefix of the commands of Redis 8 for vector sets, which Redoubt does not support.
const VECTOR_SET_PREFIX: &str = "V";
/// Internal commands of Redis's slot migration, which no client sends.
const INTERNAL_COMMANDS: &[&str] = &["trimslots"];

/// The properties of one command, by property name.
type CommandProperties = BTreeMap<&'static str, String>;

/// The properties of each command and subcommand, and the commands in each ACL category.
struct CommandMetadata {
    commands: BTreeMap<String, CommandProperties>,
    categories: BTreeMap<String, BTreeSet<String>>,
}

impl CommandMetadata {
    fn read(program: &Program) -> Self {
        let node = Node::start(program, "");
        let mut connection = node.connect();
        let mut commands = BTreeMap::new();
        collect_commands(&connection.call_line("COMMAND"), &mut commands);
        Self { commands, categories: read_categories(&mut connection) }
    }
}

fn collect_commands(table: &Reply, commands: &mut BTreeMap<String, CommandProperties>) {
    for entry in table.items() {
        let fields = entry.items();
        let names = ["arity", "flags", "first key", "last key", "step", "categories", "hints", "keys"];
        let facts = names.into_iter().zip(&fields[1..]).map(|(name, value)| {
            let shown = match name {
                "flags" | "categories" | "hints" => format!("{:?}", word_set(value)),
                "keys" => format!("{:?}", value.items().iter().map(format_key_spec).collect::<Vec<_>>()),
                _ => format!("{value:?}"),
            };
            (name, shown)
        });
        commands.insert(fields[0].text(), facts.collect());
        collect_commands(&fields[9], commands);
    }
}

fn word_set(list: &Reply) -> BTreeSet<String> {
    list.items().iter().map(Reply::text).collect()
}

/// Formats a key spec without its notes, which are free text.
fn format_key_spec(spec: &Reply) -> String {
    let parts = spec.items().chunks_exact(2).filter(|pair| pair[0].text() != "notes");
    let shown = parts.map(|pair| match pair[0].text().as_str() {
        "flags" => format!("{:?}", word_set(&pair[1])),
        name => format!("{name}={:?}", pair[1]),
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn read_categories(connection: &mut Connection) -> BTreeMap<String, BTreeSet<String>> {
    let names = word_set(&connection.call_line("ACL CAT"));
    names
        .into_iter()
        .map(|name| {
            let commands = word_set(&connection.call(&["ACL", "CAT", &name]));
            (name, commands)
        })
        .collect()
}

/// Whether a command of the reference server is known to be missing in Redoubt.
fn is_known_missing(name: &str) -> bool {
    is_missing(&name.to_uppercase().replace('|', " "))
        || name.starts_with(VECTOR_SET_PREFIX)
        || INTERNAL_COMMANDS.contains(&name)
}

/// Reports the properties of a command that differ between the servers.
fn report_differences(
    name: &str,
    ours: &CommandProperties,
    theirs: &CommandProperties,
    peer: &str,
    report: &mut Vec<String>,
) {
    for (about, fact) in ours.iter().filter(|(about, fact)| theirs.get(*about) != Some(fact)) {
        report.push(format!("{name}, {about}:\n    here    {fact}\n    {peer}  {}", theirs[about]));
    }
}

#[test]
fn command_info_matches_valkey_and_redis() {
    let (Some(valkey), Some(redis)) = (ReferenceServer::Valkey.program(), ReferenceServer::Redis8.program())
    else {
        return;
    };
    let [here, valkey, redis] =
        [Program::redoubt(), valkey, redis].map(|program| CommandMetadata::read(&program));
    let mut report = Vec::new();
    for (name, facts) in &here.commands {
        match (valkey.commands.get(name), redis.commands.get(name)) {
            (Some(there), _) => report_differences(name, facts, there, "Valkey", &mut report),
            (None, Some(there)) => report_differences(name, facts, there, "Redis", &mut report),
            (None, None) if REDOUBT_ONLY_COMMANDS.iter().any(|(only, _)| only.eq_ignore_ascii_case(name)) => {
            }
            (None, None) => report.push(format!("{name} is here alone")),
        }
    }
    let theirs = valkey.commands.keys().chain(redis.commands.keys());
    for name in theirs.filter(|name| !here.commands.contains_key(*name)) {
        if !is_known_missing(name) {
            report.push(format!("{name} is not here"));
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(valkey.commands.len() > 380, "{} commands were compared", valkey.commands.len());
}

#[test]
fn acl_categories_match_valkey() {
    let Some(valkey) = ReferenceServer::Valkey.program() else { return };
    let [here, there] = [Program::redoubt(), valkey].map(|program| CommandMetadata::read(&program));
    let names = |surface: &CommandMetadata| surface.categories.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&here), names(&there));
    for (name, commands) in &here.categories {
        let common = |of: &BTreeSet<String>, other: &CommandMetadata| -> BTreeSet<String> {
            of.iter().filter(|name| other.commands.contains_key(*name)).cloned().collect()
        };
        assert_eq!(common(commands, &there), common(&there.categories[name], &here), "@{name}");
    }
}
