//! Adapter of the `redis` crate for the client conformance tests: `redoubt-test judge --
//! target/debug/examples/judge_redis`.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use client_tests::adapter::{
    AdapterRequest, ClientSettings, DiscoveryMode, RequestFailure, report_message, serve_requests,
};
use redis::aio::MultiplexedConnection;
use redis::caching::CacheConfig;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_read_routing::RandomReplicaStrategy;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisResult,
    Script, TlsCertificates, Value, cmd,
};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

enum RedisClient {
    Cluster(ClusterConnection),
    /// The `redis` crate does not query the sentinels again when a connection breaks, so this adapter does.
    Sentinel(Box<SentinelClient>, Box<AsyncConnectionConfig>, Option<MultiplexedConnection>),
}

fn to_json(value: Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Int(number) => json!(number),
        Value::BulkString(bytes) => json!(String::from_utf8_lossy(&bytes)),
        Value::Array(items) | Value::Set(items) => items.into_iter().map(to_json).collect(),
        Value::SimpleString(text) => json!(text),
        Value::Okay => json!("OK"),
        Value::Double(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::ServerError(error) => json!({"error": error.to_string()}),
        other => json!(format!("{other:?}")),
    }
}

fn forward_pushes(mut pushes: UnboundedReceiver<PushInfo>) {
    tokio::spawn(async move {
        while let Some(push) = pushes.recv().await {
            if matches!(push.kind, PushKind::Message | PushKind::SMessage) {
                let words: Vec<String> =
                    push.data.iter().filter_map(|word| redis::from_redis_value_ref(word).ok()).collect();
                if let [channel, data] = &words[..] {
                    report_message(channel, data);
                }
            }
        }
    });
}

async fn connect_client(options: &ClientSettings) -> Result<RedisClient, RequestFailure> {
    let timeout = Duration::from_millis(options.timeout_ms);
    if options.mode == DiscoveryMode::Cluster {
        let (sender, pushes) = unbounded_channel();
        let scheme = if options.tls_ca.is_some() { "rediss" } else { "redis" };
        let urls = options.nodes.iter().map(|node| format!("{scheme}://{node}"));
        // Pub/sub in a cluster requires RESP3.
        let mut builder = ClusterClient::builder(urls)
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(timeout)
            .response_timeout(timeout)
            .push_sender(sender);
        if options.replicas {
            builder = builder.read_routing_strategy(RandomReplicaStrategy);
        }
        if options.caching {
            builder = builder.cache_config(CacheConfig::new());
        }
        if let Some(file) = &options.tls_ca {
            let root_cert = Some(std::fs::read(file)?);
            builder = builder.certs(TlsCertificates { client_tls: None, root_cert });
        }
        forward_pushes(pushes);
        let client = builder.build()?;
        return Ok(RedisClient::Cluster(client.get_async_connection().await?));
    }
    let addresses = options.addresses().map(|(host, port)| ConnectionAddr::Tcp(host, port));
    let master = options.master.clone().unwrap_or_default();
    let builder = SentinelClientBuilder::new(addresses, &master, SentinelServerType::Master)?;
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(timeout))
        .set_connection_timeout(Some(timeout));
    Ok(RedisClient::Sentinel(Box::new(builder.build()?), Box::new(config), None))
}

/// A request of a scenario, which can be sent over any kind of connection.
enum ClientRequest {
    Command(Cmd),
    Pipeline(Pipeline),
    Script(Script, Vec<String>, Vec<String>),
}

impl ClientRequest {
    async fn send_over<C: redis::aio::ConnectionLike>(&self, connection: &mut C) -> RedisResult<Value> {
        match self {
            Self::Command(command) => command.query_async(connection).await,
            Self::Pipeline(pipeline) => pipeline.query_async(connection).await,
            Self::Script(script, keys, args) => {
                let mut call = script.prepare_invoke();
                call.key(&keys[..]).arg(&args[..]);
                call.invoke_async(connection).await
            }
        }
    }
}

impl RedisClient {
    async fn send_request(&mut self, request: &ClientRequest) -> Result<Json, RequestFailure> {
        let outcome: RedisResult<Value> = match self {
            Self::Cluster(connection) => request.send_over(connection).await,
            Self::Sentinel(client, config, kept) => {
                let mut connection = match kept.clone() {
                    Some(connection) => connection,
                    None => client.get_async_connection_with_config(config).await?,
                };
                let outcome = request.send_over(&mut connection).await;
                let is_lost = outcome.as_ref().is_err_and(|error| {
                    error.is_unrecoverable_error()
                        || error.is_timeout()
                        || error.to_string().contains("ReadOnly")
                });
                *kept = (!is_lost).then_some(connection);
                outcome
            }
        };
        match outcome {
            Ok(Value::ServerError(error)) => Err(RequestFailure::Error(error.to_string())),
            Ok(value) => Ok(to_json(value)),
            Err(error)
                if error.to_string().contains("CrossSlot")
                    || error.to_string().contains("multiple slots") =>
            {
                match request {
                    ClientRequest::Pipeline(pipeline) if !pipeline.is_transaction() => Err(
                        RequestFailure::Unsupported("the library's asynchronous pipelines are of one slot"),
                    ),
                    _ => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn subscribe_to(&mut self, channels: &[String], is_sharded: bool) -> Result<Json, RequestFailure> {
        let Self::Cluster(connection) = self else {
            return Err(RequestFailure::Unsupported("the adapter hears channels in a cluster alone"));
        };
        let name = if is_sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let mut command = cmd(name);
        command.arg(channels);
        let _: Value = command.query_async(connection).await?;
        Ok(Json::Null)
    }
}

fn parse_command(args: &[String]) -> Cmd {
    let mut command = cmd(&args[0]);
    command.arg(&args[1..]);
    command
}

fn parse_pipeline(commands: &[Vec<String>]) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for args in commands {
        pipeline.add_command(parse_command(args));
    }
    pipeline
}

async fn handle_request(
    client: &tokio::sync::Mutex<Option<RedisClient>>,
    request: AdapterRequest,
) -> Result<Json, RequestFailure> {
    let mut kept = client.lock().await;
    let missing = || RequestFailure::Error("there is no client".to_owned());
    match request {
        AdapterRequest::Hello => Ok(json!({"library": "redis (Rust)", "version": "1.8.1"})),
        AdapterRequest::Connect(options) => {
            *kept = Some(connect_client(&options).await?);
            Ok(Json::Null)
        }
        AdapterRequest::Command { args } => {
            kept.as_mut()
                .ok_or_else(missing)?
                .send_request(&ClientRequest::Command(parse_command(&args)))
                .await
        }
        AdapterRequest::Script { source, keys, args } => {
            let script = ClientRequest::Script(Script::new(&source), keys, args);
            kept.as_mut().ok_or_else(missing)?.send_request(&script).await
        }
        AdapterRequest::Pipeline { commands } => {
            kept.as_mut()
                .ok_or_else(missing)?
                .send_request(&ClientRequest::Pipeline(parse_pipeline(&commands)))
                .await
        }
        AdapterRequest::Transaction { commands } => {
            let mut pipeline = parse_pipeline(&commands);
            pipeline.atomic();
            kept.as_mut().ok_or_else(missing)?.send_request(&ClientRequest::Pipeline(pipeline)).await
        }
        AdapterRequest::Subscribe { channels, sharded } => {
            kept.as_mut().ok_or_else(missing)?.subscribe_to(&channels, sharded).await
        }
        AdapterRequest::Close => {
            *kept = None;
            Ok(Json::Null)
        }
    }
}

#[tokio::main]
async fn main() {
    // The `redis` crate does not choose a rustls provider, so the program must install one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Arc::new(tokio::sync::Mutex::new(None));
    serve_requests(|request| {
        let client = Arc::clone(&client);
        async move { handle_request(&client, request).await }
    })
    .await;
}
