//! Command table rows of Sentinel: a subset of the server's commands, and SENTINEL. The sentinel's shell executes them.

use engine::{Command, Flags, Group};

use super::TABLE;

/// The rows of a sentinel's table, including the server's commands and subcommands marked with [`Flags::SENTINEL`].
pub(super) fn rows() -> impl Iterator<Item = &'static Command> {
    let shared = TABLE.iter().flat_map(|family| family.iter());
    COMMANDS.iter().chain(shared.filter(|row| row.flags.contains(Flags::SENTINEL)))
}

const ANYTIME: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::SENTINEL);

const COMMANDS: &[Command] =
    &[own("sentinel", "2.8.4", -2, "Inspects watched masters and controls their sentinels.")
        .subcommands(SENTINEL)];

const fn own(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Sentinel, since, arity, summary).flags(Flags::ADMIN).sentinel()
}

/// The sentinel crate has a handler for each row. Valkey's names are listed beside Redis's.
const SENTINEL: &[Command] = &[
    own("ckquorum", "2.8.4", 3, "Checks whether enough sentinels are reachable for a failover."),
    own("config", "6.2.0", -4, "Returns or changes settings of this sentinel."),
    own("debug", "7.0.0", -2, "Returns or changes this sentinel's intervals."),
    own("failover", "2.8.4", -3, "Forces a failover of a master."),
    own("failovers", "1.0.0", -2, "Returns the steps of the latest failovers."),
    own("flushconfig", "2.8.4", 2, "Writes the configuration file."),
    own("forget-peer", "1.0.0", 4, "Removes a sentinel that is permanently down."),
    own("get-master-addr-by-name", "2.8.4", 3, "Returns the address of a master."),
    own("get-primary-addr-by-name", "9.0.0", 3, "Returns the address of a master."),
    Command::new("help", Group::Sentinel, "6.2.0", 2, "Lists the subcommands.").flags(ANYTIME),
    own("info-cache", "3.2.0", -3, "Returns the cached INFO of watched servers."),
    own(
        "is-master-down-by-addr",
        "2.8.4",
        6,
        "Returns whether this sentinel considers a master down, and votes.",
    ),
    own(
        "is-primary-down-by-addr",
        "9.0.0",
        6,
        "Returns whether this sentinel considers a master down, and votes.",
    ),
    own("master", "2.8.4", 3, "Returns the state of a master."),
    own("masters", "2.8.4", 2, "Returns the state of all masters."),
    own("monitor", "2.8.4", 6, "Starts watching a master."),
    own("myid", "6.2.0", 2, "Returns this sentinel's identity."),
    own("pending-scripts", "2.8.4", 2, "Lists pending and running scripts."),
    own("primaries", "9.0.0", 2, "Returns the state of all masters."),
    own("primary", "9.0.0", 3, "Returns the state of a master."),
    own("raft", "1.0.0", -2, "Receives votes and announcements of other sentinels; used between sentinels."),
    own("remove", "2.8.4", 3, "Stops watching a master."),
    own("replicas", "5.0.0", 3, "Returns the state of a master's replicas."),
    own("reset", "2.8.4", 3, "Resets the state of masters and discovers it again."),
    own("sentinels", "2.8.4", 3, "Returns the state of a master's other sentinels."),
    own("set", "2.8.4", -5, "Changes the settings of a watched master."),
    own("simulate-failure", "3.2.0", -3, "Makes this sentinel crash at a chosen step."),
    own("slaves", "2.8.0", 3, "Returns the state of a master's replicas."),
];
