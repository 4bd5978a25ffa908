//! The tasks of a replica's connection: one reads its acknowledgements, one sends the snapshot and the stream.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use config::{Config, keys};
use engine::{Client, ClientFlags, ConnectionInfo as ClientLink, Engine};
use net::scratch::with_scratch;
use net::transport::{Socket, SocketOptions, Stream};
use replication::master::PeerId;
use replication::master_driver::MasterDriverEvent;
use replication::{CursorId, PeerProfile, ReplconfAction};
use resp::{Batch, ParseLimits, Parser};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use super::Replication;
use super::replication_thread::ReplicationEvent;
use super::transfer::SnapshotPart;

/// The maximum number of log bytes sent with one write.
const MAX_WRITE_SIZE: usize = 64 * 1024;

/// Registers a replica's socket with the event loop of this thread. With `repl-disable-tcp-nodelay`, Nagle's algorithm
/// stays enabled to send fewer packets.
pub(super) fn open_stream(config: &Config, socket: Socket) -> std::io::Result<Stream> {
    let stream = Stream::open(socket)?;
    let nodelay = !config.get(keys::REPL_DISABLE_TCP_NODELAY);
    stream.set_options(SocketOptions { nodelay, ..SocketOptions::new(config) })?;
    Ok(stream)
}

/// Output for a replica's connection. Outputs are sent in the order in which they are queued.
#[derive(Debug)]
pub(super) enum PeerOutput {
    Bytes(Vec<u8>),
    Snapshot(mpsc::Receiver<SnapshotPart>),
    /// The log from this cursor's position on, until the connection closes.
    Stream(CursorId),
}

/// The entry of the connection in CLIENT LIST. It is removed on drop.
#[derive(Debug)]
pub(super) struct ClientRegistration {
    pub(super) client: Arc<Client>,
    wake_up: Arc<Notify>,
}

/// Adds the connection to the list of clients, where CLIENT KILL can find it.
pub(super) fn register_client(engine: &Engine, link: ClientLink, kind: ClientFlags) -> ClientRegistration {
    let woken = Arc::new(Notify::new());
    let wake = woken.clone();
    let client = engine.clients.connect(link, process::time::now(), Box::new(move || wake.notify_one()));
    client.set_flag(kind, true);
    ClientRegistration { client, wake_up: woken }
}

impl ClientRegistration {
    /// Waits until CLIENT KILL kills the connection.
    pub(super) async fn wait_until_killed(&self) {
        while !self.client.is_killed() {
            self.wake_up.notified().await;
        }
    }
}

/// Serves the replica until its connection ends, and reports the end to the replication thread.
pub(super) async fn run_peer(
    replication: Arc<Replication>,
    peer: PeerId,
    registration: ClientRegistration,
    stream: Stream,
    input: Vec<u8>,
    outputs: mpsc::UnboundedReceiver<PeerOutput>,
) {
    let (reader, writer) = tokio::io::split(stream);
    let client = &registration.client;
    let sender = PeerSender { replication: &replication, client, writer };
    tokio::select! {
        () = read_acknowledgements(&replication, peer, client, reader, input) => {}
        () = sender.send_outputs(peer, outputs) => {}
        () = registration.wait_until_killed() => {}
    }
    replication.send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::Closed(peer)));
}

async fn read_acknowledgements(
    replication: &Replication,
    peer: PeerId,
    client: &Client,
    mut reader: ReadHalf<Stream>,
    mut input: Vec<u8>,
) {
    let mut parser = Parser::new();
    let mut profile = PeerProfile::default();
    // Replicas send only short messages, so a longer one is an error.
    const MAX_MESSAGE_SIZE: usize = 64 * 1024;
    client.count_input_bytes(input.len());
    loop {
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut input, &mut batch, &ParseLimits::default());
        let mut heard = MasterDriverEvent::ReplicaAlive(peer);
        for index in 0..batch.len() {
            let args = batch.args(index, &input);
            client.count_commands(1);
            if args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"replconf"))
                && let Ok(ReplconfAction::Ack(offset)) = profile.apply_replconf(args)
            {
                heard =
                    MasterDriverEvent::Acknowledged { peer, offset, synced_offset: profile.fsynced_offset };
            }
        }
        replication.send_event(ReplicationEvent::MasterEvent(heard));
        input.drain(..parsed.consumed_bytes);
        if parsed.error.is_some() || input.len() > MAX_MESSAGE_SIZE {
            return;
        }
        match reader.read_buf(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => client.count_input_bytes(bytes),
        }
    }
}

/// The sending side of a replica's connection, which counts the sent bytes.
struct PeerSender<'a> {
    replication: &'a Replication,
    client: &'a Arc<Client>,
    writer: WriteHalf<Stream>,
}

impl PeerSender<'_> {
    async fn send_outputs(mut self, peer: PeerId, mut outputs: mpsc::UnboundedReceiver<PeerOutput>) {
        while let Some(order) = outputs.recv().await {
            let sent = match order {
                PeerOutput::Bytes(bytes) => self.write_all(&bytes).await,
                PeerOutput::Snapshot(pieces) => self.send_snapshot(peer, pieces).await,
                PeerOutput::Stream(cursor) => {
                    self.send_log(cursor).await;
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }

    async fn write_all(&mut self, bytes: &[u8]) -> bool {
        let sent = self.writer.write_all(bytes).await.is_ok();
        if sent {
            self.client.count_output_bytes(bytes.len());
            self.replication.stats.output_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        sent
    }

    async fn send_snapshot(&mut self, peer: PeerId, mut parts: mpsc::Receiver<SnapshotPart>) -> bool {
        while let Some(SnapshotPart { bytes, is_last }) = parts.recv().await {
            let timeout = self.replication.config.get(keys::REPL_TIMEOUT);
            if tokio::time::timeout(timeout, self.write_all(&bytes)).await != Ok(true) {
                return false;
            }
            if is_last {
                // Nothing may be awaited between sending the last byte and reporting it. A replica that only fetches a
                // snapshot closes the connection as soon as it has that byte, and the reading side might report the
                // close first.
                self.replication
                    .send_event(ReplicationEvent::MasterEvent(MasterDriverEvent::SnapshotSent(peer)));
                return true;
            }
        }
        false
    }

    async fn send_log(&mut self, cursor: CursorId) {
        let log = &self.replication.log;
        let _reader = log.add_reader(cursor, self.client);
        let mut chunk = Vec::with_capacity(MAX_WRITE_SIZE);
        loop {
            chunk.clear();
            let read = log
                .wait_for_growth(|| match log.lock().read(cursor, MAX_WRITE_SIZE, &mut chunk) {
                    Ok(()) if chunk.is_empty() => {
                        self.client.set_unsent_log_bytes(0);
                        None
                    }
                    outcome => Some(outcome),
                })
                .await;
            // This thread frees log memory that other threads allocated, so its memory counters are reported.
            with_scratch(|scratch| self.replication.engine.memory.report_allocations(&mut scratch.worker));
            // The cursor still belongs to this history, so the read failed because the replica was too slow.
            if read.is_err() && log.lock().cursor_offset(cursor).is_some() {
                self.client.close_for_output_limit();
            }
            if read.is_err() || !self.write_all(&chunk).await {
                return;
            }
        }
    }
}
