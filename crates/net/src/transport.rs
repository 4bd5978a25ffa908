//! Connections over TCP, TLS or unix sockets, behind one type.
//!
//! A [`Listener`] accepts them and a [`Dialer`](super::dialer::Dialer) opens them. A [`Stream`] is registered with its
//! thread's event loop; a [`Socket`] is not, and can move to another thread. Only this module and the dialer know the
//! socket families; a new one is a new variant here.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use config::{Config, TlsUserField, keys};
use engine::ConnectionInfo;
use slot_routing::ClientTransport;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::tls::{Tls, TlsPeers, TlsSocket, TlsStream};

/// Delay before the next accept after an error, for instance when there are no file descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Number of unanswered keepalive probes after which the connection is closed (3, as in Redis).
const MAX_KEEPALIVE_PROBES: u32 = 3;

/// A connection that is registered with no event loop.
#[derive(Debug)]
pub enum Socket {
    /// An unencrypted TCP connection.
    Tcp(std::net::TcpStream),
    /// A TLS connection over TCP.
    // Boxed because it is much larger than the other variants.
    Tls(Box<TlsSocket>),
    /// A connection over a unix socket.
    Unix(std::os::unix::net::UnixStream),
}

/// A connection that is registered with its thread's event loop.
#[derive(Debug)]
pub enum Stream {
    /// An unencrypted TCP connection.
    Tcp(TcpStream),
    /// A TLS connection over TCP.
    Tls(Box<TlsStream>),
    /// A connection over a unix socket.
    Unix(UnixStream),
    /// The socket has been moved out. Reads return the end of the stream, and writes fail with a broken pipe.
    Detached,
}

/// TCP socket options. Unix sockets ignore them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// Disables Nagle's algorithm.
    pub nodelay: bool,
    /// Idle time before the first keepalive probe; `None` disables keepalive.
    pub keepalive: Option<Duration>,
}

impl SocketOptions {
    /// Reads the options for client connections and outgoing connections from the configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            nodelay: true,
            keepalive: Some(config.get(keys::TCP_KEEPALIVE)).filter(|time| !time.is_zero()),
        }
    }
}

impl Socket {
    /// Returns whether the connection is open and has no data to read.
    pub(crate) fn is_idle(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let peeked = match self {
            Self::Tcp(stream) => SockRef::from(stream).peek(&mut byte),
            Self::Tls(stream) => SockRef::from(&stream.tcp).peek(&mut byte),
            Self::Unix(stream) => SockRef::from(stream).peek(&mut byte),
        };
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Stream {
    /// Registers the socket with the calling thread's event loop.
    ///
    /// # Errors
    /// The event loop cannot register the socket.
    pub fn open(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(stream) => Self::Tcp(TcpStream::from_std(stream)?),
            Socket::Tls(socket) => Self::Tls(Box::new(TlsStream::open(*socket)?)),
            Socket::Unix(stream) => Self::Unix(UnixStream::from_std(stream)?),
        })
    }

    /// Deregisters the socket from the event loop and leaves [`Stream::Detached`].
    ///
    /// # Errors
    /// The system call failed, or the stream was detached before. In either case the socket is closed.
    pub fn detach(&mut self) -> io::Result<Socket> {
        match std::mem::replace(self, Self::Detached) {
            Self::Tcp(stream) => Ok(Socket::Tcp(stream.into_std()?)),
            Self::Tls(stream) => Ok(Socket::Tls(Box::new(stream.detach()?))),
            Self::Unix(stream) => Ok(Socket::Unix(stream.into_std()?)),
            Self::Detached => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Applies TCP socket options. Has no effect on unix sockets.
    ///
    /// # Errors
    /// A system call failed.
    pub fn set_options(&self, options: SocketOptions) -> io::Result<()> {
        let stream = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.tcp,
            Self::Unix(_) | Self::Detached => return Ok(()),
        };
        stream.set_nodelay(options.nodelay)?;
        if let Some(silence) = options.keepalive {
            let keepalive = TcpKeepalive::new()
                .with_time(silence)
                .with_interval((silence / MAX_KEEPALIVE_PROBES).max(Duration::from_secs(1)))
                .with_retries(MAX_KEEPALIVE_PROBES);
            SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(())
    }

    /// Returns the peer's and the local address, in this order. `None` for unix sockets.
    ///
    /// # Errors
    /// The stream is closed or detached.
    pub fn addresses(&self) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        match self {
            Self::Tcp(tcp) => Ok(Some((plain(tcp.peer_addr()?), plain(tcp.local_addr()?)))),
            Self::Tls(stream) => {
                let tcp = &stream.tcp;
                Ok(Some((plain(tcp.peer_addr()?), plain(tcp.local_addr()?))))
            }
            Self::Unix(_) => Ok(None),
            Self::Detached => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns the connection's endpoints as CLIENT LIST shows them.
    ///
    /// # Errors
    /// The stream is closed or detached.
    pub fn connection_info(&self) -> io::Result<ConnectionInfo> {
        let descriptor = match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.tcp.as_raw_fd(),
            Self::Unix(stream) => {
                let address = stream.local_addr()?;
                let path = address.as_pathname().map(|path| path.display().to_string()).unwrap_or_default();
                let address = format!("{path}:0");
                let local_address = address.clone();
                let descriptor = stream.as_raw_fd();
                let link = ConnectionInfo { address, local_address, descriptor, ..ConnectionInfo::default() };
                return Ok(ConnectionInfo { unix_socket: true, is_local: true, ..link });
            }
            Self::Detached => -1,
        };
        let (peer, local) = self.addresses()?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(ConnectionInfo {
            address: peer.to_string(),
            local_address: local.to_string(),
            descriptor,
            unix_socket: false,
            transport: ClientTransport { tls: matches!(self, Self::Tls(_)), ipv6: peer.is_ipv6() },
            is_local: peer.ip().is_loopback(),
        })
    }

    /// Waits until the peer closes the connection, even if unread data is buffered. Waiting for [`Interest::PRIORITY`]
    /// reports the hangup without reporting readable data; urgent data is not enabled on these sockets.
    pub async fn wait_until_closed_by_peer(&self) {
        // An error means that the connection is gone, just like a hangup.
        let _ = match self {
            Self::Tcp(stream) => stream.ready(Interest::PRIORITY).await,
            Self::Tls(stream) => stream.tcp.ready(Interest::PRIORITY).await,
            Self::Unix(stream) => stream.ready(Interest::PRIORITY).await,
            Self::Detached => return,
        };
    }

    /// Waits until the socket accepts some of the bytes, and returns how many were sent.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.writable().await.and_then(|()| stream.try_write(bytes)),
            Self::Tls(stream) => stream.send(bytes).await,
            Self::Unix(stream) => stream.writable().await.and_then(|()| stream.try_write(bytes)),
            Self::Detached => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Writes without waiting. Returns how many bytes the socket accepted, which is 0 if the peer is slow or gone. The
    /// next read or write reports a broken connection.
    pub fn write_now(&mut self, bytes: &[u8]) -> usize {
        let written = match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Tls(stream) => stream.write_now(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Detached => Ok(0),
        };
        written.unwrap_or(0)
    }

    /// Completes the TLS handshake. Returns at once for other connections.
    ///
    /// # Errors
    /// The connection broke, the peer's certificate is not trusted, or no common protocol was found.
    pub async fn handshake(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => poll_fn(|context| stream.poll_handshake(context)).await,
            Self::Tcp(_) | Self::Unix(_) | Self::Detached => Ok(()),
        }
    }

    /// Returns the names in `field` of the peer's certificate. Empty without TLS or without a certificate.
    pub fn peer_names(&self, field: TlsUserField) -> Vec<String> {
        match self {
            Self::Tls(stream) => stream.peer_names(field),
            Self::Tcp(_) | Self::Unix(_) | Self::Detached => Vec::new(),
        }
    }

    /// Sends a TLS close_notify alert. Does nothing on other connections, which end when the socket is closed.
    pub fn send_close_notify(&mut self) {
        if let Self::Tls(stream) = self {
            stream.send_close_notify();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => stream.poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Detached => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => stream.poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Detached => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => stream.poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Detached => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => stream.poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Detached => Poll::Ready(Ok(())),
        }
    }
}

/// A listening socket that is registered with its thread's event loop.
#[derive(Debug)]
pub enum Listener {
    /// Accepts unencrypted TCP connections.
    Tcp(TcpListener),
    /// Accepts TLS connections over TCP, with the configuration for the given peers.
    Tls(TcpListener, Arc<Tls>, TlsPeers),
    /// Accepts connections over a unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Returns the local address. Fails for unix sockets.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, ..) => listener.local_addr(),
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Turns a TCP listener into a TLS listener. Unix sockets stay as they are.
    pub fn with_tls(self, tls: &Arc<Tls>, peers: TlsPeers) -> Self {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, ..) => Self::Tls(listener, tls.clone(), peers),
            Self::Unix(_) => self,
        }
    }

    /// Waits for the next connection and returns it, before any TLS handshake, with the peer's IP address. `purpose`
    /// names the connection in the log. The address is `None` for unix sockets.
    pub async fn accept(&self, purpose: &str) -> (Stream, Option<IpAddr>) {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, peer)| (Stream::Tcp(stream), Some(peer.ip().to_canonical()))),
                Self::Tls(listener, tls, peers) => listener.accept().await.and_then(|(stream, peer)| {
                    let config = tls.server_config(*peers).ok_or(io::ErrorKind::Unsupported)?;
                    let stream = Stream::Tls(Box::new(TlsStream::wrap_accepted(stream, config)?));
                    Ok((stream, Some(peer.ip().to_canonical())))
                }),
                Self::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), None))
                }
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!("Accepting {purpose}: {error}");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
