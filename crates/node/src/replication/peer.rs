//! One replica's connection: a reader of its acknowledgements, and a writer of what it is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use config::{Config, keys};
use engine::{Client, ClientFlags, Engine, Link as ClientLink};
use replication::master::PeerId;
use replication::{CursorId, Profile, Replconf};
use resp::{Batch, Limits, Parser};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use super::Replication;
use super::serve::Event;
use crate::durability::snapshot::Piece;
use crate::net::transport::{Options, Socket, Stream};

/// How much of the log is sent with one write.
const CHUNK: usize = 64 * 1024;

/// Takes a replica's socket into this thread's event loop. What it is sent may be delayed, to be sent in fewer pieces.
pub(super) fn open(config: &Config, socket: Socket) -> std::io::Result<Stream> {
    let stream = Stream::open(socket)?;
    let nodelay = !config.get(keys::REPL_DISABLE_TCP_NODELAY);
    stream.set_options(Options { nodelay, ..Options::new(config) })?;
    Ok(stream)
}

/// What the connection is to send, in order.
#[derive(Debug)]
pub(super) enum Outgoing {
    Line(Vec<u8>),
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
    let client =
        engine.clients.connect(link, crate::process::time::now(), Box::new(move || wake.notify_one()));
    client.set_flag(kind, true);
    Seen { client, woken }
}

impl Seen {
    /// Returns when somebody wants the connection gone.
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
    tokio::select! {
        () = read(&replication, peer, reader, input) => {}
        () = write(&replication, peer, writer, orders) => {}
        () = seen.killed() => {}
    }
    replication.tell(Event::Closed { peer });
}

async fn read(replication: &Replication, peer: PeerId, mut reader: ReadHalf<Stream>, mut input: Vec<u8>) {
    let mut parser = Parser::new();
    let mut profile = Profile::default();
    // What a replica says is short.
    const MAX_INPUT: usize = 64 * 1024;
    loop {
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut input, &mut batch, &Limits::default());
        let mut heard = Event::Heard { peer };
        for index in 0..batch.len() {
            let args = batch.args(index, &input);
            if args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"replconf"))
                && let Ok(Replconf::Ack(offset)) = profile.replconf(args)
            {
                heard = Event::Acknowledged { peer, offset, synced: profile.synced };
            }
        }
        replication.tell(heard);
        input.drain(..parsed.consumed);
        if parsed.error.is_some() || input.len() > MAX_INPUT {
            return;
        }
        match reader.read_buf(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

async fn write(
    replication: &Replication,
    peer: PeerId,
    mut writer: WriteHalf<Stream>,
    mut orders: mpsc::UnboundedReceiver<Outgoing>,
) {
    while let Some(order) = orders.recv().await {
        let sent = match order {
            Outgoing::Line(line) => write_counted(replication, &mut writer, &line).await,
            Outgoing::Snapshot(pieces) => send_snapshot(replication, peer, &mut writer, pieces).await,
            Outgoing::Stream(cursor) => {
                send_log(replication, &mut writer, cursor).await;
                false
            }
        };
        if !sent {
            return;
        }
    }
}

/// Sends all of that; says whether it could.
async fn write_counted(replication: &Replication, writer: &mut WriteHalf<Stream>, bytes: &[u8]) -> bool {
    let sent = writer.write_all(bytes).await.is_ok();
    if sent {
        replication.stats.output_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    sent
}

async fn send_snapshot(
    replication: &Replication,
    peer: PeerId,
    writer: &mut WriteHalf<Stream>,
    mut pieces: mpsc::Receiver<Piece>,
) -> bool {
    let patience = replication.config.get(keys::REPL_TIMEOUT);
    while let Some(piece) = pieces.recv().await {
        match piece {
            Piece::Bytes(bytes) => {
                let written =
                    tokio::time::timeout(patience, write_counted(replication, writer, &bytes)).await;
                if written != Ok(true) {
                    return false;
                }
            }
            Piece::End => {
                replication.tell(Event::Sent { peer });
                return true;
            }
        }
    }
    false
}

async fn send_log(replication: &Replication, writer: &mut WriteHalf<Stream>, cursor: CursorId) {
    let log = &replication.log;
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        chunk.clear();
        let read = log
            .when_grown(|| match log.lock().read(cursor, CHUNK, &mut chunk) {
                Ok(()) if chunk.is_empty() => None,
                outcome => Some(outcome),
            })
            .await;
        if read.is_err() || !write_counted(replication, writer, &chunk).await {
            return;
        }
    }
}
