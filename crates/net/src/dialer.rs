//! Connections that this process makes to other servers: to a master, to nodes of the cluster, to what a sentinel
//! watches, to where MIGRATE moves keys.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use config::{Config, Key, Text, keys};
use rustls::ClientConfig;
use tokio::net::{TcpSocket, TcpStream, ToSocketAddrs, lookup_host};

use super::tls::{Tls, TlsStream};
use super::transport::{Options, Stream};

/// Makes connections as the configuration wants them: where from, and with which options.
#[derive(Debug, Clone)]
pub struct Dialer {
    /// The address to come from (`bind-source-addr`). As in Redis, without it where that does not work.
    source: Option<Text>,
    options: Options,
    /// How to speak TLS, if that is to be spoken.
    tls: Option<Arc<ClientConfig>>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host is there and the process is not.
    #[error("Connection refused")]
    Refused,
    /// Nothing came of it within the time that was given.
    #[error("no answer in time")]
    TimedOut,
    /// Anything else that the system or TLS says.
    #[error(transparent)]
    Failed(io::Error),
}

impl DialError {
    /// Whether the host is there and the process is not.
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
    /// One that speaks plainly.
    pub fn new(config: &Config) -> Self {
        Self { source: config.get(keys::BIND_SOURCE_ADDR), options: Options::new(config), tls: None }
    }

    /// One that speaks TLS if this parameter says so (`tls-replication`, `tls-cluster`).
    pub fn for_links(config: &Config, tls: &Tls, switch: Key<bool>) -> Self {
        let tls = if config.get(switch) { tls.dialling() } else { None };
        Self { tls, ..Self::new(config) }
    }

    /// Connects to the first address of `to` that takes the connection, within `timeout` in all.
    ///
    /// # Errors
    /// Why there is no connection to any of the addresses; of several the last one's reason.
    pub async fn dial(&self, to: impl ToSocketAddrs, timeout: Duration) -> Result<Stream, DialError> {
        let connected = tokio::time::timeout(timeout, self.meet(to)).await;
        let stream = connected.map_err(|_| DialError::TimedOut)??;
        // Without its options it is only slower.
        if let Err(error) = stream.set_options(self.options) {
            tracing::debug!("A connection to another server may be slow: {error}");
        }
        Ok(stream)
    }

    /// Connects, and agrees on how to speak.
    async fn meet(&self, to: impl ToSocketAddrs) -> io::Result<Stream> {
        let mut stream = self.connect(to).await?;
        stream.handshake().await?;
        Ok(stream)
    }

    async fn connect(&self, to: impl ToSocketAddrs) -> io::Result<Stream> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in lookup_host(to).await? {
            match self.connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, address: SocketAddr) -> io::Result<Stream> {
        let new_socket = || if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() };
        if let Some(source) = &self.source {
            let (socket, from) = (new_socket()?, source_address(source, address.is_ipv6()).await);
            let bound = from.and_then(|ip| socket.bind(SocketAddr::new(ip, 0)));
            match bound {
                Ok(()) => return self.wrap(socket.connect(address).await?),
                Err(error) => tracing::debug!("Connecting to {address} not from {source}: {error}"),
            }
        }
        self.wrap(new_socket()?.connect(address).await?)
    }

    fn wrap(&self, stream: TcpStream) -> io::Result<Stream> {
        match &self.tls {
            Some(config) => Ok(Stream::Tls(Box::new(TlsStream::dialled(stream, config.clone())?))),
            None => Ok(Stream::Tcp(stream)),
        }
    }
}

/// The address of that family that `source` stands for.
async fn source_address(source: &str, ipv6: bool) -> io::Result<IpAddr> {
    let mut addresses = lookup_host((source, 0)).await?.map(|address| address.ip());
    addresses.find(|ip| ip.is_ipv6() == ipv6).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn configured(name: &str, value: &str) -> Dialer {
        let config = Config::default();
        config.load(name, &[value.to_owned()]).unwrap();
        Dialer::new(&config)
    }

    /// An operator's network lets a node out by one of its addresses only.
    #[tokio::test]
    async fn connections_come_from_the_configured_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (source, seen) in [("127.0.0.3", "127.0.0.3"), ("", "127.0.0.1"), ("192.0.2.1", "127.0.0.1")] {
            let dialer = configured("bind-source-addr", source);
            let stream = dialer.dial(address, TIMEOUT).await.unwrap();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(peer.ip().to_string(), seen, "as configured: '{source}'");
            assert_eq!(stream.addresses().unwrap(), Some((address, peer)));
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_from_other_failures() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let dialer = Dialer::new(&Config::default());
        assert!(dialer.dial(free, TIMEOUT).await.unwrap_err().is_refused());
        // A socket that is never accepted from takes as many connections as wait there, and the next hangs.
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
