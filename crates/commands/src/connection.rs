//! Commands about the connection itself: PING, SELECT, HELLO, CLIENT and others.

mod client;
mod filter;
mod hello;
mod others;
mod tracking;

use engine::{Categories, Command, CommandError, Context, Databases, Flags, Group};

const ANYTIME: Flags = Flags::LOADING.union(Flags::STALE);
/// Flags of commands that open, close or inspect the connection. They run even while the server is busy.
const ITSELF: Flags = ANYTIME.union(Flags::NOSCRIPT).union(Flags::ALLOW_BUSY);
const BEFORE_LOGIN: Flags = ITSELF.union(Flags::FAST).union(Flags::NO_AUTH);
const ADMIN: Flags = ANYTIME.union(Flags::NOSCRIPT).union(Flags::ADMIN);
const ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

const fn row(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Connection, since, arity, summary).category(Categories::CONNECTION)
}

/// A table row for a command that sets a routing flag of a cluster connection (ASKING, READONLY, READWRITE).
const fn routing(name: &'static str, summary: &'static str) -> Command {
    Command::new(name, Group::Cluster, "3.0.0", 1, summary).category(Categories::CONNECTION)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("client", Group::Connection, "2.4.0", -2, "Looks at connections and steers them.")
        .sentinel()
        .subcommands(CLIENT),
    routing("asking", "Lets the next command use a slot that is on its way here.")
        .flags(Flags::FAST)
        .run(hello::asking),
    row("auth", "1.0.0", -2, "Logs the connection in.").flags(BEFORE_LOGIN).sentinel().run(hello::auth),
    row("echo", "1.0.0", 2, "Returns its argument.").flags(ANYTIME.union(Flags::FAST)).run(echo),
    row("hello", "6.0.0", -1, "Chooses the protocol's version, logs in, and says who the server is.")
        .flags(BEFORE_LOGIN)
        .sentinel()
        .run(hello::hello),
    row("ping", "1.0.0", -1, "Says that the server is there.")
        .flags(Flags::FAST.union(Flags::WHILE_SUBSCRIBED))
        .sentinel()
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .run(ping),
    row("quit", "1.0.0", -1, "Closes the connection.")
        .flags(BEFORE_LOGIN.union(Flags::NOT_QUEUED).union(Flags::WHILE_SUBSCRIBED))
        .run(hello::quit),
    routing("readonly", "Lets this connection read from a replica.")
        .flags(ANYTIME.union(Flags::FAST))
        .run(hello::readonly),
    routing("readwrite", "Ends what READONLY began.").flags(ANYTIME.union(Flags::FAST)).run(hello::readwrite),
    row("reset", "6.2.0", 1, "Makes the connection as it was when it was new.")
        .flags(BEFORE_LOGIN.union(Flags::NOT_QUEUED).union(Flags::WHILE_SUBSCRIBED))
        .run(hello::reset),
    row("select", "1.0.0", 2, "Chooses the database of this connection.")
        .flags(ANYTIME.union(Flags::FAST).union(Flags::ALLOW_BUSY))
        .databases(Databases::Selected)
        .run(select),
];

const CLIENT: &[Command] = &[
    row("caching", "6.0.0", 3, "Makes the next command an exception from how keys are tracked.")
        .flags(ITSELF)
        .sentinel()
        .run(tracking::caching),
    row("capa", "8.0.0", -3, "Says what this client can do beyond what every client can.")
        .flags(ITSELF)
        .run(client::capa),
    row("getredir", "6.0.0", 2, "Returns who is told of changed keys in this connection's place.")
        .flags(ITSELF)
        .sentinel()
        .run(tracking::getredir),
    row("tracking", "6.0.0", -3, "Tells this connection when keys change that it has read.")
        .flags(ANYTIME.union(Flags::NOSCRIPT))
        .sentinel()
        .run(tracking::tracking),
    row("trackinginfo", "6.2.0", 2, "Returns how this connection tracks keys.")
        .flags(ANYTIME.union(Flags::NOSCRIPT))
        .sentinel()
        .run(tracking::trackinginfo),
    row("getname", "2.6.9", 2, "Returns the name of this connection.")
        .flags(ITSELF)
        .sentinel()
        .run(client::getname),
    row("help", "5.0.0", 2, "Lists the subcommands.").flags(ANYTIME).sentinel().run(client::help),
    row("id", "5.0.0", 2, "Returns the number of this connection.").flags(ITSELF).sentinel().run(client::id),
    row("import-source", "8.1.0", 3, "Says that this connection brings data from elsewhere.")
        .flags(ANYTIME.union(Flags::NOSCRIPT))
        .run(client::import_source),
    row("info", "6.2.0", 2, "Returns facts about this connection.")
        .flags(ANYTIME.union(Flags::NOSCRIPT))
        .sentinel()
        .tips(&["nondeterministic_output"])
        .run(client::info),
    row("kill", "2.4.0", -3, "Closes connections.").flags(ADMIN).sentinel().run(others::kill),
    row("list", "2.4.0", -2, "Returns facts about all connections.")
        .flags(ADMIN)
        .sentinel()
        .tips(&["nondeterministic_output"])
        .run(others::list),
    row("no-evict", "7.0.0", 3, "Protects this connection from being closed for memory.")
        .flags(ADMIN.union(Flags::ALLOW_BUSY))
        .sentinel()
        .run(client::no_evict),
    row(
        "no-touch",
        "7.2.0",
        3,
        "Makes this connection's reads leave no trace in how recently keys were used.",
    )
    .flags(ITSELF)
    .run(client::no_touch),
    row("pause", "3.0.0", -3, "Makes commands, or only writes, wait for a while.")
        .flags(ADMIN)
        .sentinel()
        .run(others::pause),
    row("reply", "3.2.0", 3, "Says which replies this connection wants.")
        .flags(ITSELF.union(Flags::NO_MULTI))
        .sentinel()
        .run(client::reply),
    row("setinfo", "7.2.0", 4, "Says which library the client uses.")
        .flags(ITSELF)
        .sentinel()
        .tips(ALL_NODES)
        .run(client::setinfo),
    row("setname", "2.6.9", 3, "Gives this connection a name.")
        .flags(ITSELF)
        .sentinel()
        .tips(ALL_NODES)
        .run(client::setname),
    row("unblock", "5.0.0", -3, "Ends the wait of a blocked connection.")
        .flags(ADMIN)
        .sentinel()
        .run(others::unblock),
    row("unpause", "6.2.0", 2, "Ends what CLIENT PAUSE began.").flags(ADMIN).sentinel().run(others::unpause),
];

/// Checks a database number.
pub(super) fn database(context: &Context<'_>, number: i64) -> Result<u16, CommandError> {
    let db = u16::try_from(number).ok().filter(|db| *db < context.engine.keyspace.databases());
    db.ok_or(CommandError::InvalidDbIndex)
}

fn echo(context: &mut Context<'_>) -> Result<(), CommandError> {
    let text = context.arg(1);
    context.reply.bulk(text);
    Ok(())
}

/// A master that has lost its dataset must count as down for sentinels; any error except LOADING and MASTERDOWN does
/// that.
const NO_PONG: &str =
    "EMPTYMASTER This master started without its data and waits until a replica has taken its place.";

fn ping(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.engine.settings.watched.hides_from(&context.session.client) {
        return Err(CommandError::text(NO_PONG));
    }
    match context.args.len() {
        1 | 2 if context.session.is_subscriber_only() => {
            context.reply.array(2);
            context.reply.bulk(b"pong");
            context.reply.bulk(context.args.get(1).unwrap_or_default());
        }
        1 => context.reply.raw(b"+PONG\r\n"),
        2 => context.reply.bulk(context.args.get(1).unwrap_or_default()),
        _ => return Err(CommandError::WrongArity("ping".to_owned())),
    }
    Ok(())
}

fn select(context: &mut Context<'_>) -> Result<(), CommandError> {
    let number = context.integer(1)?;
    if context.engine.is_cluster_of_one_database() && number != 0 {
        return Err(CommandError::text("ERR SELECT is not allowed in cluster mode"));
    }
    context.session.db = database(context, number)?;
    context.reply.ok();
    Ok(())
}
