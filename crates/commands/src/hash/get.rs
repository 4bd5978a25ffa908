//! Commands that read fields: HGET, HMGET, HGETALL and others.

use engine::{CommandError, Context};
use keyspace::{Field, PartElements};
use resp::Writer;

use super::fields::HashAccess;

/// Passes the field named by argument 2 to `reply`, if it exists.
fn reply_with_field(
    context: &mut Context<'_>,
    reply: impl FnOnce(&mut Writer<'_>, Option<Field<'_>>),
) -> Result<(), CommandError> {
    let (key, name, now) = (context.key(1)?, context.arg(2), context.field_expiry_cutoff());
    let found = context.read_hash(&key)?;
    let (table, out) = context.table_and_reply(&key);
    let field = found.and_then(|place| table.hash(place)?.get(name));
    reply(out, field.filter(|field| field.is_live_at(now)));
    Ok(())
}

pub(super) fn hget(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_with_field(context, |reply, field| match field {
        Some(field) => reply.bulk(field.value),
        None => reply.null(),
    })
}

pub(super) fn hexists(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_with_field(context, |reply, field| reply.integer(i64::from(field.is_some())))
}

pub(super) fn hstrlen(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_with_field(context, |reply, field| reply.integer(field.map_or(0, |field| field.value.len() as i64)))
}

pub(super) fn hmget(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, now, names) = (context.key(1)?, context.field_expiry_cutoff(), context.args.skip(2));
    let found = context.read_hash(&key)?;
    let (table, reply) = context.table_and_reply(&key);
    let hash = found.and_then(|place| table.hash(place));
    reply.array(names.len());
    for name in names.iter() {
        match hash.and_then(|hash| hash.get(name)).filter(|field| field.is_live_at(now)) {
            Some(field) => reply.bulk(field.value),
            None => reply.null(),
        }
    }
    Ok(())
}

pub(super) fn hlen(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    // As in Valkey, the count includes expired fields that are not deleted yet, so that HLEN stays O(1).
    let len = context.read_hash(&key)?.map_or(0, |place| context.hash_at(&key, place).len());
    context.reply.integer(len as i64);
    Ok(())
}

/// Replies with all fields. `write_header` writes the header from the number of fields, `write_field` writes one field.
fn reply_all(
    context: &mut Context<'_>,
    write_header: fn(&mut Writer<'_>, usize),
    write_field: fn(&mut Writer<'_>, Field<'_>),
) -> Result<(), CommandError> {
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let found = context.read_hash(&key)?;
    let Some((place, hash)) = found.and_then(|place| Some((place, context.table_ref(&key).hash(place)?)))
    else {
        write_header(&mut context.reply, 0);
        return Ok(());
    };
    let len = hash.live_len(now);
    if let Some(pinned) = context.pin_values(&[(key, place)]) {
        let reply = &mut context.reply;
        write_header(reply, len);
        pinned.visit_elements(|_, elements| {
            if let PartElements::Hash(fields) = elements {
                fields.for_each(&mut |field| {
                    if field.is_live_at(now) {
                        write_field(reply, field);
                    }
                });
            }
            !reply.is_over_limit()
        });
        return Ok(());
    }
    let (table, reply) = context.table_and_reply(&key);
    let Some(hash) = table.hash(place) else { return Ok(()) };
    write_header(reply, len);
    hash.for_each(&mut |field| {
        if field.is_live_at(now) {
            write_field(reply, field);
        }
    });
    Ok(())
}

pub(super) fn hgetall(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_all(
        context,
        |reply, len| reply.map(len),
        |reply, field| {
            reply.bulk(field.name);
            reply.bulk(field.value);
        },
    )
}

pub(super) fn hkeys(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_all(context, |reply, len| reply.array(len), |reply, field| reply.bulk(field.name))
}

pub(super) fn hvals(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_all(context, |reply, len| reply.array(len), |reply, field| reply.bulk(field.value))
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn field_read_commands_reply_with_value_or_null() {
        Client::new().check_replies(&[
            ("hset h a 1 b two", ":2"),
            ("hget h a", "$1|1"),
            ("hget h c", "$-1"),
            ("hget nosuch a", "$-1"),
            ("hmget h b c a b", "*4|$3|two|$-1|$1|1|$3|two"),
            ("hmget nosuch a b", "*2|$-1|$-1"),
            ("hexists h a", ":1"),
            ("hexists h c", ":0"),
            ("hexists nosuch a", ":0"),
            ("hstrlen h b", ":3"),
            ("hstrlen h c", ":0"),
            ("hstrlen nosuch a", ":0"),
            ("hlen h", ":2"),
            ("hlen nosuch", ":0"),
            ("hget h", "-ERR wrong number of arguments for 'hget' command"),
            ("hmget h", "-ERR wrong number of arguments for 'hmget' command"),
        ]);
    }

    #[test]
    fn hgetall_replies_with_map_in_resp3() {
        let mut client = Client::new();
        client.check_replies(&[
            ("hset h a 1 b two", ":2"),
            ("hgetall h", "*4|$1|a|$1|1|$1|b|$3|two"),
            ("hgetall nosuch", "*0"),
            ("hkeys h", "*2|$1|a|$1|b"),
            ("hvals h", "*2|$1|1|$3|two"),
            ("hkeys nosuch", "*0"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[
            ("hgetall h", "%2|$1|a|$1|1|$1|b|$3|two"),
            ("hgetall nosuch", "%0"),
            ("hvals h", "*2|$1|1|$3|two"),
            ("hget nosuch a", "_"),
        ]);
    }

    #[test]
    fn hash_commands_refuse_other_types() {
        let mut client = Client::new();
        client.check_replies(&[("set s 1", "+OK"), ("hset h f 1", ":1")]);
        for line in [
            "hget s f",
            "hmget s f",
            "hgetall s",
            "hkeys s",
            "hvals s",
            "hlen s",
            "hstrlen s f",
            "hexists s f",
            "hset s f 1",
            "hmset s f 1",
            "hsetnx s f 1",
            "hdel s f",
            "hincrby s f 1",
            "hincrbyfloat s f 1",
            "hrandfield s",
            "hscan s 0",
            "get h",
            "append h x",
            "strlen h",
            "getset h 1",
            "incr h",
            "setrange h 0 x",
            "getrange h 0 1",
            "getdel h",
            "getex h",
            "incrbyfloat h 1",
            "set h x get",
        ] {
            client.check_replies(&[(line, WRONG_TYPE)]);
        }
        client.check_replies(&[
            ("mget h s", "*2|$-1|$1|1"),
            ("type h", "+hash"),
            ("set h 1", "+OK"),
            ("get h", "$1|1"),
        ]);
    }

    #[test]
    fn encoding_follows_configured_thresholds() {
        let mut client = Client::new();
        client.check_replies(&[("hset h a 1", ":1"), ("object encoding h", "$8|listpack")]);
        client.call(&["hset", "h", "b", &"x".repeat(65)]);
        client.check_replies(&[("object encoding h", "$9|hashtable"), ("hdel h b", ":1")]);
        client.check_replies(&[("object encoding h", "$9|hashtable")]);
        for field in 0..513 {
            client.call(&["hset", "many", &format!("f{field}"), "v"]);
            let expected = if field < 512 { "$8|listpack" } else { "$9|hashtable" };
            client.check_replies(&[("object encoding many", expected)]);
        }
        let hash = keyspace::ListpackBounds { max_entries: 2, max_value_len: 3 };
        let limits = keyspace::EncodingLimits { hash, ..Default::default() };
        client.engine.settings.value_limits.set_encoding_limits(&limits);
        client.check_replies(&[
            ("hset small a 1 b 2", ":2"),
            ("object encoding small", "$8|listpack"),
            ("hset small c 1", ":1"),
            ("object encoding small", "$9|hashtable"),
            ("hset long abcd 1", ":1"),
            ("object encoding long", "$9|hashtable"),
        ]);
    }
}
