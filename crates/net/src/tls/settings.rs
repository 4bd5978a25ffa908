//! Builds rustls configurations from the `tls-` parameters. If one parameter changes, all of them are read again;
//! existing connections keep their configuration.

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

use super::certificates::{self, CertificateInfo};
use super::ciphers;
use super::verify::{ClientVerifier, ServerVerifier, TrustAnchors};

/// Who connects to a listener, which decides whether a certificate is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPeers {
    /// Clients. `tls-auth-clients` says whether they need a certificate.
    Clients,
    /// Cluster nodes, which always need a certificate.
    ClusterNodes,
}

/// The current TLS configuration. Empty unless a parameter enables TLS.
#[derive(Debug, Default)]
pub struct Tls {
    current: ArcSwapOption<LoadedTls>,
    /// Modification times of the loaded files.
    modified_at: Mutex<Vec<Option<SystemTime>>>,
}

/// The parameters whose values are paths of files.
const FILE_PARAMETERS: [Key<Option<Text>>; 6] = [
    keys::TLS_CERT_FILE,
    keys::TLS_KEY_FILE,
    keys::TLS_CLIENT_CERT_FILE,
    keys::TLS_CLIENT_KEY_FILE,
    keys::TLS_CA_CERT_FILE,
    keys::TLS_CA_CERT_DIR,
];

/// Modification times of all configured files; `None` for those that cannot be read.
fn modification_times(config: &Config) -> Vec<Option<SystemTime>> {
    let time = |path: Text| std::fs::metadata(&*path).and_then(|data| data.modified()).ok();
    FILE_PARAMETERS.iter().map(|key| config.get(*key).and_then(time)).collect()
}

#[derive(Debug)]
struct LoadedTls {
    client_listener_config: Arc<ServerConfig>,
    bus_listener_config: Arc<ServerConfig>,
    outgoing_config: Arc<ClientConfig>,
    server_certificate: Option<CertificateInfo>,
    client_certificate: Option<CertificateInfo>,
    ca_certificate: Option<CertificateInfo>,
}

/// The configuration before a change, with which the change can be undone.
#[derive(Debug)]
pub struct PreviousTls {
    current: Option<Arc<LoadedTls>>,
    modified_at: Vec<Option<SystemTime>>,
}

impl Tls {
    /// Returns whether any parameter enables TLS.
    pub(crate) fn is_enabled(config: &Config) -> bool {
        let of_metrics = config.get(keys::METRICS_PORT) != 0 && config.get(keys::METRICS_TLS);
        let of_links = config.get(keys::TLS_REPLICATION) || config.get(keys::TLS_CLUSTER);
        config.get(keys::TLS_PORT) != 0 || of_links || of_metrics
    }

    /// Loads the parameters and the files they name. On failure the current configuration stays in use.
    ///
    /// # Errors
    /// The text says which parameter or file cannot be used, and why.
    pub fn load(&self, config: &Config) -> Result<(), String> {
        *self.modified_at.lock() = modification_times(config);
        let next =
            if Self::is_enabled(config) { Some(Arc::new(LoadedTls::read(&config.values())?)) } else { None };
        self.current.store(next);
        Ok(())
    }

    /// Like [`Self::load`], but returns the previous configuration so that the change can be undone.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn replace(&self, config: &Config) -> Result<PreviousTls, String> {
        let before =
            PreviousTls { current: self.current.load_full(), modified_at: self.modified_at.lock().clone() };
        match self.load(config) {
            Ok(()) => Ok(before),
            Err(reason) => {
                self.restore(before);
                Err(reason)
            }
        }
    }

    /// Puts back the configuration that was in use before [`Self::replace`].
    pub fn restore(&self, previous: PreviousTls) {
        *self.modified_at.lock() = previous.modified_at;
        self.current.store(previous.current);
    }

    /// Reloads the files if one has been modified (`tls-auto-reload-interval`). A failed reload is attempted again only
    /// when a file changes again.
    pub fn reload_changed(&self, config: &Config) {
        if !Self::is_enabled(config) || *self.modified_at.lock() == modification_times(config) {
            return;
        }
        match self.load(config) {
            Ok(()) => tracing::info!("The TLS certificates have changed and were reloaded"),
            Err(reason) => tracing::warn!("The certificates were changed and cannot be used: {reason}"),
        }
    }

    /// Returns the configuration for accepting connections from `peers`. `None` if TLS is disabled.
    pub(crate) fn server_config(&self, peers: TlsPeers) -> Option<Arc<ServerConfig>> {
        let current = self.current.load();
        current.as_ref().map(|current| match peers {
            TlsPeers::Clients => current.client_listener_config.clone(),
            TlsPeers::ClusterNodes => current.bus_listener_config.clone(),
        })
    }

    /// Returns the configuration for outgoing connections. `None` if TLS is disabled.
    pub(crate) fn client_config(&self) -> Option<Arc<ClientConfig>> {
        self.current.load().as_ref().map(|current| current.outgoing_config.clone())
    }

    /// Returns the details of the certificates in use, each with its field name in INFO.
    pub fn certificate_info(&self) -> [(&'static str, Option<CertificateInfo>); 3] {
        let current = self.current.load();
        let info = |of: fn(&LoadedTls) -> &Option<CertificateInfo>| {
            current.as_ref().and_then(|current| of(current).clone())
        };
        [
            ("server_cert", info(|current| &current.server_certificate)),
            ("client_cert", info(|current| &current.client_certificate)),
            ("ca_cert", info(|current| &current.ca_certificate)),
        ]
    }
}

impl LoadedTls {
    fn read(values: &Values) -> Result<Self, String> {
        let text = |key: Key<Option<Text>>| values[key].as_deref().unwrap_or_default();
        let (certificate, key) = (text(keys::TLS_CERT_FILE), text(keys::TLS_KEY_FILE));
        if certificate.is_empty() || key.is_empty() {
            return Err("tls-cert-file and tls-key-file must be specified when TLS is enabled".to_owned());
        }
        let provider = build_provider(values)?;
        let authorities =
            certificates::read_ca_certificates(text(keys::TLS_CA_CERT_FILE), text(keys::TLS_CA_CERT_DIR))?;
        let algorithms = provider.signature_verification_algorithms;
        let roots = Arc::new(certificates::build_root_store(&authorities, &algorithms)?);
        let anchors = Arc::new(TrustAnchors::new(roots.clone(), authorities.clone(), algorithms));
        let asked = values[keys::TLS_AUTH_CLIENTS];
        let verifies =
            asked != TlsAuthClients::No || values[keys::TLS_CLUSTER] || values[keys::TLS_REPLICATION];
        if roots.is_empty() && verifies {
            return Err("Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
                        tls-replication or tls-auth-clients are enabled!"
                .to_owned());
        }
        let server = TlsIdentity::read(certificate, key, text(keys::TLS_KEY_FILE_PASS))?;
        let client = match &values[keys::TLS_CLIENT_CERT_FILE] {
            None => None,
            Some(certificate) => Some(TlsIdentity::read(
                certificate,
                text(keys::TLS_CLIENT_KEY_FILE),
                text(keys::TLS_CLIENT_KEY_FILE_PASS),
            )?),
        };
        let server_config = |asked| build_server_config(values, &provider, &anchors, &server, asked);
        Ok(Self {
            client_listener_config: server_config(asked)?,
            // Without a CA no node certificate can be verified, so none is requested.
            bus_listener_config: server_config(if roots.is_empty() {
                TlsAuthClients::No
            } else {
                TlsAuthClients::Yes
            })?,
            outgoing_config: build_client_config(
                values,
                &provider,
                &anchors,
                client.as_ref().unwrap_or(&server),
            )?,
            server_certificate: server.certificate_info(),
            client_certificate: client.and_then(|client| client.certificate_info()),
            ca_certificate: authorities.first().and_then(certificates::certificate_info),
        })
    }
}

/// A certificate chain and its private key.
struct TlsIdentity {
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
}

impl TlsIdentity {
    fn read(certificate: &str, key: &str, password: &str) -> Result<Self, String> {
        Ok(Self {
            chain: certificates::read_chain(certificate)?,
            key: certificates::read_key(key, password)?,
        })
    }

    /// Builds the resolver for this identity. Unlike rustls's own constructor, it accepts version 1 certificates, and
    /// therefore checks itself that key and certificate match.
    fn build_resolver(&self, provider: &CryptoProvider) -> Result<Arc<SingleCertAndKey>, rustls::Error> {
        let key = provider.key_provider.load_private_key(self.key.clone_key()).map_err(|error| {
            rustls::Error::General(format!(
                "{error}; supported key types: {}",
                certificates::SUPPORTED_KEY_TYPES
            ))
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

    fn certificate_info(&self) -> Option<CertificateInfo> {
        certificates::certificate_info(self.chain.first()?)
    }
}

fn build_provider(values: &Values) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = rustls::crypto::ring::default_provider();
    let text = |key: Key<Option<Text>>| values[key].as_deref().unwrap_or_default();
    let (ciphers, suites) = (text(keys::TLS_CIPHERS), text(keys::TLS_CIPHERSUITES));
    provider.cipher_suites = ciphers::select_cipher_suites(&provider.cipher_suites, ciphers, suites)?;
    Ok(Arc::new(provider))
}

fn build_server_config(
    values: &Values,
    provider: &Arc<CryptoProvider>,
    anchors: &Arc<TrustAnchors>,
    identity: &TlsIdentity,
    auth_mode: TlsAuthClients,
) -> Result<Arc<ServerConfig>, String> {
    let versions = ciphers::parse_protocols(values[keys::TLS_PROTOCOLS].as_deref().unwrap_or_default())?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?;
    let verifier = || WebPkiClientVerifier::builder_with_provider(anchors.roots.clone(), provider.clone());
    let with_anchors = |builder: ClientCertVerifierBuilder| {
        let webpki = builder.build().map_err(|error| error.to_string())?;
        Ok::<_, String>(Arc::new(ClientVerifier { webpki, anchors: anchors.clone() }))
    };
    let builder = match auth_mode {
        TlsAuthClients::No => builder.with_no_client_auth(),
        TlsAuthClients::Optional => {
            builder.with_client_cert_verifier(with_anchors(verifier().allow_unauthenticated())?)
        }
        TlsAuthClients::Yes => builder.with_client_cert_verifier(with_anchors(verifier())?),
    };
    let certified = identity
        .build_resolver(provider)
        .map_err(|error| format!("tls-cert-file and tls-key-file: {error}"))?;
    let mut server_config = builder.with_cert_resolver(certified);
    server_config.ignore_client_order = values[keys::TLS_PREFER_SERVER_CIPHERS];
    if values[keys::TLS_SESSION_CACHING] {
        let size = values[keys::TLS_SESSION_CACHE_SIZE];
        server_config.session_storage = ServerSessionMemoryCache::new(size.clamp(1, MAX_CACHED_SESSIONS));
        server_config.send_tls13_tickets = 1;
    } else {
        server_config.session_storage = Arc::new(NoServerSessionStorage {});
        server_config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(server_config))
}

/// Upper bound for cached sessions, about one kilobyte each.
const MAX_CACHED_SESSIONS: usize = 20_480;

fn build_client_config(
    values: &Values,
    provider: &Arc<CryptoProvider>,
    anchors: &Arc<TrustAnchors>,
    identity: &TlsIdentity,
) -> Result<Arc<ClientConfig>, String> {
    let versions = ciphers::parse_protocols(values[keys::TLS_PROTOCOLS].as_deref().unwrap_or_default())?;
    let certified = identity
        .build_resolver(provider)
        .map_err(|error| format!("tls-client-cert-file and tls-client-key-file: {error}"))?;
    let client_config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier(anchors.clone())))
        .with_client_cert_resolver(certified);
    Ok(Arc::new(client_config))
}
