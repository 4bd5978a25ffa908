//! Outgoing connections: to masters, cluster nodes, servers watched by Sentinel, and MIGRATE targets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use config::{Config, Key, Text, keys};
use rustls::ClientConfig;
use tokio::net::{TcpSocket, TcpStream, ToSocketAddrs, lookup_host};

use super::tls::{Tls, TlsStream};
use super::transport::{SocketOptions, Stream};

/// Opens outgoing connections with the configured source address, socket options and TLS.
#[derive(Debug, Clone)]
pub struct Dialer {
    /// `bind-source-addr`. If this address cannot be bound, connections are made without it, as in Redis.
    source_address: Option<Text>,
    options: SocketOptions,
    /// The TLS configuration; `None` for plain TCP.
    tls: Option<Arc<ClientConfig>>,
}

/// Why a connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host is up, but no process listens on the port.
    #[error("Connection refused")]
    Refused,
    /// The timeout expired.
    #[error("connection attempt timed out")]
    TimedOut,
    /// Any other system or TLS error.
    #[error(transparent)]
    Failed(io::Error),
}

impl DialError {
    /// Returns true for [`DialError::Refused`], which proves that no process listens on the port.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Failed(error),
        }
    }
}

impl Dialer {
    /// Creates a dialer without TLS.
    pub fn new(config: &Config) -> Self {
        Self {
            source_address: config.get(keys::BIND_SOURCE_ADDR),
            options: SocketOptions::new(config),
            tls: None,
        }
    }

    /// Creates a dialer that uses TLS if `tls_parameter` (`tls-replication` or `tls-cluster`) is set.
    pub fn with_link_tls(config: &Config, tls: &Tls, tls_parameter: Key<bool>) -> Self {
        let tls = if config.get(tls_parameter) { tls.client_config() } else { None };
        Self { tls, ..Self::new(config) }
    }

    /// Connects to the first address that accepts, within `timeout` in total.
    ///
    /// # Errors
    /// No address accepts the connection; the error is that of the last address.
    pub async fn dial(
        &self,
        destination: impl ToSocketAddrs,
        timeout: Duration,
    ) -> Result<Stream, DialError> {
        let connected = tokio::time::timeout(timeout, self.connect_and_handshake(destination)).await;
        let stream = connected.map_err(|_| DialError::TimedOut)??;
        // The options only improve latency, so a failure is only logged.
        if let Err(error) = stream.set_options(self.options) {
            tracing::debug!("Cannot set the socket options of an outgoing connection: {error}");
        }
        Ok(stream)
    }

    async fn connect_and_handshake(&self, destination: impl ToSocketAddrs) -> io::Result<Stream> {
        let mut stream = self.connect(destination).await?;
        stream.handshake().await?;
        Ok(stream)
    }

    async fn connect(&self, destination: impl ToSocketAddrs) -> io::Result<Stream> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in lookup_host(destination).await? {
            match self.connect_to_address(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn connect_to_address(&self, address: SocketAddr) -> io::Result<Stream> {
        let new_socket = || if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() };
        if let Some(source) = &self.source_address {
            let (socket, from) = (new_socket()?, source_address(source, address.is_ipv6()).await);
            let bound = from.and_then(|ip| socket.bind(SocketAddr::new(ip, 0)));
            match bound {
                Ok(()) => return self.wrap_stream(socket.connect(address).await?),
                Err(error) => tracing::debug!("Cannot connect to {address} from {source}: {error}"),
            }
        }
        self.wrap_stream(new_socket()?.connect(address).await?)
    }

    fn wrap_stream(&self, stream: TcpStream) -> io::Result<Stream> {
        match &self.tls {
            Some(config) => Ok(Stream::Tls(Box::new(TlsStream::wrap_outgoing(stream, config.clone())?))),
            None => Ok(Stream::Tcp(stream)),
        }
    }
}

/// Resolves the configured source address to an IP address of the requested version.
async fn source_address(host: &str, ipv6: bool) -> io::Result<IpAddr> {
    let mut addresses = lookup_host((host, 0)).await?.map(|address| address.ip());
    addresses.find(|ip| ip.is_ipv6() == ipv6).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    fn dialer_with(name: &str, value: &str) -> Dialer {
        let config = Config::default();
        config.load(name, &[value.to_owned()]).unwrap();
        Dialer::new(&config)
    }

    /// The source address matters where, for instance, a firewall lets only one of a node's addresses through.
    #[tokio::test]
    async fn connections_come_from_the_configured_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (source, seen) in [("127.0.0.3", "127.0.0.3"), ("", "127.0.0.1"), ("192.0.2.1", "127.0.0.1")] {
            let dialer = dialer_with("bind-source-addr", source);
            let stream = dialer.dial(address, TEST_TIMEOUT).await.unwrap();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer.ip().to_string(), seen, "as configured: '{source}'");
            assert_eq!(stream.addresses().unwrap(), Some((address, peer)));
        }
    }

    #[tokio::test]
    async fn refused_connections_are_distinguished_from_timeouts() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let dialer = Dialer::new(&Config::default());
        assert!(dialer.dial(free, TEST_TIMEOUT).await.unwrap_err().is_refused());
        // While the accept queue is full, further connection attempts hang.
        let full = TcpSocket::new_v4().unwrap();
        full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = full.listen(0).unwrap();
        let mut waiting = Vec::new();
        let late = loop {
            match dialer.dial(full.local_addr().unwrap(), Duration::from_millis(200)).await {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "a full queue takes no more");
        };
        assert!(matches!(late, DialError::TimedOut), "{late}");
    }
}
