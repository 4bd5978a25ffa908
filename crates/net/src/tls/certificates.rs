//! Reads certificate and key files, and the certificate details that INFO shows.

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

/// Upper bound in bytes for the size of a certificate or key file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Certificate details shown by INFO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Serial number in hexadecimal.
    pub serial: String,
    /// Expiry as a Unix time in seconds.
    pub expires_at: i64,
}

/// A certificate file named in the configuration, and when it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFile {
    /// The configuration parameter that names the file.
    pub parameter: &'static str,
    /// The file's path as configured.
    pub path: String,
    /// When the file's first certificate expires, as a Unix time in seconds. The error says why the file cannot be
    /// read.
    pub expires_at: Result<i64, String>,
}

/// Lists the certificate files that the configuration names, with their current expiry.
#[must_use]
pub fn certificate_files(config: &Config) -> Vec<CertificateFile> {
    let named = [keys::TLS_CERT_FILE, keys::TLS_CLIENT_CERT_FILE, keys::TLS_CA_CERT_FILE];
    let named = named.into_iter().filter_map(|key| Some((key.name(), config.get(key)?.to_string())));
    let expiry = |path: &str| {
        let info = read_chain(path)?.first().and_then(certificate_info);
        info.map(|info| info.expires_at).ok_or_else(|| format!("'{path}' has no valid certificate"))
    };
    named.map(|(parameter, path)| CertificateFile { parameter, expires_at: expiry(&path), path }).collect()
}

fn read_limited(path: &str) -> Result<Vec<u8>, String> {
    let is_large = std::fs::metadata(path).is_ok_and(|facts| facts.len() > MAX_FILE_BYTES);
    if is_large {
        return Err(format!("'{path}' is too large"));
    }
    std::fs::read(path).map_err(|error| format!("'{path}': {error}"))
}

/// Reads a certificate chain, the leaf certificate first.
pub(super) fn read_chain(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read_limited(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match chain.map_err(|error| format!("'{path}': {error}"))? {
        chain if chain.is_empty() => Err(format!("'{path}' has no certificate")),
        chain => Ok(chain),
    }
}

/// Reads a private key. `password` decrypts an encrypted key.
pub(super) fn read_key(path: &str, password: &str) -> Result<PrivateKeyDer<'static>, String> {
    let pem = read_limited(path)?;
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

/// Reads the CA certificates from a file and from all files of a directory.
pub(super) fn read_ca_certificates(file: &str, folder: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut found = Vec::new();
    if !file.is_empty() {
        found.extend(read_chain(file)?);
    }
    if !folder.is_empty() {
        let entries = std::fs::read_dir(folder).map_err(|error| format!("'{folder}': {error}"))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        // CA directories often contain other files, so unreadable files are skipped.
        let in_file = |path: &Path| read_chain(&path.to_string_lossy()).unwrap_or_default();
        found.extend(paths.iter().filter(|path| path.is_file()).flat_map(|path| in_file(path)));
    }
    Ok(found)
}

/// The supported key types, as listed in error texts.
pub(super) const SUPPORTED_KEY_TYPES: &str =
    "RSA (not RSA-PSS) of 2048 bits and more, ECDSA on P-256 or P-384, and Ed25519";

/// Builds the trust store. CA certificates with unsupported keys are skipped with a warning, since public bundles may
/// contain some. It is an error if no certificate is left.
pub(super) fn build_root_store(
    authorities: &[CertificateDer<'static>],
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<RootCertStore, String> {
    let (usable, unsupported): (Vec<_>, Vec<_>) =
        authorities.iter().partition(|authority| has_supported_key(authority, algorithms));
    if usable.is_empty() && !unsupported.is_empty() {
        return Err(format!(
            "tls-ca-cert-file and tls-ca-cert-dir: no certificate has a supported key; supported key types: {SUPPORTED_KEY_TYPES}"
        ));
    }
    for authority in unsupported {
        tracing::warn!(
            "Ignoring a CA certificate with an unsupported key type: {}; supported key types: {SUPPORTED_KEY_TYPES}",
            common_name(authority).first().map_or("(no common name)", String::as_str)
        );
    }
    let mut roots = RootCertStore::empty();
    for certificate in usable {
        roots.add(certificate.clone()).map_err(|error| format!("a certificate of an authority: {error}"))?;
    }
    Ok(roots)
}

/// Returns whether signatures by this certificate's key can be verified. Returns true for malformed certificates:
/// adding them to the store produces a better error.
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

/// The public key of a certificate of any version, including its algorithm.
pub(super) fn public_key<'c>(certificate: &'c CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'c>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(SubjectPublicKeyInfoDer::from(parsed.subject_pki.raw))
}

/// The first common name of the certificate's subject, if it has one.
pub(super) fn common_name(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let first = parsed.subject().iter_common_name().next();
    first.and_then(|name| name.as_str().ok()).map(str::to_owned).into_iter().collect()
}

/// The URIs among the certificate's subject alternative names, in order.
pub(super) fn subject_uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.into_iter().flat_map(|extension| &extension.value.general_names);
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.filter_map(uri).collect()
}

/// Extracts the details for INFO. `None` if the certificate cannot be parsed.
pub(super) fn certificate_info(certificate: &CertificateDer<'_>) -> Option<CertificateInfo> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let serial = parsed.raw_serial().iter().map(|byte| format!("{byte:02X}")).collect();
    Some(CertificateInfo { serial, expires_at: parsed.validity().not_after.timestamp() })
}
