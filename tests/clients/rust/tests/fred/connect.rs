//! Clients of each mode's own kind.

use std::time::{Duration, Instant};

use client_tests::{Addresses, Attempt, Mode, Outcome, PAUSE, TIMEOUT, check};
use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, KeysInterface};
use fred::prelude::{Builder, Client, Config, Error, ReconnectPolicy, ServerConfig};
use fred::types::RespVersion;
use fred::types::config::{ReplicaConfig, TlsConnector};
use harness::MASTER;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The options of a connection.
#[derive(Default)]
pub(crate) struct How {
    pub(crate) user: Option<(&'static str, &'static str)>,
    pub(crate) tls: bool,
    /// Replies may take their time.
    pub(crate) blocking: bool,
}

fn builder(attempt: &Attempt, how: &How) -> Builder {
    let host = |&port: &u16| ("127.0.0.1".to_owned(), port);
    let at = &attempt.at;
    let ports = if how.tls { &at.tls_ports } else { &at.ports };
    let server = match at.mode {
        Mode::Standalone => ServerConfig::new_centralized("127.0.0.1", ports[0]),
        Mode::Cluster => ServerConfig::new_clustered(ports.iter().map(host).collect()),
        Mode::Sentinel => ServerConfig::new_sentinel(at.sentinels.iter().map(host).collect(), MASTER),
    };
    let mut config = Config { server, ..Config::default() };
    config.version = if attempt.protocol == 3 { RespVersion::RESP3 } else { RespVersion::RESP2 };
    if let Some((name, password)) = how.user {
        config.username = Some(name.into());
        config.password = Some(password.into());
    }
    if how.tls {
        config.tls = Some(tls(at).into());
    }
    let mut builder = Builder::from_config(config);
    builder.set_policy(ReconnectPolicy::new_constant(0, 50));
    builder.with_connection_config(|connection| {
        connection.reconnect_on_auth_error = true;
        connection.max_command_attempts = 100;
        // A promoted replica leaves no replica behind; as long as there is one, no other node may be read from.
        connection.replica =
            ReplicaConfig { primary_fallback: attempt.has_kill(), ..ReplicaConfig::default() };
    });
    let timeout = if how.blocking { 2 * TIMEOUT } else { Duration::from_secs(3) };
    builder.with_performance_config(|performance| performance.default_command_timeout = timeout);
    builder
}

fn tls(at: &Addresses) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&at.authority).expect("a certificate")).expect("an authority");
    let config = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().expect("versions");
    config.with_root_certificates(roots).with_no_client_auth().into()
}

pub(crate) async fn connect(attempt: &Attempt, how: &How) -> Result<Client, Error> {
    let client = builder(attempt, how).build()?;
    client.init().await?;
    Ok(client)
}

/// One that subscribes again when it has connected again.
pub(crate) async fn subscriber(attempt: &Attempt) -> Result<SubscriberClient, Error> {
    let client = builder(attempt, &How::default()).build_subscriber_client()?;
    client.init().await?;
    client.manage_subscriptions();
    Ok(client)
}

pub(crate) async fn set(client: &Client, key: &str, value: &str) -> Result<(), Error> {
    client.set(key, value, None, None, false).await
}

/// Reads until it has this value.
pub(crate) async fn comes_to_have(client: &Client, key: &str, wanted: &str) -> Outcome {
    let began = Instant::now();
    loop {
        let value: Result<Option<String>, Error> = client.get(key).await;
        if value.as_ref().is_ok_and(|value| value.as_deref() == Some(wanted)) {
            return Ok(None);
        }
        check(began.elapsed() < TIMEOUT, &format!("{key} is {value:?}"))?;
        tokio::time::sleep(PAUSE).await;
    }
}
