//! Tests of deletions with KEEPREF, DELREF and ACKED.

use crate::testing::Client;

/// Creates a stream of six entries. Group `g` has read all of them, group `h` only two.
fn client_with_stream_read_by_two_groups() -> Client {
    let mut client = Client::with_recording_log();
    for id in 1..=6 {
        client.call(&["xadd", "s", &id.to_string(), "a", "b"]);
    }
    client.check_replies(&[("xgroup create s g 0", "+OK"), ("xgroup create s h 0", "+OK")]);
    client.run_to_text("xreadgroup group g c streams s >");
    client.run_to_text("xreadgroup group h c count 2 streams s >");
    client
}

/// Runs a line, checks its reply, and returns the commands that were replicated.
fn run_and_return_replicated_commands(client: &mut Client, line: &str, reply: &str) -> Vec<String> {
    let before = client.logged_commands().len();
    assert_eq!(client.run_to_table_text(line), reply, "{line}");
    client.logged_commands()[before..].to_vec()
}

#[test]
fn xdelex_options_control_pending_entries() {
    let mut client = client_with_stream_read_by_two_groups();
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xdelex s ids 2 1-0 9-0", "*2|:1|:-1"),
        ["0 XDEL s 1-0"]
    );
    client.check_replies(&[("xpending s g", "*4|:6|$3|1-0|$3|6-0|*1|*2|$1|c|$1|6")]);
    // An id that is still pending after its stream entry was deleted is removed from the pending lists.
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xdelex s delref ids 2 1-0 2-0", "*2|:-1|:1"),
        ["0 MULTI", "0 XACK s g 1-0 2-0", "0 XACK s h 1-0 2-0", "0 XDEL s 2-0", "0 EXEC"]
    );
    client.check_replies(&[
        ("xpending s g", "*4|:4|$3|3-0|$3|6-0|*1|*2|$1|c|$1|4"),
        ("xpending s h", "*4|:0|$-1|$-1|*-1"),
        ("xack s g 3", ":1"),
        // The other group has not read the entry yet, so the entry stays.
        ("xdelex s acked ids 2 3-0 9-0", "*2|:2|:2"),
    ]);
    client.run_to_text("xreadgroup group h c streams s >");
    client.check_replies(&[("xdelex s acked ids 1 3", "*1|:2"), ("xack s h 3", ":1")]);
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xdelex s acked ids 1 3", "*1|:1"),
        ["0 XDEL s 3-0"]
    );
    assert_eq!(run_and_return_replicated_commands(&mut client, "xdelex s acked ids 1 3", "*1|:-1"), [""; 0]);
}

#[test]
fn xackdel_acknowledges_and_deletes() {
    let mut client = client_with_stream_read_by_two_groups();
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xackdel s g ids 2 1-0 1-0", "*2|:1|:-1"),
        ["0 MULTI", "0 XACK s g 1-0", "0 XDEL s 1-0", "0 EXEC"]
    );
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xackdel s g acked ids 1 2", "*1|:2"),
        ["0 XACK s g 2-0"]
    );
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xackdel s h acked ids 1 2", "*1|:1"),
        ["0 MULTI", "0 XACK s h 2-0", "0 XDEL s 2-0", "0 EXEC"]
    );
    client.run_to_text("xreadgroup group h c streams s >");
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xackdel s h delref ids 1 3", "*1|:1"),
        ["0 MULTI", "0 XACK s g 3-0", "0 XACK s h 3-0", "0 XDEL s 3-0", "0 EXEC"]
    );
    client.check_replies(&[
        ("xackdel s nosuch ids 2 4 x", "*2|:-1|:-1"),
        ("xackdel nosuch g ids 2 4 x", "*2|:-1|:-1"),
        ("xdelex nosuch ids 2 4 x", "*2|:-1|:-1"),
        ("xlen s", ":3"),
    ]);
    client.check_events(&[
        ("xackdel s g ids 1 4", "xdel s"),
        ("xackdel s g acked ids 1 5", ""),
        ("xdelex s ids 1 5", "xdel s"),
        ("xdelex s ids 1 5", ""),
        ("xdelex nosuch ids 1 1", ""),
    ]);
}

#[test]
fn deletion_options_are_validated() {
    let (syntax, ids) = ("-ERR syntax error", "-ERR Number of IDs must be a positive integer");
    let count = "-ERR The `numids` parameter must match the number of arguments";
    let mut client = client_with_stream_read_by_two_groups();
    client.check_replies(&[
        ("xdelex s ids 2 1-0", count),
        ("xdelex s ids 0 1-0", ids),
        ("xdelex s ids -1 1-0", ids),
        ("xdelex s ids x 1-0", ids),
        ("xdelex s ids 1 1-0 2-0", syntax),
        ("xdelex s ids 1 1-0 ids", syntax),
        ("xdelex s keepref delref ids 1 1-0", syntax),
        ("xdelex s keepref 1 1-0", syntax),
        ("xdelex s ids 1 x", "-ERR Invalid stream ID specified as stream command argument"),
        ("xdelex s ids 1 1-0 acked", "*1|:2"),
        ("xdelex s ids 1 1-0 ids 1 2-0", "*1|:1"),
        ("set t 1", "+OK"),
        ("xdelex t ids 2 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("xackdel t g foo bar baz", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("xtrim s maxlen 1 acked delref", syntax),
    ]);
}

#[test]
fn trim_options_control_pending_entries() {
    let mut client = client_with_stream_read_by_two_groups();
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xtrim s maxlen 5 keepref", ":1"),
        ["0 XTRIM s MAXLEN = 5"]
    );
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xtrim s delref maxlen 4", ":1"),
        ["0 MULTI", "0 XACK s g 2-0", "0 XACK s h 2-0", "0 XTRIM s MAXLEN = 4", "0 EXEC"]
    );
    client.run_to_text("xreadgroup group h c streams s >");
    client.check_replies(&[
        ("xtrim s maxlen 2 acked", ":0"),
        ("xack s g 4 5", ":2"),
        ("xack s h 3 4 5", ":3"),
    ]);
    // Entry 3 stays, since one group has not acknowledged it.
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xtrim s minid 5 acked", ":1"),
        ["0 XDEL s 4-0"]
    );
    client.check_replies(&[("xack s g 3", ":1")]);
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xtrim s minid 6 acked", ":2"),
        ["0 XTRIM s MINID = 6-0"]
    );
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xadd s maxlen 1 delref 7 a b", "$3|7-0"),
        ["0 MULTI", "0 XADD s MAXLEN = 1 7-0 a b", "0 XACK s g 6-0", "0 XACK s h 6-0", "0 EXEC"]
    );
    assert_eq!(
        run_and_return_replicated_commands(&mut client, "xadd s keepref 8 a b", "$3|8-0"),
        ["0 XADD s 8-0 a b"]
    );
    client.check_replies(&[
        ("xadd s acked maxlen 1 9 a b", "$3|9-0"),
        ("xlen s", ":3"),
        ("xadd s acked delref 9 a b", "-ERR Invalid stream ID specified as stream command argument"),
    ]);
}
