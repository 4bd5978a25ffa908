//! Connections that clients and other sentinels open to this sentinel.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine::{ConnectionInfo, Engine};
use net::tls::HANDSHAKE_TIMEOUT;
use net::transport::{Listener, SocketOptions, Stream};
use resp::{Batch, ParseLimits, Parser, ProtocolError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::ServerEvent;
use super::traffic::Traffic;

/// Maximum size of a request. Sentinel commands contain only names and addresses.
const MAX_REQUEST_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes queued for a client: Redis's hard limit for subscribers.
const MAX_OUTPUT_BYTES: usize = 32 * 1024 * 1024;

/// An accepted connection, before the event loop knows it as a client.
pub(super) struct AcceptedClient {
    pub(super) client: u64,
    pub(super) link: ConnectionInfo,
    pub(super) output: ClientOutput,
    /// Whether the client has authenticated. The event loop sets this for the task that reads the client's requests.
    pub(super) is_authenticated: Arc<AtomicBool>,
}

/// The sending side of a client's output queue.
#[derive(Clone)]
pub(super) struct ClientOutput {
    queue: UnboundedSender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
    traffic: Arc<Traffic>,
}

impl ClientOutput {
    /// Creates an output queue and returns both sides.
    pub(super) fn channel(traffic: Arc<Traffic>) -> (Self, UnboundedReceiver<Vec<u8>>) {
        let (queue, replies) = unbounded_channel();
        (Self { queue, queued_bytes: Arc::new(AtomicUsize::new(0)), traffic }, replies)
    }

    /// Queues bytes. Empty `bytes` close the connection once all earlier bytes are sent. Returns false if the client
    /// reads too slowly and must be disconnected.
    pub(super) fn push(&self, bytes: Vec<u8>) -> bool {
        let waiting = self.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > MAX_OUTPUT_BYTES {
            self.traffic.output_limit_disconnections.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.queue.send(bytes).is_ok()
    }
}

/// The settings that decide whether a connection is accepted and how large its requests may be.
#[derive(Debug, Clone)]
pub(super) struct AcceptConfig {
    /// Whether protected mode is on: accept only local clients while the user `default` has no password.
    pub(super) protected: bool,
    pub(super) max_clients: usize,
    pub(super) options: SocketOptions,
    /// The engine, which knows the current users.
    pub(super) engine: Arc<Engine>,
    pub(super) traffic: Arc<Traffic>,
}

impl AcceptConfig {
    fn rejects(&self, ip: IpAddr) -> bool {
        self.protected
            && !ip.is_loopback()
            && self.engine.access.users.read().default_user().has_no_password()
    }

    /// Returns the current limits for a client's requests.
    fn parse_limits(&self, is_authenticated: &AtomicBool) -> ParseLimits {
        let is_authenticated = is_authenticated.load(Ordering::Relaxed);
        let authenticated =
            is_authenticated || self.engine.access.users.read().default_user().can_skip_authentication();
        ParseLimits { is_authenticated: authenticated, ..ParseLimits::default() }
    }
}

/// Accepts clients until the process ends.
pub(super) async fn accept(
    listener: Listener,
    accept_config: AcceptConfig,
    ids: Arc<AtomicUsize>,
    events: Sender<ServerEvent>,
) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let (mut stream, peer) = listener.accept("client connection").await;
        let refusal = if peer.is_some_and(|peer| accept_config.rejects(peer)) {
            Some(net::admission::PROTECTED_MODE_REPLY)
        } else if open.load(Ordering::Relaxed) >= accept_config.max_clients {
            Some("-ERR max number of clients reached\r\n")
        } else {
            None
        };
        if let Some(text) = refusal {
            accept_config.traffic.rejected_connections.fetch_add(1, Ordering::Relaxed);
            // Send the reply only without TLS: the connection is closed in any case, and a handshake would take time.
            if !matches!(stream, Stream::Tls(_)) {
                stream.write_now(text.as_bytes());
                let _ = stream.shutdown().await;
            }
            continue;
        }
        let link = stream.set_options(accept_config.options).and_then(|()| stream.connection_info());
        let Ok(link) = link else { continue };
        let client = ids.fetch_add(1, Ordering::Relaxed) as u64;
        let (output, replies) = ClientOutput::channel(accept_config.traffic.clone());
        let waiting = output.queued_bytes.clone();
        let is_authenticated = Arc::new(AtomicBool::new(
            accept_config.engine.access.users.read().default_user().can_skip_authentication(),
        ));
        let accepted = AcceptedClient { client, link, output, is_authenticated: is_authenticated.clone() };
        let (events, open, accept_config) = (events.clone(), open.clone(), accept_config.clone());
        open.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let agreed = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.handshake()).await;
            if matches!(agreed, Ok(Ok(()))) && events.send(ServerEvent::ClientOpened(accepted)).await.is_ok()
            {
                let talk = ConnectionTask {
                    client,
                    events: &events,
                    queued_bytes: &waiting,
                    traffic: &accept_config.traffic,
                };
                talk.serve_client(stream, || accept_config.parse_limits(&is_authenticated), replies).await;
            }
            open.fetch_sub(1, Ordering::Relaxed);
            let _ = events.send(ServerEvent::ClientClosed { client }).await;
        });
    }
}

/// The task that serves one client connection.
struct ConnectionTask<'a> {
    client: u64,
    events: &'a Sender<ServerEvent>,
    queued_bytes: &'a AtomicUsize,
    traffic: &'a Traffic,
}

impl ConnectionTask<'_> {
    /// Reads requests and writes replies until either side closes the connection.
    async fn serve_client(
        self,
        mut stream: Stream,
        limits: impl Fn() -> ParseLimits,
        mut replies: UnboundedReceiver<Vec<u8>>,
    ) {
        let Self { client, events, queued_bytes: waiting, traffic } = self;
        let mut input = RequestReader { client, ..RequestReader::default() };
        loop {
            tokio::select! {
                read = stream.read_buf(&mut input.bytes) => {
                    let Ok(len @ 1..) = read else { return };
                    traffic.input.fetch_add(len as u64, Ordering::Relaxed);
                    traffic.reads.fetch_add(1, Ordering::Relaxed);
                    match input.forward_requests(&limits, events).await {
                        Ok(()) if input.bytes.len() <= MAX_REQUEST_BYTES => {}
                        Ok(()) => {
                            traffic.query_limit_disconnections.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        Err(ReadError::ShuttingDown) => return,
                        Err(ReadError::Protocol(error)) => {
                            // The error is queued after the replies to all previous requests.
                            let mut bytes = Vec::new();
                            while let Ok(more) = replies.try_recv() {
                                bytes.extend(more);
                            }
                            bytes.extend(format!("-ERR {error}\r\n").bytes());
                            let _ = stream.write_all(&bytes).await;
                            return;
                        }
                    }
                }
                reply = replies.recv() => {
                    let Some(mut bytes) = reply else { return };
                    let mut ends = bytes.is_empty();
                    while let Ok(more) = replies.try_recv() {
                        ends |= more.is_empty();
                        bytes.extend(more);
                    }
                    waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
                    traffic.output.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    traffic.writes.fetch_add(1, Ordering::Relaxed);
                    if stream.write_all(&bytes).await.is_err() || ends {
                        return;
                    }
                }
            }
        }
    }
}

/// Reads a client's requests. Holds received bytes that do not form a complete request yet.
#[derive(Default)]
struct RequestReader {
    client: u64,
    bytes: Vec<u8>,
    parser: Parser,
    batch: Batch,
}

/// The reason why the task stops reading from a connection.
enum ReadError {
    Protocol(ProtocolError),
    /// The sentinel is shutting down.
    ShuttingDown,
}

impl RequestReader {
    /// Passes all complete requests to the event loop. The size limit depends on whether the client has authenticated,
    /// so a request is checked only after all previous requests are answered.
    async fn forward_requests(
        &mut self,
        limits: &impl Fn() -> ParseLimits,
        events: &Sender<ServerEvent>,
    ) -> Result<(), ReadError> {
        loop {
            self.batch.clear();
            let limits_then = limits();
            let parsed = self.parser.parse(&mut self.bytes, &mut self.batch, &limits_then);
            for index in 0..self.batch.len() {
                let args = self.batch.args(index, &self.bytes).iter().map(<[u8]>::to_vec).collect();
                let request = ServerEvent::ClientRequest { client: self.client, args };
                events.send(request).await.map_err(|_| ReadError::ShuttingDown)?;
            }
            self.bytes.drain(..parsed.consumed_bytes);
            let Some(error) = parsed.error else { return Ok(()) };
            let (done, heard) = oneshot::channel();
            events.send(ServerEvent::Flush(done)).await.map_err(|_| ReadError::ShuttingDown)?;
            heard.await.map_err(|_| ReadError::ShuttingDown)?;
            let known_now = !limits_then.is_authenticated && limits().is_authenticated;
            if !(error.is_unauthenticated() && known_now) {
                return Err(ReadError::Protocol(error));
            }
            self.parser = Parser::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When an operator sets or removes the password of the user `default`, the new state applies to new clients and to
    /// connected clients that have not authenticated.
    #[test]
    fn protected_mode_follows_the_current_default_user() {
        let engine = Arc::new(Engine::for_sentinel(::commands::sentinel_registry().catalogue(), 1));
        let options = SocketOptions { nodelay: true, keepalive: None };
        let accept_config = AcceptConfig {
            protected: true,
            max_clients: 1,
            options,
            engine: engine.clone(),
            traffic: Arc::default(),
        };
        let (near, far) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        let (stranger, is_authenticated) = (AtomicBool::new(false), AtomicBool::new(true));
        let look = || {
            let limits = [&stranger, &is_authenticated]
                .map(|is_authenticated| accept_config.parse_limits(is_authenticated).is_authenticated);
            (accept_config.rejects(near), accept_config.rejects(far), limits)
        };
        assert_eq!(look(), (false, true, [true, true]));
        engine.access.users.write().set_default_password(b"secret");
        assert_eq!(look(), (false, false, [false, true]));
        engine.access.users.write().set_default_password(b"");
        assert_eq!(look(), (false, true, [true, true]));
    }
}
