//! Verifies leaf certificates that OpenSSL (and so Redis and Valkey) accepts but webpki rejects: version 1
//! certificates, as created by `openssl x509 -req` without extensions, and CA certificates used as leaves, as created
//! by `openssl req -x509`.
//!
//! A trust anchor must have signed the leaf directly: intermediates are not followed, and anchors with name constraints
//! are ignored. The signature algorithms are those of webpki. A leaf that is itself an anchor needs no issuer
//! ([`verify_anchor`]).

use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::asn1_rs::{Any, BitString};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate, X509Version};

use super::verify::TrustAnchors;

const BAD_SIGNATURE: Error = Error::InvalidCertificate(CertificateError::BadSignature);

/// The role in which the peer presents its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificatePurpose {
    Server,
    Client,
}

/// A version 1 certificate, or a CA certificate used as a leaf.
pub(super) struct DirectlySignedCertificate<'c> {
    certificate: X509Certificate<'c>,
    /// The signature algorithm, as DER without the header.
    algorithm: &'c [u8],
}

/// A public key. The algorithm is DER without the header.
struct PublicKey<'k> {
    algorithm: &'k [u8],
    bits: &'k [u8],
}

impl<'k> PublicKey<'k> {
    /// Parses the contents of a SubjectPublicKeyInfo.
    fn parse(contents: &'k [u8]) -> Option<Self> {
        let (rest, algorithm) = Any::from_der(contents).ok()?;
        let (rest, bits) = Any::from_der(rest).ok()?;
        // The first byte of a bit string is the number of unused bits, 0 for a key.
        let (0, bits) = bits.data.split_first()? else { return None };
        rest.is_empty().then_some(Self { algorithm: algorithm.data, bits })
    }

    /// Returns whether any of `algorithms` that suits this kind of key verifies the signature of `message`.
    fn verifies_signature(
        &self,
        message: &[u8],
        signature: &[u8],
        algorithms: impl Iterator<Item = &'static dyn SignatureVerificationAlgorithm>,
    ) -> bool {
        algorithms
            .filter(|algorithm| algorithm.public_key_alg_id().as_ref() == self.algorithm)
            .any(|algorithm| algorithm.verify_signature(self.bits, message, signature).is_ok())
    }
}

fn check_validity(certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), Error> {
    let (validity, now) = (certificate.validity(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Checks that an extended key usage, if present, allows the purpose, and that all critical extensions are known.
fn check_extensions(certificate: &X509Certificate<'_>, purpose: CertificatePurpose) -> Result<(), Error> {
    for extension in certificate.extensions() {
        let is_allowed = match extension.parsed_extension() {
            ParsedExtension::ExtendedKeyUsage(usage) => {
                let is_listed = match purpose {
                    CertificatePurpose::Server => usage.server_auth,
                    CertificatePurpose::Client => usage.client_auth,
                };
                if !(is_listed || usage.any) {
                    return Err(CertificateError::InvalidPurpose.into());
                }
                true
            }
            ParsedExtension::UnsupportedExtension { .. } | ParsedExtension::ParseError { .. } => {
                !extension.critical
            }
            _ => true,
        };
        if !is_allowed {
            return Err(CertificateError::UnhandledCriticalExtension.into());
        }
    }
    Ok(())
}

/// Verifies a leaf that is itself a trust anchor. The administrator listed this very certificate, so no issuer is
/// needed.
pub(super) fn verify_anchor(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
    purpose: CertificatePurpose,
) -> Result<(), Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    check_validity(&parsed, now)?;
    check_extensions(&parsed, purpose)
}

impl<'c> DirectlySignedCertificate<'c> {
    /// Parses the certificate. Returns `None` if webpki can verify it, or if it is malformed.
    pub(super) fn parse(certificate: &'c CertificateDer<'_>) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
        let is_plain_v1 = parsed.version() == X509Version::V1 && parsed.extensions().is_empty();
        if !rest.is_empty() || !(is_plain_v1 || parsed.is_ca()) {
            return None;
        }
        let (_, whole) = Any::from_der(certificate).ok()?;
        let (rest, _) = Any::from_der(whole.data).ok()?;
        let (rest, algorithm) = Any::from_der(rest).ok()?;
        BitString::from_der(rest).ok()?;
        Some(Self { certificate: parsed, algorithm: algorithm.data })
    }

    /// Checks the validity period, the purpose and the issuer's signature.
    pub(super) fn verify(
        &self,
        anchors: &TrustAnchors,
        now: UnixTime,
        purpose: CertificatePurpose,
    ) -> Result<(), Error> {
        check_validity(&self.certificate, now)?;
        check_extensions(&self.certificate, purpose)?;
        if self.certificate.tbs_certificate.signature != self.certificate.signature_algorithm {
            return Err(CertificateError::BadEncoding.into());
        }
        let is_signed = anchors.roots.roots.iter().any(|root| self.is_signed_by(root, &anchors.algorithms));
        if is_signed { Ok(()) } else { Err(CertificateError::UnknownIssuer.into()) }
    }

    fn is_signed_by(&self, root: &TrustAnchor<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        let issuer = Any::from_der(self.certificate.issuer().as_raw());
        let is_issuer = issuer.is_ok_and(|(_, issuer)| issuer.data == root.subject.as_ref());
        if !is_issuer || root.name_constraints.is_some() {
            return false;
        }
        let Some(key) = PublicKey::parse(root.subject_public_key_info.as_ref()) else { return false };
        let named = |algorithm: &&dyn SignatureVerificationAlgorithm| {
            algorithm.signature_alg_id().as_ref() == self.algorithm
        };
        let algorithms = algorithms.all.iter().copied().filter(named);
        key.verifies_signature(
            self.certificate.tbs_certificate.as_ref(),
            &self.certificate.signature_value.data,
            algorithms,
        )
    }

    /// Verifies the peer's signature of a TLS 1.2 handshake.
    pub(super) fn verify_tls12_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let by_scheme = |scheme: SignatureScheme| {
            let known = algorithms.mapping.iter().find(|(known, _)| *known == scheme);
            known.map_or(&[][..], |(_, algorithms)| *algorithms).iter().copied()
        };
        let (_, key) = Any::from_der(self.certificate.public_key().raw).map_err(|_| BAD_SIGNATURE)?;
        let key = PublicKey::parse(key.data).ok_or(BAD_SIGNATURE)?;
        let is_valid = key.verifies_signature(message, signed.signature(), by_scheme(signed.scheme));
        if is_valid { Ok(()) } else { Err(BAD_SIGNATURE) }
    }

    /// Verifies the peer's signature of a TLS 1.3 handshake.
    pub(super) fn verify_tls13_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let key = SubjectPublicKeyInfoDer::from(self.certificate.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms).map(|_| ())
    }
}
