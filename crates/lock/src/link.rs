//! A connection to a [`Server`] that is made anew when it breaks.
//!
//! Nothing is repeated here: the caller knows which requests may be sent twice. A connection that broke, or no longer
//! leads to a master, is dropped, and the next call connects again (for sentinels: to the master that they name then).
//! Every wait is bounded by the timeout.

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

use crate::ear::Ear;
use crate::script::Call;
use crate::{Error, Server};

/// After so many broken calls in a row a cluster's map is asked for from where the client once began.
const CLUSTER_FAILURES: u32 = 5;

/// The result of a confirmed call: the reply, and how many replicas have it.
#[derive(Debug)]
pub(crate) struct Confirmed {
    pub(crate) reply: Value,
    pub(crate) replicas: usize,
}

enum Source {
    Standalone(Box<Client>),
    Sentinel(Box<Mutex<SentinelClient>>),
    Cluster { client: Box<ClusterClient>, nodes: Vec<ConnectionInfo>, certificates: Option<TlsCertificates> },
}

#[derive(Clone)]
enum Live {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

#[derive(Default)]
struct Slot {
    live: Option<Live>,
    /// Told apart from those before, so that an old failure does not drop a new connection.
    generation: u64,
    failures: u32,
}

/// See the module.
pub(crate) struct Link {
    source: Source,
    timeout: Duration,
    slot: Mutex<Slot>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Link {
    /// Certificates matter for servers that are spoken to over TLS.
    pub(crate) fn new(
        server: &Server,
        certificates: Option<&TlsCertificates>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let source = match server {
            Server::Standalone(node) => {
                let client = match certificates.filter(|_| is_secured(node)) {
                    Some(certificates) => Client::build_with_tls(node.clone(), certificates.clone())?,
                    None => Client::open(node.clone())?,
                };
                Source::Standalone(Box::new(client))
            }
            Server::Sentinel { sentinels, name, master } => {
                let client = sentinel_client(sentinels, name, master, certificates)?;
                Source::Sentinel(Box::new(Mutex::new(client)))
            }
            Server::Cluster(nodes) => {
                let client = Box::new(cluster_builder(nodes, certificates, timeout).build()?);
                Source::Cluster { client, nodes: nodes.clone(), certificates: certificates.cloned() }
            }
        };
        Ok(Self { source, timeout, slot: Mutex::default() })
    }

    /// Runs a script.
    pub(crate) async fn run(&self, call: &Call) -> RedisResult<Value> {
        let (mut live, generation) = self.live().await?;
        let mut result = self.send(&mut live, call, false).await;
        if matches!(&result, Err(error) if is_unknown_script(error)) {
            result = self.send(&mut live, call, true).await;
        }
        self.note(&result, generation).await;
        result
    }

    /// Runs a script and counts the replicas that have its effects, waiting for at most three quarters of the timeout.
    /// The two go out as one, so the count is of this script and never of another connection's silence.
    pub(crate) async fn run_confirmed(&self, call: &Call, replicas: usize) -> RedisResult<Confirmed> {
        let (mut live, generation) = self.live().await?;
        let mut result = self.send_confirmed(&mut live, call, replicas, false).await;
        if matches!(&result, Err(error) if is_unknown_script(error)) {
            result = self.send_confirmed(&mut live, call, replicas, true).await;
        }
        self.note(&result, generation).await;
        result
    }

    /// A connection that receives messages.
    pub(crate) async fn hear(&self) -> RedisResult<Ear> {
        let connect = async {
            match &self.source {
                Source::Standalone(client) => client.get_async_pubsub().await.map(Ear::from),
                Source::Sentinel(client) => {
                    let master = client.lock().await.async_get_client().await?;
                    master.get_async_pubsub().await.map(Ear::from)
                }
                Source::Cluster { nodes, certificates, .. } => {
                    let (pushes, heard) = mpsc::unbounded_channel();
                    let builder = cluster_builder(nodes, certificates.as_ref(), self.timeout);
                    let client = builder.use_protocol(ProtocolVersion::RESP3).push_sender(pushes).build()?;
                    let connection = client.get_async_connection().await?;
                    Ok(Ear::Cluster(Box::new(connection), heard))
                }
            }
        };
        self.bounded(connect).await
    }

    async fn live(&self) -> RedisResult<(Live, u64)> {
        let mut slot = self.slot.lock().await;
        if let Some(live) = &slot.live {
            return Ok((live.clone(), slot.generation));
        }
        let live = self.bounded(self.connect()).await?;
        *slot = Slot { live: Some(live.clone()), generation: slot.generation + 1, failures: 0 };
        Ok((live, slot.generation))
    }

    async fn connect(&self) -> RedisResult<Live> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        match &self.source {
            Source::Standalone(client) => {
                client.get_multiplexed_async_connection_with_config(&config).await.map(Live::Single)
            }
            Source::Sentinel(client) => {
                let master = client.lock().await.async_get_client().await?;
                master.get_multiplexed_async_connection_with_config(&config).await.map(Live::Single)
            }
            Source::Cluster { client, .. } => client.get_async_connection().await.map(Live::Cluster),
        }
    }

    async fn send(&self, live: &mut Live, call: &Call, whole: bool) -> RedisResult<Value> {
        let command = call.script.command(call, whole);
        self.bounded(async {
            match live {
                Live::Single(connection) => command.query_async(connection).await,
                Live::Cluster(connection) => command.query_async(connection).await,
            }
        })
        .await
    }

    async fn send_confirmed(
        &self,
        live: &mut Live,
        call: &Call,
        replicas: usize,
        whole: bool,
    ) -> RedisResult<Confirmed> {
        let command = call.script.command(call, whole);
        let route = Route::new(slot_of(&call.keys[0]), SlotAddr::Master);
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas).arg((self.timeout * 3 / 4).as_millis().max(1) as u64);
        let mut pipeline = redis::pipe();
        pipeline.add_command(command).add_command(wait);
        let replies = self
            .bounded(async {
                match live {
                    Live::Single(connection) => connection.send_packed_commands(&pipeline, 0, 2).await,
                    Live::Cluster(connection) => {
                        let route = SingleNodeRoutingInfo::SpecificNode(route);
                        connection.route_pipeline(pipeline, 0, 2, route).await
                    }
                }
            })
            .await?;
        let mut replies = replies.into_iter().map(Value::extract_error);
        let mut next = || replies.next().unwrap_or(Err((ErrorKind::Parse, "a reply is missing").into()));
        let reply = next()?;
        Ok(Confirmed { reply, replicas: redis::from_redis_value(next()?)? })
    }

    /// No call waits for longer, whatever it waits for.
    async fn bounded<T>(&self, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        // The client's own timeout comes first, where it has one.
        let bound = self.timeout + self.timeout / 4;
        match tokio::time::timeout(bound, call).await {
            Ok(result) => result,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Drops a connection that broke.
    async fn note<T>(&self, result: &RedisResult<T>, generation: u64) {
        let mut slot = self.slot.lock().await;
        if slot.generation != generation {
            return;
        }
        let broke = matches!(result, Err(error) if leads_nowhere(error));
        slot.failures = if broke { slot.failures + 1 } else { 0 };
        let bearable = match self.source {
            Source::Standalone(_) | Source::Sentinel(_) => 0,
            // That client looks for the new master by itself.
            Source::Cluster { .. } => CLUSTER_FAILURES,
        };
        if slot.failures > bearable {
            slot.live = None;
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

fn is_secured(node: &ConnectionInfo) -> bool {
    matches!(node.addr(), ConnectionAddr::TcpTls { .. })
}

/// Sentinels and master are spoken to alike: all over TLS, or none.
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
    if is_secured(master) {
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

/// Whether the connection is broken, stuck, or no longer to a master.
fn leads_nowhere(error: &RedisError) -> bool {
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

/// Whether the same call may go well later.
pub(crate) fn may_pass(error: &RedisError) -> bool {
    leads_nowhere(error)
        || !matches!(error.retry_method(), redis::RetryMethod::NoRetry)
        || error.code() == Some("NOREPLICAS")
}

/// The slot of a key, of its hash tag if it has one. Every script of ours names a key.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % 16_384
}
