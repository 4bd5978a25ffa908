//! docs/CONFIGURATION.md: every parameter, written from the tables.

use std::fmt::Write as _;

use crate::kind::{ParameterKind, SHUTDOWN_WORDS};
use crate::parameters::{PARAMETERS, Parameter};
use crate::unbuilt::Effect;

const OPENING: &str = "# Configuration

Every parameter that a configuration file, the command line and CONFIG SET take, with the name that Redis or Valkey
gives it. This page is written from the program's own table: `make configuration-page` writes it, and a test fails
while it is not up to date.

`CONFIG SET a 1 b 2` changes all or nothing. CONFIG REWRITE keeps the file's comments and its order. A parameter that
is *fixed* is read at the start only; a *protected* one is changed by CONFIG SET only where `enable-protected-configs`
says so; a *hidden* one is shown by CONFIG GET only to who asks for it by its whole name.

";

/// The page.
fn configuration_page() -> String {
    let mut page = OPENING.to_owned();
    let mut section = |title: &str, text: &str, wanted: fn(&Effect) -> bool| {
        let _ = write!(
            page,
            "## {title}\n\n{text}\n\n| parameter | values | default | |\n| --- | --- | --- | --- |\n"
        );
        for row in PARAMETERS {
            let effect = Effect::of(row.name);
            if wanted(&effect) {
                let _ = writeln!(page, "{}", line(row, &effect));
            }
        }
        page.push('\n');
    };
    section("Parameters", "What these say is done.", |effect| matches!(effect, Effect::Applied));
    section(
        "Accepted, without effect",
        "What these ask for is not there. Where one differs from its default, the log says so at the start.",
        |effect| matches!(effect, Effect::NotBuilt),
    );
    section(
        "Accepted, without purpose",
        "These tune what is done in another way here, or need not be done.",
        |effect| matches!(effect, Effect::NoPurpose(_)),
    );
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn line(row: &Parameter, effect: &Effect) -> String {
    let mut notes = Vec::new();
    if let Some(alias) = row.alias {
        notes.push(format!("also `{alias}`"));
    }
    for (holds, word) in [(!row.mutable, "fixed"), (row.protected, "protected"), (row.hidden, "hidden")] {
        if holds {
            notes.push(word.to_owned());
        }
    }
    if let Effect::NoPurpose(reason) = effect {
        notes.push((*reason).to_owned());
    }
    let default = if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
    format!("| `{}` | {} | {default} | {} |", row.name, values(row.kind), notes.join("; "))
}

fn values(kind: ParameterKind) -> String {
    let words = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let range = |min: i64, max: i64| match (min, max) {
        (min, i64::MAX) => format!("from {min}"),
        (min, max) => format!("{min} to {max}"),
    };
    match kind {
        ParameterKind::Switch => words(&["yes", "no"]),
        ParameterKind::Integer(min, max) | ParameterKind::Clamped(min, max) => range(min, max),
        ParameterKind::Octal => "an octal number".to_owned(),
        ParameterKind::AtLeast(min) => format!("bytes, {}", range(min, i64::MAX)),
        ParameterKind::Memory(min, max) => format!("bytes, {}", range(min, max)),
        ParameterKind::MemoryOrPercent => "bytes, or a part of `maxmemory` (`5%`)".to_owned(),
        ParameterKind::Choice(all) => words(all),
        ParameterKind::ShutdownWords => format!("some of {}", words(&SHUTDOWN_WORDS)),
        ParameterKind::Text => "a text".to_owned(),
        ParameterKind::FileName => "a file's name".to_owned(),
        ParameterKind::Hostname => "a host's name".to_owned(),
        ParameterKind::PlainName => "a name".to_owned(),
        ParameterKind::AnnouncedAddress | ParameterKind::Ipv4 | ParameterKind::Ipv6 => {
            "an address".to_owned()
        }
        ParameterKind::TitleTemplate => "a text with names in braces".to_owned(),
        ParameterKind::Events => "letters of classes of events".to_owned(),
        ParameterKind::Percentiles => "percentiles".to_owned(),
        ParameterKind::ScoreAdjustments => "three numbers".to_owned(),
        ParameterKind::Words => "words".to_owned(),
        ParameterKind::Save => "pairs of seconds and changes".to_owned(),
        ParameterKind::OutputLimits => "`class hard soft seconds`, for one or more classes".to_owned(),
    }
}

/// `WRITE_CONFIGURATION_PAGE=1` writes it.
#[test]
fn the_page_says_what_the_tables_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIGURATION.md");
    let page = configuration_page();
    if std::env::var_os("WRITE_CONFIGURATION_PAGE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(there == page, "docs/CONFIGURATION.md is not up to date: make configuration-page writes it");
    for row in PARAMETERS {
        assert_eq!(page.matches(&format!("\n| `{}` |", row.name)).count(), 1, "{}", row.name);
    }
}
