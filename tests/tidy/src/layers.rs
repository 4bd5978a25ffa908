//! Checks that a crate depends only on crates of lower layers.

use crate::SourceFile;
use crate::crate_table::{ARCHITECTURE_PATH, CrateRow, crate_rows};

/// Crates that depend on no other crate of the workspace, and on which only binaries and tests depend.
const INDEPENDENT_CRATES: &[&str] = &["harness", "lock"];

fn layer_of(rows: &[CrateRow<'_>], name: &str) -> Option<u8> {
    rows.iter().find(|row| row.name == name).map(|row| row.layer)
}

/// Returns the dependencies of every kind in a manifest: line number, name, and whether it is a
/// development dependency.
pub(crate) fn parse_dependencies(manifest: &SourceFile) -> Vec<(usize, String, bool)> {
    let mut found = Vec::new();
    let mut section = "";
    for (index, line) in manifest.text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            if let Some((kind, name)) = section.rsplit_once("dependencies.") {
                found.push((index + 1, name.to_owned(), kind.ends_with("dev-")));
            }
        } else if section.ends_with("dependencies") && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push((
                    index + 1,
                    name.trim_matches('"').to_owned(),
                    section.ends_with("dev-dependencies"),
                ));
            }
        }
    }
    found
}

/// Reports dependencies on crates of the same or a higher layer.
#[must_use]
pub fn check_layers(files: &[SourceFile]) -> Vec<String> {
    let (mut violations, rows) = (Vec::new(), crate_rows(files));
    for manifest in manifests_of_tests(files) {
        let name = manifest.crate_name().unwrap_or_default();
        for (line, dependency, _) in parse_dependencies(manifest) {
            let ours = layer_of(&rows, &dependency);
            let upward = match (layer_of(&rows, name), ours) {
                (Some(own), Some(other)) => other >= own,
                (None, Some(_)) => INDEPENDENT_CRATES.contains(&name),
                _ => false,
            };
            if upward {
                violations.push(format!("{}:{line}: {name} may not use {dependency}", manifest.path));
            }
        }
    }
    violations
}

/// Reports crates without a layer.
#[must_use]
pub fn check_layers_are_complete(files: &[SourceFile]) -> Vec<String> {
    let rows = crate_rows(files);
    manifests_of_tests(files)
        .filter_map(SourceFile::crate_name)
        .filter(|name| layer_of(&rows, name).is_none() && !INDEPENDENT_CRATES.contains(name))
        .map(|name| format!("crates/{name}: add it to the table of crates in {ARCHITECTURE_PATH}"))
        .collect()
}

/// Reports workspace dependencies that `docs/ARCHITECTURE.md` does not list.
#[must_use]
pub fn check_libraries_are_documented(files: &[SourceFile]) -> Vec<String> {
    let text = |path| files.iter().find(|file| file.path == path);
    let (Some(manifest), Some(page)) = (text("Cargo.toml"), text(ARCHITECTURE_PATH)) else {
        return vec!["Cargo.toml or docs/ARCHITECTURE.md is missing".to_owned()];
    };
    let explained: Vec<&str> = page
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|names| names.split(", "))
        .collect();
    parse_dependencies(manifest)
        .into_iter()
        .filter(|(line, name, _)| {
            let is_ours = manifest.text.lines().nth(line - 1).is_some_and(|text| text.contains("path = "));
            !is_ours && !explained.contains(&name.as_str())
        })
        .map(|(line, name, _)| format!("Cargo.toml:{line}: {name} is not described in docs/ARCHITECTURE.md"))
        .collect()
}

/// Reports crates whose log messages the server's log filter would drop below warning level because
/// their names are missing from its list.
#[must_use]
pub fn check_log_filter(files: &[SourceFile]) -> Vec<String> {
    const LOG_SOURCE_PATH: &str = "crates/process/src/log.rs";
    let listed = files.iter().find(|file| file.path == LOG_SOURCE_PATH).and_then(|file| {
        let (_, list) = file.text.split_once("const LOGGING_CRATES")?;
        list.split(';').nth(1)
    });
    let Some(listed) = listed else { return vec![format!("{LOG_SOURCE_PATH}: LOGGING_CRATES is missing")] };
    let rows = crate_rows(files);
    // The crates of the highest layer build binaries.
    let binary_layer = rows.iter().map(|row| row.layer).max().unwrap_or_default();
    let shell = manifests_of_tests(files).filter(|manifest| {
        let layer = manifest.crate_name().and_then(|name| layer_of(&rows, name));
        let ours = layer.is_some_and(|own| own < binary_layer);
        ours && parse_dependencies(manifest).iter().any(|(_, name, _)| name == "tracing")
    });
    let names = shell.filter_map(SourceFile::crate_name).map(|name| name.replace('-', "_"));
    let unlisted = names.filter(|name| !listed.contains(&format!("\"{name}\"")));
    unlisted.map(|name| format!("{LOG_SOURCE_PATH}: LOGGING_CRATES does not name {name}")).collect()
}

pub(crate) fn manifests_of_tests(files: &[SourceFile]) -> impl Iterator<Item = &SourceFile> {
    files.iter().filter(|file| file.crate_name().is_some() && file.path_in_crate() == "Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crate_table::test_page;

    fn check_manifest(text: &str) -> Vec<String> {
        let page = test_page(
            "| 7 | `node` | a server | |\n| 2 | `gossip`, `replication` | protocols | yes |\n\
             | 0 | `clock` | time | yes |",
        );
        check_layers(&[page, SourceFile::new("crates/gossip/Cargo.toml", text)])
    }

    #[test]
    fn reports_upward_dependencies_in_every_manifest_form() {
        for text in [
            "[dependencies]\nnode.workspace = true",
            "[dependencies]\nnode = { workspace = true }",
            "[dev-dependencies]\nnode.workspace = true",
            "[target.'cfg(unix)'.dependencies]\nnode = \"1\"",
            "[package]\n[dependencies.node]",
        ] {
            assert_eq!(
                check_manifest(text),
                ["crates/gossip/Cargo.toml:2: gossip may not use node"],
                "{text}"
            );
        }
    }

    #[test]
    fn reports_dependencies_within_a_layer() {
        assert_eq!(check_manifest("[dependencies]\nreplication.workspace = true").len(), 1);
    }

    #[test]
    fn accepts_downward_and_external_dependencies() {
        let text = "[dependencies]\nclock.workspace = true\nredis = \"1\"\n[features]\nnode = []";
        assert_eq!(check_manifest(text), Vec::<String>::new());
    }

    #[test]
    fn reports_undocumented_libraries() {
        let manifest =
            "[workspace.dependencies]\nclock = { path = \"crates/clock\" }\ncrc = \"3\"\nlzf = \"1\"";
        let page = SourceFile::new("docs/ARCHITECTURE.md", "| library | its place |\n| crc, time | sums |");
        assert_eq!(
            check_libraries_are_documented(&[SourceFile::new("Cargo.toml", manifest), page]),
            ["Cargo.toml:4: lzf is not described in docs/ARCHITECTURE.md"]
        );
    }

    #[test]
    fn reports_crates_without_layer() {
        assert_eq!(check_layers_are_complete(&[SourceFile::new("crates/attic/Cargo.toml", "")]).len(), 1);
    }
}
