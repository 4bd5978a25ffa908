//! Commands about the server that need only the engine: COMMAND, TIME, MONITOR, LOLWUT and others.

mod command;
mod debug;
mod docs;
mod hotkeys;
mod latency;
mod logs;
mod module;
mod protocol;

use engine::{Categories, Command, CommandError, Context, Flags, Group};

pub use command::execute_command;
pub(super) use debug::COMMANDS as DEBUG;
pub(super) use hotkeys::COMMANDS as HOTKEYS;
pub(super) use latency::COMMANDS as LATENCY;
pub(super) use logs::COMMANDS as LOGS;
pub(super) use module::COMMANDS as MODULE;

/// Flags of COMMAND, which servers and sentinels both have.
const ALLOWED_WHILE_LOADING: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::SENTINEL);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("command", Group::Server, "2.8.13", -1, "Describes all commands.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .tips(&["nondeterministic_output_order"])
        .run(command::command)
        .subcommands(COMMAND_SUBCOMMANDS),
    Command::new("lolwut", Group::Server, "5.0.0", -1, "Shows the version, with a drawing.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .run(lolwut),
    Command::new("monitor", Group::Server, "1.0.0", 1, "Streams all commands to this connection.")
        .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .run(monitor),
    Command::new("time", Group::Server, "2.6.0", 1, "Returns the server's time.")
        .flags(Flags::LOADING.union(Flags::STALE).union(Flags::FAST))
        .tips(&["nondeterministic_output"])
        .run(time),
];
const COMMAND_SUBCOMMANDS: &[Command] = &[
    Command::new("count", Group::Server, "2.8.13", 2, "Returns the number of commands.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .run(command::command),
    Command::new("docs", Group::Server, "7.0.0", -2, "Returns documentation of commands.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .tips(&["nondeterministic_output_order"])
        .run(command::command),
    Command::new("getkeys", Group::Server, "2.8.13", -3, "Returns the keys of a request.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .run(command::command),
    Command::new(
        "getkeysandflags",
        Group::Server,
        "7.0.0",
        -3,
        "Returns the keys of a request with their access flags.",
    )
    .flags(ALLOWED_WHILE_LOADING)
    .category(Categories::CONNECTION)
    .run(command::command),
    Command::new("help", Group::Server, "5.0.0", 2, "Lists the subcommands.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .run(command::command),
    Command::new("info", Group::Server, "2.8.13", -2, "Describes the given commands.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .tips(&["nondeterministic_output_order"])
        .run(command::command),
    Command::new("list", Group::Server, "7.0.0", -2, "Returns the names of commands.")
        .flags(ALLOWED_WHILE_LOADING)
        .category(Categories::CONNECTION)
        .tips(&["nondeterministic_output_order"])
        .run(command::command),
];

/// Starts streaming all commands to this client.
fn monitor(context: &mut Context<'_>) -> Result<(), CommandError> {
    if !context.can_block() {
        return Err(CommandError::text("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    context.engine.start_monitor(context.session);
    context.reply.ok();
    Ok(())
}

/// Handles TIME: replies with the wall clock in seconds and microseconds.
fn time(context: &mut Context<'_>) -> Result<(), CommandError> {
    let micros = context.frozen_wall_micros();
    context.reply.array(2);
    context.reply.bulk_integer(micros.div_euclid(1_000_000));
    context.reply.bulk_integer(micros.rem_euclid(1_000_000));
    Ok(())
}

/// The ASCII art of LOLWUT: a small fortress.
const LOLWUT_ART: &str = "\n    |>        |>\n  _ _ _      _ _ _\n |_|_|_|_  _|_|_|_|\n |  _  |_||_|  _  |\n\
                       \x20|_|_|_|_||_|_|_|_|\n\n";

/// Handles `LOLWUT [VERSION number [...]]`.
fn lolwut(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"version")) && context.args.len() > 2
    {
        context.integer_arg(2)?;
    }
    let compatible =
        context.engine.settings.extended_redis_compatibility.load(std::sync::atomic::Ordering::Relaxed);
    let (name, version) = match compatible {
        true => ("Redis", resp::REDIS_VERSION),
        false => ("Redoubt", env!("CARGO_PKG_VERSION")),
    };
    context.reply.verbatim(b"txt", format!("{LOLWUT_ART}{name} ver. {version}\n").as_bytes());
    Ok(())
}
