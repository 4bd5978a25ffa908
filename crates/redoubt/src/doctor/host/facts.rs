//! Reads facts about this machine from /proc and /sys. A fact that cannot be read is `None`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use config::{Config, keys};
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

#[derive(Debug, Clone, Default)]
pub(in crate::doctor) struct HostFacts {
    /// The kernel parameter `vm.overcommit_memory`.
    pub(super) overcommit: Option<u64>,
    /// The mode of transparent huge pages: `always`, `madvise` or `never`.
    pub(super) huge_pages: Option<String>,
    /// The kernel parameter `net.core.somaxconn`.
    pub(super) max_backlog: Option<u64>,
    pub(super) swap_total: Option<u64>,
    pub(super) swappiness: Option<u64>,
    /// The hard limit of this process for open files.
    pub(super) max_open_files: Option<u64>,
    pub(super) memory_total: Option<u64>,
    /// The memory limit of the control group in bytes; `None` if there is no limit.
    pub(super) memory_limit: Option<u64>,
    /// The parameter `dir` as an absolute path.
    pub(super) folder: String,
    /// Why the directory `dir` is not writable; `None` if it is.
    pub(super) folder_error: Option<String>,
    pub(super) disk_free: Option<u64>,
    /// The size in bytes of the existing data files.
    pub(super) files_size: u64,
    pub(super) clock_source: Option<String>,
    /// Whether the kernel reports a synchronised clock.
    pub(super) is_clock_synchronised: Option<bool>,
}

impl HostFacts {
    /// Gathers the facts that matter for this configuration.
    pub(in crate::doctor) fn gather_host_facts(config: &Config) -> Self {
        let folder = PathBuf::from(&*config.get(keys::DIR));
        let folder = folder.canonicalize().unwrap_or(folder);
        let memory = read_file("/proc/meminfo").unwrap_or_default();
        let files = [config.get(keys::DBFILENAME), config.get(keys::APPENDDIRNAME)];
        let writable = access(&folder, Access::WRITE_OK | Access::EXEC_OK);
        Self {
            overcommit: read_number("/proc/sys/vm/overcommit_memory"),
            huge_pages: read_file("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| bracketed_word(&text)),
            max_backlog: read_number("/proc/sys/net/core/somaxconn"),
            swap_total: parse_kilobytes(&memory, "SwapTotal"),
            swappiness: read_number("/proc/sys/vm/swappiness"),
            max_open_files: Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
            memory_total: parse_kilobytes(&memory, "MemTotal"),
            memory_limit: control_group_limit(),
            folder_error: writable.err().map(|error| error.to_string()),
            disk_free: statvfs(&folder).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            files_size: files.iter().map(|name| total_file_size(&folder.join(&**name))).sum(),
            folder: folder.display().to_string(),
            clock_source: read_file("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            is_clock_synchronised: query_clock_sync(),
        }
    }
}

/// Queries timedatectl, since no file has the synchronisation state of the clock.
fn query_clock_sync() -> Option<bool> {
    let mut ask = Command::new("timeout");
    ask.args(["3", "timedatectl", "show", "--property=NTPSynchronized", "--value"]);
    let answer = ask.output().ok().filter(|answer| answer.status.success())?;
    match answer.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

fn read_file(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_file(path)?.parse().ok()
}

/// Returns the selected word of a kernel file, which is in brackets: `always [madvise] never`.
pub(super) fn bracketed_word(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Parses a line `Name:   123 kB` and returns bytes.
pub(super) fn parse_kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the smallest memory limit of the control group and its ancestors.
fn control_group_limit() -> Option<u64> {
    let group = read_file("/proc/self/cgroup")?;
    let path = group.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let mine = root.join(path);
    let up = mine.ancestors().take_while(|folder| folder.starts_with(root));
    up.filter_map(|folder| read_number(folder.join("memory.max"))).min()
}

/// Returns the size of a file, or the total size of all files in a directory.
fn total_file_size(path: &Path) -> u64 {
    let own = fs::metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |file| file.len());
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    own + entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum::<u64>()
}
