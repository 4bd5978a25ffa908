//! Rules on single files: how long, what is switched off, what is unsafe, whose addresses are in them.

use std::collections::BTreeMap;

use crate::File;

const MOST_LINES: usize = 1000;

/// Why a test may be left out of every test run.
const LONG: &str = "= \"long: make soak\"]";

/// Where unsafe code is allowed, in one module each.
const UNSAFE_CRATES: [&str; 2] = ["keyspace", "scripting"];

fn is_code(file: &File) -> bool {
    [".rs", ".py", ".js", ".mjs", ".sh"].iter().any(|end| file.path.ends_with(end))
        || file.path.starts_with("scripts/")
}

/// Complaints about source files that are too long to be one noun.
#[must_use]
pub fn check_length(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|file| is_code(file))
        .filter_map(|file| {
            let lines = file.text.lines().count();
            (lines > MOST_LINES).then(|| format!("{}: {lines} lines; at most {MOST_LINES}", file.path))
        })
        .collect()
}

/// Complaints about code that is unfinished or tests that are switched off, but for those that `make soak` runs.
#[must_use]
pub fn check_unfinished(files: &[File]) -> Vec<String> {
    // In pieces, so that this file does not name them.
    let words =
        [["todo", "!("], ["unimple", "mented!("], ["FIX", "ME"], ["#[ig", "nore"]].map(|word| word.concat());
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| is_code(file)) {
        for (index, line) in file.text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) && !line.contains(LONG) {
                complaints.push(format!("{}:{}: unfinished: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    complaints
}

/// Complaints about crate roots that do not forbid unsafe code, and about more than one file of a crate that allows it.
#[must_use]
pub fn check_unsafe(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut allowing = BTreeMap::<&str, Vec<&str>>::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let unsafe_crate = file.crate_name().filter(|name| UNSAFE_CRATES.contains(name));
        let is_root = ["/src/lib.rs", "/src/main.rs"].iter().any(|end| file.path.ends_with(end))
            || file.path.contains("/src/bin/");
        if is_root && unsafe_crate.is_none() && !file.text.contains("#![forbid(unsafe_code)]") {
            complaints.push(format!("{}: a crate root without #![forbid(unsafe_code)]", file.path));
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
        complaints.push(format!("unsafe code belongs in one module of {name}: {}", files.join(", ")));
    }
    complaints
}

/// Complaints about files that name a package registry's host: what is installed is named by package, and the
/// machine says where from. Cargo writes its lock file itself.
#[must_use]
pub fn check_hosts(files: &[File]) -> Vec<String> {
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
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| !file.path.ends_with("Cargo.lock")) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(host) = hosts.iter().find(|host| line.contains(host.as_str())) {
                complaints.push(format!("{}:{}: names {host}", file.path, index + 1));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_a_thousand_lines_and_no_more() {
        assert_eq!(
            check_length(&[File::new("crates/resp/src/lib.rs", &"\n".repeat(1000))]),
            Vec::<String>::new()
        );
        assert_eq!(check_length(&[File::new("crates/resp/src/lib.rs", &"\n".repeat(1001))]).len(), 1);
        assert_eq!(check_length(&[File::new("Cargo.lock", &"\n".repeat(1001))]), Vec::<String>::new());
    }

    #[test]
    fn unfinished_code_is_named() {
        let text = format!("{}()", ["todo", "!"].concat());
        assert_eq!(check_unfinished(&[File::new("crates/resp/src/lib.rs", &text)]).len(), 1);
        for (reason, complaints) in [(" = \"long: make soak\"]", 0), (" = \"flaky\"]", 1), ("]", 1)] {
            let text = ["#[ig", "nore", reason].concat();
            let found = check_unfinished(&[File::new("tests/cluster/src/a.rs", &text)]);
            assert_eq!(found.len(), complaints, "{reason}");
        }
    }

    #[test]
    fn every_crate_root_forbids_unsafe_code_but_the_one_that_needs_it() {
        assert_eq!(check_unsafe(&[File::new("crates/resp/src/lib.rs", "")]).len(), 1);
        assert_eq!(check_unsafe(&[File::new("crates/resp/src/parse.rs", "")]), Vec::<String>::new());
        let module = |path| File::new(path, "#![allow(unsafe_code)]");
        let one = module("crates/keyspace/src/pages.rs");
        assert_eq!(check_unsafe(std::slice::from_ref(&one)), Vec::<String>::new());
        assert_eq!(check_unsafe(&[one, module("crates/keyspace/src/index.rs")]).len(), 1);
    }

    #[test]
    fn a_registry_in_a_committed_file_is_named() {
        let text = format!("resolved: https://{}/x.tgz", ["registry.npm", "js.org"].concat());
        assert_eq!(check_hosts(&[File::new("tests/clients/node/package-lock.json", &text)]).len(), 1);
        assert_eq!(check_hosts(&[File::new("Cargo.lock", &text)]), Vec::<String>::new());
    }
}
