//! Listening sockets, and the decision whether to let a client in.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, TcpKeepalive, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

use crate::net::connection::Socket;
use crate::server::Server;

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

/// Opens the TCP sockets that `bind` and `port` ask for. An address with a leading `-` may be missing on
/// this machine.
pub(crate) fn bind(addresses: &str, port: u16, backlog: i32) -> Result<Vec<std::net::TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses.split_ascii_whitespace() {
        let (address, optional) = match address.strip_prefix('-') {
            Some(address) => (address, true),
            None => (address, false),
        };
        match listen(address, port, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if optional => tracing::debug!("Not listening to {address}: {error:#}"),
            Err(error) => bail!("Could not create server TCP listening socket {address}:{port}: {error:#}"),
        }
    }
    if listeners.is_empty() {
        bail!("no address of '{addresses}' can be listened to");
    }
    Ok(listeners)
}

fn listen(address: &str, port: u16, backlog: i32) -> Result<std::net::TcpListener> {
    let address = match address {
        "*" => SocketAddr::from(([0, 0, 0, 0], port)),
        "::*" => SocketAddr::from(([0u16; 8], port)),
        name => (name, port).to_socket_addrs()?.next().context("the name has no address")?,
    };
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Opens the unix socket at `path`, in place of one that nobody uses any more.
fn bind_unix(path: &str, mode: Option<u32>) -> Result<std::os::unix::net::UnixListener> {
    let _ = std::fs::remove_file(path);
    let listener = std::os::unix::net::UnixListener::bind(path)
        .with_context(|| format!("Could not create server unix socket '{path}'"))?;
    listener.set_nonblocking(true)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(listener)
}

/// The sockets that clients come in by, and what is needed to open others while the server runs.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    home: OnceLock<Home>,
    tcp: Mutex<Vec<JoinHandle<()>>>,
}

/// The control thread's event loop, which accepts, and the workers that connections go to.
#[derive(Debug)]
struct Home {
    runtime: Handle,
    workers: Vec<UnboundedSender<Socket>>,
}

impl Listeners {
    /// Says where accepting happens: on the calling event loop. Once.
    pub(crate) fn settle(&self, workers: Vec<UnboundedSender<Socket>>) {
        let settled = self.home.set(Home { runtime: Handle::current(), workers });
        assert!(settled.is_ok(), "a server has one control thread");
    }

    fn home(&self) -> &Home {
        self.home.get().expect("nobody listens before the control thread runs")
    }
}

impl Server {
    /// Listens on `addresses` and `port` (0: nowhere) in place of where TCP clients came in so far.
    pub(crate) async fn listen_tcp(self: &Arc<Self>, addresses: &str, port: u16) -> Result<()> {
        let old = std::mem::take(&mut *self.listeners.tcp.lock());
        for task in old {
            task.abort();
            // Its socket is closed when it has ended.
            let _ = task.await;
        }
        if port == 0 {
            return Ok(());
        }
        let backlog = i32::try_from(self.config.integer("tcp-backlog")).unwrap_or(i32::MAX);
        let sockets = bind(addresses, port, backlog)?;
        let home = self.listeners.home();
        let _loop = home.runtime.enter();
        for socket in sockets {
            let accepting = accept_tcp(self.clone(), TcpListener::from_std(socket)?, home.workers.clone());
            self.listeners.tcp.lock().push(home.runtime.spawn(accepting));
        }
        Ok(())
    }

    /// Listens on the unix socket at `path`.
    pub(crate) fn listen_unix(self: &Arc<Self>, path: &str, mode: Option<u32>) -> Result<()> {
        let socket = UnixListener::from_std(bind_unix(path, mode)?)?;
        tokio::spawn(accept_unix(self.clone(), socket, self.listeners.home().workers.clone()));
        Ok(())
    }

    /// What is listened to, as INFO shows it.
    pub(crate) fn listener_lines(&self) -> Vec<String> {
        let config = &self.config;
        let (port, unix) = (config.port("port"), config.text("unixsocket"));
        let mut lines = Vec::new();
        if port != 0 {
            let bind: String =
                config.text("bind").split_ascii_whitespace().map(|at| format!("bind={at},")).collect();
            lines.push(format!("name=tcp,{bind}port={port}"));
        }
        if !unix.is_empty() {
            lines.push(format!("name=unix,bind={unix}"));
        }
        lines
    }
}

/// Accepts TCP clients for ever and hands them to the workers in turn.
async fn accept_tcp(server: Arc<Server>, listener: TcpListener, workers: Vec<UnboundedSender<Socket>>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match stream.into_std() {
                Ok(stream) => admit(&server, Socket::Tcp(stream), Some(peer.ip()), &workers),
                Err(error) => tracing::debug!("Accepting client connection: {error}"),
            },
            Err(error) => wait_after(&error).await,
        }
    }
}

/// Accepts clients of the unix socket for ever.
async fn accept_unix(server: Arc<Server>, listener: UnixListener, workers: Vec<UnboundedSender<Socket>>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.into_std() {
                Ok(stream) => admit(&server, Socket::Unix(stream), None, &workers),
                Err(error) => tracing::debug!("Accepting client connection: {error}"),
            },
            Err(error) => wait_after(&error).await,
        }
    }
}

/// With no file descriptor left, accepting fails at once again: give others time to leave.
pub(crate) async fn wait_after(error: &std::io::Error) {
    tracing::warn!("Accepting client connection: {error}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn admit(server: &Server, socket: Socket, peer: Option<IpAddr>, workers: &[UnboundedSender<Socket>]) {
    server.network.connections_received.fetch_add(1, Ordering::Relaxed);
    let connected = server.connected.fetch_add(1, Ordering::Relaxed);
    let limit = server.limits.clients.load(Ordering::Relaxed);
    let outside = peer.is_some_and(|ip| !ip.to_canonical().is_loopback());
    let refusal = if connected >= limit {
        Some("-ERR max number of clients reached\r\n")
    } else if outside
        && server.config.switch("protected-mode")
        && server.config.text("requirepass").is_empty()
    {
        Some(PROTECTED)
    } else {
        None
    };
    if let Some(text) = refusal {
        server.network.connections_rejected.fetch_add(1, Ordering::Relaxed);
        refuse(socket, text);
    } else if prepare(server, &socket).is_ok() {
        let turn = server.network.connections_received.load(Ordering::Relaxed) as usize % workers.len();
        if workers[turn].send(socket).is_ok() {
            return;
        }
    }
    server.connected.fetch_sub(1, Ordering::Relaxed);
}

fn refuse(socket: Socket, text: &str) {
    // The client is told if its socket takes the text at once; nobody waits for it.
    let _ = match socket {
        Socket::Tcp(mut stream) => stream.write_all(text.as_bytes()),
        Socket::Unix(mut stream) => stream.write_all(text.as_bytes()),
    };
}

fn prepare(server: &Server, socket: &Socket) -> std::io::Result<()> {
    let Socket::Tcp(stream) = socket else { return Ok(()) };
    stream.set_nodelay(true)?;
    if let Ok(seconds @ 1..) = u64::try_from(server.config.integer("tcp-keepalive")) {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(seconds))
            .with_interval(Duration::from_secs((seconds / 3).max(1)))
            .with_retries(3);
        SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}
