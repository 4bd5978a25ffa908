//! Listening sockets, and the decision whether to let a client in.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, anyhow, bail};
use config::{Text, Values, keys};
use engine::{Engine, Gate};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle as EventLoop;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::net::door::Door;
use crate::net::tls::Side;
use crate::net::transport::{Listener, Options, Socket, Stream};

pub(crate) const PROTECTED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no \
password is set for the default user. In this mode connections are only accepted from the loopback \
interface. If you want to connect from external computers to Redis you may adopt one of the following \
solutions: 1) Just disable protected mode sending the command 'CONFIG SET protected-mode no' from the \
loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE Redis \
is not publicly accessible from internet if you do so. Use CONFIG REWRITE to make this change permanent. 2) \
Alternatively you can just disable the protected mode by editing the Redis configuration file, and setting \
the protected mode option to 'no', and then restarting the server. 3) If you started the server manually \
just for testing, restart it with the '--protected-mode no' option. 4) Setup a an authentication password \
for the default user. NOTE: You only need to do one of the above things in order for the server to start \
accepting connections from the outside.\r\n";

/// Opens the TCP sockets that `bind` and `port` ask for, in the calling thread's event loop. An address with a
/// leading `-` may be missing on this machine.
pub(crate) fn bind(addresses: &[Text], port: u16, backlog: i32) -> Result<Vec<Listener>> {
    let listeners = bind_what_is_there(addresses, port, backlog)?;
    if listeners.is_empty() {
        bail!("no address of '{}' can be listened to", addresses.join(" "));
    }
    Ok(listeners)
}

/// The same, though that may be none.
fn bind_what_is_there(addresses: &[Text], port: u16, backlog: i32) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let (address, optional) = match address.strip_prefix('-') {
            Some(address) => (address, true),
            None => (&**address, false),
        };
        match listen(address, port, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if optional => tracing::debug!("Not listening to {address}: {error:#}"),
            Err(error) => bail!("Could not create server TCP listening socket {address}:{port}: {error:#}"),
        }
    }
    Ok(listeners)
}

/// The same at the start of a process, which ends without them; `what` they are for is said in its last words.
pub(crate) fn open(addresses: &[Text], port: u16, backlog: i32, what: &str) -> Result<Vec<Listener>> {
    bind(addresses, port, backlog).map_err(|error| {
        tracing::warn!("Warning: {error:#}");
        anyhow!("Failed listening on port {port} ({what}), aborting.")
    })
}

fn listen(address: &str, port: u16, backlog: i32) -> Result<Listener> {
    let address = match address {
        "*" => SocketAddr::from(([0, 0, 0, 0], port)),
        "::*" => SocketAddr::from(([0u16; 8], port)),
        name => (name, port).to_socket_addrs()?.next().context("the name has no address")?,
    };
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(Listener::Tcp(TcpListener::from_std(socket.into())?))
}

/// Opens the unix socket at `path`, in place of one that is no longer in use.
fn bind_unix(path: &str, mode: Option<u32>) -> Result<Listener> {
    let _ = std::fs::remove_file(path);
    let listener = std::os::unix::net::UnixListener::bind(path)
        .with_context(|| format!("Could not create server unix socket '{path}'"))?;
    listener.set_nonblocking(true)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(Listener::Unix(UnixListener::from_std(listener)?))
}

/// A message to a worker thread.
pub(crate) enum Arrival {
    /// A client that has just connected.
    New(Socket),
    /// A client that another thread has served so far.
    Moved(Box<dyn Traveller>),
    /// No connection: the number of workers has changed.
    News,
}

/// A client on its way from one worker to another.
pub(crate) trait Traveller: Send {
    /// It is there: the calling thread serves it from now on.
    fn arrive(self: Box<Self>);

    /// It is with a background worker from now on.
    fn enter_background(&mut self, stay: Stay);

    /// It is so no more; returns the number of the worker that it came from.
    fn leave_background(&mut self) -> usize;
}

/// A worker thread and the way to hand it connections.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) connections: UnboundedSender<Arrival>,
    pub(crate) thread: std::thread::JoinHandle<()>,
}

/// Starts the worker with this number.
pub(crate) type Spawn = Box<dyn Fn(usize) -> std::io::Result<Handle> + Send + Sync>;

/// The sockets that clients come in by, and what is needed to open others while the server runs.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    home: OnceLock<Home>,
    /// Where TCP clients come in, and the task that accepts them there.
    tcp: Mutex<Vec<(SocketAddr, JoinHandle<()>)>>,
}

/// The control thread's event loop, which accepts, and the workers that connections go to.
#[derive(Debug)]
struct Home {
    runtime: EventLoop,
    /// Locked while something is sent to one, so that nothing comes to one that has seen to its mail for the last time.
    crew: Mutex<Crew>,
    spawn: Spawner,
}

struct Spawner(Spawn);

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spawner")
    }
}

/// The worker that stands by has this number: it has connections only while a script keeps another busy.
pub(crate) const STANDBY: usize = 0;

/// The workers by their numbers, the one that stands by first. Their threads end with the server: of those that are
/// more than `io-threads` says, the last ones are retired, which means that connections leave them and none comes.
#[derive(Debug)]
struct Crew {
    workers: Vec<Hand>,
    /// The background workers.
    background: Vec<Hand>,
    /// How many serve, besides the one that stands by.
    serving: usize,
}

#[derive(Debug)]
struct Hand {
    mail: UnboundedSender<Arrival>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// It serves no connections just now.
    stuck: bool,
    /// Its connections, if it is in the background.
    guests: Arc<()>,
}

/// A connection's stay with a background worker.
#[derive(Debug)]
pub(crate) struct Stay {
    /// The worker to which it goes back.
    home: usize,
    /// Counts it among those of the background worker.
    _guest: Arc<()>,
}

impl Stay {
    /// The worker to which the connection goes back.
    pub(crate) fn home(&self) -> usize {
        self.home
    }
}

impl Hand {
    fn new(handle: Handle) -> Self {
        Self { mail: handle.connections, thread: Some(handle.thread), stuck: false, guests: Arc::default() }
    }
}

impl Crew {
    /// A worker that is not stuck, the one that stands by before others.
    fn free(&self) -> Option<&UnboundedSender<Arrival>> {
        let present = self.workers.get(..=self.serving)?;
        present.iter().find(|hand| !hand.stuck).map(|hand| &hand.mail)
    }

    /// The worker whose turn it is.
    fn next(&self, turn: usize) -> Option<&UnboundedSender<Arrival>> {
        if self.is_any_stuck() {
            return self.free();
        }
        self.workers.get(STANDBY + 1 + turn % self.serving.max(1)).map(|hand| &hand.mail)
    }

    /// The worker with this number, if it serves.
    fn serving(&self, number: usize) -> Option<&UnboundedSender<Arrival>> {
        let hand = self
            .workers
            .get(number)
            .filter(|hand| number != STANDBY && number <= self.serving && !hand.stuck)?;
        Some(&hand.mail)
    }

    /// Hands a connection from the background to the worker that it came from.
    fn take_back(&self, mut client: Box<dyn Traveller>) {
        let home = client.leave_background();
        if let Some(to) = self.serving(home).or_else(|| self.next(home)) {
            // An end that is gone belongs to a server that stops.
            let _ = to.send(Arrival::Moved(client));
        }
    }

    fn is_any_stuck(&self) -> bool {
        self.workers.iter().any(|hand| hand.stuck)
    }
}

impl Listeners {
    /// Says where accepting happens: on the calling event loop. Once. The first worker is the one that stands by; more
    /// are started by `spawn`.
    pub(crate) fn set_workers(&self, workers: Vec<Handle>, background: Vec<Handle>, spawn: Spawn) {
        let serving = workers.len() - 1;
        let [workers, background] =
            [workers, background].map(|handles| handles.into_iter().map(Hand::new).collect());
        let crew = Mutex::new(Crew { workers, background, serving });
        let settled = self.home.set(Home { runtime: EventLoop::current(), crew, spawn: Spawner(spawn) });
        assert!(settled.is_ok(), "a server has one control thread");
    }

    /// Has so many workers serve, and starts those that are missing.
    ///
    /// # Errors
    /// The system gives no more threads; it is as it was then.
    pub(crate) fn set_serving(&self, count: usize) -> std::io::Result<()> {
        let home = self.home();
        let mut crew = home.crew.lock();
        while crew.workers.len() <= count {
            let hand = Hand::new((home.spawn.0)(crew.workers.len())?);
            crew.workers.push(hand);
        }
        crew.serving = count;
        // The retired workers look at once which connections they can let go.
        for hand in &crew.workers {
            let _ = hand.mail.send(Arrival::News);
        }
        Ok(())
    }

    /// Ends the workers, once the server stops.
    pub(crate) fn join_workers(&self) {
        let Some(home) = self.home.get() else { return };
        let mut crew = home.crew.lock();
        let hands = [std::mem::take(&mut crew.workers), std::mem::take(&mut crew.background)];
        drop(crew);
        for hand in hands.into_iter().flatten() {
            drop(hand.mail);
            if hand.thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("a worker thread panicked");
            }
        }
    }

    /// Hands a connection to the worker whose turn it is; says whether it took it.
    pub(crate) fn hand_over(&self, turn: usize, arrival: Arrival) -> bool {
        self.home().crew.lock().next(turn).is_some_and(|to| to.send(arrival).is_ok())
    }

    /// Hands a connection from the background back to the worker that it came from, or to another if that does not
    /// serve.
    pub(crate) fn bring_back(&self, client: Box<dyn Traveller>) {
        self.home().crew.lock().take_back(client);
    }

    /// Hands a connection that came from worker `home` to the background worker that has the fewest.
    pub(crate) fn to_background(&self, mut client: Box<dyn Traveller>, home: usize, engine: &Engine) {
        let crew = self.home().crew.lock();
        // A server that stops has none any more.
        let Some(hand) = crew.background.iter().min_by_key(|hand| Arc::strong_count(&hand.guests)) else {
            return;
        };
        client.enter_background(Stay { home, _guest: hand.guests.clone() });
        if engine.settings.gate().contains(Gate::BUSY) {
            // One that a script keeps may have sent all others away for the last time: they are to be told of it.
            crew.take_back(client);
            return;
        }
        let _ = hand.mail.send(Arrival::Moved(client));
    }

    /// Worker number `number` serves no connection from now on, as a script keeps it. Returns the worker that its
    /// connections can go to, if there is one.
    pub(crate) fn leave(&self, number: usize, engine: &Engine) -> Option<UnboundedSender<Arrival>> {
        let mut crew = self.home.get()?.crew.lock();
        // Before the connections that go elsewhere ask there for what the script holds.
        engine.watch_scripts();
        crew.workers.get_mut(number)?.stuck = true;
        crew.free().cloned()
    }

    /// Says of all commands whether a script is busy, and if none is, that no worker is kept.
    pub(crate) fn watch_scripts(&self, engine: &Engine) {
        let mut crew = self.home.get().map(|home| home.crew.lock());
        if !engine.watch_scripts()
            && let Some(crew) = &mut crew
        {
            crew.workers.iter_mut().for_each(|hand| hand.stuck = false);
        }
    }

    /// Whether a worker is kept busy.
    pub(crate) fn any_stuck(&self) -> bool {
        self.home.get().is_some_and(|home| home.crew.lock().is_any_stuck())
    }

    /// Whether the connections of the worker with this number are to go elsewhere when they can.
    pub(crate) fn is_to_be_left(&self, number: usize) -> bool {
        self.home.get().is_some_and(|home| {
            let crew = home.crew.lock();
            number > crew.serving || number == STANDBY && !crew.is_any_stuck()
        })
    }

    /// Whether the worker with this number is to have no connections for long.
    pub(crate) fn is_spare(&self, number: usize) -> bool {
        number == STANDBY || self.home.get().is_some_and(|home| number > home.crew.lock().serving)
    }

    /// Whether a link from `local` to `peer` leads back here.
    pub(crate) fn are_at(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.tcp.lock().iter().any(|(bound, _)| leads_to(*bound, local, peer))
    }

    /// Whether TCP clients can come in anywhere.
    pub(crate) fn any(&self) -> bool {
        !self.tcp.lock().is_empty()
    }

    /// The control thread's event loop, once it runs.
    pub(crate) fn control(&self) -> Option<EventLoop> {
        self.home.get().map(|home| home.runtime.clone())
    }

    fn home(&self) -> &Home {
        self.home.get().expect("nobody listens before the control thread runs")
    }
}

/// Whether a link from `local` to `peer` comes in at a socket of this host that is bound so. A socket bound to every
/// address is reached at any of this host's, and a link to one of these begins there or on the loopback.
fn leads_to(bound: SocketAddr, local: SocketAddr, peer: SocketAddr) -> bool {
    let (to, from) = (peer.ip().to_canonical(), local.ip().to_canonical());
    let here = if bound.ip().is_unspecified() { to == from || to.is_loopback() } else { to == bound.ip() };
    here && peer.port() == bound.port()
}

/// Where TCP clients come in, 0 where they do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) plain: u16,
    pub(crate) tls: u16,
}

impl Ports {
    pub(crate) fn of(values: &Values) -> Self {
        Self { plain: values[keys::PORT], tls: values[keys::TLS_PORT] }
    }
}

impl Door {
    /// Listens on the addresses and ports of these values, in place of where TCP clients came in so far.
    pub(crate) async fn listen_tcp(self: &Arc<Self>, values: &Values) -> Result<()> {
        let (addresses, ports) = (&values[keys::BIND], Ports::of(values));
        let old = std::mem::take(&mut *self.listeners.tcp.lock());
        for (_, task) in old {
            task.abort();
            // Its socket is closed when it has ended.
            let _ = task.await;
        }
        let backlog = values[keys::TCP_BACKLOG];
        let home = self.listeners.home();
        let _loop = home.runtime.enter();
        let open =
            |port| if port == 0 { Ok(Vec::new()) } else { bind_what_is_there(addresses, port, backlog) };
        let with_tls = |listener: Listener| listener.with_tls(&self.tls, Side::Clients);
        let tls = open(ports.tls)?.into_iter().map(with_tls);
        for listener in open(ports.plain)?.into_iter().chain(tls) {
            let address = listener.address()?;
            let accepting = accept(self.clone(), listener);
            self.listeners.tcp.lock().push((address, home.runtime.spawn(accepting)));
        }
        Ok(())
    }

    /// Listens on the unix socket at `path`.
    pub(crate) fn listen_unix(self: &Arc<Self>, path: &str, mode: Option<u32>) -> Result<()> {
        tokio::spawn(accept(self.clone(), bind_unix(path, mode)?));
        Ok(())
    }

    /// The listeners as lines of INFO.
    pub(crate) fn listener_lines(&self) -> Vec<String> {
        let values = self.config.values();
        let ports = Ports::of(&values);
        let mut lines = Vec::new();
        for (name, port) in [("tcp", ports.plain), ("tls", ports.tls)].iter().filter(|(_, port)| *port != 0) {
            let bind: String = values[keys::BIND].iter().map(|at| format!("bind={at},")).collect();
            lines.push(format!("name={name},{bind}port={port}"));
        }
        if let Some(unix) = &values[keys::UNIXSOCKET] {
            lines.push(format!("name=unix,bind={unix}"));
        }
        lines
    }
}

/// Accepts clients for ever and hands them to the workers in turn.
async fn accept(door: Arc<Door>, listener: Listener) {
    loop {
        let (stream, peer) = listener.accept("client connection").await;
        admit(&door, stream, peer);
    }
}

fn admit(door: &Door, mut stream: Stream, peer: Option<IpAddr>) {
    door.network.connections_received.fetch_add(1, Ordering::Relaxed);
    let connected = door.connected.fetch_add(1, Ordering::Relaxed);
    let limit = door.limits.clients.load(Ordering::Relaxed);
    let outside = peer.is_some_and(|ip| !ip.is_loopback());
    let refusal = if connected >= limit {
        Some("-ERR max number of clients reached\r\n")
    } else if outside
        && door.config.get(keys::PROTECTED_MODE)
        && door.engine.users.read().default_user().has_no_password()
    {
        Some(PROTECTED)
    } else {
        None
    };
    if let Some(text) = refusal {
        door.network.connections_rejected.fetch_add(1, Ordering::Relaxed);
        // The client is told if its socket takes the text at once; no more is waited for, nor is a TLS handshake.
        if !matches!(stream, Stream::Tls(_)) {
            stream.write_now(text.as_bytes());
        }
    } else if let Ok(socket) = prepare(door, stream) {
        let turn = door.network.connections_received.load(Ordering::Relaxed) as usize;
        if door.listeners.hand_over(turn, Arrival::New(socket)) {
            return;
        }
    }
    door.connected.fetch_sub(1, Ordering::Relaxed);
}

fn prepare(door: &Door, mut stream: Stream) -> std::io::Result<Socket> {
    stream.set_options(Options::new(&door.config))?;
    stream.detach()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_socket_of_ones_own_is_known_by_its_ends() {
        let table = [
            ("0.0.0.0:7000", "127.0.0.1:5000", "127.0.0.1:7000", true),
            ("0.0.0.0:7000", "127.0.0.1:5000", "127.0.0.2:7000", true),
            ("0.0.0.0:7000", "10.0.0.1:5000", "10.0.0.1:7000", true),
            ("0.0.0.0:7000", "10.0.0.1:5000", "10.0.0.2:7000", false),
            ("0.0.0.0:7000", "10.0.0.1:5000", "10.0.0.1:7001", false),
            ("127.0.0.1:7000", "127.0.0.1:5000", "127.0.0.1:7000", true),
            ("127.0.0.1:7000", "127.0.0.1:5000", "127.0.0.2:7000", false),
            ("[::]:7000", "[::1]:5000", "[::1]:7000", true),
        ];
        for (bound, local, peer, own) in table {
            let [bound, local, peer] = [bound, local, peer].map(|text| text.parse().unwrap());
            assert_eq!(leads_to(bound, local, peer), own, "{peer} from {local} at {bound}");
        }
    }
}
