//! Script and function commands. Execution is in `dispatch/script.rs`; the Lua interpreter is the crate `scripting`.

mod eval;
mod functions;
mod script;

use engine::{Categories, Command, Flags, Group, KeySpec};

use super::rows::{ANY_ORDER, HELP, key};

const CHANGES: &[KeySpec] = &[KeySpec::counted_keys(2, key::CHANGE)];
const READS: &[KeySpec] = &[KeySpec::counted_keys(2, key::READ)];

const RUNS: Flags =
    Flags::NOSCRIPT.union(Flags::SKIP_MONITOR).union(Flags::NO_MANDATORY_KEYS).union(Flags::STALE);
const WRITES: Flags = RUNS.union(Flags::MAY_REPLICATE);
const LOOKS: Flags = RUNS.union(Flags::READONLY);

const fn row(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Scripting, since, arity, summary)
}

const fn scripting(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    summary: &'static str,
) -> Command {
    row(name, since, arity, summary).category(Categories::SCRIPTING).flags(flags)
}

pub(super) const COMMANDS: &[Command] = &[
    scripting("eval", "2.6.0", -3, WRITES, "Runs a script.").keys(CHANGES).script(eval::eval),
    scripting("eval_ro", "7.0.0", -3, LOOKS, "Runs a read-only script.").keys(READS).script(eval::eval_ro),
    scripting("evalsha", "2.6.0", -3, WRITES, "Runs a cached script by its SHA1.")
        .keys(CHANGES)
        .script(eval::evalsha),
    scripting("evalsha_ro", "7.0.0", -3, LOOKS, "Runs a cached read-only script by its SHA1.")
        .keys(READS)
        .script(eval::evalsha_ro),
    scripting("fcall", "7.0.0", -3, WRITES, "Calls a function.").keys(CHANGES).script(eval::fcall),
    scripting("fcall_ro", "7.0.0", -3, LOOKS, "Calls a read-only function.")
        .keys(READS)
        .script(eval::fcall_ro),
    row("function", "7.0.0", -2, "Manages function libraries.").subcommands(FUNCTION),
    row("script", "2.6.0", -2, "Manages scripts.").subcommands(SCRIPT),
];

const CHANGES_LIBRARIES: Flags = Flags::NOSCRIPT.union(Flags::WRITE);
const FOR_ALL_SHARDS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];
const FOR_ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
const KILLS: &[&str] = &["request_policy:all_shards", "response_policy:one_succeeded"];

const FUNCTION: &[Command] = &[
    scripting("delete", "7.0.0", 3, CHANGES_LIBRARIES, "Deletes a library.")
        .tips(FOR_ALL_SHARDS)
        .run(functions::delete)
        .all_slots(),
    scripting("dump", "7.0.0", 2, Flags::NOSCRIPT, "Serializes all libraries.").run(functions::dump),
    scripting("flush", "7.0.0", -2, CHANGES_LIBRARIES, "Deletes all libraries.")
        .tips(FOR_ALL_SHARDS)
        .run(functions::flush)
        .all_slots(),
    scripting("help", "7.0.0", 2, HELP, "Lists the subcommands.").run(functions::help),
    scripting("kill", "7.0.0", 2, Flags::NOSCRIPT.union(Flags::ALLOW_BUSY), "Kills the running function.")
        .tips(KILLS)
        .run(functions::kill),
    scripting("list", "7.0.0", -2, Flags::NOSCRIPT, "Lists libraries.").tips(ANY_ORDER).run(functions::list),
    scripting("load", "7.0.0", -3, CHANGES_LIBRARIES.union(Flags::DENYOOM), "Loads a library.")
        .tips(FOR_ALL_SHARDS)
        .run(functions::load)
        .all_slots(),
    scripting(
        "restore",
        "7.0.0",
        -3,
        CHANGES_LIBRARIES.union(Flags::DENYOOM),
        "Restores libraries from the output of FUNCTION DUMP.",
    )
    .tips(FOR_ALL_SHARDS)
    .run(functions::restore)
    .all_slots(),
    scripting(
        "stats",
        "7.0.0",
        2,
        Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        "Returns the running function and the engine.",
    )
    .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
    .run(functions::stats),
];

const SCRIPT: &[Command] = &[
    scripting("debug", "3.2.0", -3, Flags::NOSCRIPT, "Sets the debug mode of scripts.").run(script::debug),
    scripting(
        "exists",
        "2.6.0",
        -3,
        Flags::NOSCRIPT.union(Flags::STALE),
        "Checks whether scripts are in the cache.",
    )
    .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"])
    .run(script::exists),
    scripting(
        "flush",
        "2.6.0",
        -2,
        Flags::NOSCRIPT.union(Flags::STALE),
        "Removes all scripts from the cache.",
    )
    .tips(FOR_ALL_NODES)
    .run(script::flush),
    scripting("help", "5.0.0", 2, HELP, "Lists the subcommands.").run(script::help),
    scripting("kill", "2.6.0", 2, Flags::NOSCRIPT.union(Flags::ALLOW_BUSY), "Kills the running script.")
        .tips(KILLS)
        .run(script::kill),
    scripting("load", "2.6.0", 3, Flags::NOSCRIPT.union(Flags::STALE), "Adds a script to the cache.")
        .tips(FOR_ALL_NODES)
        .run(script::load),
    scripting("show", "8.0.0", 3, Flags::NOSCRIPT.union(Flags::STALE), "Shows a script's text.")
        .run(script::show),
];

#[cfg(test)]
mod tests;
