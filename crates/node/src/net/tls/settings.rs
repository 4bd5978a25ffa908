//! The `tls-` parameters as rustls takes them. They are read as a whole, at the start and whenever one changes; a
//! connection goes on under those that it began with.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use config::Config;
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::certificates::{self, Facts};
use super::ciphers;
use super::verify::AnyName;

/// Who comes in at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Clients, who may need a certificate.
    Clients,
    /// Nodes of the cluster, who always do.
    Bus,
}

/// What this process's TLS is like just now; nothing as long as no parameter asks for any.
#[derive(Debug, Default)]
pub(crate) struct Tls {
    current: ArcSwapOption<Current>,
    /// When the files in use were last changed.
    changed: Mutex<Vec<Option<SystemTime>>>,
}

/// The parameters that name files.
const FILES: [&str; 6] = [
    "tls-cert-file",
    "tls-key-file",
    "tls-client-cert-file",
    "tls-client-key-file",
    "tls-ca-cert-file",
    "tls-ca-cert-dir",
];

/// When each of the files that the parameters name was last changed.
fn times(config: &Config) -> Vec<Option<SystemTime>> {
    let time = |name: &&str| std::fs::metadata(config.text(name)).and_then(|data| data.modified()).ok();
    FILES.iter().map(time).collect()
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

impl Tls {
    /// Whether a parameter asks for TLS somewhere.
    pub(crate) fn is_wanted(config: &Config) -> bool {
        config.port("tls-port") != 0 || config.switch("tls-replication") || config.switch("tls-cluster")
    }

    /// Reads the parameters and the files that they name. Without success all stays as it was.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(crate) fn load(&self, config: &Config) -> Result<(), String> {
        *self.changed.lock() = times(config);
        let next = if Self::is_wanted(config) { Some(Arc::new(Current::read(config)?)) } else { None };
        self.current.store(next);
        Ok(())
    }

    /// Reads the files again if one of them was changed (`tls-auto-reload-interval`). Those that cannot be used change
    /// nothing, and are tried again when one is changed again.
    pub(crate) fn reload_changed(&self, config: &Config) {
        if !Self::is_wanted(config) || *self.changed.lock() == times(config) {
            return;
        }
        match self.load(config) {
            Ok(()) => tracing::info!("The certificates were changed: they are read again"),
            Err(reason) => tracing::warn!("The certificates were changed and cannot be used: {reason}"),
        }
    }

    /// How to receive whoever comes in there.
    pub(crate) fn receiving(&self, side: Side) -> Option<Arc<ServerConfig>> {
        let current = self.current.load();
        current.as_ref().map(|current| match side {
            Side::Clients => current.clients.clone(),
            Side::Bus => current.bus.clone(),
        })
    }

    /// How to come to others.
    pub(crate) fn dialling(&self) -> Option<Arc<ClientConfig>> {
        self.current.load().as_ref().map(|current| current.dial.clone())
    }

    /// What INFO tells of the certificates in use, by their names there.
    pub(crate) fn facts(&self) -> [(&'static str, Option<Facts>); 3] {
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
    fn read(config: &Config) -> Result<Self, String> {
        let text = |name: &str| config.text(name);
        let (certificate, key) = (text("tls-cert-file"), text("tls-key-file"));
        if certificate.is_empty() || key.is_empty() {
            return Err("tls-cert-file and tls-key-file must be specified where TLS is spoken".to_owned());
        }
        let provider = provider(config)?;
        let authorities = certificates::authorities(&text("tls-ca-cert-file"), &text("tls-ca-cert-dir"))?;
        let roots = Arc::new(certificates::roots(&authorities)?);
        let asked = text("tls-auth-clients");
        let verifies = asked != "no" || config.switch("tls-cluster") || config.switch("tls-replication");
        if roots.is_empty() && verifies {
            return Err("Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, \
                        tls-replication or tls-auth-clients are enabled!"
                .to_owned());
        }
        let server = Identity::read(&certificate, &key, &text("tls-key-file-pass"))?;
        let (certificate, key) = (text("tls-client-cert-file"), text("tls-client-key-file"));
        let client = if certificate.is_empty() {
            None
        } else {
            Some(Identity::read(&certificate, &key, &text("tls-client-key-file-pass"))?)
        };
        let receiving = |asked: &str| receiving(config, &provider, &roots, &server, asked);
        Ok(Self {
            clients: receiving(&asked)?,
            // Without an authority nobody is let in there.
            bus: receiving(if roots.is_empty() { "no" } else { "yes" })?,
            dial: dialling(config, &provider, &roots, client.as_ref().unwrap_or(&server))?,
            server: server.facts(),
            client: client.and_then(|client| client.facts()),
            authority: authorities.first().and_then(certificates::facts),
        })
    }
}

/// A certificate with those that vouch for it, and its key's file.
struct Identity {
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
}

impl Identity {
    fn read(certificate: &str, key: &str, password: &str) -> Result<Self, String> {
        Ok(Self { chain: certificates::chain(certificate)?, key: certificates::key(key, password)? })
    }

    /// What is shown to the other side. It is not asked of which version the certificate is: rustls reads none of the
    /// first, and it need not read its own.
    fn certified(&self, provider: &CryptoProvider) -> Result<Arc<SingleCertAndKey>, rustls::Error> {
        let key = provider.key_provider.load_private_key(self.key.clone_key())?;
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

fn provider(config: &Config) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = rustls::crypto::ring::default_provider();
    let (ciphers, suites) = (config.text("tls-ciphers"), config.text("tls-ciphersuites"));
    provider.cipher_suites = ciphers::choose(&provider.cipher_suites, &ciphers, &suites)?;
    Ok(Arc::new(provider))
}

fn receiving(
    config: &Config,
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    identity: &Identity,
    asked: &str,
) -> Result<Arc<ServerConfig>, String> {
    let versions = ciphers::protocols(&config.text("tls-protocols"))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?;
    let verifier = || WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let builder = match asked {
        "no" => builder.with_no_client_auth(),
        "optional" => {
            let verifier = verifier().allow_unauthenticated().build().map_err(|error| error.to_string())?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_client_cert_verifier(verifier().build().map_err(|error| error.to_string())?),
    };
    let certified =
        identity.certified(provider).map_err(|error| format!("tls-cert-file and tls-key-file: {error}"))?;
    let mut receiving = builder.with_cert_resolver(certified);
    receiving.ignore_client_order = config.switch("tls-prefer-server-ciphers");
    if config.switch("tls-session-caching") {
        let size = usize::try_from(config.integer("tls-session-cache-size")).unwrap_or(usize::MAX);
        receiving.session_storage = ServerSessionMemoryCache::new(size.clamp(1, MOST_SESSIONS));
        receiving.send_tls13_tickets = 1;
    } else {
        receiving.session_storage = Arc::new(NoServerSessionStorage {});
        receiving.send_tls13_tickets = 0;
    }
    Ok(Arc::new(receiving))
}

/// Sessions that are kept at most: each is about a kilobyte.
const MOST_SESSIONS: usize = 20_480;

fn dialling(
    config: &Config,
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    identity: &Identity,
) -> Result<Arc<ClientConfig>, String> {
    let versions = ciphers::protocols(&config.text("tls-protocols"))?;
    let verifier = AnyName {
        roots: RootCertStore::clone(roots),
        algorithms: provider.signature_verification_algorithms,
    };
    let certified = identity
        .certified(provider)
        .map_err(|error| format!("tls-client-cert-file and tls-client-key-file: {error}"))?;
    let dialling = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(certified);
    Ok(Arc::new(dialling))
}
