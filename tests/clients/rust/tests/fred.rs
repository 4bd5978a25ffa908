//! What fred offers, in every mode and both protocols; each feature is a cell of the table in docs/clients.md.

use std::collections::HashSet;
use std::future::Future;
use std::time::{Duration, Instant};

use client_tests::{KEY, Mode, Outcome, Place, Table};
use fred::clients::SubscriberClient;
use fred::interfaces::{
    ClientLike, EventInterface, KeysInterface, ListInterface, LuaInterface, PubsubInterface,
    TrackingInterface, TransactionInterface,
};
use fred::prelude::{Builder, Client, Config, Error, ReconnectPolicy, ServerConfig};
use fred::types::RespVersion;
use fred::types::config::{ReplicaConfig, TlsConnector};
use futures_util::TryStreamExt;
use harness::MASTER;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const CLIENT: &str = "fred 10.1.0";
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Who connects how.
#[derive(Default, Clone)]
struct How {
    user: Option<(&'static str, &'static str)>,
    tls: bool,
    replicas: bool,
}

struct Attempt {
    place: Place,
    protocol: u8,
}

impl Attempt {
    fn builder(&self, how: &How) -> Builder {
        let host = |port: u16| ("127.0.0.1".to_owned(), port);
        let ports = if how.tls { self.place.tls_ports() } else { self.place.ports() };
        let server = match self.place.mode {
            Mode::Standalone => ServerConfig::new_centralized("127.0.0.1", ports[0]),
            Mode::Cluster => ServerConfig::new_clustered(ports.into_iter().map(host).collect()),
            Mode::Sentinel => {
                let sentinels = self.place.sentinels.iter().map(|node| host(node.port)).collect();
                ServerConfig::new_sentinel(sentinels, MASTER)
            }
        };
        let mut config = Config { server, ..Config::default() };
        config.version = if self.protocol == 3 { RespVersion::RESP3 } else { RespVersion::RESP2 };
        if let Some((name, password)) = how.user {
            config.username = Some(name.into());
            config.password = Some(password.into());
        }
        if how.tls {
            config.tls = Some(self.tls().into());
        }
        let mut builder = Builder::from_config(config);
        builder.set_policy(ReconnectPolicy::new_constant(0, 50));
        let replicas = how.replicas;
        builder.with_connection_config(|connection| {
            connection.reconnect_on_auth_error = true;
            connection.max_command_attempts = 100;
            if replicas {
                connection.replica = ReplicaConfig { primary_fallback: false, ..ReplicaConfig::default() };
            }
        });
        builder.with_performance_config(|performance| {
            performance.default_command_timeout = Duration::from_secs(3);
        });
        builder
    }

    fn tls(&self) -> TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        let pem = self.place.authority();
        roots.add(CertificateDer::from_pem_slice(&pem).expect("a certificate")).expect("an authority");
        let config =
            rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
        let config = config.with_safe_default_protocol_versions().expect("versions");
        config.with_root_certificates(roots).with_no_client_auth().into()
    }

    async fn connect(&self, how: &How) -> Result<Client, Error> {
        let client = self.builder(how).build()?;
        client.init().await?;
        Ok(client)
    }

    async fn subscriber(&self) -> Result<SubscriberClient, Error> {
        let client = self.builder(&How::default()).build_subscriber_client()?;
        client.init().await?;
        Ok(client)
    }
}

async fn eventually<T, F: Future<Output = Result<T, Error>>>(attempt: impl Fn() -> F) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        match attempt().await {
            Err(_) if began.elapsed() < PATIENCE / 2 => tokio::time::sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::new(fred::error::ErrorKind::Unknown, what.to_owned())
}

fn check(holds: bool, what: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(wrong(what)) }
}

async fn set(client: &Client, key: &str, value: &str) -> Result<(), Error> {
    client.set(key, value, None, None, false).await
}

async fn has(client: &Client, key: &str, wanted: &str) -> Result<(), Error> {
    let value: Option<String> = client.get(key).await?;
    check(value.as_deref() == Some(wanted), &format!("{key} is {value:?}"))
}

async fn pipelines(_: &Attempt, client: &Client) -> Outcome {
    let pipeline = client.pipeline();
    for number in 0..100 {
        let _: () = pipeline.set(format!("{{pipe}}{number}"), number, None, None, false).await?;
    }
    let replies: Vec<String> = pipeline.all().await?;
    check(replies.len() == 100, "a reply for each")?;
    has(client, "{pipe}99", "99").await?;
    Ok(None)
}

async fn cluster_pipelines(attempt: &Attempt, client: &Client) -> Outcome {
    if attempt.place.mode != Mode::Cluster {
        return Ok(Some("not meant: one server"));
    }
    let pipeline = client.pipeline();
    for number in 0..200 {
        let _: () = pipeline.set(format!("spread{number}"), number, None, None, false).await?;
    }
    let replies: Vec<String> = pipeline.all().await?;
    check(replies.len() == 200, "a reply for each")?;
    has(client, "spread199", "199").await?;
    Ok(None)
}

async fn transactions(_: &Attempt, client: &Client) -> Outcome {
    let transaction = client.multi();
    let _: () = transaction.set("{tx}a", 1, None, None, false).await?;
    let _: () = transaction.incr("{tx}a").await?;
    let (done, count): (String, i64) = transaction.exec(true).await?;
    check(done == "OK" && count == 2, "OK and 2")?;
    Ok(None)
}

async fn scripts(_: &Attempt, client: &Client) -> Outcome {
    set(client, "doubled", "0").await?;
    let source = "return redis.call('incrby', KEYS[1], ARGV[1] * 2)";
    let count: i64 = client.eval(source, vec!["doubled"], vec![4]).await?;
    check(count == 8, "twice four")?;
    Ok(None)
}

async fn messages(attempt: &Attempt, client: &Client) -> Outcome {
    let subscriber = attempt.subscriber().await?;
    let mut heard = subscriber.message_rx();
    subscriber.subscribe("news").await?;
    // A subscription is told of before the server has it.
    loop {
        let _: () = client.publish("news", "hi").await?;
        if let Ok(message) = tokio::time::timeout(PAUSE, heard.recv()).await {
            check(message?.value.as_string().as_deref() == Some("hi"), "the message")?;
            return Ok(None);
        }
    }
}

async fn messages_of_a_shard(attempt: &Attempt, client: &Client) -> Outcome {
    let subscriber = attempt.subscriber().await?;
    let mut heard = subscriber.message_rx();
    subscriber.ssubscribe("orders").await?;
    loop {
        let _: () = client.spublish("orders", "hi").await?;
        if let Ok(message) = tokio::time::timeout(PAUSE, heard.recv()).await {
            check(message?.value.as_string().as_deref() == Some("hi"), "the message")?;
            return Ok(None);
        }
    }
}

/// The library tells of what became invalid; what is kept is the caller's affair.
async fn caching(attempt: &Attempt, client: &Client) -> Outcome {
    if attempt.protocol == 2 {
        return Ok(Some("not offered: only with RESP3"));
    }
    set(client, "cached", "old").await?;
    let tracked = attempt.connect(&How::default()).await?;
    let mut invalid = tracked.invalidation_rx();
    tracked.start_tracking(None, false, false, false, false).await?;
    has(&tracked, "cached", "old").await?;
    set(client, "cached", "new").await?;
    let told = invalid.recv().await?;
    check(told.keys.iter().any(|key| key.as_str_lossy() == "cached"), "the key is named")?;
    tracked.quit().await?;
    Ok(None)
}

async fn blocking(attempt: &Attempt, client: &Client) -> Outcome {
    let other = attempt.connect(&How::default()).await?;
    let popping = tokio::spawn(async move { other.blpop::<(String, String), _>("jobs", 10.0).await });
    let _: () = client.rpush("jobs", "one").await?;
    let (_, item) = popping.await??;
    check(item == "one", "the item")?;
    Ok(None)
}

async fn scan_iterators(attempt: &Attempt, client: &Client) -> Outcome {
    for number in 0..100 {
        set(client, &format!("scanned{number}"), "1").await?;
    }
    let keys: Vec<fred::types::Key> = match attempt.place.mode {
        Mode::Cluster => client.scan_cluster_buffered("scanned*", Some(10), None).try_collect().await?,
        _ => client.scan_buffered("scanned*", Some(10), None).try_collect().await?,
    };
    let found: HashSet<String> = keys.iter().map(|key| key.as_str_lossy().into_owned()).collect();
    check(found.len() == 100, "every key")?;
    Ok(None)
}

async fn replicas(attempt: &Attempt, client: &Client) -> Outcome {
    match attempt.place.mode {
        Mode::Standalone => return Ok(Some("not meant: one server")),
        Mode::Sentinel => return Ok(Some("not offered: replicas only in a cluster")),
        Mode::Cluster => {}
    }
    set(client, "replicated", "yes").await?;
    let reader = attempt.connect(&How { replicas: true, ..How::default() }).await?;
    reader.replicas().sync(true).await?;
    for _ in 0..10 {
        let value: Result<Option<String>, Error> = reader.replicas().get("replicated").await;
        match value {
            Ok(value) => check(value.as_deref() == Some("yes"), "a replica has it")?,
            Err(error) if error.details().contains("hash slot owner") => {
                return Ok(Some("fails with Redis too: the client finds no replica"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    reader.quit().await?;
    Ok(None)
}

async fn acl(attempt: &Attempt, _: &Client) -> Outcome {
    attempt.place.on_servers("ACL SETUSER app on >secret ~app:* &* +@all");
    let app = attempt.connect(&How { user: Some(("app", "secret")), ..How::default() }).await?;
    set(&app, "app:key", "1").await?;
    let refused = set(&app, "other", "1").await;
    check(
        refused.is_err_and(|error| {
            error.details().contains("NOPERM") || error.to_string().contains("permissions")
        }),
        "refused",
    )?;
    app.quit().await?;
    Ok(None)
}

async fn tls(attempt: &Attempt, _: &Client) -> Outcome {
    if attempt.place.mode == Mode::Sentinel {
        return Ok(Some("not tested: the kit's sentinels watch without TLS"));
    }
    let client = attempt.connect(&How { tls: true, ..How::default() }).await?;
    for number in 0..20 {
        set(&client, &format!("tls{number}"), "1").await?;
    }
    client.quit().await?;
    Ok(None)
}

async fn reconnection(attempt: &Attempt, client: &Client) -> Outcome {
    set(client, "kept", "1").await?;
    attempt.place.on_servers("CLIENT KILL TYPE normal SKIPME yes");
    eventually(|| has(client, "kept", "1")).await?;
    Ok(None)
}

async fn failover(attempt: &mut Attempt, client: &Client) -> Outcome {
    if attempt.place.mode == Mode::Standalone {
        return Ok(Some("not meant: one server"));
    }
    set(client, KEY, "before").await?;
    let old = attempt.place.kill_master();
    eventually(|| set(client, KEY, "after")).await?;
    eventually(|| has(client, KEY, "after")).await?;
    attempt.place.restart(old);
    Ok(None)
}

async fn bounded(feature: impl Future<Output = Outcome>) -> Outcome {
    tokio::time::timeout(PATIENCE, feature).await?
}

fn tell_all(mode: Mode, protocol: u8) {
    let mut attempt = Attempt { place: Place::start(mode), protocol };
    let mut table = Table::new(CLIENT, mode, protocol);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = attempt.connect(&How::default()).await.expect("it connects");
        table.note("pipelines", bounded(pipelines(&attempt, &client)).await);
        table.note("cluster pipelines", bounded(cluster_pipelines(&attempt, &client)).await);
        table.note("transactions", bounded(transactions(&attempt, &client)).await);
        table.note("scripts", bounded(scripts(&attempt, &client)).await);
        table.note("pub/sub", bounded(messages(&attempt, &client)).await);
        table.note("sharded pub/sub", bounded(messages_of_a_shard(&attempt, &client)).await);
        table.note("client-side caching", bounded(caching(&attempt, &client)).await);
        table.note("blocking", bounded(blocking(&attempt, &client)).await);
        table.note("scan iterators", bounded(scan_iterators(&attempt, &client)).await);
        table.note("reading from replicas", bounded(replicas(&attempt, &client)).await);
        table.note("ACL", bounded(acl(&attempt, &client)).await);
        table.note("TLS", bounded(tls(&attempt, &client)).await);
        table.note("reconnection", bounded(reconnection(&attempt, &client)).await);
        table.note("failover", bounded(failover(&mut attempt, &client)).await);
    });
    table.finish();
}

#[test]
fn fred_with_one_server() {
    tell_all(Mode::Standalone, 2);
    tell_all(Mode::Standalone, 3);
}

#[test]
fn fred_with_sentinels_and_resp2() {
    tell_all(Mode::Sentinel, 2);
}

#[test]
fn fred_with_sentinels_and_resp3() {
    tell_all(Mode::Sentinel, 3);
}

#[test]
fn fred_in_a_cluster_with_resp2() {
    tell_all(Mode::Cluster, 2);
}

#[test]
fn fred_in_a_cluster_with_resp3() {
    tell_all(Mode::Cluster, 3);
}
