//! Tests the features of fred in every mode and both protocols; each feature is a cell of the table in docs/clients.md.

mod connect;

use std::collections::HashSet;
use std::pin::Pin;
use std::time::Instant;

use client_tests::{
    DeploymentMode, Feature, FeatureAttempt, FeatureResult, OPERATION_TIMEOUT, RETRY_DELAY, check_condition,
    test_all_features, test_key, test_tls_with_sentinels,
};
use fred::clients::SubscriberClient;
use fred::interfaces::{
    ClientLike, EventInterface, FredResult, KeysInterface, ListInterface, PubsubInterface, TrackingInterface,
    TransactionInterface,
};
use fred::prelude::{Client, Error};
use fred::types::client::Invalidation;
use fred::types::scan::{ScanResult, Scanner};
use fred::types::scripts::Script;
use futures_util::future::try_join;
use futures_util::{Stream, TryStreamExt};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;

use crate::connect::{ConnectionOptions, connect_client, connect_subscriber, read_until, set_key};

/// The text of published messages.
const MESSAGE_TEXT: &str = "it";
const LIBRARY_NAME: &str = "fred 10.1.0";
const MISSING_MESSAGES_LIMITATION: &str =
    "fails with Redis too: it goes on at the successor with the cursor of the dead one, and misses keys";
const WATCH_LOST_ON_RECONNECT_LIMITATION: &str =
    "fails with Redis too: the library connects anew by itself, and nothing is watched any more";

async fn test_feature(attempt: &FeatureAttempt, feature: Feature) -> FeatureResult {
    let tls = feature == Feature::Tls;
    let client = &connect_client(attempt, &ConnectionOptions { tls, ..ConnectionOptions::default() }).await?;
    let outcome = match feature {
        Feature::Pipelines => test_pipelines(attempt, client).await,
        Feature::ClusterPipelines => test_cluster_pipelines(attempt, client).await,
        Feature::Transactions => test_transactions(attempt, client).await,
        Feature::Scripts => test_scripts(client).await,
        Feature::Messages => test_messages(attempt, client).await,
        Feature::ShardedMessages => test_sharded_messages(attempt, client).await,
        Feature::Caching => test_caching(attempt, client).await,
        Feature::Blocking => test_blocking(attempt, client).await,
        Feature::ScanIterators => test_scan_iterators(attempt, client).await,
        Feature::Replicas => test_replicas(attempt, client).await,
        Feature::Reconnection => test_reconnection(attempt, client).await,
        Feature::Acl => test_acl(attempt).await,
        Feature::Tls => test_tls(attempt, client).await,
    };
    // An error on closing does not affect the result.
    let _ = client.quit().await;
    outcome
}

async fn test_pipelines(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    let keys: Vec<String> = (0..100).map(|number| test_key(&format!("pipe{number}"))).collect();
    write_all(client, &keys, "before").await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || write_all(client, &keys, "after").await).await?;
    read_until(client, &keys[99], "after").await
}

async fn test_cluster_pipelines(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    if attempt.addresses.mode != DeploymentMode::Cluster {
        return Ok(Some("not meant: one server"));
    }
    let keys: Vec<String> = (0..200).map(|number| format!("spread{number}")).collect();
    write_all(client, &keys, "before").await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || write_all(client, &keys, "after").await).await?;
    for key in &keys {
        read_until(client, key, "after").await?;
    }
    Ok(None)
}

async fn write_all(client: &Client, keys: &[String], value: &str) -> Result<(), Error> {
    let pipeline = client.pipeline();
    for key in keys {
        let () = pipeline.set(key, value, None, None, false).await?;
    }
    let replies: Vec<String> = pipeline.all().await?;
    assert_eq!(replies.len(), keys.len());
    Ok(())
}

/// A transaction is aborted when another client changes the watched key, and succeeds when it is repeated undisturbed.
async fn test_transactions(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    let key = &test_key("watched");
    set_key(client, key, "old").await?;
    let other = connect_client(attempt, &ConnectionOptions::default()).await?;
    client.watch(key).await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || set_key(&other, key, "changed").await).await?;
    let read_and_replace = async {
        let () = client.get(key).await?;
        replace_watched_key(client, key, "lost").await
    };
    let lost = match read_and_replace.await {
        Ok(done) => done.is_some(),
        Err(_) if attempt.is_after_kill() => false,
        Err(error) => return Err(error.into()),
    };
    let watch_and_replace = async || {
        client.watch(key).await?;
        replace_watched_key(client, key, "done").await
    };
    attempt.retry_after_kill(watch_and_replace).await?;
    read_until(client, key, "done").await?;
    check_condition(attempt.is_after_kill() || !lost, "EXEC did what WATCH was to prevent")?;
    Ok(lost.then_some(WATCH_LOST_ON_RECONNECT_LIMITATION))
}

async fn replace_watched_key(client: &Client, key: &str, value: &str) -> Result<Option<Vec<String>>, Error> {
    let transaction = client.multi();
    let () = transaction.set(key, value, None, None, false).await?;
    transaction.exec(true).await
}

async fn test_scripts(client: &Client) -> FeatureResult {
    let script = Script::from_lua("redis.call('set', KEYS[1], ARGV[1]) return ARGV[1] * 2");
    let call = async || script.evalsha_with_reload::<i64, _, _>(client, test_key("doubled"), 4).await;
    check_condition(call().await? == 8, "twice four")?;
    check_condition(call().await? == 8, "twice four, where it is known")?;
    read_until(client, &test_key("doubled"), "4").await
}

async fn test_messages(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    let channel = &test_key("news");
    let subscriber = connect_subscriber(attempt).await?;
    subscriber.subscribe(channel).await?;
    publish_and_receive(&subscriber, async || client.publish(channel.clone(), MESSAGE_TEXT).await).await
}

async fn test_sharded_messages(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    let channel = &test_key("orders");
    let subscriber = connect_subscriber(attempt).await?;
    subscriber.ssubscribe(channel).await?;
    publish_and_receive(&subscriber, async || client.spublish(channel.clone(), MESSAGE_TEXT).await).await
}

/// Publishes until the message arrives, because the library confirms a subscription before the server does.
async fn publish_and_receive(
    subscriber: &SubscriberClient,
    publish: impl AsyncFn() -> FredResult<()>,
) -> FeatureResult {
    let mut heard = subscriber.message_rx();
    loop {
        publish().await?;
        if let Ok(message) = timeout(5 * RETRY_DELAY, heard.recv()).await
            && message?.value.as_string().as_deref() == Some(MESSAGE_TEXT)
        {
            break;
        }
    }
    subscriber.quit().await?;
    Ok(None)
}

/// The library only reports invalidated keys; storing cached values is up to the application.
async fn test_caching(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    if attempt.protocol == 2 {
        return Ok(Some("not offered: only with RESP3"));
    }
    let key = &test_key("cached");
    set_key(client, key, "old").await?;
    let tracked = connect_client(attempt, &ConnectionOptions::default()).await?;
    let mut invalid = tracked.invalidation_rx();
    tracked.start_tracking(None, false, false, false, false).await?;
    read_until(&tracked, key, "old").await?;
    set_key(client, key, "of").await?;
    wait_for_invalidation(&mut invalid, key).await?;
    tracked.quit().await?;
    Ok(None)
}

async fn wait_for_invalidation(invalidations: &mut Receiver<Invalidation>, expected: &str) -> FeatureResult {
    loop {
        let told = timeout(OPERATION_TIMEOUT, invalidations.recv()).await??;
        if told.keys.iter().any(|key| key.as_str_lossy() == expected) {
            return Ok(None);
        }
    }
}

async fn test_blocking(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    let other =
        connect_client(attempt, &ConnectionOptions { may_block: true, ..ConnectionOptions::default() })
            .await?;
    let key = &test_key("jobs");
    let popping = other.blpop::<(String, String), _>(key, 0.0);
    let pushing = async {
        attempt.wait_for_blocked_client().await;
        client.rpush::<(), _, _>(key, "one").await
    };
    let ((_, item), ()) = try_join(popping, pushing).await?;
    check_condition(item == "one", "the item")?;
    other.quit().await?;
    Ok(None)
}

type ScanPages = Pin<Box<dyn Stream<Item = Result<ScanResult, Error>>>>;

async fn test_scan_iterators(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    for number in 0..100 {
        set_key(client, &test_key(&format!("scanned{number}")), "1").await?;
    }
    let mut pages = start_scan(attempt, client);
    let first = pages.try_next().await?.ok_or("no page")?;
    attempt.wait_for_kill().await;
    let mut found = take_page_keys(first);
    let went_on = match timeout(OPERATION_TIMEOUT, collect_keys(pages)).await? {
        Ok(rest) => {
            found.extend(rest);
            found.sort();
            found.dedup();
            true
        }
        Err(_) if attempt.is_after_kill() => false,
        Err(error) => return Err(error.into()),
    };
    let anew = async || collect_keys(start_scan(attempt, client)).await;
    check_condition(attempt.retry_after_kill(anew).await?.len() == 100, "every key")?;
    let misses = went_on && found.len() < 100;
    check_condition(attempt.is_after_kill() || !misses, "a key was missed")?;
    Ok(misses.then_some(MISSING_MESSAGES_LIMITATION))
}

fn start_scan(attempt: &FeatureAttempt, client: &Client) -> ScanPages {
    match attempt.addresses.mode {
        DeploymentMode::Cluster => Box::pin(client.scan_cluster(test_key("scanned*"), Some(10), None)),
        DeploymentMode::Standalone | DeploymentMode::Sentinel => {
            Box::pin(client.scan(test_key("scanned*"), Some(10), None))
        }
    }
}

async fn collect_keys(mut pages: ScanPages) -> Result<HashSet<String>, Error> {
    let mut found = HashSet::new();
    while let Some(page) = pages.try_next().await? {
        found.extend(take_page_keys(page));
    }
    Ok(found)
}

/// Returns the keys of a page and requests the next page.
fn take_page_keys(mut page: ScanResult) -> Vec<String> {
    let keys = page.take_results().unwrap_or_default();
    page.next();
    keys.iter().map(|key| key.as_str_lossy().into_owned()).collect()
}

async fn test_replicas(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    match attempt.addresses.mode {
        DeploymentMode::Standalone => return Ok(Some("not meant: one server")),
        DeploymentMode::Sentinel => return Ok(Some("not offered: replicas only in a cluster")),
        DeploymentMode::Cluster => {}
    }
    let key = &test_key("replicated");
    set_key(client, key, "before").await?;
    for _ in 0..10 {
        read_replica_until(client, key, "before").await?;
    }
    set_key(client, key, "after").await?;
    for _ in 0..10 {
        read_replica_until(client, key, "after").await?;
    }
    Ok(None)
}

/// Reads from a replica with retries: servers list a replica only after its first sync, so first attempts may fail.
async fn read_replica_until(client: &Client, key: &str, expected: &str) -> FeatureResult {
    let began = Instant::now();
    loop {
        let value: Result<Option<String>, Error> = client.replicas().get(key).await;
        if value.as_ref().is_ok_and(|value| value.as_deref() == Some(expected)) {
            return Ok(None);
        }
        check_condition(began.elapsed() < OPERATION_TIMEOUT, &format!("{key} is {value:?}"))?;
        let _ = client.replicas().sync(true).await;
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn test_acl(attempt: &FeatureAttempt) -> FeatureResult {
    attempt.addresses.run_on_servers(&format!("ACL SETUSER app on >secret ~{} &* +@all", test_key("app:*")));
    let app = connect_client(
        attempt,
        &ConnectionOptions { user: Some(("app", "secret")), ..ConnectionOptions::default() },
    )
    .await?;
    set_key(&app, &test_key("app:key"), "1").await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || set_key(&app, &test_key("app:key"), "2").await).await?;
    let refused = set_key(&app, &test_key("other"), "1").await;
    check_condition(
        refused.is_err_and(|error| {
            error.details().contains("NOPERM") || error.to_string().contains("permissions")
        }),
        "refused",
    )?;
    app.quit().await?;
    Ok(None)
}

async fn test_tls(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    for number in 0..20 {
        set_key(client, &format!("tls{number}"), "1").await?;
    }
    attempt.wait_for_kill().await;
    for number in 0..20 {
        attempt.retry_after_kill(async || set_key(client, &format!("tls{number}"), "2").await).await?;
    }
    read_until(client, "tls19", "2").await
}

async fn test_reconnection(attempt: &FeatureAttempt, client: &Client) -> FeatureResult {
    set_key(client, "kept", "1").await?;
    attempt.addresses.run_on_servers("CLIENT KILL TYPE normal SKIPME yes");
    read_until(client, "kept", "1").await
}

#[test]
fn fred_features_with_standalone_server() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Standalone, 2, &test_feature);
    test_all_features(LIBRARY_NAME, DeploymentMode::Standalone, 3, &test_feature);
}

#[test]
fn fred_features_with_sentinels_and_resp2() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Sentinel, 2, &test_feature);
}

#[test]
fn fred_features_with_sentinels_and_resp3() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Sentinel, 3, &test_feature);
}

#[test]
fn fred_features_with_sentinels_over_tls() {
    test_tls_with_sentinels(LIBRARY_NAME, &test_feature);
}

#[test]
fn fred_features_in_cluster_with_resp2() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Cluster, 2, &test_feature);
}

#[test]
fn fred_features_in_cluster_with_resp3() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Cluster, 3, &test_feature);
}
