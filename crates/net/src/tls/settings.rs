//! Builds rustls configurations from the `tls-` parameters. All of them are read again when one changes; existing
//! connections keep their configuration.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use config::{Config, Key, Text, TlsAuthClients, Values, keys};
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::server::{
    ClientCertVerifierBuilder, NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};

use super::certificates::{self, Facts};
use super::ciphers;
use super::verify::{Anchors, ClientVerifier, ServerVerifier};

/// Which peers connect to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Clients; `tls-auth-clients` says whether they need a certificate.
    Clients,
    /// Cluster nodes, which always need a certificate.
    Bus,
}

/// The current TLS configuration. Empty unless a parameter enables TLS.
#[derive(Debug, Default)]
pub struct Tls {
    current: ArcSwapOption<Current>,
    /// Modification times of the loaded files.
    changed: Mutex<Vec<Option<SystemTime>>>,
}

/// The parameters that name files.
const FILES: [Key<Option<Text>>; 6] = [
    keys::TLS_CERT_FILE,
    keys::TLS_KEY_FILE,
    keys::TLS_CLIENT_CERT_FILE,
    keys::TLS_CLIENT_KEY_FILE,
    keys::TLS_CA_CERT_FILE,
    keys::TLS_CA_CERT_DIR,
];

/// Modification times of all configured files; `None` for those that cannot be read.
fn times(config: &Config) -> Vec<Option<SystemTime>> {
    let time = |path: Text| std::fs::metadata(&*path).and_then(|data| data.modified()).ok();
    FILES.iter().map(|key| config.get(*key).and_then(time)).collect()
}

#[derive(Debug)]
struct Current {
    clients: Arc<ServerConfig>,
    bus: Arc<ServerConfig>,
    dial: Arc<ClientConfig>,
    server: Option<Facts>,
    client: Option<Facts>,
    authority: Option<Facts>,
}

/// The previous configuration, kept to undo a change.
#[derive(Debug)]
pub struct Replaced {
    current: Option<Arc<Current>>,
    changed: Vec<Option<SystemTime>>,
}

impl Tls {
    /// Whether any parameter enables TLS.
    pub(crate) fn is_wanted(config: &Config) -> bool {
        let of_metrics = config.get(keys::METRICS_PORT) != 0 && config.get(keys::METRICS_TLS);
        let of_links = config.get(keys::TLS_REPLICATION) || config.get(keys::TLS_CLUSTER);
        config.get(keys::TLS_PORT) != 0 || of_links || of_metrics
    }

    /// Loads the parameters and the files they name. On failure the current configuration stays in use.
    ///
    /// # Errors
    /// Why the parameters or files cannot be used.
    pub fn load(&self, config: &Config) -> Result<(), String> {
        *self.changed.lock() = times(config);
        let next =
            if Self::is_wanted(config) { Some(Arc::new(Current::read(&config.values())?)) } else { None };
        self.current.store(next);
        Ok(())
    }

    /// Like [`Self::load`], but returns the previous configuration so that the change can be undone.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn replace(&self, config: &Config) -> Result<Replaced, String> {
        let before = Replaced { current: self.current.load_full(), changed: self.changed.lock().clone() };
        match self.load(config) {
            Ok(()) => Ok(before),
            Err(reason) => {
                self.put_back(before);
                Err(reason)
            }
        }
    }

    /// Undoes a change by [`Self::replace`].
    pub fn put_back(&self, before: Replaced) {
        *self.changed.lock() = before.changed;
        self.current.store(before.current);
    }

    /// Reloads the files if one has been modified (`tls-auto-reload-interval`). After a failed reload the next attempt
    /// is made when a file changes again.
    pub fn reload_changed(&self, config: &Config) {
        if !Self::is_wanted(config) || *self.changed.lock() == times(config) {
            return;
        }
        match self.load(config) {
            Ok(()) => tracing::info!("The TLS certificates have changed and were reloaded"),
            Err(reason) => tracing::warn!("The certificates were changed and cannot be used: {reason}"),
        }
    }

    /// The server configuration for these peers, if TLS is enabled.
    pub(crate) fn receiving(&self, side: Side) -> Option<Arc<ServerConfig>> {
        let current = self.current.load();
        current.as_ref().map(|current| match side {
            Side::Clients => current.clients.clone(),
            Side::Bus => current.bus.clone(),
        })
    }

    /// The client configuration for outgoing connections, if TLS is enabled.
    pub(crate) fn dialling(&self) -> Option<Arc<ClientConfig>> {
        self.current.load().as_ref().map(|current| current.dial.clone())
    }

    /// Details of the certificates in use, with their field names in INFO.
    pub fn facts(&self) -> [(&'static str, Option<Facts>); 3] {
        let current = self.current.load();
        let fact =
            |of: fn(&Current) -> &Option<Facts>| current.as_ref().and_then(|current| of(current).clone());
        [
            ("server_cert", fact(|current| &current.server)),
            ("client_cert", fact(|current| &current.client)),
            ("ca_cert", fact(|current| &current.authority)),
        ]
    }
}

impl Current {
    fn read(values: &Values) -> Result<Self, String> {
        let text = |key: Key<Option<Text>>| values[key].as_deref().unwrap_or_default();
        let (certificate, key) = (text(keys::TLS_CERT_FILE), text(keys::TLS_KEY_FILE));
        if certificate.is_empty() || key.is_empty() {
            return Err("tls-cert-file and tls-key-file must be specified when TLS is enabled".to_owned());
        }
        let provider = provider(values)?;
        let authorities =
            certificates::authorities(text(keys::TLS_CA_CERT_FILE), text(keys::TLS_CA_CERT_DIR))?;
        let algorithms = provider.signature_verification_algorithms;
        let roots = Arc::new(certificates::roots(&authorities, &algorithms)?);
        let anchors = Arc::new(Anchors::new(roots.clone(), authorities.clone(), algorithms));
        let asked = values[keys::TLS_AUTH_CLIENTS];
        let verifies =
            asked != TlsAuthClients::No || values[keys::TLS_CLUSTER] || values[keys::TLS_REPLICATION];
        if roots.is_empty() && verifies {
            return Err("Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
                        tls-replication or tls-auth-clients are enabled!"
                .to_owned());
        }
        let server = Identity::read(certificate, key, text(keys::TLS_KEY_FILE_PASS))?;
        let client = match &values[keys::TLS_CLIENT_CERT_FILE] {
            None => None,
            Some(certificate) => Some(Identity::read(
                certificate,
                text(keys::TLS_CLIENT_KEY_FILE),
                text(keys::TLS_CLIENT_KEY_FILE_PASS),
            )?),
        };
        let receiving = |asked| receiving(values, &provider, &anchors, &server, asked);
        Ok(Self {
            clients: receiving(asked)?,
            // Without a CA no node certificate can be verified, so none is requested.
            bus: receiving(if roots.is_empty() { TlsAuthClients::No } else { TlsAuthClients::Yes })?,
            dial: dialling(values, &provider, &anchors, client.as_ref().unwrap_or(&server))?,
            server: server.facts(),
            client: client.and_then(|client| client.facts()),
            authority: authorities.first().and_then(certificates::facts),
        })
    }
}

/// A certificate chain and its private key.
struct Identity {
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
}

impl Identity {
    fn read(certificate: &str, key: &str, password: &str) -> Result<Self, String> {
        Ok(Self { chain: certificates::chain(certificate)?, key: certificates::key(key, password)? })
    }

    /// Builds the resolver for this identity. Unlike rustls's own constructor, it accepts version 1 certificates, and
    /// therefore checks itself that key and certificate match.
    fn certified(&self, provider: &CryptoProvider) -> Result<Arc<SingleCertAndKey>, rustls::Error> {
        let key = provider.key_provider.load_private_key(self.key.clone_key()).map_err(|error| {
            rustls::Error::General(format!("{error}; supported key types: {}", certificates::SUPPORTED_KEYS))
        })?;
        let certified = CertifiedKey::new(self.chain.clone(), key);
        let (owner, public) = (certified.end_entity_cert()?, certified.key.public_key());
        match (certificates::public_key(owner), public) {
            (Some(in_certificate), Some(public)) if in_certificate != public => {
                Err(rustls::InconsistentKeys::KeyMismatch.into())
            }
            (None, _) => Err(rustls::CertificateError::BadEncoding.into()),
            _ => Ok(Arc::new(SingleCertAndKey::from(certified))),
        }
    }

    fn facts(&self) -> Option<Facts> {
        certificates::facts(self.chain.first()?)
    }
}

fn provider(values: &Values) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = rustls::crypto::ring::default_provider();
    let text = |key: Key<Option<Text>>| values[key].as_deref().unwrap_or_default();
    let (ciphers, suites) = (text(keys::TLS_CIPHERS), text(keys::TLS_CIPHERSUITES));
    provider.cipher_suites = ciphers::choose(&provider.cipher_suites, ciphers, suites)?;
    Ok(Arc::new(provider))
}

fn receiving(
    values: &Values,
    provider: &Arc<CryptoProvider>,
    anchors: &Arc<Anchors>,
    identity: &Identity,
    asked: TlsAuthClients,
) -> Result<Arc<ServerConfig>, String> {
    let versions = ciphers::protocols(values[keys::TLS_PROTOCOLS].as_deref().unwrap_or_default())?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?;
    let verifier = || WebPkiClientVerifier::builder_with_provider(anchors.roots.clone(), provider.clone());
    let with_anchors = |builder: ClientCertVerifierBuilder| {
        let webpki = builder.build().map_err(|error| error.to_string())?;
        Ok::<_, String>(Arc::new(ClientVerifier { webpki, anchors: anchors.clone() }))
    };
    let builder = match asked {
        TlsAuthClients::No => builder.with_no_client_auth(),
        TlsAuthClients::Optional => {
            builder.with_client_cert_verifier(with_anchors(verifier().allow_unauthenticated())?)
        }
        TlsAuthClients::Yes => builder.with_client_cert_verifier(with_anchors(verifier())?),
    };
    let certified =
        identity.certified(provider).map_err(|error| format!("tls-cert-file and tls-key-file: {error}"))?;
    let mut receiving = builder.with_cert_resolver(certified);
    receiving.ignore_client_order = values[keys::TLS_PREFER_SERVER_CIPHERS];
    if values[keys::TLS_SESSION_CACHING] {
        let size = values[keys::TLS_SESSION_CACHE_SIZE];
        receiving.session_storage = ServerSessionMemoryCache::new(size.clamp(1, MOST_SESSIONS));
        receiving.send_tls13_tickets = 1;
    } else {
        receiving.session_storage = Arc::new(NoServerSessionStorage {});
        receiving.send_tls13_tickets = 0;
    }
    Ok(Arc::new(receiving))
}

/// Upper bound for cached sessions, about one kilobyte each.
const MOST_SESSIONS: usize = 20_480;

fn dialling(
    values: &Values,
    provider: &Arc<CryptoProvider>,
    anchors: &Arc<Anchors>,
    identity: &Identity,
) -> Result<Arc<ClientConfig>, String> {
    let versions = ciphers::protocols(values[keys::TLS_PROTOCOLS].as_deref().unwrap_or_default())?;
    let certified = identity
        .certified(provider)
        .map_err(|error| format!("tls-client-cert-file and tls-client-key-file: {error}"))?;
    let dialling = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier(anchors.clone())))
        .with_client_cert_resolver(certified);
    Ok(Arc::new(dialling))
}
