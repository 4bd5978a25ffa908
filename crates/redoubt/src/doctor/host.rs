//! The machine: the kernel's settings, limits, memory, disk and clock.

mod facts;
#[cfg(test)]
mod tests;

use config::{Config, keys};

use super::finding::{Finding, size};

pub(super) use facts::Facts;

/// Files that a server needs besides one for each client.
const RESERVED_FILES: u64 = 32;
/// The least urgency of swapping at which a process that works now and then is swapped out.
const LEAST_EAGER_SWAPPINESS: u64 = 10;
/// The sources from which the time is read without asking the kernel or a device.
const QUICK_CLOCKS: &[&str] = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

/// The demands of a configuration on the machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) backlog: u64,
    pub(super) clients: u64,
    /// None: without a limit.
    pub(super) memory: Option<u64>,
    /// Whether data is written to the disk.
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

/// All findings about the machine.
pub(super) fn check(facts: &Facts, wanted: &Wanted) -> Vec<Finding> {
    let checks = [overcommit, huge_pages, backlog, swap, files, memory, folder, disk, clock, synchronisation];
    checks.iter().filter_map(|check| check(facts, wanted)).collect()
}

fn overcommit(facts: &Facts, _: &Wanted) -> Option<Finding> {
    let about = "overcommit";
    Some(match facts.overcommit? {
        2 => Finding::warning(
            about,
            "vm.overcommit_memory is 2: memory is refused that is reserved and not in use yet, and a server that is \
             refused memory ends",
            "sysctl -w vm.overcommit_memory=1, and the same in /etc/sysctl.d",
        ),
        mode => Finding::fine(
            about,
            format!("vm.overcommit_memory is {mode}: nothing forks, so 0 is as good as 1"),
        ),
    })
}

fn huge_pages(facts: &Facts, _: &Wanted) -> Option<Finding> {
    let about = "huge pages";
    Some(match facts.huge_pages.as_deref()? {
        "always" => Finding::warning(
            about,
            "transparent huge pages are always used: the system takes memory 2 MB at a time, more than the data needs",
            "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled, and the same at every boot",
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
                "net.core.somaxconn is {most}, less than tcp-backlog ({wanted}): many clients at once are refused"
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
        Finding::fine(about, "there is none")
    } else if swappiness > LEAST_EAGER_SWAPPINESS {
        Finding::warning(
            about,
            format!(
                "{} of swap and vm.swappiness {swappiness}: a server that was swapped out is silent for seconds, and \
                 others take it for dead",
                size(total)
            ),
            "sysctl -w vm.swappiness=1, or MemorySwapMax=0 in its unit",
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
                "at most {most} files may be open: maxclients will be {} and not {}",
                most.saturating_sub(RESERVED_FILES).max(1),
                wanted.clients
            ),
            format!("LimitNOFILE={needed} in its unit, or 'ulimit -Hn {needed}' before it starts"),
        )
    } else {
        Finding::fine(
            about,
            format!("{most} may be open, {needed} are needed for maxclients {}", wanted.clients),
        )
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
            format!("{shown}, and no maxmemory: when it is used up the system kills the server"),
            format!("maxmemory {}mb, and a maxmemory-policy if it is a cache", there / 4 * 3 / (1 << 20)),
        ),
        Some(limit) if limit > there => Finding::fault(
            about,
            format!("maxmemory is {}, and there is only {shown}", size(limit)),
            format!("maxmemory of at most {three_quarters}, or more memory"),
        ),
        Some(limit) if limit > there / 4 * 3 => Finding::warning(
            about,
            format!(
                "maxmemory is {} of {shown}: too little is left for replicas' output, saving and the system",
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
            "folder",
            format!("'dir' is {path}: {reason}"),
            format!("make it, and make it the server's user's: chown -R redoubt {path}"),
        ),
        None => Finding::fine("folder", format!("{path} can be written to")),
    })
}

fn disk(facts: &Facts, wanted: &Wanted) -> Option<Finding> {
    let free = facts.disk_free.filter(|_| wanted.is_saving)?;
    // A new file is written beside the old one, which goes when the new one is whole.
    let needed = facts.files_size.max(wanted.memory.unwrap_or(0));
    let free_shown = size(free);
    Some(if facts.files_size > free {
        Finding::fault(
            "disk",
            format!(
                "{free_shown} are free and the files of data are {}: no new one fits",
                size(facts.files_size)
            ),
            "make room: a snapshot or a rewritten file lies beside the old one until it is whole",
        )
    } else if needed > free {
        Finding::warning(
            "disk",
            format!(
                "{free_shown} are free, less than maxmemory ({}): a full server cannot be saved",
                size(needed)
            ),
            "a larger disk, or a smaller maxmemory",
        )
    } else {
        Finding::fine(
            "disk",
            format!("{free_shown} are free, and the files of data are {}", size(facts.files_size)),
        )
    })
}

fn clock(facts: &Facts, _: &Wanted) -> Option<Finding> {
    let source = facts.clock_source.as_deref()?;
    Some(if QUICK_CLOCKS.contains(&source) {
        Finding::fine("clock", format!("its source is {source}"))
    } else {
        Finding::warning(
            "clock",
            format!("its source is {source}: each look at the time asks the kernel or a device"),
            format!(
                "one of {} by the kernel's option clocksource=, if /sys/devices/system/clocksource has it",
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
            "nothing synchronises the clock: after a failover keys expire too early or too late",
            "chrony or systemd-timesyncd (timedatectl set-ntp true)",
        )
    })
}
