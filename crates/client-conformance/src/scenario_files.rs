//! Loads the built-in scenarios, or all scenarios in a folder.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::scenario::Scenario;

/// Embeds scenario files as pairs of name and content.
macro_rules! embed_scenarios {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../scenarios/", $name, ".yaml")))),*]
    };
}

const SCENARIO_FILES: &[(&str, &str)] = embed_scenarios![
    "ask-once",
    "ask-then-gone",
    "blocking-is-served",
    "blocking-longer-than-timeout",
    "blocking-master-dies",
    "blocking-master-is-demoted",
    "blocking-reply-lost",
    "blocking-slot-moves",
    "caching-another-client-writes",
    "caching-connection-ends",
    "caching-master-dies",
    "caching-slot-moves",
    "certificate-is-renewed",
    "certificate-of-a-stranger",
    "clusterdown",
    "dead-node-at-start",
    "half-open-node-at-start",
    "idle-connection-ends",
    "loading",
    "map-empty-at-start",
    "map-empty-later",
    "map-hostnames",
    "map-null-host",
    "map-of-an-older-epoch",
    "map-with-holes",
    "master-dies",
    "master-hangs",
    "master-is-demoted",
    "moved-in-circle",
    "moved-once",
    "moved-to-absent",
    "node-keeps-its-name-at-another-address",
    "node-moves-to-another-address",
    "pipeline-is-cut",
    "pipeline-over-a-moved-slot",
    "pushes-between-replies",
    "replica-dies",
    "replica-is-promoted",
    "replica-masterdown",
    "replica-reads-through-failover",
    "replies-in-pieces",
    "reply-cut",
    "reply-is-late",
    "reply-is-slow",
    "reply-lost",
    "reply-never-comes",
    "requests-to-a-silent-master",
    "script-master-dies",
    "script-on-every-node",
    "script-reply-lost",
    "script-slot-moves",
    "scripts-are-flushed",
    "sentinel-blocking-master-dies",
    "sentinel-caching-master-dies",
    "sentinel-first-is-dead",
    "sentinel-first-is-silent",
    "sentinel-is-stale",
    "sentinel-knows-nobody",
    "sentinel-master-dies",
    "sentinel-master-is-demoted",
    "sentinel-script-master-dies",
    "sentinel-subscribers-master-dies",
    "shard-is-added",
    "sharded-subscribers-connection-ends",
    "sharded-subscribers-master-dies",
    "sharded-subscribers-slot-moves",
    "subscribers-connection-ends",
    "subscribers-node-dies",
    "transaction-across-slots",
    "transaction-is-cut",
    "transaction-over-a-moved-slot",
    "tryagain",
];

/// Returns all built-in scenarios, ordered by theme.
///
/// # Errors
/// A file is invalid, which a test prevents.
pub fn built_in_scenarios() -> Result<Vec<Scenario>> {
    let scenarios: Result<Vec<Scenario>> =
        SCENARIO_FILES.iter().map(|(name, text)| Scenario::parse(name, text)).collect();
    Ok(sort_by_theme(scenarios?))
}

/// Returns the scenarios of all `.yaml` files in a folder.
///
/// # Errors
/// The folder has no scenario, or one of them is invalid.
pub fn scenarios_in_folder(folder: &Path) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != "yaml") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        scenarios.push(Scenario::parse(&name, &text)?);
    }
    ensure!(!scenarios.is_empty(), "{} has no scenarios", folder.display());
    Ok(sort_by_theme(scenarios))
}

fn sort_by_theme(mut scenarios: Vec<Scenario>) -> Vec<Scenario> {
    scenarios.sort_by(|a, b| (a.theme, &a.name).cmp(&(b.theme, &b.name)));
    scenarios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placeholders::fill_placeholders;
    use crate::simulation::ClusterSimulation;

    #[test]
    fn all_scenario_files_are_embedded_and_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let names = |scenarios: &[Scenario]| -> Vec<String> {
            scenarios.iter().map(|scenario| scenario.name.clone()).collect()
        };
        let scenarios = built_in_scenarios().unwrap();
        assert_eq!(names(&scenarios), names(&scenarios_in_folder(&folder).unwrap()));
        for scenario in &scenarios {
            let ports: Vec<u16> = (1..).take(scenario.nodes.len()).collect();
            ClusterSimulation::new(&fill_placeholders(scenario, 1).unwrap(), &ports).unwrap();
            assert!(scenario.seeds().next().is_some(), "{} tells the client of nobody", scenario.name);
            assert!(scenario.story.trim().len() > 40, "{} has no story", scenario.name);
        }
    }
}
