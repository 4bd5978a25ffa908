//! Generates docs/CONFIGURATION.md from the parameter table.

use std::fmt::Write as _;

use crate::parameters::{PARAMETERS, Parameter};
use crate::unsupported::ParameterEffect;

const INTRODUCTION: &str = "# Configuration

Set a parameter in the configuration file (`port 7000`), on the command line (`--port 7000`) or at run time
(`CONFIG SET timeout 60`). Parameters that Redis or Valkey have keep their names and defaults.

`CONFIG SET a 1 b 2` applies all changes or none. CONFIG REWRITE keeps the comments and the order of the file. A *fixed*
parameter can only be set at startup. CONFIG SET changes a *protected* parameter only if `enable-protected-configs`
allows it. CONFIG GET shows a *hidden* parameter only when asked for its exact name. *Also* gives an alias of the
parameter, *formerly* a name that still works and that CONFIG REWRITE replaces.

This page is generated from the parameter table of the program by `make configuration-page`; a test fails when it is
out of date.

";

/// Returns the text of docs/CONFIGURATION.md.
fn configuration_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut section = |title: &str, text: &str, wanted: fn(&ParameterEffect) -> bool| {
        let _ = write!(
            page,
            "## {title}\n\n{text}\n\n| parameter | values | default | |\n| --- | --- | --- | --- |\n"
        );
        for row in PARAMETERS {
            let effect = ParameterEffect::of_parameter(row.id);
            if wanted(&effect) {
                let _ = writeln!(page, "{}", table_row(row, &effect));
            }
        }
        page.push('\n');
    };
    section("Parameters", "These parameters have their documented effect.", |effect| {
        matches!(effect, ParameterEffect::Applied)
    });
    section(
        "Accepted, not implemented",
        "The server accepts these parameters but does not implement them. At startup the log warns of each that differs from \
         its default.",
        |effect| matches!(effect, ParameterEffect::NotImplemented),
    );
    section(
        "Accepted, not needed",
        "These parameters tune something that Redoubt does differently or does not need to do.",
        |effect| matches!(effect, ParameterEffect::NotNeeded(_)),
    );
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn table_row(parameter: &Parameter, effect: &ParameterEffect) -> String {
    let mut notes = Vec::new();
    if let Some(alias) = parameter.alias {
        let word = if parameter.alias_is_former_name { "formerly" } else { "also" };
        notes.push(format!("{word} `{alias}`"));
    }
    for (holds, word) in
        [(!parameter.mutable, "fixed"), (parameter.protected, "protected"), (parameter.hidden, "hidden")]
    {
        if holds {
            notes.push(word.to_owned());
        }
    }
    if let ParameterEffect::NotNeeded(reason) = effect {
        notes.push((*reason).to_owned());
    }
    let default =
        if parameter.default.is_empty() { String::new() } else { format!("`{}`", parameter.default) };
    format!(
        "| `{}` | {} | {default} | {} |",
        parameter.name,
        parameter.field.describe_values(),
        notes.join("; ")
    )
}

/// Compares the page on disk with the tables. `WRITE_CONFIGURATION_PAGE=1` updates it.
#[test]
fn configuration_page_is_up_to_date() {
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
