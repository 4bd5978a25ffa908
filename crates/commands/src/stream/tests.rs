//! Tests of the stream commands: replies, errors and replication.

use clock::Millis;
use engine::DispatchStatus;

use crate::testing::Client;

#[test]
fn entries_are_added_and_deleted() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("xadd s 1-1 a 1 b 2", "$3|1-1"),
        ("xadd s 1-* a 1 b 3", "$3|1-2"),
        ("xadd s * c 4", "$15|1700000000000-0"),
        ("xadd s * c 5", "$15|1700000000000-1"),
        ("xlen s", ":4"),
        ("xrange s - (1-2", "*1|*2|$3|1-1|*4|$1|a|$1|1|$1|b|$1|2"),
        ("xrevrange s + - count 1", "*1|*2|$15|1700000000000-1|*2|$1|c|$1|5"),
        ("xrange s 1 1 count 0", "*-1"),
        ("xrange nosuch - +", "*0"),
        ("xdel s 1-1 1-1 7", ":1"),
        ("xtrim s maxlen 1", ":2"),
        ("xtrim s maxlen 1", ":0"),
        (
            "xadd s nomkstream 5-5 a 1",
            "-ERR The ID specified in XADD is equal or smaller than the target stream top item",
        ),
        ("xadd nosuch nomkstream 5-5 a 1", "$-1"),
        ("xadd s 0-0 a 1", "-ERR The ID specified in XADD must be greater than 0-0"),
        ("xadd s 5 a", "-ERR wrong number of arguments for 'xadd' command"),
        ("xadd s maxlen 5 a 1", "-ERR Invalid stream ID specified as stream command argument"),
        (
            "xadd s maxlen = 5 limit 1 * a 1",
            "-ERR syntax error, LIMIT cannot be used without the special ~ option",
        ),
        ("xtrim s limit 1", "-ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"),
        ("set t 1", "+OK"),
        ("xadd t * a 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("xread streams t 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("object encoding s", "$6|stream"),
        ("type s", "+stream"),
    ]);
    let log = [
        "0 xadd s 1-1 a 1 b 2",
        "0 XADD s 1-2 a 1 b 3",
        "0 XADD s 1700000000000-0 c 4",
        "0 XADD s 1700000000000-1 c 5",
        "0 xdel s 1-1 1-1 7",
        "0 xtrim s maxlen 1",
        "0 set t 1",
    ];
    assert_eq!(client.logged_commands(), log);
}

#[test]
fn approximate_trim_is_replicated_as_exact_trim() {
    let mut client = Client::with_recording_log();
    let stream = keyspace::StreamNodeBounds { max_bytes: 4096, max_entries: 2 };
    client
        .engine
        .settings
        .value_limits
        .set_encoding_limits(&keyspace::EncodingLimits { stream, ..Default::default() });
    for number in 1..=5 {
        client.run_to_text(&format!("xadd s {number} a 1"));
    }
    let before = client.logged_commands().len();
    client.check_replies(&[
        ("xtrim s maxlen ~ 2", ":2"),
        ("xadd s minid ~ 5 6 a 1", "$3|6-0"),
        ("xadd s maxlen ~ 1 limit 1 * a 1", "$15|1700000000000-0"),
        ("xrange s - + count 1", "*1|*2|$3|5-0|*2|$1|a|$1|1"),
    ]);
    let log =
        ["0 XTRIM s MAXLEN = 3", "0 XADD s MINID = 5-0 6-0 a 1", "0 XADD s MAXLEN = 3 1700000000000-0 a 1"];
    assert_eq!(client.logged_commands()[before..], log);
}

#[test]
fn group_deliveries_are_exclusive_and_replicated() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("xadd s 1 a 1", "$3|1-0"),
        ("xadd s 2 a 2", "$3|2-0"),
        ("xgroup create s g 0", "+OK"),
        ("xgroup create s g 0", "-BUSYGROUP Consumer Group name already exists"),
        ("xreadgroup group g alice count 1 streams s >", "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1"),
        ("xreadgroup group g bob noack streams s >", "*1|*2|$1|s|*1|*2|$3|2-0|*2|$1|a|$1|2"),
        ("xreadgroup group g carol streams s >", "*-1"),
        ("xpending s g", "*4|:1|$3|1-0|$3|1-0|*1|*2|$5|alice|$1|1"),
        ("xreadgroup group g alice streams s 0", "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1"),
        ("xpending s g - + 10", "*1|*4|$3|1-0|$5|alice|:0|:2"),
        ("xclaim s g bob 0 1-0 justid", "*1|$3|1-0"),
        ("xdel s 1", ":1"),
        ("xreadgroup group g bob streams s 0", "*1|*2|$1|s|*1|*2|$3|1-0|*-1"),
        ("xautoclaim s g alice 0 0", "*3|$3|0-0|*0|*1|$3|1-0"),
        ("xack s g 1-0", ":0"),
        ("xgroup delconsumer s g alice", ":0"),
        (
            "xreadgroup group h bob streams s >",
            "-NOGROUP No such key 's' or consumer group 'h' in XREADGROUP with GROUP option",
        ),
        ("xgroup destroy s g", ":1"),
    ]);
    let log = [
        "0 xadd s 1 a 1",
        "0 xadd s 2 a 2",
        "0 xgroup create s g 0",
        "0 MULTI",
        "0 XGROUP CREATECONSUMER s g alice",
        "0 XCLAIM s g alice 0 1-0 TIME 1700000000000 RETRYCOUNT 1 FORCE JUSTID LASTID 1-0",
        "0 XGROUP SETID s g 1-0 ENTRIESREAD 1",
        "0 EXEC",
        "0 MULTI",
        "0 XGROUP CREATECONSUMER s g bob",
        "0 XGROUP SETID s g 2-0 ENTRIESREAD 2",
        "0 EXEC",
        "0 XGROUP CREATECONSUMER s g carol",
        "0 XCLAIM s g alice 0 1-0 TIME 1700000000000 RETRYCOUNT 2 FORCE JUSTID LASTID 2-0",
        "0 XCLAIM s g bob 0 1-0 TIME 1700000000000 RETRYCOUNT 2 FORCE JUSTID LASTID 2-0",
        "0 xdel s 1",
        "0 XACK s g 1-0",
        "0 xgroup delconsumer s g alice",
        "0 xgroup destroy s g",
    ];
    assert_eq!(client.logged_commands(), log);
}

/// Regression test: a consumer that read but received no entry was not created, and XINFO GROUPS reported too few
/// consumers.
#[test]
fn read_without_entries_creates_consumer() {
    Client::new().check_replies(&[
        ("xgroup create s g $ mkstream", "+OK"),
        ("xclaim s g a 0 1-1", "*0"),
        ("xautoclaim s g b 0 0", "*3|$3|0-0|*0|*0"),
        ("xreadgroup group g c streams s >", "*-1"),
        ("xgroup createconsumer s g a", ":0"),
        ("xgroup createconsumer s g b", ":0"),
        ("xgroup createconsumer s g c", ":0"),
    ]);
}

/// Regression test: after XDEL of the last entry, XREAD with `+` found nothing although other entries existed.
#[test]
fn xread_plus_skips_deleted_entries() {
    let last = "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1";
    Client::new().check_replies(&[
        ("xadd s 1 a 1", "$3|1-0"),
        ("xadd s 2 a 2", "$3|2-0"),
        ("xdel s 2", ":1"),
        ("xread streams s +", last),
        ("xread count 5 streams s +", last),
        ("xdel s 1", ":1"),
        ("xread streams s +", "*-1"),
    ]);
}

/// Regression test: entries trimmed or deleted before a group read them counted as lag.
#[test]
fn lag_ignores_deleted_entries() {
    let lag = |client: &mut Client, expected: &str| {
        let shown = client.run_to_table_text("xinfo groups s");
        assert!(shown.ends_with(&format!("|$3|lag|{expected}")), "{shown}");
    };
    for cut in ["xtrim s maxlen 1", "xtrim s minid 5", "xadd s maxlen 1 5-1 a 1"] {
        let mut client = Client::new();
        for id in 1..=5 {
            client.call(&["xadd", "s", &id.to_string(), "a", "1"]);
        }
        client.check_replies(&[("xgroup create s g 0", "+OK")]);
        client.run_to_text("xreadgroup group g c count 1 streams s >");
        lag(&mut client, ":4");
        client.run_to_text(cut);
        lag(&mut client, ":1");
    }
    let mut client = Client::new();
    for id in 1..=5 {
        client.call(&["xadd", "s", &id.to_string(), "a", "1"]);
    }
    client.check_replies(&[("xgroup create s g 0", "+OK")]);
    client.run_to_text("xreadgroup group g c count 1 streams s >");
    for (gone, expected) in [("3", "$-1"), ("2", "$-1"), ("1", ":2"), ("5", "$-1"), ("4", ":0")] {
        client.call(&["xdel", "s", gone]);
        lag(&mut client, expected);
    }
}

#[test]
fn xread_plus_returns_last_entry() {
    Client::new().check_replies(&[
        ("xread streams s +", "*-1"),
        ("xadd s 1 a 1", "$3|1-0"),
        ("xadd s 2 a 2", "$3|2-0"),
        ("xread count 5 streams s +", "*1|*2|$1|s|*1|*2|$3|2-0|*2|$1|a|$1|2"),
        ("xgroup create s g 0", "+OK"),
        (
            "xreadgroup group g c streams s +",
            "-ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by \
             specifying a proper ID, or use the > ID to get new messages. The + ID would just return an empty result \
             set.",
        ),
    ]);
}

#[test]
fn long_pending_entries_are_claimed() {
    let mut client = Client::new();
    client.check_replies(&[
        ("xgroup create s g $ mkstream", "+OK"),
        ("xadd s 1 a 1", "$3|1-0"),
        ("xadd s 2 a 2", "$3|2-0"),
        ("xreadgroup group g alice count 1 streams s >", "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1"),
    ]);
    client.now = Millis(client.now.0 + 100);
    client.check_replies(&[
        ("xreadgroup group g alice streams s >", "*1|*2|$1|s|*1|*2|$3|2-0|*2|$1|a|$1|2"),
        ("xpending s g idle 100 - + 10", "*1|*4|$3|1-0|$5|alice|:100|:1"),
        ("xclaim s g bob 100 1 2", "*1|*2|$3|1-0|*2|$1|a|$1|1"),
        ("xautoclaim s g bob 0 - count x", "-ERR COUNT must be > 0"),
        ("xautoclaim s g bob 0 - count 1", "*3|$3|2-0|*1|*2|$3|1-0|*2|$1|a|$1|1|*0"),
        ("xinfo consumers s g", "*2|*8|$4|name|$5|alice|$7|pending|:1|$4|idle|:0|$8|inactive|:0|*8|$4|name|$3|bob|$7|pending|:1|$4|idle|:0|$8|inactive|:0"),
        ("xclaim s g bob x 1", "-ERR Invalid min-idle-time argument for XCLAIM"),
        ("xclaim s g bob 0 1 nosuch", "-ERR Unrecognized XCLAIM option 'nosuch'"),
        ("xpending s g - +", "-ERR syntax error"),
        ("xpending s nosuch", "-NOGROUP No such key 's' or consumer group 'nosuch'"),
    ]);
}

#[test]
fn xinfo_groups_reports_read_counter_and_lag() {
    let mut client = Client::new();
    client.check_replies(&[
        ("xadd s 1 a 1", "$3|1-0"),
        ("xadd s 2 a 1", "$3|2-0"),
        ("xadd s 3 a 1", "$3|3-0"),
        ("xgroup create s g 1", "+OK"),
        ("xinfo groups s", "*1|*12|$4|name|$1|g|$9|consumers|:0|$7|pending|:0|$17|last-delivered-id|$3|1-0|$12|entries-read|$-1|$3|lag|:2"),
        ("xdel s 2", ":1"),
        ("xinfo groups s", "*1|*12|$4|name|$1|g|$9|consumers|:0|$7|pending|:0|$17|last-delivered-id|$3|1-0|$12|entries-read|$-1|$3|lag|$-1"),
        ("xdel s 1", ":1"),
        // All deleted entries precede the remaining ones, so the read counter is exact again.
        ("xgroup setid s g 0 entriesread 2", "+OK"),
        ("xinfo groups s", "*1|*12|$4|name|$1|g|$9|consumers|:0|$7|pending|:0|$17|last-delivered-id|$3|0-0|$12|entries-read|:2|$3|lag|:1"),
        ("xsetid s 9 entriesadded 7 maxdeletedid 4", "+OK"),
        ("xsetid s 2", "-ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"),
        ("xadd s 9-1 a 1", "$3|9-1"),
        ("xsetid s 8", "-ERR The ID specified in XSETID is smaller than the target stream top item"),
        ("xdel s 9-1", ":1"),
        ("xsetid s 9-1 entriesadded 7", "+OK"),
        ("xinfo stream s", "*20|$6|length|:1|$15|radix-tree-keys|:1|$16|radix-tree-nodes|:2|$17|last-generated-id|$3|9-1|$20|max-deleted-entry-id|$3|9-1|$13|entries-added|:7|$23|recorded-first-entry-id|$3|3-0|$6|groups|:1|$11|first-entry|*2|$3|3-0|*2|$1|a|$1|1|$10|last-entry|*2|$3|3-0|*2|$1|a|$1|1"),
    ]);
}

#[test]
fn blocked_xread_receives_entries_after_last_id() {
    let mut client = Client::new();
    client.check_replies(&[
        ("xadd s 1 a 1", "$3|1-0"),
        ("xread block 10 streams s 0", "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1"),
    ]);
    assert!(matches!(client.run_status("xread block 0 streams s $"), DispatchStatus::Blocked));
    let waiter = client.detach_blocked_client();
    assert_eq!(&waiter.request().args()[5], b"1-0", "what was the last is kept");
    client.check_replies(&[("xadd t 1 a 1", "$3|1-0")]);
    assert!(!waiter.is_served());
    client.check_replies(&[("xadd s 2 a 2", "$3|2-0")]);
    assert!(waiter.is_served());
}

#[test]
fn blocked_reader_fails_when_group_is_destroyed() {
    for line in ["xgroup destroy s g", "del s", "set s 1"] {
        let mut client = Client::new();
        client.check_replies(&[("xgroup create s g $ mkstream", "+OK")]);
        assert!(matches!(
            client.run_status("xreadgroup group g alice block 0 streams s >"),
            DispatchStatus::Blocked
        ));
        let waiter = client.detach_blocked_client();
        client.run_to_text(line);
        assert!(waiter.is_served(), "{line}");
    }
}

#[test]
fn xreadgroup_claims_long_pending_entries() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("xgroup create s g $ mkstream", "+OK"),
        ("xadd s 1 a 1", "$3|1-0"),
        ("xadd s 2 a 2", "$3|2-0"),
        ("xadd s 3 a 3", "$3|3-0"),
        ("xadd s 4 a 4", "$3|4-0"),
        (
            "xreadgroup group g alice count 3 streams s >",
            "*1|*2|$1|s|*3|*2|$3|1-0|*2|$1|a|$1|1|*2|$3|2-0|*2|$1|a|$1|2|*2|$3|3-0|*2|$1|a|$1|3",
        ),
    ]);
    client.now = Millis(client.now.0 + 50);
    client.check_replies(&[("xclaim s g alice 0 1", "*1|*2|$3|1-0|*2|$1|a|$1|1"), ("xdel s 2", ":1")]);
    client.now = Millis(client.now.0 + 50);
    let before = client.logged_commands().len();
    client.check_replies(&[
        // The longest pending entry comes first and new entries come last. Deleted entries are no longer pending.
        ("xreadgroup group g bob claim 50 streams s >", "*1|*2|$1|s|*3|*4|$3|3-0|*2|$1|a|$1|3|:100|:1|*4|$3|1-0|*2|$1|a|$1|1|:50|:2|*4|$3|4-0|*2|$1|a|$1|4|:0|:0"),
        ("xreadgroup group g alice claim 50 streams s >", "*-1"),
        ("xreadgroup group g alice claim 0 count 1 noack streams s >", "*1|*2|$1|s|*1|*4|$3|1-0|*2|$1|a|$1|1|:0|:3"),
        ("xreadgroup group g alice claim 0 streams s 0", "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1"),
        ("xreadgroup group g bob claim x streams s >", "-ERR min-idle-time is not an integer or out of range"),
        ("xreadgroup group g bob claim -1 streams s >", "-ERR min-idle-time must be a positive integer"),
        ("xread claim 1 streams s 0", "-ERR syntax error"),
    ]);
    let log = [
        "0 MULTI",
        "0 XGROUP CREATECONSUMER s g bob",
        "0 XACK s g 2-0",
        "0 XCLAIM s g bob 0 3-0 TIME 1700000000100 RETRYCOUNT 2 FORCE JUSTID LASTID 3-0",
        "0 XCLAIM s g bob 0 1-0 TIME 1700000000100 RETRYCOUNT 3 FORCE JUSTID LASTID 3-0",
        "0 XCLAIM s g bob 0 4-0 TIME 1700000000100 RETRYCOUNT 1 FORCE JUSTID LASTID 4-0",
        "0 XGROUP SETID s g 4-0 ENTRIESREAD 4",
        "0 EXEC",
    ];
    assert_eq!(client.logged_commands()[before..before + log.len()], log);
}

#[test]
fn blocked_reader_retries_when_pending_entry_becomes_claimable() {
    let mut client = Client::new();
    client.check_replies(&[
        ("xgroup create s g $ mkstream", "+OK"),
        ("xadd s 1 a 1", "$3|1-0"),
        ("xreadgroup group g alice streams s >", "*1|*2|$1|s|*1|*2|$3|1-0|*2|$1|a|$1|1"),
    ]);
    let begin = client.now;
    assert!(matches!(
        client.run_status("xreadgroup group g bob block 5000 claim 300 streams s >"),
        DispatchStatus::Blocked
    ));
    let waiter = client.detach_blocked_client();
    assert_eq!(waiter.deadline(), Some(Millis(begin.0 + 300)));
    assert_eq!(waiter.deadline_reason(), engine::UnblockReason::Retry);
    assert_eq!(&waiter.request().args()[5], b"4700", "the time that is left then");
    assert!(matches!(
        client.run_status("xreadgroup group g bob block 200 claim 300 streams s >"),
        DispatchStatus::Blocked
    ));
    let waiter = client.detach_blocked_client();
    assert_eq!(
        (waiter.deadline(), waiter.deadline_reason()),
        (Some(Millis(begin.0 + 200)), engine::UnblockReason::Timeout)
    );
}
