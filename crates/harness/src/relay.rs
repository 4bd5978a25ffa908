//! A network of relays: cuts between servers that need no privileges.
//!
//! Behind a relay a server listens on a port of its own and announces the relay's (`cluster-announce-port` and its
//! kin). It connects to others from a loopback address of its own (`bind-source-addr 127.0.77.N`), so a relay knows
//! which server is calling; a connection from elsewhere is a client's, and is never cut off. A cut holds bytes back and
//! breaks nothing, as a lost network does: when it is healed, they arrive. A relay listens while its server runs, so
//! that a dead server's port refuses connections, here too.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{PortClaim, claim_port};

/// The loopback network in which servers behind relays have their addresses.
const NETWORK: [u8; 3] = [127, 0, 77];
const BUS: u16 = 10_000;
/// Bytes that one read takes.
const PIECE: usize = 16 * 1024;

/// The kind of process behind a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A server, alone or with replicas.
    Server,
    /// A node of a cluster.
    Clustered,
    /// A sentinel.
    Sentinel,
}

/// The links between servers behind relays, each of which can be cut.
#[derive(Debug, Clone, Default)]
pub struct Relays {
    cuts: Arc<Cuts>,
}

#[derive(Debug, Default)]
struct Cuts {
    /// The cut links: pairs of the server that sends and the server that does not get it.
    lost: Mutex<Vec<(usize, usize)>>,
    healed: Condvar,
    /// The links that one server has made to another's port, not to its bus.
    links: Mutex<Vec<(usize, usize, TcpStream)>>,
}

impl Relays {
    /// A network without servers, or the reason why there cannot be one here.
    ///
    /// # Errors
    /// Where a loopback address is not to be had for the asking.
    pub fn make() -> Result<Self, String> {
        let address = address_of(0);
        match TcpListener::bind((address, 0)) {
            Ok(_) => Ok(Self::default()),
            Err(error) => Err(format!("this machine has no loopback address {address}: {error}")),
        }
    }

    /// Parts the network: each group reaches only its own. Servers that are not named stay together.
    pub fn split(&self, groups: &[Vec<usize>], servers: usize) {
        let side = |server: usize| groups.iter().position(|group| group.contains(&server));
        let all = || 0..servers;
        let pairs = all().flat_map(|from| all().map(move |to| (from, to)));
        *self.cuts.locked() = pairs.filter(|(from, to)| side(*from) != side(*to)).collect();
    }

    /// Loses all bytes from `from` to these; bytes from them arrive.
    pub fn lose(&self, from: usize, to: &[usize]) {
        self.cuts.locked().extend(to.iter().map(|to| (from, *to)));
    }

    /// Ends all cuts: every server reaches every other one again.
    pub fn heal(&self) {
        self.cuts.locked().clear();
        self.cuts.healed.notify_all();
    }

    /// Breaks the links that `from` has made to the port of `to`, and says how many there were. Others can be made.
    pub fn break_links(&self, from: usize, to: usize) -> usize {
        let mut links = self.cuts.links.lock().unwrap_or_else(PoisonError::into_inner);
        let broken: Vec<_> =
            links.extract_if(.., |(caller, called, _)| (*caller, *called) == (from, to)).collect();
        let was_up = |link: &(usize, usize, TcpStream)| link.2.shutdown(Shutdown::Both).is_ok();
        broken.iter().filter(|link| was_up(link)).count()
    }

    /// A relay for the server with this number, which does not listen yet.
    pub(crate) fn relay(&self, server: usize) -> Relay {
        Relay { server, cuts: self.cuts.clone(), own: claim_port(), listeners: Vec::new() }
    }
}

impl Cuts {
    fn locked(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until bytes of `from` reach `to`; false if the relay closed meanwhile.
    fn wait(&self, from: usize, to: usize, closed: &AtomicBool) -> bool {
        let mut lost = self.locked();
        while lost.contains(&(from, to)) && !closed.load(Ordering::Relaxed) {
            let waited = self.healed.wait_timeout(lost, Duration::from_millis(100));
            lost = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !closed.load(Ordering::Relaxed)
    }
}

/// Stands in front of one server.
#[derive(Debug)]
pub(crate) struct Relay {
    server: usize,
    cuts: Arc<Cuts>,
    /// Where the server itself listens; the port of its bus is claimed with it.
    own: PortClaim,
    listeners: Vec<Listener>,
}

#[derive(Debug)]
struct Listener {
    port: u16,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Returns the options for the process, if it is known as `port`.
    pub(crate) fn options(&self, port: u16, kind: Kind) -> String {
        let source = address_of(self.server);
        let own = self.own.port;
        let common = format!("--port {own} --bind 127.0.0.1 --bind-source-addr {source}");
        match kind {
            Kind::Server => {
                format!("{common} --replica-announce-ip 127.0.0.1 --replica-announce-port {port}")
            }
            Kind::Clustered => {
                let (bus, own_bus) = (port + BUS, own + BUS);
                format!(
                    "{common} --cluster-port {own_bus} --cluster-announce-ip 127.0.0.1 \
                     --cluster-announce-port {port} --cluster-announce-bus-port {bus} \
                     --replica-announce-port {port}"
                )
            }
            // A sentinel's announced address is in its configuration file.
            Kind::Sentinel => common,
        }
    }

    /// Listens on the port by which the server is known, and on its bus's.
    pub(crate) fn open(&mut self, port: u16) {
        self.close();
        for offset in [0, BUS] {
            let context = Arc::new(Context {
                server: self.server,
                port: self.own.port + offset,
                is_bus: offset == BUS,
                cuts: self.cuts.clone(),
                closed: Arc::default(),
            });
            self.listeners.push(Listener::open(port + offset, context));
        }
    }

    /// Refuses connections from now on, and ends those that stand.
    pub(crate) fn close(&mut self) {
        self.listeners.clear();
    }
}

/// The state that a relay's connections share.
struct Context {
    server: usize,
    port: u16,
    is_bus: bool,
    cuts: Arc<Cuts>,
    closed: Arc<AtomicBool>,
}

impl Listener {
    fn open(port: u16, context: Arc<Context>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port was claimed");
        let closed = context.closed.clone();
        let accepting = move || {
            for caller in listener.incoming().flatten() {
                if context.closed.load(Ordering::Relaxed) {
                    break;
                }
                let context = context.clone();
                thread::spawn(move || context.join(caller));
            }
        };
        Self { port, closed, thread: Some(thread::spawn(accepting)) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Context {
    /// Carries what both sides send until one ends.
    fn join(self: Arc<Self>, caller: TcpStream) {
        let from = caller.peer_addr().ok().and_then(|address| server_at(address.ip()));
        if from.is_some_and(|from| !self.cuts.wait(from, self.server, &self.closed)) {
            return;
        }
        let Ok(called) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        let (Ok(back_from), Ok(back_to)) = (called.try_clone(), caller.try_clone()) else { return };
        if let (false, Some(from), Ok(link)) = (self.is_bus, from, caller.try_clone()) {
            let mut links = self.cuts.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.push((from, self.server, link));
        }
        let other = self.clone();
        let back = thread::spawn(move || other.carry(Some(other.server), from, back_from, back_to));
        self.carry(from, Some(self.server), caller, called);
        let _ = back.join();
    }

    fn carry(&self, from: Option<usize>, to: Option<usize>, mut source: TcpStream, mut target: TcpStream) {
        // A timeout, to notice that the relay closed; idle connections stay.
        let _ = source.set_read_timeout(Some(Duration::from_millis(500)));
        let _ = target.set_nodelay(true);
        let mut piece = vec![0; PIECE];
        while !self.closed.load(Ordering::Relaxed) {
            let count = match source.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if is_pause(&error) => continue,
                Err(_) => break,
            };
            let reaches = match (from, to) {
                (Some(from), Some(to)) => self.cuts.wait(from, to, &self.closed),
                _ => true,
            };
            if !reaches || target.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = target.shutdown(Shutdown::Write);
        if self.closed.load(Ordering::Relaxed) {
            let _ = source.shutdown(Shutdown::Both);
        }
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// From where the server with this number calls.
fn address_of(server: usize) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, u8::try_from(server + 1).expect("fewer than 255 servers"))
}

fn server_at(ip: IpAddr) -> Option<usize> {
    let IpAddr::V4(ip) = ip else { return None };
    let [a, b, c, number] = ip.octets();
    ([a, b, c] == NETWORK).then(|| usize::from(number).checked_sub(1)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets, known by another port.
    #[test]
    fn a_relay_carries_both_ways_and_refuses_once_it_is_closed() {
        let relays = Relays::make().expect("Linux has the whole loopback network");
        let known = claim_port();
        let mut relay = relays.relay(0);
        let server = TcpListener::bind(("127.0.0.1", relay.own.port)).expect("the port was claimed");
        let echo = thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("the relay connects");
            let mut word = [0; 4];
            stream.read_exact(&mut word).expect("the word comes");
            stream.write_all(&word).expect("the relay reads");
        });
        relay.open(known.port);
        let mut client = TcpStream::connect(("127.0.0.1", known.port)).expect("the relay listens");
        client.write_all(b"ping").expect("the relay reads");
        let mut word = [0; 4];
        client.read_exact(&mut word).expect("the word comes back");
        assert_eq!(&word, b"ping");
        echo.join().expect("no panic");
        relay.close();
        assert!(TcpStream::connect(("127.0.0.1", known.port)).is_err());
    }

    #[test]
    fn a_split_loses_what_crosses_it_and_nothing_else() {
        let relays = Relays::make().expect("Linux has the whole loopback network");
        relays.split(&[vec![0]], 3);
        assert_eq!(*relays.cuts.locked(), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        relays.heal();
        relays.lose(2, &[1]);
        assert_eq!(*relays.cuts.locked(), [(2, 1)]);
    }

    #[test]
    fn a_caller_is_known_by_its_address() {
        assert_eq!(server_at(address_of(3).into()), Some(3));
        assert_eq!(server_at(Ipv4Addr::LOCALHOST.into()), None);
    }
}
