//! Maps OpenSSL's protocol and cipher names, which redis.conf uses, to those of rustls.

use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion};

/// Supported TLS 1.2 ciphers by their OpenSSL names.
const TLS12_CIPHERS: &[(&str, CipherSuite)] = &[
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];
/// Supported TLS 1.3 cipher suites.
const TLS13_SUITES: &[(&str, CipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
];
/// OpenSSL aliases that stand for all supported TLS 1.2 ciphers.
const ALL_ALIASES: &[&str] = &["ALL_ALIASES", "DEFAULT", "HIGH", "ECDHE", "EECDH", "AESGCM"];

/// Parses `tls-protocols`.
///
/// # Errors
/// The list has an unknown name, or no supported protocol.
pub(super) fn parse_protocols(text: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut versions = Vec::new();
    for word in text.split_ascii_whitespace() {
        match word.to_ascii_lowercase().as_str() {
            // Obsolete versions are accepted for compatibility, but rustls does not support them.
            "tlsv1" | "tlsv1.1" => {}
            "tlsv1.2" => versions.push(&TLS12),
            "tlsv1.3" => versions.push(&TLS13),
            _ => {
                return Err(
                    "Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and 'TLSv1.3'".into()
                );
            }
        }
    }
    match (text.trim().is_empty(), versions.is_empty()) {
        (true, _) => Ok(vec![&TLS13, &TLS12]),
        (false, true) => Err(format!("'{text}': only TLS 1.2 and 1.3 are supported")),
        (false, false) => Ok(versions),
    }
}

/// Selects from the supported suites those that `tls-ciphers` and `tls-ciphersuites` name, in order.
///
/// # Errors
/// A cipher name is unknown.
pub(super) fn select_cipher_suites(
    supported: &[SupportedCipherSuite],
    ciphers: &str,
    suites: &str,
) -> Result<Vec<SupportedCipherSuite>, String> {
    let wanted = [
        parse_cipher_suites("tls-ciphersuites", suites, TLS13_SUITES)?,
        parse_cipher_suites("tls-ciphers", ciphers, TLS12_CIPHERS)?,
    ]
    .concat();
    let find = |suite: &CipherSuite| supported.iter().find(|known| known.suite() == *suite).copied();
    Ok(wanted.iter().filter_map(find).collect())
}

fn parse_cipher_suites(
    parameter: &str,
    text: &str,
    known: &[(&str, CipherSuite)],
) -> Result<Vec<CipherSuite>, String> {
    let all = || known.iter().map(|(_, suite)| *suite);
    if text.is_empty() {
        return Ok(all().collect());
    }
    let mut chosen: Vec<CipherSuite> = Vec::new();
    for word in text.split([':', ',', ' ']).filter(|word| !word.is_empty()) {
        let named = known.iter().find(|(name, _)| *name == word.trim_start_matches(['!', '-', '+']));
        match (named, word.as_bytes()[0]) {
            (Some((_, suite)), b'!' | b'-') => chosen.retain(|known| known != suite),
            // Excluding an unknown suite has no effect, and reordering is not supported.
            (None, b'!' | b'-' | b'+' | b'@') | (Some(_), b'+') => {}
            (Some((_, suite)), _) if chosen.contains(suite) => {}
            (Some((_, suite)), _) => chosen.push(*suite),
            (None, _) if ALL_ALIASES.contains(&word) => {
                let more: Vec<_> = all().filter(|suite| !chosen.contains(suite)).collect();
                chosen.extend(more);
            }
            (None, _) => {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                return Err(format!("{parameter}: there is no '{word}'; there are {}", names.join(", ")));
            }
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_are_selected_by_openssl_names() {
        let provider = rustls::crypto::ring::default_provider();
        let names = |ciphers, suites| {
            select_cipher_suites(&provider.cipher_suites, ciphers, suites)
                .map(|chosen| chosen.iter().map(|suite| format!("{:?}", suite.suite())).collect::<Vec<_>>())
        };
        assert_eq!(names("", "").unwrap().len(), 9);
        assert_eq!(names("DEFAULT:!MEDIUM", "TLS_AES_128_GCM_SHA256").unwrap().len(), 7);
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384")
                .unwrap(),
            [
                "TLS13_AES_256_GCM_SHA384",
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
            ]
        );
        assert!(names("HIGH:!ECDHE-RSA-AES128-GCM-SHA256", "").unwrap().len() == 8);
        assert!(names("AES128-SHA", "").unwrap_err().starts_with("tls-ciphers: there is no 'AES128-SHA'"));
        assert!(names("", "AES128").unwrap_err().starts_with("tls-ciphersuites: there is no"));
    }

    #[test]
    fn obsolete_protocols_are_ignored() {
        let count = |text| parse_protocols(text).map(|versions| versions.len());
        assert_eq!(count(""), Ok(2));
        assert_eq!(count("TLSv1.2"), Ok(1));
        assert_eq!(count("TLSv1 TLSv1.1 TLSv1.2 tlsv1.3"), Ok(2));
        assert!(count("TLSv1.1").is_err());
        assert!(count("SSLv3").is_err());
    }
}
