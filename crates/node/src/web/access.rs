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

use super::{Answer, text};

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denial {
    Password,
    Protected,
    Name,
}

impl Denial {
    pub(super) fn answer(self) -> Answer {
        match self {
            Self::Password => {
                let mut answer = text(StatusCode::UNAUTHORIZED, "The metrics-password is asked for.\n");
                let ask = HeaderValue::from_static("Basic realm=\"redoubt\", charset=\"UTF-8\"");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
                answer
            }
            Self::Protected => text(
                StatusCode::FORBIDDEN,
                "In protected mode, and without a metrics-password, figures are shown on this host alone.\n",
            ),
            Self::Name => {
                text(StatusCode::FORBIDDEN, "Without a metrics-password, ask by address or localhost.\n")
            }
        }
    }
}

/// Checks whether a request with these headers from this peer may read.
///
/// # Errors
/// If access is denied.
pub(super) fn check(values: &Values, peer: Option<IpAddr>, headers: &HeaderMap) -> Result<(), Denial> {
    if let Some(password) = &values[keys::METRICS_PASSWORD] {
        let given = headers.get(header::AUTHORIZATION).and_then(given_password);
        let right = given.is_some_and(|given| are_equal(&given, password.as_bytes()));
        return if right { Ok(()) } else { Err(Denial::Password) };
    }
    let shown = values[keys::METRICS_TLS] && values[keys::TLS_AUTH_CLIENTS] == config::TlsAuthClients::Yes;
    if shown {
        return Ok(());
    }
    match peer.is_none_or(|ip| ip.is_loopback()) {
        true if is_foreign_name(headers) => Err(Denial::Name),
        true => Ok(()),
        false if values[keys::PROTECTED_MODE] => Err(Denial::Protected),
        false => Ok(()),
    }
}

/// Extracts the password from an Authorization header, of either scheme.
fn given_password(value: &HeaderValue) -> Option<Vec<u8>> {
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

/// Compares in constant time.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Returns whether the request was sent to a host name that anyone could have pointed at this node (DNS rebinding).
fn is_foreign_name(headers: &HeaderMap) -> bool {
    headers.get_all(header::HOST).iter().any(|host| !host.to_str().is_ok_and(is_ours))
}

/// Returns whether a host, with or without a port, is an IP address or `localhost`.
fn is_ours(host: &str) -> bool {
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

    const HERE: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    const THERE: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));

    fn outcome(settings: &str, peer: Option<IpAddr>, header: &str) -> Result<(), Denial> {
        let config = Config::default();
        config.load_text(settings, &config::ConfigSource::CommandLine).unwrap();
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header.split_once(": ") {
            let name = header::HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        check(&config.values(), peer, &headers)
    }

    #[test]
    fn password_is_required_from_every_host_and_accepted_in_both_schemes() {
        let settings = "metrics-password secret\nprotected-mode no";
        // "any:secret" and "any:secret2"
        let table = [
            ("", Err(Denial::Password)),
            ("authorization: Basic YW55OnNlY3JldA==", Ok(())),
            ("authorization: basic YW55OnNlY3JldA==", Ok(())),
            ("authorization: Bearer secret", Ok(())),
            ("authorization: Basic YW55OnNlY3JldDI=", Err(Denial::Password)),
            ("authorization: Basic !", Err(Denial::Password)),
            ("authorization: Basic c2VjcmV0", Err(Denial::Password)),
            ("authorization: Digest secret", Err(Denial::Password)),
            ("authorization: secret", Err(Denial::Password)),
        ];
        for (header, expected) in table {
            assert_eq!(outcome(settings, HERE, header), expected, "{header}");
            assert_eq!(outcome(settings, THERE, header), expected, "{header}");
        }
    }

    #[test]
    fn without_one_this_host_reads_and_others_where_protected_mode_is_off() {
        assert_eq!(outcome("", HERE, ""), Ok(()));
        assert_eq!(outcome("", THERE, ""), Err(Denial::Protected));
        assert_eq!(outcome("protected-mode no", THERE, "host: metrics.example:9121"), Ok(()));
        // TLS has already verified a client certificate.
        assert_eq!(outcome("metrics-tls yes", THERE, ""), Ok(()));
        assert_eq!(outcome("metrics-tls yes\ntls-auth-clients no", THERE, ""), Err(Denial::Protected));
        assert_eq!(outcome("metrics-tls yes\ntls-auth-clients optional", THERE, ""), Err(Denial::Protected));
    }

    #[test]
    fn on_this_host_a_name_that_leads_here_is_not_enough() {
        for host in ["localhost", "LOCALHOST:9121", "127.0.0.1:9121", "[::1]:9121", "[::1]", "127.0.0.1"] {
            assert_eq!(outcome("", HERE, &format!("host: {host}")), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:9121", "localhost.evil.example"] {
            assert_eq!(outcome("", HERE, &format!("host: {host}")), Err(Denial::Name), "{host}");
        }
    }
}
