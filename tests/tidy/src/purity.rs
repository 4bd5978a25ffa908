//! Checks that pure crates use no sockets, threads, tasks, clock or OS randomness; their callers pass in time, bytes
//! and random numbers.

use crate::SourceFile;
use crate::crate_table::{ARCHITECTURE_PATH, CrateRow, Purity, crate_rows};
use crate::layers::{manifests_of_tests, parse_dependencies};

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

/// Calls that wait for a limited time, which is a use of the clock.
const TIMED_WAITS: &[&str] = &[
    "try_lock_for",
    "try_lock_until",
    ".wait_for(",
    ".wait_until(",
    "wait_while_for",
    "wait_timeout",
    "recv_timeout",
    "park_timeout",
];

/// Libraries with I/O, tasks or randomness, which pure crates may use only in tests. `libc` is
/// allowed because the keyspace maps memory with it; `IMPURE_WORDS` lists its forbidden functions.
const IMPURE_LIBRARIES: &[&str] =
    &["tokio", "mio", "socket2", "quanta", "getrandom", "rustix", "nix", "redis", "rayon"];

fn purity_of(rows: &[CrateRow<'_>], file: &SourceFile) -> Purity {
    let row = rows.iter().find(|row| Some(row.name) == file.crate_name());
    row.map_or(Purity::Impure, |row| row.purity)
}

/// Reports shipped lines of pure crates that use a socket, a thread, a clock or OS randomness.
#[must_use]
pub fn check_pure_sources(files: &[SourceFile]) -> Vec<String> {
    let (mut violations, rows) = (Vec::new(), crate_rows(files));
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let purity = purity_of(&rows, file);
        if purity == Purity::Impure {
            continue;
        }
        let waits = TIMED_WAITS.iter().filter(|_| purity == Purity::Pure).map(|word| (*word, "a timed wait"));
        let words: Vec<(&str, &str)> = IMPURE_WORDS.iter().copied().chain(waits).collect();
        for (number, line) in file.shipped_lines() {
            for (_, what) in words.iter().filter(|(word, _)| line.contains(word)) {
                violations.push(format!("{}:{number}: {what} in a pure crate: {}", file.path, line.trim()));
            }
        }
    }
    violations
}

/// Reports crates that the table says wait for a limited time, but that do not.
#[must_use]
pub fn check_timed_waits_are_needed(files: &[SourceFile]) -> Vec<String> {
    let rows = crate_rows(files).into_iter().filter(|row| row.purity == Purity::PureWithTimedWaits);
    let idle = rows.filter(|row| {
        let own = files.iter().filter(|file| file.crate_name() == Some(row.name));
        let mut lines = own.flat_map(SourceFile::shipped_lines);
        !lines.any(|(_, line)| TIMED_WAITS.iter().any(|word| line.contains(word)))
    });
    idle.map(|row| format!("{ARCHITECTURE_PATH}: {} has no timed waits", row.name)).collect()
}

/// Reports pure crates that depend on an impure library.
#[must_use]
pub fn check_pure_manifests(files: &[SourceFile]) -> Vec<String> {
    let (mut violations, rows) = (Vec::new(), crate_rows(files));
    for manifest in manifests_of_tests(files).filter(|file| purity_of(&rows, file) != Purity::Impure) {
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
    use crate::crate_table::test_page;

    fn page() -> SourceFile {
        test_page(
            "| 7 | `node` | a server | |\n| 2 | `gossip` | a protocol | yes |\n\
             | 1 | `keyspace` | slots | with timed waits |\n| 0 | `resp` | RESP | yes |",
        )
    }

    #[test]
    fn reports_clock_use_with_line_number() {
        let file = SourceFile::new(
            "crates/gossip/src/node.rs",
            "//! No Instant::now here.\nlet now = Instant::now();",
        );
        assert_eq!(
            check_pure_sources(&[page(), file]),
            ["crates/gossip/src/node.rs:2: a clock in a pure crate: let now = Instant::now();"]
        );
    }

    #[test]
    fn accepts_clocks_in_tests_and_impure_crates() {
        let inline = "fn pure() {}\n\n#[cfg(test)]\nmod tests {\n    use std::thread;\n}";
        let files = [
            page(),
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
        assert_eq!(check_pure_sources(&[page(), SourceFile::new("crates/resp/src/lib.rs", text)]).len(), 1);
    }

    #[test]
    fn reports_impure_dependencies() {
        let manifest = SourceFile::new("crates/resp/Cargo.toml", "[dependencies]\ntokio.workspace = true");
        assert_eq!(
            check_pure_manifests(&[page(), manifest]),
            ["crates/resp/Cargo.toml:2: tokio in a pure crate"]
        );
    }

    #[test]
    fn timed_waits_are_allowed_where_the_table_says_so() {
        let source = |name| SourceFile::new(&format!("crates/{name}/src/a.rs"), "lock.try_lock_for(time);");
        assert_eq!(check_pure_sources(&[page(), source("gossip")]).len(), 1);
        assert_eq!(check_pure_sources(&[page(), source("keyspace")]), Vec::<String>::new());
        assert_eq!(check_timed_waits_are_needed(&[page(), source("keyspace")]), Vec::<String>::new());
        assert_eq!(check_timed_waits_are_needed(&[page()]).len(), 1);
    }
}
