//! Byte streams between this process and others, whatever carries them: TCP, TLS over it, or a unix socket.
//!
//! A [`Listener`] accepts them and a [`Dialer`](super::dialer::Dialer) makes them. A [`Stream`] is open in its thread's
//! event loop; a [`Socket`] is the same at rest, on its way to another thread or kept for later. Only this file and the
//! dialer name a family of sockets: a further one is a variant here.

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
use engine::Link;
use slot_routing::Via;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::tls::{Side, Tls, TlsSocket, TlsStream};

/// With no file descriptor left, accepting fails at once again: this long others have to leave.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// How often the system asks a silent peer before it gives it up (Redis: 3).
const KEEPALIVE_PROBES: u32 = 3;

/// A connection in no event loop.
#[derive(Debug)]
pub enum Socket {
    /// TCP, unencrypted.
    Tcp(std::net::TcpStream),
    /// TLS over TCP.
    // Boxed, as below: it is much larger than the others.
    Tls(Box<TlsSocket>),
    /// A unix socket.
    Unix(std::os::unix::net::UnixStream),
}

/// A connection in its thread's event loop.
#[derive(Debug)]
pub enum Stream {
    /// TCP, unencrypted.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream>),
    /// A unix socket.
    Unix(UnixStream),
    /// Its socket has another owner now: a read finds the end, a write finds it broken.
    Detached,
}

/// The socket options of connections; those of unix sockets have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether written bytes are sent at once, however few they are.
    pub nodelay: bool,
    /// After this long in silence the system asks whether the peer is still there; `None`: never.
    pub keepalive: Option<Duration>,
}

impl Options {
    /// Those of clients' connections and of connections to other servers.
    pub fn new(config: &Config) -> Self {
        Self {
            nodelay: true,
            keepalive: Some(config.get(keys::TCP_KEEPALIVE)).filter(|time| !time.is_zero()),
        }
    }
}

impl Socket {
    /// Whether nothing can be read: neither bytes nor the end.
    pub(crate) fn is_silent(&self) -> bool {
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
    /// Takes the socket into the calling thread's event loop.
    ///
    /// # Errors
    /// The event loop takes no more.
    pub fn open(socket: Socket) -> io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(stream) => Self::Tcp(TcpStream::from_std(stream)?),
            Socket::Tls(socket) => Self::Tls(Box::new(TlsStream::open(*socket)?)),
            Socket::Unix(stream) => Self::Unix(UnixStream::from_std(stream)?),
        })
    }

    /// Takes the connection out of the event loop and away from the stream's holder.
    ///
    /// # Errors
    /// As the system says, or it was detached before; nobody has the socket then.
    pub fn detach(&mut self) -> io::Result<Socket> {
        match std::mem::replace(self, Self::Detached) {
            Self::Tcp(stream) => Ok(Socket::Tcp(stream.into_std()?)),
            Self::Tls(stream) => Ok(Socket::Tls(Box::new(stream.detach()?))),
            Self::Unix(stream) => Ok(Socket::Unix(stream.into_std()?)),
            Self::Detached => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sets them, where the socket has any.
    ///
    /// # Errors
    /// As the system says.
    pub fn set_options(&self, options: Options) -> io::Result<()> {
        let stream = match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.tcp,
            Self::Unix(_) | Self::Detached => return Ok(()),
        };
        stream.set_nodelay(options.nodelay)?;
        if let Some(silence) = options.keepalive {
            let keepalive = TcpKeepalive::new()
                .with_time(silence)
                .with_interval((silence / KEEPALIVE_PROBES).max(Duration::from_secs(1)))
                .with_retries(KEEPALIVE_PROBES);
            SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(())
    }

    /// The addresses of its two ends, the peer's first; unix sockets have none.
    ///
    /// # Errors
    /// It is closed already, or detached.
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

    /// Where it comes from and goes to, as CLIENT LIST shows it.
    ///
    /// # Errors
    /// It is closed already, or detached.
    pub fn link(&self) -> io::Result<Link> {
        let descriptor = match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.tcp.as_raw_fd(),
            Self::Unix(stream) => {
                let address = stream.local_addr()?;
                let path = address.as_pathname().map(|path| path.display().to_string()).unwrap_or_default();
                let address = format!("{path}:0");
                let local_address = address.clone();
                let descriptor = stream.as_raw_fd();
                let link = Link { address, local_address, descriptor, ..Link::default() };
                return Ok(Link { unix_socket: true, local: true, ..link });
            }
            Self::Detached => -1,
        };
        let (peer, local) = self.addresses()?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Link {
            address: peer.to_string(),
            local_address: local.to_string(),
            descriptor,
            unix_socket: false,
            via: Via { tls: matches!(self, Self::Tls(_)), ipv6: peer.is_ipv6() },
            local: peer.ip().is_loopback(),
        })
    }

    /// Returns when the peer has closed its end, also if it sent something before. (Of urgent data, which a wait
    /// for [`Interest::PRIORITY`] is about as well, sockets are not asked to tell.)
    pub async fn left(&self) {
        // An error says so too.
        let _ = match self {
            Self::Tcp(stream) => stream.ready(Interest::PRIORITY).await,
            Self::Tls(stream) => stream.tcp.ready(Interest::PRIORITY).await,
            Self::Unix(stream) => stream.ready(Interest::PRIORITY).await,
            Self::Detached => return,
        };
    }

    /// Sends what the peer takes, once it takes something.
    ///
    /// # Errors
    /// It is broken.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.writable().await.and_then(|()| stream.try_write(bytes)),
            Self::Tls(stream) => stream.send(bytes).await,
            Self::Unix(stream) => stream.writable().await.and_then(|()| stream.try_write(bytes)),
            Self::Detached => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Writes what is taken at once: the number of bytes, none if the peer is slow or gone. A peer that is gone
    /// shows again when the rest is written or the stream is read.
    pub fn write_now(&mut self, bytes: &[u8]) -> usize {
        let written = match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Tls(stream) => stream.write_now(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Detached => Ok(0),
        };
        written.unwrap_or(0)
    }

    /// Agrees with the peer on how to speak, where that is to be agreed on.
    ///
    /// # Errors
    /// The peer is gone, or has nothing that is trusted here, or will not speak as is asked.
    pub async fn handshake(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => poll_fn(|context| stream.poll_handshake(context)).await,
            Self::Tcp(_) | Self::Unix(_) | Self::Detached => Ok(()),
        }
    }

    /// The names that this field of the peer's certificate has, if it has shown one.
    pub fn peer_names(&self, field: TlsUserField) -> Vec<String> {
        match self {
            Self::Tls(stream) => stream.peer_names(field),
            Self::Tcp(_) | Self::Unix(_) | Self::Detached => Vec::new(),
        }
    }

    /// Tells the peer that nothing more comes, where that is not told by closing.
    pub fn say_goodbye(&mut self) {
        if let Self::Tls(stream) = self {
            stream.say_goodbye();
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

/// A socket that others connect to, in its thread's event loop.
#[derive(Debug)]
pub enum Listener {
    /// TCP, unencrypted.
    Tcp(TcpListener),
    /// TLS over TCP, for this kind of peers.
    Tls(TcpListener, Arc<Tls>, Side),
    /// A unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Where it listens; an error for a unix socket.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, ..) => listener.local_addr(),
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The same socket for peers that speak TLS.
    pub fn with_tls(self, tls: &Arc<Tls>, side: Side) -> Self {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, ..) => Self::Tls(listener, tls.clone(), side),
            Self::Unix(_) => self,
        }
    }

    /// Returns the next connection, before any TLS handshake, and its peer's address if it has one. `whose` says for
    /// the log what is accepted.
    pub async fn accept(&self, whose: &str) -> (Stream, Option<IpAddr>) {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => listener
                    .accept()
                    .await
                    .map(|(stream, peer)| (Stream::Tcp(stream), Some(peer.ip().to_canonical()))),
                Self::Tls(listener, tls, side) => listener.accept().await.and_then(|(stream, peer)| {
                    let config = tls.receiving(*side).ok_or(io::ErrorKind::Unsupported)?;
                    let stream = Stream::Tls(Box::new(TlsStream::accepted(stream, config)?));
                    Ok((stream, Some(peer.ip().to_canonical())))
                }),
                Self::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), None))
                }
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!("Accepting {whose}: {error}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
