//! Commands about the connection itself.

use crate::command::{Categories, Command, Flags, Group};
use crate::context::Context;
use crate::error::CommandError;

/// Commands that run in any state of the server.
const ANYTIME: Flags = Flags::LOADING.union(Flags::STALE);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("echo", Group::Connection, "1.0.0", 2, "Returns its argument.")
        .flags(ANYTIME.union(Flags::FAST))
        .category(Categories::CONNECTION)
        .run(echo),
    Command::new("ping", Group::Connection, "1.0.0", -1, "Says that the server is there.")
        .flags(Flags::FAST)
        .category(Categories::CONNECTION)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .run(ping),
    Command::new("select", Group::Connection, "1.0.0", 2, "Chooses the database of this connection.")
        .flags(Flags::ALLOW_BUSY.union(ANYTIME).union(Flags::FAST))
        .category(Categories::CONNECTION)
        .run(select),
];

/// The database with that number, if there is one.
pub(super) fn database(context: &Context<'_>, number: i64) -> Result<u16, CommandError> {
    let db = u16::try_from(number).ok().filter(|db| *db < context.engine.keyspace.databases());
    db.ok_or(CommandError::InvalidDbIndex)
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
