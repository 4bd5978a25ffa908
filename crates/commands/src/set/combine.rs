//! SINTER, SUNION, SDIFF and their variants.

use engine::{CommandError, Context, EventClass};
use keyspace::{Keyspace, SetBuilder, SetMember, SetRef};
use smallvec::SmallVec;

use super::sources::{ResolvedSets, SourceSets};
use crate::scanning::BulkStringCollector;

/// Number of members whose lookups are prefetched together.
const PREFETCH_BATCH: usize = 64;

#[derive(Clone, Copy)]
enum SetOperation {
    Inter,
    Union,
    Diff,
}

pub(super) fn sinter(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_result(context, SetOperation::Inter)
}

pub(super) fn sunion(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_result(context, SetOperation::Union)
}

pub(super) fn sdiff(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_result(context, SetOperation::Diff)
}

pub(super) fn sinterstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    store_result(context, SetOperation::Inter, "sinterstore")
}

pub(super) fn sunionstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    store_result(context, SetOperation::Union, "sunionstore")
}

pub(super) fn sdiffstore(context: &mut Context<'_>) -> Result<(), CommandError> {
    store_result(context, SetOperation::Diff, "sdiffstore")
}

/// Handles SINTER, SUNION and SDIFF: replies with the result.
fn reply_result(context: &mut Context<'_>, operation: SetOperation) -> Result<(), CommandError> {
    let sources = SourceSets::find_sources(context, 1..context.args.len())?;
    let (bounds, db) = (context.engine.settings.value_limits.bounds_of_sets(), context.session.db());
    if matches!(operation, SetOperation::Union)
        && let Some(found) = pinned_union(context, &sources)
    {
        found.write_set_reply(&mut context.reply);
        return Ok(());
    }
    let sets = sources.resolve_sets(&context.slots, db);
    let mut found = BulkStringCollector::default();
    let keyspace = &context.engine.keyspace;
    operation.visit_result(keyspace, &sets, SetBuilder::new(bounds), &mut |member| found.push(&member));
    found.write_set_reply(&mut context.reply);
    Ok(())
}

/// Handles SINTERSTORE, SUNIONSTORE and SDIFFSTORE: stores the result.
fn store_result(context: &mut Context<'_>, operation: SetOperation, event: &str) -> Result<(), CommandError> {
    let sources = SourceSets::find_sources(context, 2..context.args.len())?;
    let (bounds, db) = (context.engine.settings.value_limits.bounds_of_sets(), context.session.db());
    let sets = sources.resolve_sets(&context.slots, db);
    let made = operation.build_result(&context.engine.keyspace, &sets, SetBuilder::new(bounds));
    drop(sets);
    let (key, len) = (context.key(1)?, made.as_ref().len());
    let found = context.find(&key);
    if len > 0 {
        context.put_value(&key, found, made.into_value(), None);
        context.notify(EventClass::SET, event, &key);
    } else if let Some(place) = found {
        context.delete(&key, place);
        context.notify(EventClass::GENERIC, "del", &key);
    }
    context.reply.integer(len as i64);
    Ok(())
}

impl SetOperation {
    /// Visits each member of the result once. `scratch` is an empty set in which intermediate results may be built.
    fn visit_result(
        self,
        keyspace: &Keyspace,
        sets: &ResolvedSets<'_>,
        mut scratch: SetBuilder,
        visit: &mut dyn FnMut(SetMember<'_>),
    ) {
        match self {
            Self::Inter => {
                visit_common(keyspace, sets, &mut |member| {
                    visit(member);
                    true
                });
            }
            Self::Union => {
                if let [set] = existing_sets(sets).collect::<Vec<_>>()[..] {
                    return set.for_each(&mut |member| visit(member));
                }
                existing_sets(sets).for_each(|set| {
                    set.for_each(&mut |member| {
                        if scratch.add(&member) {
                            visit(member);
                        }
                    });
                });
            }
            Self::Diff if is_lookup_cheaper(sets) => visit_difference(keyspace, sets, visit),
            Self::Diff => difference_by_copy(sets, scratch).as_ref().for_each(&mut |member| visit(member)),
        }
    }

    /// Adds the members of the result to `builder`, which must be empty.
    fn build_result(
        self,
        keyspace: &Keyspace,
        sets: &ResolvedSets<'_>,
        mut builder: SetBuilder,
    ) -> SetBuilder {
        match self {
            Self::Union => {
                builder.reserve(existing_sets(sets).map(|set| set.len()).max().unwrap_or(0));
                existing_sets(sets).for_each(|set| add_prefetched(keyspace, &set, &mut builder));
                builder
            }
            Self::Diff if !is_lookup_cheaper(sets) => difference_by_copy(sets, builder),
            Self::Inter | Self::Diff => {
                let scratch = SetBuilder::new(builder.bounds());
                self.visit_result(keyspace, sets, scratch, &mut |member| {
                    builder.add(&member);
                });
                builder
            }
        }
    }
}

/// Computes a union without blocking other clients: pins the memory of the large sets and unlocks their slots
/// meanwhile. Returns `None` if the memory cannot be pinned.
fn pinned_union(context: &mut Context<'_>, sources: &SourceSets<'_>) -> Option<BulkStringCollector> {
    if !context.may_release_slots() {
        return None;
    }
    let (mut seen, mut found) = (
        SetBuilder::new(context.engine.settings.value_limits.bounds_of_sets()),
        BulkStringCollector::default(),
    );
    let mut add = |name: &[u8]| {
        if seen.add(name) {
            found.push(name);
        }
    };
    let (large, small) = sources.split_by_size(&context.slots, context.session.db());
    existing_sets(&small).for_each(|set| set.for_each(&mut |member| add(&member)));
    drop(small);
    context.pin_values(&large)?.visit_elements(|_, elements| {
        elements.visit_names(&mut add);
        true
    });
    Some(found)
}

/// The sets of the keys that exist.
fn existing_sets<'s>(sets: &[Option<SetRef<'s>>]) -> impl Iterator<Item = SetRef<'s>> {
    sets.iter().copied().flatten()
}

/// Visits the members that all sets have, until `visit` returns false. Each member of the smallest set is looked up in
/// the other sets, in ascending order of size.
fn visit_common(keyspace: &Keyspace, sets: &ResolvedSets<'_>, visit: &mut dyn FnMut(SetMember<'_>) -> bool) {
    let mut sorted: Vec<SetRef<'_>> = existing_sets(sets).collect();
    if sorted.len() < sets.len() {
        return;
    }
    sorted.sort_by_key(SetRef::len);
    let Some((smallest, others)) = sorted.split_first() else { return };
    visit_prefetched(keyspace, smallest, others, &mut |member, hash| {
        !others.iter().all(|set| set.contains_with_hash(&member, hash)) || visit(member)
    });
}

/// Visits members with their hashes until `visit` returns false. Members are read in batches, and the memory for their
/// lookups in `others` is prefetched.
fn visit_prefetched<'s>(
    keyspace: &Keyspace,
    set: &SetRef<'s>,
    others: &[SetRef<'_>],
    visit: &mut dyn FnMut(SetMember<'s>, u64) -> bool,
) {
    let mut some = SmallVec::<[(SetMember<'s>, u64); PREFETCH_BATCH]>::new();
    let mut look = |some: &mut SmallVec<[(SetMember<'s>, u64); PREFETCH_BATCH]>| {
        others.iter().for_each(|other| other.prefetch(some.iter().map(|(_, hash)| *hash)));
        some.drain(..).all(|(member, hash)| visit(member, hash))
    };
    let goes_on = set.visit(&mut |member| {
        some.push((member, keyspace.hash_element_name(&member)));
        some.len() < PREFETCH_BATCH || look(&mut some)
    });
    if goes_on {
        look(&mut some);
    }
}

/// Adds the members of `set` to `builder`, with prefetching for each batch of members.
fn add_prefetched(keyspace: &Keyspace, set: &SetRef<'_>, builder: &mut SetBuilder) {
    let mut some = SmallVec::<[SetMember<'_>; PREFETCH_BATCH]>::new();
    let mut add = |some: &mut SmallVec<[SetMember<'_>; PREFETCH_BATCH]>| {
        builder.as_ref().prefetch(some.iter().map(|member| keyspace.hash_element_name(member)));
        some.drain(..).for_each(|member| {
            builder.add(&member);
        });
    };
    set.for_each(&mut |member| {
        some.push(member);
        if some.len() == PREFETCH_BATCH {
            add(&mut some);
        }
    });
    add(&mut some);
}

/// Whether looking up each member of the first set in the other sets is cheaper than removing the other sets' members
/// from a copy of the first set.
fn is_lookup_cheaper(sets: &ResolvedSets<'_>) -> bool {
    let first = sets.first().copied().flatten().map_or(0, |set| set.len());
    let by_looking = first.saturating_mul(sets.len());
    let by_copying: usize = existing_sets(sets).map(|set| set.len()).sum();
    // The cost of lookups is halved, because a lookup ends at the first set that has the member. Redis uses the same
    // weight.
    by_looking / 2 <= by_copying
}

/// Visits the members that only the first set has.
fn visit_difference(keyspace: &Keyspace, sets: &ResolvedSets<'_>, visit: &mut dyn FnMut(SetMember<'_>)) {
    let [Some(first), others @ ..] = &sets[..] else { return };
    let mut others: Vec<SetRef<'_>> = existing_sets(others).collect();
    others.sort_by_key(|set| std::cmp::Reverse(set.len()));
    visit_prefetched(keyspace, first, &others, &mut |member, hash| {
        if !others.iter().any(|set| set.contains_with_hash(&member, hash)) {
            visit(member);
        }
        true
    });
}

/// Computes the difference by removing the other sets' members from a copy of the first set.
fn difference_by_copy(sets: &ResolvedSets<'_>, mut copy: SetBuilder) -> SetBuilder {
    let [Some(first), others @ ..] = &sets[..] else { return copy };
    first.for_each(&mut |member| {
        copy.add(&member);
    });
    for other in existing_sets(others) {
        if copy.as_ref().is_empty() {
            break;
        }
        other.for_each(&mut |member| {
            copy.remove(&member);
        });
    }
    copy
}

/// Handles `SINTERCARD numkeys key [key ...] [LIMIT limit]`.
pub(super) fn sintercard(context: &mut Context<'_>) -> Result<(), CommandError> {
    const NUMKEYS_NOT_POSITIVE: CommandError = CommandError::text("ERR numkeys should be greater than 0");
    const TOO_MANY_KEYS: CommandError =
        CommandError::text("ERR Number of keys can't be greater than number of args");
    let keys =
        context.integer_arg(1).ok().and_then(|keys| usize::try_from(keys).ok()).filter(|keys| *keys > 0);
    let keys = keys.ok_or(NUMKEYS_NOT_POSITIVE)?;
    if keys > context.args.len() - 2 {
        return Err(TOO_MANY_KEYS);
    }
    let limit = parse_limit(context, keys + 2)?;
    let sources = SourceSets::find_sources(context, 2..keys + 2)?;
    let sets = sources.resolve_sets(&context.slots, context.session.db());
    let mut count = 0;
    visit_common(&context.engine.keyspace, &sets, &mut |_| {
        count += 1;
        limit == 0 || count < limit
    });
    context.reply.integer(count);
    Ok(())
}

/// Parses LIMIT from argument `index` on; 0 means unlimited.
fn parse_limit(context: &Context<'_>, mut index: usize) -> Result<i64, CommandError> {
    const NEGATIVE_LIMIT: CommandError = CommandError::text("ERR LIMIT can't be negative");
    let mut limit = 0;
    while let Some(word) = context.args.get(index) {
        if !word.eq_ignore_ascii_case(b"limit") || index + 1 == context.args.len() {
            return Err(CommandError::Syntax);
        }
        limit = context.integer_arg(index + 1).ok().filter(|limit| *limit >= 0).ok_or(NEGATIVE_LIMIT)?;
        index += 2;
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use resp::Value;

    use crate::testing::Client;

    #[test]
    fn small_sets_are_combined() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("sadd a 1 2 3", ":3"),
            ("sadd b 2 3 4", ":3"),
            ("sadd c x 3", ":2"),
            ("sinter a", "*3|$1|1|$1|2|$1|3"),
            ("sinter a b", "*2|$1|2|$1|3"),
            ("sinter a b c", "*1|$1|3"),
            ("sinter a nosuch", "*0"),
            ("sinter a a", "*3|$1|1|$1|2|$1|3"),
            ("sunion a b", "*4|$1|1|$1|2|$1|3|$1|4"),
            ("sunion nosuch b", "*3|$1|2|$1|3|$1|4"),
            ("sunion nosuch", "*0"),
            ("sunion b b c", "*4|$1|2|$1|3|$1|4|$1|x"),
            ("sdiff a b", "*1|$1|1"),
            ("sdiff a nosuch", "*3|$1|1|$1|2|$1|3"),
            ("sdiff nosuch a", "*0"),
            ("sdiff a a", "*0"),
            ("sdiff c a b", "*1|$1|x"),
            ("sinterstore d a b", ":2"),
            ("smembers d", "*2|$1|2|$1|3"),
            ("object encoding d", "$6|intset"),
            ("sunionstore d d c", ":3"),
            ("object encoding d", "$8|listpack"),
            ("expire d 100", ":1"),
            ("sdiffstore d d a", ":1"),
            ("ttl d", ":-1"),
            ("smembers d", "*1|$1|x"),
            ("sdiffstore d d d", ":0"),
            ("exists d", ":0"),
            ("sdiffstore d d d", ":0"),
            ("set s 1", "+OK"),
            ("sinterstore s a nosuch", ":0"),
            ("exists s", ":0"),
        ]);
        let log = client.logged_commands();
        assert_eq!(log[3..6], ["0 sinterstore d a b", "0 sunionstore d d c", "0 PEXPIREAT d 1700000100000"]);
        assert_eq!(
            log[6..],
            ["0 sdiffstore d d a", "0 sdiffstore d d d", "0 set s 1", "0 sinterstore s a nosuch"]
        );
    }

    #[test]
    fn sintercard_counts_common_members() {
        let keys = "-ERR numkeys should be greater than 0";
        let negative = "-ERR LIMIT can't be negative";
        Client::new().check_replies(&[
            ("sadd a 1 2 3", ":3"),
            ("sadd b 2 3 4", ":3"),
            ("sintercard 2 a b", ":2"),
            ("sintercard 2 a b limit 1", ":1"),
            ("sintercard 2 a b limit 0", ":2"),
            ("sintercard 2 a b LIMIT 10", ":2"),
            ("sintercard 2 a b limit 1 limit 2", ":2"),
            ("sintercard 2 a nosuch", ":0"),
            ("sintercard 1 a", ":3"),
            ("sintercard 0 a", keys),
            ("sintercard -1 a", keys),
            ("sintercard x a", keys),
            ("sintercard 2 a", "-ERR Number of keys can't be greater than number of args"),
            ("sintercard 1 a b", "-ERR syntax error"),
            ("sintercard 1 a limit", "-ERR syntax error"),
            ("sintercard 1 a limit x", negative),
            ("sintercard 1 a limit -1", negative),
        ]);
    }

    /// Compares the results for sets of all sizes and encodings, and for both difference methods, with `std` sets.
    #[test]
    fn set_operations_match_reference_on_large_sets() {
        let mut client = Client::new();
        let mut twins: Vec<BTreeSet<String>> = Vec::new();
        for (number, (size, step, prefix)) in
            [(10, 1, ""), (400, 3, ""), (6000, 2, ""), (700, 5, "m"), (2000, 1, "m")].into_iter().enumerate()
        {
            let members: BTreeSet<String> = (0..size).map(|n| format!("{prefix}{}", n * step)).collect();
            let key = number.to_string();
            let words = ["sadd", &key].into_iter().chain(members.iter().map(String::as_str));
            client.call(&words.collect::<Vec<_>>());
            twins.push(members);
        }
        let text = |value: &Value| String::from_utf8(value.as_bytes().expect("a member").to_vec()).unwrap();
        for choice in 0..125 {
            let chosen = [choice / 25, choice / 5 % 5, choice % 5];
            let keys = chosen.map(|number| number.to_string());
            for (command, expected) in [
                ("sinter", &(&twins[chosen[0]] & &twins[chosen[1]]) & &twins[chosen[2]]),
                ("sunion", &(&twins[chosen[0]] | &twins[chosen[1]]) | &twins[chosen[2]]),
                ("sdiff", &(&twins[chosen[0]] - &twins[chosen[1]]) - &twins[chosen[2]]),
            ] {
                let reply = client.call(&[command, &keys[0], &keys[1], &keys[2]]);
                let members: BTreeSet<String> = reply.as_array().expect("a list").iter().map(text).collect();
                assert_eq!(members.len(), reply.as_array().map_or(0, <[Value]>::len), "each once");
                assert_eq!(members, expected, "{command} {keys:?}");
                let stored = client.call(&[&format!("{command}store"), "d", &keys[0], &keys[1], &keys[2]]);
                assert_eq!(stored, Value::Integer(expected.len() as i64));
                let reply = client.call(&["smembers", "d"]);
                let members: BTreeSet<String> = reply.as_array().expect("a list").iter().map(text).collect();
                assert_eq!(members, expected, "{command}store {keys:?}");
            }
        }
    }

    /// Regression test: one of several source sets in a slot has expired, and its removal moves the entries of the
    /// others.
    #[test]
    fn expired_source_set_counts_as_empty() {
        let mut client = Client::new();
        for _ in 0..30 {
            for number in 0..10 {
                client.call(&["sadd", &format!("{{t}}{number}"), "x", &format!("of {number}")]);
            }
            client.check_replies(&[("pexpire {t}3 5", ":1"), ("pexpire {t}4 5", ":1")]);
            client.now.0 += 10;
            client.check_replies(&[
                ("sunion {t}9 {t}3 {t}4", "*2|$1|x|$4|of 9"),
                ("sinter {t}9 {t}8", "*1|$1|x"),
            ]);
            client.call(&["del", "{t}0", "{t}1", "{t}5"]);
        }
    }
}
