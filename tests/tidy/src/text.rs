//! Checks single files: length, disabled tests, unsafe code, registry hosts.

use std::collections::BTreeMap;

use crate::SourceFile;

const MAX_FILE_LINES: usize = 1000;

/// The only accepted reason for an ignored test.
const ACCEPTED_IGNORE_REASON: &str = "= \"long: make soak\"]";

/// Crates that may use unsafe code, in one module each.
const UNSAFE_CRATES: [&str; 2] = ["keyspace", "scripting"];

fn is_rust_source(file: &SourceFile) -> bool {
    [".rs", ".py", ".js", ".mjs", ".sh"].iter().any(|end| file.path.ends_with(end))
        || file.path.starts_with("scripts/")
}

/// Reports source files that exceed the line limit.
#[must_use]
pub fn check_file_length(files: &[SourceFile]) -> Vec<String> {
    files
        .iter()
        .filter(|file| is_rust_source(file))
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > MAX_FILE_LINES)
                .then(|| format!("{}: {lines} lines; at most {MAX_FILE_LINES}", file.path))
        })
        .collect()
}

/// Reports unfinished code and ignored tests other than those that `make soak` runs.
#[must_use]
pub fn check_unfinished(files: &[SourceFile]) -> Vec<String> {
    // The words are built from pieces so that this file does not match itself.
    let words =
        [["todo", "!("], ["unimple", "mented!("], ["FIX", "ME"], ["#[ig", "nore"]].map(|word| word.concat());
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| is_rust_source(file)) {
        for (index, line) in file.text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) && !line.contains(ACCEPTED_IGNORE_REASON) {
                violations.push(format!("{}:{}: unfinished: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    violations
}

/// Reports crate roots that do not forbid unsafe code, and crates with more than one file that
/// allows it.
#[must_use]
pub fn check_unsafe_code(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut allowing = BTreeMap::<&str, Vec<&str>>::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let unsafe_crate = file.crate_name().filter(|name| UNSAFE_CRATES.contains(name));
        let is_root = ["/src/lib.rs", "/src/main.rs"].iter().any(|end| file.path.ends_with(end))
            || file.path.contains("/src/bin/");
        if is_root && unsafe_crate.is_none() && !file.text.contains("#![forbid(unsafe_code)]") {
            violations.push(format!("{}: missing #![forbid(unsafe_code)]", file.path));
        }
        let allows = file.shipped_lines().any(|(_, line)| {
            let line = line.trim();
            line.starts_with("#") && line.contains("allow(unsafe_code") || line.contains("expect(unsafe_code")
        });
        if let Some(name) = unsafe_crate
            && allows
            && file.path.contains("/src/")
        {
            allowing.entry(name).or_default().push(&file.path);
        }
    }
    for (name, files) in allowing.into_iter().filter(|(_, files)| files.len() > 1) {
        violations.push(format!("unsafe code must be in one module of {name}: {}", files.join(", ")));
    }
    violations
}

/// Reports files that name a package registry's host. Packages are installed by name, and the
/// machine decides from where. Cargo's own lock file is exempt.
#[must_use]
pub fn check_registry_hosts(files: &[SourceFile]) -> Vec<String> {
    let hosts = [
        ["registry.npm", "js.org"],
        ["py", "pi.org"],
        ["python", "hosted.org"],
        ["index.crates", ".io"],
        ["static.crates", ".io"],
        ["https://crates", ".io"],
        ["deb.debian", ".org"],
        ["security.debian", ".org"],
    ]
    .map(|host| host.concat());
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| !file.path.ends_with("Cargo.lock")) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(host) = hosts.iter().find(|host| line.contains(host.as_str())) {
                violations.push(format!("{}:{}: names {host}", file.path, index + 1));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_files_over_a_thousand_lines() {
        assert_eq!(
            check_file_length(&[SourceFile::new("crates/resp/src/lib.rs", &"\n".repeat(1000))]),
            Vec::<String>::new()
        );
        assert_eq!(
            check_file_length(&[SourceFile::new("crates/resp/src/lib.rs", &"\n".repeat(1001))]).len(),
            1
        );
        assert_eq!(
            check_file_length(&[SourceFile::new("Cargo.lock", &"\n".repeat(1001))]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn reports_unfinished_code() {
        let text = format!("{}()", ["todo", "!"].concat());
        assert_eq!(check_unfinished(&[SourceFile::new("crates/resp/src/lib.rs", &text)]).len(), 1);
        for (reason, violations) in [(" = \"long: make soak\"]", 0), (" = \"flaky\"]", 1), ("]", 1)] {
            let text = ["#[ig", "nore", reason].concat();
            let found = check_unfinished(&[SourceFile::new("tests/cluster/src/a.rs", &text)]);
            assert_eq!(found.len(), violations, "{reason}");
        }
    }

    #[test]
    fn reports_missing_forbid_unsafe() {
        assert_eq!(check_unsafe_code(&[SourceFile::new("crates/resp/src/lib.rs", "")]).len(), 1);
        assert_eq!(
            check_unsafe_code(&[SourceFile::new("crates/resp/src/parse.rs", "")]),
            Vec::<String>::new()
        );
        let module = |path| SourceFile::new(path, "#![allow(unsafe_code)]");
        let one = module("crates/keyspace/src/pages.rs");
        assert_eq!(check_unsafe_code(std::slice::from_ref(&one)), Vec::<String>::new());
        assert_eq!(check_unsafe_code(&[one, module("crates/keyspace/src/index.rs")]).len(), 1);
    }

    #[test]
    fn reports_registry_hosts() {
        let text = format!("resolved: https://{}/x.tgz", ["registry.npm", "js.org"].concat());
        assert_eq!(
            check_registry_hosts(&[SourceFile::new("tests/clients/node/package-lock.json", &text)]).len(),
            1
        );
        assert_eq!(check_registry_hosts(&[SourceFile::new("Cargo.lock", &text)]), Vec::<String>::new());
    }
}
