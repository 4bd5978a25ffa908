//! Tests of the expiry of keys and fields.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::NodeFlags;

use crate::testing::Client;

const ONE_SECOND: Duration = Duration::from_secs(1);

#[test]
fn expired_keys_are_deleted_and_replicated() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[("set a 1 px 10", "+OK"), ("set b 2 px 20", "+OK"), ("set c 3", "+OK")]);
    client.now.0 += 9;
    assert!(!client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND));
    client.check_replies(&[("dbsize", ":3")]);
    client.now.0 += 1;
    assert!(!client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND));
    client.check_replies(&[("dbsize", ":2")]);
    assert_eq!(client.logged_commands().last().map(String::as_str), Some("0 UNLINK a"));
    assert_eq!(client.worker.stats.expired_keys.load(Ordering::Relaxed), 1);
}

#[test]
fn replica_and_disabled_expiry_keep_expired_keys() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[("set a 1 px 10", "+OK")]);
    client.now.0 += 10;
    client.engine.settings.debug.active_expire.store(false, Ordering::Relaxed);
    client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND);
    client.engine.settings.debug.active_expire.store(true, Ordering::Relaxed);
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND);
    client.check_replies(&[("dbsize", ":1")]);
}

/// Regression test: keys with an expiry that clients wrote on a writable replica were never deleted, because a replica
/// waits for deletions from its master, which does not have these keys.
#[test]
fn writable_replica_deletes_own_expired_keys() {
    let mut client = Client::with_recording_log();
    let cycle =
        |client: &mut Client| client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND);
    client.check_replies(&[("set master 1 px 10", "+OK"), ("set again 1 px 10", "+OK")]);
    let logged = client.logged_commands().len();
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    client.check_replies(&[
        ("set a 1 px 10", "+OK"),
        ("set b 1", "+OK"),
        ("pexpire b 10", ":1"),
        ("set c 1 px 5", "+OK"),
        ("rename c d", "+OK"),
        ("copy d e db 1", ":1"),
        ("set stays 1 px 10", "+OK"),
        ("persist stays", ":1"),
        ("eval \"return redis.call('set',KEYS[1],'1','px','10')\" 1 script", "+OK"),
        ("append master x", ":2"),
        ("set later 1 px 10", "+OK"),
    ]);
    assert_eq!(client.engine.memory.local_expiry_count(), 6);
    // The master changes the expiry of `later`, which a client wrote on this replica.
    let own =
        std::mem::replace(&mut client.session, engine::Session::new(2, engine::CommandOrigin::Master, true));
    client.check_replies(&[("set later 2 px 500", "+OK")]);
    client.session = own;
    client.now.0 += 10;
    let events = client.events_during(|client| assert!(!cycle(client)));
    let mut events: Vec<&str> = events.split(", ").collect();
    events.sort_unstable();
    assert_eq!(events, ["expired a", "expired b", "expired d", "expired script", "expired@1 e"]);
    client.check_replies(&[("dbsize", ":4"), ("exists master again stays later", ":2")]);
    assert_eq!(client.worker.stats.expired_keys.load(Ordering::Relaxed), 5);
    assert_eq!(
        (client.engine.memory.local_expiry_count(), client.logged_commands().len()),
        (0, logged),
        "no log is told"
    );
}

#[test]
fn promoted_replica_deletes_and_replicates_expired_keys() {
    let mut client = Client::with_recording_log();
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    client.check_replies(&[("set a 1 px 10", "+OK")]);
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, false);
    client.now.0 += 10;
    assert!(!client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND));
    assert_eq!(
        (client.logged_commands(), client.engine.memory.local_expiry_count()),
        (vec!["0 UNLINK a".to_owned()], 0)
    );
}

#[test]
fn expired_keys_and_fields_send_events() {
    let mut client = Client::new();
    client.check_replies(&[
        ("set a 1 px 10", "+OK"),
        ("hset h f v g v x v", ":3"),
        ("hpexpire h 10 fields 2 f g", "*2|:1|:1"),
        ("hset one f v", ":1"),
        ("hpexpire one 10 fields 1 f", "*1|:1"),
    ]);
    client.now.0 += 10;
    let events = client.events_during(|client| {
        assert!(!client.engine.run_expiry_cycle(&mut client.worker, client.now, ONE_SECOND));
    });
    let mut events: Vec<&str> = events.split(", ").collect();
    events.sort_unstable();
    assert_eq!(events, ["del one", "expired a", "hexpired h", "hexpired one"]);
}

/// A clock that advances by one millisecond per reading.
fn read_advancing_clock() -> u64 {
    static CURRENT_NANOS: AtomicU64 = AtomicU64::new(0);
    CURRENT_NANOS.fetch_add(1_000_000, Ordering::Relaxed)
}

#[test]
fn expiry_cycle_stops_at_budget_and_resumes() {
    let mut client = Client::new();
    client.worker = client.engine.new_worker(read_advancing_clock);
    for key in 0..1000 {
        client.call(&["set", &format!("{{same}}{key}"), "v", "px", "10"]);
        client.call(&["set", &format!("other{key}"), "v", "px", "10"]);
    }
    client.now.0 += 10;
    let mut cycles = 1;
    while client.engine.run_expiry_cycle(&mut client.worker, client.now, Duration::from_millis(3)) {
        cycles += 1;
        assert!(cycles < 1000);
    }
    assert!(cycles > 5, "{cycles}");
    client.check_replies(&[("dbsize", ":0")]);
}

#[test]
fn expiry_cycle_respects_budget_over_many_slots() {
    let mut client = Client::new();
    client.worker = client.engine.new_worker(read_advancing_clock);
    for key in 0..1000 {
        client.call(&["set", &format!("{key}"), "v", "px", "10"]);
    }
    client.now.0 += 10;
    let left = |client: &mut Client| client.engine.keyspace.len(0);
    assert!(client.engine.run_expiry_cycle(&mut client.worker, client.now, Duration::from_millis(3)));
    assert!(left(&mut client) > 900, "some milliseconds, a slot each");
    while client.engine.run_expiry_cycle(&mut client.worker, client.now, Duration::from_millis(100)) {}
    assert_eq!(left(&mut client), 0);
}
