//! Tests Redlock on five independent masters.

use std::time::Duration;

use harness::{Node, Program, eventually};
use redoubt_lock::{Error, LossReason, Options, Redlock};

async fn connect_redlock(nodes: &[Node]) -> Redlock {
    let addresses: Vec<String> = nodes.iter().map(|node| format!("redis://{}", node.address())).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Redlock::connect(&addresses).await.unwrap().with(Options::default().wait(Duration::from_secs(20)))
}

fn start_five_masters() -> Vec<Node> {
    (0..5).map(|_| Node::start(&Program::redoubt(), "")).collect()
}

fn holder_count(nodes: &[Node]) -> i64 {
    nodes.iter().filter(|node| node.is_running()).map(|node| node.run("EXISTS l").int()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_tolerates_two_dead_masters_of_five() {
    let mut nodes = start_five_masters();
    let (ours, theirs) = (connect_redlock(&nodes).await, connect_redlock(&nodes).await);
    let guard = ours.acquire("l").await.unwrap();
    assert_eq!(holder_count(&nodes), 5);
    assert!(theirs.try_acquire("l").await.unwrap().is_none());
    assert_eq!(holder_count(&nodes), 5, "a failed attempt must not release our lock");
    nodes[0].kill();
    nodes[3].kill();
    assert!(theirs.try_acquire("l").await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    assert_eq!(holder_count(&nodes), 0);

    // Three of five masters are still running. Locks must still be acquired, renewed and released, and tokens must
    // increase.
    let short = Options::default().lease(Duration::from_secs(3)).wait(Duration::from_secs(20));
    let guard = theirs.with(short).acquire("l").await.unwrap();
    assert!(guard.token() > token);
    nodes[1].kill();
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(ours.try_acquire("l").await.unwrap_err(), Error::NotEnoughNodes { available: 2, required: 3 });
    drop(guard);
    theirs.wait_for_releases().await;
    assert_eq!(holder_count(&nodes), 0, "the lock is released on every server");

    nodes[1].launch();
    ours.acquire("l").await.unwrap().release().await.unwrap();
}

/// Without random delays, colliding owners would each win some servers and never a majority.
#[tokio::test(flavor = "multi_thread")]
async fn colliding_owners_retry_and_get_increasing_tokens() {
    let nodes = start_five_masters();
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let redlock = connect_redlock(&nodes).await;
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..3 {
                let guard = redlock.acquire("l").await.unwrap();
                tokens.push((guard.token(), guard.is_held()));
                guard.release().await.unwrap();
            }
            tokens
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        let tokens = task.await.unwrap();
        assert!(tokens.is_sorted_by(|one, next| one.0 < next.0), "{tokens:?}");
        all.extend(tokens);
    }
    assert!(all.iter().all(|(_, held)| *held));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 18, "tokens are unique");
}

/// A frozen server costs only its short timeout.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_server_does_not_delay_acquisition() {
    let nodes = start_five_masters();
    let redlock = connect_redlock(&nodes).await;
    redlock.acquire("l").await.unwrap().release().await.unwrap();
    nodes[2].freeze();
    let guard = redlock.with(Options::default().lease(Duration::from_secs(5))).acquire("l").await.unwrap();
    eventually("the lease is renewed", || (guard.renewals() > 1).then_some(()));
    nodes[2].thaw();
    guard.release().await.unwrap();
}
