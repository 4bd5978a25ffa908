//! The server that keys go to, and the links that are kept open for the next keys.
//!
//! A reshard is thousands of MIGRATEs to one destination, so a link that has done its work goes back to the server's
//! [`LinkPool`] and is closed there when it has not been used for ten seconds. Kept links are plain sockets: whichever
//! thread takes one out registers it with its own event loop.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use engine::migration::{Destination, Failure};
use parking_lot::Mutex;
use resp::{Request, Value, encode_request, parse_value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::net::dialer::{DialError, Dialer};
use crate::net::listener::Listeners;
use crate::net::transport::{Socket, Stream};

/// How many links are kept, and how long one that is not used (Redis: `MIGRATE_SOCKET_CACHE_ITEMS`,
/// `MIGRATE_SOCKET_CACHE_TTL`).
const MOST_KEPT: usize = 64;
const KEPT_FOR: Duration = Duration::from_secs(10);

/// The links that wait for the next keys, one a destination, and since when.
#[derive(Debug, Default)]
pub(crate) struct LinkPool(Mutex<BTreeMap<Destination, (Socket, Instant)>>);

impl LinkPool {
    /// Closes the links that have not been used for a while.
    pub(crate) fn sweep(&self, now: Instant) {
        self.0.lock().retain(|_, (_, since)| *since + KEPT_FOR > now);
    }

    /// How many links are kept.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    fn take(&self, destination: &Destination) -> Option<Socket> {
        let (socket, _) = self.0.lock().remove(destination)?;
        // Whatever can be read is its end, or nothing that we asked for.
        socket.is_silent().then_some(socket)
    }

    fn put(&self, destination: &Destination, socket: Socket, now: Instant) {
        let mut kept = self.0.lock();
        if kept.len() < MOST_KEPT {
            kept.insert(destination.clone(), (socket, now));
        }
    }
}

/// A link to the server that the keys go to.
pub(super) struct Target {
    stream: Stream,
    input: Vec<u8>,
    kept: bool,
}

impl Target {
    /// A link that was kept, or a new one.
    pub(super) async fn reach(
        pool: &LinkPool,
        dialer: &Dialer,
        destination: &Destination,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        match pool.take(destination).map(Stream::open) {
            Some(Ok(stream)) => Ok(Self { stream, input: Vec::new(), kept: true }),
            _ => Self::connect(dialer, destination, timeout).await,
        }
    }

    /// Connected, logged in, and in the right database.
    pub(super) async fn connect(
        dialer: &Dialer,
        destination: &Destination,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let address = format!("{}:{}", destination.host, destination.port);
        let stream = dialer.dial(address, timeout).await.map_err(|error| match error {
            DialError::TimedOut => Failure::Connecting,
            // Redis learns of a refusal when it writes, and says so.
            DialError::Refused | DialError::Failed(_) => Failure::Writing,
        })?;
        let mut target = Self { stream, input: Vec::new(), kept: false };
        if !destination.auth.is_empty() {
            let words = std::iter::once(&b"AUTH"[..]).chain(destination.auth.iter().map(Vec::as_slice));
            target.ask(words.collect()).await?;
        }
        if destination.db != 0 {
            target.ask([b"SELECT", destination.db.to_string().as_bytes()].into_iter().collect()).await?;
        }
        Ok(target)
    }

    /// Whether this is the way back to this server: keys that are written there cannot be taken away here.
    pub(super) fn is_at(&self, listeners: &Listeners) -> bool {
        matches!(self.stream.addresses(), Ok(Some((peer, local))) if listeners.are_at(local, peer))
    }

    /// Keeps the link for the next keys. Only for one on which nothing is under way.
    pub(super) fn keep(mut self, pool: &LinkPool, destination: &Destination) {
        if self.input.is_empty()
            && let Ok(socket) = self.stream.detach()
        {
            pool.put(destination, socket, crate::process::time::instant());
        }
    }

    /// Whether others have used this link before.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    async fn ask(&mut self, request: Request) -> Result<(), Failure> {
        let mut wire = Vec::new();
        encode_request(&mut wire, request.args().iter());
        self.write(&wire).await?;
        match self.read().await? {
            Value::Error(text) => Err(Failure::Refused(text)),
            _ => Ok(()),
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(bytes).await.map_err(|_| Failure::Writing)
    }

    pub(super) async fn read(&mut self) -> Result<Value, Failure> {
        loop {
            match parse_value(&self.input) {
                Ok(Some((value, length))) => {
                    self.input.drain(..length);
                    return Ok(value);
                }
                Ok(None) => {}
                Err(_) => return Err(Failure::Reading),
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(read) if read > 0 => {}
                Ok(_) | Err(_) => return Err(Failure::Reading),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_kept_link_is_taken_once_and_not_after_its_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = || {
            let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            ours.set_nonblocking(true).unwrap();
            (Socket::Tcp(ours), listener.accept().unwrap().0)
        };
        let destination = |db| Destination { host: "h".into(), port: "1".into(), db, auth: Vec::new() };
        let (pool, now) = (LinkPool::default(), Instant::ORIGIN);
        let ((first, _theirs), (second, their_second)) = (link(), link());
        pool.put(&destination(0), first, now);
        assert!(pool.take(&destination(1)).is_none(), "another database is another destination");
        let first = pool.take(&destination(0)).expect("it was kept");
        assert!(pool.take(&destination(0)).is_none());
        pool.put(&destination(0), first, now);
        pool.sweep(now + KEPT_FOR / 2);
        assert!(pool.take(&destination(0)).is_some());
        pool.put(&destination(0), second, now);
        drop(their_second);
        let ended = pool.take(&destination(0));
        assert!(ended.is_none(), "the other end closed it");
        let (third, _theirs) = link();
        pool.put(&destination(0), third, now);
        pool.sweep(now + KEPT_FOR);
        assert!(pool.take(&destination(0)).is_none());
    }
}
