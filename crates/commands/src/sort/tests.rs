use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::Millis;
use engine::{CommandOrigin, CommandSet, DispatchStatus, Engine, Session};

use crate::testing::{Client, Connection};

const NOT_A_NUMBER: &str = "-ERR One or more scores can't be converted into double";

#[test]
fn sort_orders_elements() {
    Client::new().check_replies(&[
        ("sadd s 3 1 2 10", ":4"),
        ("sadd t b a c", ":3"),
        ("sort s", "*4|$1|1|$1|2|$1|3|$2|10"),
        ("sort s desc", "*4|$2|10|$1|3|$1|2|$1|1"),
        ("sort s alpha", "*4|$1|1|$2|10|$1|2|$1|3"),
        ("sort s limit 1 2", "*2|$1|2|$1|3"),
        ("sort s limit 1 2 desc", "*2|$1|3|$1|2"),
        ("sort s limit -1 2", "*2|$1|1|$1|2"),
        ("sort s limit 3 5", "*1|$2|10"),
        ("sort s limit 5 1", "*0"),
        ("sort s limit 2 -1", "*2|$1|3|$2|10"),
        ("sort s limit 0 0", "*0"),
        ("sort t", NOT_A_NUMBER),
        ("sort t alpha desc", "*3|$1|c|$1|b|$1|a"),
        ("sort t by nosort get #", "*3|$1|b|$1|a|$1|c"),
        ("eval \"return redis.call('sort_ro','t','by','nosort','desc')\" 1 t", "*3|$1|c|$1|b|$1|a"),
        ("eval \"return redis.call('sort','t','by','nosort','get','#')\" 1 t", "*3|$1|a|$1|b|$1|c"),
        ("sort_ro t alpha", "*3|$1|a|$1|b|$1|c"),
        ("zadd z 3 30 1 10 2 20", ":3"),
        ("sort z desc", "*3|$2|30|$2|20|$2|10"),
        ("sort z by nosort", "*3|$2|10|$2|20|$2|30"),
        ("sort z by nosort desc", "*3|$2|30|$2|20|$2|10"),
        ("sort z by nosort limit 1 1", "*1|$2|20"),
        ("sort z by nosort desc limit 1 5", "*2|$2|20|$2|10"),
        ("rpush l 3 1 2 1", ":4"),
        ("sort l", "*4|$1|1|$1|1|$1|2|$1|3"),
        ("sort l desc limit 0 2", "*2|$1|3|$1|2"),
        ("sort l by nosort", "*4|$1|3|$1|1|$1|2|$1|1"),
        ("sort l by nosort desc", "*4|$1|1|$1|2|$1|1|$1|3"),
        ("sort l by nosort limit 1 2", "*2|$1|1|$1|2"),
        ("sort l by nosort desc limit 1 2", "*2|$1|2|$1|1"),
        ("sort l by nosort limit 4 1", "*0"),
        ("sort l by nosort desc limit 4 1", "*0"),
        ("sort l by nosort limit 0 0", "*0"),
        ("eval \"return redis.call('sort','l','by','nosort')\" 1 l", "*4|$1|3|$1|1|$1|2|$1|1"),
        ("sort nosuch", "*0"),
        ("set x 1", "+OK"),
        ("hset h f 1", ":1"),
        ("sort x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("sort h", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("sort s by", "-ERR syntax error"),
        ("sort s nosuch", "-ERR syntax error"),
        ("sort s limit 1", "-ERR syntax error"),
        ("sort s limit a b", "-ERR value is not an integer or out of range"),
        ("sort_ro s store d", "-ERR syntax error"),
    ]);
}

#[test]
fn sort_patterns_name_weights_and_values() {
    Client::new().check_replies(&[
        ("sadd s 1 2 3", ":3"),
        ("mset w1 3 w2 2 w3 1", "+OK"),
        ("hset h1 f 9", ":1"),
        ("hset h3 f 7 g x", ":2"),
        ("sort s by w*", "*3|$1|3|$1|2|$1|1"),
        ("sort s by w* get w* get #", "*6|$1|1|$1|3|$1|2|$1|2|$1|3|$1|1"),
        ("sort s by w* desc limit 0 1", "*1|$1|1"),
        ("sort s by h*->f", "*3|$1|2|$1|3|$1|1"),
        ("sort s get h*->f get h*->nosuch", "*6|$1|9|$-1|$-1|$-1|$1|7|$-1"),
        ("sort s get h* get w", "*6|$-1|$-1|$-1|$-1|$-1|$-1"),
        ("sort s get h*->", "*3|$-1|$-1|$-1"),
        ("sort s by h*->g", NOT_A_NUMBER),
        ("sort s by h*->g alpha", "*3|$1|1|$1|2|$1|3"),
        ("rpush l 3 1 2", ":3"),
        ("sort l by nosuch* alpha", "*3|$1|3|$1|1|$1|2"),
        ("sort l by nosuch* alpha desc", "*3|$1|3|$1|1|$1|2"),
        ("sort l by nosuch* alpha desc limit 0 2", "*2|$1|3|$1|1"),
        ("sort l by nosuch*", "*3|$1|1|$1|2|$1|3"),
        ("sort l by nosuch* desc", "*3|$1|3|$1|2|$1|1"),
        ("sort l by nosort get w*", "*3|$1|1|$1|3|$1|2"),
        ("sort s get l", "*3|$-1|$-1|$-1"),
        ("rpush w4 x", ":1"),
        ("sadd one 4", ":1"),
        ("sort one get w* get w*->f get w1*->f", "*3|$-1|$-1|$-1"),
        ("eval \"return redis.call('sort','s','by','w*','get','w*')\" 1 s", "*3|$1|1|$1|2|$1|3"),
        ("multi\nsort s by w*\nexec", "+OK|+QUEUED|*1|*3|$1|3|$1|2|$1|1"),
    ]);
}

#[test]
fn sort_patterns_stay_in_one_slot_in_cluster_mode() {
    let denied = |word| {
        format!(
            "-ERR {word} option of SORT denied in Cluster mode when keys formed by the pattern may be in \
             different slots."
        )
    };
    Client::in_cluster().check_replies(&[
        ("sadd {a}s 1 2", ":2"),
        ("mset {a}w1 2 {a}w2 1", "+OK"),
        ("sort {a}s by {a}w* get {a}w*", "*2|$1|1|$1|2"),
        ("sort {a}s by w*", &denied("BY")),
        ("sort {a}s by {b}w*", &denied("BY")),
        ("sort {a}s by *{a}", &denied("BY")),
        ("sort {a}s get w*", &denied("GET")),
        ("sort {a}s get w", &denied("GET")),
        ("sort {a}s by w get #", "*2|$1|1|$1|2"),
        ("sort {a}s get #", "*2|$1|1|$1|2"),
        ("sort {a}s by x store {a}d", ":2"),
        ("sort {a}s store {b}d", "-CROSSSLOT Keys in request don't hash to the same slot"),
    ]);
}

#[test]
fn sort_store_creates_list() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[
        ("rpush l b a c", ":3"),
        ("sort l alpha store d", ":3"),
        ("lrange d 0 -1", "*3|$1|a|$1|b|$1|c"),
        ("object encoding d", "$8|listpack"),
        ("expire d 100", ":1"),
        ("sort l store d", NOT_A_NUMBER),
        ("llen d", ":3"),
        ("sort l alpha desc limit 0 2 store d", ":2"),
        ("lrange d 0 -1", "*2|$1|c|$1|b"),
        ("ttl d", ":-1"),
        ("sort l by nosort store l", ":3"),
        ("lrange l 0 -1", "*3|$1|b|$1|a|$1|c"),
        ("set w:a 7", "+OK"),
        ("sort l by nosort get w:* get # store d", ":6"),
        ("lrange d 0 -1", "*6|$0||$1|b|$1|7|$1|a|$0||$1|c"),
        ("sadd s c 10 b", ":3"),
        ("sort s by nosort desc store d store e", ":3"),
        ("lrange e 0 -1", "*3|$1|c|$1|b|$2|10"),
        ("llen d", ":6"),
        ("sort nosuch store nosuch", ":0"),
        ("sort l by nosort limit 3 1 store e", ":0"),
        ("exists e", ":0"),
        ("set x 1", "+OK"),
        ("sort x store d", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("sort nosuch store x", ":0"),
        ("exists x", ":0"),
    ]);
    let log: Vec<String> =
        client.logged_commands().into_iter().filter(|line| line.starts_with("0 sort")).collect();
    assert_eq!(
        log,
        [
            "0 sort l alpha store d",
            "0 sort l alpha desc limit 0 2 store d",
            "0 sort l by nosort store l",
            "0 sort l by nosort get w:* get # store d",
            "0 sort s by nosort desc store d store e",
            "0 sort l by nosort limit 3 1 store e",
            "0 sort nosuch store x",
        ]
    );
}

#[test]
fn sort_stores_long_list_with_usual_encoding() {
    let mut client = Client::new();
    for number in (0..3000).rev() {
        client.call(&["rpush", "l", &number.to_string()]);
    }
    client.check_replies(&[
        ("sort l store d", ":3000"),
        ("llen d", ":3000"),
        ("lindex d 0", "$1|0"),
        ("lindex d 2999", "$4|2999"),
        ("object encoding d", "$9|quicklist"),
        ("sort l limit 1500 2", "*2|$4|1500|$4|1501"),
        ("sort l by nosort desc limit 1500 2 store d", ":2"),
        ("lrange d 0 -1", "*2|$4|1500|$4|1501"),
    ]);
}

#[test]
fn sort_of_set_ties_is_deterministic_when_stored() {
    let mut client = Client::new();
    for number in [3, 20, 100, 1] {
        client.call(&["sadd", "s", &number.to_string()]);
    }
    client.check_replies(&[
        ("sort s by nosuch* alpha store d", ":4"),
        ("lrange d 0 -1", "*4|$1|1|$3|100|$2|20|$1|3"),
    ]);
}

#[test]
fn sort_store_sends_events() {
    Client::new().check_events(&[
        ("rpush l 2 1", "rpush l"),
        ("sort l", ""),
        ("sort l store d", "sortstore d"),
        ("sort l limit 9 1 store d", "del d"),
        ("sort l limit 9 1 store d", ""),
        ("sort l store l", "sortstore l"),
    ]);
}

#[test]
fn sort_store_serves_blocked_clients() {
    for line in ["sort s store d", "sort s by w* store d", "multi\nsort s by w* store d\nexec"] {
        let mut client = Client::new();
        client.check_replies(&[("sadd s 2 1", ":2")]);
        assert!(matches!(client.run_status("blmove d e left left 0"), DispatchStatus::Blocked));
        let waiter = client.detach_blocked_client();
        client.run_to_text(line);
        assert!(waiter.is_served(), "{line}");
        client.check_replies(&[("lrange d 0 -1", "*1|$1|2"), ("lrange e 0 -1", "*1|$1|1")]);
    }
}

#[test]
fn sort_patterns_require_access_to_all_keys() {
    let denied = |word| format!("-ERR {word} option of SORT denied due to insufficient ACL permissions.");
    let not_a_key = "-NOPERM No permissions to access a key";
    let mut client = Client::new();
    client.check_replies(&[
        ("rpush l 2 1", ":2"),
        ("acl setuser u on nopass +@all ~l ~d", "+OK"),
        ("acl setuser x on nopass +@all ~a* \"(+@all %R~*)\"", "+OK"),
        ("acl setuser y on nopass +@all ~l \"(+get ~*)\"", "+OK"),
        ("acl setuser v on nopass +@all %R~* ~d", "+OK"),
        ("auth u x", "+OK"),
        ("sort l", "*2|$1|1|$1|2"),
        ("sort l by nosort", "*2|$1|2|$1|1"),
        ("sort l by w*", &denied("BY")),
        ("sort l get w*", &denied("GET")),
        ("sort_ro l get w", &denied("GET")),
        ("sort l get #", &denied("GET")),
        ("sort l store d", ":2"),
        ("sort l store e", not_a_key),
        ("auth x x", "+OK"),
        ("sort l by w* get #", "*2|$1|1|$1|2"),
        ("auth y x", "+OK"),
        ("sort l by w* get #", &denied("BY")),
        ("auth v x", "+OK"),
        ("sort l by w* get # store d", ":2"),
        ("sort l store e", not_a_key),
    ]);
}

#[test]
fn getkeys_reports_sort_keys() {
    Client::new().check_replies(&[
        ("command getkeys sort s by store get store store d", "*2|$1|s|$1|d"),
        ("command getkeys sort_ro s by w*", "*1|$1|s"),
    ]);
}

#[test]
fn numeric_sort_accepts_decimal_text() {
    let table: &[(&str, bool)] = &[
        ("", false),
        ("1", true),
        ("1.5", true),
        (" 1.5", false),
        ("1 ", false),
        ("-.5", true),
        ("5.", true),
        ("1e3", true),
        ("0x10", false),
        ("inf", true),
        ("-Infinity", true),
        ("nan", false),
        ("1e400", false),
        ("1e-400", false),
        ("0e-400", true),
        ("x", false),
        (" ", false),
        ("+", false),
    ];
    let mut client = Client::new();
    for (text, is_number) in table {
        client.call(&["del", "l"]);
        client.call(&["rpush", "l", text, "2"]);
        let reply = client.call(&["sort", "l"]);
        assert_eq!(reply.as_array().is_some(), *is_number, "{text:?}");
    }
}

/// Regression test: SORT by keys of all slots must not deadlock while clients that hold one slot wait for another slot.
#[test]
fn sort_by_other_keys_does_not_deadlock() {
    let mut client = Client::new();
    for number in 0..200 {
        client.call(&["sadd", "s", &number.to_string()]);
        client.call(&["set", &format!("w{number}"), &(200 - number).to_string()]);
    }
    let (engine, commands) = (&client.engine, &client.commands);
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let done = done.clone();
            scope.spawn(move || {
                let mut other = connect_client(engine, commands, thread);
                while !done.load(Ordering::Relaxed) {
                    other("mget w1 w2 w3 w4 w5 w6 w7 s");
                    other("sort s by w* limit 0 1");
                }
            });
        }
        let mut mine = connect_client(engine, commands, 7);
        for _ in 0..50 {
            assert_eq!(mine("sort s by w* limit 0 1 get # get w*"), "*2|$3|199|$1|1");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Connects another client to the same server; the closure executes one line and returns the reply.
fn connect_client<'e>(engine: &'e Engine, commands: &'e CommandSet, id: u64) -> impl FnMut(&str) -> String {
    let session = Session::new(id + 10, CommandOrigin::Client, true);
    let mut connection = Connection::new(engine, commands, session, Millis(1_700_000_000_000));
    move |line| connection.run(&format!("{line}\n")).2.trim_end().replace("\r\n", "|")
}
