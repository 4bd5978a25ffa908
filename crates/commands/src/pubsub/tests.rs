use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{CommandOrigin, ConnectionInfo, Session};

use crate::testing::Client;

/// Connects a second client to the same server. Returns its session and the counter of its wake-ups.
fn connect_second_client(client: &Client) -> (Session, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    let wake = Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let seen = client.engine.clients.connect(ConnectionInfo::default(), client.now, wake);
    (Session::for_client(seen, CommandOrigin::Client, true), woken)
}

/// Runs a line as the second client, `other`, and returns the output.
fn run_as_other(client: &mut Client, other: &mut Session, line: &str) -> String {
    std::mem::swap(other, &mut client.session);
    let reply = client.run_to_text(line);
    std::mem::swap(other, &mut client.session);
    reply
}

fn take_messages(session: &Session) -> String {
    let mut out = Vec::new();
    session.take_messages(&mut out);
    String::from_utf8(out).unwrap().replace("\r\n", "|")
}

/// A script that has published is not restarted when it accesses an undeclared key.
#[test]
fn publishing_script_is_not_restarted() {
    let mut client = Client::new();
    let (mut listener, _) = connect_second_client(&client);
    run_as_other(&mut client, &mut listener, "subscribe news");
    let script = "redis.call('publish', 'news', 'hi') return redis.call('get', 'other')";
    client.call(&["eval", script, "1", "k"]);
    assert_eq!(take_messages(&listener), "*3|$7|message|$4|news|$2|hi|");
}

#[test]
fn published_message_reaches_channels_and_patterns() {
    let mut client = Client::with_recording_log();
    let (mut listener, woken) = connect_second_client(&client);
    run_as_other(&mut client, &mut listener, "subscribe news other\npsubscribe n*");
    let (mut fan, _) = connect_second_client(&client);
    run_as_other(&mut client, &mut fan, "hello 3\npsubscribe n?ws x*");
    client.check_replies(&[
        ("publish news hi", ":3"),
        ("publish nobody x", ":1"),
        ("publish elsewhere x", ":0"),
        ("pubsub channels", "*2|$4|news|$5|other"),
        ("pubsub channels o*", "*1|$5|other"),
        ("pubsub numsub news missing", "*4|$4|news|:1|$7|missing|:0"),
        ("pubsub numpat", ":3"),
    ]);
    assert_eq!(
        take_messages(&listener),
        "*3|$7|message|$4|news|$2|hi|*4|$8|pmessage|$2|n*|$4|news|$2|hi|*4|$8|pmessage|$2|n*|$6|nobody|$1|x|"
    );
    assert_eq!(woken.load(Ordering::Relaxed), 1, "once until it has looked");
    assert_eq!(take_messages(&fan), ">4|$8|pmessage|$4|n?ws|$4|news|$2|hi|");
    assert_eq!(
        client.logged_commands(),
        ["0 publish news hi", "0 publish nobody x", "0 publish elsewhere x"]
    );
    client.engine.disconnect(&mut listener);
    client.engine.disconnect(&mut fan);
    client.check_replies(&[("publish news hi", ":0"), ("pubsub channels", "*0"), ("pubsub numpat", ":0")]);
    assert_eq!(client.engine.notifications.pubsub.client_count(), 0);
}

#[test]
fn subscriptions_are_confirmed_with_count() {
    let mut client = Client::new();
    let refused = "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are \
                   allowed in this context";
    client.check_replies(&[
        ("unsubscribe", "*3|$11|unsubscribe|$-1|:0"),
        ("sunsubscribe", "*3|$12|sunsubscribe|$-1|:0"),
        ("subscribe a a", "*3|$9|subscribe|$1|a|:1|*3|$9|subscribe|$1|a|:1"),
        ("psubscribe p*", "*3|$10|psubscribe|$2|p*|:2"),
        ("ssubscribe s", "*3|$10|ssubscribe|$1|s|:1"),
        ("get k", refused),
        ("ping", "*2|$4|pong|$0|"),
        ("ping x", "*2|$4|pong|$1|x"),
        ("unsubscribe nosuch", "*3|$11|unsubscribe|$6|nosuch|:2"),
        ("unsubscribe", "*3|$11|unsubscribe|$1|a|:1"),
        ("punsubscribe", "*3|$12|punsubscribe|$2|p*|:0"),
        ("get k", refused),
        ("sunsubscribe", "*3|$12|sunsubscribe|$1|s|:0"),
        ("get k", "$-1"),
        ("multi\nsubscribe a\nget k\nexec", "+OK|+QUEUED|+QUEUED|*2|*3|$9|subscribe|$1|a|:1|$-1"),
        ("reset", "+RESET"),
        ("pubsub channels", "*0"),
        ("pubsub nosuch", "-ERR unknown subcommand 'nosuch'. Try PUBSUB HELP."),
        (
            "pubsub channels a b",
            "-ERR unknown subcommand or wrong number of arguments for 'channels'. Try PUBSUB HELP.",
        ),
    ]);
}

/// In RESP3 a client may publish to its own subscription. The message follows the reply to PUBLISH.
#[test]
fn resp3_messages_follow_replies() {
    let mut client = Client::new();
    client.run_to_text("hello 3\nsubscribe a");
    client.check_replies(&[
        ("publish a 1", ":1|>3|$7|message|$1|a|$1|1"),
        ("multi\npublish a 2\nping\nexec", "+OK|+QUEUED|+QUEUED|*2|:1|+PONG|>3|$7|message|$1|a|$1|2"),
        ("ping", "+PONG"),
        ("unsubscribe", ">3|$11|unsubscribe|$1|a|:0"),
    ]);
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let mut client = Client::new();
    client.engine.notifications.pubsub.output_limit.store(100, Ordering::Relaxed);
    let (mut slow, _) = connect_second_client(&client);
    run_as_other(&mut client, &mut slow, "subscribe a");
    let message = "x".repeat(50);
    client.check_replies(&[(&format!("publish a {message}"), ":1")]);
    assert!(!slow.client().is_killed());
    client.check_replies(&[(&format!("publish a {message}"), ":1")]);
    assert!(slow.client().is_killed() && slow.client().exceeded_output_limit());
    assert_eq!(take_messages(&slow), "");
}

#[test]
fn shard_subscriptions_end_when_slot_migrates() {
    let mut client = Client::in_cluster();
    let (mut listener, _) = connect_second_client(&client);
    run_as_other(&mut client, &mut listener, "ssubscribe {a}1 {a}2");
    run_as_other(&mut client, &mut listener, "ssubscribe b");
    client.check_replies(&[
        ("spublish {a}1 hi", ":1"),
        ("publish {a}1 hi", ":0"),
        ("ssubscribe a b", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ("pubsub shardnumsub {a}1 b", "*4|$4|{a}1|:1|$1|b|:1"),
        ("pubsub shardchannels", "*3|$1|b|$4|{a}1|$4|{a}2"),
    ]);
    assert_eq!(take_messages(&listener), "*3|$8|smessage|$4|{a}1|$2|hi|");
    let gone = slot_routing::Slot::of_key(b"a");
    client.engine.notifications.pubsub.unsubscribe_moved_slots(|slot| slot == gone);
    assert_eq!(take_messages(&listener), "*3|$12|sunsubscribe|$4|{a}1|:2|*3|$12|sunsubscribe|$4|{a}2|:1|");
    client.check_replies(&[("pubsub shardchannels", "*1|$1|b")]);
}

/// A push message is not a reply, so CLIENT REPLY OFF does not suppress it.
#[test]
fn reply_off_does_not_suppress_push_messages() {
    let mut client = Client::new();
    client.run_to_text("hello 3");
    let on = "client reply on";
    for (lines, heard) in [
        ("subscribe a\npublish a x\nget k", ">3|$9|subscribe|$1|a|:1|>3|$7|message|$1|a|$1|x|"),
        ("unsubscribe a\nunsubscribe\nsubscribe", ">3|$11|unsubscribe|$1|a|:0|>3|$11|unsubscribe|_|:0|"),
        ("multi\nsubscribe b\nget k\nexec", ">3|$9|subscribe|$1|b|:1|"),
        ("punsubscribe x\nunsubscribe b", ">3|$12|punsubscribe|$1|x|:1|>3|$11|unsubscribe|$1|b|:0|"),
    ] {
        let said = client.run_to_text(&format!("client reply off\n{lines}\n{on}\nping")).replace("\r\n", "|");
        assert_eq!(said, format!("{heard}+OK|+PONG|"), "{lines}");
    }
    let said = client.run_to_text("client reply skip\nsubscribe a\nping").replace("\r\n", "|");
    assert_eq!(said, ">3|$9|subscribe|$1|a|:1|+PONG|");
    client.run_to_text("unsubscribe\nhello 2");
    let said = client
        .run_to_text("client reply off\nsubscribe a\nunsubscribe\nclient reply on")
        .replace("\r\n", "|");
    assert_eq!(said, "*3|$9|subscribe|$1|a|:1|*3|$11|unsubscribe|$1|a|:0|+OK|");
}
