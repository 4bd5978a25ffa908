//! Links to other nodes: a task reads and cuts the stream into packets, another writes.
//!
//! Packets that come go to the driver over a bounded channel, so a peer that sends faster than we work is read more
//! slowly. A link whose peer does not read is closed at `cluster-link-sendbuf-limit`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use gossip::LinkId;
use gossip::wire::{self, MessageBody, Packet};
use net::dialer::Dialer;
use net::tls::HANDSHAKE_TIMEOUT;
use net::transport::{Listener, SocketOptions, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

/// An event on a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    Accepted { stream: Stream, peer: IpAddr, local: IpAddr },
    Connected { link: LinkId, stream: Stream },
    ConnectFailed { link: LinkId, refused: bool },
    Packet { link: LinkId, packet: Box<Packet> },
    Closed { link: LinkId },
}

/// Packets that wait for the driver; a sender beyond that waits.
pub(super) const WAITING_EVENTS: usize = 1024;
/// Peers that have connected and have not agreed on how to speak.
const MOST_STRANGERS: usize = 256;
/// The bytes that may wait for a peer where `cluster-link-sendbuf-limit` sets no bound.
const MOST_QUEUED: usize = 256 << 20;

/// The open links.
#[derive(Debug)]
pub(super) struct Links {
    open: BTreeMap<LinkId, Open>,
    events: mpsc::Sender<LinkEvent>,
    next_in: u64,
    traffic: Arc<Traffic>,
}

/// The traffic of all links since the start.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    sent: Counted,
    received: Counted,
    /// How many links were closed because their peers did not read.
    overflown: AtomicU64,
}

#[derive(Debug, Default)]
struct Counted {
    bytes: AtomicU64,
    /// How many of them were of what clients published.
    published: AtomicU64,
}

impl Traffic {
    /// The figures of the traffic so far.
    pub(crate) fn so_far(&self) -> gossip::LinkTraffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Self { sent, received, overflown } = self;
        gossip::LinkTraffic {
            bytes_sent: read(&sent.bytes),
            bytes_received: read(&received.bytes),
            published_bytes_sent: read(&sent.published),
            published_bytes_received: read(&received.published),
            overflowed_links: read(overflown),
        }
    }
}

impl Traffic {
    /// Counts from zero on (CONFIG RESETSTAT).
    pub(crate) fn reset(&self) {
        let Self { sent, received, overflown } = self;
        let counters = [&sent.bytes, &sent.published, &received.bytes, &received.published, overflown];
        counters.into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

impl Counted {
    fn count(&self, packet: &Packet, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if matches!(packet.body, MessageBody::Publish(_)) {
            self.published.fetch_add(bytes, Ordering::Relaxed);
        }
    }
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

    pub(super) fn new(events: mpsc::Sender<LinkEvent>, traffic: Arc<Traffic>) -> Self {
        Self { open: BTreeMap::new(), events, next_in: 0, traffic }
    }

    /// Starts to make a link.
    pub(super) fn connect(&mut self, link: LinkId, to: SocketAddr, timeout: Duration, dialer: Dialer) {
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            let event = match dialer.dial(to, timeout).await {
                Ok(stream) => LinkEvent::Connected { link, stream },
                Err(error) => LinkEvent::ConnectFailed { link, refused: error.is_refused() },
            };
            // Without a driver there is no receiver.
            let _ = events.send(event).await;
        });
        let open = Open { writer: None, queued: Arc::default(), tasks: vec![task.abort_handle()] };
        self.open.insert(link, open);
    }

    /// A link that was asked for is made: it is read and written from here on. `false` if it is not
    /// wanted any more.
    pub(super) fn begin(&mut self, link: LinkId, stream: Stream) -> bool {
        if !self.open.contains_key(&link) {
            return false;
        }
        self.run(link, stream);
        true
    }

    /// Takes a link that a peer made; the machine says which has to go for it.
    pub(super) fn accept(&mut self, stream: Stream) -> LinkId {
        let link = LinkId::In(self.next_in);
        self.next_in += 1;
        self.run(link, stream);
        link
    }

    fn run(&mut self, link: LinkId, stream: Stream) {
        let peer = stream.addresses().ok().flatten().map(|(peer, _)| peer);
        let (reading, writing) = tokio::io::split(stream);
        let (writer, packets) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let read = tokio::spawn(read(link, peer, reading, (self.events.clone(), self.traffic.clone())));
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
            self.traffic.overflown.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.traffic.sent.count(packet, bytes.len());
        // If the writer ended, the reader reports the end of the link.
        let _ = writer.send(bytes);
        true
    }

    /// Has a link end as if it had broken: the driver hears of it. With too much to hear already, it does not end.
    pub(super) fn break_off(&mut self, link: LinkId) {
        if self.events.try_send(LinkEvent::Closed { link }).is_ok() {
            self.close(link);
        }
    }

    /// Lets go of a link; its tasks end.
    pub(super) fn close(&mut self, link: LinkId) {
        self.open.remove(&link);
    }

    /// How many bytes wait to be sent on all links.
    pub(super) fn all_queued(&self) -> usize {
        self.open.values().map(|open| open.queued.load(Ordering::Relaxed)).sum()
    }

    /// How many bytes wait to be sent on a link.
    pub(super) fn queued(&self, link: LinkId) -> usize {
        self.open.get(&link).map_or(0, |open| open.queued.load(Ordering::Relaxed))
    }
}

/// Accepts links of peers for ever.
pub(super) async fn listen(listener: Listener, options: SocketOptions, events: mpsc::Sender<LinkEvent>) {
    let strangers = Arc::new(Semaphore::new(MOST_STRANGERS));
    loop {
        let (stream, _) = listener.accept("cluster node").await;
        let Ok(Some((peer, local))) = stream.addresses() else { continue };
        if stream.set_options(options).is_err() {
            continue;
        }
        let events = events.clone();
        let Ok(permit) = strangers.clone().try_acquire_owned() else {
            tracing::warn!(
                "Too many nodes are about to say who they are: a link from {} is closed",
                peer.ip()
            );
            continue;
        };
        tokio::spawn(async move {
            let mut stream = stream;
            let agreed = tokio::time::timeout(HANDSHAKE_TIMEOUT, stream.handshake()).await;
            drop(permit);
            match agreed.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
                Ok(()) => {
                    let event = LinkEvent::Accepted { peer: peer.ip(), local: local.ip(), stream };
                    // Without a driver there is no receiver.
                    let _ = events.send(event).await;
                }
                Err(error) => {
                    tracing::warn!("Error accepting cluster node connection from {}: {error}", peer.ip());
                }
            }
        });
    }
}

async fn read(
    link: LinkId,
    peer: Option<SocketAddr>,
    mut stream: ReadHalf<Stream>,
    (events, traffic): (mpsc::Sender<LinkEvent>, Arc<Traffic>),
) {
    if let Err(reason) = read_packets(link, &mut stream, &events, &traffic).await {
        let peer = peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string());
        tracing::warn!("Bad message on the cluster bus from {peer}: {reason}; the link is closed");
    }
    let _ = events.send(LinkEvent::Closed { link }).await;
}

/// Cuts the stream into packets until it ends. The buffer grows with what was really sent.
async fn read_packets(
    link: LinkId,
    stream: &mut ReadHalf<Stream>,
    events: &mpsc::Sender<LinkEvent>,
    traffic: &Traffic,
) -> Result<(), wire::DecodeError> {
    let mut buffer = Vec::new();
    loop {
        match wire::frame_len(&buffer)? {
            Some(length) if buffer.len() >= length => {
                let packet = Box::new(wire::decode(&buffer[..length])?);
                traffic.received.count(&packet, length);
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
    mut stream: WriteHalf<Stream>,
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
