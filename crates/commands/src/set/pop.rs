//! Implements SPOP.
//!
//! The command is replicated as SREM of the popped members, or as a deletion of the key if no member is left.

use engine::{CommandError, Context, EventClass, LazyFreeReason, Random};
use keyspace::{EntryRef, Key, SetBuilder, SetRef};

use super::change::delete_if_empty;

/// The set is rebuilt from the remaining members if fewer than one in `REBUILD_FACTOR` members remain.
const REBUILD_FACTOR: usize = 5;
/// Number of members in each replicated SREM.
const MEMBERS_PER_SREM: usize = 1024;

/// Handles `SPOP key [count]`.
pub(super) fn spop(context: &mut Context<'_>) -> Result<(), CommandError> {
    match context.args.len() {
        2 => pop_one(context),
        3 => pop_many(context),
        _ => Err(CommandError::Syntax),
    }
}

fn pop_one(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let Some(place) = context.find_typed::<SetRef<'_>>(&key)? else {
        context.reply.null();
        return Ok(());
    };
    let (random, mut member) = (context.random_u64(), Vec::new());
    let place = context.table(&key).set_pop(place, &key, random, &mut member);
    context.report_modified(&key);
    context.notify(EventClass::SET, "spop", &key);
    context.log_effect(&[b"SREM", key.bytes(), &member]);
    delete_if_empty(context, &key, place);
    context.reply.bulk(&member);
    Ok(())
}

fn pop_many(context: &mut Context<'_>) -> Result<(), CommandError> {
    const MUST_BE_POSITIVE: CommandError = CommandError::text("ERR value is out of range, must be positive");
    let count =
        context.integer_arg(2).ok().and_then(|count| usize::try_from(count).ok()).ok_or(MUST_BE_POSITIVE)?;
    let key = context.key(1)?;
    let found = context.find_typed::<SetRef<'_>>(&key)?;
    let Some(place) = found.filter(|_| count > 0) else {
        context.reply.set(0);
        return Ok(());
    };
    let len = context.typed_value::<SetRef<'_>>(&key, place)?.len();
    if count >= len {
        pop_all(context, &key, place, len);
        return Ok(());
    }
    let popped = if (len - count).saturating_mul(REBUILD_FACTOR) > count {
        pop_one_by_one(context, &key, place, count)
    } else {
        rebuild_with_survivors(context, &key, place, len - count)
    };
    context.count_changes(count as u64 - 1);
    context.notify(EventClass::SET, "spop", &key);
    context.reply.set(count);
    for members in popped.chunks(MEMBERS_PER_SREM) {
        let mut effect = vec![&b"SREM"[..], key.bytes()];
        effect.extend(members.iter().map(Vec::as_slice));
        context.log_effect(&effect);
        members.iter().for_each(|member| context.reply.bulk(member));
    }
    Ok(())
}

/// Replies with all members and deletes the key.
fn pop_all(context: &mut Context<'_>, key: &Key<'_>, entry_ref: EntryRef, len: usize) {
    let (table, reply) = context.table_and_reply(key);
    reply.set(len);
    if let Some(set) = table.set(entry_ref) {
        set.for_each(&mut |member| reply.bulk(&member));
    }
    context.notify(EventClass::SET, "spop", key);
    context.delete(key, entry_ref);
    context.count_changes((len as u64).saturating_sub(1));
    context.notify(EventClass::GENERIC, "del", key);
    context.log_effect(&[
        context.engine.settings.lazy_free.deletion_command(LazyFreeReason::SERVER_DEL),
        key.bytes(),
    ]);
}

fn pop_one_by_one(
    context: &mut Context<'_>,
    key: &Key<'_>,
    mut entry_ref: EntryRef,
    count: usize,
) -> Vec<Vec<u8>> {
    let mut popped = Vec::with_capacity(count);
    for _ in 0..count {
        let (random, mut member) = (context.random_u64(), Vec::new());
        entry_ref = context.table(key).set_pop(entry_ref, key, random, &mut member);
        popped.push(member);
    }
    context.report_modified(key);
    popped
}

/// Rebuilds the set from `survivors` random members in a single scan, by selection sampling. Returns the other members.
fn rebuild_with_survivors(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    survivors: usize,
) -> Vec<Vec<u8>> {
    let mut random = Random::new(context.random_u64());
    let (mut new, mut popped) =
        (SetBuilder::new(context.engine.settings.value_limits.bounds_of_sets()), Vec::new());
    let table = context.table_ref(key);
    let expiry = table.expiry(entry_ref);
    if let Some(set) = table.set(entry_ref) {
        let (mut left, mut missing) = (set.len() as u64, survivors as u64);
        set.for_each(&mut |member| {
            if missing > 0 && random.next_u64() % left < missing {
                new.add(&member);
                missing -= 1;
            } else {
                popped.push(member.to_vec());
            }
            left -= 1;
        });
    }
    context.put_value(key, Some(entry_ref), new.into_value(), expiry);
    popped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::testing::Client;

    /// For any count and any set, exactly `count` members are removed, the other members stay, and the removal is
    /// replicated.
    #[test]
    fn random_pops_remove_exact_count_and_are_replicated() {
        for (size, prefix) in [(1, ""), (20, ""), (20, "m"), (3000, ""), (3000, "m")] {
            for count in [1, 2, 15, 19, 20, 500, 1500, 2950] {
                let mut client = Client::with_recording_log();
                let all: BTreeSet<String> = (0..size).map(|number| format!("{prefix}{number}")).collect();
                let words = ["sadd", "s"].into_iter().chain(all.iter().map(String::as_str));
                client.call(&words.collect::<Vec<_>>());
                client.check_replies(&[("pexpire s 1000", ":1")]);
                let reply = client.call(&["spop", "s", &count.to_string()]);
                let text = |value: &resp::Value| {
                    String::from_utf8(value.as_bytes().expect("a member").to_vec()).unwrap()
                };
                let popped: BTreeSet<String> = reply.as_array().expect("a list").iter().map(text).collect();
                assert_eq!(popped.len(), count.min(size));
                let left = client.call(&["smembers", "s"]);
                let left: BTreeSet<String> = left.as_array().expect("a list").iter().map(text).collect();
                assert!(left.is_disjoint(&popped) && left.union(&popped).eq(&all));
                let log = client.logged_commands();
                if left.is_empty() {
                    assert_eq!(log[2..], ["0 UNLINK s"]);
                    continue;
                }
                client.check_replies(&[("pttl s", ":1000")]);
                // Several SREM commands are replicated as one transaction.
                let logged = log[2..].iter().filter(|line| !["0 MULTI", "0 EXEC"].contains(&line.as_str()));
                let logged = logged.flat_map(|line| {
                    line.strip_prefix("0 SREM s ").expect("members that went").split(' ').map(str::to_owned)
                });
                assert_eq!(logged.collect::<BTreeSet<_>>(), popped);
            }
        }
    }

    #[test]
    fn spop_reply_depends_on_count() {
        let range = "-ERR value is out of range, must be positive";
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("sadd s a", ":1"),
            ("spop s x", range),
            ("spop s -1", range),
            ("spop nosuch -1", range),
            ("spop s 1 2", "-ERR syntax error"),
            ("spop s 0", "*0"),
            ("spop nosuch", "$-1"),
            ("spop nosuch 2", "*0"),
            ("spop s", "$1|a"),
            ("exists s", ":0"),
            ("sadd s a", ":1"),
            ("spop s 9223372036854775807", "*1|$1|a"),
            ("exists s", ":0"),
        ]);
        assert_eq!(client.logged_commands(), ["0 sadd s a", "0 SREM s a", "0 sadd s a", "0 UNLINK s"]);
    }

    /// As in Redis, a set that one SPOP leaves with few members returns to a compact encoding.
    #[test]
    fn pop_restores_compact_encoding() {
        let mut client = Client::new();
        for number in 0..600 {
            client.call(&["sadd", "s", &number.to_string()]);
        }
        client.check_replies(&[("object encoding s", "$9|hashtable")]);
        client.call(&["spop", "s", "590"]);
        client.check_replies(&[("object encoding s", "$6|intset"), ("scard s", ":10")]);
    }
}
