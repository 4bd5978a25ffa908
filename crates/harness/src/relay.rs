//! A network of TCP relays that can be partitioned without root privileges.
//!
//! A server behind a relay listens on a private port and announces the relay's port (`cluster-announce-port` and
//! similar options). It connects to other servers from its own loopback address (`bind-source-addr 127.0.77.N`), by
//! which relays identify it. Connections from other addresses are clients and are never blocked. A partition delays
//! bytes without breaking connections, as a network outage does; the bytes arrive when the partition ends. A relay only
//! listens while its server runs, so that the port of a dead server refuses connections.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{PortClaim, claim_port};

/// The first three bytes of the loopback addresses of servers behind relays.
const LOOPBACK_NETWORK: [u8; 3] = [127, 0, 77];
const BUS_PORT_OFFSET: u16 = 10_000;
/// Size of the read buffer in bytes.
const BUFFER_SIZE: usize = 16 * 1024;

/// The kind of process behind a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayedProcess {
    /// A standalone server, possibly with replicas.
    Server,
    /// A cluster node, which also has a bus port.
    ClusterNode,
    /// A sentinel, which has the address to announce in its configuration file.
    Sentinel,
}

/// The links between servers behind relays. Each link can be blocked.
#[derive(Debug, Clone, Default)]
pub struct RelayNetwork {
    blocked_links: Arc<BlockedLinks>,
}

#[derive(Debug, Default)]
struct BlockedLinks {
    /// The blocked links, as pairs of the sending and the receiving server.
    blocked_pairs: Mutex<Vec<(usize, usize)>>,
    all_healed: Condvar,
    /// Connections from one server to the client port of another, excluding bus connections.
    links: Mutex<Vec<(usize, usize, TcpStream)>>,
}

impl RelayNetwork {
    /// Creates an empty network.
    ///
    /// # Errors
    /// Loopback addresses other than 127.0.0.1 are not available.
    pub fn create() -> Result<Self, String> {
        let address = source_address(0);
        match TcpListener::bind((address, 0)) {
            Ok(_) => Ok(Self::default()),
            Err(error) => Err(format!("this machine has no loopback address {address}: {error}")),
        }
    }

    /// Partitions the network into groups of servers. All servers that are in none of `groups` form another group.
    pub fn partition(&self, groups: &[Vec<usize>], server_count: usize) {
        let side = |server: usize| groups.iter().position(|group| group.contains(&server));
        let all = || 0..server_count;
        let pairs = all().flat_map(|from| all().map(move |to| (from, to)));
        *self.blocked_links.lock_blocked_pairs() =
            pairs.filter(|(from, to)| side(*from) != side(*to)).collect();
    }

    /// Delays all bytes from `from` to the servers in `to`. Bytes in the opposite direction still pass.
    pub fn block_bytes(&self, from: usize, to: &[usize]) {
        self.blocked_links.lock_blocked_pairs().extend(to.iter().map(|to| (from, *to)));
    }

    /// Ends all partitions. Delayed bytes arrive.
    pub fn heal_partition(&self) {
        self.blocked_links.lock_blocked_pairs().clear();
        self.blocked_links.all_healed.notify_all();
    }

    /// Breaks the connections of `from` to the client port of `to`, and returns their number. New connections are not
    /// blocked.
    pub fn break_links(&self, from: usize, to: usize) -> usize {
        let mut links = self.blocked_links.links.lock().unwrap_or_else(PoisonError::into_inner);
        let broken: Vec<_> =
            links.extract_if(.., |(caller, called, _)| (*caller, *called) == (from, to)).collect();
        let was_up = |link: &(usize, usize, TcpStream)| link.2.shutdown(Shutdown::Both).is_ok();
        broken.iter().filter(|link| was_up(link)).count()
    }

    /// Creates a relay for server `server`. It does not listen yet.
    pub(crate) fn create_relay(&self, server: usize) -> ServerRelay {
        ServerRelay {
            server,
            blocked_links: self.blocked_links.clone(),
            private_port: claim_port(),
            listeners: Vec::new(),
        }
    }
}

impl BlockedLinks {
    fn lock_blocked_pairs(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.blocked_pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until bytes from `from` to `to` are not blocked. Returns `false` if the relay was closed while waiting.
    fn wait_until_link_is_open(&self, from: usize, to: usize, is_closed: &AtomicBool) -> bool {
        let mut lost = self.lock_blocked_pairs();
        while lost.contains(&(from, to)) && !is_closed.load(Ordering::Relaxed) {
            let waited = self.all_healed.wait_timeout(lost, Duration::from_millis(100));
            lost = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !is_closed.load(Ordering::Relaxed)
    }
}

/// A relay in front of one server.
#[derive(Debug)]
pub(crate) struct ServerRelay {
    server: usize,
    blocked_links: Arc<BlockedLinks>,
    /// The server's private port; its bus port is reserved with it.
    private_port: PortClaim,
    listeners: Vec<RelayListener>,
}

#[derive(Debug)]
struct RelayListener {
    port: u16,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ServerRelay {
    /// Returns the options that make the server announce the relay's port instead of its own.
    pub(crate) fn announce_options(&self, port: u16, kind: RelayedProcess) -> String {
        let source = source_address(self.server);
        let own = self.private_port.port;
        let common = format!("--port {own} --bind 127.0.0.1 --bind-source-addr {source}");
        match kind {
            RelayedProcess::Server => {
                format!("{common} --replica-announce-ip 127.0.0.1 --replica-announce-port {port}")
            }
            RelayedProcess::ClusterNode => {
                let (bus, own_bus) = (port + BUS_PORT_OFFSET, own + BUS_PORT_OFFSET);
                format!(
                    "{common} --cluster-port {own_bus} --cluster-announce-ip 127.0.0.1 \
                     --cluster-announce-port {port} --cluster-announce-bus-port {bus} \
                     --replica-announce-port {port}"
                )
            }
            // A sentinel has the address to announce in its configuration file.
            RelayedProcess::Sentinel => common,
        }
    }

    /// Listens on the announced port and its bus port.
    pub(crate) fn start_listening(&mut self, port: u16) {
        self.stop_listening();
        for offset in [0, BUS_PORT_OFFSET] {
            let context = Arc::new(RelayContext {
                server: self.server,
                port: self.private_port.port + offset,
                is_bus: offset == BUS_PORT_OFFSET,
                blocked_links: self.blocked_links.clone(),
                is_closed: Arc::default(),
            });
            self.listeners.push(RelayListener::open(port + offset, context));
        }
    }

    /// Stops listening and closes all connections.
    pub(crate) fn stop_listening(&mut self) {
        self.listeners.clear();
    }
}

/// State shared by the threads of a relay's connections.
struct RelayContext {
    server: usize,
    port: u16,
    is_bus: bool,
    blocked_links: Arc<BlockedLinks>,
    is_closed: Arc<AtomicBool>,
}

impl RelayListener {
    fn open(port: u16, context: Arc<RelayContext>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port was claimed");
        let closed = context.is_closed.clone();
        let accepting = move || {
            for caller in listener.incoming().flatten() {
                if context.is_closed.load(Ordering::Relaxed) {
                    break;
                }
                let context = context.clone();
                thread::spawn(move || context.forward(caller));
            }
        };
        Self { port, is_closed: closed, thread: Some(thread::spawn(accepting)) }
    }
}

impl Drop for RelayListener {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts connections, so that it notices `closed`.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl RelayContext {
    /// Forwards bytes in both directions until one side closes.
    fn forward(self: Arc<Self>, caller_stream: TcpStream) {
        let from = caller_stream.peer_addr().ok().and_then(|address| server_of_address(address.ip()));
        if from.is_some_and(|from| {
            !self.blocked_links.wait_until_link_is_open(from, self.server, &self.is_closed)
        }) {
            return;
        }
        let Ok(called) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        let (Ok(back_from), Ok(back_to)) = (called.try_clone(), caller_stream.try_clone()) else { return };
        if let (false, Some(from), Ok(link)) = (self.is_bus, from, caller_stream.try_clone()) {
            let mut links = self.blocked_links.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.push((from, self.server, link));
        }
        let other = self.clone();
        let back = thread::spawn(move || other.copy_bytes(Some(other.server), from, back_from, back_to));
        self.copy_bytes(from, Some(self.server), caller_stream, called);
        let _ = back.join();
    }

    fn copy_bytes(
        &self,
        from: Option<usize>,
        to: Option<usize>,
        mut source: TcpStream,
        mut target: TcpStream,
    ) {
        // With the timeout, this thread notices that the relay was closed.
        let _ = source.set_read_timeout(Some(Duration::from_millis(500)));
        let _ = target.set_nodelay(true);
        let mut piece = vec![0; BUFFER_SIZE];
        while !self.is_closed.load(Ordering::Relaxed) {
            let count = match source.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if is_timeout(&error) => continue,
                Err(_) => break,
            };
            let reaches = match (from, to) {
                (Some(from), Some(to)) => {
                    self.blocked_links.wait_until_link_is_open(from, to, &self.is_closed)
                }
                _ => true,
            };
            if !reaches || target.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = target.shutdown(Shutdown::Write);
        if self.is_closed.load(Ordering::Relaxed) {
            let _ = source.shutdown(Shutdown::Both);
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Returns the address from which server `server` connects to other servers.
fn source_address(server: usize) -> Ipv4Addr {
    let [a, b, c] = LOOPBACK_NETWORK;
    Ipv4Addr::new(a, b, c, u8::try_from(server + 1).expect("fewer than 255 servers"))
}

fn server_of_address(ip: IpAddr) -> Option<usize> {
    let IpAddr::V4(ip) = ip else { return None };
    let [a, b, c, number] = ip.octets();
    ([a, b, c] == LOOPBACK_NETWORK).then(|| usize::from(number).checked_sub(1)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server behind the relay is an echo server.
    #[test]
    fn relay_forwards_both_ways_and_refuses_once_closed() {
        let relays = RelayNetwork::create().expect("Linux has the whole loopback network");
        let known = claim_port();
        let mut relay = relays.create_relay(0);
        let server = TcpListener::bind(("127.0.0.1", relay.private_port.port)).expect("the port was claimed");
        let echo = thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("the relay connects");
            let mut word = [0; 4];
            stream.read_exact(&mut word).expect("the word comes");
            stream.write_all(&word).expect("the relay reads");
        });
        relay.start_listening(known.port);
        let mut client = TcpStream::connect(("127.0.0.1", known.port)).expect("the relay listens");
        client.write_all(b"ping").expect("the relay reads");
        let mut word = [0; 4];
        client.read_exact(&mut word).expect("the word comes back");
        assert_eq!(&word, b"ping");
        echo.join().expect("no panic");
        relay.stop_listening();
        assert!(TcpStream::connect(("127.0.0.1", known.port)).is_err());
    }

    #[test]
    fn partition_blocks_only_links_between_groups() {
        let relays = RelayNetwork::create().expect("Linux has the whole loopback network");
        relays.partition(&[vec![0]], 3);
        assert_eq!(*relays.blocked_links.lock_blocked_pairs(), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        relays.heal_partition();
        relays.block_bytes(2, &[1]);
        assert_eq!(*relays.blocked_links.lock_blocked_pairs(), [(2, 1)]);
    }

    #[test]
    fn callers_are_identified_by_address() {
        assert_eq!(server_of_address(source_address(3).into()), Some(3));
        assert_eq!(server_of_address(Ipv4Addr::LOCALHOST.into()), None);
    }
}
