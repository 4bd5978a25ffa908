//! Terminates TLS in front of scripted nodes and forwards the plain bytes over a second pair of sockets.
//!
//! The nodes are unaware of TLS. A connection keeps the certificate of its handshake. A new connection gets the current
//! certificate, as with real servers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use tempfile::NamedTempFile;

use crate::scenario::CertificateAuthority;

/// A certificate and its private key, as PEM.
#[derive(Clone, Copy)]
struct KeyPair {
    certificate: &'static str,
    key: &'static str,
}

const CA_CERTIFICATE: &str = include_str!("../certificates/ca.crt");
const FIRST_CERTIFICATE: KeyPair = KeyPair {
    certificate: include_str!("../certificates/first.crt"),
    key: include_str!("../certificates/first.key"),
};
const SECOND_CERTIFICATE: KeyPair = KeyPair {
    certificate: include_str!("../certificates/second.crt"),
    key: include_str!("../certificates/second.key"),
};
const UNTRUSTED_CERTIFICATE: KeyPair = KeyPair {
    certificate: include_str!("../certificates/stranger.crt"),
    key: include_str!("../certificates/stranger.key"),
};
const CHUNK_BYTES: usize = 16 * 1024;

/// Accepts TLS connections for all nodes of a scenario, with a certificate that the scenario can replace.
#[derive(Debug)]
pub(crate) struct TlsFrontend {
    ca_certificate: NamedTempFile,
    current_config: Mutex<Arc<ServerConfig>>,
    second_config: Arc<ServerConfig>,
    untrusted_config: Arc<ServerConfig>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TlsFrontend {
    pub(crate) fn new() -> Result<Self> {
        let mut authority = NamedTempFile::with_suffix(".crt").context("a temporary file")?;
        authority.write_all(CA_CERTIFICATE.as_bytes())?;
        Ok(Self {
            ca_certificate: authority,
            current_config: Mutex::new(server_config(FIRST_CERTIFICATE)?),
            second_config: server_config(SECOND_CERTIFICATE)?,
            untrusted_config: server_config(UNTRUSTED_CERTIFICATE)?,
        })
    }

    /// Returns the file with the CA certificate that the client should trust.
    pub(crate) fn ca_file(&self) -> &Path {
        self.ca_certificate.path()
    }

    /// Replaces the certificate for new connections. Open connections keep the old one.
    pub(crate) fn replace_certificate(&self, authority: CertificateAuthority) {
        *lock(&self.current_config) = Arc::clone(match authority {
            CertificateAuthority::Trusted => &self.second_config,
            CertificateAuthority::Untrusted => &self.untrusted_config,
        });
    }

    /// Starts the threads that forward an encrypted connection, and returns its plain-text end. Closing either end
    /// closes the other end too.
    pub(crate) fn start_forwarding(&self, outer: TcpStream) -> Result<TcpStream> {
        let tls = ServerConnection::new(Arc::clone(&lock(&self.current_config)))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let inner = TcpStream::connect(listener.local_addr()?)?;
        let (clear, _) = listener.accept()?;
        inner.set_nodelay(true)?;
        clear.set_nodelay(true)?;
        let tls = Arc::new(Mutex::new(tls));
        let ends = (Arc::new(outer), Arc::new(inner));
        let (incoming, other) = ((ends.0.clone(), ends.1.clone(), Arc::clone(&tls)), ends);
        thread::spawn(move || {
            // The result does not matter: the connection is closed when either direction ends.
            let _ = decrypt(&incoming.0, &incoming.1, &incoming.2);
            close(&incoming.0, &incoming.1);
        });
        thread::spawn(move || {
            let _ = encrypt(&other.1, &other.0, &tls);
            close(&other.0, &other.1);
        });
        Ok(clear)
    }
}

fn close(outer: &TcpStream, inner: &TcpStream) {
    let _ = outer.shutdown(Shutdown::Both);
    let _ = inner.shutdown(Shutdown::Both);
}

/// Forwards bytes from the client to the node until either side closes.
fn decrypt(mut outer: &TcpStream, mut inner: &TcpStream, tls: &Mutex<ServerConnection>) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let length = outer.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        let mut clear = Vec::new();
        {
            let mut tls = lock(tls);
            let mut rest = &bytes[..length];
            while !rest.is_empty() {
                tls.read_tls(&mut rest)?;
                let state = tls.process_new_packets();
                // If the handshake fails, TLS queues an alert for the client, which must be sent before the error is
                // returned.
                while tls.wants_write() {
                    tls.write_tls(&mut outer)?;
                }
                let ready = state.map_err(io::Error::other)?.plaintext_bytes_to_read();
                let begin = clear.len();
                clear.resize(begin + ready, 0);
                tls.reader().read_exact(&mut clear[begin..])?;
            }
        }
        inner.write_all(&clear)?;
    }
}

/// Forwards bytes from the node to the client until either side closes.
fn encrypt(mut inner: &TcpStream, mut outer: &TcpStream, tls: &Mutex<ServerConnection>) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let length = inner.read(&mut bytes)?;
        let mut tls = lock(tls);
        if length == 0 {
            tls.send_close_notify();
        } else {
            tls.writer().write_all(&bytes[..length])?;
        }
        while tls.wants_write() {
            tls.write_tls(&mut outer)?;
        }
        if length == 0 {
            return Ok(());
        }
    }
}

fn server_config(KeyPair { certificate, key }: KeyPair) -> Result<Arc<ServerConfig>> {
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}
