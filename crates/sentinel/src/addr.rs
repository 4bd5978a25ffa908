//! Addresses and identities of instances.

use std::fmt;

use consensus::PeerId;

/// The address of a server or sentinel. The host is an IP address or, if hostnames are enabled, a hostname.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr {
    /// The IP address, or a hostname that is resolved before connecting.
    pub host: String,
    /// The TCP port for clients and other sentinels.
    pub port: u16,
}

impl Addr {
    /// Creates an address without validating the host.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port }
    }

    /// Returns whether the host is an IP address rather than a hostname.
    #[must_use]
    pub fn is_ip(&self) -> bool {
        is_ip(&self.host)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

pub(crate) fn is_ip(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok()
}

/// Whether `text` is a host that can appear in commands, events and configuration lines: printable ASCII without
/// blanks.
pub(crate) fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 255
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte))
}

/// The run id of a sentinel: 40 hexadecimal characters, kept in its configuration file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(String);

impl RunId {
    /// Encodes random bytes as a run id.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Parses a run id. Returns `None` if `text` is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = Self(text.to_ascii_lowercase());
        (text.len() == 40 && hex && id.number().is_some()).then_some(id)
    }

    /// Returns the id as 40 hexadecimal characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn number(&self) -> Option<PeerId> {
        u64::from_str_radix(&self.0[..16], 16).ok().and_then(PeerId::new)
    }

    /// The sentinel's id in its consensus groups: the first 64 bits of the run id. A collision within a group has a
    /// probability of 2^-64.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.number().expect("checked when the id was made")
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_are_forty_hexadecimal_characters() {
        assert_eq!(RunId::parse(&"AB".repeat(20)).unwrap().as_str(), "ab".repeat(20));
        assert_eq!(RunId::parse("ab"), None);
        assert_eq!(RunId::parse(&"xy".repeat(20)), None);
        assert_eq!(RunId::parse(&"0".repeat(40)), None, "its number would be nobody's");
        assert_eq!(RunId::from_random([1; 20]).peer().number(), 0x0101_0101_0101_0101);
    }

    #[test]
    fn hosts_contain_no_blanks_or_control_characters() {
        for (text, good) in [
            ("10.0.0.1", true),
            ("::1", true),
            ("db-1.local", true),
            ("a b", false),
            ("a\nb", false),
            ("", false),
        ] {
            assert_eq!(is_host(text), good, "{text:?}");
        }
    }
}
