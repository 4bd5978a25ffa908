//! Certificates of the first version of X.509, as `openssl x509 -req` makes them without extensions.
//!
//! rustls reads none of them, and OpenSSL, by which Redis and Valkey speak TLS, takes them. Such a certificate says
//! nothing beside names, days and a key, so there is little to ask: one of the trusted authorities has signed it itself,
//! and today is one of its days. No authority stands between, and none that is trusted for some names only will do. The
//! signatures are checked by the algorithms that check all others.

use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::asn1_rs::{Any, BitString};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

const BAD_SIGNATURE: Error = Error::InvalidCertificate(CertificateError::BadSignature);

/// A certificate of the first version.
pub(super) struct FirstVersion<'c> {
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

impl<'c> FirstVersion<'c> {
    /// `None` for a certificate of another version, or if these bytes are none.
    pub(super) fn parse(certificate: &'c CertificateDer<'_>) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
        if !rest.is_empty() || parsed.version() != X509Version::V1 || !parsed.extensions().is_empty() {
            return None;
        }
        let (_, whole) = Any::from_der(certificate).ok()?;
        let (rest, _) = Any::from_der(whole.data).ok()?;
        let (rest, algorithm) = Any::from_der(rest).ok()?;
        BitString::from_der(rest).ok()?;
        Some(Self { parsed, algorithm: algorithm.data })
    }

    /// Whether a trusted authority has signed it and `now` is one of its days.
    pub(super) fn verify(
        &self,
        roots: &RootCertStore,
        now: UnixTime,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> Result<(), Error> {
        let (validity, now) = (self.parsed.validity(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        if now < validity.not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > validity.not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        if self.parsed.tbs_certificate.signature != self.parsed.signature_algorithm {
            return Err(CertificateError::BadEncoding.into());
        }
        let is_signed = roots.roots.iter().any(|root| self.is_signed_by(root, algorithms));
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
