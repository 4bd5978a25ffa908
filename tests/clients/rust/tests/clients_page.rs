//! Checks that docs/clients.md has a row for each scenario, a column for each library, and the tested versions.

use std::fs;
use std::path::Path;

use client_conformance::built_in_scenarios;

fn read_page(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of each row of the first table.
fn table_rows(page: &str) -> Vec<Vec<String>> {
    let lines = page.lines().skip_while(|line| !line.starts_with("| scenario |"));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn clients_page_has_every_scenario_and_library() {
    let rows = table_rows(&read_page("docs/clients.md"));
    let names: Vec<&String> =
        rows[2..].iter().map(|row| &row[0]).filter(|name| !name.starts_with("**")).collect();
    let scenarios = built_in_scenarios().unwrap();
    let wanted: Vec<&String> = scenarios.iter().map(|scenario| &scenario.name).collect();
    assert_eq!(names, wanted, "make clients-page writes it anew");
    let grades = ["good", "not offered", "costly", "fails", "HARMFUL"];
    for row in rows[2..].iter().filter(|row| !row[0].starts_with("**")) {
        assert_eq!(row.len(), rows[0].len(), "{row:?}");
        assert!(row[1..].iter().all(|cell| grades.contains(&&cell[..])), "{row:?}");
    }
}

#[test]
fn clients_page_names_tested_versions() {
    let page = read_page("docs/clients.md");
    let titles = table_rows(&page)[0].join(" | ");
    let python = read_page("tests/clients/python/requirements.txt");
    let redis_py = python.lines().find_map(|line| line.strip_prefix("redis==")).expect("redis-py is pinned");
    assert!(titles.contains(&format!("redis-py {redis_py}")), "{titles}");
    let node: serde_json::Value =
        serde_json::from_str(&read_page("tests/clients/node/package-lock.json")).unwrap();
    for (package, library) in [("ioredis", "ioredis"), ("redis", "node-redis")] {
        let version = node["packages"][format!("node_modules/{package}")]["version"].as_str().unwrap();
        assert!(titles.contains(&format!("{library} {version}")), "{titles}");
    }
}
