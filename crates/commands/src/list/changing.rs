//! LSET, LINSERT, LREM and LTRIM: changes to existing lists.

use engine::{CommandError, CommandOrigin, Context, EventClass};
use keyspace::{EntryRef, Key, ListEnd, ListItem};

use super::elements::ListAccess;
use super::options::{resolve_index, resolve_range};

pub(super) fn lset(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let Some(place) = context.find_list(&key)? else { return Err(CommandError::NoSuchKey) };
    let (wanted, element) = (context.integer_arg(2)?, context.arg(3));
    let Some(index) = resolve_index(wanted, context.list_at(&key, place).len()) else {
        return Err(CommandError::OutOfRange);
    };
    let limit = context.engine.settings.value_limits.list_limit();
    context.table(&key).list_set(place, &key, index, element, limit);
    context.report_modified(&key);
    context.notify(EventClass::LIST, "lset", &key);
    context.reply.ok();
    Ok(())
}

/// Handles `LINSERT key BEFORE | AFTER pivot element`.
pub(super) fn linsert(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let (word, element) = (context.arg(2), context.arg(4));
    let behind = match () {
        () if word.eq_ignore_ascii_case(b"before") => 0,
        () if word.eq_ignore_ascii_case(b"after") => 1,
        () => return Err(CommandError::Syntax),
    };
    let Some(place) = context.find_list(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let (list, pivot) = (context.list_at(&key, place), ListItem::from(context.arg(3)));
    let (mut at, len) = (0, list.len());
    list.visit_from(0, &mut |item| {
        at += usize::from(item != pivot);
        item != pivot
    });
    if at == len {
        context.reply.integer(-1);
        return Ok(());
    }
    let limit = context.engine.settings.value_limits.list_limit();
    context.table(&key).list_insert(place, &key, at + behind, element, limit);
    context.report_modified(&key);
    context.notify(EventClass::LIST, "linsert", &key);
    context.reply.integer(len as i64 + 1);
    Ok(())
}

/// Handles `LREM key count element`.
pub(super) fn lrem(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, count, element) = (context.key(1)?, context.integer_arg(2)?, context.arg(3));
    // Reply with an error only to clients, because a Redis 7.0 master may replicate a command with this count.
    if count == i64::MIN && context.session.origin() == CommandOrigin::Client {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let Some(place) = context.find_list(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let limit = context.engine.settings.value_limits.list_limit();
    let (place, removed) = context.table(&key).list_remove(place, &key, element, count, limit);
    if removed > 0 {
        report_removal(context, &key, place, "lrem");
        context.count_changes(removed as u64 - 1);
    }
    context.reply.integer(removed as i64);
    Ok(())
}

pub(super) fn ltrim(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, start, stop) = (context.key(1)?, context.integer_arg(2)?, context.integer_arg(3)?);
    if let Some(mut place) = context.find_list(&key)? {
        let len = context.list_at(&key, place).len();
        let kept = resolve_range(start, stop, len);
        if kept.is_empty() {
            context.delete(&key, place);
            context.count_changes(len as u64 - 1);
            context.notify(EventClass::LIST, "ltrim", &key);
            context.notify(EventClass::GENERIC, "del", &key);
        } else {
            if kept.end < len {
                place = context.remove_end_elements(&key, place, ListEnd::Tail, len - kept.end);
            }
            if kept.start > 0 {
                context.remove_end_elements(&key, place, ListEnd::Head, kept.start);
            }
            if kept.len() < len {
                context.report_changes(&key, len - kept.len());
            }
            context.notify(EventClass::LIST, "ltrim", &key);
        }
    }
    context.reply.ok();
    Ok(())
}

/// Reports the removal of elements from the list at `entry_ref`, and deletes the key if the list is empty.
fn report_removal(context: &mut Context<'_>, key: &Key<'_>, entry_ref: EntryRef, event: &str) {
    let is_empty = context.list_at(key, entry_ref).is_empty();
    if is_empty {
        context.delete(key, entry_ref);
    } else {
        context.report_modified(key);
    }
    context.notify(EventClass::LIST, event, key);
    if is_empty {
        context.notify(EventClass::GENERIC, "del", key);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn lset_and_linsert_change_elements() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("lset l 0 a", "-ERR no such key"),
            ("linsert l before a b", ":0"),
            ("rpush l a b c", ":3"),
            ("lset l 0 1", "+OK"),
            ("lset l -1 3", "+OK"),
            ("lset l 3 4", "-ERR index out of range"),
            ("lset l -4 4", "-ERR index out of range"),
            ("lset l x 4", "-ERR value is not an integer or out of range"),
            ("linsert l before 1 0", ":4"),
            ("linsert l AFTER 3 4", ":5"),
            ("linsert l after b 2", ":6"),
            ("linsert l before nosuch 2", ":-1"),
            ("linsert l at b 2", "-ERR syntax error"),
            ("lrange l 0 -1", "*6|$1|0|$1|1|$1|b|$1|2|$1|3|$1|4"),
            ("set s 1", "+OK"),
            ("lset s x 1", WRONG_TYPE),
            ("linsert s before a b", WRONG_TYPE),
        ]);
        let logged = [
            "0 rpush l a b c",
            "0 lset l 0 1",
            "0 lset l -1 3",
            "0 linsert l before 1 0",
            "0 linsert l AFTER 3 4",
            "0 linsert l after b 2",
            "0 set s 1",
        ];
        assert_eq!(client.logged_commands(), logged);
    }

    #[test]
    fn lrem_and_ltrim_remove_elements() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("lrem l 0 a", ":0"),
            ("ltrim l 0 1", "+OK"),
            ("rpush l a b a c a 7 a", ":7"),
            ("lrem l 1 a", ":1"),
            ("lrem l -2 a", ":2"),
            ("lrange l 0 -1", "*4|$1|b|$1|a|$1|c|$1|7"),
            ("lrem l 0 nosuch", ":0"),
            ("lrem l 0 7", ":1"),
            ("lrem l x 7", "-ERR value is not an integer or out of range"),
            ("ltrim l 0 -1", "+OK"),
            ("ltrim l 1 -2", "+OK"),
            ("lrange l 0 -1", "*1|$1|a"),
            (
                "lrem l -9223372036854775808 a",
                "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
            ),
            ("lrem l -9223372036854775807 a", ":1"),
            ("exists l", ":0"),
            ("rpush l 1 2 3", ":3"),
            ("ltrim l 2 1", "+OK"),
            ("exists l", ":0"),
            ("set s 1", "+OK"),
            ("lrem s 0 1", WRONG_TYPE),
            ("ltrim s 0 1", WRONG_TYPE),
            ("ltrim s x 1", "-ERR value is not an integer or out of range"),
        ]);
        let logged = [
            "0 rpush l a b a c a 7 a",
            "0 lrem l 1 a",
            "0 lrem l -2 a",
            "0 lrem l 0 7",
            "0 ltrim l 1 -2",
            "0 lrem l -9223372036854775807 a",
            "0 rpush l 1 2 3",
            "0 ltrim l 2 1",
            "0 set s 1",
        ];
        assert_eq!(client.logged_commands(), logged);
    }

    /// The encoding shown by OBJECT ENCODING follows `list-max-listpack-size` when the list grows and shrinks.
    #[test]
    fn list_encoding_follows_size() {
        let mut client = Client::new();
        let element = "x".repeat(100);
        let push: Vec<&str> = ["rpush", "l"].into_iter().chain([element.as_str(); 79]).collect();
        client.call(&push);
        client.check_replies(&[("object encoding l", "$8|listpack")]);
        client.call(&["rpush", "l", &element]);
        client.check_replies(&[("object encoding l", "$9|quicklist"), ("ltrim l 0 39", "+OK")]);
        client
            .check_replies(&[("object encoding l", "$9|quicklist"), ("lpop l", &format!("$100|{element}"))]);
        client.check_replies(&[("object encoding l", "$8|listpack")]);
        client.engine.settings.value_limits.set_encoding_limits(&keyspace::EncodingLimits {
            list: keyspace::ListLimit(4),
            ..keyspace::EncodingLimits::default()
        });
        client.check_replies(&[
            ("rpush few 1 2 3 4", ":4"),
            ("object encoding few", "$8|listpack"),
            ("rpush few 5", ":5"),
            ("object encoding few", "$9|quicklist"),
            ("lpop few 2", "*2|$1|1|$1|2"),
            ("object encoding few", "$9|quicklist"),
            ("rpop few", "$1|5"),
            ("object encoding few", "$8|listpack"),
            ("type few", "+list"),
        ]);
    }

    /// Applies all operations to lists of various sizes and to a `Vec`, and compares the results.
    #[test]
    fn list_matches_vec_at_any_size() {
        let mut client = Client::new();
        for (size, length) in [(1usize, 1usize), (100, 3), (5000, 20), (60, 5000)] {
            let mut twin: Vec<String> = (0..size).map(|n| format!("{n}{}", "x".repeat(length))).collect();
            let words: Vec<&str> =
                ["rpush", "l"].into_iter().chain(twin.iter().map(String::as_str)).collect();
            client.call(&words);
            let middle = size / 2;
            client.call(&["lset", "l", &middle.to_string(), "pivot"]);
            twin[middle] = "pivot".to_owned();
            client.call(&["linsert", "l", "before", "pivot", "5"]);
            twin.insert(middle, "5".to_owned());
            client.call(&["lpush", "l", "first", "5"]);
            twin.splice(0..0, ["5".to_owned(), "first".to_owned()]);
            let all = client.call(&["lrange", "l", "0", "-1"]);
            let all: Vec<&[u8]> = all.as_array().unwrap().iter().map(|v| v.as_bytes().unwrap()).collect();
            assert!(all.into_iter().eq(twin.iter().map(String::as_bytes)));
            assert_eq!(client.call(&["lrem", "l", "0", "5"]), resp::Value::Integer(2));
            twin.retain(|element| element != "5");
            for index in [0, middle, twin.len() - 1] {
                let found = client.call(&["lindex", "l", &index.to_string()]);
                assert_eq!(found.as_bytes(), Some(twin[index].as_bytes()));
            }
            let digest = client.call(&["debug", "digest-value", "l"]);
            client.call(&["copy", "l", "copied"]);
            assert_eq!(client.call(&["debug", "digest-value", "copied"]), digest);
            assert_eq!(client.call(&["ltrim", "l", "1", "-2"]), resp::Value::Simple("OK".into()));
            let left = twin.len().saturating_sub(2);
            assert_eq!(client.call(&["llen", "l"]), resp::Value::Integer(left as i64));
            assert_eq!(client.call(&["llen", "copied"]), resp::Value::Integer(twin.len() as i64));
            client.call(&["del", "l", "copied"]);
        }
    }
}
