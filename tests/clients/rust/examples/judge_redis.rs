//! The judge's adapter of the `redis` crate: `redoubt-test judge -- target/debug/examples/judge_redis`.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use client_tests::adapter::{Connect, Failure, Mode, Request, answer_all, say_message};
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

enum Client {
    Cluster(ClusterConnection),
    /// Asked for anew once its connection is broken: the crate leaves that to its caller.
    Sentinel(Box<SentinelClient>, Box<AsyncConnectionConfig>, Option<MultiplexedConnection>),
}

fn json_of(value: Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Int(number) => json!(number),
        Value::BulkString(bytes) => json!(String::from_utf8_lossy(&bytes)),
        Value::Array(items) | Value::Set(items) => items.into_iter().map(json_of).collect(),
        Value::SimpleString(text) => json!(text),
        Value::Okay => json!("OK"),
        Value::Double(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::ServerError(error) => json!({"error": error.to_string()}),
        other => json!(format!("{other:?}")),
    }
}

fn tell(mut pushes: UnboundedReceiver<PushInfo>) {
    tokio::spawn(async move {
        while let Some(push) = pushes.recv().await {
            if matches!(push.kind, PushKind::Message | PushKind::SMessage) {
                let words: Vec<String> =
                    push.data.iter().filter_map(|word| redis::from_redis_value_ref(word).ok()).collect();
                if let [channel, data] = &words[..] {
                    say_message(channel, data);
                }
            }
        }
    });
}

async fn connect(how: &Connect) -> Result<Client, Failure> {
    let timeout = Duration::from_millis(how.timeout_ms);
    if how.mode == Mode::Cluster {
        let (sender, pushes) = unbounded_channel();
        let scheme = if how.tls_ca.is_some() { "rediss" } else { "redis" };
        let urls = how.nodes.iter().map(|node| format!("{scheme}://{node}"));
        // Channels of a cluster need RESP3.
        let mut builder = ClusterClient::builder(urls)
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(timeout)
            .response_timeout(timeout)
            .push_sender(sender);
        if how.replicas {
            builder = builder.read_routing_strategy(RandomReplicaStrategy);
        }
        if how.caching {
            builder = builder.cache_config(CacheConfig::new());
        }
        if let Some(file) = &how.tls_ca {
            let root_cert = Some(std::fs::read(file)?);
            builder = builder.certs(TlsCertificates { client_tls: None, root_cert });
        }
        tell(pushes);
        let client = builder.build()?;
        return Ok(Client::Cluster(client.get_async_connection().await?));
    }
    let addresses = how.addresses().map(|(host, port)| ConnectionAddr::Tcp(host, port));
    let master = how.master.clone().unwrap_or_default();
    let builder = SentinelClientBuilder::new(addresses, &master, SentinelServerType::Master)?;
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(timeout))
        .set_connection_timeout(Some(timeout));
    Ok(Client::Sentinel(Box::new(builder.build()?), Box::new(config), None))
}

/// One thing that a connection is asked.
enum Question {
    One(Cmd),
    Many(Pipeline),
    Script(Script, Vec<String>, Vec<String>),
}

impl Question {
    async fn ask<C: redis::aio::ConnectionLike>(&self, connection: &mut C) -> RedisResult<Value> {
        match self {
            Self::One(command) => command.query_async(connection).await,
            Self::Many(pipeline) => pipeline.query_async(connection).await,
            Self::Script(script, keys, args) => {
                let mut call = script.prepare_invoke();
                call.key(&keys[..]).arg(&args[..]);
                call.invoke_async(connection).await
            }
        }
    }
}

impl Client {
    async fn ask(&mut self, question: &Question) -> Result<Json, Failure> {
        let outcome: RedisResult<Value> = match self {
            Self::Cluster(connection) => question.ask(connection).await,
            Self::Sentinel(client, config, kept) => {
                let mut connection = match kept.clone() {
                    Some(connection) => connection,
                    None => client.get_async_connection_with_config(config).await?,
                };
                let outcome = question.ask(&mut connection).await;
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
            Ok(Value::ServerError(error)) => Err(Failure::Error(error.to_string())),
            Ok(value) => Ok(json_of(value)),
            Err(error)
                if error.to_string().contains("CrossSlot")
                    || error.to_string().contains("multiple slots") =>
            {
                match question {
                    Question::Many(pipeline) if !pipeline.is_transaction() => {
                        Err(Failure::Unsupported("the library's asynchronous pipelines are of one slot"))
                    }
                    _ => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn subscribe(&mut self, channels: &[String], sharded: bool) -> Result<Json, Failure> {
        let Self::Cluster(connection) = self else {
            return Err(Failure::Unsupported("the adapter hears channels in a cluster alone"));
        };
        let name = if sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let mut command = cmd(name);
        command.arg(channels);
        let _: Value = command.query_async(connection).await?;
        Ok(Json::Null)
    }
}

fn command_of(args: &[String]) -> Cmd {
    let mut command = cmd(&args[0]);
    command.arg(&args[1..]);
    command
}

fn pipeline_of(commands: &[Vec<String>]) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for args in commands {
        pipeline.add_command(command_of(args));
    }
    pipeline
}

async fn answer(kept: &tokio::sync::Mutex<Option<Client>>, request: Request) -> Result<Json, Failure> {
    let mut kept = kept.lock().await;
    let missing = || Failure::Error("there is no client".to_owned());
    match request {
        Request::Hello => Ok(json!({"library": "redis (Rust)", "version": "1.8.1"})),
        Request::Connect(how) => {
            *kept = Some(connect(&how).await?);
            Ok(Json::Null)
        }
        Request::Command { args } => {
            kept.as_mut().ok_or_else(missing)?.ask(&Question::One(command_of(&args))).await
        }
        Request::Script { source, keys, args } => {
            let script = Question::Script(Script::new(&source), keys, args);
            kept.as_mut().ok_or_else(missing)?.ask(&script).await
        }
        Request::Pipeline { commands } => {
            kept.as_mut().ok_or_else(missing)?.ask(&Question::Many(pipeline_of(&commands))).await
        }
        Request::Transaction { commands } => {
            let mut pipeline = pipeline_of(&commands);
            pipeline.atomic();
            kept.as_mut().ok_or_else(missing)?.ask(&Question::Many(pipeline)).await
        }
        Request::Subscribe { channels, sharded } => {
            kept.as_mut().ok_or_else(missing)?.subscribe(&channels, sharded).await
        }
        Request::Close => {
            *kept = None;
            Ok(Json::Null)
        }
    }
}

#[tokio::main]
async fn main() {
    // The crate leaves the choice of cryptography to its user.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Arc::new(tokio::sync::Mutex::new(None));
    answer_all(|request| {
        let client = Arc::clone(&client);
        async move { answer(&client, request).await }
    })
    .await;
}
