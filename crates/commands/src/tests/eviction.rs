//! Tests of `maxmemory` and eviction.

use config::EvictionPolicy;
use engine::NodeFlags;
use keyspace::Usage;
use resp::Value;

use crate::testing::Client;

const OOM_ERROR: &str = "-OOM command not allowed when used memory > 'maxmemory'.";

/// Creates a client of a server with this eviction policy and `free_bytes` bytes of memory left.
fn client_with_memory_limit(policy: EvictionPolicy, free_bytes: usize) -> Client {
    let client = Client::with_recording_log();
    client.engine.settings.eviction.store(policy, 5, 100, true);
    client.engine.limit_memory(keyspace::pool_used_bytes() + free_bytes);
    client
}

/// Counts the existing keys among `count` keys with this prefix.
fn count_remaining_keys(client: &mut Client, prefix: &str, count: usize) -> usize {
    (0..count).filter(|n| client.call(&["exists", &format!("{prefix}{n}")]) == Value::Integer(1)).count()
}

#[test]
fn noeviction_refuses_writes_over_memory_limit() {
    let mut client = client_with_memory_limit(EvictionPolicy::NoEviction, 2000);
    let value = "v".repeat(3000);
    client.check_replies(&[
        (&format!("set a {value}"), "+OK"),
        ("set b 1", OOM_ERROR),
        ("get b", "$-1"),
        ("multi", "+OK"),
        ("get b", "+QUEUED"),
        ("exec", "*1|$-1"),
        ("multi", "+OK"),
        ("set b 1", OOM_ERROR),
        ("exec", "-EXECABORT Transaction discarded because of previous errors."),
        ("del a", ":1"),
        ("set b 1", "+OK"),
    ]);
    // The write was queued while there was enough memory.
    client.check_replies(&[("multi", "+OK"), ("set c 1", "+QUEUED")]);
    client.engine.limit_memory(1);
    client.check_replies(&[(
        "exec",
        "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.",
    )]);
    client.engine.limit_memory(0);
    client.check_replies(&[("set c 1", "+OK")]);
}

/// In import mode nothing is evicted, since the data source decides which keys to keep.
#[test]
fn nothing_is_evicted_in_import_mode() {
    let mut client = client_with_memory_limit(EvictionPolicy::AllKeysRandom, 2000);
    client.engine.settings.set_node_flag(NodeFlags::IMPORTING, true);
    let value = "v".repeat(3000);
    client.check_replies(&[
        (&format!("set a {value}"), "+OK"),
        ("set b 1", OOM_ERROR),
        ("exists a", ":1"),
        ("del a", ":1"),
        ("set b 1", "+OK"),
    ]);
    client.engine.settings.set_node_flag(NodeFlags::IMPORTING, false);
    client.check_replies(&[(&format!("set a {value}"), "+OK"), ("set c 1", "+OK")]);
}

#[test]
fn lru_evicts_oldest_keys_and_replicates_deletions_first() {
    let mut client = client_with_memory_limit(EvictionPolicy::AllKeysLru, 260_000);
    let value = "v".repeat(200);
    for n in 0..1000 {
        client.call(&["set", &format!("old{n}"), &value]);
    }
    assert_eq!(client.worker.stats.evicted_keys.load(std::sync::atomic::Ordering::Relaxed), 0);
    client.now.0 += 10_000;
    Usage::with_access_time(client.now).set_for_new_keys();
    for n in 0..500 {
        client.call(&["get", &format!("old{n}")]);
    }
    let logged = client.logged_commands().len();
    for n in 0..1000 {
        client.call(&["set", &format!("new{n}"), &value]);
    }
    let log = client.logged_commands();
    let first = log[logged..].iter().position(|line| line.starts_with("0 UNLINK old")).expect("some went");
    assert!(log[logged + first + 1..].iter().any(|line| line.starts_with("0 set new")), "a write follows");
    let (used, unused) =
        (count_remaining_keys(&mut client, "old", 500), count_remaining_keys(&mut client, "old", 1000));
    let gone = client.worker.stats.evicted_keys.load(std::sync::atomic::Ordering::Relaxed) as usize;
    let new = count_remaining_keys(&mut client, "new", 1000);
    assert_eq!(unused + new + gone, 2000);
    // Nearly all keys that were not used must have been evicted before used keys.
    assert!(unused - used < 20, "{used} used and {} unused keys are left", unused - used);
    assert!(used > 150, "{used}");
}

#[test]
fn volatile_policies_evict_only_keys_with_expiry() {
    for policy in [
        EvictionPolicy::VolatileLru,
        EvictionPolicy::VolatileLfu,
        EvictionPolicy::VolatileRandom,
        EvictionPolicy::VolatileTtl,
        EvictionPolicy::VolatileLrm,
    ] {
        let mut client = client_with_memory_limit(policy, 500_000);
        let value = "v".repeat(200);
        for n in 0..700 {
            client.call(&["set", &format!("stays{n}"), &value]);
            client.call(&["set", &format!("{{few}}stays{n}"), "v"]);
        }
        for n in 0..300 {
            let ttl = (1000 + n).to_string();
            client.call(&["set", &format!("{{few}}goes{n}"), &value, "ex", &ttl]);
        }
        let oom = (0..2000)
            .find(|n| client.call(&["set", &format!("more{n}"), &value]) != Value::Simple("OK".into()));
        assert!(oom.is_some(), "{policy}: at last there is nothing to evict");
        assert_eq!(count_remaining_keys(&mut client, "{few}goes", 300), 0, "{policy}");
        assert_eq!(
            count_remaining_keys(&mut client, "stays", 700)
                + count_remaining_keys(&mut client, "{few}stays", 700),
            1400,
            "{policy}"
        );
    }
}

#[test]
fn volatile_ttl_evicts_soonest_expiry_first() {
    let mut client = client_with_memory_limit(EvictionPolicy::VolatileTtl, 200_000);
    let value = "v".repeat(200);
    for n in 0..1000 {
        client.call(&["set", &format!("k{n}"), &value, "ex", &(10_000 + n).to_string()]);
    }
    let gone = 1000 - count_remaining_keys(&mut client, "k", 1000);
    let first_gone = gone - count_remaining_keys(&mut client, "k", gone);
    assert!(gone > 100, "{gone}");
    assert!(first_gone * 10 > gone * 6, "of {gone} that went {first_gone} are among the first");
}

#[test]
fn eviction_covers_all_databases_and_sends_events() {
    let mut client = client_with_memory_limit(EvictionPolicy::AllKeysRandom, 100_000);
    let value = "v".repeat(200);
    client.check_replies(&[("select 3", "+OK")]);
    let events = client.events_during(|client| {
        (0..1000).for_each(|n| drop(client.call(&["set", &format!("k{n}"), &value])));
    });
    assert!(events.contains("evicted@3 k"), "{events}");
    assert!(count_remaining_keys(&mut client, "k", 1000) < 500);
}

#[test]
fn replica_does_not_evict() {
    let mut client = client_with_memory_limit(EvictionPolicy::AllKeysRandom, 0);
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
    (0..100).for_each(|n| drop(client.call(&["set", &format!("k{n}"), "v"])));
    client.engine.settings.set_node_flag(NodeFlags::REPLICA, false);
    client.engine.limit_memory(0);
    assert_eq!(count_remaining_keys(&mut client, "k", 100), 100);
}
