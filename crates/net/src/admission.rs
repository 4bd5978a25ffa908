//! Accepts client connections and decides which ones to admit (`maxclients`, `protected-mode`).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Result;
use config::{Values, keys};

use crate::context::NetworkContext;
use crate::listener::{ListenPorts, bind_available, bind_unix};
use crate::tls::TlsPeers;
use crate::transport::{Listener, Socket, SocketOptions, Stream};

/// Reply to remote clients in protected mode, when no password is set.
pub const PROTECTED_MODE_REPLY: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no \
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

impl NetworkContext {
    /// Listens on the configured addresses and ports, replacing the current TCP listeners.
    ///
    /// # Errors
    /// A mandatory address cannot be bound. In that case some or all listeners are missing.
    pub async fn listen_tcp(self: &Arc<Self>, values: &Values) -> Result<()> {
        let (addresses, ports) = (&values[keys::BIND], ListenPorts::from_values(values));
        let old = std::mem::take(&mut *self.listeners.tcp.lock());
        for (_, task) in old {
            task.abort();
            // Wait until the accept task has ended and its socket is closed.
            let _ = task.await;
        }
        let backlog = values[keys::TCP_BACKLOG];
        let event_loop =
            self.listeners.event_loop().expect("listeners are opened only once the control thread runs");
        let _loop = event_loop.enter();
        let open = |port| if port == 0 { Ok(Vec::new()) } else { bind_available(addresses, port, backlog) };
        let with_tls = |listener: Listener| listener.with_tls(&self.tls, TlsPeers::Clients);
        let tls = open(ports.tls_port)?.into_iter().map(with_tls);
        for listener in open(ports.plain_port)?.into_iter().chain(tls) {
            let address = listener.address()?;
            let accepting = accept_clients(self.clone(), listener);
            self.listeners.tcp.lock().push((address, event_loop.spawn(accepting)));
        }
        Ok(())
    }

    /// Listens on the unix socket at `path`.
    ///
    /// # Errors
    /// The socket cannot be created, or its file mode cannot be set.
    pub fn listen_unix(self: &Arc<Self>, path: &str, mode: Option<u32>) -> Result<()> {
        tokio::spawn(accept_clients(self.clone(), bind_unix(path, mode)?));
        Ok(())
    }

    /// Returns one line per listener for INFO.
    pub fn listener_lines(&self) -> Vec<String> {
        let values = self.config.values();
        let ports = ListenPorts::from_values(&values);
        let mut lines = Vec::new();
        for (name, port) in
            [("tcp", ports.plain_port), ("tls", ports.tls_port)].iter().filter(|(_, port)| *port != 0)
        {
            let bind: String = values[keys::BIND].iter().map(|at| format!("bind={at},")).collect();
            lines.push(format!("name={name},{bind}port={port}"));
        }
        if let Some(unix) = &values[keys::UNIXSOCKET] {
            lines.push(format!("name=unix,bind={unix}"));
        }
        lines
    }
}

/// Accepts clients forever and distributes them round-robin over the workers.
async fn accept_clients(network: Arc<NetworkContext>, listener: Listener) {
    loop {
        let (stream, peer) = listener.accept("client connection").await;
        admit_client(&network, stream, peer);
    }
}

fn admit_client(network: &NetworkContext, mut stream: Stream, peer: Option<IpAddr>) {
    network.stats.connections_received.fetch_add(1, Ordering::Relaxed);
    let connected = network.client_count.fetch_add(1, Ordering::Relaxed);
    let limit = network.limits.max_clients.load(Ordering::Relaxed);
    let outside = peer.is_some_and(|ip| !ip.is_loopback());
    let refusal = if connected >= limit {
        Some("-ERR max number of clients reached\r\n")
    } else if outside
        && network.config.get(keys::PROTECTED_MODE)
        && network.engine.access.users.read().default_user().has_no_password()
    {
        Some(PROTECTED_MODE_REPLY)
    } else {
        None
    };
    if let Some(text) = refusal {
        network.stats.connections_rejected.fetch_add(1, Ordering::Relaxed);
        // The reply is sent only if the socket accepts it at once. TLS clients get none, because a handshake costs too
        // much for a client that is rejected anyway.
        if !matches!(stream, Stream::Tls(_)) {
            stream.write_now(text.as_bytes());
        }
    } else if detach_socket(network, stream).is_ok_and(|socket| network.worker_pool.admit(socket)) {
        return;
    }
    network.client_count.fetch_sub(1, Ordering::Relaxed);
}

fn detach_socket(network: &NetworkContext, mut stream: Stream) -> std::io::Result<Socket> {
    stream.set_options(SocketOptions::new(&network.config))?;
    stream.detach()
}
