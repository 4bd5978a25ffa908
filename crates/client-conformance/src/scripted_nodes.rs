//! Runs the simulated nodes on loopback sockets, with one thread per port and one per connection.
//!
//! The thread of a connection reads requests and wakes up when a blocking command times out. Immediate output is
//! written while the simulation is locked, so that replies and messages keep their order. Delayed output is written by
//! the connection's own thread, which reads no input in the meantime.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use harness::{PortClaim, claim_port};
use resp::{Batch, ParseLimits, Parser};
use socket2::SockRef;

use crate::encryption::TlsFrontend;
use crate::event_log::LogEvent;
use crate::nodes::{Nodes, NodesRecord};
use crate::scenario::{ConnectionHandling, NodeEvent, Scenario};
use crate::simulation::{ClusterSimulation, ConnectionAction, ConnectionId, NodeIndex};

/// Interval at which a port is checked for new connections and for changes of the node's state.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The write timeout for a client that does not read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Size in bytes of the pieces into which a reply is fragmented. A pause follows each piece.
const FRAGMENT_BYTES: usize = 3;
const FRAGMENT_PAUSE: Duration = Duration::from_millis(1);
/// The maximum number of bytes that a client may send without completing a command.
const MAX_COMMAND_BYTES: usize = 16 << 20;

/// The simulated nodes with their sockets. Dropping them closes all ports and connections.
#[derive(Debug)]
pub(crate) struct ScriptedNodes {
    shared: Arc<SharedState>,
    threads: Vec<JoinHandle<()>>,
    _port_claims: Vec<PortClaim>,
}

#[derive(Debug)]
struct SharedState {
    started_at: Instant,
    simulation: Mutex<ClusterSimulation>,
    streams: Mutex<BTreeMap<ConnectionId, Arc<TcpStream>>>,
    encryption: Option<TlsFrontend>,
    is_listening: Vec<AtomicBool>,
    is_stopped: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedNodes {
    /// Opens the ports of a scenario's nodes.
    ///
    /// # Errors
    /// The scenario's nodes are inconsistent, or no port can be opened.
    pub(crate) fn open(scenario: &Scenario) -> Result<Self> {
        let claims: Vec<PortClaim> = scenario.nodes.iter().map(|_| claim_port()).collect();
        let ports: Vec<u16> = claims.iter().map(|claim| claim.port).collect();
        let simulation = ClusterSimulation::new(scenario, &ports)?;
        let encryption = scenario.tls.then(TlsFrontend::new).transpose()?;
        let shared = Arc::new(SharedState {
            started_at: Instant::now(),
            streams: Mutex::default(),
            is_listening: ports.iter().map(|_| AtomicBool::new(false)).collect(),
            simulation: Mutex::new(simulation),
            encryption,
            is_stopped: AtomicBool::new(false),
        });
        let threads = ports.iter().enumerate().map(|(node, port)| {
            let (shared, port) = (Arc::clone(&shared), *port);
            thread::spawn(move || shared.listen(node, port))
        });
        let threads = threads.collect();
        let sockets = Self { shared, threads, _port_claims: claims };
        (0..ports.len()).for_each(|node| sockets.shared.wait_for_port(node));
        Ok(sockets)
    }
}

impl Nodes for ScriptedNodes {
    fn now(&self) -> u64 {
        self.shared.now()
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let simulation = lock(&self.shared.simulation);
        simulation.nodes.iter().map(|node| (node.name.clone(), format!("127.0.0.1:{}", node.port))).collect()
    }

    fn ca_file(&self) -> Option<&Path> {
        self.shared.encryption.as_ref().map(TlsFrontend::ca_file)
    }

    fn log_event(&self, event: LogEvent) {
        let ms = self.now();
        lock(&self.shared.simulation).log_event(ms, event);
    }

    fn apply_event(&self, event: &NodeEvent) {
        let delay = Duration::from_millis(event.after_ms());
        if delay.is_zero() {
            self.shared.apply_event(event);
            return;
        }
        let (shared, event, due) = (Arc::clone(&self.shared), event.clone(), Instant::now() + delay);
        thread::spawn(move || {
            while Instant::now() < due {
                if shared.is_stopped.load(Ordering::Acquire) {
                    return;
                }
                thread::sleep(POLL_INTERVAL);
            }
            shared.apply_event(&event);
        });
    }

    /// The `sharded` argument is ignored, because the simulation knows how each client has subscribed.
    fn publish(&self, channel: &str, data: &str, _sharded: bool) {
        let ms = self.now();
        let mut simulation = lock(&self.shared.simulation);
        for action in simulation.publish(ms, channel, data) {
            self.shared.perform_immediate(action);
        }
    }

    fn take_record(&self) -> NodesRecord {
        let mut simulation = lock(&self.shared.simulation);
        NodesRecord {
            log: std::mem::take(&mut simulation.log),
            executed_commands: std::mem::take(&mut simulation.executed_commands),
            refused_commands: std::mem::take(&mut simulation.refused_commands),
        }
    }
}

impl Drop for ScriptedNodes {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        for stream in lock(&self.shared.streams).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // If the thread panicked, the panic has already been reported.
            let _ = thread.join();
        }
    }
}

impl SharedState {
    fn now(&self) -> u64 {
        self.started_at.elapsed().as_millis() as u64
    }

    fn connection_handling(&self, node: NodeIndex) -> ConnectionHandling {
        lock(&self.simulation).nodes[node].connection_handling
    }

    fn apply_event(self: &Arc<Self>, event: &NodeEvent) {
        if let (NodeEvent::ReplaceCertificate { of, .. }, Some(encryption)) = (event, &self.encryption) {
            encryption.replace_certificate(*of);
        }
        let mut changed = Vec::new();
        {
            let mut simulation = lock(&self.simulation);
            for action in simulation.handle_event(self.now(), event) {
                match action {
                    ConnectionAction::ChangeConnectionHandling(node) => changed.push(node),
                    other => self.perform_on_other_connection(other),
                }
            }
        }
        changed.into_iter().for_each(|node| self.wait_for_port(node));
    }

    /// Waits until the node's port is open or closed, as its state requires.
    fn wait_for_port(&self, node: NodeIndex) {
        loop {
            let wanted = self.connection_handling(node) != ConnectionHandling::Refuse;
            if self.is_listening[node].load(Ordering::Acquire) == wanted
                || self.is_stopped.load(Ordering::Acquire)
            {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Accepts connections for a node while its state allows them.
    fn listen(self: &Arc<Self>, node: NodeIndex, port: u16) {
        let mut listeners = Vec::new();
        while !self.is_stopped.load(Ordering::Acquire) {
            if self.connection_handling(node) == ConnectionHandling::Refuse {
                listeners.clear();
                self.is_listening[node].store(false, Ordering::Release);
                thread::sleep(POLL_INTERVAL);
                continue;
            }
            if listeners.is_empty() {
                listeners = bind_loopback(port);
                self.is_listening[node].store(!listeners.is_empty(), Ordering::Release);
            }
            let came = listeners.iter().find_map(|listener| listener.accept().ok());
            match came {
                Some((stream, _)) => self.accept_connection(node, stream),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn accept_connection(self: &Arc<Self>, node: NodeIndex, stream: TcpStream) {
        let Some(id) = lock(&self.simulation).handle_open(self.now(), node) else {
            // The reset looks to the client as if no process listened on the port.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            return;
        };
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_write_timeout(Some(WRITE_TIMEOUT)));
        if ready.is_err() {
            lock(&self.simulation).handle_close(self.now(), id);
            return;
        }
        let stream = match &self.encryption {
            None => stream,
            Some(encryption) => match encryption.start_forwarding(stream) {
                Ok(stream) => stream,
                Err(_) => {
                    lock(&self.simulation).handle_close(self.now(), id);
                    return;
                }
            },
        };
        let stream = Arc::new(stream);
        lock(&self.streams).insert(id, Arc::clone(&stream));
        // The node may already have closed the connection.
        if !lock(&self.simulation).is_open(id) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let shared = Arc::clone(self);
        thread::spawn(move || {
            shared.serve_connection(id, &stream);
            let _ = stream.shutdown(Shutdown::Both);
            lock(&shared.streams).remove(&id);
            lock(&shared.simulation).handle_close(shared.now(), id);
        });
    }

    /// Executes the commands of a client until the connection ends.
    fn serve_connection(self: &Arc<Self>, id: ConnectionId, stream: &TcpStream) {
        let (mut parser, mut buffer, mut piece) = (Parser::new(), Vec::new(), vec![0; 64 * 1024]);
        let mut reader = stream;
        loop {
            let deadline = lock(&self.simulation).next_deadline(id);
            let wait = deadline.map(|ms| Duration::from_millis(ms.saturating_sub(self.now()).max(1)));
            if stream.set_read_timeout(wait).is_err() {
                return;
            }
            let length = match reader.read(&mut piece) {
                Ok(0) => return,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let mut simulation = lock(&self.simulation);
                    simulation
                        .handle_timeout(self.now(), id)
                        .into_iter()
                        .for_each(|action| self.perform_on_other_connection(action));
                    continue;
                }
                Err(_) => return,
            };
            buffer.extend_from_slice(&piece[..length]);
            let mut batch = Batch::default();
            let parsed = parser.parse(&mut buffer, &mut batch, &ParseLimits::default());
            let commands: Vec<Vec<String>> = (0..batch.len())
                .map(|at| {
                    let args = batch.args(at, &buffer);
                    args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
                })
                .collect();
            buffer.drain(..parsed.consumed_bytes);
            for args in &commands {
                if !self.execute_command(id, stream, args) {
                    return;
                }
            }
            if parsed.error.is_some() || buffer.len() > MAX_COMMAND_BYTES {
                return;
            }
        }
    }

    /// Executes a command and returns whether the connection continues.
    fn execute_command(self: &Arc<Self>, id: ConnectionId, stream: &TcpStream, args: &[String]) -> bool {
        let late = {
            let mut simulation = lock(&self.simulation);
            let actions = simulation.handle_command(self.now(), id, args);
            let (own, others): (Vec<_>, Vec<_>) =
                actions.into_iter().partition(|action| action.connection() == Some(id));
            let late: Vec<ConnectionAction> =
                own.into_iter().filter_map(|action| self.perform_immediate(action)).collect();
            others.into_iter().for_each(|action| self.perform_on_other_connection(action));
            late
        };
        late.into_iter().all(|action| perform_delayed(stream, action))
    }

    /// Performs an action on a connection that may be served by another thread.
    fn perform_on_other_connection(self: &Arc<Self>, action: ConnectionAction) {
        let Some(action) = self.perform_immediate(action) else { return };
        let stream = action.connection().and_then(|id| lock(&self.streams).get(&id).map(Arc::clone));
        let Some(stream) = stream else { return };
        if matches!(action, ConnectionAction::Close(_)) {
            let _ = stream.shutdown(Shutdown::Both);
        } else {
            thread::spawn(move || {
                if !perform_delayed(&stream, action) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            });
        }
    }

    /// Sends output that is due now. An action that takes time is not performed but returned.
    fn perform_immediate(&self, action: ConnectionAction) -> Option<ConnectionAction> {
        let ConnectionAction::Send(id, bytes) = &action else { return Some(action) };
        let stream = lock(&self.streams).get(id).map(Arc::clone);
        if let Some(stream) = stream {
            send(&stream, bytes);
        }
        None
    }
}

/// Performs a delayed action and returns whether the connection continues.
fn perform_delayed(stream: &TcpStream, action: ConnectionAction) -> bool {
    match action {
        ConnectionAction::SendDelayed(_, bytes, ms) => {
            thread::sleep(Duration::from_millis(ms));
            send(stream, &bytes);
        }
        ConnectionAction::SendFragmented(_, bytes) => {
            for piece in bytes.chunks(FRAGMENT_BYTES) {
                send(stream, piece);
                thread::sleep(FRAGMENT_PAUSE);
            }
        }
        ConnectionAction::Close(_) => return false,
        ConnectionAction::Send(..) | ConnectionAction::ChangeConnectionHandling(_) => {}
    }
    true
}

/// Sends bytes. Errors are ignored, because the thread that reads from the client notices when the client is gone.
fn send(mut stream: &TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

/// Listens on IPv4 loopback and, if available, IPv6 loopback, because `localhost` may resolve to
/// either.
fn bind_loopback(port: u16) -> Vec<TcpListener> {
    let hosts: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let listeners = hosts.into_iter().filter_map(|host| TcpListener::bind((host, port)).ok());
    listeners.filter(|listener| listener.set_nonblocking(true).is_ok()).collect()
}
