//! Tests of slot migration.

use engine::{CapturedKey, CommandError, DispatchStatus, NodeFlags, ReleaseResult, RemainingKeys};
use persistence::Dialect;
use slot_routing::{Ownership, ReplOffset, Slot};

use crate::testing::Client;

#[test]
fn paused_slot_blocks_only_its_writes() {
    let mut client = Client::new();
    let slot = Slot::of_key(b"{t}");
    client.check_replies(&[("set a{t} 1", "+OK"), ("set other 1", "+OK")]);
    assert!(client.engine.pause_slot_writes(slot) && client.engine.pause_slot_writes(slot));
    client.check_replies(&[("get a{t}", "$1|1"), ("set other 2", "+OK")]);
    client.check_replies(&[("multi\nget a{t}\nexec", "+OK|+QUEUED|*1|$1|1")]);
    for write in ["incr a{t}", "flushall", "mset other 3 a{t} 3"] {
        assert_eq!(client.run_status(write), DispatchStatus::Paused, "{write}");
    }
    client.check_replies(&[("multi\nset a{t} 3", "+OK|+QUEUED")]);
    assert_eq!(client.run_status("exec"), DispatchStatus::Paused);
    client.check_replies(&[("discard", "+OK")]);
    client.engine.resume_slot_writes(slot);
    assert_eq!(client.run_status("incr a{t}"), DispatchStatus::Paused);
    client.engine.resume_slot_writes(slot);
    assert!(client.engine.settings.node_flags().is_empty());
    client.check_replies(&[("incr a{t}", ":2")]);
}

#[test]
fn keys_of_unowned_slot_are_deleted_in_all_databases_and_replicated() {
    let mut client = Client::in_cluster();
    let slot = Slot::of_key(b"{t}");
    for number in 0..200 {
        client.check_replies(&[(&format!("set {number}{{t}} v px 1"), "+OK")]);
    }
    client.now.0 += 5000;
    assert_eq!(client.engine.delete_unowned_keys(slot), RemainingKeys::None, "it is served here");
    client.engine.keyspace.lock(slot).set_ownership(Ownership::Remote);
    client.engine.settings.set_node_flag(NodeFlags::WRITES_PAUSED, true);
    assert_eq!(client.engine.delete_unowned_keys(slot), RemainingKeys::Paused);
    client.engine.settings.set_node_flag(NodeFlags::WRITES_PAUSED, false);
    let rounds = std::iter::repeat_with(|| client.engine.delete_unowned_keys(slot))
        .take_while(|left| *left == RemainingKeys::MaybeMore)
        .count();
    assert!(rounds >= 3, "{rounds}");
    assert_eq!(client.engine.keyspace.keys_in_slot(slot), 0);
}

#[test]
fn migrated_key_is_released_only_if_unchanged() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[("set k v px 5000", "+OK")]);
    let now = client.now;
    let release = |client: &Client, captured: &CapturedKey| {
        client.engine.release_key(&client.worker, 0, b"k", now, captured)
    };
    let captured = client.engine.capture_key(0, b"k", now, Dialect::Redis).unwrap();
    assert_eq!(captured.expiry.unwrap().0, now.0 + 5000);
    client.check_replies(&[("append k w", ":2")]);
    assert_eq!(release(&client, &captured), Ok(ReleaseResult::Changed));
    let captured = client.engine.capture_key(0, b"k", now, Dialect::Redis).unwrap();
    client.check_replies(&[("pexpire k 6000", ":1")]);
    assert_eq!(release(&client, &captured), Ok(ReleaseResult::Changed), "its time counts too");
    let captured = client.engine.capture_key(0, b"k", now, Dialect::Redis).unwrap();
    client.engine.settings.set_node_flag(NodeFlags::WRITES_PAUSED, true);
    assert_eq!(release(&client, &captured), Ok(ReleaseResult::Paused));
    client.engine.settings.set_node_flag(NodeFlags::WRITES_PAUSED, false);
    client.engine.settings.set_node_flag(NodeFlags::READ_ONLY_REPLICA, true);
    assert_eq!(release(&client, &captured), Err(CommandError::ReadOnlyReplica));
    client.engine.settings.set_node_flag(NodeFlags::READ_ONLY_REPLICA, false);
    let Ok(ReleaseResult::Deleted(Some(end))) = release(&client, &captured) else {
        panic!("it is as captured")
    };
    assert!(end > client.session.last_write() && end > ReplOffset(0));
    assert_eq!(release(&client, &captured), Ok(ReleaseResult::Changed));
    client.check_replies(&[("exists k", ":0")]);
    assert_eq!(client.logged_commands().last().map(String::as_str), Some("0 DEL k"));
    assert_eq!(client.engine.capture_key(0, b"k", now, Dialect::Redis), None);
}

#[test]
fn migrate_requires_own_or_migrating_slot() {
    let client = Client::in_cluster();
    let keys = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(client.engine.check_migratable(&keys(&["a{t}", "b{t}"])), Ok(()));
    assert_eq!(client.engine.check_migratable(&keys(&["a", "b"])), Err(CommandError::CrossSlot));
    let slot = Slot::of_key(b"a");
    let table = [
        (Ownership::Migrating, Ok(())),
        (Ownership::Importing, Ok(())),
        (Ownership::Unassigned, Err(CommandError::SlotNotServed)),
    ];
    for (ownership, verdict) in table {
        client.engine.keyspace.lock(slot).set_ownership(ownership);
        assert_eq!(client.engine.check_migratable(&keys(&["a"])), verdict);
    }
    client.engine.keyspace.lock(slot).set_ownership(Ownership::MasterOwned);
    assert!(matches!(client.engine.check_migratable(&keys(&["a"])), Err(CommandError::Redirect { .. })));
}

/// Creates a client of a node with several databases and one migrating slot.
fn client_with_migrating_slot() -> Client {
    let mut client = Client::in_cluster_with_databases(4);
    client.check_replies(&[
        ("set {t}1 v", "+OK"),
        ("select 1", "+OK"),
        ("set {t}2 v", "+OK"),
        ("select 0", "+OK"),
    ]);
    client.engine.keyspace.lock(Slot::of_key(b"{t}")).set_ownership(Ownership::Migrating);
    client
}

#[test]
fn migrating_slot_refuses_moves_between_databases() {
    const TRY_AGAIN_ERROR: &str = "-TRYAGAIN Multiple keys request during rehashing of slot";
    // The topology of this test has no address for the migration's target, so the node replies with an error instead of
    // a redirection.
    const ASK_ERROR: &str = "-CLUSTERDOWN Hash slot not served";
    let mut client = client_with_migrating_slot();
    client.check_replies(&[
        ("move {t}1 1", TRY_AGAIN_ERROR),
        ("move {t}9 1", TRY_AGAIN_ERROR),
        ("copy {t}1 {t}3 db 1", TRY_AGAIN_ERROR),
        ("copy {t}8 {t}9 db 1", TRY_AGAIN_ERROR),
        ("copy {t}8 {t}9", ASK_ERROR),
        ("copy {t}8 {t}9 db 0", ASK_ERROR),
        ("copy {t}1 {t}1 db 0", "-ERR source and destination objects are the same"),
        // A database that is not a number counts as a database other than the selected one; a syntax error does not.
        ("copy {t}1 {t}1 db x", TRY_AGAIN_ERROR),
        ("copy {t}8 {t}9 db x", TRY_AGAIN_ERROR),
        ("copy {t}1 {t}1 nonsense", "-ERR syntax error"),
        (
            "multi\nmove {t}1 1\nexec",
            &format!("+OK|{TRY_AGAIN_ERROR}|-EXECABORT Transaction discarded because of previous errors."),
        ),
    ]);
}

#[test]
fn queued_select_determines_database_of_migrating_slot() {
    const TRY_AGAIN_ERROR: &str = "-TRYAGAIN Multiple keys request during rehashing of slot";
    const ASK_ERROR: &str = "-CLUSTERDOWN Hash slot not served";
    let mut client = client_with_migrating_slot();
    client.check_replies(&[
        ("multi\nselect 1\nget {t}2\nselect 0\nexec", "+OK|+QUEUED|+QUEUED|+QUEUED|*3|+OK|$1|v|+OK"),
        ("multi\nselect 1\nget {t}1\nexec", &format!("+OK|+QUEUED|+QUEUED|{ASK_ERROR}")),
        ("multi\nget {t}1\nget {t}2\nexec", &format!("+OK|+QUEUED|+QUEUED|{TRY_AGAIN_ERROR}")),
        (
            "multi\nget {t}1\nselect 1\nget {t}2\nselect 0\nexec",
            "+OK|+QUEUED|+QUEUED|+QUEUED|+QUEUED|*4|$1|v|+OK|$1|v|+OK",
        ),
        ("multi\nselect 99\nget {t}1\nexec", "+OK|+QUEUED|+QUEUED|*2|-ERR DB index is out of range|$1|v"),
    ]);
}

/// As in Valkey, the database that a queued COPY names is compared with the database selected before MULTI. EXEC
/// compares it with the database that is selected when the COPY is executed.
#[test]
fn queued_copy_is_checked_against_database_selected_before_multi() {
    const TRY_AGAIN_ERROR: &str = "-TRYAGAIN Multiple keys request during rehashing of slot";
    let mut client = client_with_migrating_slot();
    let aborted = format!("{TRY_AGAIN_ERROR}|-EXECABORT Transaction discarded because of previous errors.");
    client.check_replies(&[
        ("multi\nselect 1\ncopy {t}2 {t}3 db 0\nexec", &format!("+OK|+QUEUED|+QUEUED|{TRY_AGAIN_ERROR}")),
        ("multi\nselect 1\ncopy {t}2 {t}3 db 1\nexec", &format!("+OK|+QUEUED|{aborted}")),
        ("multi\nselect 1\nselect 0\ncopy {t}1 {t}1 db 1\nexec", &format!("+OK|+QUEUED|+QUEUED|{aborted}")),
        ("multi\ncopy {t}1 {t}3 db x\nexec", &format!("+OK|{aborted}")),
        ("multi\ncopy {t}1 {t}3 db 0\nexec", &format!("+OK|+QUEUED|{TRY_AGAIN_ERROR}")),
    ]);
}

/// Regression test: the keys of a queued MIGRATE were looked up, although EXEC does not lock their slots.
#[test]
fn queued_migrate_does_not_look_up_unlocked_slot() {
    let mut client = client_with_migrating_slot();
    client.check_replies(&[("multi\nget {t}1", "+OK|+QUEUED")]);
    client.check_replies(&[("migrate h 1 other 0 100", "+QUEUED")]);
    assert!(matches!(client.run_status("exec"), DispatchStatus::Node(_) | DispatchStatus::Done));
}

#[test]
fn asking_applies_to_following_transaction() {
    const MOVED_ERROR: &str = "-MOVED 15891 127.0.0.1:6379";
    let mut client = Client::in_cluster_with_databases(4);
    client.check_replies(&[("select 1", "+OK"), ("set {t}2 v", "+OK"), ("select 0", "+OK")]);
    client.engine.keyspace.lock(Slot::of_key(b"{t}")).set_ownership(Ownership::Importing);
    client.check_replies(&[
        ("asking\nmulti\nselect 1\nget {t}2\nexec", "+OK|+OK|+QUEUED|+QUEUED|*2|+OK|$1|v"),
        ("select 0", "+OK"),
        ("get {t}2", MOVED_ERROR),
        ("asking\nmulti\ndiscard\nget {t}2", &format!("+OK|+OK|+OK|{MOVED_ERROR}")),
        (
            "multi\nget {t}2\nexec",
            &format!("+OK|{MOVED_ERROR}|-EXECABORT Transaction discarded because of previous errors."),
        ),
    ]);
}
