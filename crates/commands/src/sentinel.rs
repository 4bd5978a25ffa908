//! Command table rows of Sentinel: SENTINEL, and the server's commands that a sentinel also has. The sentinel executes
//! them outside of the engine.

use engine::{Command, Flags, Group};

use super::COMMAND_TABLE;

/// The rows of a sentinel's table, including the server's commands and subcommands marked with [`Flags::SENTINEL`].
pub(super) fn sentinel_rows() -> impl Iterator<Item = &'static Command> {
    let shared = COMMAND_TABLE.iter().flat_map(|family| family.iter());
    COMMANDS.iter().chain(shared.filter(|row| row.flags.contains(Flags::SENTINEL)))
}

const ALLOWED_WHILE_LOADING: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::SENTINEL);

const COMMANDS: &[Command] =
    &[sentinel_row("sentinel", "2.8.4", -2, "Inspects watched masters and controls their sentinels.")
        .subcommands(SENTINEL_SUBCOMMANDS)];

const fn sentinel_row(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Sentinel, since, arity, summary).flags(Flags::ADMIN).sentinel()
}

/// The sentinel crate has a handler for each row. Valkey's names are listed beside Redis's.
const SENTINEL_SUBCOMMANDS: &[Command] = &[
    sentinel_row("ckquorum", "2.8.4", 3, "Checks whether enough sentinels are reachable for a failover."),
    sentinel_row("config", "6.2.0", -4, "Returns or changes settings of this sentinel."),
    sentinel_row("debug", "7.0.0", -2, "Returns or changes this sentinel's intervals."),
    sentinel_row("failover", "2.8.4", -3, "Forces a failover of a master."),
    sentinel_row("failovers", "1.0.0", -2, "Returns the steps of the latest failovers."),
    sentinel_row("flushconfig", "2.8.4", 2, "Writes the configuration file."),
    sentinel_row("forget-peer", "1.0.0", 4, "Removes a sentinel that is permanently down."),
    sentinel_row("get-master-addr-by-name", "2.8.4", 3, "Returns the address of a master."),
    sentinel_row("get-primary-addr-by-name", "9.0.0", 3, "Returns the address of a master."),
    Command::new("help", Group::Sentinel, "6.2.0", 2, "Lists the subcommands.").flags(ALLOWED_WHILE_LOADING),
    sentinel_row("info-cache", "3.2.0", -3, "Returns the cached INFO of watched servers."),
    sentinel_row(
        "is-master-down-by-addr",
        "2.8.4",
        6,
        "Returns whether this sentinel considers a master down, and votes.",
    ),
    sentinel_row(
        "is-primary-down-by-addr",
        "9.0.0",
        6,
        "Returns whether this sentinel considers a master down, and votes.",
    ),
    sentinel_row("master", "2.8.4", 3, "Returns the state of a master."),
    sentinel_row("masters", "2.8.4", 2, "Returns the state of all masters."),
    sentinel_row("monitor", "2.8.4", 6, "Starts watching a master."),
    sentinel_row("myid", "6.2.0", 2, "Returns this sentinel's identity."),
    sentinel_row("pending-scripts", "2.8.4", 2, "Lists pending and running scripts."),
    sentinel_row("primaries", "9.0.0", 2, "Returns the state of all masters."),
    sentinel_row("primary", "9.0.0", 3, "Returns the state of a master."),
    sentinel_row(
        "raft",
        "1.0.0",
        -2,
        "Receives votes and announcements of other sentinels; used between sentinels.",
    ),
    sentinel_row("remove", "2.8.4", 3, "Stops watching a master."),
    sentinel_row("replicas", "5.0.0", 3, "Returns the state of a master's replicas."),
    sentinel_row("reset", "2.8.4", 3, "Resets the state of masters and discovers it again."),
    sentinel_row("sentinels", "2.8.4", 3, "Returns the state of a master's other sentinels."),
    sentinel_row("set", "2.8.4", -5, "Changes the settings of a watched master."),
    sentinel_row("simulate-failure", "3.2.0", -3, "Makes this sentinel crash at a chosen step."),
    sentinel_row("slaves", "2.8.0", 3, "Returns the state of a master's replicas."),
];
