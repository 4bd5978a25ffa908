//! The replication thread: drives the master's machine and carries out what it decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use config::MasterAddress;
use engine::{ClientFlags, Link};
use parking_lot::Mutex;
use persistence::Dialect;
use replication::master::{Action, CloseReason, Input, PeerId, TransferId};
use replication::{CursorId, Generation, Position, Profile, PsyncRequest, Refusal, Replica, SnapshotForm};
use slot_routing::ReplOffset;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::peer::{self, Outgoing};
use super::{Replication, SharedLog, follow};
use crate::durability::Durability;
use crate::durability::snapshot::{self, Order, PIECES_AHEAD, Piece};
use crate::net::transport::Socket;
use crate::process::stopping::Stopping;
use crate::server::Server;

/// How often pending bytes and gates are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// How often the pending bytes are, while a replica is behind: a limit can be passed within a second.
const PENDING_PERIOD: Duration = Duration::from_millis(100);

/// A connection that asked to be a replica.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) id: u64,
    /// The connection's entry in CLIENT LIST.
    pub(crate) link: Link,
    pub(crate) socket: Socket,
    /// Where it connects from.
    pub(crate) address: String,
    /// The bytes that it sent after its request, and those that are still to be sent to it.
    pub(crate) input: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
    pub(crate) profile: Profile,
    /// `None` for SYNC.
    pub(crate) request: Option<PsyncRequest>,
}

/// A message to the replication thread.
#[derive(Debug)]
pub(crate) enum Event {
    Joined(Box<Newcomer>),
    Acknowledged {
        peer: PeerId,
        offset: ReplOffset,
        synced: Option<ReplOffset>,
    },
    Heard {
        peer: PeerId,
    },
    Closed {
        peer: PeerId,
    },
    Cut {
        transfer: TransferId,
        position: Position,
        /// The database that the stream has selected there, if it does not select one at once.
        db: Option<u16>,
        cursors: Vec<(PeerId, CursorId)>,
    },
    Sent {
        peer: PeerId,
    },
    TransferFailed {
        transfer: TransferId,
    },
    Follow {
        master: MasterAddress,
        machine: Arc<Mutex<Replica>>,
        stream: Generation,
    },
    Unfollow,
    /// The data was replaced, or its history got another identifier.
    HistoryReplaced,
}

/// Starts the replication thread.
pub(crate) fn spawn(server: &Server) -> std::io::Result<JoinHandle<()>> {
    let (engine, door, stopping) = (server.engine.clone(), server.door.clone(), server.stopping.clone());
    let (replication, durability) = (server.replication.clone(), server.durability.clone());
    std::thread::Builder::new().name("replication".to_owned()).spawn(move || {
        crate::net::worker::install_scratch(&engine, &door);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        runtime.block_on(run(replication, durability, stopping));
        // A snapshot that is being written without a receiver need not be waited for.
        runtime.shutdown_background();
    })
}

async fn run(replication: Arc<Replication>, durability: Arc<Durability>, stopping: Stopping) {
    let inbox = replication.inbox.lock().take();
    let mut inbox = inbox.expect("there is one replication thread");
    let (peers, transfers) = (HashMap::new(), HashMap::new());
    let looked = Looked { at: tokio::time::Instant::now(), all_had: None };
    let mut serving =
        Serving { replication: replication.clone(), durability, peers, transfers, following: None, looked };
    let stopped = stopping.stopped();
    tokio::pin!(stopped);
    loop {
        let deadline = replication.master.lock().next_deadline();
        let wait = deadline.map_or(LOOK_PERIOD, |deadline| deadline.since(crate::process::time::instant()));
        tokio::select! {
            event = inbox.recv() => {
                let Some(event) = event else { return };
                serving.on_event(event);
                // One gate update and one look for released waiters for all that has come.
                while let Ok(event) = inbox.try_recv() {
                    serving.on_event(event);
                }
            }
            () = tokio::time::sleep(wait) => serving.give(Input::Deadline),
            () = serving.looked.next(&replication.log), if serving.is_watching() => serving.look(),
            () = replication.log.cursor_fell_off() => serving.look(),
            () = &mut stopped => return,
        }
        replication.release_waiters();
        replication.update_gates();
    }
}

/// One replica's task.
#[derive(Debug)]
struct Peer {
    address: String,
    /// Its number in CLIENT LIST.
    client: u64,
    orders: mpsc::UnboundedSender<Outgoing>,
    task: AbortHandle,
    cursor: Option<CursorId>,
    /// The snapshot on its way to it.
    pieces: Option<mpsc::Receiver<Piece>>,
}

struct Serving {
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    peers: HashMap<PeerId, Peer>,
    /// The snapshots on their way, to call them off.
    transfers: HashMap<TransferId, Arc<AtomicBool>>,
    following: Option<AbortHandle>,
    looked: Looked,
}

/// The last look at how far behind the replicas are.
struct Looked {
    at: tokio::time::Instant,
    /// The log's end, if they all had everything.
    all_had: Option<ReplOffset>,
}

impl Looked {
    /// Returns when the next is due. While all have everything nothing changes but by the log.
    async fn next(&self, log: &SharedLog) {
        if let Some(end) = self.all_had {
            log.when_grown(|| (log.lock().position().offset != end).then_some(())).await;
        }
        tokio::time::sleep_until(self.at + PENDING_PERIOD).await;
    }
}

impl Serving {
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Joined(newcomer) => {
                if let Err(error) = self.join(*newcomer) {
                    tracing::warn!("A replica was lost before it was served: {error}");
                }
            }
            Event::Acknowledged { peer, offset, synced } => {
                self.give(Input::Acknowledged { peer, offset, synced });
                self.replication.synced_further.notify_waiters();
            }
            Event::Heard { peer } => self.give(Input::Heard { peer }),
            Event::Closed { peer } => {
                if let Some(gone) = self.forget(peer) {
                    tracing::info!("Connection with replica {} lost.", gone.address);
                }
                self.give(Input::Closed { peer });
            }
            Event::Cut { transfer, position, db, cursors } => {
                let peers = self.take_cursors(cursors);
                self.give(Input::Cut { transfer, position, db });
                self.send_snapshot(&peers);
            }
            Event::Sent { peer } => {
                if let Some(there) = self.peers.get(&peer) {
                    tracing::info!(
                        "Streamed RDB transfer with replica {} succeeded (socket).",
                        there.address
                    );
                }
                self.give(Input::Sent { peer });
            }
            Event::TransferFailed { transfer } => {
                self.transfers.remove(&transfer);
                self.give(Input::TransferFailed { transfer });
            }
            Event::Follow { master, machine, stream } => {
                self.stop_following();
                self.give(Input::Role { master: false });
                let task = tokio::spawn(follow::run(
                    self.replication.clone(),
                    self.durability.clone(),
                    master,
                    machine,
                    stream,
                ));
                self.following = Some(task.abort_handle());
            }
            Event::Unfollow => {
                self.stop_following();
                self.give(Input::Role { master: true });
                // They come back, and learn the new identifier.
                self.give(Input::HistoryReplaced);
            }
            Event::HistoryReplaced => self.give(Input::HistoryReplaced),
        }
    }

    fn stop_following(&mut self) {
        if let Some(task) = self.following.take() {
            task.abort();
        }
    }

    fn join(&mut self, newcomer: Newcomer) -> std::io::Result<()> {
        let Newcomer { id, link, socket, address, input, unsent, mut profile, request } = newcomer;
        let peer = PeerId(id);
        let port = profile.listening_port;
        let host = profile.ip_address.clone().unwrap_or_else(|| address.clone());
        tracing::info!("Replica {host}:{port} asks for synchronization");
        let (resume, cursor) = match &request {
            Some(request) => self.resume(request, &format!("{host}:{port}")),
            None => {
                // With a connection of its own for the snapshot it acknowledges over the other.
                profile.sync = !profile.rdb_channel;
                (None, None)
            }
        };
        if resume.is_none() {
            self.replication.stats.full.fetch_add(1, Ordering::Relaxed);
        }
        let (orders, sends) = mpsc::unbounded_channel();
        let stream = peer::open(&self.replication.config, socket)?;
        let _ = orders.send(Outgoing::Line(unsent));
        let seen = peer::register(&self.replication.engine, link, ClientFlags::REPLICA);
        let client = seen.client.id;
        let task = tokio::spawn(peer::run(self.replication.clone(), peer, seen, stream, input, sends));
        let task = task.abort_handle();
        self.looked.all_had = None;
        self.peers.insert(
            peer,
            Peer { address: format!("{host}:{port}"), client, orders, task, cursor, pieces: None },
        );
        self.replication.addresses.lock().insert(peer, address);
        self.give(Input::Joined { peer, profile, resume });
        Ok(())
    }

    /// Where the log lets the newcomer go on, with a cursor there.
    fn resume(&self, request: &PsyncRequest, name: &str) -> (Option<Position>, Option<CursorId>) {
        let stats = &self.replication.stats;
        let mut log = self.replication.log.lock();
        match log.resume(&request.id, request.first_byte) {
            Ok(offset) => {
                stats.partial_ok.fetch_add(1, Ordering::Relaxed);
                let missing = log.position().offset.0.saturating_sub(offset.0);
                tracing::info!(
                    "Partial resynchronization request from {name} accepted. Sending {missing} bytes of backlog \
                     starting from offset {}.",
                    offset.0 + 1
                );
                let position = Position { id: log.position().id, offset };
                (Some(position), Some(log.add_cursor(offset)))
            }
            Err(refusal) => {
                if refusal == Refusal::NothingAsked {
                    tracing::info!("Full resync requested by replica {name}");
                } else {
                    stats.partial_refused.fetch_add(1, Ordering::Relaxed);
                    tracing::info!("Partial resynchronization not accepted from {name}: {refusal}");
                }
                (None, None)
            }
        }
    }

    /// The receivers that are still there read the log from the cut on.
    fn take_cursors(&mut self, cursors: Vec<(PeerId, CursorId)>) -> Vec<PeerId> {
        self.looked.all_had = None;
        let mut there = Vec::new();
        for (id, cursor) in cursors {
            match self.peers.get_mut(&id) {
                Some(peer) => {
                    peer.cursor = Some(cursor);
                    there.push(id);
                }
                None => self.replication.log.lock().remove_cursor(cursor),
            }
        }
        there
    }

    fn send_snapshot(&mut self, peers: &[PeerId]) {
        for peer in peers {
            if let Some(peer) = self.peers.get_mut(peer)
                && let Some(pieces) = peer.pieces.take()
            {
                peer.send(Outgoing::Snapshot(pieces));
            }
        }
    }

    /// Whether there is anybody to look at, or a delay that is to end.
    fn is_watching(&self) -> bool {
        !self.peers.is_empty() || self.replication.write_delay.load(Ordering::Relaxed) > 0
    }

    /// Tells the machine how far each replica is behind. Called while one is, and when one has passed the hard limit.
    fn look(&mut self) {
        let (pending, end): (Vec<(PeerId, u64)>, _) = {
            let log = self.replication.log.lock();
            let pending = |(id, peer): (&PeerId, &Peer)| Some((*id, log.pending(peer.cursor?).ok()?));
            (self.peers.iter().filter_map(pending).collect(), log.position().offset)
        };
        let all_have = pending.len() == self.peers.len() && pending.iter().all(|(_, bytes)| *bytes == 0);
        for (peer, bytes) in pending {
            self.give(Input::Pending { peer, bytes });
        }
        let replication = &self.replication;
        let delay = replication.master.lock().write_delay(crate::process::time::instant());
        let micros = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
        let before = replication.write_delay.swap(micros, Ordering::Relaxed);
        let all_had = Some(end).filter(|_| all_have && micros == 0);
        self.looked = Looked { at: tokio::time::Instant::now(), all_had };
        if (before == 0) != (micros == 0) {
            let what = if micros == 0 { "no longer slowed down" } else { "slowed down" };
            tracing::warn!("Writers are {what} for a replica that cannot keep up");
        }
    }

    fn give(&mut self, input: Input) {
        let mut actions = Vec::new();
        self.replication.master.lock().handle(crate::process::time::instant(), input, &mut actions);
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        let log = &self.replication.log;
        match action {
            Action::Snapshot { transfer, peers, eof, form } => {
                self.start_snapshot(transfer, &peers, eof, form);
            }
            Action::CancelSnapshot { transfer } => {
                if let Some(cancelled) = self.transfers.remove(&transfer) {
                    cancelled.store(true, Ordering::Relaxed);
                }
            }
            Action::FullResync { peer, position } => {
                self.line(peer, format!("+FULLRESYNC {} {}\r\n", position.id, position.offset));
            }
            Action::Continue { peer, id: Some(id) } => self.line(peer, format!("+CONTINUE {id}\r\n")),
            Action::Continue { peer, id: None } => self.line(peer, "+CONTINUE\r\n".to_owned()),
            Action::Stream { peer, .. } => {
                if let Some(peer) = self.peers.get(&peer) {
                    let cursor =
                        peer.cursor.expect("who streams has a cursor since it joined or since the cut");
                    tracing::info!("Synchronization with replica {} succeeded", peer.address);
                    peer.send(Outgoing::Stream(cursor));
                }
            }
            Action::EndOffset {
                peer: id @ PeerId(client),
                position: Position { id: history, offset },
                db,
            } => {
                let db = db.map_or(-1, i32::from);
                self.line(id, format!("$ENDOFF:{offset} {history} {db} {client}\r\n"));
            }
            Action::Release { peer } => {
                if let Some(cursor) = self.peers.get_mut(&peer).and_then(|peer| peer.cursor.take()) {
                    log.lock().remove_cursor(cursor);
                }
            }
            Action::ShowLife { peer } => self.line(peer, "\n".to_owned()),
            Action::Ping => {
                log.append_control(b"*1\r\n$4\r\nPING\r\n");
            }
            Action::Close { peer, reason } => self.close(peer, reason),
            Action::CloseLog if log.is_kept_open() => {}
            Action::CloseLog => {
                tracing::info!("Replication backlog freed: no replica has been connected for long.");
                log.close();
            }
        }
    }

    fn start_snapshot(&mut self, transfer: TransferId, peers: &[PeerId], eof: bool, form: SnapshotForm) {
        let mut receivers = Vec::new();
        for id in peers {
            if let Some(peer) = self.peers.get_mut(id) {
                let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
                peer.pieces = Some(pieces);
                receivers.push((*id, sender));
            }
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        self.transfers.retain(|_, flag| !flag.load(Ordering::Relaxed));
        self.transfers.insert(transfer, cancelled.clone());
        let dialect = if form.valkey_format { Dialect::Valkey } else { Dialect::Redis };
        let order = Order { transfer, eof, dialect, contents: form.contents, receivers, cancelled };
        let (replication, durability) = (self.replication.clone(), self.durability.clone());
        // A thread of its own, for it takes another priority.
        let work = move || snapshot::carry_out(&durability, &replication, order);
        if let Err(error) = std::thread::Builder::new().name("sync".to_owned()).spawn(work) {
            tracing::warn!("Can't start a thread for a snapshot: {error}");
            self.replication.tell(Event::TransferFailed { transfer });
        }
    }

    fn line(&self, peer: PeerId, line: String) {
        if let Some(peer) = self.peers.get(&peer) {
            peer.send(Outgoing::Line(line.into_bytes()));
        }
    }

    fn close(&mut self, peer: PeerId, reason: CloseReason) {
        if let Some(gone) = self.forget(peer) {
            tracing::warn!("Closing the connection with replica {}: {reason}", gone.address);
            gone.task.abort();
        }
    }

    fn forget(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.peers.remove(&id)?;
        self.replication.addresses.lock().remove(&id);
        self.replication.engine.clients.disconnect(peer.client);
        if let Some(cursor) = peer.cursor {
            self.replication.log.lock().remove_cursor(cursor);
        }
        Some(peer)
    }
}

impl Peer {
    /// The task may have ended; its event is then on its way.
    fn send(&self, order: Outgoing) {
        let _ = self.orders.send(order);
    }
}
