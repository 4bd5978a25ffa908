//! Verifies peer certificates.
//!
//! As in Redis, host names are not checked: node addresses change, and certificates are usually issued per service.
//!
//! Leaf certificates that webpki rejects but OpenSSL accepts are verified by [`DirectlySignedCertificate`].

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ProtocolVersion, RootCertStore, SignatureScheme,
};

use super::directly_signed::{CertificatePurpose, DirectlySignedCertificate, verify_anchor};

/// The trusted CA certificates, in the two forms that the verifiers need.
#[derive(Debug)]
pub(super) struct TrustAnchors {
    /// The same certificates as a rustls root store.
    pub(super) roots: Arc<RootCertStore>,
    certificates: Vec<CertificateDer<'static>>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl TrustAnchors {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        certificates: Vec<CertificateDer<'static>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { roots, certificates, algorithms }
    }

    /// Verifies a leaf certificate that is itself a trust anchor, or that only [`DirectlySignedCertificate`] can
    /// verify. `None` for any other certificate.
    fn verify_directly_signed(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
        purpose: CertificatePurpose,
    ) -> Option<Result<(), Error>> {
        if self.certificates.iter().any(|anchor| anchor.as_ref() == certificate.as_ref()) {
            return Some(verify_anchor(certificate, now, purpose));
        }
        Some(DirectlySignedCertificate::parse(certificate)?.verify(self, now, purpose))
    }

    /// Verifies the peer's signature of a handshake.
    fn verify_signature(
        &self,
        version: ProtocolVersion,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let (leaf, algorithms) = (DirectlySignedCertificate::parse(certificate), &self.algorithms);
        let verified = match (leaf, version) {
            (None, ProtocolVersion::TLSv1_2) => {
                return verify_tls12_signature(message, certificate, signature, algorithms);
            }
            (None, _) => return verify_tls13_signature(message, certificate, signature, algorithms),
            (Some(leaf), ProtocolVersion::TLSv1_2) => {
                leaf.verify_tls12_signature(message, signature, algorithms)
            }
            (Some(leaf), _) => leaf.verify_tls13_signature(message, signature, algorithms),
        };
        verified.map(|()| HandshakeSignatureValid::assertion())
    }
}

/// Implements the methods for signatures, which servers and clients verify alike, by the trust anchors in a field.
macro_rules! verify_signatures_with {
    ($anchors:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$anchors.verify_signature(ProtocolVersion::TLSv1_2, message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$anchors.verify_signature(ProtocolVersion::TLSv1_3, message, certificate, signature)
        }
    };
}

/// Verifies the certificates of servers that this process connects to.
#[derive(Debug)]
pub(super) struct ServerVerifier(pub(super) Arc<TrustAnchors>);

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(verified) = self.0.verify_directly_signed(certificate, now, CertificatePurpose::Server) {
            return verified.map(|()| ServerCertVerified::assertion());
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        let (roots, algorithms) = (&self.0.roots, self.0.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    verify_signatures_with!(0);

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}

/// Verifies the certificates of clients and of nodes that connect to the cluster bus.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    /// Verifies the certificates that webpki supports.
    pub(super) webpki: Arc<dyn ClientCertVerifier>,
    pub(super) anchors: Arc<TrustAnchors>,
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.anchors.verify_directly_signed(certificate, now, CertificatePurpose::Client) {
            Some(verified) => verified.map(|()| ClientCertVerified::assertion()),
            None => self.webpki.verify_client_cert(certificate, intermediates, now),
        }
    }

    verify_signatures_with!(anchors);

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}
