//! The book (docs/book): every command in it runs, page by page, in the order in which it stands there, and prints what the
//! page says.
//!
//! A block of `sh` is run; a block of `text` behind it has lines of which each must be found in what it printed. The
//! ports of a page are replaced by free ones.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{PortClaim, Program, claim_port, run_to_end};
use tempfile::TempDir;

/// The ports that pages name.
const PORTS: &[&str] = &["6379", "6380", "7000", "7001", "7002", "7003", "7004", "7005", "26379"];
/// Stands before what each block printed.
const MARK: &str = "@@ block";

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src")
}

/// A block of commands, and the lines that it must print.
#[derive(Debug, Default, PartialEq)]
struct Block {
    commands: String,
    printed: Vec<String>,
}

/// The blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = "";
    for line in page.lines() {
        match (inside, line.strip_prefix("```")) {
            ("", Some(kind)) => {
                inside = if kind.is_empty() { "other" } else { kind };
                if inside == "sh" {
                    blocks.push(Block::default());
                }
            }
            (_, Some("")) => inside = "",
            ("sh", _) => {
                let block = blocks.last_mut().expect("one was begun");
                let _ = writeln!(block.commands, "{line}");
            }
            ("text", _) => {
                blocks.last_mut().expect("something was run before").printed.push(line.trim().to_owned());
            }
            _ => {}
        }
    }
    blocks
}

/// The text with these numbers in place of those, where they stand alone.
fn replace_ports(text: &str, claims: &[PortClaim]) -> String {
    let mut text = text.to_owned();
    for (port, claim) in PORTS.iter().zip(claims) {
        let mut replaced = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(port) {
            let (before, after) = (&rest[..at], &rest[at + port.len()..]);
            let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
            let is_alone = !is_digit(before.chars().last()) && !is_digit(after.chars().next());
            let new = if is_alone { claim.port.to_string() } else { (*port).to_owned() };
            let _ = write!(replaced, "{before}{new}");
            rest = after;
        }
        replaced.push_str(rest);
        text = replaced;
    }
    text
}

/// A folder whose servers, which say by a file who they are, end with it.
struct Place(TempDir);

impl Place {
    fn end_servers(folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                Self::end_servers(&path);
            } else if path.extension().is_some_and(|end| end == "pid")
                && let Ok(pid) = std::fs::read_to_string(&path)
            {
                // It may have ended by itself.
                let _ = run_to_end(Command::new("kill").args(["-KILL", pid.trim()]));
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        Self::end_servers(self.0.path());
    }
}

/// Runs the commands of a page and looks for what it says that they print.
fn run(page: &str) {
    let text = std::fs::read_to_string(source().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let claims: Vec<PortClaim> = PORTS.iter().map(|_| claim_port()).collect();
    let blocks = blocks(&replace_ports(&text, &claims));
    assert!(!blocks.is_empty(), "{page} has no commands");
    let place = Place(tempfile::tempdir().expect("a folder"));
    let bin = place.0.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    std::os::unix::fs::symlink(Program::redoubt().binary(), bin.join("redoubt")).expect("a link");
    let mut script = "set -euo pipefail\nexec 2>&1\n".to_owned();
    for block in &blocks {
        let _ = write!(script, "echo '{MARK}'\n{}", block.commands);
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(place.0.path()).env("PATH", path);
    let (status, printed) = run_to_end(&mut shell);
    assert!(status.success(), "{page}: {printed}");
    let parts: Vec<&str> = printed.split(MARK).skip(1).collect();
    assert_eq!(parts.len(), blocks.len(), "{page}: {printed}");
    for (block, part) in blocks.iter().zip(parts) {
        for line in &block.printed {
            assert!(part.contains(line.as_str()), "{page}: '{line}' is not in:\n{part}");
        }
    }
}

#[test]
fn introduction() {
    run("introduction.md");
}

#[test]
fn a_cluster_from_nothing() {
    run("cluster.md");
}

#[test]
fn moving() {
    run("moving.md");
}

#[test]
fn upgrade() {
    run("upgrade.md");
}

#[test]
fn authors_of_clients() {
    run("authors.md");
}

#[test]
fn backup() {
    run("backup.md");
}

#[test]
fn security() {
    run("security.md");
}

#[test]
fn troubleshooting() {
    run("troubleshooting.md");
}

/// A page with commands has a test above, a page is in the table of contents, and what is included is there.
#[test]
fn every_page_is_run_and_listed() {
    let summary = std::fs::read_to_string(source().join("SUMMARY.md")).expect("it is there");
    let tests = include_str!("book.rs");
    for entry in std::fs::read_dir(source()).expect("the folder is there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(entry.path()).expect("text");
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name} is not listed");
        let has_commands = text.lines().any(|line| line == "```sh");
        assert!(!has_commands || tests.contains(&format!("run(\"{name}\")")), "{name} is not run");
        for included in text.split("{{#include ").skip(1) {
            let path = included.split('}').next().expect("a path");
            assert!(source().join(path).is_file(), "{name}: {path} is not there");
        }
    }
    for link in summary.split("](").skip(1) {
        let name = link.split(')').next().expect("a name");
        assert!(source().join(name).is_file(), "{name} is not there");
    }
}
