//! Server addresses: a single server, a master behind Sentinel, or a cluster.

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::Error;

/// The servers behind an address. The scheme `rediss` instead of `redis` enables TLS.
///
/// ```
/// use redoubt_lock::Server;
///
/// for address in [
///     "redis://127.0.0.1:6379",
///     "redis://user:password@127.0.0.1:6379/2",
///     "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster",
///     "redis+sentinel://user:password@10.0.0.1:26379/mymaster/2",
///     "redis+cluster://user:password@10.0.0.1:7000,10.0.0.2:7000",
///     "rediss://10.0.0.1:6380",
///     "rediss+cluster://10.0.0.1:7000,10.0.0.2:7000",
///     "unix:///run/redoubt.sock",
/// ] {
///     address.parse::<Server>()?;
/// }
/// # Ok::<(), redoubt_lock::Error>(())
/// ```
#[derive(Clone)]
pub enum Server {
    /// One server: `redis://[user:password@]host[:port][/database]`, `unix://path`, or any other form supported by the
    /// `redis` crate.
    Standalone(ConnectionInfo),
    /// A master behind Sentinel: `redis+sentinel://[user:password@]host[:port],.../name[/database]`. User and password
    /// apply to the master.
    Sentinel {
        /// The addresses of sentinels, at least one of which must be reachable.
        sentinels: Vec<ConnectionInfo>,
        /// The master's name in the Sentinel configuration.
        name: String,
        /// Settings for connections to the master. Its address is not used, because the sentinels report the current
        /// one.
        master: ConnectionInfo,
    },
    /// A cluster: `redis+cluster://[user:password@]host[:port],...`. The nodes listed here are used to find the others.
    Cluster(Vec<ConnectionInfo>),
}

/// Omits passwords, so that they do not appear in logs.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |nodes: &[ConnectionInfo]| {
            nodes.iter().map(|node| node.addr().to_string()).collect::<Vec<_>>().join(",")
        };
        match self {
            Self::Standalone(node) => write!(f, "redis://{}", node.addr()),
            Self::Sentinel { sentinels, name, .. } => {
                write!(f, "redis+sentinel://{}/{name}", list(sentinels))
            }
            Self::Cluster(nodes) => write!(f, "redis+cluster://{}", list(nodes)),
        }
    }
}

impl Server {
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

impl FromStr for Server {
    type Err = Error;

    fn from_str(address: &str) -> Result<Self, Error> {
        let wrong = || Error::Address(address.to_owned());
        let one = |text: String| text.into_connection_info().map_err(|_| wrong());
        let (scheme, rest) = address.split_once("://").ok_or_else(wrong)?;
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !kind.is_empty() && !matches!(scheme, "redis" | "rediss") {
            return Err(wrong());
        }
        let (credentials, hosts) = split_credentials(rest);
        match kind {
            "cluster" => {
                let hosts = hosts.trim_end_matches('/');
                Ok(Self::Cluster(parse_hosts(hosts, |host| one(format!("{scheme}://{credentials}{host}")))?))
            }
            "sentinel" => {
                let (hosts, path) = hosts.split_once('/').ok_or_else(wrong)?;
                let (name, database) = path.split_once('/').unwrap_or((path, "0"));
                if name.is_empty() {
                    return Err(wrong());
                }
                let with_port = |host: &str| {
                    let port = if has_port(host) { "" } else { ":26379" };
                    format!("{scheme}://{host}{port}")
                };
                Ok(Self::Sentinel {
                    sentinels: parse_hosts(hosts, |host| one(with_port(host)))?,
                    name: name.to_owned(),
                    master: one(format!("{scheme}://{credentials}localhost/{database}"))?,
                })
            }
            "" => one(address.to_owned()).map(Self::Standalone),
            _ => Err(wrong()),
        }
    }
}

fn has_port(host: &str) -> bool {
    // An IPv6 address is in brackets and itself contains colons.
    host.rsplit(']').next().is_some_and(|end| end.contains(':'))
}

/// Splits an address into the credentials before the `@`, if there are any, and the rest.
fn split_credentials(text: &str) -> (&str, &str) {
    text.rfind('@').map_or(("", text), |at| text.split_at(at + 1))
}

fn parse_hosts<T>(hosts: &str, parse_host: impl Fn(&str) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    hosts.split(',').map(parse_host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debug_text(address: &str) -> String {
        format!("{:?}", address.parse::<Server>().unwrap())
    }

    #[test]
    fn parses_all_formats_and_hides_passwords() {
        assert_eq!(debug_text("redis://u:p@h:1/3"), "redis://h:1");
        assert_eq!(debug_text("redis+cluster://u:p@a:1,b:2"), "redis+cluster://a:1,b:2");
        assert_eq!(debug_text("redis+sentinel://u:p@a,b:2/m/5"), "redis+sentinel://a:26379,b:2/m");
        assert_eq!(debug_text("redis+sentinel://[::1],[::1]:7/m"), "redis+sentinel://::1:26379,::1:7/m");
    }

    #[test]
    fn rediss_enables_tls_for_all_connections() {
        let is_tls = |node: &ConnectionInfo| matches!(node.addr(), redis::ConnectionAddr::TcpTls { .. });
        let Server::Standalone(node) = "rediss://u:p@a:1".parse().unwrap() else { panic!("another kind") };
        assert!(is_tls(&node));
        let Server::Cluster(nodes) = "rediss+cluster://a:1,b:2".parse().unwrap() else {
            panic!("another kind")
        };
        assert!(nodes.iter().all(is_tls));
        let Server::Sentinel { sentinels, master, .. } = "rediss+sentinel://a/m".parse().unwrap() else {
            panic!("another kind")
        };
        assert!(sentinels.iter().chain([&master]).all(is_tls));
    }

    #[test]
    fn credentials_and_database_apply_to_the_master() {
        let Server::Sentinel { sentinels, master, .. } = "redis+sentinel://u:p@a:1/m/5".parse().unwrap()
        else {
            panic!("another kind")
        };
        assert_eq!(master.redis_settings().username(), Some("u"));
        assert_eq!(master.redis_settings().password(), Some("p"));
        assert_eq!(master.redis_settings().db(), 5);
        assert_eq!(sentinels[0].redis_settings().username(), None);
    }

    #[test]
    fn malformed_addresses_are_rejected() {
        for address in
            ["", "http://a", "redis+sentinel://a:1", "redis+sentinel://a:1/", "redis+cluster://", "x"]
        {
            assert!(matches!(address.parse::<Server>(), Err(Error::Address(_))), "{address}");
        }
    }
}
