//! XGROUP: management of consumer groups.

use engine::{CommandError, Context, EventClass, wrong_subcommand_arguments};
use keyspace::{EntryRef, Group, Key, StreamId};

use super::common::{StreamAccess, no_such_group_error};
use super::id;
use crate::help::reply_help;

const NO_SUCH_KEY_ERROR: CommandError = CommandError::text(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM \
     option to create an empty stream automatically.",
);

/// The options of XGROUP CREATE and SETID, which follow the id.
#[derive(Default)]
struct GroupOptions {
    creates_stream: bool,
    entries_read: Option<u64>,
}

impl GroupOptions {
    fn parse(context: &Context<'_>, may_create_stream: bool) -> Result<Self, CommandError> {
        let (mut words, mut index) = (Self::default(), 5);
        while let Some(word) = context.args.get(index) {
            if may_create_stream && word.eq_ignore_ascii_case(b"mkstream") {
                words.creates_stream = true;
                index += 1;
            } else if word.eq_ignore_ascii_case(b"entriesread") && index + 1 < context.args.len() {
                words.entries_read = match context.integer_arg(index + 1)? {
                    -1 => None,
                    read => Some(u64::try_from(read).map_err(|_| {
                        CommandError::text("ERR value for ENTRIESREAD must be positive or -1")
                    })?),
                };
                index += 2;
            } else {
                return Err(wrong_subcommand_arguments("XGROUP", context.arg(1)));
            }
        }
        Ok(words)
    }
}

/// Parses the id at argument 4; `$` is the stream's last id.
fn parse_last_id(
    context: &Context<'_>,
    key: &Key<'_>,
    found: Option<EntryRef>,
    parse_id: fn(&[u8]) -> Result<StreamId, CommandError>,
) -> Result<StreamId, CommandError> {
    match (context.arg(4), found) {
        (b"$", None) => Ok(StreamId::MIN),
        (b"$", Some(place)) => Ok(context.stream_at(key, place).head().last_id),
        (word, _) => parse_id(word),
    }
}

/// Finds the stream and, with `needs_group`, checks that the group exists.
fn find_stream_or_group(
    context: &mut Context<'_>,
    key: &Key<'_>,
    needs_group: bool,
) -> Result<EntryRef, CommandError> {
    let place = context.find_stream(key)?.ok_or(NO_SUCH_KEY_ERROR)?;
    if needs_group && context.stream_at(key, place).group(context.arg(3)).is_none() {
        return Err(no_such_group_error(key.bytes(), context.arg(3)));
    }
    Ok(place)
}

pub(super) fn create(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name, words) = (context.key(2)?, context.arg(3), GroupOptions::parse(context, true)?);
    let found = context.find_stream(&key)?;
    if found.is_none() && !words.creates_stream {
        return Err(NO_SUCH_KEY_ERROR);
    }
    if context.args.len() > 8 {
        return Err(wrong_subcommand_arguments("XGROUP", context.arg(1)));
    }
    let last = parse_last_id(context, &key, found, id::parse_id)?;
    if found.is_some_and(|place| context.stream_at(&key, place).group(name).is_some()) {
        return Err(CommandError::text("BUSYGROUP Consumer Group name already exists"));
    }
    let place = found.unwrap_or_else(|| context.create_stream(&key));
    context
        .edit_stream(&key, place, |stream| stream.insert_group(name, Group::new(last, words.entries_read)));
    context.report_modified(&key);
    context.notify(EventClass::STREAM, "xgroup-create", &key);
    context.reply.ok();
    Ok(())
}

pub(super) fn set_id(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name, words) = (context.key(2)?, context.arg(3), GroupOptions::parse(context, false)?);
    let place = find_stream_or_group(context, &key, true)?;
    if context.args.len() > 7 {
        return Err(wrong_subcommand_arguments("XGROUP", context.arg(1)));
    }
    let last = parse_last_id(context, &key, Some(place), id::parse_id_or_extreme)?;
    context.edit_stream(&key, place, |stream| {
        if let Some(group) = stream.group_mut(name) {
            (group.last_delivered, group.entries_read) = (last, words.entries_read);
        }
    });
    context.report_modified(&key);
    context.notify(EventClass::STREAM, "xgroup-setid", &key);
    context.reply.ok();
    Ok(())
}

pub(super) fn destroy(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name) = (context.key(2)?, context.arg(3));
    let place = find_stream_or_group(context, &key, false)?;
    let there = context.stream_at(&key, place).group(name).is_some();
    if there {
        let (_, gone) = context.edit_stream(&key, place, |stream| stream.remove_group(name));
        gone.into_iter().for_each(|gone| context.free_stream_parts(gone));
        // Wake the clients blocked on the group, so that they receive an error.
        context.report_modified(&key);
        context.notify(EventClass::STREAM, "xgroup-destroy", &key);
    }
    context.reply.integer(i64::from(there));
    Ok(())
}

pub(super) fn create_consumer(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name, consumer) = (context.key(2)?, context.arg(3), context.arg(4));
    let place = find_stream_or_group(context, &key, true)?;
    let (_, is_new) = context.create_consumer(&key, place, name, consumer);
    context.reply.integer(i64::from(is_new));
    Ok(())
}

pub(super) fn delete_consumer(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name, consumer) = (context.key(2)?, context.arg(3), context.arg(4));
    let place = find_stream_or_group(context, &key, true)?;
    let (_, pending) =
        context.edit_stream(&key, place, |stream| stream.group_mut(name)?.remove_consumer(consumer));
    if pending.is_some() {
        context.report_modified(&key);
        context.notify(EventClass::STREAM, "xgroup-delconsumer", &key);
    }
    context.reply.integer(pending.unwrap_or(0) as i64);
    Ok(())
}

pub(super) fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "XGROUP",
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Makes a group that has given out what is not behind the id. Options are:",
            "    * MKSTREAM",
            "      Makes an empty stream if the key is not there.",
            "    * ENTRIESREAD entries_read",
            "      Sets how many entries the group has read (for the server's own use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Makes a consumer of a group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Removes a consumer of a group.",
            "DESTROY <key> <groupname>",
            "    Removes a group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Sets the id that a group gave out last, and how many entries it has read.",
        ],
    );
    Ok(())
}
