//! Connections that this sentinel opens to masters, replicas and other sentinels.

use std::time::Duration;

use net::dialer::Dialer;
use net::transport::Stream;
use resp::{Value, encode_request, parse_value};
use sentinel::{Addr, LinkId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::ServerEvent;

/// Maximum size of a reply. The INFO reply of a large server is much smaller.
const MAX_REPLY_BYTES: usize = 4 * 1024 * 1024;
/// Upper limit for a connection attempt. The state machine gives up on slow attempts much earlier.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A link that is open or being opened. Dropping the handle closes the link.
pub(super) struct LinkHandle {
    /// Number of the connection on this link, so that late events of a previous connection are ignored.
    pub(super) connection_number: u64,
    requests: UnboundedSender<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LinkHandle {
    pub(super) fn open(
        link: LinkId,
        connection_number: u64,
        addr: Addr,
        dialer: Dialer,
        events: Sender<ServerEvent>,
    ) -> Self {
        let (requests, queue) = unbounded_channel();
        let task = tokio::spawn(async move {
            match dialer.dial((addr.host.as_str(), addr.port), CONNECT_TIMEOUT).await {
                Ok(stream) => run_link(link, connection_number, stream, events, queue).await,
                // The event loop outlives its links, so it receives this event.
                Err(error) => {
                    let refused = error.is_refused();
                    let _ = events.send(ServerEvent::LinkFailed { link, connection_number, refused }).await;
                }
            }
        });
        Self { connection_number, requests, task }
    }

    /// Queues a request. The state machine allows at most a hundred pending replies, so the queue is short.
    pub(super) fn send(&self, request: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, request.iter().map(Vec::as_slice));
        // Sending fails only if the task has ended. Its final event is in the queue of the event loop.
        let _ = self.requests.send(bytes);
    }
}

async fn run_link(
    link: LinkId,
    connection_number: u64,
    stream: Stream,
    events: Sender<ServerEvent>,
    queue: UnboundedReceiver<Vec<u8>>,
) {
    let addresses = stream.addresses().ok().flatten();
    let local_ip = addresses.map(|(_, local)| local.ip().to_string()).unwrap_or_default();
    let _ = events.send(ServerEvent::LinkUp { link, connection_number, local_ip }).await;
    exchange_requests(stream, queue, |value| {
        let events = events.clone();
        async move {
            let _ = events.send(ServerEvent::LinkReply { link, connection_number, value }).await;
        }
    })
    .await;
    let _ = events.send(ServerEvent::LinkDown { link, connection_number }).await;
}

/// Sends queued requests and passes on replies until the connection ends.
async fn exchange_requests<F: Future<Output = ()>>(
    mut stream: Stream,
    mut queue: UnboundedReceiver<Vec<u8>>,
    mut take: impl FnMut(Value) -> F,
) {
    let mut input = Vec::new();
    loop {
        tokio::select! {
            read = stream.read_buf(&mut input) => {
                if !matches!(read, Ok(len) if len > 0) {
                    return;
                }
                let mut used = 0;
                loop {
                    match parse_value(&input[used..]) {
                        Ok(Some((value, len))) => {
                            used += len;
                            take(value).await;
                        }
                        Ok(None) => break,
                        Err(error) => {
                            tracing::debug!("a link is closed: {error}");
                            return;
                        }
                    }
                }
                input.drain(..used);
                if input.len() > MAX_REPLY_BYTES {
                    return;
                }
            }
            request = queue.recv() => {
                let Some(mut bytes) = request else { return };
                while let Ok(more) = queue.try_recv() {
                    bytes.extend(more);
                }
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}
