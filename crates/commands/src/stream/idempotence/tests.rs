//! Tests of repeated messages of idempotent producers.

use crate::testing::Client;

fn check_counts(client: &mut Client, expected: [u64; 6]) {
    let shown = client.run_to_table_text("xinfo stream s");
    let names =
        ["idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added", "iids-duplicates"];
    for (name, count) in names.iter().zip(expected) {
        assert!(shown.contains(&format!("|{name}|:{count}|")), "{name} {count}: {shown}");
    }
}

#[test]
fn duplicate_message_is_added_once() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("xadd s idmp p 1 * a b", "$15|1700000000000-0"),
        ("xadd s idmp p 1 * a other", "$15|1700000000000-0"),
        ("xadd s idmp p 2 * a b", "$15|1700000000000-1"),
        ("xadd s idmp q 1 maxlen 10 * a b", "$15|1700000000000-2"),
        ("xadd s idmpauto p * a b c d", "$15|1700000000000-3"),
        ("xadd s idmpauto p * c d a b", "$15|1700000000000-3"),
        ("xadd s idmpauto p * a bc", "$15|1700000000000-4"),
        ("xlen s", ":5"),
        ("xadd nosuch nomkstream idmp p 1 * a b", "$-1"),
    ]);
    check_counts(&mut client, [100, 100, 2, 5, 5, 2]);
    assert_eq!(client.logged_commands()[0], "0 XADD s IDMP p 1 1700000000000-0 a b");
    assert_eq!(client.logged_commands()[2], "0 XADD s IDMP q 1 MAXLEN = 3 1700000000000-2 a b");
    client.now.0 += 99_999;
    client.check_replies(&[("xadd s idmp p 1 * a b", "$15|1700000000000-0")]);
    client.now.0 += 1;
    client.check_replies(&[("xadd s idmp p 1 * a b", "$15|1700000100000-0"), ("del s", ":1")]);
}

#[test]
fn xcfgset_sets_stream_bounds() {
    let mut client = Client::new();
    client.check_replies(&[
        ("xadd s idmp p 1 * a b", "$15|1700000000000-0"),
        ("xcfgset s idmp-maxsize 100", "+OK"),
        // XCFGSET did not change the parameters, so the known idempotence ids stay valid.
        ("xadd s idmp p 1 * a b", "$15|1700000000000-0"),
        ("xcfgset s idmp-maxsize 2 idmp-duration 5", "+OK"),
        ("xadd s idmp p 1 * a b", "$15|1700000000000-1"),
        ("xadd s idmp p 2 * a b", "$15|1700000000000-2"),
        ("xadd s idmp p 3 * a b", "$15|1700000000000-3"),
        ("xadd s idmp p 2 * a b", "$15|1700000000000-2"),
        ("xadd s idmp p 1 * a b", "$15|1700000000000-4"),
        ("xcfgset s", "-ERR At least one parameter must be specified"),
        ("xcfgset s idmp-duration", "-ERR syntax error"),
        ("xcfgset s idmp-duration 0", "-ERR IDMP-DURATION must be between 1 and 86400 seconds"),
        ("xcfgset s idmp-maxsize 10001", "-ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
        ("xcfgset s idmp-maxsize x", "-ERR value is not an integer or out of range"),
        ("xcfgset s idmp-maxsize 1 idmp-maxsize 1", "-ERR IDMP-MAXSIZE specified multiple times"),
        ("xcfgset nosuch idmp-maxsize 1", "-ERR no such key"),
    ]);
    check_counts(&mut client, [5, 2, 1, 2, 5, 2]);
    let before = client.run_to_text("dump s");
    client.check_replies(&[("copy s t", ":1")]);
    assert_eq!(client.run_to_text("dump t"), before);
}

#[test]
fn xidmprecord_restores_iids() {
    let mut client = Client::new();
    client.check_replies(&[
        ("xadd s idmp p 1 * a b", "$15|1700000000000-0"),
        ("xadd s idmp q 1 * a b", "$15|1700000000000-1"),
        ("xadd s idmp q 1 * a b", "$15|1700000000000-1"),
        ("xgroup create s g 0", "+OK"),
        ("xgroup createconsumer s g c", ":1"),
    ]);
    let resp::Value::Bulk(payload) = client.call(&["dump", "s"]) else { panic!("no payload") };
    client.check_replies(&[("del s", ":1")]);
    client.call_bytes(&[b"restore", b"s", b"0", &payload]);
    check_counts(&mut client, [100, 100, 2, 2, 2, 1]);
    client.check_replies(&[
        ("xadd s idmp p 1 * a b", "$15|1700000000000-0"),
        ("xidmprecord s p 2 1700000000000-1", "+OK"),
        ("xidmprecord s p 2 1700000000000-1", "+OK"),
        (
            "xidmprecord s p 2 1700000000000-0",
            "-ERR IID already exists for this producer with a different stream ID",
        ),
        ("xidmprecord s p 3 1-1", "-ERR No such message in stream"),
        ("xidmprecord s p \"\" 1-1", "-ERR idempotent ID must be non-empty"),
        ("xidmprecord s \"\" 3 1-1", "-ERR producer ID must be non-empty"),
        ("xadd s idmp p 2 * a b", "$15|1700000000000-1"),
    ]);
}

#[test]
fn producer_options_are_validated() {
    let twice = "-ERR syntax error, IDMP/IDMPAUTO specified multiple times";
    let explicit = "-ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs";
    Client::new().check_replies(&[
        ("xadd s idmp p 1 idmp p 1 * a b", twice),
        ("xadd s idmpauto p idmp p 1 * a b", twice),
        ("xadd s idmp p 1 1-1 a b", explicit),
        ("xadd s idmpauto p 1-* a b", explicit),
        ("xadd s idmp \"\" 1 * a b", "-ERR syntax error, IDMP requires a non-empty producer ID"),
        ("xadd s idmp p \"\" * a b", "-ERR syntax error, IDMP requires a non-empty idempotent ID"),
        ("xadd s idmpauto \"\" * a b", "-ERR syntax error, IDMPAUTO requires a non-empty producer ID"),
        ("xadd s idmp p 1 *", "-ERR wrong number of arguments for 'xadd' command"),
        ("exists s", ":0"),
    ]);
}
