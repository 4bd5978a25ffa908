//! Connections of each mode's own kind.

use std::time::{Duration, Instant};

use client_tests::{Addresses, Attempt, Mode, Outcome, PAUSE, TIMEOUT, check};
use harness::MASTER;
use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::caching::CacheConfig;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_read_routing::RandomReplicaStrategy;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisResult, TlsCertificates, TlsMode, cmd,
};
use tokio::sync::mpsc::UnboundedSender;

const HOST: &str = "127.0.0.1";
const REPLY: Duration = Duration::from_secs(3);

/// The options of a connection.
#[derive(Default)]
pub(crate) struct How {
    pub(crate) user: Option<(&'static str, &'static str)>,
    pub(crate) tls: bool,
    pub(crate) replicas: bool,
    pub(crate) cache: bool,
    /// Replies may take their time.
    pub(crate) blocking: bool,
    /// Where pushes go, with RESP3.
    pub(crate) pushes: Option<UnboundedSender<PushInfo>>,
}

impl How {
    fn reply(&self) -> Duration {
        if self.blocking { 2 * TIMEOUT } else { REPLY }
    }
}

pub(crate) enum Link {
    Standalone(Box<ConnectionManager>),
    /// Asked for anew once it is broken: the crate leaves that to its caller.
    Sentinel(Box<SentinelClient>, Box<AsyncConnectionConfig>, Option<MultiplexedConnection>),
    Cluster(ClusterConnection),
}

impl Link {
    pub(crate) async fn new(attempt: &Attempt, how: How) -> RedisResult<Self> {
        match attempt.at.mode {
            Mode::Standalone => {
                let mut config = ConnectionManagerConfig::new()
                    .set_response_timeout(Some(how.reply()))
                    .set_number_of_retries(6);
                let client = client(attempt, &how)?;
                if how.cache {
                    config = config.set_cache_config(CacheConfig::new());
                }
                if let Some(pushes) = how.pushes {
                    config = config.set_push_sender(pushes).set_automatic_resubscription();
                }
                let connection = client.get_connection_manager_with_config(config).await?;
                Ok(Self::Standalone(Box::new(connection)))
            }
            Mode::Sentinel => {
                let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(how.reply()));
                let client = sentinel_client(attempt, &how)?;
                if how.cache {
                    config = config.set_cache_config(CacheConfig::new());
                }
                if let Some(pushes) = how.pushes {
                    config = config.set_push_sender(pushes);
                }
                Ok(Self::Sentinel(Box::new(client), Box::new(config), None))
            }
            Mode::Cluster => {
                let mut builder = cluster_client(attempt, &how);
                if let Some(pushes) = how.pushes {
                    builder = builder.push_sender(pushes);
                }
                Ok(Self::Cluster(builder.build()?.get_async_connection().await?))
            }
        }
    }

    pub(crate) async fn plain(attempt: &Attempt) -> RedisResult<Self> {
        Self::new(attempt, How::default()).await
    }

    pub(crate) async fn run<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
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

    pub(crate) async fn run_all<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> RedisResult<T> {
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

    pub(crate) async fn invoke<T: FromRedisValue>(
        &mut self,
        script: &redis::ScriptInvocation<'_>,
    ) -> RedisResult<T> {
        match self {
            Self::Standalone(connection) => script.invoke_async(&mut **connection).await,
            Self::Cluster(connection) => script.invoke_async(connection).await,
            Self::Sentinel(..) => {
                let mut connection = self.asked().await?;
                let outcome = script.invoke_async(&mut connection).await;
                self.judge(outcome)
            }
        }
    }

    /// The connection to where the sentinels send clients.
    pub(crate) async fn asked(&mut self) -> RedisResult<MultiplexedConnection> {
        let Self::Sentinel(client, config, connection) = self else { panic!("only sentinels are asked") };
        if connection.is_none() {
            *connection = Some(client.get_async_connection_with_config(config).await?);
        }
        Ok(connection.clone().expect("it was just made"))
    }

    fn judge<T>(&mut self, outcome: RedisResult<T>) -> RedisResult<T> {
        if outcome.is_err() {
            self.leave();
        }
        outcome
    }

    /// Asks the sentinels anew with the next command.
    fn leave(&mut self) {
        if let Self::Sentinel(_, _, connection) = self {
            *connection = None;
        }
    }

    pub(crate) async fn set(&mut self, key: &str, value: &str) -> RedisResult<()> {
        self.run(cmd("SET").arg(key).arg(value)).await
    }

    pub(crate) async fn get(&mut self, key: &str) -> RedisResult<Option<String>> {
        self.run(cmd("GET").arg(key)).await
    }

    /// Reads until it has this value.
    pub(crate) async fn comes_to_have(&mut self, key: &str, wanted: &str) -> Outcome {
        let began = Instant::now();
        loop {
            let value = self.get(key).await;
            if value.as_ref().is_ok_and(|value| value.as_deref() == Some(wanted)) {
                return Ok(None);
            }
            check(began.elapsed() < TIMEOUT, &format!("{key} is {value:?}"))?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// How many reads the library answered by itself.
    pub(crate) fn cache_hits(&self) -> usize {
        let statistics = match self {
            Self::Standalone(connection) => connection.get_cache_statistics(),
            Self::Cluster(connection) => connection.get_cache_statistics(),
            Self::Sentinel(_, _, connection) => {
                connection.as_ref().and_then(MultiplexedConnection::get_cache_statistics)
            }
        };
        statistics.map_or(0, |statistics| statistics.hit)
    }
}

fn version(attempt: &Attempt) -> ProtocolVersion {
    if attempt.protocol == 3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 }
}

fn certificates(at: &Addresses) -> TlsCertificates {
    TlsCertificates { client_tls: None, root_cert: Some(at.authority.clone()) }
}

fn urls(at: &Addresses, tls: bool) -> Vec<String> {
    let (scheme, ports) = if tls { ("rediss", &at.tls_ports) } else { ("redis", &at.ports) };
    ports.iter().map(|port| format!("{scheme}://{HOST}:{port}")).collect()
}

/// Of the only server.
pub(crate) fn client(attempt: &Attempt, how: &How) -> RedisResult<Client> {
    let info: ConnectionInfo = urls(&attempt.at, how.tls)[0].as_str().into_connection_info()?;
    let settings = RedisConnectionInfo::default().set_protocol(version(attempt));
    let settings = match how.user {
        Some((name, password)) => settings.set_username(name).set_password(password),
        None => settings,
    };
    let info = info.set_redis_settings(settings);
    if how.tls { Client::build_with_tls(info, certificates(&attempt.at)) } else { Client::open(info) }
}

/// Of a server that the sentinels name.
pub(crate) fn sentinel_client(attempt: &Attempt, how: &How) -> RedisResult<SentinelClient> {
    let address = |&port: &u16| match how.tls {
        true => ConnectionAddr::TcpTls { host: HOST.to_owned(), port, insecure: false, tls_params: None },
        false => ConnectionAddr::Tcp(HOST.to_owned(), port),
    };
    let kind = if how.replicas { SentinelServerType::Replica } else { SentinelServerType::Master };
    let mut builder = SentinelClientBuilder::new(attempt.at.sentinels.iter().map(address), MASTER, kind)?
        .set_client_to_redis_protocol(version(attempt));
    if let Some((name, password)) = how.user {
        builder = builder.set_client_to_redis_username(name).set_client_to_redis_password(password);
    }
    if how.tls {
        builder = builder
            .set_client_to_sentinel_certificates(certificates(&attempt.at))
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates(&attempt.at));
    }
    builder.build()
}

/// Of a whole cluster.
pub(crate) fn cluster_client(attempt: &Attempt, how: &How) -> ClusterClientBuilder {
    let mut builder = ClusterClient::builder(urls(&attempt.at, how.tls)).use_protocol(version(attempt));
    builder = builder.connection_timeout(REPLY).response_timeout(how.reply());
    if let Some((name, password)) = how.user {
        builder = builder.username(name).password(password);
    }
    if how.tls {
        builder = builder.certs(certificates(&attempt.at));
    }
    if how.replicas {
        builder = builder.read_routing_strategy(RandomReplicaStrategy);
    }
    if how.cache {
        builder = builder.cache_config(CacheConfig::new());
    }
    builder
}
