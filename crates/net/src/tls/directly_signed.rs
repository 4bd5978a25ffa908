//! Leaf certificates that webpki rejects and OpenSSL, by which Redis and Valkey speak TLS, accepts: those of version 1,
//! as `openssl x509 -req` makes them without extensions, and CA certificates that serve as leaves, as
//! `openssl req -x509` makes them.
//!
//! An anchor must have signed the leaf itself: intermediates are not followed, and anchors with name constraints are not
//! used. The signature algorithms are those of webpki. A leaf that is an anchor needs no issuer ([`verify_anchor`]).

use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::asn1_rs::{Any, BitString};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate, X509Version};

use super::verify::Anchors;

const BAD_SIGNATURE: Error = Error::InvalidCertificate(CertificateError::BadSignature);

/// The use that the peer makes of its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Server,
    Client,
}

/// A certificate of version 1, or of a CA.
pub(super) struct DirectlySigned<'c> {
    parsed: X509Certificate<'c>,
    /// The algorithm by which it is signed, as DER without its header.
    algorithm: &'c [u8],
}

/// A public key, with its algorithm as DER without its header.
struct PublicKey<'k> {
    algorithm: &'k [u8],
    bits: &'k [u8],
}

impl<'k> PublicKey<'k> {
    /// Of the contents of a SubjectPublicKeyInfo.
    fn parse(contents: &'k [u8]) -> Option<Self> {
        let (rest, algorithm) = Any::from_der(contents).ok()?;
        let (rest, bits) = Any::from_der(rest).ok()?;
        // The bits fill whole bytes.
        let (0, bits) = bits.data.split_first()? else { return None };
        rest.is_empty().then_some(Self { algorithm: algorithm.data, bits })
    }

    /// Whether one of these algorithms, for keys of this kind, finds the signature right.
    fn has_signed(
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

/// Checks that `now` lies between the first and the last day of a certificate.
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

/// An extended key usage, where there is one, must allow the purpose; a critical extension must be known.
fn check_extensions(certificate: &X509Certificate<'_>, purpose: Purpose) -> Result<(), Error> {
    for extension in certificate.extensions() {
        let is_allowed = match extension.parsed_extension() {
            ParsedExtension::ExtendedKeyUsage(usage) => {
                let is_listed = match purpose {
                    Purpose::Server => usage.server_auth,
                    Purpose::Client => usage.client_auth,
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

/// Verifies a leaf that is an anchor itself: the administrator listed that very certificate, so no issuer is needed.
pub(super) fn verify_anchor(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
    purpose: Purpose,
) -> Result<(), Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    check_validity(&parsed, now)?;
    check_extensions(&parsed, purpose)
}

impl<'c> DirectlySigned<'c> {
    /// `None` for a certificate that webpki reads, or if these bytes are none.
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
        Some(Self { parsed, algorithm: algorithm.data })
    }

    /// Checks its dates, its purpose, and that an anchor has signed it.
    pub(super) fn verify(&self, anchors: &Anchors, now: UnixTime, purpose: Purpose) -> Result<(), Error> {
        check_validity(&self.parsed, now)?;
        check_extensions(&self.parsed, purpose)?;
        if self.parsed.tbs_certificate.signature != self.parsed.signature_algorithm {
            return Err(CertificateError::BadEncoding.into());
        }
        let is_signed = anchors.roots.roots.iter().any(|root| self.is_signed_by(root, &anchors.algorithms));
        if is_signed { Ok(()) } else { Err(CertificateError::UnknownIssuer.into()) }
    }

    fn is_signed_by(&self, root: &TrustAnchor<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        let issuer = Any::from_der(self.parsed.issuer().as_raw());
        let is_issuer = issuer.is_ok_and(|(_, issuer)| issuer.data == root.subject.as_ref());
        if !is_issuer || root.name_constraints.is_some() {
            return false;
        }
        let Some(key) = PublicKey::parse(root.subject_public_key_info.as_ref()) else { return false };
        let named = |algorithm: &&dyn SignatureVerificationAlgorithm| {
            algorithm.signature_alg_id().as_ref() == self.algorithm
        };
        let algorithms = algorithms.all.iter().copied().filter(named);
        key.has_signed(self.parsed.tbs_certificate.as_ref(), &self.parsed.signature_value.data, algorithms)
    }

    /// Whether its owner has signed this handshake of TLS 1.2.
    pub(super) fn has_signed_tls12(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let by_scheme = |scheme: SignatureScheme| {
            let known = algorithms.mapping.iter().find(|(known, _)| *known == scheme);
            known.map_or(&[][..], |(_, algorithms)| *algorithms).iter().copied()
        };
        let (_, key) = Any::from_der(self.parsed.public_key().raw).map_err(|_| BAD_SIGNATURE)?;
        let key = PublicKey::parse(key.data).ok_or(BAD_SIGNATURE)?;
        let is_right = key.has_signed(message, signed.signature(), by_scheme(signed.scheme));
        if is_right { Ok(()) } else { Err(BAD_SIGNATURE) }
    }

    /// The same of TLS 1.3.
    pub(super) fn has_signed_tls13(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let key = SubjectPublicKeyInfoDer::from(self.parsed.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms).map(|_| ())
    }
}
