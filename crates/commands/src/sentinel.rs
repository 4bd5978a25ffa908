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
    &[own("sentinel", "2.8.4", -2, "Looks at watched masters and steers their sentinels.")
        .subcommands(SENTINEL)];

const fn own(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Sentinel, since, arity, summary).flags(Flags::ADMIN).sentinel()
}

/// The sentinel crate has a handler for each row. Valkey's names are listed beside Redis's.
const SENTINEL: &[Command] = &[
    own("ckquorum", "2.8.4", 3, "Says whether enough sentinels are within reach to replace a master."),
    own("config", "6.2.0", -4, "Returns or changes settings of this sentinel."),
    own("debug", "7.0.0", -2, "Returns or changes this sentinel's periods."),
    own("failover", "2.8.4", -3, "Replaces a master that need not have failed."),
    own("failovers", "1.0.0", -2, "Tells the latest failovers step by step."),
    own("flushconfig", "2.8.4", 2, "Writes the configuration file."),
    own("forget-peer", "1.0.0", 4, "Stops counting a sentinel that is gone for good."),
    own("get-master-addr-by-name", "2.8.4", 3, "Returns where a master is."),
    own("get-primary-addr-by-name", "9.0.0", 3, "Returns where a master is."),
    Command::new("help", Group::Sentinel, "6.2.0", 2, "Lists the subcommands.").flags(ANYTIME),
    own("info-cache", "3.2.0", -3, "Returns what watched servers last said of themselves."),
    own("is-master-down-by-addr", "2.8.4", 6, "Says whether this sentinel sees a master down, and votes."),
    own("is-primary-down-by-addr", "9.0.0", 6, "Says whether this sentinel sees a master down, and votes."),
    own("master", "2.8.4", 3, "Tells how a master stands."),
    own("masters", "2.8.4", 2, "Tells how all masters stand."),
    own("monitor", "2.8.4", 6, "Starts watching a master."),
    own("myid", "6.2.0", 2, "Returns this sentinel's identity."),
    own("pending-scripts", "2.8.4", 2, "Tells which scripts wait or run."),
    own("primaries", "9.0.0", 2, "Tells how all masters stand."),
    own("primary", "9.0.0", 3, "Tells how a master stands."),
    own("raft", "1.0.0", -2, "What sentinels say to each other to elect a leader."),
    own("remove", "2.8.4", 3, "Stops watching a master."),
    own("replicas", "5.0.0", 3, "Tells how a master's replicas stand."),
    own("reset", "2.8.4", 3, "Forgets what is known of masters, and finds it out anew."),
    own("sentinels", "2.8.4", 3, "Tells how a master's other sentinels stand."),
    own("set", "2.8.4", -5, "Changes how a master is watched."),
    own("simulate-failure", "3.2.0", -3, "Has this sentinel crash at a chosen step."),
    own("slaves", "2.8.0", 3, "Tells how a master's replicas stand."),
];
