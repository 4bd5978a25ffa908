//! Creates clients for each mode.

use std::time::{Duration, Instant};

use client_tests::{
    DeploymentMode, FeatureAttempt, FeatureResult, OPERATION_TIMEOUT, RETRY_DELAY, ServerAddresses,
    check_condition,
};
use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, KeysInterface};
use fred::prelude::{Builder, Client, Config, Error, ReconnectPolicy, ServerConfig};
use fred::types::RespVersion;
use fred::types::config::{ReplicaConfig, TlsConnector};
use harness::MASTER_NAME;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

#[derive(Default)]
pub(crate) struct ConnectionOptions {
    pub(crate) user: Option<(&'static str, &'static str)>,
    pub(crate) tls: bool,
    /// Whether commands may block, which disables the reply timeout.
    pub(crate) may_block: bool,
}

fn client_builder(attempt: &FeatureAttempt, options: &ConnectionOptions) -> Builder {
    let host = |&port: &u16| ("127.0.0.1".to_owned(), port);
    let addresses = &attempt.addresses;
    let ports = if options.tls { &addresses.tls_ports } else { &addresses.ports };
    let server = match addresses.mode {
        DeploymentMode::Standalone => ServerConfig::new_centralized("127.0.0.1", ports[0]),
        DeploymentMode::Cluster => ServerConfig::new_clustered(ports.iter().map(host).collect()),
        DeploymentMode::Sentinel => {
            ServerConfig::new_sentinel(addresses.sentinels.iter().map(host).collect(), MASTER_NAME)
        }
    };
    let mut config = Config { server, ..Config::default() };
    config.version = if attempt.protocol == 3 { RespVersion::RESP3 } else { RespVersion::RESP2 };
    if let Some((name, password)) = options.user {
        config.username = Some(name.into());
        config.password = Some(password.into());
    }
    if options.tls {
        config.tls = Some(tls_connector(addresses).into());
    }
    let mut builder = Builder::from_config(config);
    builder.set_policy(ReconnectPolicy::new_constant(0, 50));
    builder.with_connection_config(|connection| {
        connection.reconnect_on_auth_error = true;
        connection.max_command_attempts = 100;
        // After a failover a shard may have no replica, so reads fall back to the master; while there are replicas, the
        // library may only read from those.
        connection.replica =
            ReplicaConfig { primary_fallback: attempt.expects_kill(), ..ReplicaConfig::default() };
    });
    let timeout = if options.may_block { 2 * OPERATION_TIMEOUT } else { Duration::from_secs(3) };
    builder.with_performance_config(|performance| performance.default_command_timeout = timeout);
    builder
}

fn tls_connector(addresses: &ServerAddresses) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&addresses.ca_certificate).expect("a certificate"))
        .expect("an authority");
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().expect("versions");
    config.with_root_certificates(roots).with_no_client_auth().into()
}

pub(crate) async fn connect_client(
    attempt: &FeatureAttempt,
    options: &ConnectionOptions,
) -> Result<Client, Error> {
    let client = client_builder(attempt, options).build()?;
    client.init().await?;
    Ok(client)
}

/// Creates a client that resubscribes after a reconnect.
pub(crate) async fn connect_subscriber(attempt: &FeatureAttempt) -> Result<SubscriberClient, Error> {
    let client = client_builder(attempt, &ConnectionOptions::default()).build_subscriber_client()?;
    client.init().await?;
    client.manage_subscriptions();
    Ok(client)
}

pub(crate) async fn set_key(client: &Client, key: &str, value: &str) -> Result<(), Error> {
    client.set(key, value, None, None, false).await
}

/// Reads until the key has this value.
pub(crate) async fn read_until(client: &Client, key: &str, expected: &str) -> FeatureResult {
    let began = Instant::now();
    loop {
        let value: Result<Option<String>, Error> = client.get(key).await;
        if value.as_ref().is_ok_and(|value| value.as_deref() == Some(expected)) {
            return Ok(None);
        }
        check_condition(began.elapsed() < OPERATION_TIMEOUT, &format!("{key} is {value:?}"))?;
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
