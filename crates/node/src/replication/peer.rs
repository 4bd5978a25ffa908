//! One replica's connection: a reader of its acknowledgements, and a writer of what it is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use config::{Config, keys};
use engine::{Client, ClientFlags, Engine, Link as ClientLink};
use net::scratch::with_scratch;
use net::transport::{Socket, SocketOptions, Stream};
use replication::master::PeerId;
use replication::master_driver::MasterDriverEvent;
use replication::{CursorId, PeerProfile, ReplconfAction};
use resp::{Batch, ParseLimits, Parser};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use super::Replication;
use super::serve::Event;
use super::transfer::Piece;

/// How much of the log is sent with one write.
const CHUNK: usize = 64 * 1024;

/// Takes a replica's socket into this thread's event loop. Its output may be delayed, to be sent in fewer pieces.
pub(super) fn open(config: &Config, socket: Socket) -> std::io::Result<Stream> {
    let stream = Stream::open(socket)?;
    let nodelay = !config.get(keys::REPL_DISABLE_TCP_NODELAY);
    stream.set_options(SocketOptions { nodelay, ..SocketOptions::new(config) })?;
    Ok(stream)
}

/// The connection's output, in order.
#[derive(Debug)]
pub(super) enum Outgoing {
    Bytes(Vec<u8>),
    Snapshot(mpsc::Receiver<Piece>),
    /// The log from this cursor on, for ever.
    Stream(CursorId),
}

/// The connection as CLIENT LIST and KILL see it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) client: Arc<Client>,
    woken: Arc<Notify>,
}

/// Enters the connection into the list of clients, from which [`Clients::disconnect`] takes it.
///
/// [`Clients::disconnect`]: engine::Clients::disconnect
pub(super) fn register(engine: &Engine, link: ClientLink, kind: ClientFlags) -> Seen {
    let woken = Arc::new(Notify::new());
    let wake = woken.clone();
    let client = engine.clients.connect(link, process::time::now(), Box::new(move || wake.notify_one()));
    client.set_flag(kind, true);
    Seen { client, woken }
}

impl Seen {
    /// Returns when the connection is to be gone.
    pub(super) async fn killed(&self) {
        while !self.client.is_killed() {
            self.woken.notified().await;
        }
    }
}

/// Serves the replica until its connection ends, and tells.
pub(super) async fn run(
    replication: Arc<Replication>,
    peer: PeerId,
    seen: Seen,
    stream: Stream,
    input: Vec<u8>,
    orders: mpsc::UnboundedReceiver<Outgoing>,
) {
    let (reader, writer) = tokio::io::split(stream);
    let client = &seen.client;
    let sender = Sender { replication: &replication, client, writer };
    tokio::select! {
        () = read(&replication, (peer, client), reader, input) => {}
        () = sender.run(peer, orders) => {}
        () = seen.killed() => {}
    }
    replication.tell(Event::Serve(MasterDriverEvent::Closed(peer)));
}

async fn read(
    replication: &Replication,
    (peer, client): (PeerId, &Client),
    mut reader: ReadHalf<Stream>,
    mut input: Vec<u8>,
) {
    let mut parser = Parser::new();
    let mut profile = PeerProfile::default();
    // A replica's messages are short.
    const MAX_INPUT: usize = 64 * 1024;
    client.count_input(input.len());
    loop {
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut input, &mut batch, &ParseLimits::default());
        let mut heard = MasterDriverEvent::Heard(peer);
        for index in 0..batch.len() {
            let args = batch.args(index, &input);
            client.count_commands(1);
            if args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"replconf"))
                && let Ok(ReplconfAction::Ack(offset)) = profile.replconf(args)
            {
                heard = MasterDriverEvent::Acknowledged { peer, offset, synced: profile.synced };
            }
        }
        replication.tell(Event::Serve(heard));
        input.drain(..parsed.consumed);
        if parsed.error.is_some() || input.len() > MAX_INPUT {
            return;
        }
        match reader.read_buf(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => client.count_input(bytes),
        }
    }
}

/// The sending side of a replica's connection, which counts what it sends.
struct Sender<'a> {
    replication: &'a Replication,
    client: &'a Arc<Client>,
    writer: WriteHalf<Stream>,
}

impl Sender<'_> {
    async fn run(mut self, peer: PeerId, mut orders: mpsc::UnboundedReceiver<Outgoing>) {
        while let Some(order) = orders.recv().await {
            let sent = match order {
                Outgoing::Bytes(bytes) => self.write(&bytes).await,
                Outgoing::Snapshot(pieces) => self.send_snapshot(peer, pieces).await,
                Outgoing::Stream(cursor) => {
                    self.send_log(cursor).await;
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }

    /// Sends all of that; says whether it could.
    async fn write(&mut self, bytes: &[u8]) -> bool {
        let sent = self.writer.write_all(bytes).await.is_ok();
        if sent {
            self.client.count_output(bytes.len());
            self.replication.stats.output_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        sent
    }

    async fn send_snapshot(&mut self, peer: PeerId, mut pieces: mpsc::Receiver<Piece>) -> bool {
        while let Some(Piece { bytes, is_last }) = pieces.recv().await {
            let timeout = self.replication.config.get(keys::REPL_TIMEOUT);
            if tokio::time::timeout(timeout, self.write(&bytes)).await != Ok(true) {
                return false;
            }
            if is_last {
                // With nothing awaited since the last byte: a replica that fetches its snapshot alone closes the
                // connection as soon as it has that byte, and whoever reads here may see that first.
                self.replication.tell(Event::Serve(MasterDriverEvent::Sent(peer)));
                return true;
            }
        }
        false
    }

    async fn send_log(&mut self, cursor: CursorId) {
        let log = &self.replication.log;
        let _reader = log.add_reader(cursor, self.client);
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            let read = log
                .wait_for_growth(|| match log.lock().read(cursor, CHUNK, &mut chunk) {
                    Ok(()) if chunk.is_empty() => {
                        self.client.show_unsent_log(0);
                        None
                    }
                    outcome => Some(outcome),
                })
                .await;
            // The log no longer keeps the bytes that were read: this thread gave back memory that others took.
            with_scratch(|scratch| self.replication.engine.tell_memory(&mut scratch.worker));
            // It still stands in the log's history: it was too slow.
            if read.is_err() && log.lock().position_of(cursor).is_some() {
                self.client.overflow();
            }
            if read.is_err() || !self.write(&chunk).await {
                return;
            }
        }
    }
}
