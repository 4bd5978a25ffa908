//! Command table rows of Sentinel: SENTINEL, and the server's commands that a sentinel also has. The sentinel executes
//! them outside of the engine.

use engine::{Command, Flags, Group};

use super::COMMAND_TABLE;

/// The rows of a sentinel's table, including the server's commands and subcommands marked with [`Flags::SENTINEL`].
pub(super) fn sentinel_commands() -> impl Iterator<Item = &'static Command> {
    let shared = COMMAND_TABLE.iter().flat_map(|family| family.iter());
    COMMANDS.iter().chain(shared.filter(|row| row.flags.contains(Flags::SENTINEL)))
}

const ALLOWED_WHILE_LOADING: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::SENTINEL);

const COMMANDS: &[Command] =
    &[sentinel_command("sentinel", "2.8.4", -2, "Inspects watched masters and controls their sentinels.")
        .subcommands(SENTINEL_SUBCOMMANDS)];

const fn sentinel_command(
    name: &'static str,
    since: &'static str,
    arity: i8,
    summary: &'static str,
) -> Command {
    Command::new(name, Group::Sentinel, since, arity, summary).flags(Flags::ADMIN).sentinel()
}

/// The sentinel crate has a handler for each row. Valkey's names are listed beside Redis's.
const SENTINEL_SUBCOMMANDS: &[Command] = &[
    sentinel_command("ckquorum", "2.8.4", 3, "Checks whether enough sentinels are reachable for a failover."),
    sentinel_command("config", "6.2.0", -4, "Returns or changes settings of this sentinel."),
    sentinel_command("debug", "7.0.0", -2, "Returns or changes this sentinel's intervals."),
    sentinel_command("failover", "2.8.4", -3, "Forces a failover of a master."),
    sentinel_command("failovers", "1.0.0", -2, "Returns the steps of the latest failovers."),
    sentinel_command("flushconfig", "2.8.4", 2, "Writes the configuration file."),
    sentinel_command("forget-peer", "1.0.0", 4, "Removes a sentinel that is permanently down."),
    sentinel_command("get-master-addr-by-name", "2.8.4", 3, "Returns the address of a master."),
    sentinel_command("get-primary-addr-by-name", "9.0.0", 3, "Returns the address of a master."),
    Command::new("help", Group::Sentinel, "6.2.0", 2, "Lists the subcommands.").flags(ALLOWED_WHILE_LOADING),
    sentinel_command("info-cache", "3.2.0", -3, "Returns the cached INFO of watched servers."),
    sentinel_command(
        "is-master-down-by-addr",
        "2.8.4",
        6,
        "Returns whether this sentinel considers a master down, and votes.",
    ),
    sentinel_command(
        "is-primary-down-by-addr",
        "9.0.0",
        6,
        "Returns whether this sentinel considers a master down, and votes.",
    ),
    sentinel_command("master", "2.8.4", 3, "Returns the state of a master."),
    sentinel_command("masters", "2.8.4", 2, "Returns the state of all masters."),
    sentinel_command("monitor", "2.8.4", 6, "Starts watching a master."),
    sentinel_command("myid", "6.2.0", 2, "Returns this sentinel's identity."),
    sentinel_command("pending-scripts", "2.8.4", 2, "Lists pending and running scripts."),
    sentinel_command("primaries", "9.0.0", 2, "Returns the state of all masters."),
    sentinel_command("primary", "9.0.0", 3, "Returns the state of a master."),
    sentinel_command(
        "raft",
        "1.0.0",
        -2,
        "Receives votes and announcements of other sentinels; used between sentinels.",
    ),
    sentinel_command("remove", "2.8.4", 3, "Stops watching a master."),
    sentinel_command("replicas", "5.0.0", 3, "Returns the state of a master's replicas."),
    sentinel_command("reset", "2.8.4", 3, "Resets the state of masters and discovers it again."),
    sentinel_command("sentinels", "2.8.4", 3, "Returns the state of a master's other sentinels."),
    sentinel_command("set", "2.8.4", -5, "Changes the settings of a watched master."),
    sentinel_command("simulate-failure", "3.2.0", -3, "Makes this sentinel crash at a chosen step."),
    sentinel_command("slaves", "2.8.0", 3, "Returns the state of a master's replicas."),
];
