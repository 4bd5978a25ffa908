//! docs/CONFIGURATION.md: every parameter, written from the tables.

use std::fmt::Write as _;

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
            let effect = Effect::of(row.id);
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
    format!("| `{}` | {} | {default} | {} |", row.name, row.field.describe(), notes.join("; "))
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
