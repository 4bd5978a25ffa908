//! Adapter of fred for the client conformance tests: `redoubt-test judge -- target/debug/examples/judge_fred`.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use client_tests::adapter::{
    AdapterRequest, ClientSettings, DiscoveryMode, RequestFailure, report_message, serve_requests,
};
use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface, TransactionInterface as _};
use fred::prelude::{Builder, Client, Config, ReconnectPolicy, ServerConfig, TlsConnector, Value};
use fred::types::scripts::Script;
use fred::types::{ClusterHash, CustomCommand, RespVersion};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;

/// The client, its builder, and the task that receives pub/sub messages.
#[derive(Default)]
struct FredAdapter {
    connected_client: Option<(Client, Builder)>,
    reads_from_replicas: bool,
    subscriber: Option<SubscriberClient>,
}

fn to_json(value: Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Integer(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::String(text) => json!(text.to_string()),
        Value::Bytes(bytes) => json!(String::from_utf8_lossy(&bytes)),
        Value::Array(items) => items.into_iter().map(to_json).collect(),
        Value::Queued => json!("QUEUED"),
        other @ Value::Map(_) => json!(format!("{other:?}")),
    }
}

fn parse_command(args: &[String]) -> (CustomCommand, Vec<String>) {
    (CustomCommand::new(args[0].clone(), ClusterHash::FirstKey, false), args[1..].to_vec())
}

fn tls_connector(file: &str) -> Result<TlsConnector, RequestFailure> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file)?)?;
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(config))
}

async fn connect_client(options: &ClientSettings) -> Result<(Client, Builder), RequestFailure> {
    if options.caching {
        return Err(RequestFailure::Unsupported("the library tells of changes and keeps nothing itself"));
    }
    let timeout = Duration::from_millis(options.timeout_ms);
    let server = if options.mode == DiscoveryMode::Cluster {
        ServerConfig::new_clustered(options.addresses().collect())
    } else {
        ServerConfig::new_sentinel(options.addresses().collect(), options.master.clone().unwrap_or_default())
    };
    let version = if options.protocol == 3 { RespVersion::RESP3 } else { RespVersion::RESP2 };
    let tls = options.tls_ca.as_deref().map(tls_connector).transpose()?.map(Into::into);
    let mut builder = Builder::from_config(Config { server, version, tls, ..Config::default() });
    // Without a reconnect policy the library does not reconnect at all.
    builder.set_policy(ReconnectPolicy::new_constant(0, 100));
    builder.with_connection_config(|connection| {
        connection.connection_timeout = timeout;
        connection.internal_command_timeout = timeout;
    });
    builder.with_performance_config(|performance| performance.default_command_timeout = timeout);
    let client = builder.build()?;
    client.init().await?;
    Ok((client, builder))
}

impl FredAdapter {
    fn connected_client(&self) -> Result<&Client, RequestFailure> {
        self.connected_client
            .as_ref()
            .map(|(client, _)| client)
            .ok_or_else(|| RequestFailure::Error("there is no client".to_owned()))
    }

    async fn handle_request(&mut self, request: AdapterRequest) -> Result<Json, RequestFailure> {
        match request {
            AdapterRequest::Hello => return Ok(json!({"library": "fred", "version": "10.1.0"})),
            AdapterRequest::Connect(options) => {
                self.reads_from_replicas = options.replicas;
                self.connected_client = Some(connect_client(&options).await?);
            }
            AdapterRequest::Command { args } => return self.run_command(&args).await,
            AdapterRequest::Script { source, keys, args } => {
                let script = Script::from_lua(source);
                let reply =
                    script.evalsha_with_reload::<Value, _, _>(self.connected_client()?, keys, args).await;
                return reply.map(to_json).map_err(RequestFailure::from);
            }
            AdapterRequest::Pipeline { commands } => {
                let pipeline = self.connected_client()?.pipeline();
                for args in &commands {
                    let (command, args) = parse_command(args);
                    let () = pipeline.custom(command, args).await?;
                }
                let replies = pipeline.try_all::<Value>().await;
                return Ok(replies
                    .into_iter()
                    .map(|reply| reply.map_or_else(|error| json!({"error": error.to_string()}), to_json))
                    .collect());
            }
            AdapterRequest::Transaction { commands } => {
                let transaction = self.connected_client()?.multi();
                for args in &commands {
                    let (command, args) = parse_command(args);
                    let () = transaction.custom(command, args).await?;
                }
                return transaction.exec::<Value>(true).await.map(to_json).map_err(RequestFailure::from);
            }
            AdapterRequest::Subscribe { channels, sharded } => self.subscribe_to(channels, sharded).await?,
            AdapterRequest::Close => *self = Self::default(),
        }
        Ok(Json::Null)
    }

    async fn run_command(&self, args: &[String]) -> Result<Json, RequestFailure> {
        let client = self.connected_client()?;
        let (command, rest) = parse_command(args);
        let reply = if self.reads_from_replicas && args[0] == "GET" {
            client.replicas().custom::<Value, _>(command, rest).await
        } else {
            client.custom::<Value, _>(command, rest).await
        };
        reply.map(to_json).map_err(RequestFailure::from)
    }

    async fn subscribe_to(&mut self, channels: Vec<String>, is_sharded: bool) -> Result<(), RequestFailure> {
        let Some((_, builder)) = &self.connected_client else {
            return Err(RequestFailure::Error("there is no client".to_owned()));
        };
        let subscriber = builder.build_subscriber_client()?;
        subscriber.init().await?;
        subscriber.manage_subscriptions();
        let mut messages = subscriber.message_rx();
        tokio::spawn(async move {
            while let Ok(message) = messages.recv().await {
                report_message(&message.channel, &message.value.as_string().unwrap_or_default());
            }
        });
        if is_sharded {
            subscriber.ssubscribe(channels).await?;
        } else {
            subscriber.subscribe(channels).await?;
        }
        self.subscriber = Some(subscriber);
        Ok(())
    }
}

#[tokio::main]
async fn main() {
    let adapter = Arc::new(Mutex::new(FredAdapter::default()));
    serve_requests(|request| {
        let adapter = Arc::clone(&adapter);
        async move { adapter.lock().await.handle_request(request).await }
    })
    .await;
}
