//! Script and function commands. The engine's `dispatch/script.rs` executes scripts; the Lua interpreter is the crate
//! `scripting`.

mod eval;
mod functions;
mod script;

use engine::{Categories, Command, Flags, Group, KeySpec};

use super::rows::{HELP_FLAGS, NONDETERMINISTIC_ORDER_TIPS, key};

const SCRIPT_READ_UPDATE_KEYS: &[KeySpec] = &[KeySpec::counted_keys(2, key::READ_UPDATE)];
const SCRIPT_READ_KEYS: &[KeySpec] = &[KeySpec::counted_keys(2, key::READ)];

const SCRIPT_CALL_FLAGS: Flags =
    Flags::NOSCRIPT.union(Flags::SKIP_MONITOR).union(Flags::NO_MANDATORY_KEYS).union(Flags::STALE);
const WRITE_SCRIPT_CALL_FLAGS: Flags = SCRIPT_CALL_FLAGS.union(Flags::MAY_REPLICATE);
const READ_ONLY_SCRIPT_CALL_FLAGS: Flags = SCRIPT_CALL_FLAGS.union(Flags::READONLY);

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Scripting, since, arity, summary)
}

const fn scripting_command(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    summary: &'static str,
) -> Command {
    new_command(name, since, arity, summary).category(Categories::SCRIPTING).flags(flags)
}

pub(super) const COMMANDS: &[Command] = &[
    scripting_command("eval", "2.6.0", -3, WRITE_SCRIPT_CALL_FLAGS, "Runs a script.")
        .keys(SCRIPT_READ_UPDATE_KEYS)
        .script(eval::eval),
    scripting_command("eval_ro", "7.0.0", -3, READ_ONLY_SCRIPT_CALL_FLAGS, "Runs a read-only script.")
        .keys(SCRIPT_READ_KEYS)
        .script(eval::eval_ro),
    scripting_command("evalsha", "2.6.0", -3, WRITE_SCRIPT_CALL_FLAGS, "Runs a cached script by its SHA1.")
        .keys(SCRIPT_READ_UPDATE_KEYS)
        .script(eval::evalsha),
    scripting_command(
        "evalsha_ro",
        "7.0.0",
        -3,
        READ_ONLY_SCRIPT_CALL_FLAGS,
        "Runs a cached read-only script by its SHA1.",
    )
    .keys(SCRIPT_READ_KEYS)
    .script(eval::evalsha_ro),
    scripting_command("fcall", "7.0.0", -3, WRITE_SCRIPT_CALL_FLAGS, "Calls a function.")
        .keys(SCRIPT_READ_UPDATE_KEYS)
        .script(eval::fcall),
    scripting_command("fcall_ro", "7.0.0", -3, READ_ONLY_SCRIPT_CALL_FLAGS, "Calls a read-only function.")
        .keys(SCRIPT_READ_KEYS)
        .script(eval::fcall_ro),
    new_command("function", "7.0.0", -2, "Manages function libraries.").subcommands(FUNCTION_SUBCOMMANDS),
    new_command("script", "2.6.0", -2, "Manages scripts.").subcommands(SCRIPT_SUBCOMMANDS),
];

const LIBRARY_WRITE_FLAGS: Flags = Flags::NOSCRIPT.union(Flags::WRITE);
const ALL_SHARDS_TIPS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];
const ALL_NODES_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
const KILL_TIPS: &[&str] = &["request_policy:all_shards", "response_policy:one_succeeded"];

const FUNCTION_SUBCOMMANDS: &[Command] = &[
    scripting_command("delete", "7.0.0", 3, LIBRARY_WRITE_FLAGS, "Deletes a library.")
        .tips(ALL_SHARDS_TIPS)
        .run(functions::delete)
        .locks_all_slots(),
    scripting_command("dump", "7.0.0", 2, Flags::NOSCRIPT, "Serializes all libraries.").run(functions::dump),
    scripting_command("flush", "7.0.0", -2, LIBRARY_WRITE_FLAGS, "Deletes all libraries.")
        .tips(ALL_SHARDS_TIPS)
        .run(functions::flush)
        .locks_all_slots(),
    scripting_command("help", "7.0.0", 2, HELP_FLAGS, "Lists the subcommands.").run(functions::help),
    scripting_command(
        "kill",
        "7.0.0",
        2,
        Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        "Kills the running function.",
    )
    .tips(KILL_TIPS)
    .run(functions::kill),
    scripting_command("list", "7.0.0", -2, Flags::NOSCRIPT, "Lists libraries.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(functions::list),
    scripting_command("load", "7.0.0", -3, LIBRARY_WRITE_FLAGS.union(Flags::DENYOOM), "Loads a library.")
        .tips(ALL_SHARDS_TIPS)
        .run(functions::load)
        .locks_all_slots(),
    scripting_command(
        "restore",
        "7.0.0",
        -3,
        LIBRARY_WRITE_FLAGS.union(Flags::DENYOOM),
        "Restores libraries from the output of FUNCTION DUMP.",
    )
    .tips(ALL_SHARDS_TIPS)
    .run(functions::restore)
    .locks_all_slots(),
    scripting_command(
        "stats",
        "7.0.0",
        2,
        Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        "Returns the running function and the engine.",
    )
    .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
    .run(functions::stats),
];

const SCRIPT_SUBCOMMANDS: &[Command] = &[
    scripting_command("debug", "3.2.0", -3, Flags::NOSCRIPT, "Sets the debug mode of scripts.")
        .run(script::debug),
    scripting_command(
        "exists",
        "2.6.0",
        -3,
        Flags::NOSCRIPT.union(Flags::STALE),
        "Checks whether scripts are in the cache.",
    )
    .tips(&["request_policy:all_shards", "response_policy:agg_logical_and"])
    .run(script::exists),
    scripting_command(
        "flush",
        "2.6.0",
        -2,
        Flags::NOSCRIPT.union(Flags::STALE),
        "Removes all scripts from the cache.",
    )
    .tips(ALL_NODES_TIPS)
    .run(script::flush),
    scripting_command("help", "5.0.0", 2, HELP_FLAGS, "Lists the subcommands.").run(script::help),
    scripting_command(
        "kill",
        "2.6.0",
        2,
        Flags::NOSCRIPT.union(Flags::ALLOW_BUSY),
        "Kills the running script.",
    )
    .tips(KILL_TIPS)
    .run(script::kill),
    scripting_command("load", "2.6.0", 3, Flags::NOSCRIPT.union(Flags::STALE), "Adds a script to the cache.")
        .tips(ALL_NODES_TIPS)
        .run(script::load),
    scripting_command("show", "8.0.0", 3, Flags::NOSCRIPT.union(Flags::STALE), "Shows a script's text.")
        .run(script::show_script),
];

#[cfg(test)]
mod tests;
