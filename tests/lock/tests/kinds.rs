//! Tests each kind of lock on a single server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::{Connection, Node, Program};
use redoubt_lock::{Error, Guard, Locks, LossReason, MultiLock, Options};

const LONG_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

async fn connect_locks(node: &Node) -> Locks {
    Locks::connect(&format!("redis://{}", node.address())).await.unwrap()
}

async fn start_with_locks() -> (Node, Locks) {
    let node = Node::start(&Program::redoubt(), "");
    let locks = connect_locks(&node).await.with(Options::default().wait(LONG_WAIT_TIMEOUT));
    (node, locks)
}

/// Waits for a condition without blocking the runtime.
async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LONG_WAIT_TIMEOUT, "timed out: {description}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn key_exists(connection: &mut Connection, key: &str) -> bool {
    connection.call(&["EXISTS", key]).int() == 1
}

fn subscribed_waiters(node: &Node) -> i64 {
    node.run("PUBSUB NUMSUB redisson_lock__channel:{l}").items()[1].int()
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_has_one_holder_at_a_time_with_increasing_tokens() {
    let (_node, locks) = start_with_locks().await;
    let lock = locks.lock("l");
    let inside = Arc::new(AtomicUsize::new(0));
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (lock, inside, tokens) = (lock.clone(), inside.clone(), tokens.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two clients hold the lock");
                tokens.lock().unwrap().push(guard.token());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert!(tokens.len() == 20 && tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn held_lock_is_not_granted_and_waiting_times_out() {
    let (_node, locks) = start_with_locks().await;
    let lock = locks.lock("l");
    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let wait = Duration::from_millis(300);
    let began = Instant::now();
    let refused = lock.with(Options::default().wait(wait)).acquire().await;
    assert_eq!(refused.unwrap_err(), Error::TimedOut(wait));
    assert!(began.elapsed() >= wait && began.elapsed() < LONG_WAIT_TIMEOUT);
    guard.release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// Only a message can wake the waiter this soon, because the lease is much longer than the test. Without messages the
/// waiter would retry after two seconds, but it is woken ten times within that time.
#[tokio::test(flavor = "multi_thread")]
async fn lock_release_wakes_waiters() {
    let (node, locks) = start_with_locks().await;
    let lock = locks.lock("l");
    let mut held = lock.acquire().await.unwrap();
    let mut waited = Duration::ZERO;
    for _ in 0..10 {
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        wait_until("a client waits", || subscribed_waiters(&node) > 0).await;
        let began = Instant::now();
        held.release().await.unwrap();
        held = waiting.await.unwrap();
        waited += began.elapsed();
    }
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

/// Waiters must acquire the lock although no message is published when a key is deleted or its holder dies.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_lost_messages() {
    let (node, locks) = start_with_locks().await;
    node.run("HSET l somebody:1 1");
    node.run("PEXPIRE l 400");
    let guard = locks.lock("l").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.lock("l");
        async move { lock.acquire().await.unwrap() }
    });
    wait_until("a client waits", || subscribed_waiters(&node) > 0).await;
    node.run("CLIENT KILL TYPE pubsub");
    node.run("DEL l");
    waiting.await.unwrap().release().await.unwrap();
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_is_renewed_only_with_a_watchdog() {
    let (node, locks) = start_with_locks().await;
    let short = Options::default().lease(Duration::from_millis(600));
    let kept = locks.lock("kept").with(short.clone()).acquire().await.unwrap();
    let left = locks.lock("left").with(short.watchdog(false)).acquire().await.unwrap();
    assert_eq!(left.lost().await, LossReason::Expired);
    assert!(!left.is_held());
    wait_until("the lease is renewed", || kept.renewals() > 4).await;
    assert!(kept.is_held());
    let mut connection = node.connect();
    assert!(key_exists(&mut connection, "kept") && !key_exists(&mut connection, "left"));
    assert_eq!(left.release().await, Err(Error::Lost(LossReason::Expired)));
    kept.release().await.unwrap();
    assert!(!key_exists(&mut connection, "kept"));
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_loses_lock_deleted_on_the_server() {
    let (node, locks) = start_with_locks().await;
    let guard =
        locks.lock("l").with(Options::default().lease(Duration::from_millis(900))).acquire().await.unwrap();
    node.run("DEL l");
    assert_eq!(guard.lost().await, LossReason::Gone);
    assert_eq!(guard.release().await, Err(Error::Lost(LossReason::Gone)));
    let guard = locks.lock("l").acquire().await.unwrap();
    node.run("DEL l");
    assert_eq!(guard.release().await, Err(Error::NotHeld));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_guard_releases_even_during_a_panic() {
    let (node, locks) = start_with_locks().await;
    let mut connection = node.connect();
    drop(locks.lock("l").acquire().await.unwrap());
    locks.wait_for_releases().await;
    assert!(!key_exists(&mut connection, "l"));
    let lock = locks.lock("l");
    let panicked = tokio::spawn(async move {
        let _guard = lock.acquire().await.unwrap();
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    locks.wait_for_releases().await;
    assert!(!key_exists(&mut connection, "l"));
}

/// A cancelled acquisition leaves no state on the server, at whatever point it is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_acquisition_leaves_no_state() {
    let (node, locks) = start_with_locks().await;
    let mut connection = node.connect();
    for microseconds in (0..2000).step_by(50) {
        let acquired =
            tokio::time::timeout(Duration::from_micros(microseconds), locks.lock("l").acquire()).await;
        drop(acquired);
        locks.wait_for_releases().await;
        assert!(!key_exists(&mut connection, "l"), "after {microseconds} us");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reentered_lock_is_released_by_the_last_guard() {
    let (node, locks) = start_with_locks().await;
    let outer = locks.lock("l").acquire().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    assert_eq!(inner.token(), outer.token());
    let mut connection = node.connect();
    assert_eq!(connection.call(&["HGET", "l", outer.owner()]).text(), "2");
    outer.release().await.unwrap();
    assert_eq!(connection.call(&["HGET", "l", inner.owner()]).text(), "1");
    assert!(locks.lock("l").try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap();
    assert!(!key_exists(&mut connection, "l"));
}

#[tokio::test(flavor = "multi_thread")]
async fn fair_lock_is_granted_in_order_and_skips_dead_waiters() {
    let (node, locks) = start_with_locks().await;
    let locks =
        locks.with(Options::default().wait(LONG_WAIT_TIMEOUT).queue_timeout(Duration::from_millis(900)));
    let lock = locks.fair_lock("l");
    let first = lock.acquire().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..5 {
        let (lock, order) = (lock.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        let queued = || node.run("ZCARD redoubt_lock__queue:{l}").int();
        wait_until("the client is queued", || queued() == number + 1).await;
    }
    // A waiter that dies leaves its queue entry behind; a waiter that gives up removes its entry. The third waiter
    // continues to wait, so it must still get the lock.
    node.run("ZADD redoubt_lock__queue:{l} 0 dead:1");
    tasks.remove(1).abort();
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_share_and_a_waiting_writer_blocks_new_readers() {
    let (node, locks) = start_with_locks().await;
    let lock = locks.read_write("l");
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    assert!(lock.try_write().await.unwrap().is_none());
    let writing = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    wait_until("the writer waits", || node.run("ZCARD redoubt_lock__writers:{l}").int() == 1).await;
    assert!(lock.try_read().await.unwrap().is_none());
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = writing.await.unwrap();
    assert!(lock.try_read().await.unwrap().is_none());
    writer.release().await.unwrap();
    lock.try_read().await.unwrap().expect("free").release().await.unwrap();
    assert_eq!(node.run("KEYS *").items().len(), 1, "only the token remains");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_reader_blocks_a_writer_only_for_its_lease() {
    let (_node, locks) = start_with_locks().await;
    let lock = locks.read_write("l");
    let short = Options::default().lease(Duration::from_millis(500)).watchdog(false);
    let dead = lock.with(short).read().await.unwrap();
    let alive = lock.read().await.unwrap();
    assert_eq!(dead.lost().await, LossReason::Expired);
    assert!(lock.try_write().await.unwrap().is_none());
    alive.release().await.unwrap();
    lock.write().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn semaphore_limits_permits_and_reclaims_permits_of_dead_holders() {
    let (_node, locks) = start_with_locks().await;
    let semaphore = locks.semaphore("l", 2);
    let short = Options::default().lease(Duration::from_millis(500)).watchdog(false);
    let dead = semaphore.with(short).acquire().await.unwrap();
    let alive = semaphore.acquire().await.unwrap();
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert_eq!(dead.lost().await, LossReason::Expired);
    let third = semaphore.acquire().await.unwrap();
    assert!(alive.is_held() && semaphore.try_acquire().await.unwrap().is_none());
    alive.release().await.unwrap();
    semaphore.try_acquire().await.unwrap().expect("the permit is free again");
    third.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn latch_opens_at_zero() {
    let (node, locks) = start_with_locks().await;
    let latch = locks.latch("l");
    latch.wait(Duration::ZERO).await.unwrap();
    assert!(latch.set(3).await.unwrap());
    assert!(!latch.set(5).await.unwrap());
    let wait = Duration::from_millis(100);
    assert_eq!(latch.wait(wait).await, Err(Error::TimedOut(wait)));
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait(LONG_WAIT_TIMEOUT).await }
    });
    for left in [2, 1, 0] {
        assert_eq!(latch.count_down().await.unwrap(), left);
    }
    waiting.await.unwrap().unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 0);
    assert_eq!(node.run("DBSIZE").int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn multi_locks_are_acquired_regardless_of_order() {
    let (_node, locks) = start_with_locks().await;
    let pair = |one: &str, other: &str| MultiLock::new([locks.lock(one), locks.lock(other)]);
    let tasks: Vec<_> = [pair("a", "b"), pair("b", "a")]
        .into_iter()
        .cycle()
        .take(20)
        .map(|pair| {
            tokio::spawn(async move {
                let guard = pair.acquire(LONG_WAIT_TIMEOUT).await.unwrap();
                assert!(guard.is_held() && guard.guards().len() == 2);
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let held = locks.lock("b").acquire().await.unwrap();
    let wait = Duration::from_millis(100);
    assert_eq!(pair("a", "b").acquire(wait).await.unwrap_err(), Error::TimedOut(wait));
    locks.lock("a").try_acquire().await.unwrap().expect("the lock is released");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn acquisition_waits_for_confirmation_by_replicas() {
    let (node, locks) = start_with_locks().await;
    let careful = locks.lock("l").with(Options::default().replicas(1));
    assert_eq!(careful.try_acquire().await.unwrap_err(), Error::NotEnoughNodes { available: 0, required: 1 });
    assert_eq!(node.run("EXISTS l").int(), 0, "the acquisition must be undone");
    let replica = Node::start(
        &Program::redoubt(),
        &format!("--replicaof 127.0.0.1 {} --repl-diskless-sync-delay 0", node.port),
    );
    let lease = Options::default().replicas(1).lease(Duration::from_millis(900)).wait(LONG_WAIT_TIMEOUT);
    let guard: Guard = locks.lock("l").with(lease).acquire().await.unwrap();
    assert_eq!(replica.run("EXISTS l").int(), 1);
    wait_until("the lease is renewed", || guard.renewals() > 1).await;
    replica.freeze();
    assert_eq!(guard.lost().await, LossReason::Expired);
    replica.thaw();
}

#[tokio::test(flavor = "multi_thread")]
async fn watchdog_survives_a_temporary_server_outage() {
    let (mut node, locks) = start_with_locks().await;
    node.add_options("--appendonly yes --appendfsync always");
    node.kill();
    node.launch();
    let guard =
        locks.lock("l").with(Options::default().lease(Duration::from_secs(8))).acquire().await.unwrap();
    node.kill();
    node.launch();
    let before = guard.renewals();
    wait_until("the lease is renewed", || guard.renewals() > before).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locking_a_key_of_another_type_fails() {
    let (node, locks) = start_with_locks().await;
    node.run("SET l text").expect_ok();
    assert!(matches!(locks.lock("l").acquire().await, Err(Error::Connection(_))));
    assert!(matches!(locks.lock("a{b").acquire().await, Err(Error::Name(_))));
}
