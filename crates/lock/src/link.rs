//! A connection to a [`Server`] that reconnects after errors.
//!
//! Requests are not retried here, because only the caller knows which of them are idempotent. A connection is dropped
//! if it broke or no longer leads to a master. The next call then reconnects (with Sentinel: to the current master). A
//! timeout limits the duration of every call.

use std::future::Future;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
    RedisResult, ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use tokio::sync::{Mutex, mpsc};

use crate::pubsub::PubSubConnection;
use crate::script::ScriptCall;
use crate::{Error, Server};

/// Number of consecutive failures after which a cluster client is rebuilt from the initial nodes.
const MAX_CLUSTER_FAILURES: u32 = 5;

/// The reply to a script call, and the number of replicas that have confirmed its effects.
#[derive(Debug)]
pub(crate) struct ConfirmedReply {
    pub(crate) reply: Value,
    pub(crate) replica_count: usize,
}

enum ConnectionSource {
    Standalone(Box<Client>),
    Sentinel(Box<Mutex<SentinelClient>>),
    Cluster { client: Box<ClusterClient>, nodes: Vec<ConnectionInfo>, certificates: Option<TlsCertificates> },
}

#[derive(Clone)]
enum LiveConnection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

#[derive(Default)]
struct ConnectionState {
    live_connection: Option<LiveConnection>,
    /// The number of this connection. It ensures that a late failure of an old connection does not drop a new one.
    generation: u64,
    failure_count: u32,
}

/// A connection to a server, re-established after errors.
pub(crate) struct ServerLink {
    source: ConnectionSource,
    timeout: Duration,
    state: Mutex<ConnectionState>,
}

impl std::fmt::Debug for ServerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl ServerLink {
    /// Creates a link without connecting. `certificates` apply to connections over TLS.
    pub(crate) fn new(
        server: &Server,
        certificates: Option<&TlsCertificates>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let source = match server {
            Server::Standalone(node) => {
                let client = match certificates.filter(|_| uses_tls(node)) {
                    Some(certificates) => Client::build_with_tls(node.clone(), certificates.clone())?,
                    None => Client::open(node.clone())?,
                };
                ConnectionSource::Standalone(Box::new(client))
            }
            Server::Sentinel { sentinels, name, master } => {
                let client = sentinel_client(sentinels, name, master, certificates)?;
                ConnectionSource::Sentinel(Box::new(Mutex::new(client)))
            }
            Server::Cluster(nodes) => {
                let client = Box::new(cluster_builder(nodes, certificates, timeout).build()?);
                ConnectionSource::Cluster {
                    client,
                    nodes: nodes.clone(),
                    certificates: certificates.cloned(),
                }
            }
        };
        Ok(Self { source, timeout, state: Mutex::default() })
    }

    /// Runs a script and returns its reply.
    pub(crate) async fn run_script(&self, call: &ScriptCall) -> RedisResult<Value> {
        let (mut live, generation) = self.connection().await?;
        let mut result = self.send(&mut live, call, false).await;
        if matches!(&result, Err(error) if is_unknown_script(error)) {
            result = self.send(&mut live, call, true).await;
        }
        self.record_result(&result, generation).await;
        result
    }

    /// Runs a script, then waits for replicas to confirm its effects, for at most three quarters of the timeout. The
    /// script and WAIT are sent together, so that WAIT refers to the writes of this script even if the connection is
    /// replaced.
    pub(crate) async fn run_confirmed_script(
        &self,
        call: &ScriptCall,
        replicas: usize,
    ) -> RedisResult<ConfirmedReply> {
        let (mut live, generation) = self.connection().await?;
        let mut result = self.send_confirmed(&mut live, call, replicas, false).await;
        if matches!(&result, Err(error) if is_unknown_script(error)) {
            result = self.send_confirmed(&mut live, call, replicas, true).await;
        }
        self.record_result(&result, generation).await;
        result
    }

    pub(crate) async fn open_pubsub(&self) -> RedisResult<PubSubConnection> {
        let connect = async {
            match &self.source {
                ConnectionSource::Standalone(client) => {
                    client.get_async_pubsub().await.map(PubSubConnection::from)
                }
                ConnectionSource::Sentinel(client) => {
                    let master = client.lock().await.async_get_client().await?;
                    master.get_async_pubsub().await.map(PubSubConnection::from)
                }
                ConnectionSource::Cluster { nodes, certificates, .. } => {
                    let (pushes, heard) = mpsc::unbounded_channel();
                    let builder = cluster_builder(nodes, certificates.as_ref(), self.timeout);
                    let client = builder.use_protocol(ProtocolVersion::RESP3).push_sender(pushes).build()?;
                    let connection = client.get_async_connection().await?;
                    Ok(PubSubConnection::Cluster(Box::new(connection), heard))
                }
            }
        };
        self.with_timeout(connect).await
    }

    async fn connection(&self) -> RedisResult<(LiveConnection, u64)> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live_connection {
            return Ok((live.clone(), state.generation));
        }
        let live = self.with_timeout(self.connect()).await?;
        *state = ConnectionState {
            live_connection: Some(live.clone()),
            generation: state.generation + 1,
            failure_count: 0,
        };
        Ok((live, state.generation))
    }

    async fn connect(&self) -> RedisResult<LiveConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        match &self.source {
            ConnectionSource::Standalone(client) => {
                client.get_multiplexed_async_connection_with_config(&config).await.map(LiveConnection::Single)
            }
            ConnectionSource::Sentinel(client) => {
                let master = client.lock().await.async_get_client().await?;
                master.get_multiplexed_async_connection_with_config(&config).await.map(LiveConnection::Single)
            }
            ConnectionSource::Cluster { client, .. } => {
                client.get_async_connection().await.map(LiveConnection::Cluster)
            }
        }
    }

    async fn send(
        &self,
        connection: &mut LiveConnection,
        call: &ScriptCall,
        sends_full_text: bool,
    ) -> RedisResult<Value> {
        let command = call.script.command(call, sends_full_text);
        self.with_timeout(async {
            match connection {
                LiveConnection::Single(connection) => command.query_async(connection).await,
                LiveConnection::Cluster(connection) => command.query_async(connection).await,
            }
        })
        .await
    }

    async fn send_confirmed(
        &self,
        connection: &mut LiveConnection,
        call: &ScriptCall,
        replicas: usize,
        sends_full_text: bool,
    ) -> RedisResult<ConfirmedReply> {
        let command = call.script.command(call, sends_full_text);
        let route = Route::new(slot_of(&call.keys[0]), SlotAddr::Master);
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg((self.timeout * 3 / 4).as_millis().max(1) as u64);
        let mut pipeline = redis::pipe();
        pipeline.add_command(command).add_command(wait);
        let replies = self
            .with_timeout(async {
                match connection {
                    LiveConnection::Single(connection) => {
                        connection.send_packed_commands(&pipeline, 0, 2).await
                    }
                    LiveConnection::Cluster(connection) => {
                        let route = SingleNodeRoutingInfo::SpecificNode(route);
                        connection.route_pipeline(pipeline, 0, 2, route).await
                    }
                }
            })
            .await?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        let mut next = || replies.next().unwrap_or(Err((ErrorKind::Parse, "missing reply").into()));
        let reply = next()?;
        Ok(ConfirmedReply { reply, replica_count: redis::from_redis_value(next()?)? })
    }

    /// Ends a call with an error if it takes longer than the timeout.
    async fn with_timeout<T>(&self, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        // The timeout of the Redis client, if it has one, should expire before this one.
        let bound = self.timeout + self.timeout / 4;
        match tokio::time::timeout(bound, call).await {
            Ok(result) => result,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Drops the connection of this generation if the result shows that it is broken.
    async fn record_result<T>(&self, result: &RedisResult<T>, generation: u64) {
        let mut state = self.state.lock().await;
        if state.generation != generation {
            return;
        }
        let broke = matches!(result, Err(error) if is_connection_broken(error));
        state.failure_count = if broke { state.failure_count + 1 } else { 0 };
        let tolerated = match self.source {
            ConnectionSource::Standalone(_) | ConnectionSource::Sentinel(_) => 0,
            // The cluster client finds a new master by itself, so its connection is not dropped after the first
            // failure.
            ConnectionSource::Cluster { .. } => MAX_CLUSTER_FAILURES,
        };
        if state.failure_count > tolerated {
            state.live_connection = None;
        }
    }
}

fn cluster_builder(
    nodes: &[ConnectionInfo],
    certificates: Option<&TlsCertificates>,
    timeout: Duration,
) -> ClusterClientBuilder {
    let builder = ClusterClient::builder(nodes.to_vec())
        .connection_timeout(timeout)
        .response_timeout(timeout)
        .retries(3)
        .max_retry_wait(100);
    match certificates {
        Some(certificates) => builder.certs(certificates.clone()),
        None => builder,
    }
}

fn uses_tls(node: &ConnectionInfo) -> bool {
    matches!(node.addr(), ConnectionAddr::TcpTls { .. })
}

/// Creates a client that finds the master through sentinels. TLS is used for the sentinels and the master, or for
/// neither.
fn sentinel_client(
    sentinels: &[ConnectionInfo],
    name: &str,
    master: &ConnectionInfo,
    certificates: Option<&TlsCertificates>,
) -> RedisResult<SentinelClient> {
    let addresses = sentinels.iter().map(|sentinel| sentinel.addr().clone());
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?;
    let settings = master.redis_settings();
    builder = builder.set_client_to_redis_db(settings.db());
    if let Some(user) = settings.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = settings.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if uses_tls(master) {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates.clone());
        }
        builder = builder.set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    builder.build()
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Returns whether the connection should be dropped: it is broken or stuck, or the server is not a master.
fn is_connection_broken(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown
            ) | ErrorKind::ClusterConnectionNotFound
        )
}

/// Returns whether the call may succeed if it is repeated later.
pub(crate) fn is_transient(error: &RedisError) -> bool {
    is_connection_broken(error)
        || !matches!(error.retry_method(), redis::RetryMethod::NoRetry)
        || error.code() == Some("NOREPLICAS")
}

/// Returns the hash slot of a key, which depends on its hash tag if it has one.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % 16_384
}
