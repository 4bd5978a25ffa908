//! Connections to masters, replicas and other sentinels.

use std::io::ErrorKind;

use resp::{Value, encode_request, parse_value};
use sentinel::{Addr, LinkId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::Event;

/// The longest reply that is read: INFO of a large server and some room.
const MAX_REPLY: usize = 4 * 1024 * 1024;

/// An open link, or one being opened. Dropping it closes it.
pub(super) struct LinkHandle {
    /// Counts the connections, so that what an earlier one said is not taken for this one's.
    pub(super) life: u64,
    requests: UnboundedSender<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LinkHandle {
    pub(super) fn open(link: LinkId, life: u64, addr: Addr, events: Sender<Event>) -> Self {
        let (requests, queue) = unbounded_channel();
        let task = tokio::spawn(run(link, life, addr, events, queue));
        Self { life, requests, task }
    }

    /// Queues a request. The machine lets at most a hundred wait for their replies, so the queue is short.
    pub(super) fn send(&self, request: &[Vec<u8>]) {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, request.iter().map(Vec::as_slice));
        // A task that has ended has said so.
        let _ = self.requests.send(bytes);
    }
}

async fn run(link: LinkId, life: u64, addr: Addr, events: Sender<Event>, queue: UnboundedReceiver<Vec<u8>>) {
    let stream = match TcpStream::connect((addr.host.as_str(), addr.port)).await {
        Ok(stream) => stream,
        Err(error) => {
            let refused = error.kind() == ErrorKind::ConnectionRefused;
            let _ = events.send(Event::LinkFailed { link, life, refused }).await;
            return;
        }
    };
    let _ = stream.set_nodelay(true);
    let local_ip = stream.local_addr().map(|addr| addr.ip().to_string()).unwrap_or_default();
    // The center outlives its links.
    let _ = events.send(Event::LinkUp { link, life, local_ip }).await;
    converse(stream, queue, |value| {
        let events = events.clone();
        async move {
            let _ = events.send(Event::LinkReply { link, life, value }).await;
        }
    })
    .await;
    let _ = events.send(Event::LinkDown { link, life }).await;
}

/// Sends what is queued and hands over what comes, until the connection ends.
async fn converse<F: Future<Output = ()>>(
    stream: TcpStream,
    mut queue: UnboundedReceiver<Vec<u8>>,
    mut take: impl FnMut(Value) -> F,
) {
    let (mut reader, mut writer) = stream.into_split();
    let mut input = Vec::new();
    loop {
        tokio::select! {
            read = reader.read_buf(&mut input) => {
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
                if input.len() > MAX_REPLY {
                    return;
                }
            }
            request = queue.recv() => {
                let Some(mut bytes) = request else { return };
                while let Ok(more) = queue.try_recv() {
                    bytes.extend(more);
                }
                if writer.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}
