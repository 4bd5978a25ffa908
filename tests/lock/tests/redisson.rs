//! Tests that Redisson clients and this crate exclude each other on the same key. Redisson's commands are written out
//! by hand from its documented format: a hash of `uuid:thread` to count, the lease as expiry, and 0 published on
//! release.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Reply};
use redoubt_lock::{Locks, LossReason, Options};

const LOCK_CHANNEL: &str = "redisson_lock__channel:{orders}";
const REDISSON_OWNER: &str = "285475da-9152-4c83-822a-67ee2f116a79:52";

const REDISSON_LOCK_SCRIPT: &str = "
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])";

const REDISSON_UNLOCK_SCRIPT: &str = "
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then
  return nil
end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1";

fn redisson_lock(connection: &mut Connection) -> Reply {
    connection.call(&["EVAL", REDISSON_LOCK_SCRIPT, "1", "orders", "30000", REDISSON_OWNER])
}

fn redisson_unlock(connection: &mut Connection) -> Reply {
    connection.call(&[
        "EVAL",
        REDISSON_UNLOCK_SCRIPT,
        "2",
        "orders",
        LOCK_CHANNEL,
        "0",
        "30000",
        REDISSON_OWNER,
    ])
}

async fn check_mutual_exclusion_with_redisson(program: Program) {
    let node = Node::start(&program, "");
    let locks = Locks::connect(&format!("redis://{}", node.address())).await.unwrap();
    let lock = locks.lock("orders").with(Options::default().wait(Duration::from_secs(20)));
    let mut redisson = node.connect();

    // Redisson acquires the lock twice; only its last release wakes the waiter of this crate.
    assert_eq!(redisson_lock(&mut redisson), Reply::NullBulk);
    assert_eq!(redisson_lock(&mut redisson), Reply::NullBulk);
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    assert_eq!(redisson_unlock(&mut redisson), Reply::Int(0));
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(redisson_unlock(&mut redisson), Reply::Int(1));
    let guard = waiting.await.unwrap();

    // This crate holds the lock; Redisson gets the remaining lease time, and then a message when the lock is released.
    let mut listener = node.connect();
    listener.call(&["SUBSCRIBE", LOCK_CHANNEL]);
    assert_eq!(redisson.call(&["TYPE", "orders"]), Reply::Simple("hash".into()));
    assert_eq!(redisson.call(&["HGET", "orders", guard.owner()]).text(), "1");
    let remaining = redisson_lock(&mut redisson).int();
    assert!((1..=30_000).contains(&remaining), "{remaining}");
    assert_eq!(redisson_unlock(&mut redisson), Reply::NullBulk);
    guard.release().await.unwrap();
    let message = listener.read().unwrap();
    assert_eq!(message.items()[2].text(), "0");
    assert_eq!(redisson_lock(&mut redisson), Reply::NullBulk);

    // The holder detects that its lock was deleted.
    redisson.call_line("DEL orders");
    let guard = lock.with(Options::default().lease(Duration::from_millis(900))).acquire().await.unwrap();
    redisson.call_line("DEL orders");
    assert_eq!(redisson_lock(&mut redisson), Reply::NullBulk);
    assert_eq!(guard.lost().await, LossReason::Gone);
    drop(guard);
    locks.wait_for_releases().await;
    assert_eq!(redisson.call(&["HGET", "orders", REDISSON_OWNER]).text(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_clients_and_this_crate_exclude_each_other() {
    check_mutual_exclusion_with_redisson(Program::redoubt()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_clients_and_this_crate_exclude_each_other_on_redis() {
    check_mutual_exclusion_with_redisson(Program::redis()).await;
}

/// In a cluster with Redis 7, Redisson publishes to the sharded channel, and its message must wake a waiter.
async fn check_wakeups_in_a_cluster(program: Program) {
    let cluster = Cluster::start(&program, 1, 0);
    let node = &cluster.nodes[0];
    let locks = Locks::connect(&format!("redis+cluster://{}", node.address())).await.unwrap();
    let lock = locks.lock("orders").with(Options::default().wait(Duration::from_secs(20)));
    let mut redisson = node.connect();
    assert_eq!(redisson_lock(&mut redisson), Reply::NullBulk);
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    // Redisson releases the lock after the client has subscribed; its lease of 30 seconds is longer than the client
    // waits.
    harness::eventually("our client is subscribed", || {
        let listeners = redisson.call_line(&format!("PUBSUB SHARDNUMSUB {LOCK_CHANNEL}"));
        (listeners.items()[1] == Reply::Int(1)).then_some(())
    });
    let unlock = REDISSON_UNLOCK_SCRIPT.replace("'publish'", "'spublish'");
    assert_eq!(
        redisson.call(&["EVAL", &unlock, "2", "orders", LOCK_CHANNEL, "0", "30000", REDISSON_OWNER]),
        Reply::Int(1)
    );
    let guard = waiting.await.unwrap();

    let mut listener = node.connect();
    listener.call(&["SSUBSCRIBE", LOCK_CHANNEL]);
    guard.release().await.unwrap();
    assert_eq!(listener.read().unwrap().items()[2].text(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_clients_and_this_crate_wake_each_other_in_a_cluster() {
    check_wakeups_in_a_cluster(Program::redoubt()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_clients_and_this_crate_wake_each_other_on_a_redis_cluster() {
    check_wakeups_in_a_cluster(Program::redis()).await;
}
