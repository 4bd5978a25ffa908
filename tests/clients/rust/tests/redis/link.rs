//! Creates connections for each mode.

use std::time::{Duration, Instant};

use client_tests::{
    DeploymentMode, FeatureAttempt, FeatureResult, OPERATION_TIMEOUT, RETRY_DELAY, ServerAddresses,
    check_condition,
};
use harness::MASTER_NAME;
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

const LOCAL_HOST: &str = "127.0.0.1";
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Default)]
pub(crate) struct ConnectionOptions {
    pub(crate) user: Option<(&'static str, &'static str)>,
    pub(crate) tls: bool,
    pub(crate) reads_from_replicas: bool,
    pub(crate) client_side_cache: bool,
    /// Whether commands may block, which disables the reply timeout.
    pub(crate) may_block: bool,
    /// The channel to which RESP3 push messages are sent.
    pub(crate) pushes: Option<UnboundedSender<PushInfo>>,
}

impl ConnectionOptions {
    fn reply_timeout(&self) -> Duration {
        if self.may_block { 2 * OPERATION_TIMEOUT } else { REPLY_TIMEOUT }
    }
}

pub(crate) enum TestConnection {
    Standalone(Box<ConnectionManager>),
    /// The `redis` crate does not query the sentinels again when a connection breaks, so this test does.
    Sentinel(Box<SentinelClient>, Box<AsyncConnectionConfig>, Option<MultiplexedConnection>),
    Cluster(ClusterConnection),
}

impl TestConnection {
    pub(crate) async fn new(attempt: &FeatureAttempt, options: ConnectionOptions) -> RedisResult<Self> {
        match attempt.addresses.mode {
            DeploymentMode::Standalone => {
                let mut config = ConnectionManagerConfig::new()
                    .set_response_timeout(Some(options.reply_timeout()))
                    .set_number_of_retries(6);
                let client = standalone_client(attempt, &options)?;
                if options.client_side_cache {
                    config = config.set_cache_config(CacheConfig::new());
                }
                if let Some(pushes) = options.pushes {
                    config = config.set_push_sender(pushes).set_automatic_resubscription();
                }
                let connection = client.get_connection_manager_with_config(config).await?;
                Ok(Self::Standalone(Box::new(connection)))
            }
            DeploymentMode::Sentinel => {
                let mut config =
                    AsyncConnectionConfig::new().set_response_timeout(Some(options.reply_timeout()));
                let client = sentinel_client(attempt, &options)?;
                if options.client_side_cache {
                    config = config.set_cache_config(CacheConfig::new());
                }
                if let Some(pushes) = options.pushes {
                    config = config.set_push_sender(pushes);
                }
                Ok(Self::Sentinel(Box::new(client), Box::new(config), None))
            }
            DeploymentMode::Cluster => {
                let mut builder = cluster_client(attempt, &options);
                if let Some(pushes) = options.pushes {
                    builder = builder.push_sender(pushes);
                }
                Ok(Self::Cluster(builder.build()?.get_async_connection().await?))
            }
        }
    }

    pub(crate) async fn with_default_options(attempt: &FeatureAttempt) -> RedisResult<Self> {
        Self::new(attempt, ConnectionOptions::default()).await
    }

    pub(crate) async fn run<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Self::Standalone(connection) => command.query_async(&mut **connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
            Self::Sentinel(..) => {
                let mut connection = self.current_master().await?;
                let outcome = command.query_async(&mut connection).await;
                self.check_connection(outcome)
            }
        }
    }

    pub(crate) async fn run_all<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> RedisResult<T> {
        match self {
            Self::Standalone(connection) => pipeline.query_async(&mut **connection).await,
            Self::Cluster(connection) => pipeline.query_async(connection).await,
            Self::Sentinel(..) => {
                let mut connection = self.current_master().await?;
                let outcome = pipeline.query_async(&mut connection).await;
                self.check_connection(outcome)
            }
        }
    }

    pub(crate) async fn invoke_script<T: FromRedisValue>(
        &mut self,
        script: &redis::ScriptInvocation<'_>,
    ) -> RedisResult<T> {
        match self {
            Self::Standalone(connection) => script.invoke_async(&mut **connection).await,
            Self::Cluster(connection) => script.invoke_async(connection).await,
            Self::Sentinel(..) => {
                let mut connection = self.current_master().await?;
                let outcome = script.invoke_async(&mut connection).await;
                self.check_connection(outcome)
            }
        }
    }

    /// Returns a connection to the master that the sentinels name.
    pub(crate) async fn current_master(&mut self) -> RedisResult<MultiplexedConnection> {
        let Self::Sentinel(client, config, connection) = self else { panic!("only with sentinels") };
        if connection.is_none() {
            *connection = Some(client.get_async_connection_with_config(config).await?);
        }
        Ok(connection.clone().expect("it was just made"))
    }

    fn check_connection<T>(&mut self, outcome: RedisResult<T>) -> RedisResult<T> {
        if outcome.is_err() {
            self.forget_master();
        }
        outcome
    }

    /// Makes the next command query the sentinels again.
    fn forget_master(&mut self) {
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

    /// Reads until the key has this value.
    pub(crate) async fn read_until(&mut self, key: &str, expected: &str) -> FeatureResult {
        let began = Instant::now();
        loop {
            let value = self.get(key).await;
            if value.as_ref().is_ok_and(|value| value.as_deref() == Some(expected)) {
                return Ok(None);
            }
            check_condition(began.elapsed() < OPERATION_TIMEOUT, &format!("{key} is {value:?}"))?;
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// The number of reads served from the client-side cache.
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

fn protocol_version(attempt: &FeatureAttempt) -> ProtocolVersion {
    if attempt.protocol == 3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 }
}

fn tls_certificates(addresses: &ServerAddresses) -> TlsCertificates {
    TlsCertificates { client_tls: None, root_cert: Some(addresses.ca_certificate.clone()) }
}

fn server_urls(addresses: &ServerAddresses, uses_tls: bool) -> Vec<String> {
    let (scheme, ports) =
        if uses_tls { ("rediss", &addresses.tls_ports) } else { ("redis", &addresses.ports) };
    ports.iter().map(|port| format!("{scheme}://{LOCAL_HOST}:{port}")).collect()
}

/// Creates a client of the standalone server.
pub(crate) fn standalone_client(
    attempt: &FeatureAttempt,
    options: &ConnectionOptions,
) -> RedisResult<Client> {
    let info: ConnectionInfo =
        server_urls(&attempt.addresses, options.tls)[0].as_str().into_connection_info()?;
    let settings = RedisConnectionInfo::default().set_protocol(protocol_version(attempt));
    let settings = match options.user {
        Some((name, password)) => settings.set_username(name).set_password(password),
        None => settings,
    };
    let info = info.set_redis_settings(settings);
    if options.tls {
        Client::build_with_tls(info, tls_certificates(&attempt.addresses))
    } else {
        Client::open(info)
    }
}

/// Creates a client that queries the sentinels for a server.
pub(crate) fn sentinel_client(
    attempt: &FeatureAttempt,
    options: &ConnectionOptions,
) -> RedisResult<SentinelClient> {
    let address = |&port: &u16| match options.tls {
        true => {
            ConnectionAddr::TcpTls { host: LOCAL_HOST.to_owned(), port, insecure: false, tls_params: None }
        }
        false => ConnectionAddr::Tcp(LOCAL_HOST.to_owned(), port),
    };
    let kind =
        if options.reads_from_replicas { SentinelServerType::Replica } else { SentinelServerType::Master };
    let mut builder =
        SentinelClientBuilder::new(attempt.addresses.sentinels.iter().map(address), MASTER_NAME, kind)?
            .set_client_to_redis_protocol(protocol_version(attempt));
    if let Some((name, password)) = options.user {
        builder = builder.set_client_to_redis_username(name).set_client_to_redis_password(password);
    }
    if options.tls {
        builder = builder
            .set_client_to_sentinel_certificates(tls_certificates(&attempt.addresses))
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(tls_certificates(&attempt.addresses));
    }
    builder.build()
}

pub(crate) fn cluster_client(attempt: &FeatureAttempt, options: &ConnectionOptions) -> ClusterClientBuilder {
    let mut builder = ClusterClient::builder(server_urls(&attempt.addresses, options.tls))
        .use_protocol(protocol_version(attempt));
    builder = builder.connection_timeout(REPLY_TIMEOUT).response_timeout(options.reply_timeout());
    if let Some((name, password)) = options.user {
        builder = builder.username(name).password(password);
    }
    if options.tls {
        builder = builder.certs(tls_certificates(&attempt.addresses));
    }
    if options.reads_from_replicas {
        builder = builder.read_routing_strategy(RandomReplicaStrategy);
    }
    if options.client_side_cache {
        builder = builder.cache_config(CacheConfig::new());
    }
    builder
}
