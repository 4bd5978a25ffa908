//! Redisson clients and this crate exclude each other on the same key. Redisson's commands are written out by hand from
//! its documented format: a hash of `uuid:thread` to count, the lease as expiry, and 0 published on release.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Value};
use redoubt_lock::{Locks, LossReason, Options};

const CHANNEL: &str = "redisson_lock__channel:{orders}";
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

fn redisson_lock(connection: &mut Connection) -> Value {
    connection.call(&["EVAL", REDISSON_LOCK_SCRIPT, "1", "orders", "30000", REDISSON_OWNER])
}

fn redisson_unlock(connection: &mut Connection) -> Value {
    connection.call(&["EVAL", REDISSON_UNLOCK_SCRIPT, "2", "orders", CHANNEL, "0", "30000", REDISSON_OWNER])
}

async fn exclude_each_other(program: Program) {
    let node = Node::start(&program, "");
    let locks = Locks::connect(&format!("redis://{}", node.address())).await.unwrap();
    let lock = locks.lock("orders").with(Options::default().wait(Duration::from_secs(20)));
    let mut they = node.connect();

    // Redisson holds the lock twice; our waiter is woken by its last release.
    assert_eq!(redisson_lock(&mut they), Value::NullBulk);
    assert_eq!(redisson_lock(&mut they), Value::NullBulk);
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    assert_eq!(redisson_unlock(&mut they), Value::Int(0));
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(redisson_unlock(&mut they), Value::Int(1));
    let guard = waiting.await.unwrap();

    // We hold it; Redisson gets the remaining time, and the message of our release.
    let mut listener = node.connect();
    listener.call(&["SUBSCRIBE", CHANNEL]);
    assert_eq!(they.call(&["TYPE", "orders"]), Value::Simple("hash".into()));
    assert_eq!(they.call(&["HGET", "orders", guard.owner()]).text(), "1");
    let told = redisson_lock(&mut they).int();
    assert!((1..=30_000).contains(&told), "{told}");
    assert_eq!(redisson_unlock(&mut they), Value::NullBulk);
    guard.release().await.unwrap();
    let message = listener.read().unwrap();
    assert_eq!(message.items()[2].text(), "0");
    assert_eq!(redisson_lock(&mut they), Value::NullBulk);

    // A lock deleted by force is noticed.
    they.run("DEL orders");
    let guard = lock.with(Options::default().lease(Duration::from_millis(900))).acquire().await.unwrap();
    they.run("DEL orders");
    assert_eq!(redisson_lock(&mut they), Value::NullBulk);
    assert_eq!(guard.lost().await, LossReason::Gone);
    drop(guard);
    locks.wait_for_releases().await;
    assert_eq!(they.call(&["HGET", "orders", REDISSON_OWNER]).text(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_clients_and_this_crate_exclude_each_other() {
    exclude_each_other(Program::redoubt()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_compatibility_on_redis() {
    exclude_each_other(Program::redis()).await;
}

/// In a cluster with Redis 7, Redisson uses the sharded channel.
async fn wake_each_other_in_a_cluster(program: Program) {
    let cluster = Cluster::start(&program, 1, 0);
    let node = &cluster.nodes[0];
    let locks = Locks::connect(&format!("redis+cluster://{}", node.address())).await.unwrap();
    let lock = locks.lock("orders").with(Options::default().wait(Duration::from_secs(20)));
    let mut they = node.connect();
    assert_eq!(redisson_lock(&mut they), Value::NullBulk);
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    // Release once we are subscribed; the lease of half a minute is longer than our wait.
    harness::eventually("we listen", || {
        let listeners = they.run(&format!("PUBSUB SHARDNUMSUB {CHANNEL}"));
        (listeners.items()[1] == Value::Int(1)).then_some(())
    });
    let unlock = REDISSON_UNLOCK_SCRIPT.replace("'publish'", "'spublish'");
    assert_eq!(
        they.call(&["EVAL", &unlock, "2", "orders", CHANNEL, "0", "30000", REDISSON_OWNER]),
        Value::Int(1)
    );
    let guard = waiting.await.unwrap();

    let mut listener = node.connect();
    listener.call(&["SSUBSCRIBE", CHANNEL]);
    guard.release().await.unwrap();
    assert_eq!(listener.read().unwrap().items()[2].text(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_clients_and_this_crate_wake_each_other_in_a_cluster() {
    wake_each_other_in_a_cluster(Program::redoubt()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redisson_compatibility_on_a_redis_cluster() {
    wake_each_other_in_a_cluster(Program::redis()).await;
}
