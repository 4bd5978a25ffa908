//! Tests of freeing large values in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::LazyFreeReason;

use crate::testing::Client;

#[test]
fn only_large_values_are_freed_lazily() {
    let mut client = Client::new();
    let value = "v".repeat(100);
    for field in 0..2000 {
        client.call(&["hset", "h", &format!("f{field}"), &value]);
    }
    client.check_replies(&[("hset small f v", ":1"), ("del small", ":1")]);
    assert_eq!(client.engine.memory.lazy_free.pending_count(), 0);
    client.check_replies(&[("rename h other", "+OK"), ("del h", ":0")]);
    assert_eq!(client.engine.memory.lazy_free.pending_count(), 0, "a rename drops nothing");
    client.check_replies(&[("set other v", "+OK")]);
    assert_eq!(
        (client.engine.memory.lazy_free.pending_count(), client.engine.memory.lazy_free.freed_count()),
        (1, 0)
    );
    client.engine.memory.lazy_free.free_all();
    assert_eq!(
        (client.engine.memory.lazy_free.pending_count(), client.engine.memory.lazy_free.freed_count()),
        (0, 1)
    );
}

#[test]
fn lazy_free_queue_is_drained_promptly() {
    let mut client = Client::new();
    let rung = Arc::new(AtomicUsize::new(0));
    let counter = rung.clone();
    client.engine.memory.lazy_free.call_when_non_empty(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let value = "v".repeat(1 << 20);
    for rings in 1..4 {
        (0..4).for_each(|_| drop(client.call(&["set", "k", &value])));
        assert_eq!(rung.load(Ordering::Relaxed), rings);
        client.engine.memory.lazy_free.free_all();
    }
}

/// Each cause of a deletion has its own lazyfree parameter.
#[test]
fn lazyfree_setting_depends_on_cause_of_deletion() {
    let value = "v".repeat(100_000);
    for (reason, commands) in [
        (LazyFreeReason::USER_DEL, "del k"),
        (LazyFreeReason::SERVER_DEL, "set k other"),
        (LazyFreeReason::SERVER_DEL, "rename other k"),
        (LazyFreeReason::EXPIRE, "get k"),
    ] {
        for (reasons, pending) in [(LazyFreeReason::all() - reason, 0), (reason, 1)] {
            let mut client = Client::new();
            client.engine.settings.lazy_free.set_reasons(reasons);
            client.call(&["set", "k", &value, "px", "100"]);
            client.call(&["set", "other", "v"]);
            client.now.0 += if reason == LazyFreeReason::EXPIRE { 200 } else { 0 };
            client.run_to_text(commands);
            assert_eq!(client.engine.memory.lazy_free.pending_count(), pending, "{commands}, {reasons:?}");
        }
    }
    let mut client = Client::new();
    client.engine.settings.lazy_free.set_reasons(LazyFreeReason::empty());
    client.call(&["set", "k", &value]);
    client.run_to_text("unlink k");
    assert_eq!(client.engine.memory.lazy_free.pending_count(), 1, "UNLINK says what it wants");
    assert!(client.engine.memory.lazy_free.pending_bytes() >= value.len());
    client.engine.memory.lazy_free.free_all();
    assert_eq!(client.engine.memory.lazy_free.pending_bytes(), 0);
}

#[test]
fn async_flush_frees_memory_in_background() {
    let mut client = Client::new();
    let value = "v".repeat(1000);
    for (flush, waiting) in [("flushall", 2000), ("flushdb async", 2000), ("flushall sync", 0)] {
        (0..2000).for_each(|key| drop(client.call(&["set", &format!("k{key}"), &value])));
        client.check_replies(&[("dbsize", ":2000"), (flush, "+OK"), ("dbsize", ":0"), ("get k1", "$-1")]);
        assert_eq!(client.engine.memory.lazy_free.pending_count(), waiting, "{flush}");
        client.engine.memory.lazy_free.free_all();
    }
    assert_eq!(
        (client.engine.memory.lazy_free.pending_count(), client.engine.memory.lazy_free.freed_count()),
        (0, 4000)
    );
    client.check_replies(&[("set k v", "+OK"), ("flushall", "+OK")]);
    assert_eq!(client.engine.memory.lazy_free.pending_count(), 0, "what is little is dropped at once");
}
