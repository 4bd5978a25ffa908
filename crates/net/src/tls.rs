//! TLS over TCP, with rustls as the protocol implementation.
//!
//! rustls does no I/O. On every read and write, a [`TlsStream`] feeds it bytes from the socket and sends the bytes it
//! produces. Encrypted bytes that the socket did not accept are sent before anything else, so at most one write is
//! buffered here.
//!
//! | module | purpose |
//! | --- | --- |
//! | `settings` | builds rustls configurations from the `tls-` parameters |
//! | `certificates` | reads certificate and key files |
//! | `ciphers` | maps OpenSSL's protocol and cipher names to rustls |
//! | `verify` | verifies certificate chains, without checking host names |

pub mod certificates;
mod ciphers;
mod directly_signed;
mod settings;
mod verify;

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use std::sync::atomic::{AtomicBool, Ordering};

use config::TlsUserField;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub use settings::{PreviousTls, Tls, TlsPeers};

/// A peer that takes longer than this for the TLS handshake is disconnected.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound in bytes for data that rustls buffers for a slow peer.
const TLS_BUFFER_LIMIT: usize = 64 * 1024;

/// A TLS connection registered with its thread's event loop.
#[derive(Debug)]
pub struct TlsStream {
    pub(crate) tcp: TcpStream,
    /// The lock is never contended, because only the stream's own task takes it.
    session: Mutex<Connection>,
}

/// A TLS connection registered with no event loop.
#[derive(Debug)]
pub struct TlsSocket {
    pub(crate) tcp: std::net::TcpStream,
    session: Connection,
}

/// Adapts a socket for rustls reads. A read that would block registers the task to be woken. tokio treats a short read
/// as the end of the available data, so no second system call follows.
struct PollingReader<'a, 'c>(&'a mut TcpStream, &'a mut Context<'c>);

impl Read for PollingReader<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        match Pin::new(&mut *self.0).poll_read(self.1, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Adapts a socket for rustls writes.
struct NonblockingWriter<'a>(&'a TcpStream);

impl Write for NonblockingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends pending TLS records. Returns whether the socket accepted all of them.
fn flush_tls_records(tcp: &TcpStream, session: &mut Connection) -> io::Result<bool> {
    while session.wants_write() {
        match session.write_tls(&mut NonblockingWriter(tcp)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Reads TLS records from the socket and processes them. Returns `true` at the end of the stream.
fn poll_read_records(
    tcp: &mut TcpStream,
    session: &mut Connection,
    context: &mut Context<'_>,
) -> Poll<io::Result<bool>> {
    match session.read_tls(&mut PollingReader(tcp, context)) {
        Ok(0) => return Poll::Ready(Ok(true)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
        Err(error) => return Poll::Ready(Err(error)),
    }
    session.process_new_packets().map_err(|error| {
        // Send the TLS alert that explains the error to the peer. The connection ends in any case.
        let _ = flush_tls_records(tcp, session);
        io::Error::new(io::ErrorKind::InvalidData, error)
    })?;
    Poll::Ready(Ok(false))
}

impl TlsStream {
    /// Wraps an accepted connection, before the handshake.
    pub(crate) fn wrap_accepted(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let session = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::new(tcp, session.into()))
    }

    /// Wraps an outgoing connection, before the handshake.
    pub(crate) fn wrap_outgoing(tcp: TcpStream, config: Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self::new(tcp, session.into()))
    }

    fn new(tcp: TcpStream, mut session: Connection) -> Self {
        session.set_buffer_limit(Some(TLS_BUFFER_LIMIT));
        Self { tcp, session: Mutex::new(session) }
    }

    pub(crate) fn open(socket: TlsSocket) -> io::Result<Self> {
        let TlsSocket { tcp, session } = socket;
        Ok(Self { tcp: TcpStream::from_std(tcp)?, session: Mutex::new(session) })
    }

    pub(crate) fn detach(self) -> io::Result<TlsSocket> {
        Ok(TlsSocket { tcp: self.tcp.into_std()?, session: self.session.into_inner() })
    }

    /// Completes the handshake, if it is not complete yet.
    pub(crate) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (tcp, session) = (&mut self.tcp, self.session.get_mut());
        loop {
            if !flush_tls_records(tcp, session)? {
                ready!(tcp.poll_write_ready(context))?;
                continue;
            }
            if !session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(poll_read_records(tcp, session, context))? {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (tcp, session) = (&mut self.tcp, self.session.get_mut());
        loop {
            match session.reader().read(buffer.initialize_unfilled()) {
                Ok(len) => {
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed the connection without a close_notify alert. This is treated as a normal end, as RESP
                // needs no truncation check.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
            // A request may still be buffered. It must be sent before waiting for its reply.
            if !flush_tls_records(tcp, session)? && tcp.poll_write_ready(context)?.is_ready() {
                continue;
            }
            if ready!(poll_read_records(tcp, session, context))? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        Poll::Ready(encrypt_and_send(&self.tcp, self.session.get_mut(), bytes))
    }

    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !flush_tls_records(&self.tcp, self.session.get_mut())? {
            ready!(self.tcp.poll_write_ready(context))?;
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.get_mut().send_close_notify();
        ready!(self.poll_flush(context))?;
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    /// Sends a close_notify alert if the socket accepts it at once.
    pub(crate) fn send_close_notify(&mut self) {
        let session = self.session.get_mut();
        session.send_close_notify();
        // An error is ignored here, because the next read reports it.
        let _ = flush_tls_records(&self.tcp, session);
    }

    /// Waits until the socket accepts some of the bytes, and returns how many were sent.
    pub(crate) async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let flushed = flush_tls_records(&self.tcp, &mut self.session.lock())?;
            if flushed {
                return encrypt_and_send(&self.tcp, &mut self.session.lock(), bytes);
            }
            self.tcp.writable().await?;
        }
    }

    /// Writes without waiting and returns how many bytes the socket accepted.
    pub(crate) fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let session = self.session.get_mut();
        if flush_tls_records(&self.tcp, session)? {
            encrypt_and_send(&self.tcp, session, bytes)
        } else {
            Ok(0)
        }
    }

    /// Returns the names in `field` of the peer's certificate. Empty if there is no certificate.
    pub(crate) fn peer_names(&self, field: TlsUserField) -> Vec<String> {
        let names = match field {
            TlsUserField::Off => return Vec::new(),
            TlsUserField::CommonName => certificates::common_name,
            TlsUserField::Uri => certificates::subject_uris,
        };
        let session = self.session.lock();
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        certificate.map(names).unwrap_or_default()
    }
}

/// Makes all TLS writes fail, for DEBUG FORCE-TLS-WRITE-ERROR.
pub static FORCE_WRITE_ERRORS: AtomicBool = AtomicBool::new(false);

/// Encrypts as many bytes as fit into the buffer, and sends what the socket accepts.
fn encrypt_and_send(tcp: &TcpStream, session: &mut Connection, bytes: &[u8]) -> io::Result<usize> {
    if FORCE_WRITE_ERRORS.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let taken = session.writer().write(bytes)?;
    flush_tls_records(tcp, session)?;
    Ok(taken)
}
