//! Generates the page of supported commands, how each is tested, and known differences, from COMMAND DOCS of the
//! servers and the tables of this package.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::{CommandDocument, tested_elsewhere_reason, waivers};

/// The reason in `elsewhere.in` for a command of Valkey that Redoubt does not have.
const NOT_SUPPORTED_REASON: &str = "not there";
/// Commands that only Redoubt has, and their purpose.
pub const REDOUBT_ONLY_COMMANDS: &[(&str, &str)] =
    &[("CLUSTER|FAILOVERS", "only in Redoubt"), ("INCREX", "Redis 8.8, not compared")];
/// The file name of the page of differences.
const DIFFERENCES_PAGE: &str = "differences.md";

/// The commands that each of the three servers documents.
#[derive(Debug, Clone)]
pub struct ServerCommands {
    /// All commands of the server under test.
    pub redoubt_commands: Vec<CommandDocument>,
    /// All commands of Valkey 9.1.
    pub valkey_commands: Vec<CommandDocument>,
    /// All commands of Redis 8.6.
    pub redis8_commands: Vec<CommandDocument>,
}

/// Whether Redoubt is known to lack this command of Valkey.
#[must_use]
pub fn is_missing(command: &str) -> bool {
    tested_elsewhere_reason(command) == Some(NOT_SUPPORTED_REASON)
}

/// Reports commands that are listed as missing but exist, and commands that are missing but not listed.
#[must_use]
pub fn find_wrong_missing_entries(commands: &ServerCommands) -> Vec<String> {
    let ours = command_names(&commands.redoubt_commands);
    let is_wrong = |command: &&String| {
        (tested_elsewhere_reason(command) == Some(NOT_SUPPORTED_REASON)) == ours.contains(command.as_str())
    };
    commands.valkey_commands.iter().map(|document| &document.name).filter(is_wrong).cloned().collect()
}

fn command_names(documents: &[CommandDocument]) -> BTreeSet<&str> {
    documents.iter().map(|document| document.name.as_str()).collect()
}

/// Generates the text of docs/compatibility.md.
#[must_use]
pub fn compatibility_page(commands: &ServerCommands) -> String {
    let mut page = "# Supported commands\n\n\
        This page lists all commands and how each is tested. It is generated from COMMAND DOCS of the servers and the \
        tables of the differential tests by `make compatibility-page`; a test fails when it is out of date.\n\n"
        .to_owned();
    write_summary(commands, &mut page);
    write_missing_commands(commands, &mut page);
    write_command_groups(commands, &mut page);
    page
}

fn write_summary(commands: &ServerCommands, page: &mut String) {
    let (ours, valkey) =
        (command_names(&commands.redoubt_commands), command_names(&commands.valkey_commands));
    let there = ours.intersection(&valkey).count();
    let elsewhere = ours.iter().filter(|command| tested_elsewhere_reason(command).is_some()).count();
    let differing = ours.iter().filter(|command| waivers::waiver_count(command) > 0).count();
    let _ = writeln!(
        page,
        "Redoubt has {there} of the {} commands and subcommands of Valkey 9.1, and {} newer ones of Redis. The replies of \
         {} are compared with Valkey in random sequences, alone, in transactions and in scripts, with all options; \
         {elsewhere} are tested in other ways, as the tables show. {differing} have a reply that differs \
         [by choice]({DIFFERENCES_PAGE}).\n",
        valkey.len(),
        ours.difference(&valkey).count(),
        there - elsewhere,
    );
    page.push_str(
        "The tests compare replies. They do not compare memory figures of INFO, sizes of encodings, output of DEBUG, timing, or \
         the order of members of a hash, a set or the keyspace, which no server guarantees. Configuration parameters \
         are listed on a [page of their own](CONFIGURATION.md).\n\n",
    );
}

fn write_missing_commands(commands: &ServerCommands, page: &mut String) {
    let (ours, valkey) =
        (command_names(&commands.redoubt_commands), command_names(&commands.valkey_commands));
    let absent = |documents: &[CommandDocument], but: &BTreeSet<&str>| {
        let listed: BTreeSet<String> = documents
            .iter()
            .map(|document| document.name.clone())
            .filter(|name| !ours.contains(name.as_str()) && !but.contains(name.as_str()))
            .map(|name| format!("`{name}`"))
            .collect();
        let listed: Vec<String> = listed.into_iter().collect();
        if listed.is_empty() { "none".to_owned() } else { listed.join(", ") }
    };
    let _ = writeln!(
        page,
        "## Not supported\n\n| server | commands |\n| --- | --- |\n| Valkey 9.1 | {} |\n| only Redis 8.6 | {} |\n\n\
         These are unknown commands. Modules (`MODULE LOAD`) are rejected.\n",
        absent(&commands.valkey_commands, &BTreeSet::new()),
        absent(&commands.redis8_commands, &valkey),
    );
}

fn write_command_groups(commands: &ServerCommands, page: &mut String) {
    let mut groups: BTreeMap<&str, BTreeMap<&str, &CommandDocument>> = BTreeMap::new();
    for document in &commands.redoubt_commands {
        groups.entry(&document.group).or_default().insert(&document.name, document);
    }
    for (group, documents) in groups {
        let _ = writeln!(
            page,
            "## {group}\n\n| command | since | tests | differences |\n| --- | --- | --- | --- |"
        );
        for (name, document) in documents {
            let alone =
                REDOUBT_ONLY_COMMANDS.iter().find(|(only, _)| *only == name).map(|(_, reason)| *reason);
            let tested = tested_elsewhere_reason(name).or(alone).unwrap_or("compared with Valkey");
            let differs = match waivers::waiver_count(name) {
                0 => String::new(),
                1 => format!("[1 reply]({DIFFERENCES_PAGE})"),
                ways => format!("[{ways} replies]({DIFFERENCES_PAGE})"),
            };
            let _ = writeln!(page, "| {name} | {} | {tested} | {differs} |", document.since);
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
}
