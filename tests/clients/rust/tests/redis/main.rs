//! Tests the features of the `redis` crate in every mode and both protocols; each feature is a cell of the table in
//! docs/clients.md.

mod link;
mod listener;

use std::collections::HashSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client_tests::{
    DeploymentMode, Feature, FeatureAttempt, FeatureResult, check_condition, test_all_features, test_key,
    test_tls_with_sentinels,
};
use futures_util::TryStreamExt;
use futures_util::future::try_join;
use redis::aio::ConnectionManager;
use redis::cluster::{ClusterClient, ClusterConnection, cluster_pipe};
use redis::{AsyncCommands, AsyncIter, RedisResult, Script, cmd};
use tokio::time::timeout;

use crate::link::{ConnectionOptions, TestConnection, cluster_client, sentinel_client};
use crate::listener::{ChannelKind, ChannelListener};

const LIBRARY_NAME: &str = "redis (Rust) 1.8.1";
const BROKEN_CONNECTION_LIMITATION: &str =
    "fails with Redis too: the connection stays broken until its user makes another";
const WATCH_LOST_ON_RECONNECT_LIMITATION: &str =
    "fails with Redis too: the library connects anew by itself, and nothing is watched any more";

/// The time limit for recovery while the server stays reachable.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(3);

async fn test_feature(attempt: &FeatureAttempt, feature: Feature) -> FeatureResult {
    // The `redis` crate does not choose a rustls provider, so the test must install one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tls = feature == Feature::Tls;
    let link =
        &mut TestConnection::new(attempt, ConnectionOptions { tls, ..ConnectionOptions::default() }).await?;
    match feature {
        Feature::Pipelines => test_pipelines(attempt, link).await,
        Feature::ClusterPipelines => test_cluster_pipelines(attempt, link).await,
        Feature::Transactions => test_transactions(attempt, link).await,
        Feature::Scripts => test_scripts(link).await,
        Feature::Messages => test_messages(attempt, link, ChannelKind::Plain).await,
        Feature::ShardedMessages => test_messages(attempt, link, ChannelKind::Sharded).await,
        Feature::Caching => test_caching(attempt, link).await,
        Feature::Blocking => test_blocking(attempt, link).await,
        Feature::ScanIterators => test_scan_iterators(attempt, link).await,
        Feature::Replicas => test_replicas(attempt, link).await,
        Feature::Reconnection => test_reconnection(attempt, link).await,
        Feature::Acl => test_acl(attempt).await,
        Feature::Tls => test_tls(attempt, link).await,
    }
}

async fn test_pipelines(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    write_hundred_keys(link, "before").await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || write_hundred_keys(link, "after").await).await?;
    link.read_until(&test_key("pipe99"), "after").await
}

async fn write_hundred_keys(link: &mut TestConnection, value: &str) -> RedisResult<()> {
    let mut pipeline = redis::pipe();
    for number in 0..100 {
        pipeline.set(test_key(&format!("pipe{number}")), value);
    }
    let replies: Vec<String> = link.run_all(&pipeline).await?;
    assert_eq!(replies.len(), 100);
    Ok(())
}

/// Uses the blocking connection, because pipelines of the asynchronous one are limited to one slot.
async fn test_cluster_pipelines(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    if attempt.addresses.mode != DeploymentMode::Cluster {
        return Ok(Some("not meant: one server"));
    }
    let client = cluster_client(attempt, &ConnectionOptions::default()).build()?;
    let connection = connect_cluster(client.clone()).await?;
    write_to_all_slots(&connection, "before").await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || link.set(&test_key("spread"), "after").await).await?;
    let again = attempt.retry_after_kill(async || write_to_all_slots(&connection, "after").await);
    let goes_on = match timeout(RECOVERY_TIMEOUT, again).await {
        Ok(outcome) => outcome.map(|()| true)?,
        Err(_) => false,
    };
    if !goes_on {
        let connection = connect_cluster(client).await?;
        write_to_all_slots(&connection, "after").await?;
    }
    for number in 0..200 {
        link.read_until(&format!("spread{number}"), "after").await?;
    }
    Ok((!goes_on).then_some(BROKEN_CONNECTION_LIMITATION))
}

type SharedConnection = Arc<Mutex<ClusterConnection>>;

async fn connect_cluster(client: ClusterClient) -> Result<SharedConnection, Box<dyn Error + Send + Sync>> {
    let connect = move || {
        let connection = client.get_connection()?;
        connection.set_read_timeout(Some(RECOVERY_TIMEOUT))?;
        RedisResult::Ok(Arc::new(Mutex::new(connection)))
    };
    Ok(tokio::task::spawn_blocking(connect).await??)
}

async fn write_to_all_slots(connection: &SharedConnection, value: &'static str) -> RedisResult<()> {
    let connection = Arc::clone(connection);
    let write = move || write_two_hundred_keys(&mut connection.lock().expect("nobody panicked"), value);
    tokio::task::spawn_blocking(write).await.expect("it does not panic")
}

fn write_two_hundred_keys(connection: &mut ClusterConnection, value: &str) -> RedisResult<()> {
    let mut pipeline = cluster_pipe();
    for number in 0..200 {
        pipeline.set(format!("spread{number}"), value);
    }
    let replies: Vec<String> = pipeline.query(connection)?;
    assert_eq!(replies.len(), 200);
    Ok(())
}

/// A transaction is aborted when another client changes the watched key, and succeeds when it is repeated undisturbed.
async fn test_transactions(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    let key = &test_key("watched");
    link.set(key, "old").await?;
    let mut other = TestConnection::with_default_options(attempt).await?;
    let () = link.run(cmd("WATCH").arg(key)).await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || other.set(key, "changed").await).await?;
    let lost = match replace_watched_key(link, key, "lost").await {
        Ok(done) => done.is_some(),
        Err(_) if attempt.is_after_kill() => false,
        Err(error) => return Err(error.into()),
    };
    let watch_and_replace = async || {
        let () = link.run(cmd("WATCH").arg(key)).await?;
        replace_watched_key(link, key, "done").await
    };
    attempt.retry_after_kill(watch_and_replace).await?;
    link.read_until(key, "done").await?;
    check_condition(attempt.is_after_kill() || !lost, "EXEC did what WATCH was to prevent")?;
    // In a cluster the result depends on timing. EXEC fails if it goes to the node in the library's outdated slot map,
    // and succeeds if it goes to the new master, which knows of no WATCH.
    let left_to_chance = attempt.is_after_kill() && attempt.addresses.mode == DeploymentMode::Cluster;
    Ok((lost || left_to_chance).then_some(WATCH_LOST_ON_RECONNECT_LIMITATION))
}

async fn replace_watched_key(
    link: &mut TestConnection,
    key: &str,
    value: &str,
) -> RedisResult<Option<(String,)>> {
    let mut pipeline = redis::pipe();
    pipeline.atomic().set(key, value);
    link.run_all(&pipeline).await
}

async fn test_scripts(link: &mut TestConnection) -> FeatureResult {
    let script = Script::new("redis.call('set', KEYS[1], ARGV[1]) return ARGV[1] * 2");
    let mut call = script.key(test_key("doubled"));
    call.arg(4);
    let doubled: i64 = link.invoke_script(&call).await?;
    check_condition(doubled == 8, "twice four")?;
    let doubled: i64 = link.invoke_script(&call).await?;
    check_condition(doubled == 8, "twice four, where it is known")?;
    link.read_until(&test_key("doubled"), "4").await
}

async fn test_messages(
    attempt: &FeatureAttempt,
    link: &mut TestConnection,
    channels: ChannelKind,
) -> FeatureResult {
    if attempt.protocol == 2 && channels == ChannelKind::Sharded {
        return Ok(Some("not offered: only with RESP3"));
    }
    if attempt.protocol == 2 && attempt.addresses.mode == DeploymentMode::Cluster {
        return Ok(Some("not offered: in a cluster only with RESP3"));
    }
    let channel = test_key("news");
    let mut listener = ChannelListener::subscribe(attempt, channels, &channel).await?;
    listener.publish_and_receive(link, "it").await
}

async fn test_caching(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    if attempt.protocol == 2 {
        return Ok(Some("not offered: only with RESP3"));
    }
    let key = &test_key("cached");
    link.set(key, "old").await?;
    let mut caching = TestConnection::new(
        attempt,
        ConnectionOptions { client_side_cache: true, ..ConnectionOptions::default() },
    )
    .await?;
    caching.read_until(key, "old").await?;
    caching.read_until(key, "old").await?;
    check_condition(caching.cache_hits() > 0, "nothing is cached")?;
    link.set(key, "of").await?;
    caching.read_until(key, "of").await
}

async fn test_blocking(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    let mut other =
        TestConnection::new(attempt, ConnectionOptions { may_block: true, ..ConnectionOptions::default() })
            .await?;
    let key = &test_key("jobs");
    let pop = cmd("BLPOP").arg(key).arg(0).take();
    let popping = other.run::<(String, String)>(&pop);
    let pushing = async {
        attempt.wait_for_blocked_client().await;
        let push = cmd("RPUSH").arg(key).arg("one").take();
        link.run::<()>(&push).await
    };
    let ((_, item), ()) = try_join(popping, pushing).await?;
    check_condition(item == "one", "the item")?;
    Ok(None)
}

async fn test_scan_iterators(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    if attempt.addresses.mode == DeploymentMode::Cluster {
        return Ok(Some("not offered: an iterator over a whole cluster"));
    }
    for number in 0..100 {
        link.set(&test_key(&format!("scanned{number}")), "1").await?;
    }
    let pattern = &test_key("scanned*");
    let mut connection = connect_scanner(attempt, link).await?;
    let mut keys: AsyncIter<'_, String> = connection.scan_match(pattern).await?;
    let first = keys.next_item().await.ok_or("no key")??;
    attempt.wait_for_kill().await;
    match keys.try_collect::<HashSet<String>>().await {
        Ok(mut found) => {
            found.insert(first);
            check_condition(found.len() == 100, "every key")?;
        }
        Err(_) if attempt.is_after_kill() => {}
        Err(error) => return Err(error.into()),
    }
    let anew = async || {
        let mut connection = connect_scanner(attempt, link).await?;
        let keys: AsyncIter<'_, String> = connection.scan_match(pattern).await?;
        keys.try_collect::<HashSet<String>>().await
    };
    check_condition(attempt.retry_after_kill(anew).await?.len() == 100, "every key")?;
    Ok(None)
}

async fn connect_scanner(attempt: &FeatureAttempt, link: &TestConnection) -> RedisResult<ConnectionManager> {
    match link {
        TestConnection::Standalone(connection) => Ok((**connection).clone()),
        TestConnection::Sentinel(..) | TestConnection::Cluster(_) => {
            let client = sentinel_client(attempt, &ConnectionOptions::default())?.async_get_client().await?;
            ConnectionManager::new(client).await
        }
    }
}

async fn test_replicas(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    if attempt.addresses.mode == DeploymentMode::Standalone {
        return Ok(Some("not meant: one server"));
    }
    let key = &test_key("replicated");
    link.set(key, "before").await?;
    let mut reader = TestConnection::new(
        attempt,
        ConnectionOptions { reads_from_replicas: true, ..ConnectionOptions::default() },
    )
    .await?;
    for _ in 0..10 {
        reader.read_until(key, "before").await?;
    }
    link.set(key, "after").await?;
    for _ in 0..10 {
        reader.read_until(key, "after").await?;
    }
    Ok(None)
}

async fn test_acl(attempt: &FeatureAttempt) -> FeatureResult {
    attempt.addresses.run_on_servers(&format!("ACL SETUSER app on >secret ~{} &* +@all", test_key("app:*")));
    let mut app = TestConnection::new(
        attempt,
        ConnectionOptions { user: Some(("app", "secret")), ..ConnectionOptions::default() },
    )
    .await?;
    app.set(&test_key("app:key"), "1").await?;
    attempt.wait_for_kill().await;
    attempt.retry_after_kill(async || app.set(&test_key("app:key"), "2").await).await?;
    let refused = app.set(&test_key("other"), "1").await;
    check_condition(refused.is_err_and(|error| error.code() == Some("NOPERM")), "refused")?;
    Ok(None)
}

async fn test_tls(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    for number in 0..20 {
        link.set(&format!("tls{number}"), "1").await?;
    }
    attempt.wait_for_kill().await;
    for number in 0..20 {
        attempt.retry_after_kill(async || link.set(&format!("tls{number}"), "2").await).await?;
    }
    link.read_until("tls19", "2").await
}

async fn test_reconnection(attempt: &FeatureAttempt, link: &mut TestConnection) -> FeatureResult {
    link.set("kept", "1").await?;
    attempt.addresses.run_on_servers("CLIENT KILL TYPE normal SKIPME yes");
    link.read_until("kept", "1").await
}

#[test]
fn redis_crate_features_with_standalone_server() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Standalone, 2, &test_feature);
    test_all_features(LIBRARY_NAME, DeploymentMode::Standalone, 3, &test_feature);
}

#[test]
fn redis_crate_features_with_sentinels_and_resp2() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Sentinel, 2, &test_feature);
}

#[test]
fn redis_crate_features_with_sentinels_and_resp3() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Sentinel, 3, &test_feature);
}

#[test]
fn redis_crate_features_with_sentinels_over_tls() {
    test_tls_with_sentinels(LIBRARY_NAME, &test_feature);
}

#[test]
fn redis_crate_features_in_cluster_with_resp2() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Cluster, 2, &test_feature);
}

#[test]
fn redis_crate_features_in_cluster_with_resp3() {
    test_all_features(LIBRARY_NAME, DeploymentMode::Cluster, 3, &test_feature);
}
