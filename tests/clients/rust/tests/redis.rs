//! What the `redis` crate offers, in every mode and both protocols; each feature is a cell of the table in
//! docs/clients.md.

use std::collections::HashSet;
use std::future::Future;
use std::time::{Duration, Instant};

use client_tests::{KEY, Mode, Outcome, Place, Table};
use futures_util::StreamExt;
use harness::MASTER;
use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::caching::CacheConfig;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_read_routing::RandomReplicaStrategy;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisResult, TlsCertificates, cmd,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const CLIENT: &str = "redis (Rust) 1.8.1";
const PATIENCE: Duration = Duration::from_secs(60);
const REPLY: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Who connects how.
#[derive(Default)]
struct How {
    user: Option<(&'static str, &'static str)>,
    tls: bool,
    replicas: bool,
    cache: bool,
    /// Where pushes go, with RESP3.
    pushes: Option<UnboundedSender<PushInfo>>,
}

struct Attempt {
    place: Place,
    protocol: u8,
}

/// A connection of each mode's own kind.
enum Link {
    Standalone(Box<ConnectionManager>),
    /// Asked for anew once it is broken: the crate leaves that to its caller.
    Sentinel(Box<SentinelClient>, Box<AsyncConnectionConfig>, Option<MultiplexedConnection>),
    Cluster(ClusterConnection),
}

impl Link {
    async fn run<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Self::Standalone(connection) => command.query_async(&mut **connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
            Self::Sentinel(..) => {
                let mut connection = self.asked().await?;
                let outcome = command.query_async(&mut connection).await;
                self.judge(outcome)
            }
        }
    }

    async fn run_all<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> RedisResult<T> {
        match self {
            Self::Standalone(connection) => pipeline.query_async(&mut **connection).await,
            Self::Cluster(connection) => pipeline.query_async(connection).await,
            Self::Sentinel(..) => {
                let mut connection = self.asked().await?;
                let outcome = pipeline.query_async(&mut connection).await;
                self.judge(outcome)
            }
        }
    }

    /// The connection to where the sentinels send clients.
    async fn asked(&mut self) -> RedisResult<MultiplexedConnection> {
        let Self::Sentinel(client, config, connection) = self else { panic!("only sentinels are asked") };
        if connection.is_none() {
            *connection = Some(client.get_async_connection_with_config(config).await?);
        }
        Ok(connection.clone().expect("it was just made"))
    }

    fn judge<T>(&mut self, outcome: RedisResult<T>) -> RedisResult<T> {
        if let (Self::Sentinel(_, _, connection), Err(_)) = (self, &outcome) {
            *connection = None;
        }
        outcome
    }

    async fn set(&mut self, key: &str, value: &str) -> RedisResult<()> {
        self.run(cmd("SET").arg(key).arg(value)).await
    }

    async fn get(&mut self, key: &str) -> RedisResult<Option<String>> {
        self.run(cmd("GET").arg(key)).await
    }

    /// Reads until it has this value.
    async fn comes_to_have(&mut self, key: &str, wanted: &str) -> Outcome {
        let began = Instant::now();
        loop {
            let value = self.get(key).await;
            if value.as_ref().is_ok_and(|value| value.as_deref() == Some(wanted)) {
                return Ok(None);
            }
            check(began.elapsed() < PATIENCE, &format!("{key} is {value:?}"))?;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Attempt {
    fn version(&self) -> ProtocolVersion {
        if self.protocol == 3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 }
    }

    fn redis_info(&self, how: &How) -> RedisConnectionInfo {
        let info = RedisConnectionInfo::default().set_protocol(self.version());
        match how.user {
            Some((name, password)) => info.set_username(name).set_password(password),
            None => info,
        }
    }

    fn urls(&self, tls: bool) -> Vec<String> {
        let (scheme, ports) =
            if tls { ("rediss", self.place.tls_ports()) } else { ("redis", self.place.ports()) };
        ports.iter().map(|port| format!("{scheme}://127.0.0.1:{port}")).collect()
    }

    fn certificates(&self) -> TlsCertificates {
        TlsCertificates { client_tls: None, root_cert: Some(self.place.authority()) }
    }

    fn sentinel(&self, how: &How) -> RedisResult<SentinelClient> {
        let sentinels = self.place.sentinels.iter().map(|node| format!("redis://127.0.0.1:{}", node.port));
        let node = SentinelNodeConnectionInfo::default().set_redis_connection_info(self.redis_info(how));
        let kind = if how.replicas { SentinelServerType::Replica } else { SentinelServerType::Master };
        SentinelClient::build(sentinels.collect(), MASTER, Some(node), kind)
    }

    fn client(&self, how: &How) -> RedisResult<Client> {
        let info: ConnectionInfo = self.urls(how.tls)[0].as_str().into_connection_info()?;
        let info = info.set_redis_settings(self.redis_info(how));
        if how.tls { Client::build_with_tls(info, self.certificates()) } else { Client::open(info) }
    }

    async fn connect(&self, how: How) -> RedisResult<Link> {
        match self.place.mode {
            Mode::Standalone => {
                let client = self.client(&how)?;
                let mut config =
                    ConnectionManagerConfig::new().set_response_timeout(Some(REPLY)).set_number_of_retries(6);
                if how.cache {
                    config = config.set_cache_config(CacheConfig::new());
                }
                if let Some(pushes) = how.pushes {
                    config = config.set_push_sender(pushes).set_automatic_resubscription();
                }
                let connection = client.get_connection_manager_with_config(config).await?;
                Ok(Link::Standalone(Box::new(connection)))
            }
            Mode::Sentinel => {
                let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(REPLY));
                let client = self.sentinel(&how)?;
                if how.cache {
                    config = config.set_cache_config(CacheConfig::new());
                }
                if let Some(pushes) = how.pushes {
                    config = config.set_push_sender(pushes);
                }
                Ok(Link::Sentinel(Box::new(client), Box::new(config), None))
            }
            Mode::Cluster => {
                let mut builder = ClusterClient::builder(self.urls(how.tls)).use_protocol(self.version());
                builder = builder.connection_timeout(REPLY).response_timeout(REPLY);
                if let Some((name, password)) = how.user {
                    builder = builder.username(name).password(password);
                }
                if how.tls {
                    builder = builder.certs(self.certificates());
                }
                if how.replicas {
                    builder = builder.read_routing_strategy(RandomReplicaStrategy);
                }
                if how.cache {
                    builder = builder.cache_config(CacheConfig::new());
                }
                if let Some(pushes) = how.pushes {
                    builder = builder.push_sender(pushes);
                }
                Ok(Link::Cluster(builder.build()?.get_async_connection().await?))
            }
        }
    }

    async fn plain(&self) -> RedisResult<Link> {
        self.connect(How::default()).await
    }
}

fn check(holds: bool, what: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if holds { Ok(()) } else { Err(what.into()) }
}

async fn pipelines(_: &Attempt, link: &mut Link) -> Outcome {
    let mut pipeline = redis::pipe();
    for number in 0..100 {
        pipeline.set(format!("{{pipe}}{number}"), number);
    }
    let replies: Vec<String> = link.run_all(&pipeline).await?;
    check(replies.len() == 100, "a reply for each")?;
    link.comes_to_have("{pipe}99", "99").await
}

async fn cluster_pipelines(attempt: &Attempt, link: &mut Link) -> Outcome {
    if attempt.place.mode != Mode::Cluster {
        return Ok(Some("not meant: one server"));
    }
    let mut pipeline = redis::pipe();
    for number in 0..200 {
        pipeline.set(format!("spread{number}"), number);
    }
    match link.run_all::<Vec<String>>(&pipeline).await {
        Ok(_) => link.comes_to_have("spread199", "199").await,
        Err(error)
            if error.to_string().contains("cross slots") || error.to_string().contains("CrossSlot") =>
        {
            Ok(Some("not offered: a pipeline of the asynchronous cluster connection is of one slot"))
        }
        Err(error) => Err(error.into()),
    }
}

async fn transactions(_: &Attempt, link: &mut Link) -> Outcome {
    let mut pipeline = redis::pipe();
    pipeline.atomic().set("{tx}a", 1).incr("{tx}a", 1);
    let (done, count): (String, i64) = link.run_all(&pipeline).await?;
    check(done == "OK" && count == 2, "OK and 2")?;
    Ok(None)
}

async fn scripts(_: &Attempt, link: &mut Link) -> Outcome {
    link.set("doubled", "0").await?;
    let script = redis::Script::new("return redis.call('incrby', KEYS[1], ARGV[1] * 2)");
    let mut call = script.key("doubled");
    call.arg(4);
    let count: i64 = match link {
        Link::Standalone(connection) => call.invoke_async(&mut **connection).await?,
        Link::Cluster(connection) => call.invoke_async(connection).await?,
        Link::Sentinel(..) => call.invoke_async(&mut link.asked().await?).await?,
    };
    check(count == 8, "twice four")?;
    Ok(None)
}

/// Waits for what was published on a channel.
async fn next(pushes: &mut UnboundedReceiver<PushInfo>, kind: PushKind) -> Outcome {
    while let Some(push) = pushes.recv().await {
        if push.kind == kind {
            let text: String = redis::from_redis_value(push.data.last().ok_or("no text")?.clone())?;
            check(text == "hi", "the message")?;
            return Ok(None);
        }
    }
    Err("the connection ended".into())
}

async fn messages(attempt: &Attempt, link: &mut Link) -> Outcome {
    if attempt.protocol == 3 {
        let (pushes, mut heard) = unbounded_channel();
        let mut listener = attempt.connect(How { pushes: Some(pushes), ..How::default() }).await?;
        match &mut listener {
            Link::Standalone(connection) => connection.subscribe("news").await?,
            Link::Cluster(connection) => connection.subscribe("news").await?,
            Link::Sentinel(..) => listener.asked().await?.subscribe("news").await?,
        }
        let () = link.run(cmd("PUBLISH").arg("news").arg("hi")).await?;
        return next(&mut heard, PushKind::Message).await;
    }
    let client = match attempt.place.mode {
        Mode::Cluster => return Ok(Some("not offered: in a cluster only with RESP3")),
        Mode::Standalone => attempt.client(&How::default())?,
        Mode::Sentinel => attempt.sentinel(&How::default())?.async_get_client().await?,
    };
    let mut listener = client.get_async_pubsub().await?;
    listener.subscribe("news").await?;
    let () = link.run(cmd("PUBLISH").arg("news").arg("hi")).await?;
    let message = listener.on_message().next().await.ok_or("the connection ended")?;
    check(message.get_payload::<String>()? == "hi", "the message")?;
    Ok(None)
}

async fn messages_of_a_shard(attempt: &Attempt, link: &mut Link) -> Outcome {
    if attempt.protocol == 2 {
        return Ok(Some("not offered: only with RESP3"));
    }
    let (pushes, mut heard) = unbounded_channel();
    let mut listener = attempt.connect(How { pushes: Some(pushes), ..How::default() }).await?;
    match &mut listener {
        Link::Cluster(connection) => connection.ssubscribe("orders").await?,
        _ => listener.run(cmd("SSUBSCRIBE").arg("orders")).await?,
    }
    let () = link.run(cmd("SPUBLISH").arg("orders").arg("hi")).await?;
    next(&mut heard, PushKind::SMessage).await
}

async fn caching(attempt: &Attempt, link: &mut Link) -> Outcome {
    if attempt.protocol == 2 {
        return Ok(Some("not offered: only with RESP3"));
    }
    link.set("cached", "old").await?;
    let mut caching = attempt.connect(How { cache: true, ..How::default() }).await?;
    caching.comes_to_have("cached", "old").await?;
    link.set("cached", "new").await?;
    caching.comes_to_have("cached", "new").await
}

async fn blocking(attempt: &Attempt, link: &mut Link) -> Outcome {
    let mut other = attempt.plain().await?;
    let popping =
        tokio::spawn(async move { other.run::<(String, String)>(cmd("BLPOP").arg("jobs").arg(10)).await });
    let () = link.run(cmd("RPUSH").arg("jobs").arg("one")).await?;
    let (_, item) = popping.await??;
    check(item == "one", "the item")?;
    Ok(None)
}

async fn scan_iterators(attempt: &Attempt, link: &mut Link) -> Outcome {
    for number in 0..100 {
        link.set(&format!("scanned{number}"), "1").await?;
    }
    let mut connection = match link {
        Link::Standalone(connection) => (**connection).clone(),
        Link::Cluster(_) => return Ok(Some("not offered: an iterator over a whole cluster")),
        Link::Sentinel(..) => {
            ConnectionManager::new(attempt.sentinel(&How::default())?.async_get_client().await?).await?
        }
    };
    use redis::AsyncCommands;
    let found = connection.scan_match::<_, String>("scanned*").await?;
    let found: HashSet<String> = found.filter_map(|key| std::future::ready(key.ok())).collect().await;
    check(found.len() == 100, "every key")?;
    Ok(None)
}

async fn replicas(attempt: &Attempt, link: &mut Link) -> Outcome {
    if attempt.place.mode == Mode::Standalone {
        return Ok(Some("not meant: one server"));
    }
    link.set("replicated", "yes").await?;
    let mut reader = attempt.connect(How { replicas: true, ..How::default() }).await?;
    for _ in 0..10 {
        reader.comes_to_have("replicated", "yes").await?;
    }
    Ok(None)
}

async fn acl(attempt: &Attempt, _: &mut Link) -> Outcome {
    attempt.place.on_servers("ACL SETUSER app on >secret ~app:* &* +@all");
    let mut app = attempt.connect(How { user: Some(("app", "secret")), ..How::default() }).await?;
    app.set("app:key", "1").await?;
    let refused = app.set("other", "1").await;
    check(refused.is_err_and(|error| error.code() == Some("NOPERM")), "refused")?;
    Ok(None)
}

async fn tls(attempt: &Attempt, _: &mut Link) -> Outcome {
    if attempt.place.mode == Mode::Sentinel {
        return Ok(Some("not tested: the kit's sentinels watch without TLS"));
    }
    let mut link = attempt.connect(How { tls: true, ..How::default() }).await?;
    for number in 0..20 {
        link.set(&format!("tls{number}"), "1").await?;
    }
    Ok(None)
}

async fn reconnection(attempt: &Attempt, link: &mut Link) -> Outcome {
    link.set("kept", "1").await?;
    attempt.place.on_servers("CLIENT KILL TYPE normal SKIPME yes");
    link.comes_to_have("kept", "1").await
}

async fn failover(attempt: &mut Attempt, link: &mut Link) -> Outcome {
    if attempt.place.mode == Mode::Standalone {
        return Ok(Some("not meant: one server"));
    }
    link.set(KEY, "before").await?;
    let old = attempt.place.kill_master();
    let began = Instant::now();
    while let Err(error) = link.set(KEY, "after").await {
        check(began.elapsed() < PATIENCE, &error.to_string())?;
        tokio::time::sleep(PAUSE).await;
    }
    link.comes_to_have(KEY, "after").await?;
    attempt.place.restart(old);
    Ok(None)
}

async fn bounded(feature: impl Future<Output = Outcome>) -> Outcome {
    tokio::time::timeout(PATIENCE, feature).await?
}

fn tell_all(mode: Mode, protocol: u8) {
    // The crate leaves the choice of cryptography to whoever uses it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut attempt = Attempt { place: Place::start(mode), protocol };
    let mut table = Table::new(CLIENT, mode, protocol);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut link = attempt.plain().await.expect("it connects");
        table.note("pipelines", bounded(pipelines(&attempt, &mut link)).await);
        table.note("cluster pipelines", bounded(cluster_pipelines(&attempt, &mut link)).await);
        table.note("transactions", bounded(transactions(&attempt, &mut link)).await);
        table.note("scripts", bounded(scripts(&attempt, &mut link)).await);
        table.note("pub/sub", bounded(messages(&attempt, &mut link)).await);
        table.note("sharded pub/sub", bounded(messages_of_a_shard(&attempt, &mut link)).await);
        table.note("client-side caching", bounded(caching(&attempt, &mut link)).await);
        table.note("blocking", bounded(blocking(&attempt, &mut link)).await);
        table.note("scan iterators", bounded(scan_iterators(&attempt, &mut link)).await);
        table.note("reading from replicas", bounded(replicas(&attempt, &mut link)).await);
        table.note("ACL", bounded(acl(&attempt, &mut link)).await);
        table.note("TLS", bounded(tls(&attempt, &mut link)).await);
        table.note("reconnection", bounded(reconnection(&attempt, &mut link)).await);
        table.note("failover", bounded(failover(&mut attempt, &mut link)).await);
    });
    table.finish();
}

#[test]
fn the_redis_crate_with_one_server() {
    tell_all(Mode::Standalone, 2);
    tell_all(Mode::Standalone, 3);
}

#[test]
fn the_redis_crate_with_sentinels_and_resp2() {
    tell_all(Mode::Sentinel, 2);
}

#[test]
fn the_redis_crate_with_sentinels_and_resp3() {
    tell_all(Mode::Sentinel, 3);
}

#[test]
fn the_redis_crate_in_a_cluster_with_resp2() {
    tell_all(Mode::Cluster, 2);
}

#[test]
fn the_redis_crate_in_a_cluster_with_resp3() {
    tell_all(Mode::Cluster, 3);
}
