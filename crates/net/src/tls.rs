//! TLS over TCP: what is read and written is plain, what the socket carries is not.
//!
//! The protocol is rustls's, which has no sockets of its own. A [`TlsStream`] feeds it the socket's bytes and sends the
//! bytes that it wants sent; both happen wherever the stream is read or written. Encrypted bytes that the socket did
//! not take go first whatever comes next, so at most one write waits in here.
//!
//! | part | what it does |
//! | --- | --- |
//! | `settings` | the `tls-` parameters as rustls takes them; replaced as a whole when they change |
//! | `certificates` | files of certificates and keys, and what is told of them |
//! | `ciphers` | the names that OpenSSL gives protocols and ciphers |
//! | `verify` | a server is who the authority says, by whatever name it was dialled |

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

pub use settings::{Replaced, Side, Tls};

/// A peer that has not agreed on a session by then is given up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that rustls may hold for a peer that reads slowly.
const HELD: usize = 64 * 1024;

/// A connection in its thread's event loop.
#[derive(Debug)]
pub struct TlsStream {
    pub(crate) tcp: TcpStream,
    /// Only this stream's task locks it.
    session: Mutex<Connection>,
}

/// A connection in no event loop.
#[derive(Debug)]
pub struct TlsSocket {
    pub(crate) tcp: std::net::TcpStream,
    session: Connection,
}

/// A socket as rustls reads one. A read that would block wakes the task later; a read that found less than there was
/// room for is known to have found all, so the system is not asked again.
struct Soon<'a, 'c>(&'a mut TcpStream, &'a mut Context<'c>);

impl Read for Soon<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        match Pin::new(&mut *self.0).poll_read(self.1, &mut buffer) {
            Poll::Ready(read) => read.map(|()| buffer.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// A socket as rustls writes one.
struct Now<'a>(&'a TcpStream);

impl Write for Now<'_> {
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

/// Sends what waits to be sent; says whether the socket took all of it.
fn flush(tcp: &TcpStream, session: &mut Connection) -> io::Result<bool> {
    while session.wants_write() {
        match session.write_tls(&mut Now(tcp)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Takes in what the socket has, or will have; says whether it is at its end.
fn poll_take_in(
    tcp: &mut TcpStream,
    session: &mut Connection,
    context: &mut Context<'_>,
) -> Poll<io::Result<bool>> {
    match session.read_tls(&mut Soon(tcp, context)) {
        Ok(0) => return Poll::Ready(Ok(true)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
        Err(error) => return Poll::Ready(Err(error)),
    }
    session.process_new_packets().map_err(|error| {
        // The peer is told why if its socket takes that at once.
        let _ = flush(tcp, session);
        io::Error::new(io::ErrorKind::InvalidData, error)
    })?;
    Poll::Ready(Ok(false))
}

impl TlsStream {
    /// A connection that a peer made. Nothing is agreed on yet.
    pub(crate) fn accepted(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let session = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self::new(tcp, session.into()))
    }

    /// A connection that was made to a peer. Nothing is agreed on yet.
    pub(crate) fn dialled(tcp: TcpStream, config: Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::IpAddress(tcp.peer_addr()?.ip().into());
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self::new(tcp, session.into()))
    }

    fn new(tcp: TcpStream, mut session: Connection) -> Self {
        session.set_buffer_limit(Some(HELD));
        Self { tcp, session: Mutex::new(session) }
    }

    pub(crate) fn open(socket: TlsSocket) -> io::Result<Self> {
        let TlsSocket { tcp, session } = socket;
        Ok(Self { tcp: TcpStream::from_std(tcp)?, session: Mutex::new(session) })
    }

    pub(crate) fn detach(self) -> io::Result<TlsSocket> {
        Ok(TlsSocket { tcp: self.tcp.into_std()?, session: self.session.into_inner() })
    }

    /// Agrees on a session, if that has not happened yet.
    pub(crate) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (tcp, session) = (&mut self.tcp, self.session.get_mut());
        loop {
            if !flush(tcp, session)? {
                ready!(tcp.poll_write_ready(context))?;
                continue;
            }
            if !session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(poll_take_in(tcp, session, context))? {
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
                // A peer that leaves without a word has left.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
            // A reader that waits for the peer's answer makes sure that its own request is sent.
            if !flush(tcp, session)? && tcp.poll_write_ready(context)?.is_ready() {
                continue;
            }
            if ready!(poll_take_in(tcp, session, context))? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        Poll::Ready(encrypt(&self.tcp, self.session.get_mut(), bytes))
    }

    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !flush(&self.tcp, self.session.get_mut())? {
            ready!(self.tcp.poll_write_ready(context))?;
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.get_mut().send_close_notify();
        ready!(self.poll_flush(context))?;
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }

    /// Tells the peer that nothing more comes, if its socket takes that at once.
    pub(crate) fn say_goodbye(&mut self) {
        let session = self.session.get_mut();
        session.send_close_notify();
        // The error shows again at the next read.
        let _ = flush(&self.tcp, session);
    }

    /// Sends what the peer takes, once it takes something.
    pub(crate) async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let flushed = flush(&self.tcp, &mut self.session.lock())?;
            if flushed {
                return encrypt(&self.tcp, &mut self.session.lock(), bytes);
            }
            self.tcp.writable().await?;
        }
    }

    /// Writes what is taken at once: the number of bytes.
    pub(crate) fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let session = self.session.get_mut();
        if flush(&self.tcp, session)? { encrypt(&self.tcp, session, bytes) } else { Ok(0) }
    }

    /// The names that this field of the peer's certificate has, if it showed one.
    pub(crate) fn peer_names(&self, field: TlsUserField) -> Vec<String> {
        let names = match field {
            TlsUserField::Off => return Vec::new(),
            TlsUserField::CommonName => certificates::common_name,
            TlsUserField::Uri => certificates::uris,
        };
        let session = self.session.lock();
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        certificate.map(names).unwrap_or_default()
    }
}

/// DEBUG FORCE-TLS-WRITE-ERROR: nothing can be sent by TLS.
pub static WRITES_FAIL: AtomicBool = AtomicBool::new(false);

/// Encrypts what may wait, and sends what the socket takes of it.
fn encrypt(tcp: &TcpStream, session: &mut Connection, bytes: &[u8]) -> io::Result<usize> {
    if WRITES_FAIL.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let taken = session.writer().write(bytes)?;
    flush(tcp, session)?;
    Ok(taken)
}
