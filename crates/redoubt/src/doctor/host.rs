//! Checks of this machine: kernel settings, limits, memory, disk and clock.

mod facts;
#[cfg(test)]
mod tests;

use config::{Config, keys};

use super::finding::{Finding, format_size};

pub(super) use facts::HostFacts;

/// Number of open files that a server needs in addition to one per client.
const RESERVED_FILES: u64 = 32;
/// With a higher `vm.swappiness`, the kernel swaps out processes that are idle for a while.
const MAX_SWAPPINESS: u64 = 10;
/// Clock sources that can be read in user space, without a system call.
const FAST_CLOCK_SOURCES: &[&str] = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// What a configuration requires of the machine.
#[derive(Debug, Clone, Default)]
pub(super) struct HostRequirements {
    pub(super) backlog: u64,
    pub(super) max_clients: u64,
    /// `maxmemory` in bytes; `None` if it is unlimited.
    pub(super) max_memory: Option<u64>,
    /// Whether snapshots or the append-only file are enabled.
    pub(super) persists_data: bool,
}

impl HostRequirements {
    pub(super) fn from_config(config: &Config) -> Self {
        let number = |text: String| text.parse::<u64>().unwrap_or(0);
        Self {
            backlog: number(config.get(keys::TCP_BACKLOG).to_string()),
            max_clients: config.get(keys::MAXCLIENTS) as u64,
            max_memory: Some(number(config.get(keys::MAXMEMORY).to_string())).filter(|bytes| *bytes != 0),
            persists_data: config.get(keys::APPENDONLY) || !config.get(keys::SAVE).is_empty(),
        }
    }
}

/// Runs all checks of the machine.
pub(super) fn check_host(facts: &HostFacts, requirements: &HostRequirements) -> Vec<Finding> {
    let checks = [
        check_overcommit,
        check_huge_pages,
        check_backlog,
        check_swap,
        check_open_files,
        check_memory,
        check_folder,
        check_disk_space,
        check_clock_source,
        check_clock_sync,
    ];
    checks.iter().filter_map(|check| check(facts, requirements)).collect()
}

fn check_overcommit(facts: &HostFacts, _: &HostRequirements) -> Option<Finding> {
    let about = "overcommit";
    Some(match facts.overcommit? {
        2 => Finding::warning(
            about,
            "vm.overcommit_memory is 2: the kernel may refuse memory although enough is free, and a server that cannot \
             allocate memory aborts",
            "sysctl -w vm.overcommit_memory=1, and the same in /etc/sysctl.d",
        ),
        mode => Finding::fine(
            about,
            format!("vm.overcommit_memory is {mode}: 0 and 1 are both fine, since the server does not fork"),
        ),
    })
}

fn check_huge_pages(facts: &HostFacts, _: &HostRequirements) -> Option<Finding> {
    let about = "huge pages";
    Some(match facts.huge_pages.as_deref()? {
        "always" => Finding::warning(
            about,
            "transparent huge pages are set to 'always': memory is allocated in units of 2 MB, more than the data needs",
            "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled, also at every boot",
        ),
        mode => Finding::fine(about, format!("transparent huge pages: {mode}")),
    })
}

fn check_backlog(facts: &HostFacts, requirements: &HostRequirements) -> Option<Finding> {
    let (about, most) = ("backlog", facts.max_backlog?);
    let wanted = requirements.backlog;
    Some(if most < wanted {
        Finding::warning(
            about,
            format!(
                "net.core.somaxconn is {most}, below tcp-backlog ({wanted}): bursts of new connections are dropped"
            ),
            format!("sysctl -w net.core.somaxconn={wanted}, and the same in /etc/sysctl.d"),
        )
    } else {
        Finding::fine(about, format!("net.core.somaxconn is {most}"))
    })
}

fn check_swap(facts: &HostFacts, _: &HostRequirements) -> Option<Finding> {
    let (about, total) = ("swap", facts.swap_total?);
    let swappiness = facts.swappiness.unwrap_or(60);
    Some(if total == 0 {
        Finding::fine(about, "no swap")
    } else if swappiness > MAX_SWAPPINESS {
        Finding::warning(
            about,
            format!(
                "{} of swap with vm.swappiness {swappiness}: a server that is swapped out does not respond for seconds, and \
                 other nodes mark it as failed",
                format_size(total)
            ),
            "sysctl -w vm.swappiness=1, or MemorySwapMax=0 in the systemd unit",
        )
    } else {
        Finding::fine(about, format!("{} with vm.swappiness {swappiness}", format_size(total)))
    })
}

fn check_open_files(facts: &HostFacts, requirements: &HostRequirements) -> Option<Finding> {
    let (about, most) = ("open files", facts.max_open_files?);
    let needed = requirements.max_clients.saturating_add(RESERVED_FILES);
    Some(if most < needed {
        Finding::warning(
            about,
            format!(
                "the limit of open files is {most}: maxclients will be {} instead of {}",
                most.saturating_sub(RESERVED_FILES).max(1),
                requirements.max_clients
            ),
            format!("LimitNOFILE={needed} in the systemd unit, or 'ulimit -Hn {needed}' before the start"),
        )
    } else {
        Finding::fine(
            about,
            format!("the limit is {most}; maxclients {} needs {needed}", requirements.max_clients),
        )
    })
}

fn check_memory(facts: &HostFacts, requirements: &HostRequirements) -> Option<Finding> {
    let about = "memory";
    let there = [facts.memory_total, facts.memory_limit].into_iter().flatten().min()?;
    let shown = format_size(there);
    let three_quarters = format_size(there / 4 * 3);
    Some(match requirements.max_memory {
        None => Finding::warning(
            about,
            format!(
                "maxmemory is not set: when the {shown} of memory are used up, the kernel kills the server"
            ),
            format!("maxmemory {}mb, and a maxmemory-policy for a cache", there / 4 * 3 / (1 << 20)),
        ),
        Some(limit) if limit > there => Finding::fault(
            about,
            format!("maxmemory is {}, but the machine has only {shown}", format_size(limit)),
            format!("maxmemory of at most {three_quarters}, or more memory"),
        ),
        Some(limit) if limit > there / 4 * 3 => Finding::warning(
            about,
            format!(
                "maxmemory is {} of {shown}: too little remains for replica buffers, snapshots and the system",
                format_size(limit)
            ),
            format!("maxmemory of at most {three_quarters}, or more memory"),
        ),
        Some(limit) => Finding::fine(about, format!("maxmemory is {} of {shown}", format_size(limit))),
    })
}

fn check_folder(facts: &HostFacts, _: &HostRequirements) -> Option<Finding> {
    let path = &facts.folder;
    Some(match &facts.folder_error {
        Some(reason) => Finding::fault(
            "directory",
            format!("'dir' is {path}: {reason}"),
            format!("create it and give it to the server's user: chown -R redoubt {path}"),
        ),
        None => Finding::fine("directory", format!("{path} is writable")),
    })
}

fn check_disk_space(facts: &HostFacts, requirements: &HostRequirements) -> Option<Finding> {
    let free = facts.disk_free.filter(|_| requirements.persists_data)?;
    // A save needs room for a second file, because the old file is deleted only after the new one is complete.
    let needed = facts.files_size.max(requirements.max_memory.unwrap_or(0));
    let free_shown = format_size(free);
    Some(if facts.files_size > free {
        Finding::fault(
            "disk",
            format!(
                "{free_shown} free, but the data files take {}: a new file does not fit",
                format_size(facts.files_size)
            ),
            "free some space: the old file is deleted only after the new one is complete",
        )
    } else if needed > free {
        Finding::warning(
            "disk",
            format!(
                "{free_shown} free, less than maxmemory ({}): a full server cannot be saved",
                format_size(needed)
            ),
            "a larger disk, or a lower maxmemory",
        )
    } else {
        Finding::fine(
            "disk",
            format!("{free_shown} free; the data files take {}", format_size(facts.files_size)),
        )
    })
}

fn check_clock_source(facts: &HostFacts, _: &HostRequirements) -> Option<Finding> {
    let source = facts.clock_source.as_deref()?;
    Some(if FAST_CLOCK_SOURCES.contains(&source) {
        Finding::fine("clock", format!("the clock source is {source}"))
    } else {
        Finding::warning(
            "clock",
            format!("the clock source is {source}: each time query costs a system call"),
            format!(
                "boot with clocksource= set to one of {}, if /sys/devices/system/clocksource lists it",
                FAST_CLOCK_SOURCES.join(", ")
            ),
        )
    })
}

fn check_clock_sync(facts: &HostFacts, _: &HostRequirements) -> Option<Finding> {
    let about = "time";
    Some(if facts.is_clock_synchronised? {
        Finding::fine(about, "the clock is synchronised")
    } else {
        Finding::warning(
            about,
            "the clock is not synchronised: after a failover, keys may expire too early or too late",
            "run chrony or systemd-timesyncd (timedatectl set-ntp true)",
        )
    })
}
