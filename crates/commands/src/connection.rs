//! Commands about the connection itself: PING, SELECT, HELLO, CLIENT and others.

mod client;
mod filter;
mod hello;
mod others;
mod tracking;

use engine::{Categories, Command, CommandError, Context, DatabaseAccess, Flags, Group, LogRole};

const ALLOWED_WHILE_LOADING: Flags = Flags::LOADING.union(Flags::STALE);
/// Flags of commands that open, close or inspect the connection. They run even while the server is busy.
const CONNECTION_FLAGS: Flags = ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT).union(Flags::ALLOW_BUSY);
const UNAUTHENTICATED_FLAGS: Flags = CONNECTION_FLAGS.union(Flags::FAST).union(Flags::NO_AUTH);
const ADMIN_FLAGS: Flags = ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT).union(Flags::ADMIN);
const ALL_NODES_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Connection, since, arity, summary).category(Categories::CONNECTION)
}

/// Creates a command that sets a routing flag of a cluster connection (ASKING, READONLY, READWRITE).
const fn routing_command(name: &'static str, summary: &'static str) -> Command {
    Command::new(name, Group::Cluster, "3.0.0", 1, summary).category(Categories::CONNECTION)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("client", Group::Connection, "2.4.0", -2, "Inspects and controls connections.")
        .sentinel()
        .subcommands(CLIENT_SUBCOMMANDS),
    routing_command("asking", "Allows the next command to access an importing slot.")
        .flags(Flags::FAST)
        .run(hello::asking),
    new_command("auth", "1.0.0", -2, "Authenticates the connection.")
        .flags(UNAUTHENTICATED_FLAGS)
        .sentinel()
        .run(hello::auth),
    new_command("echo", "1.0.0", 2, "Returns its argument.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::FAST))
        .run(echo),
    new_command(
        "hello",
        "6.0.0",
        -1,
        "Selects the protocol version, authenticates, and describes the server.",
    )
    .flags(UNAUTHENTICATED_FLAGS)
    .sentinel()
    .run(hello::hello),
    new_command("ping", "1.0.0", -1, "Checks that the server responds.")
        .flags(Flags::FAST.union(Flags::WHILE_SUBSCRIBED))
        .sentinel()
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .log_role(LogRole::KeepAlive)
        .run(ping),
    new_command("quit", "1.0.0", -1, "Closes the connection.")
        .flags(UNAUTHENTICATED_FLAGS.union(Flags::NOT_QUEUED).union(Flags::WHILE_SUBSCRIBED))
        .run(hello::quit),
    routing_command("readonly", "Allows this connection to read from a replica.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::FAST))
        .run(hello::readonly),
    routing_command("readwrite", "Ends the READONLY mode.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::FAST))
        .run(hello::readwrite),
    new_command("reset", "6.2.0", 1, "Resets the connection to its initial state.")
        .flags(UNAUTHENTICATED_FLAGS.union(Flags::NOT_QUEUED).union(Flags::WHILE_SUBSCRIBED))
        .run(hello::reset),
    new_command("select", "1.0.0", 2, "Selects the database of this connection.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::FAST).union(Flags::ALLOW_BUSY))
        .databases(DatabaseAccess::SelectedByArgument)
        .log_role(LogRole::SelectDb)
        .run(select),
];

const CLIENT_SUBCOMMANDS: &[Command] = &[
    new_command("caching", "6.0.0", 3, "Overrides tracking for the next command.")
        .flags(CONNECTION_FLAGS)
        .sentinel()
        .run(tracking::caching),
    new_command("capa", "8.0.0", -3, "Announces capabilities of this client.")
        .flags(CONNECTION_FLAGS)
        .run(client::capa),
    new_command("getredir", "6.0.0", 2, "Returns the client that receives this connection's invalidations.")
        .flags(CONNECTION_FLAGS)
        .sentinel()
        .run(tracking::getredir),
    new_command("tracking", "6.0.0", -3, "Controls client-side caching by invalidation messages.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT))
        .sentinel()
        .run(tracking::tracking),
    new_command("trackinginfo", "6.2.0", 2, "Returns the tracking state of this connection.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT))
        .sentinel()
        .run(tracking::trackinginfo),
    new_command("getname", "2.6.9", 2, "Returns the name of this connection.")
        .flags(CONNECTION_FLAGS)
        .sentinel()
        .run(client::getname),
    new_command("help", "5.0.0", 2, "Lists the subcommands.")
        .flags(ALLOWED_WHILE_LOADING)
        .sentinel()
        .run(client::help),
    new_command("id", "5.0.0", 2, "Returns the id of this connection.")
        .flags(CONNECTION_FLAGS)
        .sentinel()
        .run(client::reply_client_id),
    new_command("import-source", "8.1.0", 3, "Marks this connection as an import source.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT))
        .run(client::import_source),
    new_command("info", "6.2.0", 2, "Describes this connection.")
        .flags(ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT))
        .sentinel()
        .tips(&["nondeterministic_output"])
        .run(client::reply_client_info),
    new_command("kill", "2.4.0", -3, "Closes connections.").flags(ADMIN_FLAGS).sentinel().run(others::kill),
    new_command("list", "2.4.0", -2, "Lists all connections.")
        .flags(ADMIN_FLAGS)
        .sentinel()
        .tips(&["nondeterministic_output"])
        .run(others::list),
    new_command("no-evict", "7.0.0", 3, "Protects this connection from client eviction.")
        .flags(ADMIN_FLAGS.union(Flags::ALLOW_BUSY))
        .sentinel()
        .run(client::no_evict),
    new_command("no-touch", "7.2.0", 3, "Prevents this connection's reads from updating access times.")
        .flags(CONNECTION_FLAGS)
        .run(client::no_touch),
    new_command("pause", "3.0.0", -3, "Delays all commands, or only writes, for a time.")
        .flags(ADMIN_FLAGS)
        .sentinel()
        .run(others::pause),
    new_command("reply", "3.2.0", 3, "Enables, disables or skips replies.")
        .flags(CONNECTION_FLAGS.union(Flags::NO_MULTI))
        .sentinel()
        .run(client::set_reply_mode),
    new_command("setinfo", "7.2.0", 4, "Sets the client library's name and version.")
        .flags(CONNECTION_FLAGS)
        .sentinel()
        .tips(ALL_NODES_TIPS)
        .run(client::setinfo),
    new_command("setname", "2.6.9", 3, "Sets the name of this connection.")
        .flags(CONNECTION_FLAGS)
        .sentinel()
        .tips(ALL_NODES_TIPS)
        .run(client::setname),
    new_command("unblock", "5.0.0", -3, "Unblocks a blocked connection.")
        .flags(ADMIN_FLAGS)
        .sentinel()
        .run(others::unblock),
    new_command("unpause", "6.2.0", 2, "Ends a CLIENT PAUSE.")
        .flags(ADMIN_FLAGS)
        .sentinel()
        .run(others::unpause),
];

/// Checks a database number.
pub(super) fn parse_db_index(context: &Context<'_>, number: i64) -> Result<u16, CommandError> {
    let db = u16::try_from(number).ok().filter(|db| *db < context.engine.keyspace.database_count());
    db.ok_or(CommandError::InvalidDbIndex)
}

fn echo(context: &mut Context<'_>) -> Result<(), CommandError> {
    let text = context.arg(1);
    context.reply.bulk(text);
    Ok(())
}

/// Sentinels must consider a master down after it has lost its dataset. Any error reply to PING except LOADING and
/// MASTERDOWN has this effect.
const PING_WITHOUT_DATASET: &str =
    "EMPTYMASTER This master started without its data and waits until a replica has taken its place.";

fn ping(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.engine.settings.sentinel.rejects_ping_of(context.session.client()) {
        return Err(CommandError::text(PING_WITHOUT_DATASET));
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
    let number = context.integer_arg(1)?;
    if context.engine.is_cluster_with_one_database() && number != 0 {
        return Err(CommandError::text("ERR SELECT is not allowed in cluster mode"));
    }
    context.session.select(parse_db_index(context, number)?);
    context.reply.ok();
    Ok(())
}
