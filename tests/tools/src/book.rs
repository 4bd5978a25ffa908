//! Runs every command of the book (docs/book), page by page and in order, and checks the output that the page shows.
//!
//! A code block marked `sh` is executed, and each line of a `text` block that follows must appear in its output. The
//! ports of a page are replaced by free ones.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{PortClaim, Program, claim_port, run_to_end};
use tempfile::TempDir;

/// The ports that pages of the book use.
const PAGE_PORTS: &[&str] = &["6379", "6380", "7000", "7001", "7002", "7003", "7004", "7005", "26379"];
/// A line that separates the outputs of a page's blocks.
const BLOCK_SEPARATOR: &str = "@@ block";

fn book_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src")
}

/// A block of commands, and the lines that its output must contain.
#[derive(Debug, Default, PartialEq)]
struct CommandBlock {
    commands: String,
    expected_lines: Vec<String>,
}

fn parse_blocks(page: &str) -> Vec<CommandBlock> {
    let mut blocks: Vec<CommandBlock> = Vec::new();
    let mut inside = "";
    for line in page.lines() {
        match (inside, line.strip_prefix("```")) {
            ("", Some(kind)) => {
                inside = if kind.is_empty() { "other" } else { kind };
                if inside == "sh" {
                    blocks.push(CommandBlock::default());
                }
            }
            (_, Some("")) => inside = "",
            ("sh", _) => {
                let block = blocks.last_mut().expect("one was begun");
                let _ = writeln!(block.commands, "{line}");
            }
            ("text", _) => {
                blocks
                    .last_mut()
                    .expect("something was run before")
                    .expected_lines
                    .push(line.trim().to_owned());
            }
            _ => {}
        }
    }
    blocks
}

/// Replaces the pages' ports by the claimed ones, but not where their digits are part of a longer number.
fn replace_ports(text: &str, claims: &[PortClaim]) -> String {
    let mut text = text.to_owned();
    for (port, claim) in PAGE_PORTS.iter().zip(claims) {
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

/// A temporary folder. Dropping it kills the servers that wrote a pid file into it.
struct BookFolder(TempDir);

impl BookFolder {
    fn kill_servers(folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                Self::kill_servers(&path);
            } else if path.extension().is_some_and(|end| end == "pid")
                && let Ok(pid) = std::fs::read_to_string(&path)
            {
                // The process may have exited already.
                let _ = run_to_end(Command::new("kill").args(["-KILL", pid.trim()]));
            }
        }
    }
}

impl Drop for BookFolder {
    fn drop(&mut self) {
        Self::kill_servers(self.0.path());
    }
}

/// Runs the commands of a page and compares their output with the page.
fn run_page(page: &str) {
    let text =
        std::fs::read_to_string(book_folder().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    let claims: Vec<PortClaim> = PAGE_PORTS.iter().map(|_| claim_port()).collect();
    let blocks = parse_blocks(&replace_ports(&text, &claims));
    assert!(!blocks.is_empty(), "{page} has no commands");
    let place = BookFolder(tempfile::tempdir().expect("a folder"));
    let bin = place.0.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    std::os::unix::fs::symlink(Program::redoubt().binary(), bin.join("redoubt")).expect("a link");
    let mut script = "set -euo pipefail\nexec 2>&1\n".to_owned();
    for block in &blocks {
        let _ = write!(script, "echo '{BLOCK_SEPARATOR}'\n{}", block.commands);
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).current_dir(place.0.path()).env("PATH", path);
    let (status, printed) = run_to_end(&mut shell);
    assert!(status.success(), "{page}: {printed}");
    let parts: Vec<&str> = printed.split(BLOCK_SEPARATOR).skip(1).collect();
    assert_eq!(parts.len(), blocks.len(), "{page}: {printed}");
    for (block, part) in blocks.iter().zip(parts) {
        for line in &block.expected_lines {
            assert!(part.contains(line.as_str()), "{page}: '{line}' is not in:\n{part}");
        }
    }
}

#[test]
fn commands_of_introduction_page_work() {
    run_page("introduction.md");
}

#[test]
fn commands_of_first_cluster_page_work() {
    run_page("cluster.md");
}

#[test]
fn commands_of_migration_page_work() {
    run_page("moving.md");
}

#[test]
fn commands_of_upgrade_page_work() {
    run_page("upgrade.md");
}

#[test]
fn commands_of_client_authors_page_work() {
    run_page("authors.md");
}

#[test]
fn commands_of_backup_page_work() {
    run_page("backup.md");
}

#[test]
fn commands_of_security_page_work() {
    run_page("security.md");
}

#[test]
fn commands_of_troubleshooting_page_work() {
    run_page("troubleshooting.md");
}

/// Each page with commands has a test above, each page is in the table of contents, and included files exist.
#[test]
fn every_page_with_commands_is_tested_and_listed() {
    let summary = std::fs::read_to_string(book_folder().join("SUMMARY.md")).expect("it is there");
    let tests = include_str!("book.rs");
    for entry in std::fs::read_dir(book_folder()).expect("the folder is there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(entry.path()).expect("text");
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name} is not listed");
        let has_commands = text.lines().any(|line| line == "```sh");
        assert!(!has_commands || tests.contains(&format!("run_page(\"{name}\")")), "{name} is not run");
        for included in text.split("{{#include ").skip(1) {
            let path = included.split('}').next().expect("a path");
            assert!(book_folder().join(path).is_file(), "{name}: {path} is not there");
        }
    }
    for link in summary.split("](").skip(1) {
        let name = link.split(')').next().expect("a name");
        assert!(book_folder().join(name).is_file(), "{name} is not there");
    }
}
