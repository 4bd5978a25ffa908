//! KEYS, SCAN, RANDOMKEY and DBSIZE. SCAN never blocks other commands for the whole iteration.

use engine::{CommandError, CommandOutcome, Context};
use keyspace::{ScanItem, Table};

use crate::scanning::{
    AcceptedOptions, BulkStringCollector, ScanOptions, collect_keys_of_slot, parse_cursor, write_scan_reply,
};

/// Number of keys that RANDOMKEY tries before it gives up, since the keys that it selects may have expired.
const MAX_RANDOMKEY_TRIES: usize = 100;
/// Mask of the cursor bits that hold the slot. The other bits hold the position within the slot in hash order. The low
/// bits of the position are not significant ([`Table::scan`]), so that both fit in one integer.
const SLOT_MASK: u64 = 0x3fff;

pub(super) fn dbsize(context: &mut Context<'_>) -> Result<(), CommandError> {
    let keys: usize = context.non_empty_slots(0).map(|slot| context.slot_key_count(slot)).sum();
    context.reply.integer(keys as i64);
    Ok(())
}

pub(super) fn keys(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let (pattern, now) = (context.arg(1), context.expiry_cutoff());
    let all = pattern == b"*";
    let mut found = BulkStringCollector::default();
    let visited = context.visit_names(&mut |key, expiry| {
        let alive = expiry.is_none_or(|at| at > now);
        if alive && (all || glob::matches(pattern, key)) {
            found.push(key);
        }
    });
    if let Err(outcome) = visited {
        return Ok(outcome);
    }
    found.write_array_reply(&mut context.reply);
    Ok(CommandOutcome::Done)
}

pub(super) fn randomkey(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (db, now) = (context.session.db(), context.expiry_cutoff());
    for _ in 0..MAX_RANDOMKEY_TRIES {
        let total: usize = context.non_empty_slots(0).map(|slot| context.slot_key_count(slot)).sum();
        let Some(left) = context.random_u64().checked_rem(total as u64) else { break };
        let mut left = left as usize;
        let chosen = context.non_empty_slots(0).find(|&slot| {
            let len = context.slot_key_count(slot);
            let here = left < len;
            left = left.saturating_sub(len);
            here
        });
        // Other clients may have deleted the slot's keys since the slot was chosen.
        let Some(slot) = chosen else { continue };
        let random = context.random_u64();
        let chosen = context.with_slot(slot, |data| {
            let item = data.table(db).random_key(random)?;
            Some((item.key.to_vec(), item.expiry.is_none_or(|at| at > now)))
        });
        match chosen {
            Some((key, true)) => {
                context.reply.bulk(&key);
                return Ok(());
            }
            Some((key, false)) => context.delete_expired_in(slot, &[key]),
            None => {}
        }
    }
    context.reply.null();
    Ok(())
}

pub(super) fn scan(context: &mut Context<'_>) -> Result<(), CommandError> {
    let cursor = parse_cursor(context.arg(1))?;
    let options = ScanOptions::parse(context, 2, AcceptedOptions::TYPE)?;
    let db = context.session.db();
    let mut found = BulkStringCollector::default();
    let mut left = options.count;
    let mut position = cursor & !SLOT_MASK;
    let first = (cursor & SLOT_MASK) as usize;
    let mut next = 0;
    for slot in context.non_empty_slots(first) {
        // The slot that the cursor names may have become empty.
        if slot.index() > first {
            position = 0;
        }
        if position == 0 && context.slot_key_count(slot) == 0 {
            continue;
        }
        if left == 0 {
            next = position | u64::from(slot.number());
            break;
        }
        let count = left.max(1);
        let (went_on, visited) =
            collect_keys_of_slot(context, slot, &options, &mut found, |data, visit| match data.is_hidden() {
                true => None,
                false => scan_slot(data.table(db), position, count, visit),
            });
        if let Some(position) = went_on {
            next = position | u64::from(slot.number());
            break;
        }
        position = 0;
        left = left.saturating_sub(visited);
    }
    write_scan_reply(&mut context.reply, next, &found);
    Ok(())
}

/// Scans a slot to its end, or until the position advances by at least one step that the cursor can represent.
fn scan_slot(table: &Table, from: u64, count: usize, visit: &mut dyn FnMut(ScanItem<'_>)) -> Option<u64> {
    let mut count = count;
    loop {
        let next = table.scan(from, count, visit)? & !SLOT_MASK;
        if next != from {
            return Some(next);
        }
        // More keys than requested share the same high hash bits. Double the count until all of them are returned.
        count = count.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;
    use resp::Value;

    use crate::testing::Client;
    use engine::NodeFlags;

    fn to_text(value: &Value) -> String {
        String::from_utf8_lossy(value.as_bytes().expect("text")).into_owned()
    }

    /// Runs SCAN once and returns the next cursor and the keys.
    fn call_scan(client: &mut Client, words: &[&str]) -> (String, Vec<String>) {
        let reply = client.call(words);
        let [cursor, keys] = reply.as_array().expect("two") else { panic!("{reply:?}") };
        (to_text(cursor), keys.as_array().expect("keys").iter().map(to_text).collect())
    }

    #[test]
    fn invalid_arguments_are_refused() {
        Client::new().check_replies(&[
            ("scan 0", "*2|$1|0|*0"),
            ("scan -1", "-ERR invalid cursor"),
            ("scan \"\"", "-ERR invalid cursor"),
            ("scan \" -1\"", "*2|$1|0|*0"),
            ("scan 0 type nosuch", "-ERR unknown type name 'nosuch'"),
            ("scan x", "-ERR invalid cursor"),
            ("scan 18446744073709551616", "-ERR invalid cursor"),
            ("scan 0 match", "-ERR syntax error"),
            ("scan 0 nosuch 1", "-ERR syntax error"),
            ("scan 0 count 0", "-ERR syntax error"),
            ("scan 0 count x", "-ERR value is not an integer or out of range"),
            ("dbsize", ":0"),
            ("randomkey", "$-1"),
            ("keys *", "*0"),
        ]);
    }

    #[test]
    fn scan_filters_by_pattern_type_and_database() {
        let mut client = Client::new();
        client.check_replies(&[
            ("mset one 1 two 2 three 3", "+OK"),
            ("set gone 4 px 1", "+OK"),
            ("select 1", "+OK"),
            ("set other 1", "+OK"),
            ("randomkey", "$5|other"),
            ("select 0", "+OK"),
        ]);
        client.now.0 += 1;
        client.check_replies(&[
            ("keys on?", "*1|$3|one"),
            ("keys other", "*0"),
            ("keys gone", "*0"),
            ("scan 0 match on* count 100", "*2|$1|0|*1|$3|one"),
            ("scan 0 type hash count 100", "*2|$1|0|*0"),
            ("scan 0 match tw* type STRING count 100", "*2|$1|0|*1|$3|two"),
            ("dbsize", ":4"),
        ]);
        let random = to_text(&client.call(&["randomkey"]));
        assert!(["one", "two", "three"].contains(&random.as_str()), "{random}");
    }

    /// As in Valkey, SCAN deletes an expired key that it would otherwise return, and KEYS does not.
    #[test]
    fn scan_deletes_expired_keys() {
        let gone = |line: &str, before: &dyn Fn(&mut Client)| {
            let mut client = Client::with_recording_log();
            client.check_replies(&[("set a 1 px 1", "+OK")]);
            client.now.0 += 1;
            before(&mut client);
            let events = client.events_during(|client| drop(client.run_to_text(line)));
            client.engine.settings.set_node_flag(NodeFlags::REPLICA, false);
            let gone = client.run_to_text("dbsize").starts_with(":0");
            assert_eq!(client.worker.stats.expired_keys.load(Ordering::Relaxed), u64::from(gone), "{line}");
            assert_eq!(
                client.logged_commands().last().is_some_and(|last| last == "0 UNLINK a"),
                gone,
                "{line}"
            );
            assert_eq!(events == "expired a", gone, "{line}: {events}");
            gone
        };
        for (line, expected) in [
            ("scan 0", true),
            ("scan 0 match b*", false),
            ("scan 0 match a type string", true),
            ("multi\nscan 0\nexec", true),
            ("eval \"return redis.call('scan','0')\" 0", true),
            ("randomkey", true),
            ("keys *", false),
        ] {
            assert_eq!(gone(line, &|_| {}), expected, "{line}");
            // In a script that may write, no key expires before the script ends.
            let is_script = line.starts_with("eval");
            assert!(
                is_script || !gone(line, &|client| drop(client.run_to_text("client pause 1000 write"))),
                "{line}"
            );
            assert!(
                !gone(line, &|client| client.engine.settings.set_node_flag(NodeFlags::REPLICA, true)),
                "{line}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Keys that exist during the whole scan are returned, however many other keys are added and removed meanwhile.
        /// The keys are spread over several slots, or all are in one slot.
        #[test]
        fn scan_returns_all_persistent_keys(
            stay in 1usize..200,
            others in 0usize..200,
            count in 1usize..50,
            one_slot in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let mut client = Client::new();
            let tag = if one_slot { "{tag}" } else { "" };
            let stays: BTreeSet<String> = (0..stay).map(|n| format!("stay{tag}{n}")).collect();
            for key in &stays {
                client.call(&["set", key, "v"]);
            }
            let (mut cursor, mut seen, mut calls, mut random) = ("0".to_owned(), BTreeSet::new(), 0, seed);
            loop {
                let (next, keys) = call_scan(&mut client, &["scan", &cursor, "count", &count.to_string()]);
                seen.extend(keys);
                if next == "0" {
                    break;
                }
                cursor = next;
                calls += 1;
                prop_assert!(calls < 20_000, "the scan goes on and on");
                for _ in 0..others.min(20) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let other = format!("other{tag}{}", (random >> 33) as usize % others);
                    if random >> 32 & 1 == 1 {
                        client.call(&["set", &other, "v"]);
                    } else {
                        client.call(&["del", &other]);
                    }
                }
            }
            prop_assert!(stays.is_subset(&seen));
        }
    }
}
