//! Implements HSET, HMSET, HSETNX and HDEL.

use engine::{CommandError, Context, EventClass};
use keyspace::{Field, Key};

use super::fields::HashAccess;

pub(super) fn hset(context: &mut Context<'_>) -> Result<(), CommandError> {
    let new = set_pairs(context, "hset")?;
    context.reply.integer(new);
    Ok(())
}

pub(super) fn hmset(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_pairs(context, "hmset")?;
    context.reply.ok();
    Ok(())
}

/// Sets the field-value pairs and returns the number of new fields.
fn set_pairs(context: &mut Context<'_>, name: &'static str) -> Result<i64, CommandError> {
    if !context.args.len().is_multiple_of(2) {
        return Err(CommandError::WrongArity(name.to_owned()));
    }
    let key = context.key(1)?;
    let found = context.find_hash(&key)?;
    let args = context.args;
    let word = |index| args.get(index).expect("words up to the last, which come in pairs");
    let pairs = (2..args.len()).step_by(2);
    let fields = pairs.map(|index| Field { name: word(index), value: word(index + 1), expiry: None });
    let set = context.set_fields(&key, found, fields);
    context.report_changes(&key, args.len() / 2 - 1);
    context.notify_expired_fields_replaced(&key, set.expired_count > 0);
    context.notify(EventClass::HASH, "hset", &key);
    Ok((set.missing_count + set.expired_count) as i64)
}

pub(super) fn hsetnx(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let (name, value) = (context.arg(2), context.arg(3));
    let found = context.find_hash(&key)?;
    let there = found.and_then(|place| context.hash_at(&key, place).get(name));
    if there.is_some_and(|field| field.is_live_at(now)) {
        context.reply.integer(0);
        return Ok(());
    }
    let hidden = there.is_some();
    context.set_field(&key, found, Field { name, value, expiry: None });
    context.report_modified(&key);
    context.notify_expired_fields_replaced(&key, hidden);
    context.notify(EventClass::HASH, "hset", &key);
    if hidden {
        log_hset(context, &key, name, value);
    }
    context.reply.integer(1);
    Ok(())
}

/// Replicates the field's new value as HSET.
pub(super) fn log_hset(context: &mut Context<'_>, key: &Key<'_>, name: &[u8], value: &[u8]) {
    context.log_effect(&[b"HSET", key.bytes(), name, value]);
}

pub(super) fn hdel(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, now) = (context.key(1)?, context.field_expiry_cutoff());
    let Some(mut place) = context.find_hash(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let mut deleted = 0;
    for index in 2..context.args.len() {
        let name = context.arg(index);
        // An expired field counts as missing here. The expiry cycle deletes it later and then sends an event.
        if context.hash_at(&key, place).get(name).is_none_or(|field| !field.is_live_at(now)) {
            continue;
        }
        deleted += 1;
        place = context.table(&key).hash_remove(place, &key, name).0;
        if context.hash_at(&key, place).is_empty() {
            break;
        }
    }
    if deleted > 0 {
        context.report_changes(&key, deleted as usize);
        context.notify(EventClass::HASH, "hdel", &key);
        context.delete_if_empty(&key, place);
    }
    context.reply.integer(deleted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn fields_are_set_and_deleted() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("hset h a 1 b 2", ":2"),
            ("hset h a 3 c 4 c 5", ":1"),
            ("hmset h d 6", "+OK"),
            ("hsetnx h d 7", ":0"),
            ("hsetnx h e 7", ":1"),
            ("hgetall h", "*10|$1|a|$1|3|$1|b|$1|2|$1|c|$1|5|$1|d|$1|6|$1|e|$1|7"),
            ("hdel h a nosuch b a", ":2"),
            ("hdel h nosuch", ":0"),
            ("hdel nosuch a", ":0"),
            ("hdel h c d e f", ":3"),
            ("exists h", ":0"),
            ("hsetnx h a 1", ":1"),
            ("hset h a", "-ERR wrong number of arguments for 'hset' command"),
            ("hset h a 1 b", "-ERR wrong number of arguments for 'hset' command"),
            ("hmset h a 1 b", "-ERR wrong number of arguments for 'hmset' command"),
            ("hsetnx h a 1 b", "-ERR wrong number of arguments for 'hsetnx' command"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 hset h a 1 b 2",
                "0 hset h a 3 c 4 c 5",
                "0 hmset h d 6",
                "0 hsetnx h e 7",
                "0 hdel h a nosuch b a",
                "0 hdel h c d e f",
                "0 hsetnx h a 1",
            ]
        );
    }

    #[test]
    fn hash_keeps_expiry() {
        let mut client = Client::new();
        client.check_replies(&[
            ("hset h a 1", ":1"),
            ("pexpire h 100", ":1"),
            ("hset h b 2", ":1"),
            ("hincrby h a 1", ":2"),
            ("pttl h", ":100"),
        ]);
        client.now.0 += 100;
        client.check_replies(&[
            ("hget h a", "$-1"),
            ("hset h a 1", ":1"),
            ("pttl h", ":-1"),
            ("hlen h", ":1"),
        ]);
    }

    #[test]
    fn hash_supports_any_size() {
        let mut client = Client::new();
        for size in [1usize, 100, 5000] {
            let names: Vec<String> = (0..size).map(|n| format!("field:{n}")).collect();
            let mut words = vec!["hset", "h"];
            words.extend(names.iter().flat_map(|name| [name.as_str(), "value"]));
            client.call(&words);
            assert_eq!(client.call(&["hlen", "h"]), resp::Value::Integer(size as i64));
            assert_eq!(client.call(&["hget", "h", "field:0"]).as_bytes(), Some(&b"value"[..]));
            words = vec!["hdel", "h"];
            words.extend(names.iter().map(String::as_str));
            assert_eq!(client.call(&words), resp::Value::Integer(size as i64));
            client.check_replies(&[("exists h", ":0")]);
        }
    }

    /// Regression test: overwriting an expired field sent no `hexpired` event, and HDEL of an expired field sent an
    /// `hdel` event although it deleted nothing.
    #[test]
    fn overwriting_expired_field_sends_event() {
        for (line, events) in [
            ("hset h f 1 g 2", "hexpired h, hset h"),
            ("hmset h g 2", "hexpired h, hset h"),
            ("hset h other 2", "hset h"),
            ("hsetnx h f 1", "hexpired h, hset h"),
            ("hincrby h f 1", "hexpired h, hincrby h"),
            ("hincrbyfloat h f 1", "hexpired h, hincrbyfloat h"),
            ("hsetex h ex 10 fields 1 f 1", "hexpired h, hset h, hexpire h"),
            ("hsetex h keepttl fields 2 f 1 g 2", "hexpired h, hset h"),
            ("hsetex h fxx fields 1 f 1", ""),
            ("hdel h f g", ""),
        ] {
            let mut client = Client::new();
            client.check_replies(&[("hset h f 1 g 1", ":2"), ("hpexpire h 1 fields 2 f g", "*2|:1|:1")]);
            client.now.0 += 1;
            client.check_events(&[(line, events)]);
        }
    }

    #[test]
    fn commands_send_keyspace_events() {
        Client::new().check_events(&[
            ("hset h a 1 b 2", "hset h"),
            ("hset h a 1", "hset h"),
            ("hmset h a 2", "hset h"),
            ("hsetnx h a 1", ""),
            ("hsetnx h c 1", "hset h"),
            ("hincrby h n 1", "hincrby h"),
            ("hincrbyfloat h n 1.5", "hincrbyfloat h"),
            ("hdel h nosuch", ""),
            ("hdel h n", "hdel h"),
            ("hdel h a b c", "hdel h, del h"),
            ("hset h a 1 b 2 c 3 d 4", "hset h"),
            ("hexpire h 100 fields 4 a b c d", "hexpire h"),
            ("hexpire h 100 nx fields 1 a", ""),
            ("hpersist h fields 1 a", "hpersist h"),
            ("hpersist h fields 1 a", ""),
            ("hexpireat h 1 fields 1 a", "hexpired h"),
            ("hgetex h ex 10 fields 1 b", "hexpire h"),
            ("hgetex h persist fields 1 b", "hpersist h"),
            ("hgetex h fields 1 b", ""),
            ("hgetex h exat 1 fields 3 b c d", "hexpired h, del h"),
            ("hsetex h ex 10 fields 1 a 1", "hset h, hexpire h"),
            ("hsetex h keepttl fields 1 a 1", "hset h"),
            ("hsetex h fnx fields 1 a 1", ""),
            ("hsetex h exat 1 fields 1 a 1", "hset h, hexpire h, hexpired h, del h"),
            ("hset h a 1", "hset h"),
            ("hgetdel h fields 1 x", ""),
            ("hgetdel h fields 1 a", "hdel h, del h"),
        ]);
    }
}
