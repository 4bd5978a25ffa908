//! Pub/Sub commands. The subscription tables are in the engine's `pubsub.rs`.

use engine::{
    ChannelArguments, ChannelKind, Command, CommandError, CommandOrigin, Context, Flags, Group, KeyFlags,
    KeySpec,
};

use super::help::reply_help;

const SUBSCRIBE_FLAGS: Flags = Flags::PUBSUB
    .union(Flags::NOSCRIPT)
    .union(Flags::LOADING)
    .union(Flags::STALE)
    .union(Flags::WHILE_SUBSCRIBED);
const PUBLISH_FLAGS: Flags =
    Flags::PUBSUB.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST).union(Flags::MAY_REPLICATE);
const INTROSPECTION_FLAGS: Flags = Flags::PUBSUB.union(Flags::LOADING).union(Flags::STALE);

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Pubsub, since, arity, summary)
}

pub(super) const COMMANDS: &[Command] = &[
    new_command("psubscribe", "2.0.0", -2, "Subscribes to channels that match patterns.")
        .flags(SUBSCRIBE_FLAGS)
        .sentinel()
        .channels(ChannelArguments::Patterns)
        .run(|context| subscribe(context, ChannelKind::Pattern)),
    new_command("publish", "2.0.0", 3, "Publishes a message to a channel.")
        .flags(PUBLISH_FLAGS)
        .sentinel()
        .channels(ChannelArguments::First)
        .run(|context| publish(context, false))
        .locks_first_argument(),
    new_command("pubsub", "2.8.0", -2, "Inspects channels and subscriptions.")
        .subcommands(PUBSUB_SUBCOMMANDS),
    new_command("punsubscribe", "2.0.0", -1, "Unsubscribes from patterns.")
        .flags(SUBSCRIBE_FLAGS)
        .sentinel()
        .run(|context| unsubscribe(context, ChannelKind::Pattern)),
    new_command("spublish", "7.0.0", 3, "Publishes a message to a shard channel.")
        .flags(PUBLISH_FLAGS)
        .keys(&[KeySpec::single_key(1, KeyFlags::NOT_KEY)])
        .channels(ChannelArguments::First)
        .run(|context| publish(context, true)),
    new_command("ssubscribe", "7.0.0", -2, "Subscribes to shard channels.")
        .flags(SUBSCRIBE_FLAGS)
        .keys(&[KeySpec::key_range(1, -1, 1, KeyFlags::NOT_KEY)])
        .channels(ChannelArguments::All)
        .run(|context| subscribe(context, ChannelKind::ShardChannel)),
    new_command("subscribe", "2.0.0", -2, "Subscribes to channels.")
        .flags(SUBSCRIBE_FLAGS)
        .sentinel()
        .channels(ChannelArguments::All)
        .run(|context| subscribe(context, ChannelKind::Channel)),
    new_command("sunsubscribe", "7.0.0", -1, "Unsubscribes from shard channels.")
        .flags(SUBSCRIBE_FLAGS)
        .keys(&[KeySpec::key_range(1, -1, 1, KeyFlags::NOT_KEY)])
        .run(|context| unsubscribe(context, ChannelKind::ShardChannel)),
    new_command("unsubscribe", "2.0.0", -1, "Unsubscribes from channels.")
        .flags(SUBSCRIBE_FLAGS)
        .sentinel()
        .run(|context| unsubscribe(context, ChannelKind::Channel)),
];

const PUBSUB_SUBCOMMANDS: &[Command] = &[
    new_command("channels", "2.8.0", -2, "Lists channels with subscribers.")
        .flags(INTROSPECTION_FLAGS)
        .run(|context| channels(context, ChannelKind::Channel)),
    new_command("help", "6.2.0", 2, "Lists the subcommands.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .run(help),
    new_command("numpat", "2.8.0", 2, "Returns the number of subscribed patterns.")
        .flags(INTROSPECTION_FLAGS)
        .run(numpat),
    new_command("numsub", "2.8.0", -2, "Returns the numbers of subscribers of channels.")
        .flags(INTROSPECTION_FLAGS)
        .run(|context| numsub(context, ChannelKind::Channel)),
    new_command("shardchannels", "7.0.0", -2, "Lists shard channels with subscribers.")
        .flags(INTROSPECTION_FLAGS)
        .run(|context| channels(context, ChannelKind::ShardChannel)),
    new_command("shardnumsub", "7.0.0", -2, "Returns the numbers of subscribers of shard channels.")
        .flags(INTROSPECTION_FLAGS)
        .run(|context| numsub(context, ChannelKind::ShardChannel)),
];

fn push_subscription_confirmation(
    context: &mut Context<'_>,
    message_kind: &[u8],
    name: Option<&[u8]>,
    count: usize,
) {
    context.write_push_message(|reply| {
        reply.push(3);
        reply.bulk(message_kind);
        match name {
            Some(name) => reply.bulk(name),
            None => reply.null(),
        }
        reply.integer(count as i64);
    });
}

fn subscribe(context: &mut Context<'_>, kind: ChannelKind) -> Result<(), CommandError> {
    if context.is_called_by_script() {
        let name = String::from_utf8_lossy(kind.subscribe_message_kind()).to_uppercase();
        return Err(CommandError::Text(
            format!("ERR {name} isn't allowed for a DENY BLOCKING client").into(),
        ));
    }
    for index in 1..context.args.len() {
        let name = context.arg(index);
        let count = context.engine.notifications.subscribe(context.session, kind, name);
        push_subscription_confirmation(context, kind.subscribe_message_kind(), Some(name), count);
    }
    Ok(())
}

fn unsubscribe(context: &mut Context<'_>, kind: ChannelKind) -> Result<(), CommandError> {
    let client = context.session.client().clone();
    let names = match context.args.len() {
        1 => client.subscriptions(kind),
        _ => context.args.iter().skip(1).map(<[u8]>::to_vec).collect(),
    };
    for name in &names {
        let count = context.engine.notifications.pubsub.unsubscribe(kind, name, &client);
        // Messages published before the unsubscription are delivered before its confirmation, because no message may
        // follow the confirmation.
        let mut waiting = Vec::new();
        context.session.take_messages(&mut waiting);
        context.write_push_message(|reply| reply.raw(&waiting));
        push_subscription_confirmation(context, kind.unsubscribe_message_kind(), Some(name), count);
    }
    if names.is_empty() {
        push_subscription_confirmation(
            context,
            kind.unsubscribe_message_kind(),
            None,
            client.subscription_count(kind),
        );
    }
    Ok(())
}

fn publish(context: &mut Context<'_>, is_sharded: bool) -> Result<(), CommandError> {
    let (channel, message, engine) = (context.arg(1), context.arg(2), context.engine);
    if context.session.origin() == CommandOrigin::Client
        && !engine.notifications.pubsub.fits_in_bus_packet(channel, message)
    {
        return Err(CommandError::text("ERR message is too long for the cluster bus"));
    }
    engine.settings.sentinel.store_hello(channel, message);
    let receivers = engine.notifications.pubsub.deliver(is_sharded, channel, message);
    if is_sharded {
        context.charge_shard_message(channel, message, receivers);
    }
    if engine.topology.is_none() {
        context.replicate();
    } else if context.session.origin() == CommandOrigin::Client {
        engine.notifications.pubsub.forward_to_bus(is_sharded, channel, message);
    }
    context.reply.integer(receivers as i64);
    Ok(())
}

fn channels(context: &mut Context<'_>, kind: ChannelKind) -> Result<(), CommandError> {
    if context.args.len() > 3 {
        return Err(engine::wrong_subcommand_arguments("PUBSUB", context.arg(1)));
    }
    let names = context.engine.notifications.pubsub.matching_names(kind, context.args.get(2));
    context.reply.array(names.len());
    names.iter().for_each(|name| context.reply.bulk(name));
    Ok(())
}

fn numsub(context: &mut Context<'_>, kind: ChannelKind) -> Result<(), CommandError> {
    context.reply.array((context.args.len() - 2) * 2);
    for index in 2..context.args.len() {
        let name = context.arg(index);
        context.reply.bulk(name);
        context.reply.integer(context.engine.notifications.pubsub.subscriber_count(kind, name) as i64);
    }
    Ok(())
}

fn numpat(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.integer(context.engine.notifications.pubsub.pattern_count() as i64);
    Ok(())
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "PUBSUB",
        &[
            "CHANNELS [<pattern>]",
            "    Return the currently active channels matching a <pattern> (default: '*').",
            "NUMPAT",
            "    Return number of subscriptions to patterns.",
            "NUMSUB [<channel> ...]",
            "    Return the number of subscribers for the specified channels, excluding",
            "    pattern subscriptions(default: no channels).",
            "SHARDCHANNELS [<pattern>]",
            "    Return the currently active shard level channels matching a <pattern> (default: '*').",
            "SHARDNUMSUB [<shardchannel> ...]",
            "    Return the number of subscribers for the specified shard level channel(s)",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests;
