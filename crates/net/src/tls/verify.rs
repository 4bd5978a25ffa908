//! Whether a peer is one of the authority's. As in Redis a server is not asked by what name it was dialled: nodes and
//! masters are known by addresses that change, and certificates are given to services.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::first_version::FirstVersion;

#[derive(Debug)]
pub(super) struct AnyName {
    pub(super) roots: RootCertStore,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(first) = FirstVersion::parse(certificate) {
            first.verify(&self.roots, now, &self.algorithms)?;
            return Ok(ServerCertVerified::assertion());
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed_tls12(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed_tls13(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Clients, and whoever comes to the bus.
#[derive(Debug)]
pub(super) struct Clients {
    /// For certificates that rustls reads.
    pub(super) newer: Arc<dyn ClientCertVerifier>,
    pub(super) roots: Arc<RootCertStore>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.newer.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.newer.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.newer.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match FirstVersion::parse(certificate) {
            Some(first) => {
                first.verify(&self.roots, now, &self.algorithms).map(|()| ClientCertVerified::assertion())
            }
            None => self.newer.verify_client_cert(certificate, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed_tls12(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signed_tls13(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.newer.supported_verify_schemes()
    }
}

fn signed_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match FirstVersion::parse(certificate) {
        Some(first) => first
            .has_signed_tls12(message, signature, algorithms)
            .map(|()| HandshakeSignatureValid::assertion()),
        None => verify_tls12_signature(message, certificate, signature, algorithms),
    }
}

fn signed_tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    match FirstVersion::parse(certificate) {
        Some(first) => first
            .has_signed_tls13(message, signature, algorithms)
            .map(|()| HandshakeSignatureValid::assertion()),
        None => verify_tls13_signature(message, certificate, signature, algorithms),
    }
}
