//! Links to other nodes: a task reads and cuts the stream into packets, another writes.
//!
//! What comes goes to the driver over a bounded channel, so a peer that sends faster than we work is read
//! more slowly. A link whose peer does not read is closed at `cluster-link-sendbuf-limit`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gossip::LinkId;
use gossip::wire::{self, Packet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// What happened on a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    Accepted { stream: TcpStream, peer: IpAddr, local: IpAddr },
    Connected { link: LinkId, stream: TcpStream },
    ConnectFailed { link: LinkId, refused: bool },
    Packet { link: LinkId, packet: Box<Packet> },
    Closed { link: LinkId },
}

/// Packets that wait for the driver; a sender beyond that waits.
pub(super) const WAITING_EVENTS: usize = 1024;
/// Links that peers may have made at once: two for each node of the largest cluster, and some.
const MOST_ACCEPTED: usize = 4096;
/// What may wait for a peer where `cluster-link-sendbuf-limit` sets no bound.
const MOST_QUEUED: usize = 256 << 20;

/// The open links.
#[derive(Debug)]
pub(super) struct Links {
    open: BTreeMap<LinkId, Open>,
    events: mpsc::Sender<LinkEvent>,
    next_in: u64,
    accepted: usize,
    /// How many links were closed because their peers did not read.
    pub(super) overflown: u64,
}

#[derive(Debug)]
struct Open {
    /// `None` while it is being made.
    writer: Option<mpsc::UnboundedSender<Vec<u8>>>,
    queued: Arc<AtomicUsize>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Open {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Links {
    /// How many links there are, those that are being made too.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn new(events: mpsc::Sender<LinkEvent>) -> Self {
        Self { open: BTreeMap::new(), events, next_in: 0, accepted: 0, overflown: 0 }
    }

    /// Starts to make a link.
    pub(super) fn connect(&mut self, link: LinkId, ip: IpAddr, port: u16, patience: Duration) {
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            let event = match tokio::time::timeout(patience, TcpStream::connect((ip, port))).await {
                Ok(Ok(stream)) => LinkEvent::Connected { link, stream },
                Ok(Err(error)) => LinkEvent::ConnectFailed {
                    link,
                    refused: error.kind() == io::ErrorKind::ConnectionRefused,
                },
                Err(_) => LinkEvent::ConnectFailed { link, refused: false },
            };
            // Without a driver there is nobody to tell.
            let _ = events.send(event).await;
        });
        let open = Open { writer: None, queued: Arc::default(), tasks: vec![task.abort_handle()] };
        self.open.insert(link, open);
    }

    /// A link that was asked for is made: it is read and written from here on. `false` if it is not
    /// wanted any more.
    pub(super) fn begin(&mut self, link: LinkId, stream: TcpStream) -> bool {
        if !self.open.contains_key(&link) {
            return false;
        }
        self.run(link, stream);
        true
    }

    /// Takes a link that a peer made, if there is room for one more.
    pub(super) fn accept(&mut self, stream: TcpStream) -> Option<LinkId> {
        if self.accepted >= MOST_ACCEPTED {
            return None;
        }
        let link = LinkId::In(self.next_in);
        self.next_in += 1;
        self.accepted += 1;
        self.run(link, stream);
        Some(link)
    }

    fn run(&mut self, link: LinkId, stream: TcpStream) {
        // Packets are small and awaited.
        let _ = stream.set_nodelay(true);
        let (reading, writing) = stream.into_split();
        let (writer, packets) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let read = tokio::spawn(read(link, reading, self.events.clone()));
        let write = tokio::spawn(write(writing, packets, queued.clone()));
        let tasks = vec![read.abort_handle(), write.abort_handle()];
        self.open.insert(link, Open { writer: Some(writer), queued, tasks });
    }

    /// Queues a packet. `false`: the peer does not read, the link must be given up.
    pub(super) fn send(&mut self, link: LinkId, packet: &Packet, limit: usize) -> bool {
        let Some(Open { writer: Some(writer), queued, .. }) = self.open.get(&link) else { return true };
        let bytes = packet.encode();
        let waiting = queued.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > if limit == 0 { MOST_QUEUED } else { limit } {
            self.overflown += 1;
            return false;
        }
        // If the writer ended, the reader reports the end of the link.
        let _ = writer.send(bytes);
        true
    }

    /// Lets go of a link; its tasks end.
    pub(super) fn close(&mut self, link: LinkId) {
        if self.open.remove(&link).is_some() && matches!(link, LinkId::In(_)) {
            self.accepted -= 1;
        }
    }

    /// How many bytes wait to be sent on a link.
    pub(super) fn queued(&self, link: LinkId) -> usize {
        self.open.get(&link).map_or(0, |open| open.queued.load(Ordering::Relaxed))
    }
}

/// Accepts links of peers for ever.
pub(super) async fn listen(listener: TcpListener, events: mpsc::Sender<LinkEvent>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Ok(local) = stream.local_addr() else { continue };
                let ip = |address: SocketAddr| address.ip().to_canonical();
                let event = LinkEvent::Accepted { peer: ip(peer), local: ip(local), stream };
                if events.send(event).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!("Error accepting cluster node: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn read(link: LinkId, mut stream: OwnedReadHalf, events: mpsc::Sender<LinkEvent>) {
    if let Err(reason) = read_packets(link, &mut stream, &events).await {
        let peer = stream.peer_addr().map_or_else(|_| "a peer".to_owned(), |peer| peer.to_string());
        tracing::warn!("Bad message on the cluster bus from {peer}: {reason}; the link is closed");
    }
    let _ = events.send(LinkEvent::Closed { link }).await;
}

/// Cuts the stream into packets until it ends. The buffer grows with what was really sent.
async fn read_packets(
    link: LinkId,
    stream: &mut OwnedReadHalf,
    events: &mpsc::Sender<LinkEvent>,
) -> Result<(), wire::DecodeError> {
    let mut buffer = Vec::new();
    loop {
        match wire::frame_len(&buffer)? {
            Some(length) if buffer.len() >= length => {
                let packet = Box::new(wire::decode(&buffer[..length])?);
                buffer.drain(..length);
                if events.send(LinkEvent::Packet { link, packet }).await.is_err() {
                    return Ok(());
                }
            }
            _ => match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            },
        }
    }
}

async fn write(
    mut stream: OwnedWriteHalf,
    mut packets: mpsc::UnboundedReceiver<Vec<u8>>,
    queued: Arc<AtomicUsize>,
) {
    while let Some(packet) = packets.recv().await {
        if stream.write_all(&packet).await.is_err() {
            return;
        }
        queued.fetch_sub(packet.len(), Ordering::Relaxed);
    }
}
