//! CLUSTERSCAN: iterates over the keys of a whole cluster, node by node, with a cursor that is routed like a key.
//!
//! A cursor is `fingerprint-{tag}-position`. The tag hashes to the slot to scan next, so a client sends the cursor
//! where it would send a key of that slot, and a redirection shows it the slot's new owner. The position follows hash
//! order within the slot. Each process hashes with its own secret; the fingerprint identifies the process, and a
//! position from another process counts as the beginning of the slot. `0` begins and ends the iteration.

use engine::{CommandError, Context};
use slot_routing::{Ownership, Slot};

use crate::scanning::{
    AcceptedOptions, BulkStringCollector, ScanOptions, collect_keys_of_slot, parse_cursor,
};

/// The digits of a fingerprint, which is a number in base 36.
const BASE36_DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A parsed cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClusterScanCursor {
    slot: Slot,
    /// Position in hash order within the slot; 0 is its beginning.
    position: u64,
}

impl ClusterScanCursor {
    const fn at_slot_start(slot: Slot) -> Self {
        Self { slot, position: 0 }
    }

    fn parse(text: &[u8], fingerprint: &str) -> Result<Self, CommandError> {
        let mut parts = text.splitn(3, |byte| *byte == b'-');
        let (Some(of), Some(_), Some(position)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(invalid_cursor_error());
        };
        let position = parse_cursor(position).map_err(|_| invalid_cursor_error())?;
        let is_ours = of == fingerprint.as_bytes();
        // The cursor's slot is the slot by which the request was routed, even if the cursor contains no braces.
        Ok(Self { slot: Slot::of_key(text), position: if is_ours { position } else { 0 } })
    }

    fn to_text(self, fingerprint: &str) -> String {
        let of = if self.position == 0 { "0" } else { fingerprint };
        format!("{of}-{{{}}}-{}", self.slot.tag(), self.position)
    }
}

fn invalid_cursor_error() -> CommandError {
    CommandError::text("ERR Invalid cursor")
}

/// Identifies the process whose hash secret the positions refer to.
fn process_fingerprint(context: &Context<'_>) -> String {
    let mut left = context.engine.keyspace.hash_element_name(b"cursor") >> 32;
    let mut digits = Vec::new();
    while left > 0 || digits.is_empty() {
        digits.push(char::from(BASE36_DIGITS[(left % 36) as usize]));
        left /= 36;
    }
    digits.iter().rev().collect()
}

/// Handles `CLUSTERSCAN cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]`.
pub(super) fn cluster_scan(context: &mut Context<'_>) -> Result<(), CommandError> {
    super::require_cluster_mode(context)?;
    let options = ScanOptions::parse(context, 2, AcceptedOptions::TYPE | AcceptedOptions::SLOT)?;
    let (fingerprint, text) = (process_fingerprint(context), context.arg(1));
    let mut found = BulkStringCollector::default();
    let next = if text == b"0" {
        let first = options.slot.or(options.pattern_slot()).or(Slot::all().next());
        let matches_none = options.slot.zip(options.pattern_slot()).is_some_and(|(asked, all)| asked != all);
        first.filter(|_| !matches_none).map(ClusterScanCursor::at_slot_start)
    } else {
        let cursor = ClusterScanCursor::parse(text, &fingerprint)?;
        if options.slot.is_some_and(|slot| slot != cursor.slot) {
            return Err(CommandError::text("ERR Cursor slot mismatch with SLOT argument"));
        }
        match options.pattern_slot() {
            // A pattern with a hash tag matches only keys of one slot, and here that slot is not the cursor's slot.
            Some(only) if only != cursor.slot => (options.slot.is_none() && only > cursor.slot)
                .then_some(ClusterScanCursor::at_slot_start(only)),
            only => {
                let last = options.slot.or(only).or(Slot::all().next_back());
                scan_slots(context, &options, cursor, last.unwrap_or(cursor.slot), &mut found)
            }
        }
    };
    context.reply.array(2);
    match next {
        Some(next) => context.reply.bulk(next.to_text(&fingerprint).as_bytes()),
        None => context.reply.bulk(b"0"),
    }
    found.write_array_reply(&mut context.reply);
    Ok(())
}

/// Scans the cursor's slot and the following slots for as long as this node serves them. Returns the next cursor, or
/// `None` once `last` is complete.
fn scan_slots(
    context: &mut Context<'_>,
    options: &ScanOptions<'_>,
    from: ClusterScanCursor,
    last: Slot,
    found: &mut BulkStringCollector,
) -> Option<ClusterScanCursor> {
    let (mut left, mut position) = (options.count, from.position);
    for slot in Slot::all().skip(from.slot.index()).take_while(|slot| *slot <= last) {
        if left == 0 {
            return Some(ClusterScanCursor::at_slot_start(slot));
        }
        let is_first = slot == from.slot;
        let visited = if context.slot_key_count(slot) > 0 {
            scan_slot(context, options, slot, &SlotScan { position, count: left, is_first }, found)
        } else {
            // Check ownership after the slot was found empty: a slot that migrates changes its owner before it is
            // emptied.
            let topology = context.engine.topology.as_ref().map(|topology| topology.load().ownership(slot));
            match topology.is_some_and(|ownership| serves_slot(ownership, is_first)) {
                true => SlotScanResult::SlotFinished(0),
                false => SlotScanResult::NotServed,
            }
        };
        match visited {
            SlotScanResult::SlotFinished(visited) => left = left.saturating_sub(visited),
            SlotScanResult::Continue(position) => return Some(ClusterScanCursor { slot, position }),
            SlotScanResult::NotServed => return Some(ClusterScanCursor::at_slot_start(slot)),
        }
        position = 0;
    }
    None
}

/// Whether a scan may enter a slot: this node serves it, or this node is a replica of its owner (the router has already
/// checked READONLY). A slot that is being imported qualifies only if the client was redirected here for it with
/// ASKING.
fn serves_slot(ownership: Ownership, is_first: bool) -> bool {
    match ownership {
        Ownership::Local | Ownership::Migrating | Ownership::MasterOwned | Ownership::MasterMigrating => true,
        Ownership::Importing | Ownership::MasterImporting => is_first,
        Ownership::Remote | Ownership::Unassigned => false,
    }
}

/// The part of a slot that one call scans.
struct SlotScan {
    position: u64,
    count: usize,
    /// Whether `slot` is the slot by which the request was routed.
    is_first: bool,
}

enum SlotScanResult {
    /// The scan reached the end of the slot; holds the number of keys in the slot.
    SlotFinished(usize),
    /// The slot has more keys; holds the position at which to continue.
    Continue(u64),
    /// Another node serves the slot, so nothing was scanned.
    NotServed,
}

fn scan_slot(
    context: &mut Context<'_>,
    options: &ScanOptions<'_>,
    slot: Slot,
    slot_scan: &SlotScan,
    found: &mut BulkStringCollector,
) -> SlotScanResult {
    let db = context.session.db();
    let (went_on, visited) = collect_keys_of_slot(context, slot, options, found, |data, visit| {
        if !serves_slot(data.ownership(), slot_scan.is_first) {
            return Err(SlotScanResult::NotServed);
        }
        let table = data.existing_table(db).filter(|_| !data.is_hidden());
        Ok(table.and_then(|table| table.scan(slot_scan.position, slot_scan.count, visit)))
    });
    match went_on {
        Err(elsewhere) => elsewhere,
        Ok(Some(position)) => SlotScanResult::Continue(position),
        Ok(None) => SlotScanResult::SlotFinished(visited),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use resp::Value;
    use slot_routing::Slot;

    use crate::testing::Client;

    fn format(value: &Value) -> String {
        String::from_utf8_lossy(value.as_bytes().expect("text")).into_owned()
    }

    /// Runs CLUSTERSCAN once and returns the next cursor and the keys.
    fn call_scan(client: &mut Client, words: &[&str]) -> (String, Vec<String>) {
        let reply = client.call(words);
        let [cursor, keys] = reply.as_array().expect("two") else { panic!("{reply:?}") };
        (format(cursor), keys.as_array().expect("keys").iter().map(format).collect())
    }

    #[test]
    fn cluster_scan_starts_at_cursor() {
        Client::in_cluster().check_replies(&[
            ("clusterscan 0", "*2|$9|0-{06S}-0|*0"),
            ("clusterscan 0 slot 5", "*2|$9|0-{460}-0|*0"),
            ("clusterscan 0 slot 16383", "*2|$9|0-{6ZJ}-0|*0"),
            ("clusterscan 0 match a{460}*", "*2|$9|0-{460}-0|*0"),
            ("clusterscan 0 match 460", "*2|$9|0-{460}-0|*0"),
            ("clusterscan 0 match {}x", "*2|$9|0-{4LC}-0|*0"),
            ("clusterscan 0 match {}x*", "*2|$9|0-{06S}-0|*0"),
            ("clusterscan 0 match x?{460}", "*2|$9|0-{06S}-0|*0"),
            ("clusterscan 0 match {4[6]0}", "*2|$9|0-{06S}-0|*0"),
            ("clusterscan 0 match {460}* slot 5", "*2|$9|0-{460}-0|*0"),
            ("clusterscan 0 match {460}* slot 6", "*2|$1|0|*0"),
            ("clusterscan 0-{06S}-0 match {460}*", "*2|$9|0-{460}-0|*0"),
            ("clusterscan 0-{06S}-0 match {460}* slot 0", "*2|$1|0|*0"),
            ("clusterscan 0-{460}-0 match {06S}*", "*2|$1|0|*0"),
            ("clusterscan 0-{460}-0", "*2|$1|0|*0"),
            ("clusterscan {06S}--0", "*2|$1|0|*0"),
        ]);
    }

    #[test]
    fn option_errors_take_precedence_over_cursor_errors() {
        let (cursor, slot) = ("-ERR Invalid cursor", "-ERR Invalid or out of range slot");
        Client::in_cluster().check_replies(&[
            ("clusterscan abc foo", "-ERR syntax error"),
            // The cursor's slot is the slot by which the request was routed, even if the cursor contains no braces.
            ("clusterscan 0-06S-0 slot 0", "-ERR Cursor slot mismatch with SLOT argument"),
            ("clusterscan 0-06S-0 slot 9263", "*2|$1|0|*0"),
            ("clusterscan abc slot x", slot),
            ("clusterscan abc slot 16384", slot),
            ("clusterscan abc slot -1", slot),
            ("clusterscan abc slot 07", slot),
            ("clusterscan abc slot 5 slot x", "-ERR SLOT option can only be specified once"),
            ("clusterscan abc slot", "-ERR syntax error"),
            ("clusterscan abc type nosuch slot x", "-ERR unknown type name 'nosuch'"),
            ("clusterscan abc count x", "-ERR value is not an integer or out of range"),
            ("clusterscan abc count 0", "-ERR syntax error"),
            ("clusterscan abc", cursor),
            ("clusterscan 00", cursor),
            ("clusterscan \"\"", cursor),
            ("clusterscan {06S}-0", cursor),
            ("clusterscan 0-{06S}-", cursor),
            ("clusterscan 0-{06S}-1x", cursor),
            ("clusterscan 0-{06S}--5", cursor),
            ("clusterscan 0-{06S}-18446744073709551616", cursor),
            ("clusterscan 0-{06S}-x slot 1", cursor),
            ("clusterscan 0-{06S}-0 slot 1", "-ERR Cursor slot mismatch with SLOT argument"),
            ("clusterscan", "-ERR wrong number of arguments for 'clusterscan' command"),
        ]);
        let disabled = "-ERR This instance has cluster support disabled";
        Client::new().check_replies(&[("clusterscan abc foo", disabled), ("clusterscan 0", disabled)]);
    }

    #[test]
    fn cursor_of_other_process_restarts_slot() {
        let mut client = Client::in_cluster();
        for n in 0..100 {
            client.call(&["set", &format!("{{460}}{n}"), "v"]);
        }
        let first = call_scan(&mut client, &["clusterscan", "0-{460}-0", "count", "10", "slot", "5"]);
        let second = call_scan(&mut client, &["clusterscan", &first.0, "count", "10", "slot", "5"]);
        assert_ne!(first.1, second.1);
        let (_, position) = first.0.rsplit_once('-').expect("a position");
        let foreign = format!("X-{{460}}-{position}");
        assert_eq!(call_scan(&mut client, &["clusterscan", &foreign, "count", "10", "slot", "5"]), first);
    }

    #[test]
    fn cluster_scan_filters_and_deletes_expired_keys() {
        let mut client = Client::in_cluster_with_databases(2);
        client.check_replies(&[
            ("mset {460}one 1 {460}two 2", "+OK"),
            ("set {460}gone 1 px 1", "+OK"),
            ("rpush {460}list 1", ":1"),
            ("select 1", "+OK"),
            ("set {460}other 1", "+OK"),
            ("clusterscan 0-{460}-0", "*2|$1|0|*1|$10|{460}other"),
            ("select 0", "+OK"),
        ]);
        client.now.0 += 1;
        client.check_replies(&[
            ("clusterscan 0-{460}-0 type list slot 5", "*2|$1|0|*1|$9|{460}list"),
            ("clusterscan 0-{460}-0 match *o* match *w*", "*2|$1|0|*1|$8|{460}two"),
            ("cluster countkeysinslot 5", ":4"),
            ("clusterscan 0-{460}-0 match *gone", "*2|$1|0|*0"),
            ("cluster countkeysinslot 5", ":3"),
            ("multi", "+OK"),
            ("clusterscan 0-{460}-0 match {460}one", "+QUEUED"),
            ("exec", "*1|*2|$1|0|*1|$8|{460}one"),
            (
                "eval \"return redis.call('clusterscan', '0-{460}-0', 'match', '{460}one')\" 0",
                "*2|$1|0|*1|$8|{460}one",
            ),
            ("multi", "+OK"),
            ("set {06S} 1", "+QUEUED"),
            ("clusterscan 0-{460}-0", "+QUEUED"),
            ("exec", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Keys that exist during the whole scan are returned, however many other keys are added and removed meanwhile.
        /// The keys are spread over several slots, or all are in one slot.
        #[test]
        fn cluster_scan_returns_all_persistent_keys(
            stay in 1usize..200,
            others in 0usize..200,
            count in 1usize..50,
            one_slot in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let mut client = Client::in_cluster();
            let tag = if one_slot { "{tag}" } else { "" };
            let stays: BTreeSet<String> = (0..stay).map(|n| format!("stay{tag}{n}")).collect();
            for key in &stays {
                client.call(&["set", key, "v"]);
            }
            let (mut cursor, mut seen, mut calls, mut random) = ("0".to_owned(), BTreeSet::new(), 0, seed);
            loop {
                let (next, keys) = call_scan(&mut client, &["clusterscan", &cursor, "count", &count.to_string()]);
                seen.extend(keys);
                if next == "0" {
                    break;
                }
                prop_assert!(cursor == "0" || Slot::of_key(next.as_bytes()) >= Slot::of_key(cursor.as_bytes()));
                cursor = next;
                calls += 1;
                prop_assert!(calls < 20_000, "the walk goes on and on");
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
