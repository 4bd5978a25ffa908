//! The stage's nodes on loopback: a thread for each node's port and one for each connection.
//!
//! A connection's thread reads. It wakes for what comes, and when its client has waited long enough (BLPOP).
//! Bytes that are due at once are sent under the stage's lock, so that replies and messages leave in the order in which
//! the stage made them. Delayed bytes are sent by the connection's own thread, and input on it waits meanwhile.

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
use resp::{Batch, Limits, Parser};
use socket2::SockRef;

use crate::encryption::Encryption;
use crate::log::Happened;
use crate::nodes::{Nodes, Seen};
use crate::scenario::{Event, NetState, Scenario};
use crate::stage::{Action, ConnectionId, NodeIndex, Stage};

/// Between two looks for a connection, or for a change of state.
const LOOK: Duration = Duration::from_millis(2);
/// A client that does not read is not waited for longer.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);
/// The pieces of a torn reply, and the pauses between.
const PIECE: usize = 3;
const PIECE_PAUSE: Duration = Duration::from_millis(1);
/// The most bytes that a client may send without an end of a command.
const LONGEST_COMMAND: usize = 16 << 20;

/// The stage with its sockets. Dropping it closes all.
#[derive(Debug)]
pub(crate) struct Sockets {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    _claims: Vec<PortClaim>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    stage: Mutex<Stage>,
    streams: Mutex<BTreeMap<ConnectionId, Arc<TcpStream>>>,
    encryption: Option<Encryption>,
    /// Which nodes listen.
    listening: Vec<AtomicBool>,
    over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sockets {
    /// Opens the ports of a scenario's nodes. `prepare` sees the ports before anything else does.
    ///
    /// # Errors
    /// If the nodes do not fit together.
    pub(crate) fn open(scenario: &Scenario) -> Result<Self> {
        let claims: Vec<PortClaim> = scenario.nodes.iter().map(|_| claim_port()).collect();
        let ports: Vec<u16> = claims.iter().map(|claim| claim.port).collect();
        let stage = Stage::new(scenario, &ports)?;
        let encryption = scenario.tls.then(Encryption::new).transpose()?;
        let shared = Arc::new(Shared {
            began: Instant::now(),
            streams: Mutex::default(),
            listening: ports.iter().map(|_| AtomicBool::new(false)).collect(),
            stage: Mutex::new(stage),
            encryption,
            over: AtomicBool::new(false),
        });
        let threads = ports.iter().enumerate().map(|(node, port)| {
            let (shared, port) = (Arc::clone(&shared), *port);
            thread::spawn(move || shared.listen(node, port))
        });
        let threads = threads.collect();
        let sockets = Self { shared, threads, _claims: claims };
        (0..ports.len()).for_each(|node| sockets.shared.wait_for_port(node));
        Ok(sockets)
    }
}

impl Nodes for Sockets {
    fn now(&self) -> u64 {
        self.shared.now()
    }

    fn addresses(&self) -> BTreeMap<String, String> {
        let stage = lock(&self.shared.stage);
        stage.nodes.iter().map(|node| (node.name.clone(), format!("127.0.0.1:{}", node.port))).collect()
    }

    fn authority(&self) -> Option<&Path> {
        self.shared.encryption.as_ref().map(Encryption::authority)
    }

    fn note(&self, what: Happened) {
        let ms = self.now();
        lock(&self.shared.stage).note(ms, what);
    }

    fn event(&self, event: &Event) {
        let delay = Duration::from_millis(event.after_ms());
        if delay.is_zero() {
            self.shared.event(event);
            return;
        }
        let (shared, event, due) = (Arc::clone(&self.shared), event.clone(), Instant::now() + delay);
        thread::spawn(move || {
            while Instant::now() < due {
                if shared.over.load(Ordering::Acquire) {
                    return;
                }
                thread::sleep(LOOK);
            }
            shared.event(&event);
        });
    }

    /// The stage knows which of its clients have subscribed, and by which command.
    fn publish(&self, channel: &str, data: &str, _sharded: bool) {
        let ms = self.now();
        let mut stage = lock(&self.shared.stage);
        for action in stage.publish(ms, channel, data) {
            self.shared.at_once(action);
        }
    }

    fn seen(&self) -> Seen {
        let mut stage = lock(&self.shared.stage);
        Seen {
            log: std::mem::take(&mut stage.log),
            executed: std::mem::take(&mut stage.executed),
            refused: std::mem::take(&mut stage.refused),
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        for stream in lock(&self.shared.streams).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn state(&self, node: NodeIndex) -> NetState {
        lock(&self.stage).nodes[node].state
    }

    fn event(self: &Arc<Self>, event: &Event) {
        if let (Event::Certificate { of, .. }, Some(encryption)) = (event, &self.encryption) {
            encryption.replace(*of);
        }
        let mut changed = Vec::new();
        {
            let mut stage = lock(&self.stage);
            for action in stage.handle_event(self.now(), event) {
                match action {
                    Action::Net(node) => changed.push(node),
                    other => self.for_another(other),
                }
            }
        }
        changed.into_iter().for_each(|node| self.wait_for_port(node));
    }

    /// Waits until the port is open or closed as the node's state wants it.
    fn wait_for_port(&self, node: NodeIndex) {
        loop {
            let wanted = self.state(node) != NetState::Refuses;
            if self.listening[node].load(Ordering::Acquire) == wanted || self.over.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Takes connections for a node as its state is.
    fn listen(self: &Arc<Self>, node: NodeIndex, port: u16) {
        let mut listeners = Vec::new();
        while !self.over.load(Ordering::Acquire) {
            if self.state(node) == NetState::Refuses {
                listeners.clear();
                self.listening[node].store(false, Ordering::Release);
                thread::sleep(LOOK);
                continue;
            }
            if listeners.is_empty() {
                listeners = listeners_on(port);
                self.listening[node].store(!listeners.is_empty(), Ordering::Release);
            }
            let came = listeners.iter().find_map(|listener| listener.accept().ok());
            match came {
                Some((stream, _)) => self.take(node, stream),
                None => thread::sleep(LOOK),
            }
        }
    }

    fn take(self: &Arc<Self>, node: NodeIndex, stream: TcpStream) {
        let Some(id) = lock(&self.stage).handle_open(self.now(), node) else {
            // A reset, as a system without the process would send.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            return;
        };
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_write_timeout(Some(WRITE_PATIENCE)));
        if ready.is_err() {
            lock(&self.stage).handle_close(self.now(), id);
            return;
        }
        let stream = match &self.encryption {
            None => stream,
            Some(encryption) => match encryption.decrypted(stream) {
                Ok(stream) => stream,
                Err(_) => {
                    lock(&self.stage).handle_close(self.now(), id);
                    return;
                }
            },
        };
        let stream = Arc::new(stream);
        lock(&self.streams).insert(id, Arc::clone(&stream));
        // The node may have ended it while it came.
        if !lock(&self.stage).is_open(id) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let shared = Arc::clone(self);
        thread::spawn(move || {
            shared.serve(id, &stream);
            let _ = stream.shutdown(Shutdown::Both);
            lock(&shared.streams).remove(&id);
            lock(&shared.stage).handle_close(shared.now(), id);
        });
    }

    /// Reads commands until the connection ends.
    fn serve(self: &Arc<Self>, id: ConnectionId, stream: &TcpStream) {
        let (mut parser, mut buffer, mut piece) = (Parser::new(), Vec::new(), vec![0; 64 * 1024]);
        let mut reader = stream;
        loop {
            let deadline = lock(&self.stage).next_deadline(id);
            let wait = deadline.map(|ms| Duration::from_millis(ms.saturating_sub(self.now()).max(1)));
            if stream.set_read_timeout(wait).is_err() {
                return;
            }
            let length = match reader.read(&mut piece) {
                Ok(0) => return,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let mut stage = lock(&self.stage);
                    stage.handle_time(self.now(), id).into_iter().for_each(|action| self.for_another(action));
                    continue;
                }
                Err(_) => return,
            };
            buffer.extend_from_slice(&piece[..length]);
            let mut batch = Batch::default();
            let parsed = parser.parse(&mut buffer, &mut batch, &Limits::default());
            let commands: Vec<Vec<String>> = (0..batch.len())
                .map(|at| {
                    let args = batch.args(at, &buffer);
                    args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
                })
                .collect();
            buffer.drain(..parsed.consumed);
            for args in &commands {
                if !self.command(id, stream, args) {
                    return;
                }
            }
            if parsed.error.is_some() || buffer.len() > LONGEST_COMMAND {
                return;
            }
        }
    }

    /// Carries out a command; whether the connection goes on.
    fn command(self: &Arc<Self>, id: ConnectionId, stream: &TcpStream, args: &[String]) -> bool {
        let late = {
            let mut stage = lock(&self.stage);
            let actions = stage.handle_command(self.now(), id, args);
            let (own, others): (Vec<_>, Vec<_>) =
                actions.into_iter().partition(|action| action.connection() == Some(id));
            let late: Vec<Action> = own.into_iter().filter_map(|action| self.at_once(action)).collect();
            others.into_iter().for_each(|action| self.for_another(action));
            late
        };
        late.into_iter().all(|action| take_time(stream, action))
    }

    /// Carries out an action on a connection whose thread is not this one.
    fn for_another(self: &Arc<Self>, action: Action) {
        let Some(action) = self.at_once(action) else { return };
        let stream = action.connection().and_then(|id| lock(&self.streams).get(&id).map(Arc::clone));
        let Some(stream) = stream else { return };
        if matches!(action, Action::Close(_)) {
            let _ = stream.shutdown(Shutdown::Both);
        } else {
            thread::spawn(move || {
                if !take_time(&stream, action) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            });
        }
    }

    /// Sends the bytes that are due now; returns the actions that take time.
    fn at_once(&self, action: Action) -> Option<Action> {
        let Action::Send(id, bytes) = &action else { return Some(action) };
        let stream = lock(&self.streams).get(id).map(Arc::clone);
        if let Some(stream) = stream {
            send(&stream, bytes);
        }
        None
    }
}

/// An action that takes time; whether the connection goes on.
fn take_time(stream: &TcpStream, action: Action) -> bool {
    match action {
        Action::SendLate(_, bytes, ms) => {
            thread::sleep(Duration::from_millis(ms));
            send(stream, &bytes);
        }
        Action::SendTorn(_, bytes) => {
            for piece in bytes.chunks(PIECE) {
                send(stream, piece);
                thread::sleep(PIECE_PAUSE);
            }
        }
        Action::Close(_) => return false,
        Action::Send(..) | Action::Net(_) => {}
    }
    true
}

/// Sends; errors are ignored, since the thread that reads notices a client that has gone.
fn send(mut stream: &TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

/// On loopback, and where the machine has it, on that of IPv6: `localhost` may be either.
fn listeners_on(port: u16) -> Vec<TcpListener> {
    let hosts: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let listeners = hosts.into_iter().filter_map(|host| TcpListener::bind((host, port)).ok());
    listeners.filter(|listener| listener.set_nonblocking(true).is_ok()).collect()
}
