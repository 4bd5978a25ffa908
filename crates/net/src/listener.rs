//! Listening sockets for TCP, TLS and unix clients.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use config::{Text, Values, keys};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle as EventLoop;
use tokio::task::JoinHandle;

use crate::transport::Listener;

/// How long to wait for a stopping server process to release its ports.
const PORT_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const PORT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Binds the TCP sockets for the `bind` addresses and registers them with the calling thread's event loop. Addresses
/// with a leading `-` are optional.
///
/// # Errors
/// A mandatory address cannot be bound, or no address can be bound.
pub fn bind(addresses: &[Text], port: u16, backlog: i32) -> Result<Vec<Listener>> {
    let listeners = bind_available(addresses, port, backlog)?;
    if listeners.is_empty() {
        bail!("cannot listen on any address of '{}'", addresses.join(" "));
    }
    Ok(listeners)
}

/// Like [`bind`], but succeeds with an empty list if all addresses are optional and unavailable.
pub(crate) fn bind_available(addresses: &[Text], port: u16, backlog: i32) -> Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let (address, optional) = match address.strip_prefix('-') {
            Some(address) => (address, true),
            None => (&**address, false),
        };
        match open_listener(address, port, backlog) {
            Ok(listener) => listeners.push(listener),
            Err(error) if optional => tracing::debug!("Not listening on {address}: {error:#}"),
            Err(error) => bail!("Could not create server TCP listening socket {address}:{port}: {error:#}"),
        }
    }
    Ok(listeners)
}

/// Like [`bind`], for use at startup. `description` names the purpose of the port in the error text.
///
/// # Errors
/// As for [`bind`], with a text that is suitable as the last line of the log.
pub fn bind_at_startup(
    addresses: &[Text],
    port: u16,
    backlog: i32,
    description: &str,
) -> Result<Vec<Listener>> {
    bind(addresses, port, backlog).map_err(|error| {
        tracing::warn!("Warning: {error:#}");
        anyhow!("Failed listening on port {port} ({description}), aborting.")
    })
}

/// Waits up to two seconds until the ports are free. A process that has replied to SHUTDOWN keeps its sockets for a
/// short time.
pub async fn wait_until_ports_are_free(addresses: &[Text], ports: &[u16]) {
    let until = tokio::time::Instant::now() + PORT_RELEASE_TIMEOUT;
    let is_in_use = |port: u16| port != 0 && addresses.iter().any(|address| is_in_use(address, port));
    while ports.iter().any(|port| is_in_use(*port)) && tokio::time::Instant::now() < until {
        tokio::time::sleep(PORT_POLL_INTERVAL).await;
    }
}

fn is_in_use(address: &str, port: u16) -> bool {
    let bound = bind_socket(address.strip_prefix('-').unwrap_or(address), port);
    let is_addr_in_use = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
    bound.is_err_and(|error| error.downcast_ref().is_some_and(is_addr_in_use))
}

fn open_listener(address: &str, port: u16, backlog: i32) -> Result<Listener> {
    let socket = bind_socket(address, port)?;
    socket.listen(backlog)?;
    Ok(Listener::Tcp(TcpListener::from_std(socket.into())?))
}

fn bind_socket(address: &str, port: u16) -> Result<socket2::Socket> {
    let address = match address {
        "*" => SocketAddr::from(([0, 0, 0, 0], port)),
        "::*" => SocketAddr::from(([0u16; 8], port)),
        name => (name, port).to_socket_addrs()?.next().context("the host name has no address")?,
    };
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Binds the unix socket at `path`, replacing a leftover socket file.
pub(crate) fn bind_unix(path: &str, mode: Option<u32>) -> Result<Listener> {
    let _ = std::fs::remove_file(path);
    let listener = std::os::unix::net::UnixListener::bind(path)
        .with_context(|| format!("Could not create server unix socket '{path}'"))?;
    listener.set_nonblocking(true)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(Listener::Unix(UnixListener::from_std(listener)?))
}

/// The listening sockets for clients, and the event loop that accepts their connections. CONFIG SET can replace the
/// listeners while the server runs.
#[derive(Debug, Default)]
pub struct Listeners {
    event_loop: OnceLock<EventLoop>,
    /// The bound addresses, each with the task that accepts its connections.
    pub(crate) tcp: Mutex<Vec<(SocketAddr, JoinHandle<()>)>>,
}

impl Listeners {
    /// Makes the calling thread's event loop accept connections. Must be called exactly once.
    pub fn set_event_loop(&self) {
        assert!(self.event_loop.set(EventLoop::current()).is_ok(), "a server has one control thread");
    }

    /// Returns whether a connection from `local` to `peer` reaches this server itself.
    pub fn is_own_address(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.tcp.lock().iter().any(|(bound, _)| connects_to(*bound, local, peer))
    }

    /// Returns whether any TCP listener is open.
    pub fn is_listening(&self) -> bool {
        !self.tcp.lock().is_empty()
    }

    /// Returns the control thread's event loop; `None` before that thread runs.
    pub fn event_loop(&self) -> Option<EventLoop> {
        self.event_loop.get().cloned()
    }
}

/// Returns whether a connection from `local` to `peer` reaches a socket of this host bound to `bound`. A socket bound
/// to the wildcard address is reached through any local address; in that case the connection's own address is the same
/// or the loopback address.
fn connects_to(bound: SocketAddr, local: SocketAddr, peer: SocketAddr) -> bool {
    let (to, from) = (peer.ip().to_canonical(), local.ip().to_canonical());
    let here = if bound.ip().is_unspecified() { to == from || to.is_loopback() } else { to == bound.ip() };
    here && peer.port() == bound.port()
}

/// The TCP ports for clients. 0 disables a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenPorts {
    /// The port for unencrypted connections (`port`).
    pub plain_port: u16,
    /// The port for TLS connections (`tls-port`).
    pub tls_port: u16,
}

impl ListenPorts {
    /// Reads `port` and `tls-port` from the configuration.
    pub fn from_values(values: &Values) -> Self {
        Self { plain_port: values[keys::PORT], tls_port: values[keys::TLS_PORT] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_the_server_itself_are_recognized() {
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
            assert_eq!(connects_to(bound, local, peer), own, "{peer} from {local} at {bound}");
        }
    }
}
