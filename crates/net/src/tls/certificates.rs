//! Files of certificates and keys, and what is told of them.

use std::path::Path;

use config::{Config, keys};
use pkcs8::{EncryptedPrivateKeyInfo, SecretDocument};
use rustls::RootCertStore;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SignatureVerificationAlgorithm,
    SubjectPublicKeyInfoDer,
};
use x509_parser::asn1_rs::Any;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A file of keys or certificates is no larger.
const MOST_BYTES: u64 = 16 << 20;

/// The facts of a certificate that INFO shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// In hexadecimal digits.
    pub serial: String,
    /// Seconds of the wall clock.
    pub expires_at: i64,
}

/// A file of certificates that a configuration names, as it is on the disk now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFile {
    /// The parameter that names it.
    pub parameter: &'static str,
    /// Its path.
    pub path: String,
    /// When its first certificate ends, in seconds since 1970, or why it cannot be read.
    pub expires_at: Result<i64, String>,
}

/// The files of certificates that this configuration names.
#[must_use]
pub fn certificate_files(config: &Config) -> Vec<CertificateFile> {
    let named = [keys::TLS_CERT_FILE, keys::TLS_CLIENT_CERT_FILE, keys::TLS_CA_CERT_FILE];
    let named = named.into_iter().filter_map(|key| Some((key.name(), config.get(key)?.to_string())));
    let ends = |path: &str| {
        let facts = chain(path)?.first().and_then(facts);
        facts
            .map(|facts| facts.expires_at)
            .ok_or_else(|| format!("'{path}' has no certificate that can be read"))
    };
    named.map(|(parameter, path)| CertificateFile { parameter, expires_at: ends(&path), path }).collect()
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    let is_large = std::fs::metadata(path).is_ok_and(|facts| facts.len() > MOST_BYTES);
    if is_large {
        return Err(format!("'{path}' is too large"));
    }
    std::fs::read(path).map_err(|error| format!("'{path}': {error}"))
}

/// The certificates of a file, its owner's first.
pub(super) fn chain(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match chain.map_err(|error| format!("'{path}': {error}"))? {
        chain if chain.is_empty() => Err(format!("'{path}' has no certificate")),
        chain => Ok(chain),
    }
}

/// The private key of a file, which may be encrypted with a password.
pub(super) fn key(path: &str, password: &str) -> Result<PrivateKeyDer<'static>, String> {
    let pem = read(path)?;
    let text = String::from_utf8_lossy(&pem);
    if let Some(from) = text.find("-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        let (_, encrypted) =
            SecretDocument::from_pem(&text[from..]).map_err(|error| format!("'{path}': {error}"))?;
        let encrypted = EncryptedPrivateKeyInfo::try_from(encrypted.as_bytes())
            .map_err(|error| format!("'{path}': {error}"))?;
        let plain = encrypted
            .decrypt(password)
            .map_err(|_| format!("'{path}': the password (tls-key-file-pass) is wrong"))?;
        return Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into());
    }
    if text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(format!(
            "'{path}' is encrypted in the traditional PEM format, which is not supported; convert it to PKCS #8: \
             openssl pkcs8 -topk8 -in {path} -out NEW"
        ));
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| format!("'{path}' has no private key: {error}"))
}

/// The authorities of a file, and of all files of a folder.
pub(super) fn authorities(file: &str, folder: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut found = Vec::new();
    if !file.is_empty() {
        found.extend(chain(file)?);
    }
    if !folder.is_empty() {
        let entries = std::fs::read_dir(folder).map_err(|error| format!("'{folder}': {error}"))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        // A folder of authorities has other things, too.
        let in_file = |path: &Path| chain(&path.to_string_lossy()).unwrap_or_default();
        found.extend(paths.iter().filter(|path| path.is_file()).flat_map(|path| in_file(path)));
    }
    Ok(found)
}

/// The keys that certificates may have, for error texts.
pub(super) const SUPPORTED_KEYS: &str =
    "RSA (not RSA-PSS) of 2048 bits and more, ECDSA on P-256 or P-384, and Ed25519";

/// The store of the trusted authorities. Those whose keys are of an unsupported kind are left out with a warning, since
/// a bundle of public authorities may have some; if no other is left, nothing could ever be verified.
pub(super) fn roots(
    authorities: &[CertificateDer<'static>],
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<RootCertStore, String> {
    let (usable, unsupported): (Vec<_>, Vec<_>) =
        authorities.iter().partition(|authority| has_supported_key(authority, algorithms));
    if usable.is_empty() && !unsupported.is_empty() {
        return Err(format!(
            "tls-ca-cert-file and tls-ca-cert-dir: no certificate has a supported key; supported are {SUPPORTED_KEYS}"
        ));
    }
    for authority in unsupported {
        tracing::warn!(
            "A CA certificate is ignored, since its key is of an unsupported kind: {}; supported are {SUPPORTED_KEYS}",
            common_name(authority).first().map_or("(no common name)", String::as_str)
        );
    }
    let mut roots = RootCertStore::empty();
    for certificate in usable {
        roots.add(certificate.clone()).map_err(|error| format!("a certificate of an authority: {error}"))?;
    }
    Ok(roots)
}

/// Whether a signature by the key of this certificate can be verified. A certificate that cannot be parsed counts as
/// supported: adding it to the store names the fault.
fn has_supported_key(certificate: &CertificateDer<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return true };
    let key_algorithm = Any::from_der(parsed.public_key().raw)
        .ok()
        .and_then(|(_, contents)| Any::from_der(contents.data).ok())
        .map(|(_, algorithm)| algorithm.data);
    let is_key_of = |known: &&dyn SignatureVerificationAlgorithm| {
        key_algorithm.is_none_or(|algorithm| known.public_key_alg_id().as_ref() == algorithm)
    };
    algorithms.all.iter().any(is_key_of)
}

/// The public key of a certificate of any version, with its algorithm.
pub(super) fn public_key<'c>(certificate: &'c CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'c>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(SubjectPublicKeyInfoDer::from(parsed.subject_pki.raw))
}

/// The first common name of the subject of a certificate, if it has one.
pub(super) fn common_name(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let first = parsed.subject().iter_common_name().next();
    first.and_then(|name| name.as_str().ok()).map(str::to_owned).into_iter().collect()
}

/// The URIs among the alternative names of a certificate, in their order.
pub(super) fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.into_iter().flat_map(|extension| &extension.value.general_names);
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.filter_map(uri).collect()
}

/// Returns the facts of a certificate for INFO, if it can be parsed.
pub(super) fn facts(certificate: &CertificateDer<'_>) -> Option<Facts> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let serial = parsed.raw_serial().iter().map(|byte| format!("{byte:02X}")).collect();
    Some(Facts { serial, expires_at: parsed.validity().not_after.timestamp() })
}
