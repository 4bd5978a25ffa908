//! A crate may use only those on floors below it.

use crate::File;

/// The floors of `docs/ARCHITECTURE.md`.
const FLOORS: &[(&str, u8)] = &[
    ("clock", 0),
    ("glob", 0),
    ("resp", 0),
    ("slot-routing", 0),
    ("acl", 1),
    ("config", 1),
    ("failover-history", 1),
    ("keyspace", 1),
    ("metrics", 1),
    ("scripting", 1),
    ("client-conformance", 1),
    ("capacity", 2),
    ("consensus", 2),
    ("gossip", 2),
    ("migration", 2),
    ("persistence", 2),
    ("replication", 2),
    ("append-only", 3),
    ("engine", 3),
    ("sentinel", 3),
    ("commands", 4),
    ("loading", 5),
    ("process", 5),
    ("durability", 6),
    ("net", 6),
    ("node", 7),
    ("sentinel-server", 7),
    ("redoubt", 8),
    ("redoubt-test", 8),
    ("sim", 8),
];

/// The floor of the binaries, which say what they do by themselves.
const BINARIES: u8 = 8;

/// Crates that stand beside the building: they use none of ours, and of ours only the binary and tests use them.
const BESIDE: &[&str] = &["harness", "lock"];

fn floor(name: &str) -> Option<u8> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

/// The names of the dependencies in a manifest, of every kind, with their line numbers.
pub(crate) fn dependencies(manifest: &File) -> Vec<(usize, String, bool)> {
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

/// Complaints about crates that use one on their own floor or above.
#[must_use]
pub fn check_floors(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for manifest in manifests(files) {
        let name = manifest.crate_name().unwrap_or_default();
        for (line, dependency, _) in dependencies(manifest) {
            let ours = floor(&dependency);
            let upward = match (floor(name), ours) {
                (Some(own), Some(other)) => other >= own,
                (None, Some(_)) => BESIDE.contains(&name),
                _ => false,
            };
            if upward {
                complaints.push(format!("{}:{line}: {name} may not use {dependency}", manifest.path));
            }
        }
    }
    complaints
}

/// Complaints about crates that no floor names.
#[must_use]
pub fn check_known(files: &[File]) -> Vec<String> {
    manifests(files)
        .filter_map(File::crate_name)
        .filter(|name| floor(name).is_none() && !BESIDE.contains(name))
        .map(|name| {
            format!("crates/{name}: give it a floor in docs/ARCHITECTURE.md and tests/tidy/src/layers.rs")
        })
        .collect()
}

/// Complaints about libraries of the workspace that `docs/ARCHITECTURE.md` gives no place.
#[must_use]
pub fn check_libraries(files: &[File]) -> Vec<String> {
    let text = |path| files.iter().find(|file| file.path == path);
    let (Some(manifest), Some(page)) = (text("Cargo.toml"), text("docs/ARCHITECTURE.md")) else {
        return vec!["Cargo.toml or docs/ARCHITECTURE.md is missing".to_owned()];
    };
    let explained: Vec<&str> = page
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|names| names.split(", "))
        .collect();
    dependencies(manifest)
        .into_iter()
        .filter(|(line, name, _)| {
            let is_ours = manifest.text.lines().nth(line - 1).is_some_and(|text| text.contains("path = "));
            !is_ours && !explained.contains(&name.as_str())
        })
        .map(|(line, name, _)| format!("Cargo.toml:{line}: say in docs/ARCHITECTURE.md what {name} is for"))
        .collect()
}

/// Complaints about crates of the shell whose messages the log does not take for the server's own: of them it would keep
/// the warnings alone.
#[must_use]
pub fn check_messages(files: &[File]) -> Vec<String> {
    const LOG: &str = "crates/process/src/log.rs";
    let listed = files.iter().find(|file| file.path == LOG).and_then(|file| {
        let (_, list) = file.text.split_once("const LOGGING_CRATES")?;
        list.split(';').nth(1)
    });
    let Some(listed) = listed else { return vec![format!("{LOG}: LOGGING_CRATES is missing")] };
    let shell = manifests(files).filter(|manifest| {
        let ours = manifest.crate_name().and_then(floor).is_some_and(|own| own < BINARIES);
        ours && dependencies(manifest).iter().any(|(_, name, _)| name == "tracing")
    });
    let names = shell.filter_map(File::crate_name).map(|name| name.replace('-', "_"));
    let unlisted = names.filter(|name| !listed.contains(&format!("\"{name}\"")));
    unlisted.map(|name| format!("{LOG}: LOGGING_CRATES does not name {name}")).collect()
}

pub(crate) fn manifests(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.crate_name().is_some() && file.path_in_crate() == "Cargo.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upward_dependency_is_named_in_every_form_that_cargo_allows() {
        for text in [
            "[dependencies]\nnode.workspace = true",
            "[dependencies]\nnode = { workspace = true }",
            "[dev-dependencies]\nnode.workspace = true",
            "[target.'cfg(unix)'.dependencies]\nnode = \"1\"",
            "[package]\n[dependencies.node]",
        ] {
            let manifest = File::new("crates/gossip/Cargo.toml", text);
            assert_eq!(
                check_floors(&[manifest]),
                ["crates/gossip/Cargo.toml:2: gossip may not use node"],
                "{text}"
            );
        }
    }

    #[test]
    fn a_neighbour_on_the_same_floor_is_upward_too() {
        let manifest = File::new("crates/gossip/Cargo.toml", "[dependencies]\nreplication.workspace = true");
        assert_eq!(check_floors(&[manifest]).len(), 1);
    }

    #[test]
    fn downward_and_foreign_dependencies_pass() {
        let text = "[dependencies]\nclock.workspace = true\nredis = \"1\"\n[features]\nnode = []";
        assert_eq!(check_floors(&[File::new("crates/gossip/Cargo.toml", text)]), Vec::<String>::new());
    }

    #[test]
    fn a_library_without_a_place_is_named() {
        let manifest =
            "[workspace.dependencies]\nclock = { path = \"crates/clock\" }\ncrc = \"3\"\nlzf = \"1\"";
        let page = File::new("docs/ARCHITECTURE.md", "| library | its place |\n| crc, time | sums |");
        assert_eq!(
            check_libraries(&[File::new("Cargo.toml", manifest), page]),
            ["Cargo.toml:4: say in docs/ARCHITECTURE.md what lzf is for"]
        );
    }

    #[test]
    fn a_crate_without_a_floor_is_named() {
        assert_eq!(check_known(&[File::new("crates/attic/Cargo.toml", "")]).len(), 1);
    }
}
