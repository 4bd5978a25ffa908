//! MEMORY: memory usage of keys and of the server.

use engine::{Categories, Command, CommandError, Context, Flags, Group, ShellCommand};

use super::help::reply_help;
use super::rows::METADATA_KEY_AT_2;

pub(super) const COMMANDS: &[Command] =
    &[Command::new("memory", Group::Server, "4.0.0", -2, "Reports memory usage.")
        .subcommands(MEMORY_SUBCOMMANDS)];

const ALL_SHARDS_TIPS: &[&str] =
    &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

const MEMORY_SUBCOMMANDS: &[Command] = &[
    Command::new("doctor", Group::Server, "4.0.0", 2, "Returns a report on memory problems.")
        .tips(ALL_SHARDS_TIPS)
        .shell(ShellCommand::MemoryDoctor),
    Command::new("help", Group::Server, "4.0.0", 2, "Lists the subcommands.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .run(help),
    Command::new("malloc-stats", Group::Server, "4.0.0", 2, "Returns allocator statistics.")
        .flags(Flags::LOADING)
        .tips(ALL_SHARDS_TIPS)
        .shell(ShellCommand::MemoryMallocStats),
    Command::new("purge", Group::Server, "4.0.0", 2, "Returns free memory to the operating system.")
        .flags(Flags::LOADING)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .shell(ShellCommand::MemoryPurge),
    Command::new("stats", Group::Server, "4.0.0", 2, "Returns memory usage by category.")
        .tips(ALL_SHARDS_TIPS)
        .shell(ShellCommand::MemoryStats)
        .visits_each_slot(),
    Command::new("usage", Group::Server, "4.0.0", -3, "Returns the memory usage of a key.")
        .flags(Flags::READONLY)
        .category(Categories::READ)
        .keys(METADATA_KEY_AT_2)
        .run(memory_usage),
];

/// Handles `MEMORY USAGE key [SAMPLES count]`. SAMPLES has no effect, since the size of each value is tracked exactly
/// as it changes.
fn memory_usage(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mut index = 3;
    while let Some(word) = context.args.get(index) {
        if !word.eq_ignore_ascii_case(b"samples") || index + 1 == context.args.len() {
            return Err(CommandError::Syntax);
        }
        if context.integer_arg(index + 1)? < 0 {
            return Err(CommandError::Syntax);
        }
        index += 2;
    }
    let key = context.key(2)?;
    let found = context.peek(&key);
    let (table, reply) = context.table_and_reply(&key);
    match found {
        Some(place) => reply.integer(table.entry_bytes(place) as i64),
        None => reply.null(),
    }
    Ok(())
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "MEMORY",
        &[
            "DOCTOR",
            "    Returns what may be wrong with the use of memory.",
            "MALLOC-STATS",
            "    Returns the allocators' figures.",
            "PURGE",
            "    Gives free memory back to the system.",
            "STATS",
            "    Returns what memory is used for.",
            "USAGE <key> [SAMPLES <count>]",
            "    Returns how many bytes <key> and its value take.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use resp::Value;

    use crate::testing::Client;

    #[test]
    fn memory_usage_reports_key_size() {
        let mut client = Client::new();
        let long = "x".repeat(5000);
        client.check_replies(&[
            ("set short x", "+OK"),
            (&format!("set long {long}"), "+OK"),
            ("memory usage nosuch", "$-1"),
            ("memory usage short samples", "-ERR syntax error"),
            ("memory usage short samples -1", "-ERR syntax error"),
            ("memory usage short nosuch 1", "-ERR syntax error"),
            ("memory usage short samples x", "-ERR value is not an integer or out of range"),
        ]);
        let mut bytes = |key: &str| match client.call(&["memory", "usage", key, "samples", "0"]) {
            Value::Integer(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        assert!((5000..6000).contains(&bytes("long")));
        assert!((10..2000).contains(&bytes("short")));
        assert!(client.run_to_text("memory help").starts_with("*13\r\n+MEMORY <subcommand> "));
    }
}
