//! Checks of this machine: kernel settings, limits, memory, disk and clock.

mod facts;
#[cfg(test)]
mod tests;

use config::{Config, keys};

use super::finding::{Finding, size};

pub(super) use facts::Facts;

/// Open files that a server needs in addition to one per client.
const RESERVED_FILES: u64 = 32;
/// Above this `vm.swappiness`, the kernel swaps out processes that are idle for a while.
const LEAST_EAGER_SWAPPINESS: u64 = 10;
/// Clock sources that are read in user space, without a system call.
const QUICK_CLOCKS: &[&str] = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// What a configuration requires of the machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) backlog: u64,
    pub(super) clients: u64,
    /// `maxmemory`; `None` if unlimited.
    pub(super) memory: Option<u64>,
    /// Whether snapshots or the append-only file are enabled.
    pub(super) is_saving: bool,
}

impl Wanted {
    pub(super) fn of(config: &Config) -> Self {
        let number = |text: String| text.parse::<u64>().unwrap_or(0);
        Self {
            backlog: number(config.get(keys::TCP_BACKLOG).to_string()),
            clients: config.get(keys::MAXCLIENTS) as u64,
            memory: Some(number(config.get(keys::MAXMEMORY).to_string())).filter(|bytes| *bytes != 0),
            is_saving: config.get(keys::APPENDONLY) || !config.get(keys::SAVE).is_empty(),
        }
    }
}

/// Runs all checks of the machine.
pub(super) fn check(facts: &Facts, wanted: &Wanted) -> Vec<Finding> {
    let checks = [overcommit, huge_pages, backlog, swap, files, memory, folder, disk, clock, synchronisation];
    checks.iter().filter_map(|check| check(facts, wanted)).collect()
}

fn overcommit(facts: &Facts, _: &Wanted) -> Option<Finding> {
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

fn huge_pages(facts: &Facts, _: &Wanted) -> Option<Finding> {
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

fn backlog(facts: &Facts, wanted: &Wanted) -> Option<Finding> {
    let (about, most) = ("backlog", facts.most_backlog?);
    let wanted = wanted.backlog;
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

fn swap(facts: &Facts, _: &Wanted) -> Option<Finding> {
    let (about, total) = ("swap", facts.swap_total?);
    let swappiness = facts.swappiness.unwrap_or(60);
    Some(if total == 0 {
        Finding::fine(about, "no swap")
    } else if swappiness > LEAST_EAGER_SWAPPINESS {
        Finding::warning(
            about,
            format!(
                "{} of swap with vm.swappiness {swappiness}: a server that is swapped out does not respond for seconds, and \
                 other nodes mark it as failed",
                size(total)
            ),
            "sysctl -w vm.swappiness=1, or MemorySwapMax=0 in the systemd unit",
        )
    } else {
        Finding::fine(about, format!("{} with vm.swappiness {swappiness}", size(total)))
    })
}

fn files(facts: &Facts, wanted: &Wanted) -> Option<Finding> {
    let (about, most) = ("open files", facts.most_files?);
    let needed = wanted.clients.saturating_add(RESERVED_FILES);
    Some(if most < needed {
        Finding::warning(
            about,
            format!(
                "the limit of open files is {most}: maxclients will be {} instead of {}",
                most.saturating_sub(RESERVED_FILES).max(1),
                wanted.clients
            ),
            format!("LimitNOFILE={needed} in the systemd unit, or 'ulimit -Hn {needed}' before the start"),
        )
    } else {
        Finding::fine(about, format!("the limit is {most}; maxclients {} needs {needed}", wanted.clients))
    })
}

fn memory(facts: &Facts, wanted: &Wanted) -> Option<Finding> {
    let about = "memory";
    let there = [facts.memory_total, facts.memory_limit].into_iter().flatten().min()?;
    let shown = size(there);
    let three_quarters = size(there / 4 * 3);
    Some(match wanted.memory {
        None => Finding::warning(
            about,
            format!(
                "maxmemory is not set: when the {shown} of memory are used up, the kernel kills the server"
            ),
            format!("maxmemory {}mb, and a maxmemory-policy for a cache", there / 4 * 3 / (1 << 20)),
        ),
        Some(limit) if limit > there => Finding::fault(
            about,
            format!("maxmemory is {}, but the machine has only {shown}", size(limit)),
            format!("maxmemory of at most {three_quarters}, or more memory"),
        ),
        Some(limit) if limit > there / 4 * 3 => Finding::warning(
            about,
            format!(
                "maxmemory is {} of {shown}: too little remains for replica buffers, snapshots and the system",
                size(limit)
            ),
            format!("maxmemory of at most {three_quarters}, or more memory"),
        ),
        Some(limit) => Finding::fine(about, format!("maxmemory is {} of {shown}", size(limit))),
    })
}

fn folder(facts: &Facts, _: &Wanted) -> Option<Finding> {
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

fn disk(facts: &Facts, wanted: &Wanted) -> Option<Finding> {
    let free = facts.disk_free.filter(|_| wanted.is_saving)?;
    // The old file is deleted only after the new one is complete.
    let needed = facts.files_size.max(wanted.memory.unwrap_or(0));
    let free_shown = size(free);
    Some(if facts.files_size > free {
        Finding::fault(
            "disk",
            format!(
                "{free_shown} free, but the data files take {}: a new file does not fit",
                size(facts.files_size)
            ),
            "free some space: the old file is deleted only after the new one is complete",
        )
    } else if needed > free {
        Finding::warning(
            "disk",
            format!(
                "{free_shown} free, less than maxmemory ({}): a full server cannot be saved",
                size(needed)
            ),
            "a larger disk, or a lower maxmemory",
        )
    } else {
        Finding::fine("disk", format!("{free_shown} free; the data files take {}", size(facts.files_size)))
    })
}

fn clock(facts: &Facts, _: &Wanted) -> Option<Finding> {
    let source = facts.clock_source.as_deref()?;
    Some(if QUICK_CLOCKS.contains(&source) {
        Finding::fine("clock", format!("the clock source is {source}"))
    } else {
        Finding::warning(
            "clock",
            format!("the clock source is {source}: each time query costs a system call"),
            format!(
                "boot with clocksource= set to one of {}, if /sys/devices/system/clocksource lists it",
                QUICK_CLOCKS.join(", ")
            ),
        )
    })
}

fn synchronisation(facts: &Facts, _: &Wanted) -> Option<Finding> {
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
