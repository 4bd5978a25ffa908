//! Access control of the HTTP endpoint.
//!
//! With `metrics-password`, requests need that password, as HTTP basic authentication with any user name or as a bearer
//! token. Without one, a client certificate suffices if TLS requires it. Otherwise `protected-mode` only accepts
//! requests from this host, as for clients. A browser on this host may have been sent here by another site under a host
//! name that resolves to this host (DNS rebinding), so the Host header must be an address or `localhost`.

use std::net::IpAddr;

use base64ct::{Base64, Encoding};
use config::{Values, keys};
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};

use super::{HttpResponse, text_response};

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessError {
    WrongPassword,
    ProtectedMode,
    ForeignHostName,
}

impl AccessError {
    pub(super) fn to_response(self) -> HttpResponse {
        match self {
            Self::WrongPassword => {
                let mut answer =
                    text_response(StatusCode::UNAUTHORIZED, "The metrics-password is asked for.\n");
                let ask = HeaderValue::from_static("Basic realm=\"redoubt\", charset=\"UTF-8\"");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
                answer
            }
            Self::ProtectedMode => text_response(
                StatusCode::FORBIDDEN,
                "In protected mode, and without a metrics-password, figures are shown on this host alone.\n",
            ),
            Self::ForeignHostName => text_response(
                StatusCode::FORBIDDEN,
                "Without a metrics-password, ask by address or localhost.\n",
            ),
        }
    }
}

/// Checks whether a request with these headers from this peer may read.
///
/// # Errors
/// If access is denied.
pub(super) fn check_access(
    values: &Values,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Result<(), AccessError> {
    if let Some(password) = &values[keys::METRICS_PASSWORD] {
        let given = headers.get(header::AUTHORIZATION).and_then(parse_password);
        let right = given.is_some_and(|given| are_equal_in_constant_time(&given, password.as_bytes()));
        return if right { Ok(()) } else { Err(AccessError::WrongPassword) };
    }
    let shown = values[keys::METRICS_TLS] && values[keys::TLS_AUTH_CLIENTS] == config::TlsAuthClients::Yes;
    if shown {
        return Ok(());
    }
    match peer.is_none_or(|ip| ip.is_loopback()) {
        true if has_foreign_host_name(headers) => Err(AccessError::ForeignHostName),
        true => Ok(()),
        false if values[keys::PROTECTED_MODE] => Err(AccessError::ProtectedMode),
        false => Ok(()),
    }
}

/// Extracts the password from an Authorization header. Both schemes, Basic and Bearer, are supported.
fn parse_password(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(rest.trim().as_bytes().to_vec()),
        "basic" => {
            let both = Base64::decode_vec(rest.trim()).ok()?;
            let colon = both.iter().position(|byte| *byte == b':')?;
            Some(both[colon + 1..].to_vec())
        }
        _ => None,
    }
}

/// Compares two byte strings in a time that depends only on their lengths, so that the password cannot be guessed byte
/// by byte.
fn are_equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Returns whether the request was sent to a host name that anyone could have pointed at this node (DNS rebinding).
fn has_foreign_host_name(headers: &HeaderMap) -> bool {
    headers.get_all(header::HOST).iter().any(|host| !host.to_str().is_ok_and(is_local_host))
}

/// Returns whether a host, with or without a port, is an IP address or `localhost`.
fn is_local_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use config::Config;

    use super::*;

    const LOCAL_PEER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    const REMOTE_PEER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));

    fn check_request(settings: &str, peer: Option<IpAddr>, header: &str) -> Result<(), AccessError> {
        let config = Config::default();
        config.load_text(settings, &config::ConfigSource::CommandLine).unwrap();
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header.split_once(": ") {
            let name = header::HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        check_access(&config.values(), peer, &headers)
    }

    #[test]
    fn password_is_required_from_every_host_and_accepted_in_both_schemes() {
        let settings = "metrics-password secret\nprotected-mode no";
        // The Basic credentials are "any:secret" and "any:secret2".
        let table = [
            ("", Err(AccessError::WrongPassword)),
            ("authorization: Basic YW55OnNlY3JldA==", Ok(())),
            ("authorization: basic YW55OnNlY3JldA==", Ok(())),
            ("authorization: Bearer secret", Ok(())),
            ("authorization: Basic YW55OnNlY3JldDI=", Err(AccessError::WrongPassword)),
            ("authorization: Basic !", Err(AccessError::WrongPassword)),
            ("authorization: Basic c2VjcmV0", Err(AccessError::WrongPassword)),
            ("authorization: Digest secret", Err(AccessError::WrongPassword)),
            ("authorization: secret", Err(AccessError::WrongPassword)),
        ];
        for (header, expected) in table {
            assert_eq!(check_request(settings, LOCAL_PEER, header), expected, "{header}");
            assert_eq!(check_request(settings, REMOTE_PEER, header), expected, "{header}");
        }
    }

    #[test]
    fn without_password_remote_hosts_need_protected_mode_off() {
        assert_eq!(check_request("", LOCAL_PEER, ""), Ok(()));
        assert_eq!(check_request("", REMOTE_PEER, ""), Err(AccessError::ProtectedMode));
        assert_eq!(check_request("protected-mode no", REMOTE_PEER, "host: metrics.example:9121"), Ok(()));
        // TLS has already verified the client's certificate.
        assert_eq!(check_request("metrics-tls yes", REMOTE_PEER, ""), Ok(()));
        assert_eq!(
            check_request("metrics-tls yes\ntls-auth-clients no", REMOTE_PEER, ""),
            Err(AccessError::ProtectedMode)
        );
        assert_eq!(
            check_request("metrics-tls yes\ntls-auth-clients optional", REMOTE_PEER, ""),
            Err(AccessError::ProtectedMode)
        );
    }

    #[test]
    fn foreign_host_names_are_rejected_on_this_host() {
        for host in ["localhost", "LOCALHOST:9121", "127.0.0.1:9121", "[::1]:9121", "[::1]", "127.0.0.1"] {
            assert_eq!(check_request("", LOCAL_PEER, &format!("host: {host}")), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:9121", "localhost.evil.example"] {
            assert_eq!(
                check_request("", LOCAL_PEER, &format!("host: {host}")),
                Err(AccessError::ForeignHostName),
                "{host}"
            );
        }
    }
}
