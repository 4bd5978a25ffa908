//! Facts of this machine, as Linux tells them by files. What cannot be read is left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use config::{Config, keys};
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

/// Facts of a machine.
#[derive(Debug, Clone, Default)]
pub(in crate::doctor) struct Facts {
    /// `vm.overcommit_memory`.
    pub(super) overcommit: Option<u64>,
    /// When transparent huge pages are used: `always`, `madvise` or `never`.
    pub(super) huge_pages: Option<String>,
    /// `net.core.somaxconn`.
    pub(super) most_backlog: Option<u64>,
    pub(super) swap_total: Option<u64>,
    pub(super) swappiness: Option<u64>,
    /// The hard limit of open files of a process that is started as this one was.
    pub(super) most_files: Option<u64>,
    pub(super) memory_total: Option<u64>,
    /// The limit of this control group, where it has one.
    pub(super) memory_limit: Option<u64>,
    /// The parameter `dir` as a whole path.
    pub(super) folder: String,
    /// Why nothing can be written there.
    pub(super) folder_error: Option<String>,
    pub(super) disk_free: Option<u64>,
    /// Bytes of the files of data that are there.
    pub(super) files_size: u64,
    pub(super) clock_source: Option<String>,
    /// Whether something keeps the clock to the time of others, as the kernel was told.
    pub(super) is_clock_synchronised: Option<bool>,
}

impl Facts {
    /// The facts of this machine, for a server of that configuration.
    pub(in crate::doctor) fn gather(config: &Config) -> Self {
        let folder = PathBuf::from(&*config.get(keys::DIR));
        let folder = folder.canonicalize().unwrap_or(folder);
        let memory = read("/proc/meminfo").unwrap_or_default();
        let files = [config.get(keys::DBFILENAME), config.get(keys::APPENDDIRNAME)];
        let writable = access(&folder, Access::WRITE_OK | Access::EXEC_OK);
        Self {
            overcommit: number("/proc/sys/vm/overcommit_memory"),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| chosen(&text)),
            most_backlog: number("/proc/sys/net/core/somaxconn"),
            swap_total: kilobytes(&memory, "SwapTotal"),
            swappiness: number("/proc/sys/vm/swappiness"),
            most_files: Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
            memory_total: kilobytes(&memory, "MemTotal"),
            memory_limit: control_group_limit(),
            folder_error: writable.err().map(|error| error.to_string()),
            disk_free: statvfs(&folder).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            files_size: files.iter().map(|name| bytes_in(&folder.join(&**name))).sum(),
            folder: folder.display().to_string(),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            is_clock_synchronised: synchronised(),
        }
    }
}

/// The kernel's word whether its clock is synchronised, which systemd asks for; no file has it.
fn synchronised() -> Option<bool> {
    let mut ask = Command::new("timeout");
    ask.args(["3", "timedatectl", "show", "--property=NTPSynchronized", "--value"]);
    let answer = ask.output().ok().filter(|answer| answer.status.success())?;
    match answer.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.parse().ok()
}

/// The word in brackets among those that may be chosen.
pub(super) fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// The bytes of a line `Name:   123 kB`.
pub(super) fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit of memory of this process's control group and of those above it.
fn control_group_limit() -> Option<u64> {
    let group = read("/proc/self/cgroup")?;
    let path = group.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let root = Path::new("/sys/fs/cgroup");
    let mine = root.join(path);
    let up = mine.ancestors().take_while(|folder| folder.starts_with(root));
    up.filter_map(|folder| number(folder.join("memory.max"))).min()
}

/// The bytes of a file, or of those in a folder.
fn bytes_in(path: &Path) -> u64 {
    let own = fs::metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |file| file.len());
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    own + entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum::<u64>()
}
