//! SLOWLOG and COMMANDLOG: logs of slow commands and of large requests and replies.

use engine::{Command, CommandError, CommandLog, Context, Flags, Group, wrong_subcommand_arguments};

use crate::help::reply_help;

const ADMIN_FLAGS: Flags = Flags::ADMIN.union(Flags::LOADING).union(Flags::STALE);
const HELP_FLAGS: Flags = Flags::LOADING.union(Flags::STALE);
const GET_TIPS: &[&str] = &["request_policy:all_nodes", "nondeterministic_output"];
const LEN_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"];
const RESET_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];
/// Entries returned by SLOWLOG GET without a count.
const DEFAULT_COUNT: usize = 10;

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, since, arity, summary).flags(ADMIN_FLAGS)
}

const fn help_command(since: &'static str) -> Command {
    Command::new("help", Group::Server, since, 2, "Lists the subcommands.").flags(HELP_FLAGS)
}

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("commandlog", Group::Server, "8.1.0", -2, "Contains the logs of slow and large commands.")
        .subcommands(COMMANDLOG_SUBCOMMANDS),
    Command::new("slowlog", Group::Server, "2.2.12", -2, "Contains the log of slow commands.")
        .subcommands(SLOWLOG_SUBCOMMANDS),
];

const COMMANDLOG_SUBCOMMANDS: &[Command] = &[
    new_command("get", "8.1.0", 4, "Returns entries of a log.").tips(GET_TIPS).run(commandlog_get),
    help_command("8.1.0").run(commandlog_help),
    new_command("len", "8.1.0", 3, "Counts the entries of a log.").tips(LEN_TIPS).run(commandlog_len),
    new_command("reset", "8.1.0", 3, "Empties a log.").tips(RESET_TIPS).run(commandlog_reset),
];

const SLOWLOG_SUBCOMMANDS: &[Command] = &[
    new_command("get", "2.2.12", -2, "Returns entries of the log.").tips(GET_TIPS).run(slowlog_get),
    help_command("6.2.0").run(slowlog_help),
    new_command("len", "2.2.12", 2, "Counts the entries of the log.").tips(LEN_TIPS).run(slowlog_len),
    new_command("reset", "2.2.12", 2, "Empties the log.").tips(RESET_TIPS).run(slowlog_reset),
];

/// Parses the number of entries to return; -1 means all.
fn parse_count(argument: &[u8]) -> Result<usize, CommandError> {
    let count = resp::parse_i64(argument).filter(|count| *count >= -1);
    let count = count.ok_or(CommandError::text("ERR count should be greater than or equal to -1"))?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Replies with the newest `count` entries. `with_thread` adds the kind of thread that ran the command, which is an
/// extension of the Redis format.
fn reply_entries(context: &mut Context<'_>, log: &CommandLog, count: usize, with_thread: bool) {
    let entries = log.newest_entries(count);
    let reply = &mut context.reply;
    reply.array(entries.len());
    for entry in entries {
        reply.array(if with_thread { 7 } else { 6 });
        reply.integer(entry.id as i64);
        reply.integer(entry.time.secs());
        reply.integer(i64::try_from(entry.value).unwrap_or(i64::MAX));
        reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| reply.bulk(arg));
        reply.bulk(entry.client_address.as_bytes());
        reply.bulk(&entry.client_name);
        if with_thread {
            reply.bulk(if entry.in_background { b"background" } else { b"worker" });
        }
    }
}

fn slowlog_get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (count, with_thread) = match context.args.len() {
        2 => (DEFAULT_COUNT, false),
        3 => (parse_count(context.arg(2))?, false),
        4 if context.arg(3).eq_ignore_ascii_case(b"withthread") => (parse_count(context.arg(2))?, true),
        _ => return Err(wrong_subcommand_arguments("SLOWLOG", context.arg(1))),
    };
    reply_entries(context, &context.engine.diagnostics.command_logs.slow_commands, count, with_thread);
    Ok(())
}

fn slowlog_len(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.integer(context.engine.diagnostics.command_logs.slow_commands.count() as i64);
    Ok(())
}

fn slowlog_reset(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.engine.diagnostics.command_logs.slow_commands.reset();
    context.reply.ok();
    Ok(())
}

/// Finds the log whose type argument `index` names.
fn find_log<'a>(context: &Context<'a>, index: usize) -> Result<&'a CommandLog, CommandError> {
    let log = context.engine.diagnostics.command_logs.log_by_name(context.arg(index));
    log.ok_or(CommandError::text("ERR type should be one of the following: slow, large-request, large-reply"))
}

/// Handles `COMMANDLOG GET count type`.
fn commandlog_get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (count, log) = (parse_count(context.arg(2))?, find_log(context, 3)?);
    reply_entries(context, log, count, false);
    Ok(())
}

fn commandlog_len(context: &mut Context<'_>) -> Result<(), CommandError> {
    let len = find_log(context, 2)?.count();
    context.reply.integer(len as i64);
    Ok(())
}

fn commandlog_reset(context: &mut Context<'_>) -> Result<(), CommandError> {
    find_log(context, 2)?.reset();
    context.reply.ok();
    Ok(())
}

fn slowlog_help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "SLOWLOG",
        &[
            "GET [<count> [WITHTHREAD]]",
            "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
            "    Entries are made of:",
            "    id, timestamp, time in microseconds, arguments array, client IP and port,",
            "    client name; with WITHTHREAD also the kind of thread: worker or background",
            "LEN",
            "    Return the length of the slowlog.",
            "RESET",
            "    Reset the slowlog.",
        ],
    );
    Ok(())
}

fn commandlog_help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "COMMANDLOG",
        &[
            "GET <count> <type>",
            "    Returns the newest <count> entries of a log (-1: all). Entries are made of:",
            "    id, timestamp, microseconds or bytes, arguments, client address, client name.",
            "    Types are slow, large-request and large-reply.",
            "LEN <type>",
            "    Returns how many entries a log has.",
            "RESET <type>",
            "    Empties a log.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn slow_and_large_commands_are_logged() {
        let mut client = Client::new();
        client.check_replies(&[
            ("set before 1", "+OK"),
            ("slowlog len", ":0"),
            ("slowlog get", "*0"),
            ("slowlog get -2", "-ERR count should be greater than or equal to -1"),
            ("slowlog get x", "-ERR count should be greater than or equal to -1"),
            (
                "slowlog get 1 2",
                "-ERR unknown subcommand or wrong number of arguments for 'get'. Try SLOWLOG HELP.",
            ),
        ]);
        client.engine.diagnostics.command_logs.slow_commands.configure(0, 2);
        client.check_replies(&[
            ("set k v", "+OK"),
            ("get k", "$1|v"),
            ("get nosuch", "$-1"),
            ("slowlog get 1", "*1|*6|:2|:1700000000|:0|*2|$3|get|$6|nosuch|$0||$0|"),
            (
                "slowlog get 1 withthread",
                "*1|*7|:3|:1700000000|:0|*3|$7|slowlog|$3|get|$1|1|$0||$0||$6|worker",
            ),
            ("slowlog len", ":2"),
            ("commandlog len slow", ":2"),
        ]);
        client.engine.diagnostics.command_logs.slow_commands.configure(-1, 2);
        client.engine.diagnostics.command_logs.large_requests.configure(100, 10);
        client.engine.diagnostics.command_logs.large_replies.configure(100, 10);
        let long = "x".repeat(120);
        let shown = format!("*1|*6|:0|:1700000000|:129|*3|$3|set|$1|k|$120|{long}|$0||$0|",);
        client.check_replies(&[
            ("slowlog reset", "+OK"),
            ("slowlog len", ":0"),
            (&format!("set k {long}"), "+OK"),
            ("get k", &format!("$120|{long}")),
            ("commandlog len large-request", ":1"),
            ("commandlog len large-reply", ":1"),
            ("commandlog get -1 large-request", &shown.replace(":129", ":126")),
            ("commandlog reset large-reply", "+OK"),
            (
                "commandlog len nosuch",
                "-ERR type should be one of the following: slow, large-request, large-reply",
            ),
        ]);
    }
}
