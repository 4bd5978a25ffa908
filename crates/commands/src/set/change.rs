//! Implements SADD, SREM and SMOVE.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key, Kind, PackedValue, SetRef};

/// Deletes the set at `entry_ref` if it is empty, and sends the `del` event.
pub(super) fn delete_if_empty(context: &mut Context<'_>, key: &Key<'_>, entry_ref: EntryRef) {
    if context.table_ref(key).set(entry_ref).is_some_and(|set| set.is_empty()) {
        let dropped = context.table(key).remove(entry_ref, key);
        context.discard(dropped);
        context.notify(EventClass::GENERIC, "del", key);
    }
}

/// Adds the members from argument `from` on to the set at `found`, or creates the set. Returns the number of new
/// members.
fn add_members(context: &mut Context<'_>, key: &Key<'_>, found: Option<EntryRef>, from: usize) -> usize {
    let (bounds, args) = (context.engine.settings.value_limits.bounds_of_sets(), context.args);
    let members = (from..args.len()).map(|index| &args[index]);
    let table = context.table(key);
    let place = found.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Set), None));
    table.set_add_all(place, key, members, bounds).1
}

pub(super) fn sadd(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_typed::<SetRef<'_>>(&key)?;
    let added = add_members(context, &key, found, 2);
    if added > 0 {
        context.report_changes(&key, added);
        context.notify(EventClass::SET, "sadd", &key);
    }
    context.reply.integer(added as i64);
    Ok(())
}

pub(super) fn srem(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let Some(mut place) = context.find_typed::<SetRef<'_>>(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let (args, mut removed) = (context.args, 0);
    for index in 2..args.len() {
        let table = context.table(&key);
        let (set, found) = table.set_remove(place, &key, &args[index]);
        place = set;
        removed += usize::from(found);
        if found && table.set(place).is_some_and(|set| set.is_empty()) {
            break;
        }
    }
    if removed > 0 {
        context.report_changes(&key, removed);
        context.notify(EventClass::SET, "srem", &key);
        delete_if_empty(context, &key, place);
    }
    context.reply.integer(removed as i64);
    Ok(())
}

/// Handles `SMOVE source destination member`.
pub(super) fn smove(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (from, to, member) = (context.key(1)?, context.key(2)?, context.arg(3));
    let moved = move_member(context, &from, &to, member)?;
    context.reply.integer(i64::from(moved));
    Ok(())
}

fn move_member(
    context: &mut Context<'_>,
    from: &Key<'_>,
    to: &Key<'_>,
    member: &[u8],
) -> Result<bool, CommandError> {
    if context.find_typed::<SetRef<'_>>(from)?.is_none() {
        return Ok(false);
    }
    context.find_typed::<SetRef<'_>>(to)?;
    // Look the source up again, because both keys may share a table, and reading the target may have deleted it as
    // expired and moved the source.
    let source = context.find(from).expect("it was found above");
    if from.bytes() == to.bytes() {
        return Ok(context.typed_value::<SetRef<'_>>(from, source)?.contains(member));
    }
    let (source, removed) = context.table(from).set_remove(source, from, member);
    if !removed {
        return Ok(false);
    }
    context.report_modified(from);
    context.notify(EventClass::SET, "srem", from);
    delete_if_empty(context, from, source);
    let target = context.find(to);
    if add_members(context, to, target, 3) > 0 {
        context.report_modified(to);
        context.notify(EventClass::SET, "sadd", to);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn members_are_added_and_removed() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("sadd s a b", ":2"),
            ("sadd s a c c", ":1"),
            ("sadd s a", ":0"),
            ("scard s", ":3"),
            ("srem s a nosuch b a", ":2"),
            ("srem s nosuch", ":0"),
            ("srem nosuch a", ":0"),
            ("srem s c d", ":1"),
            ("exists s", ":0"),
            ("sadd s", "-ERR wrong number of arguments for 'sadd' command"),
            ("srem s", "-ERR wrong number of arguments for 'srem' command"),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 sadd s a b", "0 sadd s a c c", "0 srem s a nosuch b a", "0 srem s c d"]
        );
    }

    #[test]
    fn smove_moves_member_between_sets() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("sadd a x y", ":2"),
            ("smove a b x", ":1"),
            ("smove a b x", ":0"),
            ("smove nosuch b x", ":0"),
            ("smembers b", "*1|$1|x"),
            ("smove a a y", ":1"),
            ("smove a a z", ":0"),
            ("sadd b y", ":1"),
            ("smove a b y", ":1"),
            ("exists a", ":0"),
            ("scard b", ":2"),
            ("set s 1", "+OK"),
            ("smove nosuch s x", ":0"),
            ("smove b s x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("smove s b x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
        let log = ["0 sadd a x y", "0 smove a b x", "0 sadd b y", "0 smove a b y", "0 set s 1"];
        assert_eq!(client.logged_commands(), log);
    }

    /// Regression test: SMOVE failed if the target set was in the same slot and had expired, because its removal moved
    /// the source's entry.
    #[test]
    fn smove_handles_expired_target() {
        let mut client = Client::new();
        for round in 0..50 {
            for number in 0..20 {
                client.call(&["sadd", &format!("{{t}}{number}"), &format!("member {round}")]);
            }
            client.call(&["sadd", "{t}target", "old"]);
            client.call(&["pexpire", "{t}target", "5"]);
            client.now.0 += 10;
            client.check_replies(&[
                ("sadd {t}source new other", ":2"),
                ("smove {t}source {t}target new", ":1"),
            ]);
            client.check_replies(&[("smembers {t}target", "*1|$3|new"), ("del {t}source {t}target", ":2")]);
        }
    }

    #[test]
    fn set_keeps_expiry() {
        let mut client = Client::new();
        client.check_replies(&[
            ("sadd s a", ":1"),
            ("pexpire s 100", ":1"),
            ("sadd s b", ":1"),
            ("pttl s", ":100"),
        ]);
        client.now.0 += 100;
        client.check_replies(&[
            ("smembers s", "*0"),
            ("sadd s a", ":1"),
            ("pttl s", ":-1"),
            ("scard s", ":1"),
        ]);
    }

    #[test]
    fn sets_support_any_size_of_set_and_member() {
        let mut client = Client::new();
        for size in [1usize, 100, 600, 5000] {
            for prefix in ["member:", ""] {
                let names: Vec<String> = (0..size).map(|n| format!("{prefix}{n}")).collect();
                let words = |name| [name, "s"].into_iter().chain(names.iter().map(String::as_str));
                client.call(&words("sadd").collect::<Vec<_>>());
                assert_eq!(client.call(&["scard", "s"]), resp::Value::Integer(size as i64));
                assert_eq!(client.call(&["sismember", "s", &names[size / 2]]), resp::Value::Integer(1));
                assert_eq!(
                    client.call(&words("srem").collect::<Vec<_>>()),
                    resp::Value::Integer(size as i64)
                );
                client.check_replies(&[("exists s", ":0")]);
            }
        }
        let long = "x".repeat(1 << 20);
        for _ in 0..2 {
            client.call(&["sadd", "s", &long, "short", ""]);
            assert_eq!(client.call(&["sismember", "s", &long]), resp::Value::Integer(1));
            client.check_replies(&[("sismember s \"\"", ":1"), ("scard s", ":3")]);
        }
        assert_eq!(client.call(&["srem", "s", &long]), resp::Value::Integer(1));
        client.check_replies(&[("scard s", ":2")]);
    }

    #[test]
    fn encoding_follows_configured_thresholds() {
        let mut client = Client::new();
        let names = ["$6|intset", "$8|listpack", "$9|hashtable"];
        client.check_replies(&[
            ("sadd s 1 2 3", ":3"),
            ("object encoding s", names[0]),
            ("sadd s a", ":1"),
            ("object encoding s", names[1]),
            ("srem s a", ":1"),
            ("object encoding s", names[1]),
        ]);
        client.call(&["sadd", "s", &"x".repeat(65)]);
        client.check_replies(&[("object encoding s", names[2]), ("sadd t a", ":1"), ("sadd i 1", ":1")]);
        for number in 0..513 {
            client.call(&["sadd", "many", &number.to_string()]);
            client.call(&["sadd", "strings", &format!("m{number}")]);
            client.check_replies(&[
                ("object encoding many", names[if number < 512 { 0 } else { 2 }]),
                ("object encoding strings", names[if number < 128 { 1 } else { 2 }]),
            ]);
        }
        // The encoding depends on the number of arguments, even if the members already exist.
        client.run_to_text(&format!("sadd t{}", " a".repeat(129)));
        client.run_to_text(&format!("sadd i{}", " 1".repeat(513)));
        client.check_replies(&[("object encoding t", names[2]), ("object encoding i", names[2])]);
        let listpack = keyspace::ListpackBounds { max_entries: 3, max_value_len: 5 };
        let set = keyspace::SetBounds { max_intset_entries: 2, listpack };
        client
            .engine
            .settings
            .value_limits
            .set_encoding_limits(&keyspace::EncodingLimits { set, ..Default::default() });
        client.check_replies(&[
            ("sadd a 1 2", ":2"),
            ("object encoding a", names[0]),
            ("sadd a 3", ":1"),
            ("object encoding a", names[2]),
            ("sadd b 100000 x", ":2"),
            ("object encoding b", names[2]),
            ("sadd c 10000 x", ":2"),
            ("object encoding c", names[1]),
            ("sadd c y z", ":2"),
            ("object encoding c", names[2]),
        ]);
    }

    #[test]
    fn set_commands_send_keyspace_events() {
        let mut client = Client::new();
        client.check_events(&[
            ("sadd s a b", "sadd s"),
            ("sadd s a", ""),
            ("srem s a x", "srem s"),
            ("smove s t b", "srem s, del s, sadd t"),
            ("srem t b", "srem t, del t"),
            ("sadd s 1 2 3 4 5", "sadd s"),
            ("sadd t 3 4", "sadd t"),
            ("spop s 0", ""),
            ("spop t", "spop t"),
            ("spop t", "spop t, del t"),
            ("spop s 2", "spop s"),
            ("sinterstore t s s", "sinterstore t"),
            ("sunionstore t s", "sunionstore t"),
            ("sdiffstore t s", "sdiffstore t"),
            ("sdiffstore t s s", "del t"),
            ("sdiffstore t s s", ""),
            ("spop s 10", "spop s, del s"),
        ]);
    }
}
