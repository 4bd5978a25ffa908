//! Tests of client-side caching: memory use and the order of invalidations.

use std::sync::atomic::Ordering;

use engine::{CommandOrigin, ConnectionInfo, Session};

use crate::testing::Client as Tester;

fn start_tracking(client: &Tester) -> Session {
    let seen = client.engine.clients.connect(ConnectionInfo::default(), client.now, Box::new(|| ()));
    Session::for_client(seen, CommandOrigin::Client, true)
}

/// Runs lines as the other client and returns the output.
fn run_as_other(client: &mut Tester, other: &mut Session, lines: &str) -> String {
    std::mem::swap(other, &mut client.session);
    let reply = client.run_to_text(lines);
    std::mem::swap(other, &mut client.session);
    reply
}

fn take_messages(session: &Session) -> String {
    let mut out = Vec::new();
    session.take_messages(&mut out);
    String::from_utf8(out).unwrap().replace("\r\n", "|")
}

#[test]
fn tracked_keys_are_freed_with_last_tracking_client() {
    let mut client = Tester::new();
    let (mut first, mut second) = (start_tracking(&client), start_tracking(&client));
    for reader in [&mut first, &mut second] {
        run_as_other(&mut client, reader, "hello 3\nclient tracking on\nget a\nget b\nget c");
    }
    let noted = |client: &Tester| {
        (client.engine.notifications.tracking.key_count(), client.engine.notifications.tracking.item_count())
    };
    assert_eq!(noted(&client), (3, 6));
    client.engine.disconnect(&mut first);
    assert_eq!(noted(&client), (3, 6), "they are forgotten as they change");
    run_as_other(&mut client, &mut second, "client tracking off");
    assert_eq!(noted(&client), (0, 0));
    run_as_other(&mut client, &mut second, "client tracking on\nget a");
    client.run_to_text("set a 1");
    assert_eq!(take_messages(&second), ">2|$10|invalidate|*1|$1|a|");
    client.engine.disconnect(&mut second);
}

#[test]
fn tracked_prefixes_count_towards_client_memory() {
    let mut client = Tester::new();
    let mut listener = start_tracking(&client);
    run_as_other(&mut client, &mut listener, "hello 3");
    let before = listener.client().memory_bytes();
    let prefixes: String =
        (0..100).map(|number| format!(" prefix {number:03}{}", "x".repeat(1000))).collect();
    run_as_other(&mut client, &mut listener, &format!("client tracking on bcast{prefixes}"));
    let with_prefixes = listener.client().memory_bytes();
    assert!(with_prefixes - before > 200_000, "{before} to {with_prefixes}");
    // Prefixes that are already tracked are not counted twice.
    run_as_other(&mut client, &mut listener, "client tracking on bcast prefix new");
    assert!(listener.client().memory_bytes() - with_prefixes < 1000);
    run_as_other(&mut client, &mut listener, "client tracking off");
    assert_eq!(listener.client().memory_bytes(), before);
    client.engine.disconnect(&mut listener);
}

/// As in Valkey, the invalidation for FLUSHALL is sent immediately, and the invalidations for prefixes are sent at the
/// end of the batch.
#[test]
fn invalidations_around_flush_match_valkey_order() {
    let mut client = Tester::new();
    let mut listener = start_tracking(&client);
    run_as_other(&mut client, &mut listener, "hello 3\nclient tracking on bcast prefix k");
    client.run_to_text("multi\nset k1 a\nflushall\nset k2 b\nexec");
    assert_eq!(take_messages(&listener), ">2|$10|invalidate|_|>2|$10|invalidate|*2|$2|k1|$2|k2|");
    client.engine.disconnect(&mut listener);
}

/// The name of a long key is stored only once, however many clients receive its invalidation.
#[test]
fn long_invalidations_share_memory() {
    let mut client = Tester::new();
    let key = "k".repeat(100_000);
    let mut readers: Vec<Session> = (0..10).map(|_| start_tracking(&client)).collect();
    for reader in &mut readers {
        run_as_other(&mut client, reader, &format!("hello 3\nclient tracking on\nget {key}"));
    }
    client.run_to_text(&format!("set {key} v"));
    for reader in &mut readers {
        let mut queue = resp::ByteQueue::default();
        reader.move_messages_to(&mut queue);
        assert!(!queue.is_single_chunk() && queue.len() > 100_000);
        assert_eq!(reader.client().output_bytes.load(Ordering::Relaxed), 0);
        client.engine.disconnect(reader);
    }
}
