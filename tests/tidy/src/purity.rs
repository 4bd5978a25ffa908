//! Checks that pure crates use no sockets, threads, tasks, clock or OS randomness; their callers pass in time, bytes
//! and random numbers.

use crate::SourceFile;
use crate::layers::{parse_dependencies, test_manifests};

const PURE_CRATES: &[&str] = &[
    "acl",
    "append-only",
    "clock",
    "commands",
    "config",
    "glob",
    "consensus",
    "driver",
    "engine",
    "failover-history",
    "gossip",
    "keyspace",
    "metrics",
    "migration",
    "persistence",
    "replication",
    "resp",
    "sentinel",
    "slot-routing",
];

/// Words that shipped lines of a pure crate must not contain, with the reason.
const IMPURE_WORDS: &[(&str, &str)] = &[
    ("std::net::Tcp", "a socket"),
    ("std::net::Udp", "a socket"),
    ("std::os::unix::net", "a socket"),
    ("TcpStream", "a socket"),
    ("TcpListener", "a socket"),
    ("UdpSocket", "a socket"),
    ("std::thread", "a thread"),
    ("thread::spawn", "a thread"),
    ("thread::sleep", "a thread"),
    ("tokio::", "a task"),
    ("std::time::Instant", "a clock"),
    ("Instant::now", "a clock"),
    ("SystemTime", "a clock"),
    ("quanta::", "a clock"),
    ("libc::clock", "a clock"),
    ("libc::gettimeofday", "a clock"),
    ("libc::time(", "a clock"),
    ("libc::socket", "a socket"),
    ("libc::pthread", "a thread"),
    ("getrandom", "OS randomness"),
    ("OsRng", "OS randomness"),
    ("SysRng", "OS randomness"),
    ("rand::rng(", "OS randomness"),
    ("thread_rng", "OS randomness"),
    ("from_os_rng", "OS randomness"),
    ("RandomState", "OS randomness"),
];

/// Libraries with I/O, tasks or randomness, which pure crates may use only in tests. `libc` is
/// allowed because the keyspace maps memory with it; `IMPURE_WORDS` lists its forbidden functions.
const IMPURE_LIBRARIES: &[&str] =
    &["tokio", "mio", "socket2", "quanta", "getrandom", "rustix", "nix", "redis", "rayon"];

fn is_pure(file: &SourceFile) -> bool {
    file.crate_name().is_some_and(|name| PURE_CRATES.contains(&name))
}

/// Reports shipped lines of pure crates that use a socket, a thread, a clock or OS randomness.
#[must_use]
pub fn check_pure_sources(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| is_pure(file) && file.path.ends_with(".rs")) {
        for (number, line) in file.shipped_lines() {
            for (_, what) in IMPURE_WORDS.iter().filter(|(word, _)| line.contains(word)) {
                violations.push(format!("{}:{number}: {what} in a pure crate: {}", file.path, line.trim()));
            }
        }
    }
    violations
}

/// Reports pure crates that depend on an impure library.
#[must_use]
pub fn check_pure_manifests(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for manifest in test_manifests(files).filter(|file| is_pure(file)) {
        for (line, name, for_tests) in parse_dependencies(manifest) {
            if !for_tests && IMPURE_LIBRARIES.contains(&name.as_str()) {
                violations.push(format!("{}:{line}: {name} in a pure crate", manifest.path));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_clock_use_with_line_number() {
        let file = SourceFile::new(
            "crates/gossip/src/node.rs",
            "//! No Instant::now here.\nlet now = Instant::now();",
        );
        assert_eq!(
            check_pure_sources(&[file]),
            ["crates/gossip/src/node.rs:2: a clock in a pure crate: let now = Instant::now();"]
        );
    }

    #[test]
    fn accepts_clocks_in_tests_and_impure_crates() {
        let inline = "fn pure() {}\n\n#[cfg(test)]\nmod tests {\n    use std::thread;\n}";
        let files = [
            SourceFile::new("crates/gossip/src/node.rs", inline),
            SourceFile::new("crates/gossip/src/node/tests.rs", "use std::thread;"),
            SourceFile::new("crates/gossip/tests/pair.rs", "use std::thread;"),
            SourceFile::new("crates/node/src/worker.rs", "use std::thread;"),
            SourceFile::new("crates/gossip/Cargo.toml", "[dev-dependencies]\ntokio.workspace = true"),
        ];
        assert_eq!(check_pure_sources(&files), Vec::<String>::new());
        assert_eq!(check_pure_manifests(&files), Vec::<String>::new());
    }

    #[test]
    fn out_of_line_test_module_does_not_end_shipped_code() {
        let text = "#[cfg(test)]\nmod tests;\n\nuse std::thread;";
        assert_eq!(check_pure_sources(&[SourceFile::new("crates/resp/src/lib.rs", text)]).len(), 1);
    }

    #[test]
    fn reports_impure_dependencies() {
        let manifest = SourceFile::new("crates/resp/Cargo.toml", "[dependencies]\ntokio.workspace = true");
        assert_eq!(check_pure_manifests(&[manifest]), ["crates/resp/Cargo.toml:2: tokio in a pure crate"]);
    }
}
