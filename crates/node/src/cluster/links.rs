//! Links to other nodes: for each link, one task reads packets and another one writes them.
//!
//! Received packets go to the driver over a bounded channel, so that a peer that sends too fast is slowed down. A link
//! whose peer does not read is closed when its queue reaches `cluster-link-sendbuf-limit`.

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

#[derive(Debug)]
pub(super) enum LinkEvent {
    Accepted { stream: Stream, peer: IpAddr, local: IpAddr },
    Connected { link: LinkId, stream: Stream },
    ConnectFailed { link: LinkId, is_refused: bool },
    PacketReceived { link: LinkId, packet: Box<Packet> },
    Closed { link: LinkId },
}

/// The maximum number of packets queued for the driver.
pub(super) const MAX_QUEUED_EVENTS: usize = 1024;
/// The maximum number of accepted links whose peers have not completed the TLS handshake.
const MAX_PENDING_HANDSHAKES: usize = 256;
/// The maximum number of queued bytes per link if `cluster-link-sendbuf-limit` is not set.
const DEFAULT_SEND_BUFFER_LIMIT: usize = 256 << 20;

/// The open links and those being connected.
#[derive(Debug)]
pub(super) struct BusLinks {
    links: BTreeMap<LinkId, OpenLink>,
    event_sender: mpsc::Sender<LinkEvent>,
    next_inbound_id: u64,
    traffic: Arc<TrafficCounters>,
}

/// Traffic counters, summed over all links.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    sent: DirectionCounters,
    received: DirectionCounters,
    /// The number of links closed because their peers did not read.
    overflowed_links: AtomicU64,
}

#[derive(Debug, Default)]
struct DirectionCounters {
    bytes: AtomicU64,
    /// The bytes of packets that carried published messages (PUBLISH and SPUBLISH).
    published_messages: AtomicU64,
}

impl TrafficCounters {
    /// Returns the current counts.
    pub(crate) fn snapshot(&self) -> gossip::LinkTraffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Self { sent, received, overflowed_links: overflown } = self;
        gossip::LinkTraffic {
            bytes_sent: read(&sent.bytes),
            bytes_received: read(&received.bytes),
            published_bytes_sent: read(&sent.published_messages),
            published_bytes_received: read(&received.published_messages),
            overflowed_links: read(overflown),
        }
    }
}

impl TrafficCounters {
    /// Resets the counters (CONFIG RESETSTAT).
    pub(crate) fn reset(&self) {
        let Self { sent, received, overflowed_links: overflown } = self;
        let counters =
            [&sent.bytes, &sent.published_messages, &received.bytes, &received.published_messages, overflown];
        counters.into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

impl DirectionCounters {
    fn count_packet(&self, packet: &Packet, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if matches!(packet.body, MessageBody::Publish(_)) {
            self.published_messages.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct OpenLink {
    /// The queue of encoded packets; `None` while the link is being connected.
    packet_sender: Option<mpsc::UnboundedSender<Vec<u8>>>,
    queued_bytes: Arc<AtomicUsize>,
    tasks: Vec<AbortHandle>,
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl BusLinks {
    /// Returns the number of links, including those being established.
    pub(super) fn link_count(&self) -> usize {
        self.links.len()
    }

    pub(super) fn new(events: mpsc::Sender<LinkEvent>, traffic: Arc<TrafficCounters>) -> Self {
        Self { links: BTreeMap::new(), event_sender: events, next_inbound_id: 0, traffic }
    }

    /// Connects in the background; the result arrives as a [`LinkEvent`].
    pub(super) fn start_connecting(
        &mut self,
        link: LinkId,
        address: SocketAddr,
        timeout: Duration,
        dialer: Dialer,
    ) {
        let events = self.event_sender.clone();
        let task = tokio::spawn(async move {
            let event = match dialer.dial(address, timeout).await {
                Ok(stream) => LinkEvent::Connected { link, stream },
                Err(error) => LinkEvent::ConnectFailed { link, is_refused: error.is_refused() },
            };
            // An error means that the driver has ended.
            let _ = events.send(event).await;
        });
        let open =
            OpenLink { packet_sender: None, queued_bytes: Arc::default(), tasks: vec![task.abort_handle()] };
        self.links.insert(link, open);
    }

    /// Starts the tasks of an established link. Returns false if the link is no longer wanted.
    pub(super) fn start_link(&mut self, link: LinkId, stream: Stream) -> bool {
        if !self.links.contains_key(&link) {
            return false;
        }
        self.spawn_tasks(link, stream);
        true
    }

    /// Registers a link opened by a peer. The state machine decides whether an older link of that peer must be closed.
    pub(super) fn register_accepted_link(&mut self, stream: Stream) -> LinkId {
        let link = LinkId::Inbound(self.next_inbound_id);
        self.next_inbound_id += 1;
        self.spawn_tasks(link, stream);
        link
    }

    fn spawn_tasks(&mut self, link: LinkId, stream: Stream) {
        let peer = stream.addresses().ok().flatten().map(|(peer, _)| peer);
        let (reading, writing) = tokio::io::split(stream);
        let (writer, packets) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let read =
            tokio::spawn(run_reader(link, peer, reading, self.event_sender.clone(), self.traffic.clone()));
        let write = tokio::spawn(run_writer(writing, packets, queued.clone()));
        let tasks = vec![read.abort_handle(), write.abort_handle()];
        self.links.insert(link, OpenLink { packet_sender: Some(writer), queued_bytes: queued, tasks });
    }

    /// Queues a packet. Returns false if the peer does not read and the link must be closed.
    pub(super) fn queue_packet(&mut self, link: LinkId, packet: &Packet, limit: usize) -> bool {
        let Some(OpenLink { packet_sender: Some(writer), queued_bytes: queued, .. }) = self.links.get(&link)
        else {
            return true;
        };
        let bytes = packet.encode();
        let waiting = queued.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > if limit == 0 { DEFAULT_SEND_BUFFER_LIMIT } else { limit } {
            self.traffic.overflowed_links.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.traffic.sent.count_packet(packet, bytes.len());
        // If the writer has ended, the reader reports the end of the link.
        let _ = writer.send(bytes);
        true
    }

    /// Ends a link as if it had broken, so that the driver is notified. If the driver's queue is full, the link stays
    /// open.
    pub(super) fn abort_link(&mut self, link: LinkId) {
        if self.event_sender.try_send(LinkEvent::Closed { link }).is_ok() {
            self.close_link(link);
        }
    }

    pub(super) fn close_link(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    pub(super) fn total_queued_bytes(&self) -> usize {
        self.links.values().map(|open| open.queued_bytes.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn queued_bytes(&self, link: LinkId) -> usize {
        self.links.get(&link).map_or(0, |open| open.queued_bytes.load(Ordering::Relaxed))
    }
}

/// Accepts links from peers until the driver ends.
pub(super) async fn accept_links(
    listener: Listener,
    options: SocketOptions,
    events: mpsc::Sender<LinkEvent>,
) {
    let strangers = Arc::new(Semaphore::new(MAX_PENDING_HANDSHAKES));
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
                    // An error means that the driver has ended.
                    let _ = events.send(event).await;
                }
                Err(error) => {
                    tracing::warn!("Error accepting cluster node connection from {}: {error}", peer.ip());
                }
            }
        });
    }
}

async fn run_reader(
    link: LinkId,
    peer: Option<SocketAddr>,
    mut stream: ReadHalf<Stream>,
    events: mpsc::Sender<LinkEvent>,
    traffic: Arc<TrafficCounters>,
) {
    if let Err(reason) = read_packets(link, &mut stream, &events, &traffic).await {
        let peer = peer.map_or_else(|| "a peer".to_owned(), |peer| peer.to_string());
        tracing::warn!("Bad message on the cluster bus from {peer}: {reason}; the link is closed");
    }
    let _ = events.send(LinkEvent::Closed { link }).await;
}

/// Splits the stream into packets. The buffer only grows as data arrives.
async fn read_packets(
    link: LinkId,
    stream: &mut ReadHalf<Stream>,
    events: &mpsc::Sender<LinkEvent>,
    traffic: &TrafficCounters,
) -> Result<(), wire::DecodeError> {
    let mut buffer = Vec::new();
    loop {
        match wire::packet_len(&buffer)? {
            Some(length) if buffer.len() >= length => {
                let packet = Box::new(wire::decode(&buffer[..length])?);
                traffic.received.count_packet(&packet, length);
                buffer.drain(..length);
                if events.send(LinkEvent::PacketReceived { link, packet }).await.is_err() {
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

async fn run_writer(
    mut stream: WriteHalf<Stream>,
    mut packets: mpsc::UnboundedReceiver<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
) {
    while let Some(packet) = packets.recv().await {
        if stream.write_all(&packet).await.is_err() {
            return;
        }
        queued_bytes.fetch_sub(packet.len(), Ordering::Relaxed);
    }
}
