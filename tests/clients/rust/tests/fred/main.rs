//! Tests the features of fred in every mode and both protocols; each feature is a cell of the table in docs/clients.md.

mod connect;

use std::collections::HashSet;
use std::pin::Pin;
use std::time::Instant;

use client_tests::{
    Attempt, Feature, FeatureResult, Mode, RETRY_DELAY, TIMEOUT, check, key, test_all_features,
    test_tls_with_sentinels,
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

use crate::connect::{ConnectionOptions, connect, read_until, set, subscriber};

/// The text of published messages.
const MESSAGE: &str = "it";
const CLIENT: &str = "fred 10.1.0";
const MISSES: &str =
    "fails with Redis too: it goes on at the successor with the cursor of the dead one, and misses keys";
const UNWATCHED: &str =
    "fails with Redis too: the library connects anew by itself, and nothing is watched any more";

async fn perform(attempt: &Attempt, feature: Feature) -> FeatureResult {
    let tls = feature == Feature::Tls;
    let client = &connect(attempt, &ConnectionOptions { tls, ..ConnectionOptions::default() }).await?;
    let outcome = match feature {
        Feature::Pipelines => pipelines(attempt, client).await,
        Feature::ClusterPipelines => cluster_pipelines(attempt, client).await,
        Feature::Transactions => transactions(attempt, client).await,
        Feature::Scripts => scripts(client).await,
        Feature::Messages => messages(attempt, client).await,
        Feature::ShardedMessages => messages_of_a_shard(attempt, client).await,
        Feature::Caching => caching(attempt, client).await,
        Feature::Blocking => blocking(attempt, client).await,
        Feature::ScanIterators => scan_iterators(attempt, client).await,
        Feature::Replicas => replicas(attempt, client).await,
        Feature::Reconnection => reconnection(attempt, client).await,
        Feature::Acl => acl(attempt).await,
        Feature::Tls => over_tls(attempt, client).await,
    };
    // An error on closing does not matter.
    let _ = client.quit().await;
    outcome
}

async fn pipelines(attempt: &Attempt, client: &Client) -> FeatureResult {
    let keys: Vec<String> = (0..100).map(|number| key(&format!("pipe{number}"))).collect();
    write_all(client, &keys, "before").await?;
    attempt.middle().await;
    attempt.retry_after_kill(async || write_all(client, &keys, "after").await).await?;
    read_until(client, &keys[99], "after").await
}

async fn cluster_pipelines(attempt: &Attempt, client: &Client) -> FeatureResult {
    if attempt.addresses.mode != Mode::Cluster {
        return Ok(Some("not meant: one server"));
    }
    let keys: Vec<String> = (0..200).map(|number| format!("spread{number}")).collect();
    write_all(client, &keys, "before").await?;
    attempt.middle().await;
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

/// Another client changes the watched key; then the same transaction is repeated without interference.
async fn transactions(attempt: &Attempt, client: &Client) -> FeatureResult {
    let key = &key("watched");
    set(client, key, "old").await?;
    let other = connect(attempt, &ConnectionOptions::default()).await?;
    client.watch(key).await?;
    attempt.middle().await;
    attempt.retry_after_kill(async || set(&other, key, "changed").await).await?;
    let read_and_replace = async {
        let () = client.get(key).await?;
        replace(client, key, "lost").await
    };
    let lost = match read_and_replace.await {
        Ok(done) => done.is_some(),
        Err(_) if attempt.is_after_kill() => false,
        Err(error) => return Err(error.into()),
    };
    let watch_and_replace = async || {
        client.watch(key).await?;
        replace(client, key, "done").await
    };
    attempt.retry_after_kill(watch_and_replace).await?;
    read_until(client, key, "done").await?;
    check(attempt.is_after_kill() || !lost, "EXEC did what WATCH was to prevent")?;
    Ok(lost.then_some(UNWATCHED))
}

async fn replace(client: &Client, key: &str, value: &str) -> Result<Option<Vec<String>>, Error> {
    let transaction = client.multi();
    let () = transaction.set(key, value, None, None, false).await?;
    transaction.exec(true).await
}

async fn scripts(client: &Client) -> FeatureResult {
    let script = Script::from_lua("redis.call('set', KEYS[1], ARGV[1]) return ARGV[1] * 2");
    let call = async || script.evalsha_with_reload::<i64, _, _>(client, key("doubled"), 4).await;
    check(call().await? == 8, "twice four")?;
    check(call().await? == 8, "twice four, where it is known")?;
    read_until(client, &key("doubled"), "4").await
}

async fn messages(attempt: &Attempt, client: &Client) -> FeatureResult {
    let channel = &key("news");
    let subscriber = subscriber(attempt).await?;
    subscriber.subscribe(channel).await?;
    publish_and_receive(&subscriber, async || client.publish(channel.clone(), MESSAGE).await).await
}

async fn messages_of_a_shard(attempt: &Attempt, client: &Client) -> FeatureResult {
    let channel = &key("orders");
    let subscriber = subscriber(attempt).await?;
    subscriber.ssubscribe(channel).await?;
    publish_and_receive(&subscriber, async || client.spublish(channel.clone(), MESSAGE).await).await
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
            && message?.value.as_string().as_deref() == Some(MESSAGE)
        {
            break;
        }
    }
    subscriber.quit().await?;
    Ok(None)
}

/// The library reports invalidated keys; the cache itself is up to the application.
async fn caching(attempt: &Attempt, client: &Client) -> FeatureResult {
    if attempt.protocol == 2 {
        return Ok(Some("not offered: only with RESP3"));
    }
    let key = &key("cached");
    set(client, key, "old").await?;
    let tracked = connect(attempt, &ConnectionOptions::default()).await?;
    let mut invalid = tracked.invalidation_rx();
    tracked.start_tracking(None, false, false, false, false).await?;
    read_until(&tracked, key, "old").await?;
    set(client, key, "new").await?;
    is_told(&mut invalid, key).await?;
    tracked.quit().await?;
    Ok(None)
}

async fn is_told(invalid: &mut Receiver<Invalidation>, wanted: &str) -> FeatureResult {
    loop {
        let told = timeout(TIMEOUT, invalid.recv()).await??;
        if told.keys.iter().any(|key| key.as_str_lossy() == wanted) {
            return Ok(None);
        }
    }
}

async fn blocking(attempt: &Attempt, client: &Client) -> FeatureResult {
    let other =
        connect(attempt, &ConnectionOptions { blocking: true, ..ConnectionOptions::default() }).await?;
    let key = &key("jobs");
    let popping = other.blpop::<(String, String), _>(key, 0.0);
    let pushing = async {
        attempt.one_is_blocked().await;
        client.rpush::<(), _, _>(key, "one").await
    };
    let ((_, item), ()) = try_join(popping, pushing).await?;
    check(item == "one", "the item")?;
    other.quit().await?;
    Ok(None)
}

type Pages = Pin<Box<dyn Stream<Item = Result<ScanResult, Error>>>>;

async fn scan_iterators(attempt: &Attempt, client: &Client) -> FeatureResult {
    for number in 0..100 {
        set(client, &key(&format!("scanned{number}")), "1").await?;
    }
    let mut pages = scan(attempt, client);
    let first = pages.try_next().await?.ok_or("no page")?;
    attempt.middle().await;
    let mut found = keys_of(first);
    let went_on = match timeout(TIMEOUT, collect(pages)).await? {
        Ok(rest) => {
            found.extend(rest);
            found.sort();
            found.dedup();
            true
        }
        Err(_) if attempt.is_after_kill() => false,
        Err(error) => return Err(error.into()),
    };
    let anew = async || collect(scan(attempt, client)).await;
    check(attempt.retry_after_kill(anew).await?.len() == 100, "every key")?;
    let misses = went_on && found.len() < 100;
    check(attempt.is_after_kill() || !misses, "a key was missed")?;
    Ok(misses.then_some(MISSES))
}

fn scan(attempt: &Attempt, client: &Client) -> Pages {
    match attempt.addresses.mode {
        Mode::Cluster => Box::pin(client.scan_cluster(key("scanned*"), Some(10), None)),
        Mode::Standalone | Mode::Sentinel => Box::pin(client.scan(key("scanned*"), Some(10), None)),
    }
}

async fn collect(mut pages: Pages) -> Result<HashSet<String>, Error> {
    let mut found = HashSet::new();
    while let Some(page) = pages.try_next().await? {
        found.extend(keys_of(page));
    }
    Ok(found)
}

/// Returns the keys of a page and requests the next page.
fn keys_of(mut page: ScanResult) -> Vec<String> {
    let keys = page.take_results().unwrap_or_default();
    page.next();
    keys.iter().map(|key| key.as_str_lossy().into_owned()).collect()
}

async fn replicas(attempt: &Attempt, client: &Client) -> FeatureResult {
    match attempt.addresses.mode {
        Mode::Standalone => return Ok(Some("not meant: one server")),
        Mode::Sentinel => return Ok(Some("not offered: replicas only in a cluster")),
        Mode::Cluster => {}
    }
    let key = &key("replicated");
    set(client, key, "before").await?;
    for _ in 0..10 {
        read_replica_until(client, key, "before").await?;
    }
    set(client, key, "after").await?;
    for _ in 0..10 {
        read_replica_until(client, key, "after").await?;
    }
    Ok(None)
}

/// The servers list a replica only after its first sync, so the first attempts may fail.
async fn read_replica_until(client: &Client, key: &str, wanted: &str) -> FeatureResult {
    let began = Instant::now();
    loop {
        let value: Result<Option<String>, Error> = client.replicas().get(key).await;
        if value.as_ref().is_ok_and(|value| value.as_deref() == Some(wanted)) {
            return Ok(None);
        }
        check(began.elapsed() < TIMEOUT, &format!("{key} is {value:?}"))?;
        let _ = client.replicas().sync(true).await;
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn acl(attempt: &Attempt) -> FeatureResult {
    attempt.addresses.on_servers(&format!("ACL SETUSER app on >secret ~{} &* +@all", key("app:*")));
    let app = connect(
        attempt,
        &ConnectionOptions { user: Some(("app", "secret")), ..ConnectionOptions::default() },
    )
    .await?;
    set(&app, &key("app:key"), "1").await?;
    attempt.middle().await;
    attempt.retry_after_kill(async || set(&app, &key("app:key"), "2").await).await?;
    let refused = set(&app, &key("other"), "1").await;
    check(
        refused.is_err_and(|error| {
            error.details().contains("NOPERM") || error.to_string().contains("permissions")
        }),
        "refused",
    )?;
    app.quit().await?;
    Ok(None)
}

async fn over_tls(attempt: &Attempt, client: &Client) -> FeatureResult {
    for number in 0..20 {
        set(client, &format!("tls{number}"), "1").await?;
    }
    attempt.middle().await;
    for number in 0..20 {
        attempt.retry_after_kill(async || set(client, &format!("tls{number}"), "2").await).await?;
    }
    read_until(client, "tls19", "2").await
}

async fn reconnection(attempt: &Attempt, client: &Client) -> FeatureResult {
    set(client, "kept", "1").await?;
    attempt.addresses.on_servers("CLIENT KILL TYPE normal SKIPME yes");
    read_until(client, "kept", "1").await
}

#[test]
fn fred_features_with_standalone_server() {
    test_all_features(CLIENT, Mode::Standalone, 2, &perform);
    test_all_features(CLIENT, Mode::Standalone, 3, &perform);
}

#[test]
fn fred_features_with_sentinels_and_resp2() {
    test_all_features(CLIENT, Mode::Sentinel, 2, &perform);
}

#[test]
fn fred_features_with_sentinels_and_resp3() {
    test_all_features(CLIENT, Mode::Sentinel, 3, &perform);
}

#[test]
fn fred_features_with_sentinels_over_tls() {
    test_tls_with_sentinels(CLIENT, &perform);
}

#[test]
fn fred_features_in_cluster_with_resp2() {
    test_all_features(CLIENT, Mode::Cluster, 2, &perform);
}

#[test]
fn fred_features_in_cluster_with_resp3() {
    test_all_features(CLIENT, Mode::Cluster, 3, &perform);
}
