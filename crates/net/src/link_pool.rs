//! A cache of idle MIGRATE connections.
//!
//! A reshard runs thousands of MIGRATE commands against one destination, so connections are reused. A connection is
//! closed when it has been idle for ten seconds. Idle connections are plain sockets: the thread that takes one
//! registers it with its own event loop.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use engine::migration::Destination;
use parking_lot::Mutex;

use crate::transport::Socket;

/// Maximum number of idle links, as in Redis (`MIGRATE_SOCKET_CACHE_ITEMS`).
const MAX_IDLE_LINKS: usize = 64;
/// How long an idle link is kept, as in Redis (`MIGRATE_SOCKET_CACHE_TTL`).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// At most one idle link per destination, with the time of its last use.
#[derive(Debug, Default)]
pub struct LinkPool(Mutex<BTreeMap<Destination, (Socket, Instant)>>);

impl LinkPool {
    /// Closes links that have been idle for longer than ten seconds.
    pub fn close_expired(&self, now: Instant) {
        self.0.lock().retain(|_, (_, since)| *since + IDLE_TIMEOUT > now);
    }

    /// Returns the number of idle links, which INFO shows.
    pub fn idle_count(&self) -> usize {
        self.0.lock().len()
    }

    /// Takes the idle link to this destination, if there is one and it is still open.
    pub fn take_idle(&self, destination: &Destination) -> Option<Socket> {
        let (socket, _) = self.0.lock().remove(destination)?;
        // Readable data means that the peer closed the link, or sent something unexpected.
        socket.is_idle().then_some(socket)
    }

    /// Returns a link to the pool. No request may be pending on it.
    pub fn put_back(&self, destination: &Destination, socket: Socket, now: Instant) {
        let mut links = self.0.lock();
        if links.len() < MAX_IDLE_LINKS {
            links.insert(destination.clone(), (socket, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn idle_link_is_taken_once_and_only_while_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = || {
            let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            ours.set_nonblocking(true).unwrap();
            (Socket::Tcp(ours), listener.accept().unwrap().0)
        };
        let destination = |db| Destination { host: "h".into(), port: "1".into(), db, auth: Vec::new() };
        let (pool, now) = (LinkPool::default(), Instant::ORIGIN);
        let ((first, _theirs), (second, their_second)) = (link(), link());
        pool.put_back(&destination(0), first, now);
        assert!(pool.take_idle(&destination(1)).is_none(), "another database is another destination");
        let first = pool.take_idle(&destination(0)).expect("it was kept");
        assert!(pool.take_idle(&destination(0)).is_none());
        pool.put_back(&destination(0), first, now);
        pool.close_expired(now + IDLE_TIMEOUT / 2);
        assert!(pool.take_idle(&destination(0)).is_some());
        pool.put_back(&destination(0), second, now);
        drop(their_second);
        let ended = pool.take_idle(&destination(0));
        assert!(ended.is_none(), "the other end closed it");
        let (third, _theirs) = link();
        pool.put_back(&destination(0), third, now);
        pool.close_expired(now + IDLE_TIMEOUT);
        assert!(pool.take_idle(&destination(0)).is_none());
    }
}
