//! Commands about the connection itself.

mod client;
mod hello;
mod others;

use crate::command::{Categories, Command, Flags, Group};
use crate::context::Context;
use crate::error::CommandError;

pub(super) const COMMANDS: &[Command] = &[
    Command::new("client", Group::Connection, "2.4.0", -2, "Looks at connections and steers them.")
        .subcommands(CLIENT),
    Command::new(
        "asking",
        Group::Cluster,
        "3.0.0",
        1,
        "Lets the next command use a slot that is on its way here.",
    )
    .flags(Flags::FAST)
    .category(Categories::CONNECTION)
    .run(hello::asking),
    Command::new("auth", Group::Connection, "1.0.0", -2, "Logs the connection in.")
        .flags(
            Flags::NOSCRIPT
                .union(Flags::LOADING)
                .union(Flags::STALE)
                .union(Flags::FAST)
                .union(Flags::NO_AUTH)
                .union(Flags::ALLOW_BUSY),
        )
        .category(Categories::CONNECTION)
        .run(hello::auth),
    Command::new("echo", Group::Connection, "1.0.0", 2, "Returns its argument.")
        .flags(Flags::LOADING.union(Flags::STALE).union(Flags::FAST))
        .category(Categories::CONNECTION)
        .run(echo),
    Command::new(
        "hello",
        Group::Connection,
        "6.0.0",
        -1,
        "Chooses the protocol's version, logs in, and says who the server is.",
    )
    .flags(
        Flags::NOSCRIPT
            .union(Flags::LOADING)
            .union(Flags::STALE)
            .union(Flags::FAST)
            .union(Flags::NO_AUTH)
            .union(Flags::ALLOW_BUSY),
    )
    .category(Categories::CONNECTION)
    .run(hello::hello),
    Command::new("ping", Group::Connection, "1.0.0", -1, "Says that the server is there.")
        .flags(Flags::FAST)
        .category(Categories::CONNECTION)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .run(ping),
    Command::new("quit", Group::Connection, "1.0.0", -1, "Closes the connection.")
        .flags(
            Flags::ALLOW_BUSY
                .union(Flags::NOSCRIPT)
                .union(Flags::LOADING)
                .union(Flags::STALE)
                .union(Flags::FAST)
                .union(Flags::NO_AUTH),
        )
        .category(Categories::CONNECTION)
        .run(hello::quit),
    Command::new("readonly", Group::Cluster, "3.0.0", 1, "Lets this connection read from a replica.")
        .flags(Flags::FAST.union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(hello::readonly),
    Command::new("readwrite", Group::Cluster, "3.0.0", 1, "Ends what READONLY began.")
        .flags(Flags::FAST.union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(hello::readwrite),
    Command::new("reset", Group::Connection, "6.2.0", 1, "Makes the connection as it was when it was new.")
        .flags(
            Flags::NOSCRIPT
                .union(Flags::LOADING)
                .union(Flags::STALE)
                .union(Flags::FAST)
                .union(Flags::NO_AUTH)
                .union(Flags::ALLOW_BUSY),
        )
        .category(Categories::CONNECTION)
        .run(hello::reset),
    Command::new("select", Group::Connection, "1.0.0", 2, "Chooses the database of this connection.")
        .flags(Flags::ALLOW_BUSY.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST))
        .category(Categories::CONNECTION)
        .run(select),
];
const CLIENT: &[Command] = &[
    Command::new("getname", Group::Connection, "2.6.9", 2, "Returns the name of this connection.")
        .flags(Flags::ALLOW_BUSY.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(client::getname),
    Command::new("help", Group::Connection, "5.0.0", 2, "Lists the subcommands.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(client::help),
    Command::new("id", Group::Connection, "5.0.0", 2, "Returns the number of this connection.")
        .flags(Flags::ALLOW_BUSY.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(client::id),
    Command::new("info", Group::Connection, "6.2.0", 2, "Returns facts about this connection.")
        .flags(Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .tips(&["nondeterministic_output"])
        .run(client::info),
    Command::new("kill", Group::Connection, "2.4.0", -3, "Closes connections.")
        .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(others::kill),
    Command::new("list", Group::Connection, "2.4.0", -2, "Returns facts about all connections.")
        .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .tips(&["nondeterministic_output"])
        .run(others::list),
    Command::new(
        "no-evict",
        Group::Connection,
        "7.0.0",
        3,
        "Protects this connection from being closed for memory.",
    )
    .flags(
        Flags::ALLOW_BUSY
            .union(Flags::ADMIN)
            .union(Flags::NOSCRIPT)
            .union(Flags::LOADING)
            .union(Flags::STALE),
    )
    .category(Categories::CONNECTION)
    .run(client::no_evict),
    Command::new(
        "no-touch",
        Group::Connection,
        "7.2.0",
        3,
        "Makes this connection's reads leave no trace in how recently keys were used.",
    )
    .flags(Flags::ALLOW_BUSY.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
    .category(Categories::CONNECTION)
    .run(client::no_touch),
    Command::new(
        "pause",
        Group::Connection,
        "3.0.0",
        -3,
        "Makes commands, or only writes, wait for a while.",
    )
    .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
    .category(Categories::CONNECTION)
    .run(others::pause),
    Command::new("reply", Group::Connection, "3.2.0", 3, "Says which replies this connection wants.")
        .flags(
            Flags::ALLOW_BUSY
                .union(Flags::NOSCRIPT)
                .union(Flags::NO_MULTI)
                .union(Flags::LOADING)
                .union(Flags::STALE),
        )
        .category(Categories::CONNECTION)
        .run(client::reply),
    Command::new("setinfo", Group::Connection, "7.2.0", 4, "Says which library the client uses.")
        .flags(Flags::ALLOW_BUSY.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .run(client::setinfo),
    Command::new("setname", Group::Connection, "2.6.9", 3, "Gives this connection a name.")
        .flags(Flags::ALLOW_BUSY.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .run(client::setname),
    Command::new("unblock", Group::Connection, "5.0.0", -3, "Ends the wait of a blocked connection.")
        .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(others::unblock),
    Command::new("unpause", Group::Connection, "6.2.0", 2, "Ends what CLIENT PAUSE began.")
        .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE))
        .category(Categories::CONNECTION)
        .run(others::unpause),
];

/// The database with that number, if there is one.
pub(super) fn database(context: &Context<'_>, number: i64) -> Result<u16, CommandError> {
    let db = u16::try_from(number).ok().filter(|db| *db < context.engine.keyspace.databases());
    db.ok_or(CommandError::InvalidDbIndex)
}

fn echo(context: &mut Context<'_>) -> Result<(), CommandError> {
    let text = context.arg(1);
    context.reply.bulk(text);
    Ok(())
}

fn ping(context: &mut Context<'_>) -> Result<(), CommandError> {
    match context.args.len() {
        1 => context.reply.simple("PONG"),
        2 => context.reply.bulk(context.args.get(1).unwrap_or_default()),
        _ => return Err(CommandError::WrongArity("ping".to_owned())),
    }
    Ok(())
}

fn select(context: &mut Context<'_>) -> Result<(), CommandError> {
    let number = context.integer(1)?;
    if context.engine.topology.is_some() && number != 0 {
        return Err(CommandError::text("ERR SELECT is not allowed in cluster mode"));
    }
    context.session.db = database(context, number)?;
    context.reply.ok();
    Ok(())
}
